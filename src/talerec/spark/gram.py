"""Trend counts and pairs of rows on a cluster: its tasks, which need no Spark.

What the Gram kernels need of every row lies in files that all tasks map. Each partition of users
writes its rows to their place in the files of a *group* of partitions; then a task counts some
target items in all rows of a group, as a thread of one machine does. No pair of rows moves between
machines, and sums of pairs move once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data import Log, group_rows
from talerec.gram import (
    BOTH,
    ONLY_G,
    GramTerm,
    Pairs,
    SparseSums,
    accumulate_targets,
    trend_counts,
    trend_span,
)
from talerec.models.linear import RidgeModel
from talerec.models.tempo import LogStatistics, Tempo
from talerec.runtime import Array
from talerec.spark import messages
from talerec.spark.messages import Batches
from talerec.spark.partitions import RowFiles, TargetRange, balanced_edges, cut_times

_GROUP_ROWS = 100_000_000  # rows of a group: about 40 bytes of each are mapped
_LOOKUP_TABLES = ("lag_weights",)  # arrays of pairs that do not have one entry per row
_NO_ITEM = -1  # the item of a row that a Gram term leaves out


# -- trend -----------------------------------------------------------------------------------------


class TrendPlan(NamedTuple):
    """Which task computes the trend counts of which rows of a log.

    The trend count of a row is the number of rows of its item within a time window around it. A
    task has all rows of a range of items, or one slice of time of a popular item's rows.
    """

    edges: Array  # of ranges of items, by rank; the first edge is the number of popular items
    cuts: list[Array]  # times that cut the rows of each popular item into slices

    @property
    def n_ranges(self) -> int:
        """How many tasks have a range of items; tasks with slices are numbered after them."""
        return len(self.edges) - 1

    @property
    def slice_starts(self) -> Array:
        """Number of each popular item's first task; the last entry is the number of all tasks."""
        return np.cumsum([self.n_ranges, *(len(cuts) + 1 for cuts in self.cuts)])

    @property
    def n_tasks(self) -> int:
        """How many tasks there are: ranges of items, and slices of time of popular items."""
        return int(self.slice_starts[-1])

    def sibling_slices(self, task: int) -> range | None:
        """Return the tasks with time slices of the same popular item as this task.

        None if the task has a range of items.
        """
        if task < self.n_ranges:
            return None
        starts = self.slice_starts
        popular = int(np.searchsorted(starts, task, "right"))
        return range(starts[popular - 1], starts[popular])

    def assign(self, item: Array, time: Array) -> Array:
        """Return the task of each row, given by its item (popularity rank) and its time."""
        tasks = np.searchsorted(self.edges, item, "right") - 1
        for popular, (cuts, start) in enumerate(zip(self.cuts, self.slice_starts, strict=False)):
            is_item = item == popular
            tasks[is_item] = start + np.searchsorted(cuts, time[is_item])
        return tasks


def plan_trends(item_counts: Array, sampled: Array, n_cores: int, task_rows: int) -> TrendPlan:
    """Return which task counts which rows, at most about `task_rows` rows per task.

    An item with more rows is cut into slices of time. item_counts: rows of each item by popularity
    rank; sampled: times of all partitions, as `partitions.cut_times` takes them.
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

    only_popular: send only rows of items that are cut into slices of time. Otherwise all rows are
    sent, and their order is saved, because trend counts come back in it.
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
    """Save the times of one time slice of a popular item, sorted, as `times-{task}`.

    batches: messages with items and times, as `send_trend_rows` sends them.
    """
    _, time = messages.concatenate_messages(batches, *_TREND_DTYPES)
    messages.save_array(folder, f"times-{task}", np.sort(time))


def send_trend_counts(
    batches: Batches, task: int, plan: TrendPlan, window: float, side: str, folder: str
) -> Iterator[pa.RecordBatch]:
    """Yield messages with the trend counts of a task's rows, to the partitions that sent them.

    A trend count (TALE, Eq. 14) is the number of rows of the same item within `window` days: before
    a row, and also after it if `side` is "both". folder: of the sorted times of time slices.
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
    """Save the trend counts of a partition in the order of its rows.

    batches: messages of `send_trend_counts`, whose counts have the order saved as `trend_order`.
    """
    (received,) = messages.concatenate_messages(batches, np.uint32)
    counts = np.empty(len(received), np.int64)
    counts[rows.read_array("trend_order", partition)] = received
    rows.save_array("trend", partition, counts)


