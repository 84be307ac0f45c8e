"""What one task of a cluster computes: Arrow batches in, Arrow batches out. Needs no Spark.

Grams add, so each task counts some users with the kernels of one machine, and others sum what those found. Items are
numbered by popularity rank here: item 0 has the most rows. Of two items, the rarer one *owns* their pair, as in
`solvers.local_kernels`: so the rows of the most popular items are the shortest, and no sum is long, however skewed the
log is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.gram import row_weights
from talerec.models.base import Model
from talerec.models.linear import Solved
from talerec.runtime.arrays import Array, Matrix, is_sparse, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.solvers.local import local_columns
from talerec.spark.blocks import (
    FROM,
    INTO,
    Batches,
    G,
    blocks,
    copy_to,
    in_schema,
    load_array,
    save_array,
    sum_blocks,
)

_WEIGHT_ROWS = 2**16  # weights that are given external ids at a time

# -- trend -----------------------------------------------------------------------------------------


def save_sorted_times(batches: Batches, folder: str, slice: int) -> Iterator[pa.RecordBatch]:
    """Save the times of one slice of a popular item in order, and give their number."""
    times = [batch.column("time").to_numpy(zero_copy_only=False) for batch in batches]
    ordered = np.sort(np.concatenate([np.empty(0, np.int64), *times]))
    save_array(folder, f"times-{slice}", ordered)
    yield pa.RecordBatch.from_arrays([pa.array([len(ordered)], pa.int64())], ["rows"])


def add_trend_counts(
    rows: pl.DataFrame, window: float, trend_side: str, folder: str, slices: range | None
) -> pl.DataFrame:
    """Eq. 14 for each row, as the column `count`.

    The rows are all rows of some items; or, with `slices`, rows of one slice of one item, whose slices' times
    `save_sorted_times` left in `folder`.
    """
    time = rows["time"].to_numpy(writable=True)
    if slices is None:
        items, item = Vocabulary.encode(rows["item"])
        counts = row_weights.trend_counts(item, time, len(items), window, trend_side)
    else:
        before, after = row_weights.trend_span(window, trend_side)
        counts = np.zeros(len(time), np.int64)
        for slice in slices:
            others = load_array(folder, f"times-{slice}")
            counts += np.searchsorted(others, time + after, "right")
            counts -= np.searchsorted(others, time - before, "left")
    return rows.with_columns(pl.Series("count", counts))


# -- Gram ------------------------------------------------------------------------------------------


def log_of(rows: pl.DataFrame, latest: int | None) -> Log:
    """The log of some users, from columns user, item, time, place and maybe count; an item's number is its id."""
    rows = rows.with_columns(pl.col("user").rank("dense")).sort("user", "time", "place")
    users = rows["user"].to_numpy().astype(np.int64) - 1
    ptr = np.concatenate([[0], np.cumsum(np.bincount(users))]).astype(np.int64)
    items, item = Vocabulary.encode(rows["item"])
    names = Vocabulary(pl.Series(np.arange(len(ptr) - 1)))
    counts = rows["count"].to_numpy() if "count" in rows.columns else None
    time = rows["time"].to_numpy(writable=True)
    return Log(ptr, item, time, names, items, trends=counts, latest=latest)


def gram_blocks(
    model: Solved, rows: pl.DataFrame, part: int, edges: Array, latest: int | None
) -> Iterator[pa.RecordBatch]:
    """The Gram of one part of the users, each pair in the row of its owner, cut into blocks of owners."""
    if rows.is_empty():
        return
    log = log_of(rows, latest)
    found = model.gram(log)
    names = log.items.ids.to_numpy()
    whole, led = (m if is_sparse(m) else sparse.csr_array(m) for m in (found.G, found.K))
    for kind, matrix, diagonal in ((G, whole, 0), (INTO, led.T, 0), (FROM, led, -1)):
        half = sparse.tril(matrix, diagonal, format="csr")
        half.eliminate_zeros()
        yield from blocks(half, names, names, edges, part, kind)


