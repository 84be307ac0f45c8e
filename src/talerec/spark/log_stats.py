"""A log on a cluster as the driver sees it, and how the log's rows get into partitions.

The driver's memory grows with the number of items, and not with rows or users.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from talerec.data import Log, Vocabulary, are_equal
from talerec.errors import TalerecError
from talerec.models.content import Content
from talerec.models.core import Model
from talerec.models.tempo import Tempo
from talerec.runtime import Array
from talerec.spark.log_columns import Columns
from talerec.spark.messages import MESSAGES, Batches
from talerec.spark.partitions import (
    RowFiles,
    RowOptions,
    TaskLimits,
    UserPartitions,
    save_partition,
    send_rows,
)
from talerec.spark.read import Source, check_expressions, check_log, open_events, to_events
from talerec.spark.session import ClusterRun, map_rows, run_tasks
from talerec.spark.tempo_tasks import save_statistics
from talerec.spark.trends import TrendPlan, plan_trends
from talerec.spark.work_plan import WorkPlan

_SAMPLE_ROWS = 400  # rows of each partition that users are sampled from
_MAX_OVERSIZE = 8  # times the rows of a task that one user may have


@dataclass(frozen=True, eq=False)
class LogStats:
    """A log that was read, checked and cleaned: a Spark table of its rows, and statistics.

    Items have a position, their number in the vocabulary, and a rank by popularity, 0 the most
    popular.
    """

    events: DataFrame  # user, item (ids), time (microseconds), row_number, maybe weight
    unordered: DataFrame  # the same rows, with meaningless row numbers
    ids: pl.Series  # of items, by position
    position: Array  # of items, by rank
    item_counts: Array  # rows of each item, by rank
    time_range: tuple[int, int]  # of the first row and the last, microseconds
    unit: str  # that times were read in
    is_numeric: bool  # users are text, and all of them whole numbers
    mean_weight: float | None  # mean row weight; None if rows have no weights or equal ones
    weight_unit: float | None  # mean row weight even if all are equal; None without weights

    @property
    def n_rows(self) -> int:
        """The number of rows of the log."""
        return int(self.item_counts.sum())


class LogOptions(NamedTuple):
    """Options of reading and cleaning a log."""

    names: Columns  # the names of the columns
    ties: str  # order of a user's rows with equal times: "file" or "item"
    core: int | None  # least rows of a user and of an item (k-core); None for all
    drop_duplicates: bool  # drop rows that repeat user, item and time


def read_stats(run: ClusterRun, source: Source, options: LogOptions) -> LogStats:
    """Read, check and clean a log on the cluster; return its rows and statistics of its items.

    source: a Spark table, or the address of Parquet files. options: the columns and the cleaning.
    Rows are counted a second time if duplicates are dropped or a k-core is taken. The item table is
    saved in the run's folder. Raises InvalidLogError if the log cannot be used.
    """
    core, drop_duplicates = options.core, options.drop_duplicates
    with run.stage("read"):
        tables = open_events(run.session, source, options.names, options.ties)
    counts = _count_items(run, tables.unordered, "counts")
    totals = _sum_over_items(counts)
    unit, times = check_log(tables.ordered, options.names, totals)
    is_numeric = not totals["n_text_users"]
    items = Vocabulary.encode(counts["item"])[0]  # the items that remain keep their order
    unordered, events = (to_events(table, unit) for table in tables)
    if drop_duplicates:
        events = remove_duplicates(run, events)
    if core is not None:
        events = filter_k_core(run, events, core)
    if drop_duplicates or core is not None:
        unordered = events
        counts = _count_items(run, events, "cleaned")
        totals = _sum_over_items(counts)
        times = [totals["min_time"], totals["max_time"]]
    ranked = _rank_items(run.folder, items, counts)
    means = _mean_weights(totals)
    return LogStats(events, unordered, *ranked, (times[0], times[1]), unit, is_numeric, *means)


def select_rows(
    run: ClusterRun, stats: LogStats, events: DataFrame, *, every_item: bool = False
) -> LogStats:
    """Return statistics of a subset of a log's rows, as if it were a log of its own.

    run: the session and a folder, where the item table is saved. stats: of the whole log. events:
    the subset, a Spark table of user, item, time, row_number, maybe weight. every_item: number all
    items of the log, not only those of the subset. Users and items keep the order that they have in
    the whole log.
    """
    counts = _count_items(run, events, "counts")
    totals = _sum_over_items(counts)
    ranked = _rank_items(run.folder, Vocabulary(stats.ids), counts, every_item)
    times = (totals["min_time"], totals["max_time"])
    means = _mean_weights(totals)
    return LogStats(events, events, *ranked, times, stats.unit, stats.is_numeric, *means)


def _mean_weights(totals: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the mean row weight (None if all weights are equal), and the mean in any case.

    totals: sum_weight, min_weight, max_weight and n_counted (rows of weight above 0) of the whole
    log. Both are None if rows have no weights.
    """
    if "sum_weight" not in totals:
        return None, None
    mean = totals["sum_weight"] / totals["n_counted"]
    return None if are_equal(totals["min_weight"], totals["max_weight"]) else mean, mean


