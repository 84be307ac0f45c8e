"""Tasks of a cluster without the cluster: partitions add up to the log; a task may run twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import talerec as tr
from logs import logs, quick
from talerec.data import DAY
from talerec.gram import trend_counts
from talerec.gram.accumulate_kernels import SparseSums
from talerec.runtime import CSR, dense
from talerec.solvers import RangeProblem, solve_range
from talerec.solvers.local import solve_local
from talerec.spark import messages, tasks, trends, triangles
from talerec.spark.gram import RowLayout, build_model_terms, create_pair_files, write_partition
from talerec.spark.partitions import RowFiles, TaskLimits
from talerec.spark.work_plan import TargetRange, WorkPlan


def ranks(log: tr.Log) -> np.ndarray:
    """Return the item of each popularity rank."""
    return np.argsort(-np.bincount(log.item, minlength=len(log.items)), kind="stable")


def in_partitions(
    log: tr.Log, folder, count: int = 3, max_history: int = 2500, **options
) -> RowFiles:
    """Save the rows of a log as tasks read them: in partitions of the users, items by rank."""
    folder.mkdir(exist_ok=True)
    rank = np.argsort(ranks(log)).astype(np.int32)
    latest = int(log.time.max(initial=0))
    rows = RowFiles(str(folder), len(log.items), max_history, latest, **options)
    cuts = np.linspace(0, len(log.users), count + 1).astype(int)
    for partition, (a, b) in enumerate(pairwise(cuts)):
        lo, hi = log.ptr[a], log.ptr[b]
        some = log.keep((np.arange(log.rows) >= lo) & (np.arange(log.rows) < hi))
        ptr = log.ptr[a : b + 1] - lo
        rows.save_log(partition, replace(some, ptr=ptr, item=rank[some.item]))
    return rows


def plan_counting(
    builder, rows, folder, owners, count: int = 3, max_rows: int = 10**9, order=None
) -> tasks.CountingPlan:
    """Write the rows of all partitions, and plan two tasks for each group of rows."""
    layout = RowLayout.build(folder, list(rows.map_arrays("latest", count)), max_rows)
    is_equal = create_pair_files(builder, rows, layout)
    for partition in order or range(count):
        write_partition(builder, rows, partition, layout)
    cuts = pairwise(np.unique([0, rows.n_items // 2, rows.n_items]))
    ranges = [TargetRange(g, a, b) for a, b in cuts for g in range(len(layout.group_sizes))]
    return tasks.CountingPlan(builder, rows, layout, ranges, owners, is_equal)


def sent_to(number: int, batches) -> list:
    """Return the messages to one block."""
    return [batch for batch in batches if batch.column("block")[0].as_py() == number]


def send_all(plan: tasks.CountingPlan) -> list:
    """Return the messages of all counting tasks."""
    return [batch for task in range(len(plan.ranges)) for batch in tasks.send_gram(plan, task)]


def sum_all_owners(plan: tasks.CountingPlan) -> None:
    """Save the sums of all blocks of owners."""
    sent = send_all(plan)
    for block in range(len(plan.owners) - 1):
        tasks.sum_owners(sent_to(block, sent), block, plan)


def gram_by_rank(plan: tasks.CountingPlan):
    """Return G and K by rank, from partitions of users, groups of rows and blocks of owners."""
    n, edges, sent = plan.rows.n_items, plan.owners, send_all(plan)[::-1]
    whole = np.zeros((3, n, n))
    for block, (lo, hi) in enumerate(pairwise(edges)):
        pieces = tasks.load_owner_rows(sent_to(block, sent), lo, hi, plan)
        shares = [term.share for term in plan.terms]
        triangle = triangles.sum_owner_rows(pieces, lo, hi, n, shares)
        row = np.repeat(np.arange(lo, hi), np.diff(triangle.indptr))
        whole[:, row, triangle.indices] = triangle.values.T
    G, into, out = whole
    assert not out.diagonal().any()
    return G + np.tril(G, -1).T, into.T + out


def plan_solve(targets, owners, share, target_mask, folder) -> triangles.SolvePlan:
    """Return a plan for the blocks of targets and owners between these edges."""
    options = (share, target_mask, str(folder))
    return triangles.SolvePlan(targets, targets, owners, *options, 20, 0, 0)


def with_trends(rows: RowFiles, model, folder, count: int = 3) -> RowFiles:
    """Save trend counts of rows, with the most popular item in slices of time."""
    times = np.concatenate([rows.load_log(partition).time for partition in range(count)])
    cuts = [np.unique(np.quantile(times, [0.4, 0.6]))]
    plan = trends.TrendPlan(np.array([1, 2, rows.n_items]), cuts)
    sent = [
        batch
        for partition in range(count)
        for batch in trends.send_trend_rows(rows, partition, plan, only_popular=False)
    ]
    for task in range(plan.n_ranges, plan.n_tasks):
        trends.save_sorted_times(sent_to(task, sent), str(folder), task)
    back = [
        batch
        for task in range(plan.n_tasks)
        for batch in trends.send_trend_counts(
            sent_to(task, sent), task, plan, model.window, "both", str(folder)
        )
    ]
    for partition in range(count):
        trends.save_trend_counts(sent_to(partition, back), partition, rows)
    return rows._replace(has_trends=True)


@quick
@given(
    logs(max_users=7, max_items=6),
    st.sampled_from(["tale", "multi", "joint", "slit", "slist", "slis"]),
    st.sampled_from([1, 5, 10**9]),
)
def test_grams_of_partitions_add_up_to_the_gram_of_the_log(tmp_path_factory, log, kind, max_rows):
    model = {
        "tale": tr.TALE(window=10, trend=0.3),
        "multi": tr.TALE(targets="multi", trend=0, floor=0.0, decay=0.01),
        "slis": tr.TALE(alpha=1.0),
        "joint": tr.TALE(same_time="joint", trend=0, alpha=0.3),
        "slit": tr.SLIT(decay_user=40.0),
        "slist": tr.SLIST(norm="l1"),
    }[kind]
    folder, item = tmp_path_factory.mktemp("partitions"), ranks(log)
    rows = in_partitions(log, folder)
    if kind == "tale":
        rows = with_trends(rows, model, folder)
    n = len(log.items)
    edges = np.unique([0, n // 3, n // 2, n])
    plan = plan_counting(partial(build_model_terms, model), rows, folder, edges, max_rows=max_rows)
    G, K = gram_by_rank(plan)
    whole = model.gram(log)
    by_rank = np.ix_(item, item)
    if max_rows == 10**9:  # one group: sums are added in the order of one machine
        np.testing.assert_array_equal(G, dense(whole.G)[by_rank])
        np.testing.assert_array_equal(K, dense(whole.K)[by_rank])
    np.testing.assert_allclose(G, dense(whole.G)[by_rank], rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(K, dense(whole.K)[by_rank], rtol=1e-12, atol=1e-300)


@quick
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60),
    st.lists(st.integers(0, 40), max_size=4),
    st.sampled_from(["both", "past"]),
)
def test_slices_of_a_popular_item_count_the_rows_of_all_slices(tmp_path_factory, days, cuts, side):
    folder = str(tmp_path_factory.mktemp("times"))
    time = np.array(days) * DAY
    at = np.searchsorted(np.unique(cuts) * DAY, time)
    slices = range(len(set(cuts)) + 1)
    for piece in slices:
        times = time[at == piece]
        rows = np.arange(len(times), dtype=np.int32)
        trends.save_sorted_times([messages.pack_message(piece, 0, rows, times)], folder, piece)
    after = 7 if side == "both" else 0
    by_hand = [sum(-7 <= o - d <= after for o in days) for d in days]
    assert trends.count_in_slices(time, slices, 7, side, folder).tolist() == by_hand


def skewed_log(rows: int = 6_000) -> tr.Log:
    """One item has a third of the rows, one user a tenth."""
    rng = np.random.default_rng(3)
    user = np.where(rng.random(rows) < 0.1, 0, rng.integers(1, rows // 8, rows))
    item = np.where(rng.random(rows) < 0.33, 5, rng.zipf(1.3, rows) % 800)
    time = 1_600_000_000 + rng.integers(0, 400 * 86_400, rows)
    return tr.Log.from_frame(pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time}))


def test_no_task_of_a_skewed_log_has_much_more_than_its_share():
    """Neither of counted rows, a third of which are of one item, nor of summed pairs."""
    log, n_tasks = skewed_log(), 8
    length = np.diff(log.ptr)
    pairs = int((length * (length + 1) // 2).sum())
    item_counts = np.sort(np.bincount(log.item))[::-1]
    plan = WorkPlan.build(n_tasks, item_counts, pairs, TaskLimits(10**6, 10**9, 10**9))
    counts = plan.split_targets([log.rows])
    task_rows = np.array([item_counts[lo:hi].sum() for _, lo, hi in counts])
    assert n_tasks // 2 < len(counts) <= n_tasks
    assert task_rows.max() <= max(item_counts[0], 2.5 * task_rows.mean())
    G = dense(tr.TALE(trend=0).gram(log).G)[np.ix_(ranks(log), ranks(log))]
    owned = np.count_nonzero(np.tril(G), axis=1)
    entries = np.add.reduceat(owned, plan.owners[:-1])
    assert entries.max() < 2.5 * entries.mean()
    assert len(plan.targets) == n_tasks + 1
    assert len(log.items) == plan.owners[-1] == plan.targets[-1] == plan.sources[-1]


def test_groups_of_rows_share_out_the_targets_of_each():
    item_counts = np.sort(np.random.default_rng(3).zipf(1.5, 500).clip(max=900))[::-1]
    plan = WorkPlan.build(4, item_counts, 20_000, TaskLimits(10**6, 500, 10**9))
    counts = plan.split_targets([80, 20])
    for group in range(2):
        ranges = [(lo, hi) for g, lo, hi in counts if g == group]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 500
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert len([1 for g, _, _ in counts if g == 0]) > len([1 for g, _, _ in counts if g == 1])


@pytest.mark.parametrize("users", [300, 3000, 30_000])
def test_the_number_of_tasks_is_bounded_by_the_pairs_of_items_and_not_by_the_users(users):
    """Few items soon have all their pairs; more users then add rows to tasks, and no tasks."""
    log = tr.synthetic_log(10 * users, users=users, items=300, seed=1)
    length = np.diff(log.ptr)
    pairs = int((length * (length + 1) // 2).sum())
    item_counts = np.sort(np.bincount(log.item, minlength=300))[::-1]
    plan = WorkPlan.build(2, item_counts, pairs, TaskLimits(10**6, 2_000, 10**9))
    G = dense(tr.TALE(trend=0).gram(log).G)[np.ix_(ranks(log), ranks(log))] != 0
    counted = [np.count_nonzero(G[lo:hi]) for _, lo, hi in plan.split_targets([log.rows])]
    owned = np.add.reduceat(np.count_nonzero(np.tril(G), axis=1), plan.owners[:-1])
    assert max(counted) < 2 * 2 * 2_000 + 300  # either direction; as many rows or as many pairs
    assert max(owned) < 2_000 + 300
    assert max(len(counted), len(owned)) <= 300 * 300 / 2 / 2_000 + 2


def to_triangle(gram, item):
    """Return what `solve_range` reads: items renumbered by `item`, sources in the old order."""
    n = len(item)
    rank = np.argsort(item)
    G = dense(gram.G)[np.ix_(item, item)]
    below = [np.flatnonzero(G[r, :r]) for r in range(n)]
    triangle = CSR(
        np.concatenate([[0], np.cumsum([len(row) for row in below])]),
        np.concatenate(below).astype(np.int32),
        np.concatenate([G[r, row] for r, row in enumerate(below)]),
    )
    K = dense(gram.K)
    column_sources = [np.flatnonzero(K[:, item[t]]) for t in range(n)]
    sources = CSR(
        np.concatenate([[0], np.cumsum([len(row) for row in column_sources])]).astype(np.int32),
        rank[np.concatenate(column_sources)].astype(np.int32),
        np.concatenate([K[row, item[t]] for t, row in enumerate(column_sources)]),
    )
    return triangle, sources, G.diagonal().copy()


def count_owned(triangle, item, folder):
    """Return how many entries each item owns by degree, from a triangle cut into two blocks."""
    n = len(item)
    indptr, column, _ = triangle
    length, column_counts = np.diff(indptr), []
    for block, (a, b) in enumerate(((0, n // 2), (n // 2, n))):
        columns = column[indptr[a] : indptr[b]]
        messages.save_array(folder, f"column-{block}", columns)
        messages.save_array(folder, f"row_count-{block}", length[a:b])
        column_counts.append(np.bincount(columns, minlength=b))
    messages.save_array(folder, "degree_rank", tasks.rank_by_degree(length, column_counts, item))
    for block, lo in enumerate((0, n // 2)):
        tasks.save_owned_counts(block, lo, str(folder))
    return sum(messages.map_array(folder, f"owned-{block}") for block in range(2))


@pytest.mark.parametrize(
    ("neighbors", "rows", "penalty"),
    [(3, 2_000, 50.0), (60, 2_000, 1e-7), (10**6, 2_000, 50.0), (200, 60_000, 50.0)],
)
def test_targets_solved_in_ranges_have_the_weights_of_the_local_solver(
    neighbors, rows, penalty, tmp_path
):
    """To the last bit, though items have other numbers and G lies in other rows of the triangle.

    With many rows, some targets have too many sources: one machine leaves out the same. A small
    penalty makes the weights depend on the last bit of each sum. If all items are solved together,
    they are eliminated in the order of their numbers.
    """
    log = skewed_log(rows)
    gram = tr.TALE().gram(log)
    n = len(log.items)
    item = np.argsort(-np.bincount(log.item), kind="stable")
    triangle, K, diagonal = to_triangle(gram, item)
    lengths = count_owned(triangle, item, tmp_path)
    B = np.zeros((n, n))
    for a, b in ((0, 5), (5, 100), (100, n)):
        some = K._replace(indptr=np.clip(K.indptr, K.indptr[a], K.indptr[b]))
        n_entries = len(K.indices) + n
        problem = RangeProblem(lengths, some, diagonal + penalty, neighbors, n_entries)
        source, target, weight = solve_range(triangle, problem, a, b)
        assert (target >= a).all()
        assert (target < b).all()
        B[item[source], item[target]] = weight
    expected = solve_local(gram, np.full(n, penalty), neighbors)[0].toarray()
    if neighbors < n:
        np.testing.assert_array_equal(B, expected)
    else:
        np.testing.assert_allclose(B, expected, rtol=1e-5, atol=1e-9)


def test_a_task_that_runs_twice_leaves_the_same_bytes(tmp_path):
    rows = in_partitions(skewed_log(1_000), tmp_path / "rows", 4)
    n, edges, builder = (
        rows.n_items,
        np.array([0, rows.n_items]),
        partial(build_model_terms, tr.TALE(trend=0)),
    )
    results = []
    for attempt in range(3):
        folder = tmp_path / ("other" if attempt == 1 else "one")
        folder.mkdir(exist_ok=True)
        order = (3, 1, 2, 0) if attempt else range(4)
        plan = plan_counting(builder, rows, folder, edges, 4, 500, order)
        sent = send_all(plan)
        tasks.sum_owners(sent[::-1] if attempt else sent, 0, plan)
        solve_plan = plan_solve(np.array([0, 3, n]), edges, 0.3, None, folder)
        out = list(triangles.send_target_entries(0, solve_plan, n))
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        results.append(([batch.to_pydict() for batch in out], files))
    assert len(plan.layout.group_sizes) > 1
    assert results[0] == results[1] == results[2]


def test_entries_of_k_reach_their_targets_once_from_owners_and_from_others(tmp_path):
    rows = in_partitions(skewed_log(1_000), tmp_path / "rows", 2)
    n, builder, share = rows.n_items, partial(build_model_terms, tr.TALE(trend=0)), 0.3
    owners, targets = np.unique([0, 2, n // 2, n]), np.unique([0, 1, n // 3, n])
    plan = plan_counting(builder, rows, tmp_path, owners, 2)
    sum_all_owners(plan._replace(ranges=[TargetRange(0, 0, n)]))
    K = np.zeros((n, n))
    target_mask = np.arange(n) % 3 != 0
    solve_plan = plan_solve(targets, owners, share, target_mask, tmp_path)
    sent = [
        batch
        for block in range(len(owners) - 1)
        for batch in triangles.send_target_entries(block, solve_plan, n)
    ]
    for block, (lo, hi) in enumerate(pairwise(targets)):
        pieces = triangles.unpack_target_entries(sent_to(block, sent), lo, hi)
        for target, source, value in (
            (np.concatenate(arrays) for arrays in pieces),
            triangles.load_owned_entries(solve_plan, lo, hi),
        ):
            assert ((target >= lo) & (target < hi)).all()
            np.add.at(K, (source, target), value)
    log = skewed_log(1_000)
    whole = dense(tr.TALE(trend=0).gram(log).K)[np.ix_(ranks(log), ranks(log))]
    np.testing.assert_allclose(K, (whole + share * whole.T) * target_mask, rtol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
def test_sums_of_a_range_of_targets_are_split_by_the_owner_of_each_pair(symmetric):
    rng = np.random.default_rng(5)
    n, lo, hi = 7, 2, 5
    M, KT = rng.random((2, n, n)) * (rng.random((2, n, n)) < 0.6)
    at = [(j, i) for j in range(n) for i in range(n) if lo <= j < hi]
    indptr = np.cumsum([0, *(n * (lo <= j < hi) for j in range(n))])
    indices, values = np.array([i for _, i in at], np.int32), tuple(np.array(at).T)
    sums = SparseSums(indptr, indices, M[values], KT[values])
    split = triangles._split_sums(sums, lo, hi, symmetric)
    owned, other = np.zeros((2, n, n, 2))  # owner x column x (G, K)
    K = M if symmetric else KT
    for j, i in at:
        twice = np.array([2.0, 1.0 + symmetric]) if i == j else 1.0
        (owned if i <= j else other)[max(i, j), min(i, j)] = np.array([M[j, i], K[j, i]]) * twice
    for (ptr, columns, entries), first, expected in (
        (split[:3], lo, owned[lo:hi]),
        (split[3:], 0, other),
    ):
        assert len(ptr) == len(expected) + 1, first
        matrix = np.zeros_like(expected)
        matrix[np.repeat(np.arange(len(expected)), np.diff(ptr)), columns] = entries
        np.testing.assert_allclose(matrix, expected, rtol=1e-14)
        assert np.count_nonzero(expected.any(axis=2)) == len(columns)  # no entries of two zeros


@pytest.mark.parametrize("factor", [None, np.array([1.0, 10.0, 100.0, 1000.0])])
def test_weights_are_named_by_the_ids_of_their_source_and_target(monkeypatch, factor):
    monkeypatch.setattr(tasks, "_NAMED_WEIGHTS", 2)
    B = sparse.csr_array(
        np.array([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 4.0, 0.0]])
    )
    schema = pa.schema({"source": pa.string(), "target": pa.string(), "weight": pa.float64()})
    batches = list(tasks.label_weights(B, 1, pl.Series(list("abcd")), factor, schema))
    assert [batch.num_rows for batch in batches] == [2, 2]
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    by = [1.0] * 4 if factor is None else factor.tolist()
    assert rows == [
        ("b", "b", 1.0 * by[1]),
        ("b", "d", 2.0 * by[3]),
        ("d", "a", 3.0 * by[0]),
        ("d", "c", 4.0 * by[2]),
    ]


def test_trend_counts_of_the_whole_log_are_used_in_a_part_of_it():
    log = skewed_log(500)
    counts = trend_counts(log.item, log.time, len(log.items), 30, "both")
    is_part = log.user_codes() % 2 == 0
    assert log.trends is None
    part = tr.Log(
        log.ptr, log.item, log.time, log.users, log.items, trends=counts, latest=int(log.time.max())
    ).keep(is_part)
    np.testing.assert_array_equal(part.trends, counts[is_part])
    other = tr.TALE(window=30).gram(log.keep(is_part))
    assert not np.allclose(dense(tr.TALE(window=30).gram(part).G), dense(other.G))


def test_trend_counts_stay_with_their_rows_when_ties_are_ordered():
    """The item of a row and its count move together; users and times do not."""
    log = skewed_log(500)
    marked = replace(log, trends=log.item.astype(np.int64) + 1000, time=np.zeros_like(log.time))
    ordered = tr.order_ties(marked, "random:3")
    assert not np.array_equal(ordered.item, log.item)
    np.testing.assert_array_equal(ordered.trends, ordered.item + 1000)
