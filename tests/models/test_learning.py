"""Learned parameters of tempo: planted answers, and slow versions of the kernels."""

from __future__ import annotations

import importlib
import os
import weakref
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import talerec as tr
from logs import logs, quick
from talerec.artifact import read_artifact
from talerec.errors import TalerecError
from talerec.models.core import split_holdout
from talerec.models.tempo import (
    HORIZONS,
    ComponentWeights,
    CoordinateSearch,
    HoldoutFit,
    QueryParams,
    ScoreComponents,
    TimedRows,
    build_snapshots,
    popularity,
    search,
)
from talerec.models.tempo.descriptions import describe_params
from talerec.models.tempo.holdout_fit import HoldoutComponents, _first_entries, _largest_entries
from talerec.models.tempo.query import HistoryRules, assign_segments, compute_inactivity
from talerec.models.tempo.query_params import LAG_KNOTS, popularity_scale, scale_targets
from talerec.runtime import threads

HOUR, DAY = 3600, 86_400


def log_of(rows) -> tr.Log:
    user, item, time = zip(*rows, strict=True)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time})
    return tr.Log.from_frame(frame, time_unit="s")


def chain_log(
    users=700, items=200, length=14, seed=1, otherwise=np.random.Generator.integers
) -> tr.Log:
    """Every second row follows from the item before it; `otherwise` draws the other rows."""
    draw = np.random.default_rng(seed)
    after = draw.permutation(items)
    rows = []
    for user in range(users):
        time, item = int(draw.integers(10**7)) + 10**9, int(draw.integers(items))
        for _ in range(length):
            rows.append((user, item, time))
            time += int(draw.integers(600, 5000))
            follows = draw.random() < 0.5
            item = int(after[item] if follows else otherwise(draw, items))
    return log_of(rows)


