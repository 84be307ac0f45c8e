"""Logs of baskets: held-out queries are whole baskets, and repeats depend on the item."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from logs import DAY, START, at, log_of, logs, quick, rows_of
from talerec.artifact import read_artifact, write_artifact
from talerec.data import basket_starts, basket_stops
from talerec.errors import TalerecError
from talerec.models.core import TimeCut, sample_targets, split_holdout
from talerec.models.ranker.queries import current_round, delayed_rounds
from talerec.models.tempo.log_statistics import measure_repeat_factors


def shop_log(users=260, baskets=8, seed=0, staple=0.0):
    """Users buy some of 40 items in weekly baskets: milk often again, gifts never.

    staple: probability that a basket has the user's own staple, one of items 0 to 9, again.
    """
    rng, rows = np.random.default_rng(seed), []
    for u in range(users):
        for b in range(baskets):
            time = START + (7 * b + u % 7) * DAY
            items = set(rng.integers(10, 40, rng.integers(1, 7)).tolist())
            if rng.random() < staple:
                items.add(u % 10)
            rows += [(u, int(item), time) for item in items]
    return tr.join_baskets(log_of(rows))


def baskets_of(log):
    """Each user's baskets as (time, set of items), in order of time; by the user's position."""
    users = defaultdict(dict)
    for user, item, time in zip(log.user_codes(), log.item, log.time, strict=True):
        users[int(user)].setdefault(int(time), set()).add(int(item))
    return {user: sorted(times.items()) for user, times in users.items()}


@given(logs(max_users=4, max_items=6, max_rows=30))
@quick
def test_starts_and_stops_of_baskets_equal_a_loop(log):
    user = log.user_codes()
    for row in range(log.rows):
        same = np.flatnonzero((user == user[row]) & (log.time == log.time[row]))
        assert basket_starts(log)[row] == same[0]
        assert basket_stops(log)[row] == same[-1] + 1


def test_a_log_of_baskets_stays_one(tmp_path):
    log = shop_log(users=30)
    assert log.has_baskets
    assert not replace(log, has_baskets=False).keep(log.time > 0).has_baskets
    early = log.keep(log.time < START + 40 * DAY).compact()
    assert early.has_baskets
    assert tr.k_core(log, 2).has_baskets
    assert tr.drop_duplicates(log).has_baskets
    assert tr.order_ties(log, "item").has_baskets
    model = tr.Tempo().fit(early)
    model.save(tmp_path / "shop.tale")
    loaded = tr.load(tmp_path / "shop.tale")
    assert loaded.fitted.log.has_baskets
    tr.update(loaded, log)
    assert loaded.fitted.log.has_baskets
    factors = loaded.fitted.weights.query_arrays["repeat_factors"]
    assert factors == pytest.approx(measure_repeat_factors(loaded.fitted.log))


# -- held-out queries ------------------------------------------------------------------------------


def check_queries(log, queries, train, cutoff=None):
    """Check that each query asks for a basket's item, from the user's earlier baskets alone."""
    histories, target, user = queries
    n_targets = defaultdict(set)
    baskets = baskets_of(log)
    assert len(target)
    for q in range(len(target)):
        now = int(histories.now[q])
        items = dict(baskets[int(user[q])])
        assert target[q] in items[now]
        rows = slice(histories.start[q], histories.stop[q])
        end = now if cutoff is None else cutoff
        earlier = {time: basket for time, basket in items.items() if time < end}
        assert set(histories.time[rows].tolist()) == set(earlier)
        assert set(histories.item[rows].tolist()) == set().union(*earlier.values())
        key = (int(user[q]), now)
        assert target[q] not in n_targets[key]
        n_targets[key].add(int(target[q]))
    trained = baskets_of(train)
    for (u, now), asked in n_targets.items():
        assert now not in dict(trained.get(u, ())), "the whole basket is held out"
        assert len(asked) <= min(len(dict(baskets[u])[now]), 4)
    assert max(map(len, n_targets.values())) == 4
    return n_targets


def test_held_out_queries_ask_for_items_of_whole_baskets():
    log = shop_log()
    held = split_holdout(log, every_item=True)
    cutoff = int(held.delayed.histories.now.min())
    check_queries(log, held.current, held.train)
    check_queries(log, held.delayed, held.train, cutoff)
    assert held.current.histories.now.max() < cutoff
    (first, *_), last = delayed_rounds(log), current_round(log, 2)
    check_queries(log, first.queries, first.train, first.known_until)
    asked = check_queries(log, last.queries, last.train)
    assert max(np.bincount([u for u, _ in asked])) == 2  # of eight baskets, the last two


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_targets_of_baskets_are_an_even_sample_of_distinct_items(drawn):
    drawn.sort(key=lambda pair: pair[0])
    number, item = (
        (np.array(column, np.int64) for column in zip(*drawn, strict=True))
        if drawn
        else (np.empty(0, np.int64),) * 2
    )
    rows = np.arange(len(drawn))
    of, row = sample_targets(number, rows, item)
    for basket in {n for n, _ in drawn}:
        items = sorted({i for n, i in drawn if n == basket})
        taken = item[row[of == basket]].tolist()
        assert taken == sorted(set(taken))
        assert len(taken) == min(len(items), 4)
        gaps = np.diff([items.index(i) for i in taken])
        assert gaps.max(initial=1) - gaps.min(initial=len(items)) <= 1


def test_a_log_of_rows_has_the_queries_of_one_row_baskets():
    """Where every basket has one row, a log of baskets asks what a log of rows asks."""
    rng = np.random.default_rng(3)
    rows = [
        (u, int(rng.integers(0, 30)), START + (9 * n + u % 9) * DAY)
        for u in range(260)
        for n in range(6)
    ]
    log = log_of(rows)
    ours, other = (split_holdout(x, every_item=True) for x in (log, tr.join_baskets(log)))
    for one, two in ((ours.current, other.current),):
        assert np.array_equal(one.target, two.target)
        assert np.array_equal(one.histories.stop, two.histories.stop)
    assert np.array_equal(ours.train.item, other.train.item)
    one, two = (current_round(x, 2) for x in (log, tr.join_baskets(log)))
    assert np.array_equal(one.train.item, two.train.item)
    assert np.array_equal(one.queries.target, two.queries.target)


def test_eligible_users_of_baskets_have_three():
    rows = [(u, i, START + b * DAY) for u in range(3) for b in range(u + 1) for i in range(5)]
    cut = TimeCut.at(tr.join_baskets(log_of(rows)), START + 99 * DAY)
    assert cut.eligible_users(np.ones(5, bool))[0].tolist() == [2]


# -- repeats ---------------------------------------------------------------------------------------


@given(logs(max_users=4, max_items=5, max_rows=40))
@quick
def test_repeat_factors_equal_counts_by_hand(log):
    log = replace(log, has_baskets=True)
    repeats, chances = defaultdict(int), defaultdict(int)
    for baskets in baskets_of(log).values():
        seen = set()
        for _, basket in baskets:
            for item in seen:
                chances[item] += 1
                repeats[item] += item in basket
            seen |= basket
    rate = sum(repeats.values()) / max(sum(chances.values()), 1)
    expected = [(repeats[item] + 2) / (chances[item] * rate + 2) for item in range(len(log.items))]
    assert measure_repeat_factors(log) == pytest.approx(expected)
    assert not len(measure_repeat_factors(replace(log, has_baskets=False)))


def test_tempo_learns_to_repeat_what_the_user_takes_most_often():
    """Staples return in most baskets: their frequency over all rows gets a weight."""
    log = shop_log(users=400, baskets=10, staple=0.7)
    cut = START + 63 * DAY
    result = {
        name: tr.evaluate_baskets(model, log, f"at:{np.datetime64(cut, 'us')}", k=[1])
        for name, model in (("tempo", tr.Tempo()), ("personal", tr.Personal()))
    }
    tempo, personal = (result[name].metrics["recall@1"] for name in ("tempo", "personal"))
    assert personal > 0.15
    assert tempo > 0.95 * personal


def test_scores_are_sums_of_their_explanations():
    log = shop_log(staple=0.7)
    model = tr.Tempo().fit(log)
    arrays = model.fitted.weights.query_arrays
    assert arrays["repeat_factors"].std() > 0.1
    assert arrays["number_often"].shape[1] == 3
    rows = [row for row in rows_of(log) if row[0] == 3]
    history = [(item, at(time)) for _, item, time in rows]
    top = model.recommend_histories([history], k=10)
    for item, score in zip(top["item_id"], top["score"], strict=True):
        assert model.explain(history, item)["contribution"].sum() == pytest.approx(score, rel=1e-5)


def test_damaged_repeat_factors_are_refused(tmp_path):
    path = tmp_path / "shop.tale"
    tr.Tempo(learn="off").fit(shop_log(users=20)).save(path)
    bundle = read_artifact(path)
    for number, damaged in enumerate((np.ones(3), np.zeros(30))):
        bundle.arrays["aside_repeat_factors"] = damaged
        write_artifact(tmp_path / f"{number}.tale", bundle)
        with pytest.raises(TalerecError, match="repeat_factors are not 30 numbers"):
            tr.load(tmp_path / f"{number}.tale")
