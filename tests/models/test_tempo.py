"""Tempo against slow versions: statistics of the log, rows and scores computed by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import oracle
import talerec as tr
from logs import DAY, START, log_of, logs, quick, tiny_log
from talerec.data import Histories, median_interval
from talerec.gram import simultaneous_weight
from talerec.models.tempo import TimedRows, log_statistics, tie_order
from talerec.models.tempo.popularity import build_default_horizon


def by_hand_interval(log):
    gaps = []
    for rows in oracle.user_rows(log):
        gaps += [int(log.time[b] - log.time[a]) for a, b in itertools.pairwise(rows)]
    gaps = sorted(gap for gap in gaps if gap > 0)
    if not gaps:
        return 1.0
    middle = (gaps[(len(gaps) - 1) // 2] + gaps[len(gaps) // 2]) / 2
    return middle / DAY


@quick
@given(logs())
def test_the_median_interval_equals_a_computation_by_hand(log):
    assert median_interval(log) == pytest.approx(by_hand_interval(log), rel=1e-12)


def bucket_by_hand(place):
    return int(math.log2(place + 1))


def by_hand_repeats(log):
    """For every row and every earlier one: is it the last row of the same item?"""
    hits, chances, rows, repeated = {}, {}, 0, 0
    for user_rows in oracle.user_rows(log):
        for here, r in enumerate(user_rows):
            rows += here > 0
            places = {}
            for place, s in enumerate(reversed(user_rows[:here])):
                o = bucket_by_hand(place)
                chances[o] = chances.get(o, 0) + 1
                places.setdefault(int(log.item[s]), o)
            if int(log.item[r]) in places:
                o = places[int(log.item[r])]
                hits[o] = hits.get(o, 0) + 1
                repeated += 1
    if not rows or repeated < 0.01 * rows:
        return np.full(32, log_statistics.NEVER_REPEAT)
    return np.array([hits.get(o, 0) / chances[o] if o in chances else 0.0 for o in range(32)])


def baskets(order, users=60, size=4, items=12, seed=1):
    """Every user has a few baskets, each at one instant; `order` puts one into its order."""
    rng = np.random.default_rng(seed)
    return log_of(
        [
            (user, int(item), START + basket * DAY)
            for user in range(users)
            for basket in range(3)
            for item in order(rng.permutation(items)[:size])
        ]
    )


def order_by_hand(log):
    """The excess of one order, as a share of its largest value, and in standard deviations."""
    ahead = {}
    for rows in oracle.user_rows(log):
        for r, s in itertools.combinations(rows, 2):
            i, j = int(log.item[r]), int(log.item[s])
            if log.time[r] == log.time[s] and i != j and s - r <= 8:
                ahead[i, j] = ahead.get((i, j), 0) + 1
    excess = most = 0.0
    for i, j in {(min(pair), max(pair)) for pair in ahead}:
        first, other = ahead.get((i, j), 0), ahead.get((j, i), 0)
        excess += (first - other) ** 2 - (first + other)
        most += (first + other) ** 2 - (first + other)
    return (excess / most, excess / math.sqrt(2 * most)) if most else (0.0, 0.0)


def by_aisle(basket):
    """One order for all baskets, which is not that of the item ids."""
    return sorted(basket, key=lambda item: item * 7 % 12)


def mostly(basket):
    """One in ten baskets the other way round."""
    return by_aisle(basket)[::-1] if sum(basket) % 10 == 0 else by_aisle(basket)


@pytest.mark.parametrize(
    ("order", "ordered"),
    [
        (by_aisle, True),
        (lambda basket: by_aisle(basket)[::-1], True),
        (mostly, True),
        (list, False),
    ],
)
def test_simultaneous_rows_are_ordered_if_their_order_is_not_chance(order, ordered):
    log = baskets(order)
    share, deviations = order_by_hand(log)
    assert (share > 0.5 and deviations > 5) == ordered
    assert tie_order.find_tie_order(log).is_ordered == ordered
    chosen, other = ("ordered", "joint") if ordered else ("joint", "ordered")
    auto = tr.Tempo(reg=2.0).fit(log)
    histories = [[(item, START), (item + 1, START)] for item in range(10)]
    actual = auto.recommend_histories(histories, k=12)
    assert actual.equals(
        tr.Tempo(reg=2.0, same_time=chosen).fit(log).recommend_histories(histories, k=12)
    )
    assert not actual.equals(
        tr.Tempo(reg=2.0, same_time=other).fit(log).recommend_histories(histories, k=12)
    )


@quick
@given(logs())
def test_the_order_of_simultaneous_rows_is_tested_as_by_hand(log):
    share, deviations = order_by_hand(log)
    pairs = tie_order.simultaneous_pairs(log)
    actual = tie_order.measure_pair_order(*pairs, len(log.items))
    assert actual == pytest.approx((share, deviations), rel=1e-9, abs=1e-9)


def test_without_ties_there_is_no_order():
    assert not tie_order.find_tie_order(baskets(by_aisle, size=1)).is_ordered


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("key", [int, str])
def test_an_order_that_item_ids_explain_is_no_order(key, direction, caplog):
    """Databases write the rows of a basket sorted by item id, as number or as text."""
    caplog.set_level("INFO", "talerec")
    log = baskets(lambda basket: sorted(basket, key=key)[::direction], items=120, users=200)
    assert not tie_order.find_tie_order(log).is_ordered
    assert tr.Tempo(learn="off").measure(log).is_joint
    tr.Tempo(learn="off").fit(log)
    sentence = "Rows with equal times are treated as unordered: item ids alone explain their order."
    assert caplog.messages.count(sentence) == 1
    text_ids = log.to_frame().with_columns(pl.col("item_id").cast(pl.String))
    assert not tie_order.find_tie_order(tr.Log.from_frame(text_ids)).is_ordered


def test_an_order_by_ids_is_one_if_users_go_on_to_larger_ids():
    """Ids are given as items appear: of two times, the later one tends to have larger ids."""
    rng = np.random.default_rng(1)
    rows = [
        (user, int(item), START + basket * DAY)
        for user in range(200)
        for basket in range(3)
        for item in sorted(rng.choice(100, 4, replace=False) + 20 * basket)
    ]
    order = tie_order.find_tie_order(log_of(rows))
    assert order == (True, ": by item id, which also grows over users' time", False)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "is_ordered"),
    [
        ("amazon-beauty.inter.gz", True),
        ("dunnhumby-sample.csv.gz", False),
        ("online-retail.csv.gz", False),
        ("ml-1m.inter.gz", False),
    ],
)
def test_of_real_logs_sorted_by_item_id_only_beauty_is_ordered(data, name, is_ordered):
    log = tr.order_ties(tr.read_log(data / name), "item")
    assert tie_order.find_tie_order(log).is_ordered == is_ordered


@quick
@given(logs(max_users=3, max_items=4))
def test_repeats_are_counted_as_by_hand(log):
    np.testing.assert_allclose(
        log_statistics.measure_repeat_rates(log), by_hand_repeats(log), rtol=1e-12
    )


def test_lag_buckets_double():
    places = np.arange(5000)
    assert [log_statistics.lag_bucket(p) for p in places] == [
        bucket_by_hand(int(p)) for p in places
    ]


def by_hand_shares(log, span, moment_row):
    """Item shares at row number `moment_row` in time order, with rows decayed by their age."""
    order = sorted(range(log.rows), key=lambda r: int(log.time[r]))
    weight = np.zeros(len(log.items))
    decay_rows = max(span * len(log.items), 1.0)
    for place, r in enumerate(order[: moment_row + 1]):
        weight[log.item[r]] += math.exp((place - moment_row) / decay_rows)
    return weight / weight.sum()


def by_hand_cuts(rows, items, span):
    """Rows after which snapshots are taken: four per decay length, at most 1024, evenly."""
    apart = max(span * items, 1.0) / 4
    count = 1
    while (count + 1) * apart <= rows and count < min(1024, rows):
        count += 1
    return sorted({int(k * (rows / count)) for k in range(1, count)} - {0} | {rows})


@quick
@given(logs(), st.sampled_from([0.25, 0.5, 1.0, 3.0]))
def test_snapshots_decay_with_every_row(log, span):
    shares, moments = build_default_horizon(TimedRows.from_log(log), span)
    times = sorted(int(t) for t in log.time)
    cuts = by_hand_cuts(log.rows, len(log.items), span)
    assert moments.tolist() == [times[cut - 1] for cut in cuts]
    assert shares.shape == (len(cuts), len(log.items))
    for number, cut in enumerate(cuts):
        expected = by_hand_shares(log, span, cut - 1)
        np.testing.assert_allclose(shares[[number]].toarray()[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "items", "span", "count"),
    [
        (600, 100, 1.0, 24),
        (600, 100, 0.5, 48),
        (600, 100, 1e6, 1),
        (600, 2, 0.1, 600),  # never more than rows
        (3000, 2, 0.1, 1024),
    ],
)
def test_the_number_of_snapshots_follows_from_the_rows(rows, items, span, count):
    log = tiny_log([(1, r % items, 1e9 + r) for r in range(rows)])
    shares, moments = build_default_horizon(TimedRows.from_log(log), span)
    assert shares.shape[0] == len(moments) == len(by_hand_cuts(rows, items, span)) == count
    first = int(log.time.min())
    cuts = by_hand_cuts(rows, items, span)
    assert [(int(m) - first) // 10**6 + 1 for m in moments] == cuts


def test_a_snapshot_keeps_its_first_items():
    many = tiny_log([(1, i, 1e9 + i) for i in range(1000)] + [(2, 5, 2e9), (2, 5, 2e9 + 1)])
    shares, _ = build_default_horizon(TimedRows.from_log(many), 1e9)
    assert shares[[-1]].nnz == 300
    assert shares[[-1]].toarray()[0].argmax() == many.items.positions([5], "item", "error")[0]


# -- the model -------------------------------------------------------------------------------------


def busy_log(seed=3, users=12, items=7, rows=90):
    """Ties, repeats, and gaps from hours to weeks."""
    rng = np.random.default_rng(seed)
    drawn = zip(
        rng.integers(0, users, rows), rng.integers(0, items, rows), rng.integers(0, 90, rows),
        strict=True,
    )  # fmt: skip
    return log_of([(int(u), int(i), START + int(t) * DAY // 3) for u, i, t in drawn])


def weights_by_hand(model, log):
    """B from rows of S and T by the normal equations, with K' added by its share."""
    decay = model.pace * by_hand_interval(log)
    same_time = "ordered" if model.same_time == "ordered" else "joint"  # auto: by chance
    S, T = oracle.tale_rows(
        log, decay=decay, floor=model.floor, trend=model.trend, same_time=same_time
    )
    G, K = oracle.gram(S, T)
    penalty = model.reg + model.dropout / (1 - model.dropout) * np.diag(G)
    simultaneous = simultaneous_by_hand(log, model.trend) if same_time == "joint" else 0.0
    share = share_by_hand(G, K, model.shrinkage, simultaneous)
    return np.linalg.solve(G + np.diag(penalty), K + share * K.T)


