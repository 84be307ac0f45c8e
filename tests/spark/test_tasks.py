"""Tasks of a cluster without the cluster: parts add up to the whole, and a task may run twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import talerec as tr
from logs import logs, quick
from talerec.data.times import DAY
from talerec.gram.row_weights import trend_counts
from talerec.runtime.arrays import dense
from talerec.solvers.local import local
from talerec.spark import blocks, tasks
from talerec.spark.sizes import Sizes


def ranked(log: tr.Log) -> tuple[pl.DataFrame, np.ndarray]:
    """The rows of a log as tasks get them, items by rank; and the item of each rank."""
    rows_of = np.bincount(log.item, minlength=len(log.items))
    item = np.argsort(-rows_of, kind="stable")
    rank = np.empty_like(item)
    rank[item] = np.arange(len(item))
    columns = {
        "user": log.user_codes(),
        "item": rank[log.item].astype(np.int32),
        "time": log.time,
        "place": np.arange(log.rows),
    }
    return pl.DataFrame(columns).sample(fraction=1, shuffle=True, seed=1), item


def summed(model, rows: pl.DataFrame, n: int, edges, latest=None, users: int = 3):
    """G and K by rank, from parts of the users and blocks of owners."""
    sent = [
        batch
        for part in reversed(range(users))
        for batch in tasks.gram_blocks(
            model, rows.filter(pl.col("user") % users == part), part, edges, latest
        )
    ]
    G, K = np.zeros((n, n)), np.zeros((n, n))
    for block in range(len(edges) - 1):
        lo, hi = edges[block], edges[block + 1]
        mine = [batch for batch in sent if batch.column("block")[0].as_py() == block]
        below, into, out_of = (
            found.toarray() for found in blocks.sum_blocks(mine, lo, hi, n, np.float64).values()
        )
        G[lo:hi] += below
        K[:, lo:hi] += into.T
        K[lo:hi] += out_of
    return G + np.tril(G, -1).T, K


@quick
@given(logs(max_users=7, max_items=6), st.sampled_from(["tale", "joint", "slit", "slist"]))
def test_grams_of_parts_add_up_to_the_gram_of_the_log(log, kind):
    model = {
        "tale": tr.TALE(window=10, trend=0.3),
        "joint": tr.TALE(same_time="joint", trend=0, alpha=0.3),
        "slit": tr.SLIT(decay_user=40.0),
        "slist": tr.SLIST(norm="l1"),
    }[kind]
    rows, item = ranked(log)
    if kind == "tale":
        counts = tasks.add_trend_counts(rows, model.window, model.trend_side, "", None)
        rows = counts
    n = len(log.items)
    edges = np.unique([0, n // 3, n // 2, n])
    G, K = summed(model, rows, n, edges, int(log.time.max()))
    whole = model.gram(log)
    by_rank = np.ix_(item, item)
    np.testing.assert_allclose(G, dense(whole.G)[by_rank], rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(K, dense(whole.K)[by_rank], rtol=1e-12, atol=1e-300)


@quick
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from(["both", "past"]),
)
def test_slices_of_a_giant_item_count_what_lies_in_all_of_them(tmp_path_factory, days, cuts, side):
    folder = tmp_path_factory.mktemp("times")
    time = np.array(days) * DAY
    at = np.searchsorted(np.unique(cuts) * DAY, time)
    rows = pl.DataFrame({"item": np.zeros(len(time), np.int32), "time": time, "at": at})
    slices = range(len(set(cuts)) + 1)
    for piece in slices:
        batches = rows.filter(pl.col("at") == piece).to_arrow().to_batches()
        list(tasks.save_sorted_times(batches, str(folder), piece))
    for piece in slices:
        mine = rows.filter(pl.col("at") == piece)
        found = tasks.add_trend_counts(mine, 7, side, str(folder), slices)["count"]
        after = 7 if side == "both" else 0
        by_hand = [sum(-7 <= o - d <= after for o in days) for d in mine["time"].to_numpy() // DAY]
        assert found.to_list() == by_hand


def skewed_log(rows: int = 6_000) -> tr.Log:
    """One item has a third of the rows, one user a tenth."""
    rng = np.random.default_rng(3)
    user = np.where(rng.random(rows) < 0.1, 0, rng.integers(1, rows // 8, rows))
    item = np.where(rng.random(rows) < 0.33, 5, rng.zipf(1.3, rows) % 800)
    time = 1_600_000_000 + rng.integers(0, 400 * 86_400, rows)
    return tr.Log.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time}))


def test_no_block_of_a_skewed_log_has_much_more_than_its_share():
    log = skewed_log()
    rows, _ = ranked(log)
    n, users = len(log.items), 4
    length = np.diff(log.ptr)
    rows_of = np.sort(np.bincount(log.item))[::-1]
    sizes = Sizes.of(8, rows_of, int((length * (length + 1) // 2).sum()), 10**6, 10**9)
    entries = np.zeros(8)
    for part in range(users):
        some = rows.filter(pl.col("user") % users == part)
        for batch in tasks.gram_blocks(tr.TALE(trend=0), some, part, sizes.owners, None):
            entries[batch.column("block")[0].as_py()] += len(batch.column("column")[0].as_py()) / 4
    assert entries.max() < 2.5 * entries.mean()
    assert len(sizes.targets) == 9
    assert n == sizes.owners[-1] == sizes.targets[-1] == sizes.sources[-1]


def columns_of(gram, item):
    """What `local_columns` reads, for items renumbered by `item`, sources in the old order."""
    n = len(item)
    rank = np.argsort(item)
    G = dense(gram.G)[np.ix_(item, item)]
    below = [np.flatnonzero(G[r, :r]) for r in range(n)]
    half = (
        np.concatenate([[0], np.cumsum([len(row) for row in below])]),
        np.concatenate(below).astype(np.int32),
        np.concatenate([G[r, row] for r, row in enumerate(below)]),
    )
    K = dense(gram.K)
    led = [np.flatnonzero(K[:, item[t]]) for t in range(n)]
    sources = (
        np.concatenate([[0], np.cumsum([len(row) for row in led])]).astype(np.int32),
        rank[np.concatenate(led)].astype(np.int32),
        np.concatenate([K[row, item[t]] for t, row in enumerate(led)]),
    )
    return half, sources, G.diagonal().copy()


def lengths_of(half, item, folder):
    """What the blocks of a half, cut in two, say of rows in degree order."""
    n = len(item)
    starts, column, _ = half
    length, reached = np.diff(starts), []
    for block, (a, b) in enumerate(((0, n // 2), (n // 2, n))):
        mine = column[starts[a] : starts[b]]
        blocks.save_array(folder, f"column-{block}", mine)
        blocks.save_array(folder, f"row_count-{block}", length[a:b])
        reached.append(np.bincount(mine, minlength=b))
    blocks.save_array(folder, "degree_order", tasks.degree_order(length, reached, item))
    for block, lo in enumerate((0, n // 2)):
        tasks.owned_counts(block, lo, str(folder))
    return sum(blocks.load_array(folder, f"owned-{block}") for block in range(2))


@pytest.mark.parametrize(
    ("neighbors", "rows"), [(3, 2_000), (20, 2_000), (10**6, 2_000), (200, 60_000)]
)
def test_targets_solved_in_ranges_have_the_weights_of_the_local_solver(neighbors, rows, tmp_path):
    """With many rows, joining sources are too much work for some targets: as many are left out as on one machine."""
    log = skewed_log(rows)
    gram = tr.TALE().gram(log)
    n = len(log.items)
    item = np.argsort(-np.bincount(log.item), kind="stable")
    half, K, diagonal = columns_of(gram, item)
    lengths = lengths_of(half, item, tmp_path)
    B = np.zeros((n, n))
    for a, b in ((0, 5), (5, 100), (100, n)):
        some = (np.clip(K[0], K[0][a], K[0][b]), K[1], K[2])
        source, target, weight = tasks.local_columns(
            half, lengths, some, diagonal + 50.0, neighbors, len(K[1]) + n, a, b
        )
        assert (target >= a).all()
        assert (target < b).all()
        B[item[source], item[target]] = weight
    expected = local(gram, np.full(n, 50.0), neighbors).toarray()
    np.testing.assert_allclose(B, expected, rtol=1e-5, atol=1e-9)


def test_a_block_that_is_summed_twice_leaves_the_same_bytes(tmp_path):
    rows, _ = ranked(skewed_log(1_000))
    n = rows["item"].max() + 1
    edges = np.array([0, n])
    sent = [
        batch
        for part in range(4)
        for batch in tasks.gram_blocks(
            tr.TALE(trend=0), rows.filter(pl.col("user") % 4 == part), part, edges, None
        )
    ]
    found = []
    for attempt, batches in enumerate((sent, sent[::-1], sent)):
        folder = tmp_path / ("other" if attempt == 1 else "one")
        folder.mkdir(exist_ok=True)
        out = list(tasks.owner_sums(batches, 0, edges, np.array([0, 3, n]), n, str(folder)))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        found.append(([batch.to_pydict() for batch in out], files))
    assert found[0] == found[1] == found[2]


def test_counts_of_the_whole_log_rule_in_a_part_of_it():
    log = skewed_log(500)
    counts = trend_counts(log.item, log.time, len(log.items), 30, "both")
    mine = log.user_codes() % 2 == 0
    assert log.trends is None
    part = tr.Log(
        log.ptr, log.item, log.time, log.users, log.items, trends=counts, latest=int(log.time.max())
    ).keep(mine)
    np.testing.assert_array_equal(part.trends, counts[mine])
    other = tr.TALE(window=30).gram(log.keep(mine))
    assert not np.allclose(dense(tr.TALE(window=30).gram(part).G), dense(other.G))


def test_counts_of_the_whole_log_stay_with_their_rows_when_ties_are_put_in_order():
    """The item of a row and its count move together; users and times do not."""
    log = skewed_log(500)
    marked = replace(log, trends=log.item.astype(np.int64) + 1000, time=np.zeros_like(log.time))
    ordered = tr.order_ties(marked, "random:3")
    assert not np.array_equal(ordered.item, log.item)
    np.testing.assert_array_equal(ordered.trends, ordered.item + 1000)
