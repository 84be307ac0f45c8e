"""Tempo's statistics, popularity and held-out queries of a log in partitions. No Spark.

Each function does for one partition of users what `talerec.models.tempo` does for a log, or puts
the results of all partitions together, exactly as they are for the whole log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import Histories, Log, days_to_microseconds, median_in_days, positive_intervals
from talerec.models.core import (
    RECENT_DAYS,
    HoldoutQueries,
    TimeCut,
    count_users_across,
    sample_users,
)
from talerec.models.tempo import (
    MAX_FIRST_ROWS,
    FirstRows,
    LogStatistics,
    PopularitySnapshots,
    Tempo,
    TieOrder,
    TimedRows,
    classify_ties,
    rates_from_counts,
    repeat_counts,
    simultaneous_pairs,
)
from talerec.runtime import Array, sparse
from talerec.spark import messages
from talerec.spark.messages import Batches
from talerec.spark.partitions import RowFiles

# -- statistics ------------------------------------------------------------------------------------


def save_statistics(log: Log, partition: int, rows: RowFiles) -> None:
    """Save statistics of a partition of users: intervals, simultaneous pairs, repeats.

    log: the partition's rows. Intervals are from a user's row to the next, above 0, in
    microseconds, sorted; pairs are of different items of a user at one time. Repeats of an item and
    opportunities for one are counted by lag in rows (32 buckets: 0, 1-2, 3-6, ...), followed by the
    number of rows that have an earlier row. rows: where they are saved.
    """
    intervals = np.sort(positive_intervals(log)) if log.rows else log.time
    rows.save_array("intervals", partition, intervals)
    rows.save_array("pairs", partition, np.array(simultaneous_pairs(log)))
    hits, opportunities, n_later_rows = repeat_counts(log)
    rows.save_array("repeats", partition, np.concatenate([hits, opportunities, [n_later_rows]]))


def load_statistics(
    tempo: Tempo, rows: RowFiles, count: int, ids: pl.Series, position: Array
) -> LogStatistics:
    """Return the statistics of the whole log, from what `count` partitions of users saved.

    They are the median interval between a user's rows (days), whether simultaneous rows are
    unordered, and how often items are repeated, by lag in rows (32 buckets: 0, 1-2, 3-6, ...).
    rows: the files; tempo: its `same_time` decides how rows with equal times are treated. ids: of
    items by vocabulary position. position: of each item (popularity rank) in the vocabulary.
    """

    def find_order() -> TieOrder:  # one machine, too, looks at the pairs of the first users alone
        left, right = position[np.concatenate(list(rows.map_arrays("pairs", count)), axis=1)]
        return classify_ties((left, right), ids, lambda: load_first_rows(rows, count, position))

    interval = median_in_days(median(list(rows.map_arrays("intervals", count))))
    tie_order = tempo.resolve_same_time(find_order)
    hits, opportunities, n_later_rows = np.split(sum(rows.map_arrays("repeats", count)), [32, 64])
    return LogStatistics(
        interval, tie_order, rates_from_counts(hits, opportunities, int(n_later_rows[0]))
    )


def load_first_rows(rows: RowFiles, count: int, position: Array) -> FirstRows:
    """Return user numbers, times and item positions of the log's first `MAX_FIRST_ROWS` rows.

    count: of partitions of users, read one after the other as far as needed. position: of each item
    (popularity rank) in the vocabulary.
    """
    parts, n_rows, n_users = [], 0, 0
    for partition in range(count):
        if n_rows >= MAX_FIRST_ROWS:
            break
        log = rows.load_log(partition)
        parts.append((log.user_codes() + n_users, log.time, position[log.item]))
        n_rows, n_users = n_rows + log.rows, n_users + len(log.ptr) - 1
    user, time, item = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return FirstRows(user[:MAX_FIRST_ROWS], time[:MAX_FIRST_ROWS], item[:MAX_FIRST_ROWS])


def median(arrays: Sequence[Array]) -> float | None:
    """Return the median of all values of several ascending integer arrays; None if all empty."""
    filled = [array for array in arrays if len(array)]
    count = sum(map(len, filled))
    if not count:
        return None
    return float(np.mean([kth_smallest(filled, k) for k in ((count - 1) // 2, count // 2)]))


def quantile(arrays: Sequence[Array], share: float) -> float:
    """Return the quantile `share` (0 to 1) of all values of several ascending integer arrays.

    Values between two ranks are interpolated linearly. NaN if there are no values.
    """
    filled = [array for array in arrays if len(array)]
    if not filled:
        return float("nan")
    rank = (sum(map(len, filled)) - 1) * share
    lower = int(rank)
    neighbors = [kth_smallest(filled, k) for k in (lower, int(np.ceil(rank)))]
    return float(np.quantile(neighbors, rank - lower))


def kth_smallest(arrays: list[Array], k: int) -> int:
    """Return the kth smallest value (from 0) of several ascending integer arrays, none empty.

    It bisects the range of values, and so reads only few pages of memory-mapped arrays.
    """
    low, high = min(int(a[0]) for a in arrays), max(int(a[-1]) for a in arrays)
    while low < high:
        middle = (low + high) // 2
        if sum(int(np.searchsorted(a, middle, "right")) for a in arrays) > k:
            high = middle
        else:
            low = middle + 1
    return low


# -- rows in the order of time ---------------------------------------------------------------------

_TIMED = {"by_time_time": np.int64, "by_time_item": np.int32, "by_time_weight": np.float64}


def send_by_time(
    rows: RowFiles, partition: int, cuts: Array, position: Array
) -> Iterator[pa.RecordBatch]:
    """Yield messages with a partition's times, items and weights, to slices of time.

    Sent by the task of a partition of users, received by a task per slice (`save_time_slice`).
    rows: the files of the partitions. cuts: the times between slices; position: of each item
    (popularity rank) in the vocabulary, by which items are sent.
    """
    log = rows.load_log(partition)
    order = np.argsort(log.time, kind="stable")
    time, item = log.time[order], position[log.item[order]]
    weight = np.empty(0) if log.weight is None else log.weight[order]
    bounds = np.concatenate([[0], np.searchsorted(time, cuts), [len(time)]])
    for number in np.flatnonzero(np.diff(bounds)):
        span = slice(bounds[number], bounds[number + 1])
        arrays = (time[span], item[span], weight[span])
        yield messages.pack_message(int(number), partition, *arrays)


def save_time_slice(batches: Batches, number: int, rows: RowFiles) -> None:
    """Save the rows of slice `number` of time, ordered by time, then by partition and user.

    batches: what the tasks of partitions (sets of users) sent with `send_by_time`: times, items and
    weights. rows: where the three arrays are saved.
    """
    arrays = messages.concatenate_messages(batches, *_TIMED.values())
    order = np.argsort(arrays[0], kind="stable")
    for name, array in zip(_TIMED, arrays, strict=True):
        rows.save_array(name, number, array[order] if len(array) else array)


def join_time_slices(rows: RowFiles, count: int) -> None:
    """Join `count` slices of time to files of all rows; save the weight of each item in them.

    rows: the files. Saved are the sums of row weights (or row counts) per item, of all rows as
    `item_weights`, and of those of the last `RECENT_DAYS` days as `recent_weights`; both by
    vocabulary position.
    """
    time, item, weight = (rows.join_arrays(name, count, dtype) for name, dtype in _TIMED.items())
    latest = int(time[-1]) if len(time) else 0  # a first fit may have no rows
    since = int(np.searchsorted(time, latest - days_to_microseconds(RECENT_DAYS)))
    for name, first in (("item_weights", 0), ("recent_weights", since)):
        weights = weight[first:] if len(weight) else None
        total = np.bincount(item[first:], weights, rows.n_items)
        rows.save_array(name, 0, total.astype(np.float64))


def load_by_time(rows: RowFiles) -> TimedRows:
    """Return the items and times of all rows, ordered by time, memory-mapped.

    Items are vocabulary positions, times microseconds. rows: the files of `join_time_slices`.
    """
    time, item = (rows.map_joined(name, _TIMED[name]) for name in ("by_time_time", "by_time_item"))
    return TimedRows(item, time, rows.n_items)


def save_snapshots(snapshots: PopularitySnapshots, rows: RowFiles) -> None:
    """Save snapshots of item popularity (shares at points in time) as numbered arrays.

    The first three are those of the sparse matrix of shares, snapshot x item. rows: the files.
    """
    shares = snapshots.shares
    arrays = (shares.data, shares.indices, shares.indptr, *snapshots[1:])
    for number, array in enumerate(arrays):
        rows.save_array("snapshots", number, array)


def load_snapshots(rows: RowFiles) -> PopularitySnapshots:
    """Return the snapshots of item popularity (shares at points in time) of `save_snapshots`.

    rows: the files. The shares are a sparse matrix, snapshot x item; six arrays are read in all.
    """
    data, indices, indptr, *others = (np.array(a) for a in rows.map_arrays("snapshots", 6))
    shape = (len(indptr) - 1, rows.n_items)
    return PopularitySnapshots(sparse.csr_array((data, indices, indptr), shape=shape), *others)


# -- held-out queries ------------------------------------------------------------------------------


class HoldoutPlan(NamedTuple):
    """The end of the training rows, and the items that held-out queries may have as targets.

    A query is a user's history and, as target, the item of the row that came next.
    """

    cutoff: int  # microseconds; training rows lie before it
    target_mask: Array  # a flag per item, by popularity rank


QUERY_KINDS = ("current", "delayed")  #: see `talerec.models.core.holdout`
_QUERY_ARRAYS = ("length", "item", "time", "now", "target", "user")


def save_users_across(rows: RowFiles, partition: int, cutoffs: Array) -> None:
    """Save, per cutoff time, how many of a partition's users have rows before and after it.

    A partition is a set of users; cutoffs are in microseconds. Saved as the array `across`.
    """
    rows.save_array("across", partition, count_users_across(rows.load_log(partition), cutoffs))


def save_eligible_users(rows: RowFiles, partition: int, plan: HoldoutPlan) -> None:
    """Save the users of a partition for whom there is a held-out query of each kind.

    A partition is a set of users. A query is a history and the item of the next row, its target: of
    a current query that is a user's last row before plan.cutoff, of a delayed one the first row
    after it; only items of plan.target_mask are targets. Saved are user numbers within the
    partition, as `current_users` and `delayed_users`.
    """
    eligible = TimeCut.at(rows.load_log(partition), plan.cutoff).eligible_users(plan.target_mask)
    for kind, users in zip(QUERY_KINDS, eligible, strict=True):
        rows.save_array(f"{kind}_users", partition, users)


def sample_eligible_users(rows: RowFiles, kind: str, count: int, n_rows: int) -> list[Array]:
    """Return a sample of the users with a held-out query, as an array for each partition.

    A query is a user's history and, as target, the next item. The sample is that of the whole log,
    evenly spread; users are numbers within their partition (a set of users). kind: of query,
    "current" or "delayed"; count: of partitions; n_rows: of the log, by which the sample is sized.
    """
    eligible = list(rows.map_arrays(f"{kind}_users", count))
    ends = np.cumsum([0, *map(len, eligible)])
    sample = sample_users(np.arange(ends[-1]), n_rows)
    cuts = np.searchsorted(sample, ends)
    return [
        np.array(users[sample[a:b] - first])
        for users, (a, b), first in zip(eligible, pairwise(cuts), ends, strict=False)
    ]


def save_holdout(
    rows: RowFiles,
    train_rows: RowFiles,
    partition: int,
    plan: HoldoutPlan,
    users: tuple[Array, Array],
    delayed_rows: int,
) -> None:
    """Save a partition's training rows, their statistics, and the queries of sampled users.

    A query is a history and, as target, the next item. rows: the whole log's, in sets of users;
    train_rows: where the results are saved. plan: the cutoff time. users: numbers of those with a
    current query (its target is the last row before the cutoff, which is not trained on), and of
    those with delayed ones (their targets are the first `delayed_rows` rows after the cutoff).
    """
    cut = TimeCut.at(rows.load_log(partition), plan.cutoff)
    train = cut.training_rows(users[0])
    train_rows.save_log(partition, train)
    save_statistics(train, partition, train_rows)
    delayed = cut.delayed_queries(users[1], plan.target_mask, delayed_rows)
    queries = (cut.current_queries(users[0]), delayed)
    for kind, kind_queries in zip(QUERY_KINDS, queries, strict=True):
        for name, array in zip(_QUERY_ARRAYS, _pack_queries(kind_queries), strict=True):
            train_rows.save_array(f"{kind}_{name}", partition, array)


def _pack_queries(queries: HoldoutQueries) -> tuple[Array, ...]:
    """Return lengths, items and times of the histories, request times, targets, and users.

    A query is a history (a slice start..stop of shared arrays) and its target, the item that came
    next. In the result, histories follow each other in the arrays of items and times; the other
    four arrays have one entry per query.
    """
    histories, target, user = queries
    length = histories.stop - histories.start
    stop = np.cumsum(length)
    at = np.repeat(histories.start - (stop - length), length) + np.arange(length.sum())
    assert histories.now is not None
    return length, histories.item[at], histories.time[at], histories.now, target, user


def load_queries(train_rows: RowFiles, kind: str, count: int, position: Array) -> HoldoutQueries:
    """Return the held-out queries of all partitions of users: histories and target items.

    train_rows: the files of `save_holdout`. Items become vocabulary positions. kind: "current" (the
    target is the last row before the cutoff) or "delayed" (the first after it); count: of
    partitions; position: of each item by popularity rank.
    """
    parts = [list(train_rows.map_arrays(f"{kind}_{name}", count)) for name in _QUERY_ARRAYS]
    length, item, time, now, target, user = map(np.concatenate, parts)
    partition = np.repeat(np.arange(count), [len(users) for users in parts[-1]])
    _, user = np.unique(partition * (user.max(initial=0) + 1) + user, return_inverse=True)
    stop = np.cumsum(length)
    histories = Histories(stop - length, stop, position[item], time, now)
    return HoldoutQueries(histories, position[target].astype(np.int64), user)
