"""Trend counts of rows on a cluster: its tasks, which need no Spark.

The trend count of a row is the number of rows of its item within a time window around it. Rows go
to the task of their item, which counts, and the counts go back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data import group_rows
from talerec.gram import trend_counts, trend_span
from talerec.runtime import Array
from talerec.spark import messages
from talerec.spark.messages import Batches
from talerec.spark.partitions import RowFiles, cut_times
from talerec.spark.work_plan import balanced_edges


class TrendPlan(NamedTuple):
    """The division of trend counts over Spark tasks, by ranges of items and slices of time.

    The trend count of a row is the number of rows of its item within a time window around it. A
    task has all rows of a range of items, or one slice of time of a popular item's rows. Items are
    popularity ranks, 0 the most popular.
    """

    edges: Array  # of ranges of items, by rank; the first edge is the number of popular items
    cuts: list[Array]  # times that cut the rows of each popular item into slices

    @property
    def n_ranges(self) -> int:
        """The number of tasks with a range of items; tasks with time slices come after them."""
        return len(self.edges) - 1

    @property
    def first_slice_tasks(self) -> Array:
        """Number of each popular item's first task; the last entry is the number of all tasks.

        A popular item has a task per time slice, numbered after the tasks with ranges of items.
        """
        return np.cumsum([self.n_ranges, *(len(cuts) + 1 for cuts in self.cuts)])

    @property
    def n_tasks(self) -> int:
        """The number of tasks: ranges of items, and slices of time of popular items."""
        return int(self.first_slice_tasks[-1])

    def sibling_slices(self, task: int) -> range | None:
        """Return the tasks with time slices of the same popular item as the task number `task`.

        A range of task numbers; None if the task has a range of items.
        """
        if task < self.n_ranges:
            return None
        starts = self.first_slice_tasks
        popular = int(np.searchsorted(starts, task, "right"))
        return range(starts[popular - 1], starts[popular])

    def assign(self, item: Array, time: Array) -> Array:
        """Return the number of the task of each row, given by its item (popularity rank) and time.

        `edges` are those of the ranges of items, `cuts` the times between slices of popular items.
        """
        tasks = np.searchsorted(self.edges, item, "right") - 1
        for popular, (cuts, start) in enumerate(
            zip(self.cuts, self.first_slice_tasks, strict=False)
        ):
            is_item = item == popular
            tasks[is_item] = start + np.searchsorted(cuts, time[is_item])
        return tasks


def plan_trends(item_counts: Array, sampled: Array, n_cores: int, task_rows: int) -> TrendPlan:
    """Return which task counts the trends of which rows, with about `task_rows` rows per task.

    The trend count of a row is the number of rows of its item around its time. An item with more
    rows than a task holds is cut into slices of time. item_counts: rows of each item by popularity
    rank; sampled: three rows with item, time, and number of log rows that the time stands for.
    """
    n_popular = int(np.count_nonzero(item_counts > task_rows))
    others = item_counts[n_popular:]
    n_ranges = max(n_cores, math.ceil(int(others.sum()) / task_rows))
    cuts = [
        cut_times(sampled, item, math.ceil(int(item_counts[item]) / task_rows))
        for item in range(n_popular)
    ]
    if not len(others):
        return TrendPlan(np.array([n_popular] * 2), cuts)
    return TrendPlan(n_popular + balanced_edges(others.astype(np.float64), n_ranges), cuts)


def send_trend_rows(
    rows: RowFiles, partition: int, plan: TrendPlan, *, only_popular: bool
) -> Iterator[pa.RecordBatch]:
    """Yield messages with the items and times of a partition's rows, to their tasks of `plan`.

    A partition is a set of users; `plan` tells which task makes the trend counts of which rows
    (rows of the same item around a row's time). only_popular: send only rows of items that are cut
    into slices of time. Otherwise all rows are sent, and their order is saved, because trend counts
    come back in it.
    """
    log = rows.load_latest(partition)
    ptr, order = group_rows(plan.assign(log.item, log.time), plan.n_tasks)
    if not only_popular:
        rows.save_array("trend_order", partition, order.astype(np.int32))
    for task in np.flatnonzero(np.diff(ptr)):
        if task >= plan.n_ranges or not only_popular:
            at = order[ptr[task] : ptr[task + 1]]
            yield messages.pack_message(int(task), partition, log.item[at], log.time[at])


_TREND_DTYPES = (np.int32, np.int64)


def save_sorted_times(batches: Batches, folder: str, task: int) -> None:
    """Save the times of one time slice of a popular item, sorted, as array `times-{task}`.

    A popular item has more rows than one Spark task holds, so that several tasks have slices.
    batches: what other tasks sent with `send_trend_rows` to this task: items and times.
    """
    _, time = messages.concatenate_messages(batches, *_TREND_DTYPES)
    messages.save_array(folder, f"times-{task}", np.sort(time))


def send_trend_counts(
    batches: Batches, task: int, plan: TrendPlan, window: float, side: str, folder: str
) -> Iterator[pa.RecordBatch]:
    """Yield messages with the trend counts of a task's rows, to the partitions that sent them.

    A trend count (TALE, Eq. 14) is the number of rows of the same item within `window` days: before
    a row, and also after it if `side` is "both". batches: the rows, as `send_trend_rows` sends
    them; plan: tells whether the task has a time slice of an item; folder: of the sorted times of
    slices.
    """
    received = messages.unpack_messages(batches, *_TREND_DTYPES)
    if not received:
        return
    item, time = (np.concatenate([arrays[x] for _, arrays in received]) for x in (0, 1))
    slices = plan.sibling_slices(task)
    if slices is None:
        lowest = item.min()
        n_items = int(item.max() - lowest) + 1
        counts = trend_counts(item - lowest, time, n_items, window, side)
    else:
        counts = count_in_slices(time, slices, window, side, folder)
    ends = np.cumsum([len(arrays[0]) for _, arrays in received])
    for (partition, _), part in zip(received, np.split(counts, ends[:-1]), strict=True):
        yield messages.pack_message(partition, task, part.astype(np.uint32))


def count_in_slices(
    time: Array, slices: Iterable[int], window: float, side: str, folder: str
) -> Array:
    """Return the trend counts of some rows of one item, given by their times (microseconds).

    A trend count (TALE, Eq. 14) is the number of the item's rows within `window` days: before a
    row, and also after it if `side` is "both". slices: the tasks that have saved the item's times,
    sorted, as `times-{task}` in the folder.
    """
    before, after = trend_span(window, side)
    counts = np.zeros(len(time), np.int64)
    for slice in slices:
        others = messages.map_array(folder, f"times-{slice}")
        counts += np.searchsorted(others, time + after, "right")
        counts -= np.searchsorted(others, time - before, "left")
    return counts


def save_trend_counts(batches: Batches, partition: int, rows: RowFiles) -> None:
    """Save the trend counts of a partition (a set of users) in the order of its rows.

    A trend count is the number of rows of a row's item around its time. batches: what tasks sent
    with `send_trend_counts`, in the order saved as `trend_order`. The array is saved as `trend`.
    """
    (received,) = messages.concatenate_messages(batches, np.uint32)
    counts = np.empty(len(received), np.int64)
    counts[rows.read_array("trend_order", partition)] = received
    rows.save_array("trend", partition, counts)