def _count_items(run: ClusterRun, events: DataFrame, name: str) -> pl.DataFrame:
    """Return counts and extremes of each item's rows, as a frame with a row per item id.

    events: rows with user, item, time, maybe weight. Columns of the frame: item; n_rows,
    n_empty_{column}, min_time, max_time, min_large_time, n_text_users, n_counted (rows of weight
    above 0) and more on weights. name: the subfolder of the run's folder in which Spark saves it.
    """
    run.save(name, events.groupBy("item").agg(*check_expressions(events)), "read")
    return run.read(name)


def _sum_over_items(counts: pl.DataFrame) -> dict[str, Any]:
    """Return counts and extremes of a log's rows by name, as n_rows or max_time.

    counts: a row per item, from `_count_items`. The prefix of a column tells how it is combined: n_
    and sum_ add up, min_ and max_ are extremes. The column item is left out.
    """
    combine = {"n": pl.Series.sum, "sum": pl.Series.sum, "min": pl.Series.min, "max": pl.Series.max}
    return {
        name: combine[name.partition("_")[0]](counts[name])
        for name in counts.columns
        if name != "item"
    }


def _rank_items(
    folder: Path, items: Vocabulary, counts: pl.DataFrame, every_item: bool = False
) -> tuple[pl.Series, Array, Array]:
    """Return item ids by position, and positions and row counts by popularity rank.

    A position is an item's number in the vocabulary; rank 0 is the item with the most rows. items:
    all items, in the order of positions; counts: a row per item with columns item (id) and
    n_counted (rows). Items without rows are left out unless `every_item`. Ids, positions and ranks
    are also saved as `items.parquet` in `folder`, for tasks to read.
    """
    n_rows = np.zeros(len(items), np.int64)
    n_rows[items.codes(counts["item"])] = counts["n_counted"].to_numpy()
    selected = np.arange(len(n_rows)) if every_item else np.flatnonzero(n_rows)
    items, n_rows = items.take(selected), n_rows[selected]
    position = np.argsort(-n_rows, kind="stable").astype(np.int32)
    rank = np.empty_like(position)
    rank[position] = np.arange(len(position), dtype=np.int32)
    table = {"id": items.ids, "position": np.arange(len(rank), dtype=np.int32), "rank": rank}
    pl.DataFrame(table).write_parquet(folder / "items.parquet")
    return items.ids, position, n_rows[position]


# -- cleaning --------------------------------------------------------------------------------------


def remove_duplicates(run: ClusterRun, events: DataFrame) -> DataFrame:
    """Return the rows without those that repeat an earlier row's user, item and time.

    events: a Spark table of user, item, time, row_number (its order), maybe weight. The result is
    saved in the run's folder.
    """
    first: list[Any] = [F.min("row_number").alias("row_number")]
    if "weight" in events.columns:
        first.append(F.min_by("weight", "row_number").alias("weight"))
    unique = events.groupBy("user", "item", "time").agg(*first)
    return run.save("unique", unique.select(events.columns), "read")