def simultaneous_by_hand(log, trend):
    """What pairs of simultaneous rows have in K, of other items than their own."""
    p = oracle.trend_counts(log.item, log.time, 180.0, "both").astype(float) ** -trend
    return sum(
        p[r] * p[s]
        for rows in oracle.user_rows(log)
        for r in rows
        for s in rows
        if log.item[r] != log.item[s] and log.time[r] == log.time[s]
    )


@quick
@given(logs())
def test_the_simultaneous_weight_in_k_equals_a_sum_by_hand(log):
    actual = simultaneous_weight(log, 180.0, 0.1, 2500)
    assert actual == pytest.approx(simultaneous_by_hand(log, 0.1), abs=1e-9)


def test_simultaneous_rows_of_one_item_are_subtracted_once():
    """Pairs of the same item are on K's diagonal, which the chance in K's direction leaves out."""
    rows = [(u, i, 1e9 + t) for u in range(4) for t, i in ((0, u), (0, u), (0, 5), (9, 5), (20, 6))]
    log = tiny_log(rows)
    model = tr.Tempo(same_time="joint", learn="off", trend=0)
    S, T = oracle.tale_rows(
        log, decay=model.pace * 10 / 86400, floor=model.floor, same_time="joint"
    )
    G, K = oracle.gram(S, T)
    share = share_by_hand(G, K, model.shrinkage, simultaneous_by_hand(log, 0.0))
    assert 0 < share < 1
    np.testing.assert_allclose(model.gram(log).K, K + share * K.T, rtol=1e-9)


