"""The tasks of a fit on a cluster: plain functions of arrays and files, which need no Spark.

A task calls what one machine calls, on a part of the work, and hands on arrays (see `blocks`). Items are numbered by
popularity rank, 0 the most popular; a *part* is some of the users, a *block* a range of items. Of two items the
rarer, whose number is higher, owns their pair, so that the most popular item owns nothing but itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.gram import row_weights
from talerec.models.core.base import Model
from talerec.runtime.arrays import Array, Matrix, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.solvers.local import local_columns
from talerec.solvers.pieces import local_pieces
from talerec.spark import blocks
from talerec.spark import triangles as halves
from talerec.spark.blocks import Batches, load_array, read_array, save_array
from talerec.spark.gram import Counting, Layout, count_targets
from talerec.spark.partitions import Rows
from talerec.spark.sizes import Counts

_WEIGHT_ROWS = 2**16  # weights that are given external ids at a time


# -- trend -----------------------------------------------------------------------------------------


class TrendPlan(NamedTuple):
    """Which rows are counted together: items from one edge to the next; a popular item's rows in slices of time."""

    edges: Array  # of items by rank; the first is the number of popular items
    cuts: list[Array]  # of the times of each popular item

    @property
    def buckets(self) -> int:
        """How many tasks count items that are not popular."""
        return len(self.edges) - 1

    @property
    def total(self) -> int:
        """How many tasks count."""
        return self.buckets + sum(len(cuts) + 1 for cuts in self.cuts)

    def slices(self, task: int) -> range | None:
        """The tasks that count rows of the item that a task counts; None where it counts several items."""
        first = self.buckets
        for cuts in self.cuts:
            if first <= task <= first + len(cuts):
                return range(first, first + len(cuts) + 1)
            first += len(cuts) + 1
        return None

    def task_of(self, item: Array, time: Array) -> Array:
        """The task that counts each row."""
        found = np.searchsorted(self.edges, item, "right") - 1
        first = self.buckets
        for popular, cuts in enumerate(self.cuts):
            mine = item == popular
            found[mine] = first + np.searchsorted(cuts, time[mine])
            first += len(cuts) + 1
        return found


def trend_cells(
    rows: Rows, part: int, plan: TrendPlan, *, popular: bool
) -> Iterator[pa.RecordBatch]:
    """Send the rows of a part to the tasks that count them: all, or those of popular items alone. Counts come back in that order."""
    log = rows.newest(part)
    ptr, order = row_kernels.group_rows(plan.task_of(log.item, log.time), plan.total)
    if not popular:
        rows.save_array("asked", part, order.astype(np.int32))
    for task in np.flatnonzero(np.diff(ptr)):
        if task >= plan.buckets or not popular:
            at = order[ptr[task] : ptr[task + 1]]
            yield blocks.cells(int(task), part, log.item[at], log.time[at])


_TREND = (np.int32, np.int64)


def save_sorted_times(batches: Batches, folder: str, task: int) -> None:
    """Save the times of one slice of a popular item in order."""
    _, time = blocks.chained(batches, *_TREND)
    save_array(folder, f"times-{task}", np.sort(time))


def counted_cells(
    batches: Batches, task: int, plan: TrendPlan, window: float, side: str, folder: str
) -> Iterator[pa.RecordBatch]:
    """Eq. 14 for all rows of some items, or of a slice of one: the counts go back to the parts."""
    found = blocks.arrays_of(batches, *_TREND)
    if not found:
        return
    item, time = (np.concatenate([arrays[x] for _, arrays in found]) for x in (0, 1))
    slices = plan.slices(task)
    if slices is None:
        lowest = item.min()
        several = int(item.max() - lowest) + 1
        counts = row_weights.trend_counts(item - lowest, time, several, window, side)
    else:
        counts = sliced_counts(time, slices, window, side, folder)
    ends = np.cumsum([len(arrays[0]) for _, arrays in found])
    for (part, _), mine in zip(found, np.split(counts, ends[:-1]), strict=True):
        yield blocks.cells(part, task, mine.astype(np.uint32))


def sliced_counts(
    time: Array, slices: Iterable[int], window: float, side: str, folder: str
) -> Array:
    """Eq. 14 for rows of one item, whose times lie in order in the files of some slices."""
    before, after = row_weights.trend_span(window, side)
    counts = np.zeros(len(time), np.int64)
    for slice in slices:
        others = load_array(folder, f"times-{slice}")
        counts += np.searchsorted(others, time + after, "right")
        counts -= np.searchsorted(others, time - before, "left")
    return counts


def save_counts(batches: Batches, part: int, rows: Rows) -> None:
    """Save the trend counts of a part in the order of its rows."""
    (count,) = blocks.chained(batches, np.uint32)
    counts = np.empty(len(count), np.int64)
    counts[rows.asked(part)] = count
    rows.save_array("trend", part, counts)


# -- Gram ------------------------------------------------------------------------------------------