def hourly_log(users=1500, items=1500, length=10) -> tr.Log:
    """Six of ten rows are one of four items that are in fashion for half an hour."""
    draw, span = np.random.default_rng(2), 40 * HOUR
    time = np.sort(draw.integers(0, span, users * length))
    fashion = draw.integers(0, items, (span // 1800 + 1, 4))
    hot = draw.random(len(time)) < 0.6
    item = np.where(
        hot,
        fashion[time // 1800, draw.integers(0, 4, len(time))],
        draw.integers(0, items, len(time)),
    )
    user = draw.integers(0, users, len(time))
    return log_of(zip(user.tolist(), item.tolist(), (time + 10**9).tolist(), strict=True))


def repeat_log(users=1500, items=500, length=30, n_own=6) -> tr.Log:
    """Everybody goes round a few items of their own."""
    draw = np.random.default_rng(3)
    rows = []
    for user in range(users):
        own_items, time = draw.integers(0, items, n_own), int(draw.integers(10**7)) + 10**9
        for _ in range(length):
            item = draw.choice(own_items) if draw.random() < 0.9 else draw.integers(items)
            rows.append((user, int(item), time))
            time += int(draw.integers(HOUR, DAY))
    return log_of(rows)


def browsing_log(users=600, items=320, length=14) -> tr.Log:
    """Nobody has anything twice; people stay in their corner of the shop."""
    draw = np.random.default_rng(4)
    rows = []
    for user in range(users):
        corner, time = int(draw.integers(8)), int(draw.integers(10**7)) + 10**9
        for item in draw.permutation(items // 8)[:length]:
            rows.append((user, corner * (items // 8) + int(item), time))
            time += int(draw.integers(HOUR, DAY))
    return log_of(rows)


def params_of(model) -> QueryParams:
    return QueryParams.from_arrays(model.fitted.weights.query_arrays)


# -- planted answers -------------------------------------------------------------------------------


def test_if_only_the_last_item_matters_earlier_items_have_almost_no_weight():
    log = chain_log()
    split = tr.leave_one_out(log)
    model, off = tr.Tempo().fit(split.train), tr.Tempo(learn="off").fit(split.train)
    assert params_of(model).lag_weights(np.array([8.0])).max() < 0.02
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] > 1.05 * gained[1]
    assert any(
        "the 8th most recent has almost no weight (default 26 %)" in line
        for line in model.describe_learned()
    )


def test_if_the_last_hour_matters_a_short_horizon_has_the_largest_weight():
    split = tr.leave_one_out(hourly_log())
    model, off = tr.Tempo().fit(split.train), tr.Tempo(learn="off").fit(split.train)
    arrays = model.fitted.weights.query_arrays
    short = arrays["lifetime"] > 0
    assert (arrays["lifetime"][short] < 2 * HOUR * 1e6).any()
    now = params_of(model).popularity_weight[0]
    assert now[short].max() > now[~short].max(initial=0)
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] > 2 * gained[1]


def test_if_users_repeat_items_repeats_have_more_weight():
    split = tr.leave_one_out(repeat_log(length=60, n_own=12))
    model = tr.Tempo().fit(split.train)
    params = params_of(model)
    assert params.frequency_weight.max() > 0 or params.repeat_weight.max() > 1
    sentences = ("Repeat purchases are weighted", "Often repeated items are raised")
    assert any(line.startswith(sentences) for line in model.describe_learned())
    off = tr.Tempo(learn="off").fit(split.train)
    gained = [tr.evaluate(m, split).metrics["NDCG@10"] for m in (model, off)]
    assert gained[0] >= gained[1]


def test_if_users_do_not_repeat_items_no_seen_item_is_recommended():
    log = browsing_log()
    model = tr.Tempo().fit(log)
    assert not params_of(model).frequency_weight.any()
    ranked = model.recommend(log.users.ids[:50], k=10)
    seen = set(zip(*log.to_frame().select("user_id", "item_id").get_columns(), strict=True))
    shown = set(zip(*ranked.select("user_id", "item_id").get_columns(), strict=True))
    assert not seen & shown


def test_only_what_changed_is_described():
    """A least weight of old rows leaves the 8th row's weight at its default."""
    lifetime, auto = np.array([1e9, np.inf, np.inf, np.inf]), {"recency", "popularity_weight"}
    default = QueryParams.default(np.array([1.0]))
    changed = default._replace(min_weight=np.full(4, 0.08))
    assert describe_params(default, lifetime, auto) == ["Validation kept every default weight."]
    assert describe_params(changed, lifetime, auto) == [
        "Old rows keep 8 % of the latest row's weight (default 0 %)."
    ]
    shorter = changed._replace(recency=np.array([6.0, 6.0, 3.0, 3.0]))
    assert describe_params(shorter, lifetime, auto) == [
        "Old rows keep 8 % of the latest row's weight (default 0 %).",
        "For requests long after the log's end: the 8th most recent row has 8 % of the latest "
        "row's weight (default 26 %).",
    ]


# -- defaults and overrides ------------------------------------------------------------------------


def test_a_log_too_small_to_learn_from_keeps_the_defaults_and_reports_it():
    log = tr.synthetic_log(300, seed=1)
    model, off = tr.Tempo().fit(log), tr.Tempo(learn="off").fit(log)
    users = log.users.ids[:20]
    assert model.recommend(users, k=5).equals(off.recommend(users, k=5))
    assert model.describe_learned() == [
        "The log is too small to learn from: the default weights stay."
    ]
    assert off.describe_learned() == []


def test_a_parameter_that_is_set_replaces_the_learned_value():
    log = chain_log(users=500)
    model, off = tr.Tempo().fit(log), tr.Tempo(learn="off").fit(log)
    histories = [[1, 2, 3], [4, 5]]

    def scores(fitted, **changes):
        return fitted.with_params(**changes).recommend_histories(histories, k=20)

    assert params_of(model).popularity_exponent[0] == 0  # item-item weights are equal
    assert len(model.fitted.weights.query_arrays["lifetime"]) == 1  # and so is what is popular
    both = {"recency": 3.0, "popularity_weight": 0.2, "repeats": "ignored"}
    assert not scores(model).equals(scores(off))
    assert scores(model, **both).equals(scores(off, **both))
    assert scores(tr.Tempo(recency=3.0).fit(log)).equals(scores(model, recency=3.0))


@pytest.mark.parametrize("value", ["never", -1, 0, True, None])
def test_a_recency_that_is_neither_a_number_nor_auto_is_refused(value):
    with pytest.raises(TalerecError, match="recency"):
        tr.Tempo(recency=value)


def test_a_saved_model_recommends_and_reports_the_same_after_loading(tmp_path):
    model = tr.Tempo().fit(repeat_log(users=300))
    reloaded = tr.load(model.save(tmp_path / "shop.tale"), verify=True)
    users = model.fitted.log.users.ids[:30]
    assert reloaded.recommend(users, k=5).equals(model.recommend(users, k=5))
    assert reloaded.describe_learned() == model.describe_learned()
    assert read_artifact(tmp_path / "shop.tale").facts["chosen"] == model.describe_learned() != []


def test_contributions_add_up_to_scores_with_learned_parameters():
    log = repeat_log(users=300)
    model = tr.Tempo().fit(log)
    history = list(zip(log.items.ids.gather([1, 2, 1, 5]), [0, DAY, 2 * DAY, 3 * DAY], strict=True))
    history = [(item, 1_010_000_000_000_000 + 1_000_000 * t) for item, t in history]
    ranked = model.recommend_histories([history], k=5, as_of="2002-02-01")
    for item, score in ranked.select("item_id", "score").iter_rows():
        total = model.explain(history, item, as_of="2002-02-01")["contribution"].sum()
        assert total == pytest.approx(score, rel=1e-9, abs=1e-12)


def test_learning_does_not_depend_on_threads(monkeypatch):
    log, results = chain_log(users=500), []
    for count in ("1", "3"):
        monkeypatch.setitem(os.environ, threads.VARIABLE, count)
        model = tr.Tempo().fit(log)
        results.append((params_of(model).to_arrays(), model.recommend(log.users.ids[:40], k=5)))
    (params, lists), (other, other_lists) = results
    assert all(np.array_equal(params[name], other[name]) for name in params)
    assert lists.equals(other_lists)


def test_the_gram_of_the_first_fit_is_freed_before_the_gram_of_all_rows(monkeypatch):
    grams, count_gram = [], tr.Tempo.gram

    def counted(self, log):
        assert all(gram() is None for gram in grams)
        gram = count_gram(self, log)
        grams.append(weakref.ref(gram))
        return gram

    monkeypatch.setattr(tr.Tempo, "gram", counted)
    tr.Tempo().fit(chain_log(users=500))
    assert len(grams) == 2


# -- held-out queries ------------------------------------------------------------------------------


def test_holdout_targets_are_not_in_the_training_rows():
    log = repeat_log(users=400)
    held = split_holdout(log)
    trained = set(zip(held.train.item.tolist(), held.train.time.tolist(), strict=True))
    held_rows = set(zip(log.item.tolist(), log.time.tolist(), strict=True)) - trained
    assert len(held_rows) == log.rows - held.train.rows  # no two rows of this log are alike
    for kind in (held.current, held.delayed):
        target_rows = list(zip(kind.target.tolist(), kind.histories.now.tolist(), strict=True))
        assert set(target_rows) <= held_rows
        histories = kind.histories
        assert (histories.time[histories.stop - 1] <= histories.now).all()
    assert (held.delayed.histories.now > held.train.time.max()).all()  # from behind the end
    assert len(held.train.items) == len(log.items)


# -- slow versions ---------------------------------------------------------------------------------


def dcg_by_hand(components, weights, is_scaled, q, repeats, places):
    """The DCG of candidate 0, with seen items ranked and without them."""
    score = []
    for c in range(components.counts[q]):
        total = 0.0
        for k in range(len(components.values)):
            factor = (
                np.exp(weights.popularity_exponent * components.log_popularity[q, c])
                if is_scaled[k]
                else 1.0
            )
            total += weights.values[components.segment[q], k] * factor * components.values[k, q, c]
        score.append(total)
    rivals = range(1, components.counts[q])
    shown = sum(score[c] >= score[0] for c in rivals)
    unseen = sum(score[c] >= score[0] and not components.seen[q, c] for c in rivals)
    hidden = components.seen[q, 0]
    if not repeats:
        shown = places if hidden else unseen
    unseen = places if hidden else unseen
    return [1 / np.log2(place + 2) if place < places else 0.0 for place in (shown, unseen)]


@pytest.mark.parametrize("repeats", [True, False])
def test_dcg_after_weight_changes_equals_a_computation_by_hand(repeats):
    draw = np.random.default_rng(5)
    n_queries, most, kinds, groups, places = 200, 12, 5, 3, 6
    components = ScoreComponents(
        draw.integers(-8, 9, (kinds, n_queries, most)).astype(np.float32) / 8,
        draw.integers(1, most + 1, n_queries),
        draw.random((n_queries, most)) < 0.3,
        draw.integers(0, groups, n_queries),
        np.log(draw.integers(1, 4, (n_queries, most))).astype(np.float32),
        np.arange(n_queries),
    )
    is_scaled = np.array([True, True, False, False, False])
    weights = ComponentWeights(draw.integers(0, 5, (groups, kinds)) / 4.0, 0.0)
    climb = CoordinateSearch([components], weights, is_scaled, repeats, places)
    for exponent in (0.0, 0.37, -0.21):
        values = climb.weights.values.copy()
        values[draw.integers(groups), draw.integers(kinds)] = draw.random()
        changed = ComponentWeights(values, exponent)
        trial = climb.query_sets[0].evaluate(climb.weights, changed)
        expected = [
            dcg_by_hand(components, changed, is_scaled, q, repeats, places)
            for q in range(n_queries)
        ]
        np.testing.assert_allclose(trial.dcg, expected, atol=1e-12)
        climb.query_sets[0].accept(trial)
        climb.weights = changed


def test_changes_of_one_component_and_of_several_need_one_compiled_variant(monkeypatch):
    layouts, apply_change = [], search._apply_change

    def spy(components, change, *rest):
        layouts.append((len(change.components), change.old.flags.c_contiguous))
        layouts.append((len(change.components), change.new.flags.c_contiguous))
        return apply_change(components, change, *rest)

    monkeypatch.setattr(search, "_apply_change", spy)
    shape, user = (4, 200, 3), np.arange(200)
    counts, segment = np.full(200, 3, np.int64), np.zeros(200, np.int64)
    zeros = np.zeros(shape[1:], np.float32)
    facts = (np.ones(shape, np.float32), counts, zeros.astype(bool), segment, zeros, user)
    start = ComponentWeights(np.ones((2, 4)), 0.0)
    climb = CoordinateSearch([ScoreComponents(*facts)], start, np.zeros(4, bool), False, 10)
    for changed in ([1], [1, 3]):
        values = start.values.copy()
        values[:, changed] = 2.0
        climb.query_sets[0].evaluate(start, ComponentWeights(values, 0.0))
    assert {count for count, _ in layouts} == {1, 2, 4}
    assert all(is_c_ordered for _, is_c_ordered in layouts)


def test_a_change_is_accepted_only_if_no_set_of_queries_loses():
    """Component 1 helps the first set of queries and harms the second; component 2 helps both."""
    n_queries = 400

    def kind(spoils):
        value = np.zeros((3, n_queries, 2), np.float32)
        value[0, :, 1] = 1.0  # the rival stands first
        value[1, :, 1 if spoils else 0] = 2.0
        value[2, :, 0] = 2.0
        if spoils:  # in half of the queries the target is first already
            value[0, ::2, 0] = 1.5
        none = np.zeros((n_queries, 2))
        both = np.full(n_queries, 2, np.int64)
        group, user = np.zeros(n_queries, np.int64), np.arange(n_queries)
        return ScoreComponents(value, both, none.astype(bool), group, none.astype("f4"), user)

    start = ComponentWeights(np.array([[1.0, 0.0, 0.0]]), 0.0)
    harmful, helpful = (
        ComponentWeights(np.array([[1.0, *w]]), 0.0) for w in ((1.0, 0.0), (0.0, 1.0))
    )
    climb = CoordinateSearch([kind(False), kind(True)], start, np.zeros(3, bool), False, 10)
    assert climb.step([harmful], 1.0) is None
    assert climb.step([harmful, helpful], 1.0) == 1
    assert climb.weights is helpful


def test_a_change_that_loses_what_an_earlier_one_gained_is_not_accepted():
    """Component 2 helps half of the first set and all of the second; component 1 helps the rest.

    But it harms a quarter of the second set, which stays above its start.
    """
    n_queries = 400

    def build_set(is_first):
        value = np.zeros((3, n_queries, 2), np.float32)
        value[0, :, 1] = 1.0  # the rival stands first
        value[2, : n_queries // 2 if is_first else n_queries, 0] = 2.0
        if is_first:
            value[1, n_queries // 2 :, 0] = 2.0
        else:
            value[1, : n_queries // 4, 1] = 3.0
        none = np.zeros((n_queries, 2))
        both, group = np.full(n_queries, 2, np.int64), np.zeros(n_queries, np.int64)
        users = np.arange(n_queries)
        return ScoreComponents(value, both, none.astype(bool), group, none.astype("f4"), users)

    start, first, second = (
        ComponentWeights(np.array([[1.0, *w]]), 0.0) for w in ((0, 0), (0, 1.0), (1.0, 1.0))
    )
    climb = CoordinateSearch(
        [build_set(True), build_set(False)], start, np.zeros(3, bool), False, 10
    )
    assert climb.step([first], 1.0) == 0
    assert climb.step([second], 1.0) is None


def test_an_insignificant_change_is_not_accepted():
    draw = np.random.default_rng(6)
    value = draw.random((2, 300, 8)).astype(np.float32)
    none = np.zeros((300, 8))
    group, count = np.zeros(300, np.int64), np.full(300, 8, np.int64)
    unscaled, user = none.astype("f4"), np.arange(300)
    components = ScoreComponents(value, count, none.astype(bool), group, unscaled, user)
    start = ComponentWeights(np.array([[1.0, 0.0]]), 0.0)
    climb = CoordinateSearch([components], start, np.zeros(2, bool), False, 8)
    trials = (ComponentWeights(np.array([[1.0, w]]), 0.0) for w in (0.01, 0.02))
    assert climb.step(trials, 3.0) is None
    assert climb.weights is start


def test_small_sets_of_queries_are_ignored():
    empty = np.zeros((1, 5, 2), np.float32), np.full(5, 2), np.zeros((5, 2), bool)
    rest = np.zeros(5, np.int64), np.zeros((5, 2), np.float32), np.arange(5)
    components = ScoreComponents(*empty, *rest)
    climb = CoordinateSearch(
        [components], ComponentWeights(np.ones((1, 1)), 0.0), np.zeros(1, bool), False, 5
    )
    assert climb.query_sets == []
    assert climb.step([ComponentWeights(np.zeros((1, 1)), 0.0)], 1.0) is None
    assert search._MIN_USERS > 5


def long_repeat_log(users=700, items=80, length=60, seed=5) -> tr.Log:
    """Users repeat items of a history of 60 rows, old ones as readily as new ones."""
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        taken, start = [], int(draw.integers(10**7)) + 10**9
        for step in range(length):
            is_repeat = taken and draw.random() < 0.5
            taken.append(int(draw.choice(taken) if is_repeat else draw.integers(items)))
            rows.append((user, taken[-1], start + step * HOUR))
    return log_of(rows)


def test_the_largest_entries_of_a_row_come_first_and_equal_ones_by_column():
    draw, top = np.random.default_rng(0), 6
    values = draw.integers(0, 4, (30, 25)) / 4  # many equal values; zeros are not stored
    rows = draw.integers(-1, 30, (40, 3))
    listed = _largest_entries(sparse.csr_array(values), rows, top)
    for row, columns in zip(rows.ravel(), listed.reshape(-1, top), strict=True):
        stored = [] if row < 0 else np.flatnonzero(values[row]).tolist()
        expected = sorted(stored, key=lambda column: (-values[row, column], column))[:top]
        assert columns.tolist() == expected + [-1] * (top - len(expected))


def test_every_seen_item_competes_with_the_target_if_users_repeat_items():
    log = long_repeat_log()
    held = split_holdout(log)
    off = tr.Tempo(learn="off").fit(held.train)
    arrays = off.fitted.weights.query_arrays
    rows = TimedRows.from_log(held.train)
    fit = HoldoutFit(
        item_weights=off.fitted.weights.blocks[0],
        repeat_rates=arrays["repeats"],
        snapshots=build_snapshots(rows, off.span, HORIZONS, share_room=False),
        counts=held.train.counts(),
        time_range=(int(held.train.time.min()), int(held.train.time.max())),
        rules=HistoryRules(
            bool(arrays["joint"][0]), off.max_history, float(arrays["decay"][0]), off.floor
        ),
    )
    components = HoldoutComponents(fit, held.target_mask, k=10).compute(
        held.current, np.array([1.0])
    )
    histories = held.current.histories
    runs = zip(histories.start, histories.stop, strict=True)
    n_seen = np.array([len(set(histories.item[start:stop].tolist())) for start, stop in runs])
    assert np.median(n_seen) > 16
    np.testing.assert_array_equal(components.seen.sum(axis=1), n_seen)


@pytest.mark.data
def test_on_invoices_learning_does_not_lose_against_the_defaults(data):
    log = tr.order_ties(tr.k_core(tr.read_log(data / "online-retail.csv.gz"), 5), "random:0")
    split = tr.leave_one_out(log)
    ndcg = []
    for learn in ("auto", "off"):
        result = tr.evaluate(tr.Tempo(learn=learn).fit(split.train), split, on="validation")
        ndcg.append((result.metrics["NDCG@10"], result.metrics_hidden["NDCG@10"]))
    assert ndcg[0][0] > 0.98 * ndcg[1][0]  # .0976 where only 16 seen items competed, .1262 without
    assert ndcg[0][1] > 0.98 * ndcg[1][1]


def test_components_add_up_to_the_scores_of_the_model():
    log = repeat_log(users=300)
    held = split_holdout(log)
    off = tr.Tempo(learn="off", recency=6, popularity_weight=0.3).fit(held.train)
    arrays = off.fitted.weights.query_arrays
    rows = TimedRows.from_log(held.train)
    is_joint, decay = bool(arrays["joint"][0]), float(arrays["decay"][0])
    first = HoldoutFit(
        item_weights=off.fitted.weights.blocks[0],
        repeat_rates=arrays["repeats"],
        snapshots=build_snapshots(rows, off.span, HORIZONS, share_room=False),
        counts=held.train.counts(),
        time_range=(int(held.train.time.min()), int(held.train.time.max())),
        rules=HistoryRules(is_joint, off.max_history, decay, off.floor),
    )
    params = QueryParams.default(np.array([1.0]))
    components = HoldoutComponents(first, held.target_mask, 10).compute(held.current, params.edges)
    weights = params.component_weights(arrays["repeats"])
    B = off.weights[: len(log.items)]
    histories = held.current.histories
    for q in range(0, len(components.counts), 37):
        rows = range(histories.start[q], histories.stop[q])
        last = {int(histories.item[r]): r for r in rows}
        places = {
            i: sum(histories.time[s] > histories.time[r] for s in rows) for i, r in last.items()
        }
        target = held.current.target[q]
        leads = sum(
            np.interp(
                np.log2(1 + p), np.arange(len(LAG_KNOTS)), weights.values[0, : len(LAG_KNOTS)]
            )
            * B[i, target]
            for i, p in places.items()
        )
        actual = weights.values[0, : len(LAG_KNOTS)] @ components.values[: len(LAG_KNOTS), q, 0]
        assert actual == pytest.approx(leads, rel=1e-5, abs=1e-6)


# -- popularity snapshots --------------------------------------------------------------------------


def shares_by_hand(log, cut, decay_rows):
    """Every row up to the cut, its weight falling with every row after it."""
    order = np.argsort(log.time, kind="stable")[:cut]
    total = np.zeros(len(log.items))
    for age, row in enumerate(order[::-1]):
        total[log.item[row]] += np.exp(-age / decay_rows)
    return total / total.sum()


@quick
@given(logs(), st.sampled_from([1 / 128, 1 / 16, 1.0, 8.0]))
def test_snapshots_equal_sums_by_hand(log, length):
    n = len(log.items)
    snapshots = build_snapshots(TimedRows.from_log(log), 1.0, [length, 8.0])
    decay_rows = max(length * n, 16.0)
    n_snapshots = snapshots.indptr[1] - snapshots.indptr[0]
    cuts = np.unique(np.linspace(0, log.rows, n_snapshots + 1).astype(int)[1:])
    for number, cut in enumerate(cuts):
        row = snapshots.shares[[number]].toarray()[0]
        expected = shares_by_hand(log, cut, decay_rows)
        there = row > 0
        np.testing.assert_allclose(row[there], expected[there], rtol=1e-5)
        assert expected[~there].max(initial=0) <= max(row[there].min(initial=1), np.exp(-5))


def test_all_horizons_together_store_no_more_than_one():
    draw = np.random.default_rng(7)
    rows = [
        (int(u), int(i), 10**9 + t) for t, (u, i) in enumerate(draw.integers(0, 900, (60_000, 2)))
    ]
    log = log_of(rows)
    alone = build_snapshots(TimedRows.from_log(log), 1.0, [1.0])
    for lengths in (HORIZONS, HORIZONS[:2]):
        together = build_snapshots(TimedRows.from_log(log), 1.0, lengths)
        assert together.shares.nnz <= 1024 * 300
        assert len(together.lifetime) == len(lengths)
    assert alone.shares.nnz <= 1024 * 300


def test_a_short_horizon_ages_and_a_long_one_does_not():
    log = hourly_log(users=300)
    snapshots = build_snapshots(TimedRows.from_log(log), 1.0, [1 / 16, 1.0])
    end = int(log.time.max())
    requests = tr.Histories.of_users(log, np.array([0, 0]))
    requests = tr.Histories(
        requests.start, requests.stop, requests.item, requests.time, np.array([end, end + 10**12])
    )
    left = snapshots.freshness(requests, end)
    assert left[0].tolist() == [1.0, 1.0]
    assert left[1, 0] < 0.01
    assert left[1, 1] == 1.0


def test_segments_depend_on_inactivity_and_on_the_delay_after_the_log():
    last = 1_000_000
    now = np.array([last, last + 5_000, last + 20_000, last + 20_000])
    absence = np.array([0, 10, 0, 11])
    actual = assign_segments(np.array([10.0]), absence, now, 0, last)
    assert actual.tolist() == [0, 1, 2, 3]


def test_a_history_without_times_has_no_inactivity():
    untimed = tr.Histories.from_ids([[1], []], repeat_log(users=300).items)
    assert compute_inactivity(untimed.last(), np.array([5, 5])).tolist() == [0, 0]


# -- learned parameters in queries -----------------------------------------------------------------


def test_repeats_are_weighted_by_the_query_parameters():
    """repeat_weight * exp(-repeat_decay * bucket) * rate + frequency_weight * share."""
    model = tr.Tempo(popularity_weight=0).fit(repeat_log(users=300))
    arrays = model.fitted.weights.query_arrays
    arrays["number_again"][:], arrays["number_fading"][:] = 1.5, 0.2
    arrays["number_often"][:] = [0.3, 0.7]
    rows, n = [3, 5, 3, 8], len(model.item_ids)
    history = tr.Histories.from_ids([model.item_ids.gather(rows).to_list()], model.fitted.items)
    x = model.query(history)
    actual = dict(zip(x.source.tolist(), x.weight.tolist(), strict=True))
    for item, place in ((8, 0), (3, 1), (5, 2)):
        bucket = {0: 0, 1: 1, 2: 1}[place]
        expected = 1.5 * np.exp(-0.2 * bucket) * arrays["repeats"][bucket]
        for weight, fade in ((0.3, 10.0), (0.7, 100.0)):
            left = [np.exp(-(len(rows) - 1 - r) / fade) for r in range(len(rows))]
            share = sum(left[r] for r in range(len(rows)) if rows[r] == item)
            expected += weight * share / sum(left)
        assert actual[n + item] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_item_weights_are_scaled_by_the_popularity_of_the_target(solver):
    log = repeat_log(users=300)
    model = tr.Tempo(learn="off", solver=solver).fit(log)
    params = QueryParams.default(np.empty(0))._replace(popularity_exponent=np.array([0.3]))
    scale = popularity_scale(log.counts(), params)
    lifted = scale_targets(model.fitted.weights.blocks[0], scale).matrix
    counts = np.bincount(log.item, minlength=len(log.items))
    factor = (counts / np.exp(np.log(counts).mean())) ** 0.3
    B, actual = (m.toarray() if solver == "local" else m for m in (model.weights, lifted))
    np.testing.assert_allclose(actual, B * factor, rtol=1e-5)
    assert popularity.log_popularity(counts.astype(float)).mean() == pytest.approx(0, abs=1e-12)


# -- noise -----------------------------------------------------------------------------------------


def test_noise_keeps_the_defaults(monkeypatch):
    """Some change gains 1.9 standard errors by chance in every second log of noise."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    noise = importlib.import_module("noise")
    logs = (noise.noise_log(kind, seed) for seed, kind in enumerate(noise.KINDS * 5))
    assert sum(map(noise.changes_defaults, logs)) <= 1


def test_all_rivals_of_changed_weights_are_candidates():
    """Lists by popularity alone have the targets' true ranks among all items."""
    draw = np.random.default_rng(8)
    rows = [(u, int(i), 10**9 + 1000 * u + t) for u in range(600) for t, i in
            enumerate(draw.permutation(300)[:15])]  # fmt: skip
    log = log_of(rows)
    held = split_holdout(log)
    off = tr.Tempo(learn="off").fit(held.train)
    arrays, timed = off.fitted.weights.query_arrays, TimedRows.from_log(held.train)
    rules = HistoryRules(False, off.max_history, float(arrays["decay"][0]), off.floor)
    snapshots = build_snapshots(timed, off.span, HORIZONS, share_room=False)
    span = (int(held.train.time.min()), int(held.train.time.max()))
    facts = (arrays["repeats"], snapshots, held.train.counts(), span, rules)
    fit = HoldoutFit(off.fitted.weights.blocks[0], *facts)
    k, n_items = 20, len(log.items)
    components = HoldoutComponents(fit, held.target_mask, k).compute(held.current, np.array([1.0]))
    latest = snapshots.latest(held.current.histories)
    histories, target = held.current.histories, held.current.target
    for q in np.flatnonzero(latest[:, 2] >= 0)[::29]:
        shares = snapshots.shares[[latest[q, 2]]].toarray()[0]
        seen = set(histories.item[histories.start[q] : histories.stop[q]].tolist())
        rivals = [i for i in range(n_items) if i not in seen and i != target[q]]
        true_rank = sum(shares[i] > shares[target[q]] for i in rivals)
        values = components.values[len(LAG_KNOTS) + 2, q, : components.counts[q]]
        unseen = ~components.seen[q, 1 : components.counts[q]]
        rank = int(((values[1:] > values[0]) & unseen).sum())
        assert min(rank, k) == min(true_rank, k)


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_items_of_each_query_are_padded(count):
    runs = [[7, 8, 9, 4], [], [5], [6, 2]]
    ptr = np.cumsum([0, *map(len, runs)])
    entries = _first_entries(ptr, np.concatenate(runs).astype(np.int32), count)
    assert entries.tolist() == [(run + [-1] * count)[:count] for run in runs]
    assert _first_entries(np.array([0, 1]), np.array([5]), 2).tolist() == [[5, -1]]
    nothing = _first_entries(np.zeros(3, np.int64), np.empty(0, np.int32), count)
    assert nothing.tolist() == [[-1] * count] * 2