def filter_k_core(run: ClusterRun, events: DataFrame, k: int) -> DataFrame:
    """Return the k-core: remove users and items with fewer than `k` rows until none is left.

    events: a Spark table with user and item; each round is saved in the run's folder. Raises
    TalerecError if `k` is not a whole number of at least 1, or if no row is left.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise TalerecError(f"core is {k}; it takes a whole number from 1")
    n_rows, n_rounds = events.count(), 0
    while True:
        remaining = events
        for name in ("user", "item"):
            frequent = events.groupBy(name).count().where(F.col("count") >= k).select(name)
            remaining = remaining.join(frequent, name, "left_semi")
        events = run.save(f"core-{n_rounds}", remaining, "core")
        n_left, n_rounds = events.count(), n_rounds + 1
        if not n_left:
            raise TalerecError(f"nothing is left of the log after a {k}-core; use a smaller core")
        if n_left == n_rows:
            return events
        shutil.rmtree(run.folder / f"core-{n_rounds - 2}", ignore_errors=True)
        n_rows = n_left


# -- partitions ------------------------------------------------------------------------------------


class ClusterLog(NamedTuple):
    """A log whose rows are saved in partitions of users, and how the work on it is divided.

    A partition has the users of one Spark task.
    """

    run: ClusterRun  # the Spark session, a shared folder, and the seconds of stages
    stats: LogStats  # the log's rows as a Spark table, with counts of items
    ties: str  # order of a user's rows with equal times: "file" or "item"
    rows: RowFiles  # the files of the partitions
    n_partitions: int
    plan: WorkPlan  # ranges of items, one per task
    sampled_times: Array  # three rows: item (-1: any), time, log rows per sampled time

    def plan_trends(self) -> TrendPlan:
        """Return which task counts, for each row, the rows of its item within a time window.

        These trend counts are made in tasks that hold about `plan.limits.rows` rows each.
        """
        task_rows = self.plan.limits.rows
        return plan_trends(self.stats.item_counts, self.sampled_times, self.run.n_cores, task_rows)

    def merge(self) -> Log:
        """Return the rows of all partitions of users as one log in the driver, memory-mapped.

        Items are vocabulary positions, and users and items have their ids.
        """
        stats = self.stats
        ptr, item, time, weight, ids = self.rows.merge(self.n_partitions, stats.position)
        return Log(
            ptr, item, time, Vocabulary(ids), Vocabulary(stats.ids), unit=stats.unit,
            ties=self.ties, weight=weight, weight_unit=stats.weight_unit,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return what a saved model stores about its training rows, by name.

        Keys: users, items, rows (counts), first_time, last_time (microseconds), ties (order of
        simultaneous rows), time_read_as (unit of the times in the files); weighed (True) if row
        weights differ; weight_unit (mean row weight) if rows have weights, even equal ones.
        """
        stats, first_and_last = self.stats, self.stats.time_range
        sizes = self.rows.map_arrays("sizes", self.n_partitions)
        return {
            "users": sum(int(n_users) for n_users, _, _ in sizes),
            "items": len(stats.position),
            "rows": stats.n_rows,
            "first_time": first_and_last[0],
            "last_time": first_and_last[1],
            "ties": self.ties,
            "time_read_as": stats.unit,
            **({} if stats.mean_weight is None else {"weighed": True}),
            **({} if stats.weight_unit is None else {"weight_unit": stats.weight_unit}),
        }