def gram_cells(
    counting: Counting, rows: Rows, layout: Layout, counts: Counts, number: int, edges: Array
) -> Iterator[pa.RecordBatch]:
    """Count some targets: pairs that they own are saved, those of rarer sources go to the blocks of their owners."""
    group, lo, hi = counts
    for summand, counted in enumerate(count_targets(counting, rows, layout, group, lo, hi)):
        own, others = halves.split(counted, lo, hi)
        for name, array in own._asdict().items():
            save_array(layout.folder, f"own_{name}-{number}-{summand}", array)
        yield from halves.line_cells(others, edges, number * _SUMMANDS + summand)


_SUMMANDS = 2  # that a Gram has at most


class Summing(NamedTuple):
    """What is summed: by which tasks it was counted, in blocks of owners with these edges; of each summand, whether its K is G."""

    counts: Sequence[Counts]
    edges: Array
    alike: Sequence[bool]
    folder: str


def owner_sums(batches: Batches, block: int, summing: Summing, n: int) -> None:
    """Sum what all tasks found for one block of owners, and save it."""
    lo, hi = int(summing.edges[block]), int(summing.edges[block + 1])
    found = found_lines(batches, lo, hi, summing)
    halves.save_block(halves.summed(found, lo, hi, n), lo, block, summing.folder)


def found_lines(batches: Batches, lo: int, hi: int, summing: Summing) -> list[halves.Found]:
    """What tasks saved for the owners lo..hi, and what they sent."""
    counts, _, alike, folder = summing
    found = [
        halves.Found(lines, halves.BOTH if is_alike else halves.INTO)
        for summand, is_alike in enumerate(alike)
        for lines in _own_lines(counts, summand, lo, hi, folder)
    ]
    for part, arrays in blocks.arrays_of(batches, *halves.KINDS):
        way = halves.BOTH if alike[part % _SUMMANDS] else halves.OUT
        found.append(halves.Found(arrays, way))
    return found


def _own_lines(
    counts: Sequence[Counts], summand: int, lo: int, hi: int, folder: str
) -> Iterator[list[Array]]:
    """The lines that tasks have saved for the owners lo..hi: owner, length, columns, values."""
    for number, (_, first, last) in enumerate(counts):
        a, b = max(first, lo), min(last, hi)
        if a < b:
            starts, column, value = (
                load_array(folder, f"own_{name}-{number}-{summand}")
                for name in halves.Lines._fields
            )
            starts = starts[a - first : b - first + 1]
            span = slice(starts[0], starts[-1])
            owner = np.arange(a, b, dtype=np.int32)
            yield [owner, np.diff(starts), column[span], value[span].reshape(-1)]


def degree_order(row_counts: Array, column_counts: Iterable[Array], position: Array) -> Array:
    """The place of each item when all are ordered by their entries in G, most first, as the local solver does.

    Entries are those of an item's row of the half, and those of its column in each block; `position` decides ties.
    """
    entries = row_counts.copy()
    for counts in column_counts:
        entries[: len(counts)] += counts
    place = np.empty(len(entries), np.int32)
    place[np.lexsort((position, -entries))] = np.arange(len(entries))
    return place


def owned_counts(block: int, lo: int, folder: str) -> None:
    """Save how many entries of a block of G each item would own, were items numbered in their degree order."""
    place, column = load_array(folder, "degree_order"), load_array(folder, f"column-{block}")
    counts = load_array(folder, f"row_count-{block}")
    row = np.repeat(np.arange(lo, lo + len(counts), dtype=np.int32), counts)
    owner = np.where(place[row] > place[column], row, column)
    save_array(folder, f"owned-{block}", np.bincount(owner, minlength=len(place)))


def write_block(block: int, start: int, folder: str) -> None:
    """Copy a block of G to its place in the files of all blocks; a second run writes identical bytes."""
    for name in ("column", "value"):
        array = load_array(folder, f"{name}-{block}")
        with (Path(folder) / f"{name}.raw").open("r+b") as out:
            out.seek(start * array.itemsize)
            blocks.copy_to(out, array)


# -- solve -----------------------------------------------------------------------------------------


class SolveSettings(NamedTuple):
    """What the local solver is told."""

    neighbors: int
    entries: int  # of K, in all
    room: int  # bytes of G that a task may hold; a larger half is read in pieces


