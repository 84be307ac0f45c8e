"""What one task of a cluster computes: Arrow batches in, Arrow batches out. Knows nothing of the cluster.

Grams add, so each task counts some users with the kernels of one machine, and others sum what
they found. Items are numbered by rank here: 0 has the most rows. Of two items, the rarer owns
their pair, as in `local_kernels`: so the rows of the most popular items are the shortest, and no
sum is long, however skewed the log is.

What tasks send each other are *pieces*: some rows of a sparse matrix, packed into a few columns of
bytes, one row of a table for thousands of entries. Sums are taken in the order of the parts, and
files appear under their names whole: a task that runs twice leaves the same bits as one that ran once.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from scipy import sparse

from talerec.data.log import Log, Vocabulary
from talerec.gram import gram
from talerec.models.base import Model
from talerec.models.linear import Solved
from talerec.runtime.arrays import Array, is_sparse, shrink_indptr
from talerec.runtime.threads import equal_work
from talerec.solvers.local import local_columns

#: A piece: where it goes, which part it is from, of which matrix; its rows, their lengths, columns and values.
PIECES = "goes int, part int, kind int, row binary, length binary, column binary, value binary"
_FIELDS = pa.schema(
    [(name, pa.int32()) for name in ("goes", "part", "kind")]
    + [(name, pa.binary()) for name in ("row", "length", "column", "value")]
)
_G, _INTO, _FROM = range(3)  # of a pair: its entry of G, of K into the owner, of K from the owner

Batches = Iterable[pa.RecordBatch]


# -- sizes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sizes:
    """How the work is cut: users into parts; owners of pairs, targets and sources into blocks of about equal work.

    Blocks are given by their edges; owners and targets by rank, sources by position.
    """

    task_rows: int
    parts: int
    owners: Array
    targets: Array
    sources: Array

    @classmethod
    def of(cls, cores: int, rows_of: Array, pairs: int, task_rows: int, task_pairs: int) -> Sizes:
        """rows_of: rows of each item, by rank; pairs: of rows of one user, in all."""
        n, rows = len(rows_of), int(rows_of.sum())
        tasks = max(cores, math.ceil(pairs / task_pairs))
        count = max(tasks, math.ceil(rows / task_rows))
        popular = rows_of.astype(np.float64)
        shared = popular * np.cumsum(
            popular
        )  # the chance of a pair with an item that has more rows
        owned = np.minimum(shared * (pairs / shared.sum()), np.arange(1.0, n + 1) * count)
        led_to = np.minimum(popular * (2 * pairs / rows), n)
        return cls(
            task_rows,
            count,
            _edges(owned, tasks),
            _edges(led_to + 1000, tasks),  # a target costs something, however few its sources
            _edges(np.ones(n), tasks),
        )


def _edges(work: Array, blocks: int) -> Array:
    ranges = equal_work(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), blocks)
    return np.array([a for a, _ in ranges] + [len(work)])


# -- files -----------------------------------------------------------------------------------------


def keep(folder: str | Path, name: str, array: Array) -> None:
    """Write an array under its name, in one step."""
    temporary = Path(folder) / f".{name}-{uuid.uuid4().hex}"
    with temporary.open("wb") as out:
        np.save(out, array)
    os.replace(temporary, Path(folder) / f"{name}.npy")


def kept(folder: str | Path, name: str) -> Array:
    """The array of that name, memory-mapped."""
    array: Array = np.load(
        Path(folder) / f"{name}.npy", mmap_mode="r" if _filled(folder, name) else None
    )
    return array


def _filled(folder: str | Path, name: str) -> bool:
    return (Path(folder) / f"{name}.npy").stat().st_size > 128  # nothing cannot be mapped


# -- pieces ----------------------------------------------------------------------------------------


def pieces(
    matrix: Any, rows: Array, columns: Array, edges: Array, part: int, kind: int
) -> Iterator[pa.RecordBatch]:
    """A CSR matrix cut into blocks of rows; `rows` (ascending) and `columns` say what its own are called."""
    bounds = np.searchsorted(rows, edges)
    for goes in np.flatnonzero(np.diff(matrix.indptr[bounds])):
        a, b = bounds[goes], bounds[goes + 1]
        length = np.diff(matrix.indptr[a : b + 1]).astype(np.int32)
        there = length > 0
        span = slice(matrix.indptr[a], matrix.indptr[b])
        arrays = (rows[a:b][there], length[there], columns[matrix.indices[span]], matrix.data[span])
        numbers = [pa.array([value], pa.int32()) for value in (goes, part, kind)]
        packed = [_packed(array) for array in arrays]
        yield pa.RecordBatch.from_arrays(numbers + packed, schema=_FIELDS)


def _packed(array: Array) -> pa.Array:
    """One cell of bytes, without a copy. (pyarrow would never let go of a memoryview that it made a cell of.)"""
    ends = np.array([0, array.nbytes], np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(array))]
    return pa.Array.from_buffers(pa.binary(), 1, buffers)


def joined(batches: Batches, lo: int, hi: int, n: int, value_type: type) -> dict[int, Any]:
    """The sum of all pieces of rows lo..hi, by kind: CSR with sorted columns, summed in the order of the parts."""
    found: dict[int, list[tuple[int, Any]]] = {_G: [], _INTO: [], _FROM: []}
    for batch in batches:
        for x in range(batch.num_rows):
            _, part, kind = (batch.column(c)[x].as_py() for c in range(3))
            arrays = [batch.column(c)[x].as_buffer() for c in range(3, 7)]
            types = (np.int32, np.int32, np.int32, value_type)
            unpacked: list[Array] = [
                np.frombuffer(buffer, t) for buffer, t in zip(arrays, types, strict=True)
            ]
            found[kind].append((part, unpacked))
    return {kind: _summed(parts, lo, hi, n, value_type) for kind, parts in found.items()}


def _summed(parts: list[tuple[int, Any]], lo: int, hi: int, n: int, value_type: type) -> Any:
    parts.sort(key=lambda known: known[0])
    row = [np.repeat(rows - np.int32(lo), length) for _, (rows, length, _, _) in parts]
    column = [columns for _, (_, _, columns, _) in parts]
    value = [values for _, (_, _, _, values) in parts]
    empty: list[Array] = [np.empty(0, np.int32)]
    entries = np.concatenate([*value, np.empty(0, value_type)])
    places = (np.concatenate(row + empty), np.concatenate(column + empty))
    parts.clear()
    made = sparse.coo_array((entries, places), shape=(hi - lo, n)).tocsr()
    made.sum_duplicates()
    return made


# -- trend -----------------------------------------------------------------------------------------


def sorted_times(batches: Batches, folder: str, slice: int) -> Iterator[pa.RecordBatch]:
    """Keep the times of one slice of a giant item, in order."""
    times = _column(batches, "time")
    keep(folder, f"times-{slice}", np.sort(times))
    yield pa.RecordBatch.from_arrays([pa.array([len(times)], pa.int64())], ["rows"])


def counted(
    rows: pl.DataFrame, window: float, trend_side: str, folder: str, slices: range | None
) -> pl.DataFrame:
    """Eq. 14 for rows of whole items, or of a slice of one item whose slices' times are in files."""
    time = rows["time"].to_numpy(writable=True)
    if slices is None:
        items, item = Vocabulary.encode(rows["item"])
        counts = gram.trend_counts(item, time, len(items), window, trend_side)
    else:
        before, after = gram.trend_span(window, trend_side)
        counts = np.zeros(len(time), np.int64)
        for slice in slices:
            others = kept(folder, f"times-{slice}")
            counts += np.searchsorted(others, time + after, "right")
            counts -= np.searchsorted(others, time - before, "left")
    return rows.with_columns(pl.Series("count", counts))