def share_by_hand(G, K, shrinkage=1.0, simultaneous=0.0):
    """What is left to chance of the difference of two directions, pair by pair, in float32."""
    n = len(K)
    mean_weight = np.trace(G) / K.sum()
    difference = expected = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                difference += (K[i, j] - K[j, i]) ** 2
                expected += mean_weight * (K[i, j] + K[j, i])
    expected = max(expected - 2 * mean_weight * simultaneous, 0.0)
    chance = min(shrinkage * expected / difference, 1.0)
    return float(np.float32(chance / (2 - chance)))


@pytest.mark.parametrize("same_time", ["auto", "joint", "ordered"])
@pytest.mark.parametrize("solver", ["exact", "local"])
def test_weights_equal_those_of_rows_built_by_hand(solver, same_time):
    log = busy_log()
    model = tr.Tempo(reg=2.0, solver=solver, neighbors=100, same_time=same_time).fit(log)
    B = model.weights[: len(log.items)]
    B = B.toarray() if solver == "local" else B
    np.testing.assert_allclose(B, weights_by_hand(model, log), atol=2e-6)


def scores_by_hand(model, log, items, times, now):
    """Three sums: what follows, what is repeated, and what was popular before now."""
    n, last = len(log.items), max(times)
    x = oracle.history_weights(items, times, model.recency, joint=True)
    score = sum(w * weights_by_hand(model, log)[i] for i, w in x.items())
    rates = by_hand_repeats(log)
    for i in x:
        row = max(r for r in range(len(items)) if items[r] == i)
        later = sum(1 for t in times if t > times[row])
        score[i] += rates[bucket_by_hand(later)]
    moments = sorted(int(t) for t in log.time)
    cuts = by_hand_cuts(log.rows, n, model.span)
    before = [cut for cut in cuts if moments[cut - 1] < now]
    if before:
        age = now - last
        left = oracle.weight(age, model.pace * by_hand_interval(log), model.floor)
        score = score + model.popularity_weight / left * by_hand_shares(
            log, model.span, before[-1] - 1
        )
    assert len(score) == n
    return score


