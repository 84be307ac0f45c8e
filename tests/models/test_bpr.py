"""FPMC: steps against numerical gradients, scores by hand, and a circle to be learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from logs import logs, tiny_log
from talerec.models.factors.fpmc import (
    BPRExamples,
    ItemFactors,
    StepOptions,
    bpr_steps,
    fit_factors,
)

few = settings(max_examples=25, deadline=None)


def circle(users=40, items=8, rows=6):
    """Everybody walks round the same circle of items, from a place of their own."""
    return tiny_log(
        [(u, (u + s) % items, 1.6e9 + u + 86_400 * s) for u in range(users) for s in range(rows)]
    )


def factors_of(model):
    """taste, from_last, to_taste, to_last in float64, items x factors."""
    query_arrays, d = model.fitted.weights.query_arrays, model.factors
    factors = (
        query_arrays["taste"],
        query_arrays["from_last"],
        model.weights[:d].T,
        model.weights[d:].T,
    )
    return [np.asarray(part, np.float64) for part in factors]


# -- one step --------------------------------------------------------------------------------------


def climbed(parts, history, i, j, reg):
    """ln sigma(score of i - score of j) - reg / 2 times the squared size of the factors."""
    taste, from_last, to_taste, to_last = parts
    tastes, last = taste[history], from_last[history[-1]]
    score = [tastes.mean(axis=0) @ to_taste[x] + last @ to_last[x] for x in (i, j)]
    size = np.mean([row @ row for row in tastes]) + last @ last
    size += sum(to[x] @ to[x] for to in (to_taste, to_last) for x in (i, j))
    return -np.log1p(np.exp(score[1] - score[0])) - reg / 2 * size


def uphill(parts, history, i, j, reg):
    """The slope in every direction, by going a little both ways."""
    slopes = [np.zeros_like(part) for part in parts]
    for part, slope in zip(parts, slopes, strict=True):
        for place in np.ndindex(part.shape):
            here, ends = part[place], []
            for little in (1e-5, -1e-5):
                part[place] = here + little
                ends.append(climbed(parts, history, i, j, reg))
            part[place] = here
            slope[place] = (ends[0] - ends[1]) / 2e-5
    return slopes


def start(seed, items=6, factors=3):
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.7, (items, factors)).astype(np.float32) for _ in range(4)]


def step(parts, item, begin, row, other, *, rows=20, rate=0.1, reg=0.0):
    """What one step for one row makes of the factors."""
    after = [part.copy() for part in parts]
    order, others = np.array([row]), np.array([other], np.int32)
    examples = BPRExamples(np.array(item, np.int32), np.array(begin), order, others)
    bpr_steps(examples, StepOptions(rows, rate, reg), ItemFactors(*after))
    return after


def assert_steps_uphill(parts, history, i, j, after, rate, reg):
    doubled = [part.astype(np.float64) for part in parts]
    slopes = uphill(doubled, history, i, j, reg)
    for before, slope, stepped in zip(doubled, slopes, after, strict=True):
        np.testing.assert_allclose(stepped, before + rate * slope, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reg", [0.0, 0.05, 0.5])
def test_a_step_goes_uphill_in_all_factors(seed, reg):
    item, begin = [3, 1, 4, 0, 2], [0, 0, 0, 0, 0]
    parts = start(seed)
    after = step(parts, item, begin, 4, 5, reg=reg)
    assert_steps_uphill(parts, [3, 1, 4, 0], 2, 5, after, 0.1, reg)


@pytest.mark.parametrize("reg", [0.0, 0.5])
def test_the_other_item_may_be_one_of_the_history(reg):
    item, begin = [3, 1, 4, 0, 2], [0, 0, 0, 0, 0]
    parts = start(1)
    for other in (0, 4):  # the last one, and one before
        after = step(parts, item, begin, 4, other, reg=reg)
        assert_steps_uphill(parts, [3, 1, 4, 0], 2, other, after, 0.1, reg)


@pytest.mark.parametrize("reg", [0.0, 0.5])
def test_the_next_item_may_be_one_of_the_history(reg):
    parts = start(2)
    after = step(parts, [2, 1, 2], [0, 0, 0], 2, 5, reg=reg)
    assert_steps_uphill(parts, [2, 1], 2, 5, after, 0.1, reg)


def test_only_rows_of_the_same_user_and_only_the_last_ones_count():
    item, begin = [3, 1, 4, 0, 2], [0, 0, 2, 2, 2]
    parts = start(3)
    assert_steps_uphill(parts, [4, 0], 2, 5, step(parts, item, begin, 4, 5), 0.1, 0.0)
    narrow = step(parts, item, [0] * 5, 4, 5, rows=3, reg=0.1)
    assert_steps_uphill(parts, [1, 4, 0], 2, 5, narrow, 0.1, 0.1)
    after_one = step(parts, item, [0] * 5, 4, 5, rows=1, reg=0.1)
    assert_steps_uphill(parts, [0], 2, 5, after_one, 0.1, 0.1)


def test_an_item_that_the_history_has_twice_moves_twice_as_far():
    parts = start(4)
    after = step(parts, [3, 1, 3, 2], [0] * 4, 3, 5)
    assert_steps_uphill(parts, [3, 1, 3], 2, 5, after, 0.1, 0.0)


@pytest.mark.parametrize("reg", [0.002, 0.5])
def test_an_item_that_the_history_has_twice_shrinks_twice_as_much(reg):
    parts = start(4)
    after = step(parts, [3, 1, 3, 2], [0] * 4, 3, 5, reg=reg)
    assert_steps_uphill(parts, [3, 1, 3], 2, 5, after, 0.1, reg)


def test_an_item_is_not_compared_with_itself():
    parts = start(5)
    for before, after in zip(parts, step(parts, [3, 1, 2], [0] * 3, 2, 2, reg=0.5), strict=True):
        np.testing.assert_array_equal(before, after)


def test_steps_follow_each_other_in_the_order_given():
    item, begin = np.array([3, 1, 4, 0, 2], np.int32), np.zeros(5, np.int64)
    parts = start(6)
    together = [part.copy() for part in parts]
    order, other = np.array([3, 1, 4]), np.array([5, 2, 1], np.int32)
    examples = BPRExamples(item, begin, order, other)
    bpr_steps(examples, StepOptions(20, 0.1, 0.01), ItemFactors(*together))
    for row, j in zip(order, other, strict=True):
        parts = step(parts, item, begin, int(row), int(j), reg=0.01)
    for step_by_step, all_at_once in zip(parts, together, strict=True):
        np.testing.assert_array_equal(step_by_step, all_at_once)


# -- fitting ---------------------------------------------------------------------------------------


def test_a_seed_always_gives_the_same_factors_and_another_gives_others():
    runs = [factors_of(tr.FPMC(factors=4, seed=seed).fit(circle())) for seed in (1, 1, 2)]
    for first, second, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(first, second)
        assert (first != other).all()


@given(logs(), st.integers(0, 3))
@few
def test_a_seed_gives_the_same_factors_for_any_log(log, seed):
    models = [tr.FPMC(factors=3, epochs=3, seed=seed).fit(log) for _ in range(2)]
    for first, second in zip(*map(factors_of, models), strict=True):
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()


def test_without_a_next_item_nothing_is_learnt():
    """Rows of their own users: no row has one before it, and factors stay as they were drawn."""
    log = tiny_log([(u, u % 3, 1e9) for u in range(9)])
    options = StepOptions(rows=5, rate=0.1, reg=0.1)
    after_one, after_seven = (fit_factors(log, 4, epochs, 3, options) for epochs in (1, 7))
    for one_epoch, seven_epochs in zip(after_one, after_seven, strict=True):
        np.testing.assert_array_equal(one_epoch, seven_epochs)


@pytest.mark.parametrize("seed", range(3))
def test_the_next_item_of_a_circle_is_learnt(seed):
    model = tr.FPMC(factors=8, epochs=40, seed=seed).fit(circle())
    histories = [[(item - 1) % 8, item] for item in range(8)]
    best = model.recommend_histories(histories, k=1)["item_id"].to_list()
    assert sum(next_item == (item + 1) % 8 for item, next_item in enumerate(best)) >= 6


# -- scores ----------------------------------------------------------------------------------------


def scores_by_hand(model, history, ids):
    """The mean taste of the last known rows, and the transition of the last one, by item."""
    taste, from_last, to_taste, to_last = factors_of(model)
    positions = [ids.index(name) for name in history if name in ids][-model.rows :]
    mean = sum(taste[i] for i in positions) / len(positions)
    return [mean @ to_taste[j] + from_last[positions[-1]] @ to_last[j] for j in range(len(ids))]


names = st.integers(0, 7).map("i{}".format)  # i5 and later are in no log


@given(logs(), st.lists(st.lists(names, max_size=7), min_size=1, max_size=4), st.integers(1, 5))
@few
def test_scores_are_taste_and_the_last_step(log, histories, rows):
    model = tr.FPMC(factors=3, epochs=4, rows=rows).fit(log)
    ids = log.items.ids.to_list()
    frame = model.recommend_histories(histories, k=len(ids), unknown="skip")
    for number, history in enumerate(histories):
        part = frame.filter(frame["history"] == number)
        if not set(history) & set(ids):
            assert part.is_empty()
            continue
        expected = scores_by_hand(model, history, ids)
        actual = dict(zip(part["item_id"].to_list(), part["score"].to_list(), strict=True))
        assert actual == pytest.approx(dict(zip(ids, expected, strict=True)), abs=1e-12)
        assert part["score"].to_list() == sorted(actual.values(), reverse=True)


@given(logs())
@few
def test_users_are_scored_by_their_rows(log):
    model = tr.FPMC(factors=3, epochs=4, rows=3).fit(log)
    ids = log.items.ids.to_list()
    frame = model.recommend(log.users.ids.to_list(), k=len(ids))
    for user, name in enumerate(log.users.ids.to_list()):
        history = [ids[i] for i in log.item[log.ptr[user] : log.ptr[user + 1]]]
        part = frame.filter(frame["user_id"] == name)
        actual = dict(zip(part["item_id"].to_list(), part["score"].to_list(), strict=True))
        expected = dict(zip(ids, scores_by_hand(model, history, ids), strict=True))
        assert actual == pytest.approx(expected, abs=1e-12)


@given(logs(), st.lists(names, min_size=1, max_size=7), st.integers(1, 5))
@few
def test_contributions_add_up_to_the_score(log, history, rows):
    model = tr.FPMC(factors=3, epochs=4, rows=rows).fit(log)
    ids = log.items.ids.to_list()
    known_rows = [row for row, name in enumerate(history) if name in ids][-rows:]
    expected = scores_by_hand(model, history, ids) if known_rows else [0.0] * len(ids)
    for name, score in zip(ids, expected, strict=True):
        contributions = model.explain(history, name, unknown="skip")["contribution"].to_numpy()
        assert contributions.sum() == pytest.approx(score, abs=1e-12)
        assert set(np.flatnonzero(contributions).tolist()) <= set(known_rows)


def test_histories_of_unknown_items_alone_get_nothing():
    model = tr.FPMC(factors=4, epochs=2).fit(circle())
    frame = model.recommend_histories([[], [99], [98, 99], [1, 99]], k=8, unknown="skip")
    assert frame["history"].unique().to_list() == [3]
    alone = model.recommend_histories([[1]], k=8)
    assert frame.drop("history").equals(alone.drop("history"))
