"""Pairs of items by their owner: G and both directions of K side by side, cut into blocks and summed. No Spark.

Items are numbered by rank, 0 the most popular. Of two items the rarer, whose number is higher, owns their pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data import row_kernels
from talerec.gram.gram import Gram, Sums
from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.lazy import sparse
from talerec.solvers.compressed import Compressed, by_column, by_row
from talerec.spark import blocks

#: What is known of a pair: its entry of G, its entry of K into the owner, its entry of K from the owner.
G, INTO, OUT = range(3)


class Half(NamedTuple):
    """The pairs of each owner: entries starts[i]..starts[i + 1], ascending, with three values each."""

    starts: Array
    column: Array
    value: Array


def half_of(gram: Gram) -> Half:
    """The pairs of a Gram; what is zero throughout is left out."""
    whole, into = by_row(gram.G), by_column(gram.K)
    out = by_row(sparse.csr_array(gram.K))
    for matrix in (whole, into, out):
        _require_order(matrix)
    made: tuple[Array, Array, Array] = _below(whole, into, out)
    return Half(*made)


def _require_order(matrix: Compressed) -> None:
    """Lines of a Gram ascend; a merge of lines that do not would lose entries."""
    step = np.diff(matrix.indices) > 0
    begins = matrix.starts[1:-1]
    step[begins[(begins > 0) & (begins < len(matrix.indices))] - 1] = True
    assert step.all(), "the entries of a Gram are not in order"


@kernel
def _below(whole: Compressed, into: Compressed, out: Compressed) -> tuple[Array, Array, Array]:
    """Entries on and below the diagonal of three matrices, merged row by row; of `out`, those below alone."""
    n = len(whole.starts) - 1
    room = len(whole.indices) + len(into.indices) + len(out.indices)
    starts, end = np.zeros(n + 1, np.int64), 0
    column, value = np.empty(room, np.int32), np.empty((room, 3))
    for i in range(n):
        x, y, z = whole.starts[i], into.starts[i], out.starts[i]
        while True:
            first = whole.indices[x] if x < whole.starts[i + 1] else np.int32(i + 1)
            second = into.indices[y] if y < into.starts[i + 1] else np.int32(i + 1)
            third = out.indices[z] if z < out.starts[i + 1] else np.int32(i + 1)
            j = min(first, second, third)
            if j > i:
                break
            value[end] = 0.0
            if first == j:
                value[end, 0] = whole.values[x]
                x += 1
            if second == j:
                value[end, 1] = into.values[y]
                y += 1
            if third == j:
                if j < i:
                    value[end, 2] = out.values[z]
                z += 1
            if value[end, 0] != 0.0 or value[end, 1] != 0.0 or value[end, 2] != 0.0:
                column[end] = j
                end += 1
        starts[i + 1] = end
    return starts, column[:end].copy(), value[:end].copy()


def owner_cells(half: Half, names: Array, edges: Array, part: int) -> Iterator[pa.RecordBatch]:
    """Cut a half into blocks of owners, from one edge to the next; `names` (ascending): the numbers of its items in all."""
    bounds = np.searchsorted(names, edges)
    for block in np.flatnonzero(np.diff(half.starts[bounds])):
        a, b = bounds[block], bounds[block + 1]
        length = np.diff(half.starts[a : b + 1]).astype(np.int32)
        span = slice(half.starts[a], half.starts[b])
        rows = names[a:b][length > 0].astype(np.int32)
        column = names[half.column[span]].astype(np.int32)
        yield blocks.cells(int(block), part, rows, length[length > 0], column, half.value[span])


def summed(batches: blocks.Batches, lo: int, hi: int, n: int) -> Half:
    """What all parts found for the owners lo..hi, added up in the order of the parts."""
    kinds = (np.int32, np.int32, np.int32, np.float64)
    row, length, column, value = blocks.chained(batches, *kinds)
    ptr, order = row_kernels.group_rows(row - np.int32(lo), hi - lo)
    starts = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    made: tuple[Array, Array, Array] = _summed(ptr, order, starts, column, value.reshape(-1, 3), n)
    return Half(*made)


@kernel
def _summed(
    ptr: Array, order: Array, starts: Array, column: Array, value: Array, n: int
) -> tuple[Array, Array, Array]:
    """Owner r has the lines order[ptr[r]..ptr[r + 1]], and line q the entries starts[q]..starts[q + 1]."""
    room, end = len(column), 0
    bounds, columns = np.zeros(len(ptr), np.int64), np.empty(room, np.int32)
    values, sums = np.empty((room, 3)), np.zeros((n, 3))
    seen, spare = np.full(n, -1, np.int32), np.empty(n, np.int32)
    for r in range(len(ptr) - 1):
        first = end
        for x in range(ptr[r], ptr[r + 1]):
            for e in range(starts[order[x]], starts[order[x] + 1]):
                j = column[e]
                if seen[j] != r:
                    seen[j] = r
                    columns[end] = j
                    end += 1
                sums[j, 0] += value[e, 0]
                sums[j, 1] += value[e, 1]
                sums[j, 2] += value[e, 2]
        sort_positions(columns[first:end], n, spare)
        for x in range(first, end):
            j = columns[x]
            for v in range(3):
                values[x, v] = sums[j, v]
                sums[j, v] = 0.0
        bounds[r + 1] = end
    return bounds, columns[:end].copy(), values[:end].copy()


# -- one block of owners ---------------------------------------------------------------------------


def save_block(half: Half, lo: int, block: int, folder: str) -> None:
    """Save what was summed for a block of owners: its rows of G, its entries of K, and sums over them."""
    size = len(half.starts) - 1
    row = np.repeat(np.arange(lo, lo + size, dtype=np.int32), np.diff(half.starts))
    own = half.column == row
    _save_g(row - lo, half.column, half.value[:, G], own, size, lo, block, folder)
    leads = (half.value[:, INTO] != 0) | (half.value[:, OUT] != 0)
    entries = (row[leads], half.column[leads], half.value[leads, INTO], half.value[leads, OUT])
    for name, array in zip(("owner", "other", "into", "out"), entries, strict=True):
        blocks.save_array(folder, f"{name}-{block}", array)
    difference = np.where(own, 0.0, half.value[:, INTO] - half.value[:, OUT])
    sums = [
        2 * float((difference**2).sum()),
        float(half.value[:, INTO].sum() + half.value[:, OUT].sum()),
        float(half.value[own, INTO].sum()),
        float(half.value[own, G].sum()),
    ]
    blocks.save_array(folder, f"sums-{block}", np.array(sums))
    ways = [np.count_nonzero(half.value[~own, way]) for way in (INTO, OUT)]
    counts = [*ways, np.count_nonzero(leads & ~own), np.count_nonzero(half.value[own, INTO])]
    blocks.save_array(folder, f"entries-{block}", np.array(counts))


def _save_g(
    row: Array, column: Array, value: Array, own: Array, size: int, lo: int, block: int, folder: str
) -> None:
    """Save a block of G: its diagonal, and of the other entries the columns, the values and how many an item has."""
    diagonal = np.zeros(size)
    diagonal[row[own]] = value[own]
    stays = ~own & (value != 0)
    columns = column[stays]
    blocks.save_array(folder, f"diagonal-{block}", diagonal)
    blocks.save_array(folder, f"row_count-{block}", np.bincount(row[stays], minlength=size))
    blocks.save_array(folder, f"column_count-{block}", np.bincount(columns, minlength=lo + size))
    blocks.save_array(folder, f"column-{block}", columns)
    blocks.save_array(folder, f"value-{block}", value[stays])


def sums_of(folder: str, count: int, tied: float) -> Sums:
    """What all blocks of owners say of the direction of pairs."""
    each = np.array(list(blocks.load_blocks(folder, "sums", count)))
    distance, total, own, trace = (math.fsum(column) for column in each.T)
    return Sums(distance, total, own, trace, tied)


def entries_of(folder: str, count: int, n: int, share: float) -> int:
    """How many entries K has, as one machine counts them: K + share K' has both directions of a pair where it has one."""
    into, out, either, own = np.sum(list(blocks.load_blocks(folder, "entries", count)), axis=0)
    return int(2 * either + own) if share else int(into + out + n)


def target_cells(
    block: int, share: float, wanted: Array | None, edges: Array, n: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """The entries of K + share K' of a block of owners, sent on to the blocks of their targets."""
    owner, other, into, out = (
        blocks.load_array(folder, f"{name}-{block}") for name in ("owner", "other", "into", "out")
    )
    own = owner == other
    to_owner = into + share * np.where(own, into, out)
    to_other = np.where(own, 0.0, out + share * into)
    target, source = np.concatenate([owner, other]), np.concatenate([other, owner])
    value = np.concatenate([to_owner, to_other])
    stays = value != 0 if wanted is None else (value != 0) & wanted[target]
    target, source, value = target[stays], source[stays], value[stays]
    ptr, order = row_kernels.group_rows(target, n)
    bounds = ptr[edges]
    for number in np.flatnonzero(np.diff(bounds)):
        at = order[bounds[number] : bounds[number + 1]]
        yield blocks.cells(int(number), block, target[at], source[at], value[at])