# -- Gram ------------------------------------------------------------------------------------------


def log_of(rows: pl.DataFrame, latest: int | None) -> Log:
    """A log of some users (columns user, item, time, place and maybe count); items are named as they are numbered."""
    rows = rows.with_columns(pl.col("user").rank("dense")).sort("user", "time", "place")
    users = rows["user"].to_numpy().astype(np.int64) - 1
    ptr = np.concatenate([[0], np.cumsum(np.bincount(users))]).astype(np.int64)
    items, item = Vocabulary.encode(rows["item"])
    names = Vocabulary(pl.Series(np.arange(len(ptr) - 1)))
    counts = rows["count"].to_numpy() if "count" in rows.columns else None
    time = rows["time"].to_numpy(writable=True)
    return Log(ptr, item, time, names, items, trends=counts, latest=latest)


def gram_pieces(
    model: Solved, rows: pl.DataFrame, part: int, edges: Array, latest: int | None
) -> Iterator[pa.RecordBatch]:
    """The Gram of some users, each pair in the row of its owner, cut into blocks of owners."""
    if rows.is_empty():
        return
    log = log_of(rows, latest)
    gram = model.gram(log)
    names = log.items.ids.to_numpy()
    G, K = (part if is_sparse(part) else sparse.csr_array(part) for part in (gram.G, gram.K))
    halves = {_G: (G, 0), _INTO: (K.T, 0), _FROM: (K, -1)}
    for kind, (matrix, below) in halves.items():
        half = sparse.tril(matrix, below, format="csr")
        half.eliminate_zeros()
        yield from pieces(half, names, names, edges, part, kind)


