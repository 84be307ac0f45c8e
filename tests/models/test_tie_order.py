"""Simultaneous rows: whether their order matters, by tests of the log and by held-out queries."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given

import oracle
import talerec as tr
from logs import logs, quick
from talerec.models.core import split_holdout
from talerec.models.tempo import (
    HORIZONS,
    HoldoutFit,
    QueryParams,
    TieOrder,
    TimedRows,
    build_snapshots,
    learn_params,
    select_treatments,
    tie_order,
)
from talerec.models.tempo.descriptions import describe_params
from talerec.models.tempo.query_params import HISTORY_WEIGHT
from talerec.ranking import make_block

DAY = 86_400
SIZES = ((6, 3), (1, 8))  # of baskets, and their number: many ties, and none
BY_QUERIES = ": held-out queries are ranked better that way"


def log_of(rows) -> tr.Log:
    user, item, time = zip(*rows, strict=True)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time})
    return tr.Log.from_frame(frame, time_unit="s")


def shelf_log(users=500, items=300, size=6, n_baskets=3, seed=1, *, is_shuffled=False) -> tr.Log:
    """Baskets of one time: people go along a shelf to the left or to the right, item by item.

    Neighbours on the shelf have any ids. No pair of items has a usual order.
    """
    draw = np.random.default_rng(seed)
    shelf, rows = draw.permutation(items), []
    for user in range(users):
        first = int(draw.integers(100 * DAY)) + 10**9
        for basket in range(n_baskets):
            steps = draw.choice([-1, 1]) * np.cumsum(draw.integers(1, 4, size))
            basket_items = shelf[(int(draw.integers(items)) + steps) % items]
            if is_shuffled:
                basket_items = draw.permutation(basket_items)
            rows += [(user, int(item), first + basket * DAY) for item in basket_items]
    return log_of(rows)


def daily_log(users=900, items=300, n_baskets=4, size=5, seed=3) -> tr.Log:
    """A basket begins with an item of the user's own; then each item follows from that before."""
    draw = np.random.default_rng(seed)
    after, rows = draw.permutation(items), []
    for user in range(users):
        own_items, first = draw.integers(0, items, 3), int(draw.integers(100 * DAY)) + 10**9
        for basket in range(n_baskets):
            item = int(draw.choice(own_items))
            for _ in range(int(draw.integers(1, size + 1))):
                rows.append((user, item, first + basket * DAY))
                item = int(after[item]) if draw.random() < 0.7 else int(draw.integers(items))
    return log_of(rows)


def is_joint(model: tr.Tempo) -> bool:
    return bool(model.fitted.weights.query_arrays["joint"][0])


def first_rows(log: tr.Log) -> tie_order.FirstRows:
    return tie_order.FirstRows(log.user_codes(), log.time, log.item)


# -- tests of the log ------------------------------------------------------------------------------


def neighbors_by_hand(log: tr.Log) -> float:
    """How much more related neighbours are than all pairs of their time, in standard errors."""
    groups = []
    for user, rows in enumerate(oracle.user_rows(log)):
        by_time = itertools.groupby(rows, key=lambda r: log.time[r])
        groups += [(user, [int(log.item[r]) for r in same]) for _, same in by_time]
    pairs = [
        (number, user, frozenset((items[a], items[b])), b - a)
        for number, (user, items) in enumerate(groups)
        for a, b in itertools.combinations(range(len(items)), 2)
        if items[a] != items[b] and b - a <= 8
    ]
    count = {}
    for _, _, pair, _ in pairs:
        count[pair] = count.get(pair, 0) + 1
    by_user = {}
    for number, user, pair, distance in pairs:
        relations = [np.log(count[p]) for g, _, p, _ in pairs if g == number]
        if distance == 1:
            excess = np.log(count[pair]) - np.mean(relations)
            by_user[user] = by_user.get(user, 0.0) + excess
    spread = np.sqrt(sum(x * x for x in by_user.values()))
    return sum(by_user.values()) / spread if spread > 1e-12 else 0.0