# -- pairs of rows ---------------------------------------------------------------------------------


#: Builds Gram terms from some users' rows, and the weight of simultaneous rows in K.
TermBuilder = Callable[[Log], tuple[list[GramTerm], float]]


def build_model_terms(model: RidgeModel, log: Log) -> tuple[list[GramTerm], float]:
    """Return the terms (summands) of a model's Gram, G = S'S and K = S'T, of a log; and 0.

    The 0 is what simultaneous rows add to the sum of K, which only tempo has (see
    `build_tempo_terms`).
    """
    return model.gram_terms(log), 0.0


def build_tempo_terms(
    model: Tempo, statistics: LogStatistics, log: Log
) -> tuple[list[GramTerm], float]:
    """Return tempo's Gram term (a summand of G = S'S, K = S'T) as a list, and a weight.

    The weight is what simultaneous rows add to the sum of K. log: the rows to sum, maybe a part of
    a log; statistics: of the whole log.
    """
    term, simultaneous = model.gram_term(log, statistics.median_interval, statistics.is_joint)
    return [term], simultaneous


class RowLayout(NamedTuple):
    """Where each partition of users has its rows in the files that all tasks read.

    Partitions are divided into numbered groups; a group has one file for each array of its rows.
    """

    folder: str
    group: list[int]  # number of each partition's group
    first: list[int]  # number of each partition's first row in its group
    group_sizes: list[int]  # rows of each group
    longest: int  # rows of the user with the most rows

    @classmethod
    def build(
        cls, folder: str | Path, latest: Sequence[Array], max_rows: int = _GROUP_ROWS
    ) -> RowLayout:
        """Put consecutive partitions into groups of at most `max_rows` rows, at least one each.

        latest: of each partition, its number of rows, and that of its user with the most rows.
        """
        group, first, group_sizes = [], [], [0]
        for n_rows, _ in latest:
            if group_sizes[-1] and group_sizes[-1] + n_rows > max_rows:
                group_sizes.append(0)
            group.append(len(group_sizes) - 1)
            first.append(group_sizes[-1])
            group_sizes[-1] += int(n_rows)
        longest = max(int(user_rows) for _, user_rows in latest)
        return cls(str(folder), group, first, group_sizes, longest)

    def file(self, group: int, term: int, name: str) -> Path:
        """Return the raw file of one array (`name`, a field of `Pairs`) of a group's rows.

        term: number of the Gram term, a summand of G = S'S and K = S'T, whose pairs need the array.
        """
        return Path(self.folder) / f"pairs-{group}-{term}-{name}.raw"


def create_pair_files(builder: TermBuilder, rows: RowFiles, layout: RowLayout) -> list[bool]:
    """Create files of zeros, to which partitions write what the pairs of each Gram term need.

    A Gram term is a summand of G = S'S and K = S'T, added up from pairs of a user's rows. builder:
    returns the terms of some rows. Returns, for each term, whether its K equals G.
    """
    terms = _example_terms(builder, rows, layout)
    for number, term in enumerate(terms):
        dtypes = {name: array.dtype for name, array in _row_arrays(term.pairs).items()}
        for name, dtype in {**dtypes, "item": np.dtype(np.int32)}.items():
            for group, n_rows in enumerate(layout.group_sizes):
                create_file(layout.file(group, number, name), n_rows * dtype.itemsize)
    return [term.target_equals_source for term in terms]


def create_file(path: Path, size: int) -> None:
    """Create a file of `size` zero bytes that every user of the operating system may write to."""
    with path.open("wb") as out:
        out.truncate(size)
    path.chmod(0o666)


def write_partition(
    builder: TermBuilder, rows: RowFiles, partition: int, layout: RowLayout
) -> None:
    """Write what the pairs of each Gram term need of a partition's rows to its group's files.

    A Gram term is a summand of G = S'S and K = S'T; builder: returns the terms of some rows. A
    group of partitions shares files; arrays of integers hold row numbers, which are shifted to
    those of the group. A second run writes identical bytes. The weight of simultaneous rows in K is
    saved, too.
    """
    log = rows.load_latest(partition)
    terms, simultaneous = builder(log)
    messages.save_array(layout.folder, f"simultaneous-{partition}", np.array([simultaneous]))
    group, first = layout.group[partition], layout.first[partition]
    for number, term in enumerate(terms):
        item = np.full(log.rows, _NO_ITEM, np.int32)
        item[: term.log.rows] = term.log.item
        write_at(layout.file(group, number, "item"), first, item)
        for name, array in _row_arrays(term.pairs).items():
            is_row_number = array.dtype.kind == "i"
            shifted = array + array.dtype.type(first) if is_row_number else array
            write_at(layout.file(group, number, name), first, shifted)


