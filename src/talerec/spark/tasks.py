"""The tasks of a fit on a cluster: plain functions of arrays and files, which need no Spark.

A task calls what one machine calls, on a part of the work, and hands on arrays (see `blocks`). Items are numbered by
popularity rank, 0 the most popular; a *part* is some of the users, a *block* a range of items. Of two items the
rarer, whose number is higher, owns their pair, so that the most popular item owns nothing but itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.gram import row_weights
from talerec.gram.gram import Gram
from talerec.models.base import Model
from talerec.models.linear import Solved
from talerec.models.tempo import Tempo
from talerec.runtime.arrays import Array, Matrix, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.solvers.local import local_columns
from talerec.solvers.pieces import local_pieces
from talerec.spark import blocks, halves
from talerec.spark.blocks import Batches, load_array, read_array, save_array
from talerec.spark.parts import Rows, some_users

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
    """Send the rows of a part to the tasks that count them: all, or those of popular items alone."""
    log = rows.newest(part)
    ptr, order = row_kernels.group_rows(plan.task_of(log.item, log.time), plan.total)
    for task in np.flatnonzero(np.diff(ptr)):
        if task >= plan.buckets or not popular:
            at = order[ptr[task] : ptr[task + 1]]
            yield blocks.cells(int(task), part, log.item[at], log.time[at], at.astype(np.int32))


_TREND = (np.int32, np.int64, np.int32)


def save_sorted_times(batches: Batches, folder: str, task: int) -> None:
    """Save the times of one slice of a popular item in order."""
    _, time, _ = blocks.chained(batches, *_TREND)
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
    for (part, arrays), mine in zip(found, np.split(counts, ends[:-1]), strict=True):
        yield blocks.cells(part, task, arrays[2], mine)


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
    row, count = blocks.chained(batches, np.int32, np.int64)
    counts = np.empty(len(row), np.int64)
    counts[row] = count
    rows.save_array("trend", part, counts)


# -- Gram ------------------------------------------------------------------------------------------


class Counting(Protocol):
    """What makes the Gram of a part of the users."""

    def gram(self, log: Log) -> tuple[Gram, float]:
        """G and K of a part, and what simultaneous rows have in K where that is asked for."""


class Plain(NamedTuple):
    """A model whose Gram is the sum of its parts' Grams."""

    model: Solved

    def gram(self, log: Log) -> tuple[Gram, float]:
        return self.model.gram(log), 0.0


class Paced(NamedTuple):
    """Tempo, which is told what the whole log says of its users."""

    model: Tempo
    interval: float
    joint: bool

    def gram(self, log: Log) -> tuple[Gram, float]:
        return self.model.one_way(log, self.interval, self.joint)


class Span(NamedTuple):
    """Some users of a part."""

    part: int
    first: int
    last: int


def gram_cells(
    counting: Counting, rows: Rows, span: Span, number: int, edges: Array, folder: str
) -> Iterator[pa.RecordBatch]:
    """The Gram of some users, each pair in the row of its owner, cut into blocks of owners."""
    log = some_users(rows.newest(span.part), span.first, span.last)
    made, tied = counting.gram(log) if log.rows else (None, 0.0)
    save_array(folder, f"tied-{number}", np.array([tied]))
    if made is not None:
        yield from halves.owner_cells(halves.half_of(made), log.items.ids.to_numpy(), edges, number)


def owner_sums(batches: Batches, block: int, edges: Array, n: int, folder: str) -> None:
    """Sum what all parts found for one block of owners, and save it."""
    lo, hi = int(edges[block]), int(edges[block + 1])
    halves.save_block(halves.summed(batches, lo, hi, n), lo, block, folder)


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
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Solve one block of targets from their columns of K and the half of G that all tasks map; weights go on by source."""
    lo, hi = int(targets[block]), int(targets[block + 1])
    position = read_array(folder, "position")  # of each rank
    target, source, value = blocks.chained(batches, np.int32, np.int32, np.float64)
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
    model: Model, rows: pl.DataFrame, k: int, options: dict[str, Any]
) -> pl.DataFrame:
    """The next items of users from all their rows: user, item (a position, -1 where unknown), time, place."""
    users, user = Vocabulary.encode(rows["user"])
    rows = rows.with_columns(pl.Series("user", user)).sort("user", "time", "place")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    item, time = (rows[name].to_numpy(writable=True) for name in ("item", "time"))
    log = Log(ptr.astype(np.int64), item, time, users, model.fitted.items)
    model._fitted = replace(model.fitted, log=log)
    return model.recommend(users.ids, k, **options)