@quick
@given(logs(max_users=4, max_items=4))
def test_neighbours_of_one_time_are_compared_as_by_hand(log):
    actual = tie_order._measure_neighbors(first_rows(log), len(log.items))
    expected = neighbors_by_hand(log)
    if abs(actual) < 1e-6 or abs(expected) < 1e-6:  # sums that are 0 but for rounding
        return
    assert actual == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffled_order_is_chance_and_no_query_is_asked(seed):
    order = tie_order.find_tie_order(shelf_log(seed=seed, is_shuffled=True))
    assert order == TieOrder(is_ordered=False, reason="", is_open=False)


def test_items_that_are_twice_in_a_basket_make_no_order():
    draw = np.random.default_rng(1)
    rows = []
    for user in range(400):
        item = int(draw.integers(100))
        basket = draw.permutation([item, item, item + 1, item + 1, item + 2])
        rows += [(user, int(i), 10**9 + user) for i in basket]
    log = log_of(rows)
    share, z = tie_order.measure_pair_order(*tie_order.simultaneous_pairs(log), len(log.items))
    assert z > 5  # they are no independent pairs ...
    assert share < 0.05
    assert not tie_order.find_tie_order(log).is_open


def test_an_order_of_neighbours_alone_is_open():
    log = shelf_log()
    share, z = tie_order.measure_pair_order(*tie_order.simultaneous_pairs(log), len(log.items))
    assert abs(share) < 0.05  # no pair has a usual order
    assert abs(z) < 5
    assert tie_order.find_tie_order(log) == TieOrder(is_ordered=False, reason="", is_open=True)


@pytest.mark.data
def test_online_retail_has_an_order_of_its_own_which_shuffling_removes(data):
    log = tr.k_core(tr.read_log(data / "online-retail.csv.gz"), 5)
    assert tie_order.find_tie_order(tr.order_ties(log, "file")).is_open
    for ties in ("random:0", "item"):
        assert tie_order.find_tie_order(tr.order_ties(log, ties))[::2] == (False, False)


# -- held-out queries ------------------------------------------------------------------------------


def test_queries_find_an_order_that_the_statistic_does_not_see(caplog):
    caplog.set_level("INFO", "talerec")
    split = tr.leave_one_out(shelf_log())
    model = tr.Tempo().fit(split.train)
    assert not is_joint(model)
    sentence = f"Rows with equal times are treated as ordered{BY_QUERIES}."
    assert caplog.messages.count(sentence) == 1
    ndcg = {
        same_time: tr.evaluate(tr.Tempo(same_time=same_time).fit(split.train), split)
        for same_time in ("joint", "ordered")
    }
    assert tr.evaluate(model, split).metrics == ndcg["ordered"].metrics
    assert ndcg["ordered"].metrics["NDCG@10"] > 1.3 * ndcg["joint"].metrics["NDCG@10"]
    assert is_joint(tr.Tempo(learn="off").fit(split.train))  # no queries


def test_shuffled_ties_stay_unordered(caplog):
    caplog.set_level("INFO", "talerec")
    log = shelf_log(is_shuffled=True)
    assert is_joint(tr.Tempo().fit(log))
    assert "Rows with equal times are treated as unordered." in caplog.messages
    split = tr.leave_one_out(log)
    joint, ordered = (
        tr.evaluate(tr.Tempo(same_time=same_time).fit(split.train), split).metrics["NDCG@10"]
        for same_time in ("joint", "ordered")
    )
    assert joint > ordered  # so the choice is right


