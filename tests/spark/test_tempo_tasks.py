"""Tempo learns the same from partitions as from the log: to the last bit if it is counted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from test_tasks import (
    in_partitions,
    plan_counting,
    plan_solve,
    ranks,
    sent_to,
    skewed_log,
    sum_all_owners,
    with_trends,
)

import talerec as tr
from logs import logs, quick
from talerec.models.core import holdout
from talerec.models.tempo import TimedRows, build_snapshots
from talerec.models.tempo.tie_order import find_tie_order
from talerec.runtime import dense
from talerec.spark import messages, tasks, tempo_tasks, triangles
from talerec.spark.gram import build_tempo_terms, create_file

PARTITIONS = 3


@quick
@given(logs(max_users=9, max_items=6))
def test_statistics_of_partitions_are_those_of_the_log(tmp_path_factory, log):
    rows = in_partitions(log, tmp_path_factory.mktemp("partitions"))
    for partition in range(PARTITIONS):
        tempo_tasks.save_statistics(rows.load_log(partition), partition, rows)
    vocabulary = (log.items.ids, ranks(log))
    statistics = tempo_tasks.load_statistics(tr.Tempo(), rows, PARTITIONS, *vocabulary)
    expected = tr.Tempo().measure(log)
    assert statistics.median_interval == expected.median_interval
    assert statistics.is_joint == expected.is_joint
    np.testing.assert_array_equal(statistics.repeat_rates, expected.repeat_rates)


def test_an_order_by_item_ids_is_recognised_in_partitions(tmp_path):
    log = skewed_log(2_000)
    log = tr.order_ties(replace(log, time=log.time // 10**13 * 10**13), "item")  # many ties
    rows = in_partitions(log, tmp_path)
    first, whole = tempo_tasks.load_first_rows(rows, PARTITIONS, ranks(log)), log
    np.testing.assert_array_equal(first.user, whole.user_codes())
    np.testing.assert_array_equal(first.item, whole.item)
    for partition in range(PARTITIONS):
        tempo_tasks.save_statistics(rows.load_log(partition), partition, rows)
    vocabulary = (log.items.ids, ranks(log))
    joint = tempo_tasks.load_statistics(tr.Tempo(), rows, PARTITIONS, *vocabulary).is_joint
    assert joint == tr.Tempo().measure(log).is_joint
    assert find_tie_order(log).reason


@given(st.lists(st.lists(st.integers(-(10**15), 10**15), max_size=9), min_size=1, max_size=5))
def test_the_median_of_several_arrays_is_that_of_all_values(lists):
    values = np.array([value for array in lists for value in array])
    median = tempo_tasks.median([np.array(sorted(array), np.int64) for array in lists])
    assert median == (float(np.median(values)) if len(values) else None)


def order_by_time(rows, log, folder, n_slices: int = 4):
    """Return all rows in the order of time, as tasks save them."""
    item = ranks(log).astype(np.int32)
    cuts = np.unique(np.quantile(log.time, np.arange(1, n_slices) / n_slices).astype(np.int64))
    sent = [b for p in range(PARTITIONS) for b in tempo_tasks.send_by_time(rows, p, cuts, item)]
    for number in range(len(cuts) + 1):
        tempo_tasks.save_time_slice(sent_to(number, sent), number, rows)
    tempo_tasks.join_time_slices(rows, len(cuts) + 1)
    return tempo_tasks.load_by_time(rows)


@quick
@given(logs(max_users=9, max_items=6))
def test_rows_of_partitions_have_the_time_order_of_one_machine(tmp_path_factory, log):
    """Rows with equal times, too: by user, and in the order of the log."""
    folder = tmp_path_factory.mktemp("partitions")
    rows = in_partitions(log, folder)
    by_time, expected = order_by_time(rows, log, folder), TimedRows.from_log(log)
    np.testing.assert_array_equal(by_time.item, expected.item)
    np.testing.assert_array_equal(by_time.time, expected.time)
    np.testing.assert_array_equal(messages.map_array(folder, "item_weights-0"), log.counts())
    np.testing.assert_array_equal(messages.map_array(folder, "recent_weights-0"), log.counts(7.0))
    horizons = [1 / 16, 1.0]
    tempo_tasks.save_snapshots(build_snapshots(by_time, 1.0, horizons), rows)
    loaded, whole = tempo_tasks.load_snapshots(rows), build_snapshots(expected, 1.0, horizons)
    np.testing.assert_array_equal(dense(loaded.shares), dense(whole.shares))
    for a, b in zip(loaded[1:], whole[1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_first_fit_without_rows_counts_nothing(tmp_path):
    """If all rows have one time, none lies before the cutoff, and there are no queries."""
    log = skewed_log(60)
    rows = in_partitions(log.keep(np.zeros(log.rows, bool)), tmp_path)
    assert len(order_by_time(rows, log, tmp_path).time) == 0
    for name in ("item_weights-0", "recent_weights-0"):
        assert messages.map_array(tmp_path, name).tolist() == [0.0] * len(log.items)


@pytest.mark.parametrize("every_item", [True, False])
def test_holdout_queries_of_partitions_are_those_of_the_log(tmp_path, every_item, monkeypatch):
    monkeypatch.setattr(holdout, "_SMALL_CATALOGUE", 50)  # so that half of the items are targets
    monkeypatch.setattr(holdout, "_MIN_SAMPLE", 300)  # and only some users are sampled
    log = skewed_log(9_000)
    expected = holdout.split_holdout(log, every_item=every_item)
    rows, item = in_partitions(log, tmp_path), ranks(log)
    first = rows._replace(prefix="first_")
    cutoffs = holdout.candidate_cutoffs(order_by_time(rows, log, tmp_path).time)
    for partition in range(PARTITIONS):
        tempo_tasks.save_users_across(rows, partition, cutoffs)
    cutoff = holdout.choose_cutoff(cutoffs, sum(rows.map_arrays("across", PARTITIONS)))
    target_mask = holdout.sample_target_items(len(log.items), every_item=every_item)
    plan = tempo_tasks.HoldoutPlan(cutoff, target_mask[item])
    for partition in range(PARTITIONS):
        tempo_tasks.save_eligible_users(rows, partition, plan)
    current, delayed = (
        tempo_tasks.sample_eligible_users(rows, kind, PARTITIONS, log.rows)
        for kind in tempo_tasks.QUERY_KINDS
    )
    n_rows = holdout.delayed_rows_per_user(sum(map(len, delayed)), log.rows)
    for partition in range(PARTITIONS):
        users = (current[partition], delayed[partition])
        tempo_tasks.save_holdout(rows, first, partition, plan, users, n_rows)
    train = expected.train
    times = np.concatenate(list(first.map_arrays("time", PARTITIONS)))
    np.testing.assert_array_equal(times, train.time)
    in_train = np.bincount(train.item, minlength=len(log.items)) > 0
    assert 100 < len(expected.current) <= 300
    for kind in tempo_tasks.QUERY_KINDS:
        loaded = tempo_tasks.load_queries(first, kind, PARTITIONS, item.astype(np.int32))
        queries, whole = holdout.select_answerable(loaded, in_train), getattr(expected, kind)
        np.testing.assert_array_equal(queries.target, whole.target)
        np.testing.assert_array_equal(queries.histories.now, whole.histories.now)
        same_user = (np.unique(q.user, return_inverse=True)[1] for q in (queries, whole))
        np.testing.assert_array_equal(*same_user)
        for q in range(0, len(whole), 17):
            ours, theirs = (
                h.item[h.start[q] : h.stop[q]] for h in (queries.histories, whole.histories)
            )
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("same_time", ["joint", "ordered"])
def test_both_directions_of_a_pair_meet_where_their_difference_is_shrunk(tmp_path, same_time):
    """K and the diagonal of G are those of one machine to the last bit."""
    log = skewed_log(2_000)
    tempo = tr.Tempo(same_time=same_time, max_history=40, shrinkage=0.2)
    rows, item = in_partitions(log, tmp_path, max_history=40), ranks(log)
    rows = with_trends(rows, tempo, tmp_path)
    statistics = tempo.measure(log)
    builder = partial(build_tempo_terms, tempo, statistics)
    n, folder = rows.n_items, str(tmp_path)
    owners = np.array([0, 5, n // 2, n])
    sum_all_owners(plan_counting(builder, rows, tmp_path, owners, PARTITIONS))
    simultaneous = messages.map_arrays(folder, "simultaneous", PARTITIONS)
    total = sum(float(weight[0]) for weight in simultaneous)
    share = triangles.direction_stats(folder, 3, total).reverse_share(tempo.shrinkage)
    assert 0 < share < 1
    targets, K = np.array([0, 9, n]), np.zeros((n, n))
    plan = plan_solve(targets, owners, share, None, folder)
    sent = [b for x in range(3) for b in triangles.send_target_entries(x, plan, n)]
    for block, (lo, hi) in enumerate(pairwise(targets)):
        pieces = triangles.unpack_target_entries(sent_to(block, sent), lo, hi)
        target, source, value = (np.concatenate(arrays) for arrays in pieces)
        K[item[source], item[target]] = value
    target, source, value = triangles.load_owned_entries(plan, 0, n)
    K[item[source], item[target]] = value
    whole = tempo.gram(log)
    np.testing.assert_array_equal(K, dense(whole.K))
    assert triangles.count_k_entries(folder, 3, n, share) == np.count_nonzero(K)
    diagonal = np.concatenate(list(messages.map_arrays(folder, "diagonal", 3)))
    np.testing.assert_array_equal(diagonal, whole.G.diagonal()[item])


def solve_in_tasks(tempo, log, folder, max_bytes: int):
    """Return the weights that tasks solve from partitions of a log, source x target."""
    rows, item = in_partitions(log, folder / "rows"), ranks(log).astype(np.int32)
    rows = with_trends(rows, tempo, folder / "rows")
    n, path = rows.n_items, str(folder)
    owners, targets = np.array([0, n // 5, n // 2, n]), np.array([0, n // 3, n])
    builder = partial(build_tempo_terms, tempo, tempo.measure(log))
    sum_all_owners(plan_counting(builder, rows, folder, owners, PARTITIONS))
    messages.save_array(folder, "position", item)
    row_counts, diagonal = (
        np.concatenate(list(messages.map_arrays(folder, name, 3)))
        for name in ("row_count", "diagonal")
    )
    indptr = np.concatenate([[0], np.cumsum(row_counts)])
    column_counts = messages.map_arrays(folder, "column_count", 3)
    degree_rank = tasks.rank_by_degree(row_counts, column_counts, item)
    arrays = {"indptr": indptr, "degree_rank": degree_rank}
    for name, array in {**arrays, "ridge": diagonal + tempo.penalty(diagonal)}.items():
        messages.save_array(folder, name, array)
    for name, size in (("column", 4), ("value", 8)):
        create_file(folder / f"{name}.raw", int(indptr[-1]) * size)
    for block in range(3):
        tasks.save_owned_counts(block, int(owners[block]), path)
        tasks.write_block(block, int(indptr[owners[block]]), path)
    messages.save_array(folder, "owned", sum(messages.map_arrays(folder, "owned", 3)))
    simultaneous = sum(float(x[0]) for x in messages.map_arrays(folder, "simultaneous", PARTITIONS))
    share = triangles.direction_stats(path, 3, simultaneous).reverse_share(tempo.shrinkage)
    n_entries = triangles.count_k_entries(path, 3, n, share)
    limits = (tempo.neighbors, n_entries, max_bytes)
    plan = triangles.SolvePlan(targets, np.array([0, n]), owners, share, None, path, *limits)
    sent = [b for x in range(3) for b in triangles.send_target_entries(x, plan, n)]
    weights = [b for x in range(2) for b in tasks.send_weights(sent_to(x, sent), x, plan)]
    types = (np.int32, np.int32, np.float32)
    source, target, weight = messages.concatenate_messages(weights, *types)
    return sparse.csr_array((weight, (source, target)), shape=(n, n))


def assert_same_solution(log, folder, max_bytes: int, **params) -> None:
    """The weights of tasks are those of one machine to the last bit."""
    tempo = tr.Tempo(solver="local", **params)
    tempo = tempo.with_tie_order(tempo.measure(log).tie_order)
    ours, theirs = solve_in_tasks(tempo, log, folder, max_bytes), tempo.solution(tempo.gram(log))
    theirs = sparse.csr_array(theirs.weights)
    np.testing.assert_array_equal(ours.indptr, theirs.indptr)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    np.testing.assert_array_equal(ours.data, theirs.data)


@pytest.mark.parametrize("max_bytes", [10**9, 20_000])
def test_weights_of_tasks_are_those_of_one_machine(tmp_path, max_bytes):
    """Also if a task reads G in pieces."""
    assert_same_solution(skewed_log(6_000), tmp_path, max_bytes, neighbors=12)


@pytest.mark.slow
def test_weights_of_a_real_log_are_those_of_one_machine(tmp_path, data):
    """The share of reversed pairs is a sum over 11 million pairs here, most of them tiny."""
    assert_same_solution(tr.read_log(data / "ifdb-games.csv.gz"), tmp_path, 10**9)
