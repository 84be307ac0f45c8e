"""Tasks of a cluster without the cluster: parts add up to the whole, and a task may run twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

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
from talerec.solvers.local import local, local_columns
from talerec.spark import blocks, tasks
from talerec.spark import triangles as halves
from talerec.spark.gram import Layout, Plain, make_files, write_part
from talerec.spark.partitions import Rows
from talerec.spark.sizes import Counts, Sizes


def ranks(log: tr.Log) -> np.ndarray:
    """The item of each popularity rank."""
    return np.argsort(-np.bincount(log.item, minlength=len(log.items)), kind="stable")


def in_parts(log: tr.Log, folder, parts: int = 3, limit: int = 2500, **settings) -> Rows:
    """The rows of a log as tasks find them: in parts of the users, items by rank."""
    folder.mkdir(exist_ok=True)
    rank = np.argsort(ranks(log)).astype(np.int32)
    rows = Rows(str(folder), len(log.items), limit, int(log.time.max(initial=0)), **settings)
    cuts = np.linspace(0, len(log.users), parts + 1).astype(int)
    for part, (a, b) in enumerate(pairwise(cuts)):
        lo, hi = log.ptr[a], log.ptr[b]
        mine = log.keep((np.arange(log.rows) >= lo) & (np.arange(log.rows) < hi))
        ptr = log.ptr[a : b + 1] - lo
        rows.save(part, replace(mine, ptr=ptr, item=rank[mine.item]))
    return rows


def counts_of(layout: Layout, items: int) -> list[Counts]:
    """The targets of each group of rows in two tasks."""
    cuts = pairwise(np.unique([0, items // 2, items]))
    return [Counts(group, a, b) for a, b in cuts for group in range(len(layout.sizes))]


def laid_out(counting, rows: Rows, folder, parts: int, most: int = 10**9, order=None):
    """Where the rows of all parts lie, once they have been written there, and which summands have a K that is G."""
    layout = Layout.of(folder, list(rows.arrays("newest", parts)), most)
    alike = make_files(counting, rows, layout)
    for part in order or range(parts):
        write_part(counting, rows, part, layout)
    return layout, alike


def summed(counting, rows: Rows, edges, folder, parts: int = 3, most: int = 10**9):
    """G and K by rank, from parts of the users, groups of rows and blocks of owners."""
    n, place = rows.items, str(folder)
    layout, alike = laid_out(counting, rows, folder, parts, most)
    counts = counts_of(layout, n)
    sent = [
        batch
        for number, one in reversed(list(enumerate(counts)))
        for batch in tasks.gram_cells(counting, rows, layout, one, number, edges)
    ]
    whole = np.zeros((3, n, n))
    for block in range(len(edges) - 1):
        lo, hi = edges[block], edges[block + 1]
        mine = [batch for batch in sent if batch.column("block")[0].as_py() == block]
        half = halves.summed(
            tasks.found_lines(mine, lo, hi, tasks.Summing(counts, edges, alike, place)), lo, hi, n
        )
        row = np.repeat(np.arange(lo, hi), np.diff(half.starts))
        whole[:, row, half.column] = half.value.T
    G, into, out = whole
    assert not out.diagonal().any()
    return G + np.tril(G, -1).T, into.T + out


def counted(rows: Rows, model, folder, parts: int = 3) -> Rows:
    """The rows with trend counts, the most popular item in slices of time."""
    times = np.concatenate([rows.log(part).time for part in range(parts)])
    plan = tasks.TrendPlan(
        np.array([1, 2, rows.items]), [np.unique(np.quantile(times, [0.4, 0.6]))]
    )
    sent = [b for p in range(parts) for b in tasks.trend_cells(rows, p, plan, popular=False)]

    def to(number, batches):
        return [one for one in batches if one.column("block")[0].as_py() == number]

    for task in range(plan.buckets, plan.total):
        tasks.save_sorted_times(to(task, sent), str(folder), task)
    back = [
        batch
        for task in range(plan.total)
        for batch in tasks.counted_cells(
            to(task, sent), task, plan, model.window, "both", str(folder)
        )
    ]
    for part in range(parts):
        tasks.save_counts(to(part, back), part, rows)
    return rows._replace(is_counted=True)


@quick
@given(
    logs(max_users=7, max_items=6),
    st.sampled_from(["tale", "multi", "joint", "slit", "slist", "slis"]),
    st.sampled_from([1, 5, 10**9]),
)
def test_grams_of_parts_add_up_to_the_gram_of_the_log(tmp_path_factory, log, kind, most):
    model = {
        "tale": tr.TALE(window=10, trend=0.3),
        "multi": tr.TALE(targets="multi", trend=0, floor=0.0, decay=0.01),
        "slis": tr.TALE(alpha=1.0),
        "joint": tr.TALE(same_time="joint", trend=0, alpha=0.3),
        "slit": tr.SLIT(decay_user=40.0),
        "slist": tr.SLIST(norm="l1"),
    }[kind]
    folder, item = tmp_path_factory.mktemp("parts"), ranks(log)
    rows = in_parts(log, folder)
    if kind == "tale":
        rows = counted(rows, model, folder)
    n = len(log.items)
    edges = np.unique([0, n // 3, n // 2, n])
    G, K = summed(Plain(model), rows, edges, folder, most=most)
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
    folder = str(tmp_path_factory.mktemp("times"))
    time = np.array(days) * DAY
    at = np.searchsorted(np.unique(cuts) * DAY, time)
    slices = range(len(set(cuts)) + 1)
    for piece in slices:
        mine = time[at == piece]
        rows = np.arange(len(mine), dtype=np.int32)
        tasks.save_sorted_times([blocks.cells(piece, 0, rows, mine)], folder, piece)
    after = 7 if side == "both" else 0
    by_hand = [sum(-7 <= o - d <= after for o in days) for d in days]
    assert tasks.sliced_counts(time, slices, 7, side, folder).tolist() == by_hand


def skewed_log(rows: int = 6_000) -> tr.Log:
    """One item has a third of the rows, one user a tenth."""
    rng = np.random.default_rng(3)
    user = np.where(rng.random(rows) < 0.1, 0, rng.integers(1, rows // 8, rows))
    item = np.where(rng.random(rows) < 0.33, 5, rng.zipf(1.3, rows) % 800)
    time = 1_600_000_000 + rng.integers(0, 400 * 86_400, rows)
    return tr.Log.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time}))


def test_no_task_of_a_skewed_log_has_much_more_than_its_share():
    """Neither of the rows that are counted, though a third of them are of one item, nor of the pairs that are summed."""
    log, tasks_wanted = skewed_log(), 8
    length = np.diff(log.ptr)
    pairs = int((length * (length + 1) // 2).sum())
    rows_of = np.sort(np.bincount(log.item))[::-1]
    sizes = Sizes.of(tasks_wanted, rows_of, pairs, 10**6, 10**9, 10**9)
    counts = sizes.counted([log.rows])
    held = np.array([rows_of[lo:hi].sum() for _, lo, hi in counts])
    assert tasks_wanted // 2 < len(counts) <= tasks_wanted
    assert held.max() <= max(rows_of[0], 2.5 * held.mean())
    G = dense(tr.TALE(trend=0).gram(log).G)[np.ix_(ranks(log), ranks(log))]
    owned = np.count_nonzero(np.tril(G), axis=1)
    entries = np.add.reduceat(owned, sizes.owners[:-1])
    assert entries.max() < 2.5 * entries.mean()
    assert len(sizes.targets) == tasks_wanted + 1
    assert len(log.items) == sizes.owners[-1] == sizes.targets[-1] == sizes.sources[-1]


def test_groups_of_rows_share_out_the_targets_of_each():
    rows_of = np.sort(np.random.default_rng(3).zipf(1.5, 500).clip(max=900))[::-1]
    sizes = Sizes.of(4, rows_of, 20_000, 10**6, 500, 10**9)
    counts = sizes.counted([80, 20])
    for group in range(2):
        mine = [(lo, hi) for g, lo, hi in counts if g == group]
        assert mine[0][0] == 0
        assert mine[-1][1] == 500
        assert all(a[1] == b[0] for a, b in pairwise(mine))
    assert len([1 for g, _, _ in counts if g == 0]) > len([1 for g, _, _ in counts if g == 1])


@pytest.mark.parametrize("users", [300, 3000, 30_000])
def test_tasks_hold_so_many_pairs_of_items_and_no_more_tasks_are_made_where_these_come_again(users):
    """Of few items all pairs are there soon; more users are then more rows for a task to look at, and no more tasks."""
    log = tr.synthetic_log(10 * users, users=users, items=300, seed=1)
    length = np.diff(log.ptr)
    pairs = int((length * (length + 1) // 2).sum())
    rows_of = np.sort(np.bincount(log.item, minlength=300))[::-1]
    sizes = Sizes.of(2, rows_of, pairs, 10**6, 2_000, 10**9)
    G = dense(tr.TALE(trend=0).gram(log).G)[np.ix_(ranks(log), ranks(log))] != 0
    counted = [np.count_nonzero(G[lo:hi]) for _, lo, hi in sizes.counted([log.rows])]
    owned = np.add.reduceat(np.count_nonzero(np.tril(G), axis=1), sizes.owners[:-1])
    assert max(counted) < 2 * 2 * 2_000 + 300  # either direction; as many rows or as many pairs
    assert max(owned) < 2_000 + 300
    assert max(len(counted), len(owned)) <= 300 * 300 / 2 / 2_000 + 2


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
        source, target, weight = local_columns(
            half, lengths, some, diagonal + 50.0, neighbors, len(K[1]) + n, a, b
        )
        assert (target >= a).all()
        assert (target < b).all()
        B[item[source], item[target]] = weight
    expected = local(gram, np.full(n, 50.0), neighbors).toarray()
    np.testing.assert_allclose(B, expected, rtol=1e-5, atol=1e-9)


def test_a_task_that_runs_twice_leaves_the_same_bytes(tmp_path):
    rows = in_parts(skewed_log(1_000), tmp_path / "rows", 4)
    n, edges, counting = rows.items, np.array([0, rows.items]), Plain(tr.TALE(trend=0))
    found = []
    for attempt in range(3):
        folder = tmp_path / ("other" if attempt == 1 else "one")
        folder.mkdir(exist_ok=True)
        order = (3, 1, 2, 0) if attempt else range(4)
        layout, alike = laid_out(counting, rows, folder, 4, 500, order)
        counts = counts_of(layout, n)
        sent = [
            batch
            for number, one in enumerate(counts)
            for batch in tasks.gram_cells(counting, rows, layout, one, number, edges)
        ]
        summing = tasks.Summing(counts, edges, alike, str(folder))
        tasks.owner_sums(sent[::-1] if attempt else sent, 0, summing, n)
        out = list(halves.target_cells(0, 0.3, None, np.array([0, 3, n]), n, str(folder)))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        found.append(([batch.to_pydict() for batch in out], files))
    assert len(layout.sizes) > 1
    assert found[0] == found[1] == found[2]


def test_entries_of_k_reach_their_targets_once_from_owners_and_from_others(tmp_path):
    rows = in_parts(skewed_log(1_000), tmp_path / "rows", 2)
    n, counting, share = rows.items, Plain(tr.TALE(trend=0)), 0.3
    owners, targets = np.unique([0, 2, n // 2, n]), np.unique([0, 1, n // 3, n])
    layout, alike = laid_out(counting, rows, tmp_path, 2)
    counts = [Counts(0, 0, n)]
    sent = list(tasks.gram_cells(counting, rows, layout, counts[0], 0, owners))
    K = np.zeros((n, n))
    wanted = np.arange(n) % 3 != 0
    for block in range(len(owners) - 1):
        mine = [batch for batch in sent if batch.column("block")[0].as_py() == block]
        tasks.owner_sums(mine, block, tasks.Summing(counts, owners, alike, str(tmp_path)), n)
    passed = [
        batch
        for block in range(len(owners) - 1)
        for batch in halves.target_cells(block, share, wanted, targets, n, str(tmp_path))
    ]
    for block, (lo, hi) in enumerate(pairwise(targets)):
        mine = [batch for batch in passed if batch.column("block")[0].as_py() == block]
        for target, source, value in (
            (np.concatenate(parts) for parts in halves.sent_entries(mine, lo, hi)),
            halves.own_entries(owners, share, wanted, lo, hi, str(tmp_path)),
        ):
            assert ((target >= lo) & (target < hi)).all()
            np.add.at(K, (source, target), value)
    log = skewed_log(1_000)
    whole = dense(tr.TALE(trend=0).gram(log).K)[np.ix_(ranks(log), ranks(log))]
    np.testing.assert_allclose(K, (whole + share * whole.T) * wanted, rtol=1e-12)


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