def holdout_fit(log: tr.Log, holdout, joint: bool) -> HoldoutFit:
    model, train = tr.Tempo().holdout_model(joint), holdout.train
    weights = model.solution(model.gram(train), holdout.target_mask).weights
    rows, statistics = TimedRows.from_log(train), model.measure(train)
    snapshots = build_snapshots(rows, 1.0, HORIZONS, share_room=False)
    return HoldoutFit(
        make_block(weights), statistics.repeat_rates, snapshots, train.counts(),
        (int(rows.time[0]), int(rows.time[-1])), model.history_rules(statistics),
    )  # fmt: skip


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("prior", [False, True])
def test_queries_overrule_a_wrong_statistic_and_keep_a_right_one(is_shuffled, prior):
    log = shelf_log(is_shuffled=is_shuffled)
    holdout = split_holdout(log, every_item=True)
    queries, given_order = (holdout.current, holdout.delayed), TieOrder(prior, is_open=True)
    treatments = select_treatments(given_order, queries)
    assert treatments == [not prior, prior]
    fits = [holdout_fit(log, holdout, joint) for joint in treatments]
    chosen, params = learn_params(fits, given_order, queries, holdout.target_mask)
    assert chosen.is_ordered == (not is_shuffled)
    assert chosen.reason == ("" if prior == (not is_shuffled) else BY_QUERIES)
    alone = fits[treatments.index(is_shuffled)]
    same = learn_params([alone], chosen, queries, holdout.target_mask)
    assert same[0] == chosen
    for ours, theirs in zip(params, same[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_closed_order_or_rare_ties_ask_no_queries():
    dense, rare = (split_holdout(shelf_log(900, size=size, n_baskets=n)) for size, n in SIZES)
    for is_ordered in (False, True):
        closed, is_open = TieOrder(is_ordered), TieOrder(is_ordered, is_open=True)
        assert select_treatments(closed, (dense.current, dense.delayed)) == [not is_ordered]
        assert select_treatments(is_open, (rare.current, rare.delayed)) == [not is_ordered]
        both = select_treatments(is_open, (dense.current, dense.delayed))
        assert both == [not is_ordered, is_ordered]


# -- requests at the time of the last event --------------------------------------------------------


def params_of(model: tr.Tempo) -> QueryParams:
    return QueryParams.from_arrays(model.fitted.weights.query_arrays)


def test_within_a_basket_the_history_counts_more_than_repeats(tmp_path):
    split = tr.leave_one_out(daily_log())
    model = tr.Tempo().fit(split.train)
    params = params_of(model)
    assert params.has_simultaneous_segment
    assert params.repeat_weight[0] < params.repeat_weight[1]
    lines = model.describe_learned()
    assert any(
        line.startswith("For requests at the time of the user's last event") for line in lines
    )
    model.save(tmp_path / "m.tale")
    assert tr.load(tmp_path / "m.tale").describe_learned() == lines


def test_without_ties_there_is_no_segment_for_them():
    model = tr.Tempo().fit(shelf_log(users=1500, size=1, n_baskets=8))
    assert not params_of(model).has_simultaneous_segment
    assert not any("last event" in line for line in model.describe_learned())


def test_a_step_of_the_history_weight_divides_everything_else_in_its_segments():
    params = QueryParams.default(np.array([1.0, 50.0]))
    params = params._replace(frequency_weight=params.frequency_weight + 0.6)
    for step, factor in zip(
        params.candidate_steps(HISTORY_WEIGHT, None, [0, 3]), (1 / 3, 3.0), strict=True
    ):
        for name in ("repeat_weight", "frequency_weight", "popularity_weight"):
            old, new = getattr(params, name), getattr(step, name)
            np.testing.assert_allclose(new[[0, 3]], old[[0, 3]] / factor)
            np.testing.assert_array_equal(new[[1, 2, 4, 5]], old[[1, 2, 4, 5]])
        np.testing.assert_array_equal(step.recency, params.recency)


def test_requests_of_one_time_are_described_apart():
    params = QueryParams.default(np.array([1.0, 50.0]))
    lifetime = np.array([1e6, 1e7, np.inf, np.inf])
    everything = {"recency", "repeats", "popularity_weight"}
    kept = ["Validation kept every default weight."]
    assert describe_params(params, lifetime, everything) == kept
    params.repeat_weight[[0, 3]] = 0.25
    params.recency[[0, 3]] = 1.0
    at_once = "For requests at the time of the user's last event: "
    assert describe_params(params, lifetime, everything) == [
        f"{at_once}only the latest rows matter: the 8th most recent has almost no weight "
        "(default 26 %).",
        f"{at_once}repeat purchases are weighted 0.25 times.",
    ]
    params.repeat_weight[:] = 0.25
    assert "Repeat purchases are weighted 0.25 times." in describe_params(
        params, lifetime, everything
    )