def solved_cells(
    batches: Batches,
    block: int,
    targets: Array,
    sources: Array,
    settings: SolveSettings,
    own: Callable[[int, int], tuple[Array, Array, Array]],
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Solve one block of targets from their columns of K and the half of G that all tasks map; weights go on by source.

    own: the entries of K of pairs that targets own; the others come in batches.
    """
    lo, hi = int(targets[block]), int(targets[block + 1])
    position = read_array(folder, "position")  # of each rank
    sent = halves.sent_entries(batches, lo, hi)
    target, source, value = (
        np.concatenate([mine, *others]) for mine, others in zip(own(lo, hi), sent, strict=True)
    )
    columns = columns_of(target, source, value, lo, hi, position)
    source, target, weight = _solved(columns, settings, folder, lo, hi)
    source, target = position[source], position[target]
    ptr, order = row_kernels.group_rows(source, len(position))
    bounds = ptr[sources]
    for number in np.flatnonzero(np.diff(bounds)):
        at = order[bounds[number] : bounds[number + 1]]
        yield blocks.cells(int(number), block, source[at], target[at], weight[at])


def columns_of(
    target: Array, source: Array, value: Array, lo: int, hi: int, position: Array
) -> tuple[Array, Array, Array]:
    """Columns lo..hi of K among all columns, each with its sources in the order of one machine: by position."""
    n = len(position)
    _, order = row_kernels.group_rows(position[source], n)
    ptr, among = row_kernels.group_rows(target[order], n)
    order = order[among]
    assert ptr[hi] - ptr[lo] == len(target), "a target is in another block"
    return shrink_indptr(ptr), source[order], value[order]


_ENTRY = 12  # bytes of an entry of G: its column and its value


def _solved(
    K: tuple[Array, Array, Array], settings: SolveSettings, folder: str, lo: int, hi: int
) -> tuple[Array, Array, Array]:
    """Weights to the targets lo..hi (source, target, weight), with all of the half of G at hand or piece by piece."""
    starts, lengths, ridge = (read_array(folder, name) for name in ("starts", "owned", "ridge"))
    told = (lengths, K, ridge, settings.neighbors, settings.entries, lo, hi)
    if starts[-1] * _ENTRY <= settings.room or settings.neighbors >= len(ridge):
        return local_columns(_mapped_half(folder, starts), *told)
    with ExitStack() as files:
        column, value = (
            files.enter_context((Path(folder) / f"{name}.raw").open("rb"))
            for name in ("column", "value")
        )

        def read(a: int, b: int) -> tuple[Array, Array]:
            span = (int(starts[a]), int(starts[b] - starts[a]))
            return _read(column, np.int32, *span), _read(value, np.float64, *span)

        pieces = list(local_pieces(starts, read, settings.room // _ENTRY, *told))
    source, target, weight = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return source, target, weight


def _read(file: BinaryIO, kind: type, first: int, count: int) -> Array:
    """Entries of an open file of numbers."""
    file.seek(first * np.dtype(kind).itemsize)
    return np.fromfile(file, kind, count)


def _mapped_half(folder: str, starts: Array) -> tuple[Array, Array, Array]:
    """Half of G, mapped from its files: where rows start, columns, values."""
    types = {"column": np.int32, "value": np.float64}
    column, value = (
        np.memmap(Path(folder) / f"{name}.raw", kind, "c", shape=(int(starts[-1]),))
        if starts[-1]
        else np.empty(0, kind)
        for name, kind in types.items()
    )
    return starts, np.asarray(column), np.asarray(value)


def save_weights(batches: Batches, block: int, sources: Array, n: int, folder: str) -> Matrix:
    """Save the weights of one block of sources, ordered by source and target."""
    lo, hi = int(sources[block]), int(sources[block + 1])
    source, target, weight = blocks.chained(batches, np.int32, np.int32, np.float32)
    _, order = row_kernels.group_rows(target, n)
    ptr, among = row_kernels.group_rows(source[order] - np.int32(lo), hi - lo)
    order = order[among]
    B = sparse.csr_array((weight[order], target[order], shrink_indptr(ptr)), shape=(hi - lo, n))
    save_array(folder, f"weight_count-{block}", np.diff(B.indptr).astype(np.int64))
    save_array(folder, f"target-{block}", B.indices)
    save_array(folder, f"weight-{block}", B.data)
    return B


def named_weights(
    B: Matrix, lo: int, ids: pl.Series, factor: Array | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Weights of the sources from `lo` on with external ids; `factor`: what those to each target are multiplied by."""
    source = np.repeat(np.arange(lo, lo + B.shape[0]), np.diff(B.indptr))
    weight = B.data if factor is None else B.data * factor[B.indices]
    for a in range(0, len(source), _WEIGHT_ROWS):
        some = slice(a, a + _WEIGHT_ROWS)
        frame = pl.DataFrame(
            {"source": ids[source[some]], "target": ids[B.indices[some]], "weight": weight[some]}
        )
        yield from blocks.in_schema(frame, schema)


# -- recommending ----------------------------------------------------------------------------------


def recommend_users(
    model: Model, rows: pl.DataFrame, order: Sequence[str], k: int, options: dict[str, Any]
) -> pl.DataFrame:
    """The next items of users from all their rows: user, item (a position, -1 where unknown), time, place, maybe weight."""
    users, user = Vocabulary.encode(rows["user"])
    rows = rows.with_columns(pl.Series("user", user)).sort("user", *order)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    item, time = (rows[name].to_numpy(writable=True) for name in ("item", "time"))
    weight = rows["weight"].to_numpy(writable=True) if "weight" in rows.columns else None
    items = model.fitted.items
    log = Log(ptr.astype(np.int64), item, time, users, items, weight=weight)
    model._fitted = replace(model.fitted, log=log)
    return model.recommend(users.ids, k, **options)