@pytest.mark.parametrize("solver", ["exact", "local"])
@pytest.mark.parametrize("days", [0, 10, 31, 400])
def test_as_of_equals_a_sum_by_hand(solver, days):
    log = busy_log()
    model = tr.Tempo(reg=2.0, solver=solver, neighbors=100, recency=6, popularity_weight=0.3).fit(
        log
    )
    now = START + days * DAY
    items, times = [2, 4, 2, 5], [START - 9 * DAY, START - 9 * DAY, START - DAY, START - DAY // 2]
    expected = scores_by_hand(model, log, items, times, now)
    history = [(log.items.ids[i], t) for i, t in zip(items, times, strict=True)]
    ranked = model.recommend_histories([history], k=len(log.items), as_of=now)
    position = log.items.positions(ranked["item_id"], "item", "error")
    np.testing.assert_allclose(ranked["score"], expected[position], atol=1e-5)
    for item, score in ranked.select("item_id", "score").iter_rows():
        explanation = model.explain(history, item, as_of=now)
        assert explanation["contribution"].sum() == pytest.approx(score, abs=1e-9)


def test_popularity_after_the_request_time_is_not_used():
    log = busy_log()
    model = tr.Tempo().fit(log)
    first = int(log.time.min())
    n = len(log.items)
    for when, snapshots in ((first, 0), (first + 1, 1)):
        x = model.query(Histories.of_users(log, np.array([0])).as_of(when))
        assert (x.source >= 2 * n).sum() == snapshots


def test_the_default_request_time_is_the_end_of_the_log():
    log = busy_log()
    model = tr.Tempo().fit(log)
    end = int(log.time.max()) + 1
    users = log.users.ids.to_list()
    assert model.recommend(users, k=3).equals(model.recommend(users, k=3, as_of=end))


def test_if_users_do_not_repeat_items_new_items_rank_before_seen_ones():
    log = tiny_log([(u, (u + s) % 8, 1.6e9 + u + 86_400 * s) for u in range(40) for s in range(6)])
    model = tr.Tempo().fit(log)
    for user in range(10):
        seen = set(log.item[log.ptr[user] : log.ptr[user + 1]].tolist())
        ranked = model.recommend([user], k=8)["item_id"].to_list()
        assert not seen & set(ranked[: 8 - len(seen)])


def test_if_users_repeat_items_seen_items_gain_the_repeat_rate():
    log = busy_log()
    results = {
        repeats: tr.Tempo(repeats=repeats, popularity_weight=0)
        .fit(log)
        .recommend_histories([[1, 2]], k=7)
        for repeats in ("learned", "ignored")
    }
    score = {
        name: dict(frame.select("item_id", "score").iter_rows()) for name, frame in results.items()
    }
    gained = {i: score["learned"][i] - score["ignored"][i] for i in score["ignored"]}
    rates = log_statistics.measure_repeat_rates(log)
    expected = {2: rates[0], 1: rates[1]}
    for i, gain in gained.items():
        assert gain == pytest.approx(expected.get(i, 0.0), abs=1e-6)


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.5])
def test_k_is_symmetrized_as_far_as_chance_explains_its_direction(shrinkage):
    gram = tr.Tempo(shrinkage=0).gram(busy_log())
    G, K = np.asarray(gram.G), np.asarray(gram.K)
    expected = K + share_by_hand(G, K, shrinkage) * K.T
    np.testing.assert_allclose(gram.symmetrize(shrinkage).K, expected, rtol=1e-12)
    sparse_gram = tr.Gram(sparse.csr_array(G), sparse.csc_array(K))
    np.testing.assert_allclose(sparse_gram.symmetrize(shrinkage).K.toarray(), expected, rtol=1e-12)


def test_k_is_not_symmetrized_if_the_direction_is_certain():
    """After 1 comes 2, always, five hundred times."""
    log = tiny_log([(u, i, 1e9 + i) for u in range(500) for i in (1, 2)])
    K = tr.Tempo().gram(log).K
    assert K[1, 0] < 0.01 * K[0, 1]


def test_the_size_of_dense_weights_is_reported_before_they_are_written(caplog, tmp_path):
    log = tr.synthetic_log(4000, items=2500, seed=1, titles=False)
    caplog.set_level("INFO", "talerec")
    tr.Tempo(solver="exact", learn="off").fit(log).save(tmp_path / "dense.tale")
    assert any("dense weights take" in line and "MB" in line for line in caplog.messages)
    caplog.clear()
    tr.Tempo(solver="local", learn="off").fit(log).save(tmp_path / "sparse.tale")
    assert not any("dense weights" in line for line in caplog.messages)