def partition_users(
    run: ClusterRun, stats: LogStats, count: int, max_rows: int | None
) -> UserPartitions:
    """Return about `count` partitions of users with equally many rows, from a sample of rows.

    A partition is a range of sorted user ids, whose rows one Spark task holds. stats: the log's
    rows as a Spark table, with counts. max_rows: raise TalerecError if a user seems to have far
    more rows; None for no limit.
    """
    step = max(stats.n_rows // (_SAMPLE_ROWS * count), 1)
    is_sampled = F.pmod(F.xxhash64("user", "item", "time", "row_number"), F.lit(step)) == 0
    with run.stage("users"):
        counts = stats.unordered.where(is_sampled).groupBy("user").count().toArrow()
    sample = pl.DataFrame(counts)
    if max_rows is not None and not sample.is_empty():
        _refuse_huge_user(sample, step, max_rows)
    users = sample["user"].repeat_by(sample["count"]).explode()
    return UserPartitions.from_sample(users, count, is_numeric=stats.is_numeric)


def _refuse_huge_user(sample: pl.DataFrame, step: int, max_rows: int) -> None:
    """Raise TalerecError if a user seems to have far more rows than the `max_rows` of a task.

    Far more: 8 times. sample: columns user and count, from about every `step`th row of the log.
    """
    user, count = sample.sort("count").row(-1)
    if count * step > _MAX_OVERSIZE * max_rows and count > 8:
        raise TalerecError(
            f"user {user!r} has about {count * step:,} rows, and a task holds {max_rows:,}: "
            "leave that user out, raise `task_rows`, or fit tale, which uses only the latest "
            "max_history rows",
            "task_rows",
        )


def partition_rows(
    run: ClusterRun, stats: LogStats, model: Model, ties: str, limits: TaskLimits,
    *, every_row: bool,
) -> ClusterLog:  # fmt: skip
    """Send all rows to the partitions of their users, save them, and plan the work on them.

    A partition has all users of one Spark task. stats: the log's rows as a Spark table, with
    counts. model: may have `max_history`. every_row: also send the rows before each user's
    `max_history` latest, to save them; tempo uses all rows in any case. limits: what one task may
    hold. ties: "file" or "item", the order of a user's simultaneous rows.
    """
    has_statistics = isinstance(model, Tempo | Content)
    every_row = every_row or has_statistics  # they use all rows of a user
    max_history, task_rows = getattr(model, "max_history", 1), limits.rows
    count = max(run.n_cores, math.ceil(stats.n_rows / task_rows))
    users = partition_users(run, stats, count, task_rows if every_row else None)
    options = RowOptions(
        str(run.folder / "items.parquet"),
        by_item=ties == "item",
        max_history=None if every_row else max_history,
        mean_weight=stats.mean_weight,
    )
    rows = RowFiles(
        str(run.folder), len(stats.position), max_history, stats.time_range[1],
        has_weights=stats.mean_weight is not None,
    )  # fmt: skip
    n_popular = int(np.count_nonzero(stats.item_counts > task_rows))
    sent = map_rows(stats.events, lambda b: send_rows(b, users, options, task_rows), MESSAGES)

    def save(partition: int, batches: Batches) -> None:
        """Save the rows sent to a partition of users, and for some models statistics."""
        log = save_partition(batches, partition, users, rows, n_popular)
        if has_statistics:
            save_statistics(log, partition, rows)

    n_partitions = users.n_partitions
    with run.stage("rows"):
        run_tasks(sent, n_partitions, save)
    _, n_rows, n_pairs = np.sum(list(rows.map_arrays("sizes", n_partitions)), axis=0)
    _require_all_rows(int(n_rows), stats.n_rows, is_cut=not every_row)
    plan = WorkPlan.build(run.n_cores, stats.item_counts, int(n_pairs), limits)
    sampled = np.concatenate(list(rows.map_arrays("times", n_partitions)), axis=1)
    return ClusterLog(run, stats, ties, rows, n_partitions, plan, sampled)


def _require_all_rows(n_arrived: int, n_counted: int, *, is_cut: bool) -> None:
    """Raise TalerecError if the log changed between counting its rows and sending them.

    n_arrived: rows sent to partitions of users; n_counted: rows counted before; is_cut: a user's
    early rows were not sent, so that fewer may arrive.
    """
    if n_arrived > n_counted or (n_arrived < n_counted and not is_cut):
        raise TalerecError(
            f"the log had {n_counted:,} rows when they were counted and {n_arrived:,} when they "
            "were read: do not write to it during a fit"
        )