def owner_sums(
    batches: Batches, block: int, edges: Array, targets: Array, n: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """Sum what all parts found for one block of owners: its rows of G are saved, its entries of K sent on by target."""
    lo, hi = int(edges[block]), int(edges[block + 1])
    sums = sum_blocks(batches, lo, hi, n, np.float64)
    _save_half(sums.pop(G), lo, block, folder)
    into, out_of = sums[INTO].tocoo(), sums[FROM].tocoo()
    target = np.concatenate([into.row + lo, out_of.col])
    source = np.concatenate([into.col, out_of.row + lo])
    value = np.concatenate([into.data, out_of.data])
    save_array(folder, f"pairs-{block}", np.array([np.count_nonzero(target != source)]))
    K = sparse.coo_array((value, (target, source)), shape=(n, n)).tocsr()
    every = np.arange(n, dtype=np.int32)
    yield from blocks(K, every, every, targets, block, INTO)


def _save_half(half: Matrix, lo: int, block: int, folder: str) -> None:
    """Save a block of G: its diagonal, and of the other entries the columns, the values and how many an item has."""
    row = np.repeat(np.arange(half.shape[0]), np.diff(half.indptr))
    own = half.indices == row + lo
    diagonal = np.zeros(half.shape[0])
    diagonal[row[own]] = half.data[own]
    columns = half.indices[~own]
    save_array(folder, f"diagonal-{block}", diagonal)
    save_array(folder, f"row_count-{block}", np.bincount(row[~own], minlength=half.shape[0]))
    save_array(folder, f"column_count-{block}", np.bincount(columns, minlength=lo + half.shape[0]))
    save_array(folder, f"column-{block}", columns.astype(np.int32))
    save_array(folder, f"value-{block}", half.data[~own])


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
            copy_to(out, array)


# -- solve -----------------------------------------------------------------------------------------


class SolveSettings(NamedTuple):
    """What the local solver is told: the penalty, its neighbors, and how many entries K has in all."""

    penalty: float
    neighbors: int
    entries: int


def solved_blocks(
    batches: Batches,
    block: int,
    targets: Array,
    sources: Array,
    settings: SolveSettings,
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Solve one block of targets from their columns of K and the half of G that all tasks map; weights go on by source."""
    lo, hi = int(targets[block]), int(targets[block + 1])
    position = np.array(load_array(folder, "position"))  # of each rank
    n = len(position)
    K = sum_blocks(batches, lo, hi, n, np.float64)[INTO]
    source, target, weight = local_columns(
        _mapped_half(folder),
        np.array(load_array(folder, "owned")),
        _columns_of(K, lo, hi, position),
        load_array(folder, "diagonal") + settings.penalty,
        settings.neighbors,
        settings.entries,
        lo,
        hi,
    )
    B = sparse.coo_array((weight, (position[source], position[target])), shape=(n, n)).tocsr()
    every = np.arange(n, dtype=np.int32)
    yield from blocks(B, every, every, sources, block, INTO)


def _columns_of(K: Matrix, lo: int, hi: int, position: Array) -> tuple[Array, Array, Array]:
    """Columns lo..hi of K among all columns, each with its sources in the order of one machine: by position."""
    n = len(position)
    target = np.repeat(np.arange(hi - lo), np.diff(K.indptr))
    order = np.lexsort((position[K.indices], target))
    ptr = np.zeros(n + 1, np.int64)
    ptr[lo + 1 : hi + 1] = K.indptr[1:]
    ptr[hi + 1 :] = K.indptr[-1]
    return shrink_indptr(ptr), K.indices[order].astype(np.int32), K.data[order]


def _mapped_half(folder: str) -> tuple[Array, Array, Array]:
    """Half of G, mapped from its files: where rows start, columns, values."""
    starts = np.array(load_array(folder, "starts"))
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
    """Weights of one block of sources, ordered by source and target: saved as arrays, and given with external ids."""
    lo, hi = int(sources[block]), int(sources[block + 1])
    B = sum_blocks(batches, lo, hi, n, np.float32)[INTO]
    save_array(folder, f"weight_count-{block}", np.diff(B.indptr).astype(np.int64))
    save_array(folder, f"target-{block}", B.indices.astype(np.int32))
    save_array(folder, f"weight-{block}", B.data)
    ids = pl.read_parquet(Path(folder) / "items.parquet", columns=["id"])["id"]
    source = np.repeat(np.arange(lo, hi), np.diff(B.indptr))
    for a in range(0, len(source), _WEIGHT_ROWS):
        some = slice(a, a + _WEIGHT_ROWS)
        frame = pl.DataFrame(
            {"source": ids[source[some]], "target": ids[B.indices[some]], "weight": B.data[some]}
        )
        yield from in_schema(frame, schema)


# -- recommending ----------------------------------------------------------------------------------


def recommend_users(model: Model, rows: pl.DataFrame, k: int, hide_seen: bool) -> pl.DataFrame:
    """The next items of users from all their rows: user, item (a position, -1 where unknown), time, place."""
    users, user = Vocabulary.encode(rows["user"])
    rows = rows.with_columns(pl.Series("user", user)).sort("user", "time", "place")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    item, time = (rows[name].to_numpy(writable=True) for name in ("item", "time"))
    log = Log(ptr.astype(np.int64), item, time, users, model.fitted.items)
    model._fitted = replace(model.fitted, log=log)
    return model.recommend(users.ids, k, hide_seen=hide_seen)