def write_at(path: Path, first: int, array: Array) -> None:
    """Write an array's bytes over those of an existing file, from entry `first` on."""
    with path.open("r+b") as out:
        out.seek(first * array.itemsize)
        messages.write_bytes(out, array)


class TargetSums(NamedTuple):
    """Sums over pairs of rows, for a range of target items, to be multiplied by `share`.

    Rows are targets, columns sources: M, whose sum M + M' is the Gram matrix G = S'S, and K = S'T
    transposed. They belong to one Gram term, a summand of G and K with the factor `share`.
    """

    sums: SparseSums
    share: float
    target_equals_source: bool  # K is G


def sum_targets(
    builder: TermBuilder, rows: RowFiles, layout: RowLayout, targets: TargetRange
) -> Iterator[TargetSums]:
    """Yield, for each Gram term, the sums over pairs of rows of a range of target items.

    A Gram term is a summand of G = S'S and K = S'T (source x target). targets: the range, and the
    group of partitions whose rows are summed. builder: returns the terms of some rows; layout: the
    files of the groups.
    """
    group, lo, hi = targets
    for number, term in enumerate(_example_terms(builder, rows, layout)):
        pairs = _map_pairs(term.pairs, layout, group, number)
        item = _map_file(layout.file(group, number, "item"), np.dtype(np.int32))
        parts = ONLY_G if term.target_equals_source else BOTH
        sums = accumulate_targets(item, pairs, rows.n_items, layout.longest, lo, hi, parts)
        yield TargetSums(sums, term.share, term.target_equals_source)


def _example_terms(builder: TermBuilder, rows: RowFiles, layout: RowLayout) -> list[GramTerm]:
    """Return the Gram terms of an artificial user who has as many rows as the longest history.

    A Gram term is a summand of G = S'S and K = S'T. They have the kernels and lookup tables of
    every user's terms, but other arrays of rows.
    """
    terms, _ = builder(rows.example_log(layout.longest))
    return terms


def _map_pairs(pairs: Pairs, layout: RowLayout, group: int, term: int) -> Pairs:
    """Return `pairs` with the arrays of one user's rows replaced by those of a group's files.

    group: number of a group of partitions of users; term: number of the Gram term (a summand of G =
    S'S and K = S'T). Files are mapped copy-on-write.
    """
    mapped = {
        id(array): _map_file(layout.file(group, term, name), array.dtype)
        for name, array in _row_arrays(pairs).items()
    }
    all_pairs: Pairs = _replace_arrays(pairs, lambda _, array: mapped.get(id(array), array))
    return all_pairs


def _map_file(path: Path, dtype: np.dtype[Any]) -> Array:
    """Return a file of numbers as an array, mapped copy-on-write: kernels need it writable."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "c"))


def _row_arrays(pairs: Pairs) -> dict[str, Array]:
    """Return the distinct arrays of `pairs` with one entry per row, by dotted field name."""
    arrays: dict[int, tuple[str, Array]] = {}

    def note(name: str, array: Array) -> Array:
        """Remember an array under its name, unless it is a lookup table; return it unchanged."""
        if name.rpartition(".")[2] not in _LOOKUP_TABLES:
            arrays.setdefault(id(array), (name, array))
        return array

    _replace_arrays(pairs, note)
    return dict(arrays.values())


def _replace_arrays(value: Any, replace: Callable[[str, Array], Array], name: str = "") -> Any:
    """Return nested named tuples with every array replaced by `replace(name, array)`.

    name: the dotted path of field names from the outermost tuple to the array.
    """
    if isinstance(value, np.ndarray):
        return replace(name, value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        return type(value)(
            *(_replace_arrays(part, replace, f"{name}.{key}".lstrip(".")) for key, part in fields)
        )
    return value