def block_pieces(
    batches: Batches, block: int, edges: Array, targets: Array, n: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """Sum what all parts know of a block of owners: keep its rows of G, send on its entries of K by target."""
    lo, hi = int(edges[block]), int(edges[block + 1])
    sums = joined(batches, lo, hi, n, np.float64)
    _keep_half(sums.pop(_G), lo, block, folder)
    into, out_of = sums[_INTO].tocoo(), sums[_FROM].tocoo()
    target = np.concatenate([into.row + lo, out_of.col])
    source = np.concatenate([into.col, out_of.row + lo])
    value = np.concatenate([into.data, out_of.data])
    keep(folder, f"pairs-{block}", np.array([np.count_nonzero(target != source)]))
    K = sparse.coo_array((value, (target, source)), shape=(n, n)).tocsr()
    every = np.arange(n, dtype=np.int32)
    yield from pieces(K, every, every, targets, block, _INTO)


def _keep_half(G: Any, lo: int, block: int, folder: str) -> None:
    row = np.repeat(np.arange(G.shape[0]), np.diff(G.indptr))
    own = G.indices == row + lo
    diagonal = np.zeros(G.shape[0])
    diagonal[row[own]] = G.data[own]
    keep(folder, f"diagonal-{block}", diagonal)
    keep(folder, f"length-{block}", np.bincount(row[~own], minlength=G.shape[0]))
    keep(folder, f"reached-{block}", np.bincount(G.indices[~own], minlength=lo + G.shape[0]))
    keep(folder, f"column-{block}", G.indices[~own].astype(np.int32))
    keep(folder, f"value-{block}", G.data[~own])


def seats(length: Array, reached: Iterable[Array], position: Array) -> Array:
    """The place of each item among all by its entries in G, most first, as one machine ranks them."""
    entries = length.copy()
    for some in reached:
        entries[: len(some)] += some
    seat = np.empty(len(entries), np.int32)
    seat[np.lexsort((position, -entries))] = np.arange(len(entries))
    return seat


def shares(block: int, lo: int, folder: str) -> None:
    """How many entries of a block of G each item would own, were items numbered by their seats."""
    seat, column = kept(folder, "seat"), kept(folder, f"column-{block}")
    length = kept(folder, f"length-{block}")
    row = np.repeat(np.arange(lo, lo + len(length), dtype=np.int32), length)
    owner = np.where(seat[row] > seat[column], row, column)
    keep(folder, f"share-{block}", np.bincount(owner, minlength=len(seat)))


def lay(block: int, start: int, folder: str) -> None:
    """Copy a block of G to its place among all blocks: twice is the same as once."""
    for name in ("column", "value"):
        array = kept(folder, f"{name}-{block}")
        with (Path(folder) / f"{name}.raw").open("r+b") as out:
            out.seek(start * array.itemsize)
            for a in range(0, len(array), 2**22):
                out.write(np.ascontiguousarray(array[a : a + 2**22]).data.cast("B"))


# -- solve -----------------------------------------------------------------------------------------


def solved_pieces(
    batches: Batches,
    block: int,
    targets: Array,
    sources: Array,
    rules: tuple[float, int, int],
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Solve a block of targets from their columns of K and the half of G that all tasks share; send weights on by source.

    rules: the penalty, `neighbors`, and how many entries K has in all.
    """
    penalty, neighbors, entries = rules
    lo, hi = int(targets[block]), int(targets[block + 1])
    position = np.array(kept(folder, "position"))  # of each rank
    n = len(position)
    K = joined(batches, lo, hi, n, np.float64)[_INTO]
    target = np.repeat(np.arange(hi - lo), np.diff(K.indptr))
    order = np.lexsort((position[K.indices], target))  # sources as one machine has them
    ptr = np.zeros(n + 1, np.int64)
    ptr[lo + 1 : hi + 1] = K.indptr[1:]
    ptr[hi + 1 :] = K.indptr[-1]
    columns = (shrink_indptr(ptr), K.indices[order].astype(np.int32), K.data[order])
    diagonal = kept(folder, "diagonal") + penalty
    source, into, weight = local_columns(
        _shared_half(folder),
        np.array(kept(folder, "lengths")),
        columns,
        diagonal,
        neighbors,
        entries,
        lo,
        hi,
    )
    B = sparse.coo_array((weight, (position[source], position[into])), shape=(n, n)).tocsr()
    every = np.arange(n, dtype=np.int32)
    yield from pieces(B, every, every, sources, block, _INTO)


def _shared_half(folder: str) -> tuple[Array, Array, Array]:
    starts = np.array(kept(folder, "starts"))
    types = {"column": np.int32, "value": np.float64}
    column, value = (
        np.memmap(Path(folder) / f"{name}.raw", kind, "c", shape=(int(starts[-1]),))
        if starts[-1]
        else np.empty(0, kind)
        for name, kind in types.items()
    )
    return starts, np.asarray(column), np.asarray(value)


def weight_rows(
    batches: Batches, block: int, sources: Array, n: int, folder: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Weights of a block of sources, by source and target: kept as arrays, and given with external ids."""
    lo, hi = int(sources[block]), int(sources[block + 1])
    B = joined(batches, lo, hi, n, np.float32)[_INTO]
    keep(folder, f"fan-{block}", np.diff(B.indptr).astype(np.int64))
    keep(folder, f"target-{block}", B.indices.astype(np.int32))
    keep(folder, f"weight-{block}", B.data)
    ids = pl.read_parquet(Path(folder) / "items.parquet", columns=["id"])["id"]
    source = np.repeat(np.arange(lo, hi), np.diff(B.indptr))
    for a in range(0, len(source), 2**16):
        some = slice(a, a + 2**16)
        frame = pl.DataFrame(
            {"source": ids[source[some]], "target": ids[B.indices[some]], "weight": B.data[some]}
        )
        yield from in_schema(frame, schema)


# -- recommending ----------------------------------------------------------------------------------


def recommended(model: Model, rows: pl.DataFrame, k: int, hide_seen: bool) -> pl.DataFrame:
    """The next items of users whose rows are given (user, item as a position or -1, time, place)."""
    users, user = Vocabulary.encode(rows["user"])
    rows = rows.with_columns(pl.Series("user", user)).sort("user", "time", "place")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    item, time = (rows[name].to_numpy(writable=True) for name in ("item", "time"))
    log = Log(ptr.astype(np.int64), item, time, users, model.fitted.items)
    model._fitted = replace(model.fitted, log=log)
    return model.recommend(users.ids, k, hide_seen=hide_seen)


# -- Arrow -----------------------------------------------------------------------------------------


def frame_of(batches: Batches) -> pl.DataFrame:
    """All batches of a task as one frame; one without columns where there are none."""
    held = list(batches)
    if not held:
        return pl.DataFrame()
    made = pl.from_arrow(pa.Table.from_batches(held))
    assert isinstance(made, pl.DataFrame)
    return made


def in_schema(frame: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A frame as batches of exactly these types."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    yield from table.select(schema.names).cast(schema).to_batches(max_chunksize=2**16)


def _column(batches: Batches, name: str) -> Array:
    parts = [batch.column(name).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.empty(0, np.int64), *parts])
