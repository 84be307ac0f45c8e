"""Pairs of items by their owner: G and both directions of K side by side, cut into blocks and summed. No Spark.

Items are numbered by rank, 0 the most popular. Of two items the rarer, whose number is higher, owns their pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data import row_kernels
from talerec.gram.accumulators import SparseSums
from talerec.gram.gram import Sums
from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.spark import blocks
from talerec.spark.gram import Counted

#: What is known of a pair: its entry of G, its entry of K into the owner, its entry of K from the owner; both of K.
G, INTO, OUT, BOTH = range(4)


class Half(NamedTuple):
    """The pairs of each owner: entries starts[i]..starts[i + 1], ascending, with three values each."""

    starts: Array
    column: Array
    value: Array


class Lines(NamedTuple):
    """Entries by owner, as `Half` has them, with two values each: of G, and of K in one direction."""

    starts: Array
    column: Array
    value: Array


def split(counted: Counted, lo: int, hi: int) -> tuple[Lines, Lines]:
    """What the targets lo..hi were counted, by owner: lines of their own (lo is the first), and lines of rarer sources (0 is)."""
    sums, share, is_alike = counted
    made: tuple[Array, ...] = _split(sums, lo, hi, share, is_alike)
    return Lines(*made[:3]), Lines(*made[3:])


@kernel
def _split(sums: SparseSums, lo: int, hi: int, share: float, is_alike: bool) -> tuple[Array, ...]:
    """M and K' of some targets; G has twice the diagonal of M. Where K is G, an entry of K is that of G."""
    indptr, indices = sums.indptr, sums.indices
    M, K = sums.M, (sums.M if is_alike else sums.K)
    own, other = np.zeros(hi - lo + 1, np.int64), np.zeros(len(indptr), np.int64)
    for j in range(lo, hi):
        for x in range(indptr[j], indptr[j + 1]):
            if M[x] != 0.0 or K[x] != 0.0:
                if indices[x] <= j:
                    own[j - lo + 1] += 1
                else:
                    other[indices[x] + 1] += 1
    own, other = np.cumsum(own), np.cumsum(other)
    own_column, column = np.empty(own[-1], np.int32), np.empty(other[-1], np.int32)
    own_value, value = np.empty((own[-1], 2)), np.empty((other[-1], 2))
    free, end = other.copy(), 0
    for j in range(lo, hi):
        for x in range(indptr[j], indptr[j + 1]):
            if M[x] == 0.0 and K[x] == 0.0:
                continue
            i = indices[x]
            g, k = share * M[x], share * K[x]
            if i == j:
                g, k = 2.0 * g, (2.0 * k if is_alike else k)
            if i <= j:
                own_column[end] = i
                own_value[end, 0], own_value[end, 1] = g, k
                end += 1
            else:
                column[free[i]] = j
                value[free[i], 0], value[free[i], 1] = g, k
                free[i] += 1
    return own, own_column, own_value, other, column, value


def line_cells(lines: Lines, edges: Array, part: int) -> Iterator[pa.RecordBatch]:
    """Send lines, one for each item, to blocks of owners, from one edge to the next."""
    for block in np.flatnonzero(np.diff(lines.starts[edges])):
        a, b = edges[block], edges[block + 1]
        length = np.diff(lines.starts[a : b + 1]).astype(np.int32)
        span = slice(lines.starts[a], lines.starts[b])
        rows = (a + np.flatnonzero(length)).astype(np.int32)
        yield blocks.cells(
            int(block), part, rows, length[length > 0], lines.column[span], lines.value[span]
        )


class Found(NamedTuple):
    """Lines of one block of owners as they arrive: owners, entries of each, their columns and two values each."""

    arrays: list[Array]
    way: int  # what the second values are: INTO, OUT, or BOTH


KINDS = (np.int32, np.int32, np.int32, np.float64)


def summed(found: Sequence[Found], lo: int, hi: int, n: int) -> Half:
    """What all tasks found for the owners lo..hi, added up in the order in which it is given."""
    row, length, column, value = (
        np.concatenate([np.empty(0, kind), *(one.arrays[x] for one in found)])
        for x, kind in enumerate(KINDS)
    )
    ways = [np.full(len(one.arrays[0]), one.way, np.int8) for one in found]
    ptr, order = row_kernels.group_rows(row - np.int32(lo), hi - lo)
    starts = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    lines = Lines(starts, column, value.reshape(-1, 2))
    made: tuple[Array, Array, Array] = _summed(
        ptr, order, np.concatenate([np.empty(0, np.int8), *ways]), lines, lo, n
    )
    return Half(*made)


@kernel
def _summed(
    ptr: Array, order: Array, ways: Array, lines: Lines, lo: int, n: int
) -> tuple[Array, Array, Array]:
    """Owner lo + r has the lines order[ptr[r]..ptr[r + 1]]; what is zero throughout is left out."""
    column, value = lines.column, lines.value
    room, end = len(column), 0
    bounds, columns = np.zeros(len(ptr), np.int64), np.empty(room, np.int32)
    values, sums = np.empty((room, 3)), np.zeros((n, 3))
    seen, spare, found = np.full(n, -1, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    for r in range(len(ptr) - 1):
        count = 0
        for x in range(ptr[r], ptr[r + 1]):
            way = ways[order[x]]
            for e in range(lines.starts[order[x]], lines.starts[order[x] + 1]):
                j = column[e]
                if seen[j] != r:
                    seen[j] = r
                    found[count] = j
                    count += 1
                sums[j, 0] += value[e, 0]
                if way != OUT:
                    sums[j, 1] += value[e, 1]
                if way != INTO and j != lo + r:
                    sums[j, 2] += value[e, 1]
        sort_positions(found[:count], n, spare)
        for x in range(count):
            j = found[x]
            if sums[j, 0] != 0.0 or sums[j, 1] != 0.0 or sums[j, 2] != 0.0:
                columns[end] = j
                for v in range(3):
                    values[end, v] = sums[j, v]
                end += 1
            sums[j, 0] = sums[j, 1] = sums[j, 2] = 0.0
        bounds[r + 1] = end
    return bounds, columns[:end].copy(), values[:end].copy()


# -- one block of owners ---------------------------------------------------------------------------


def save_block(half: Half, lo: int, block: int, folder: str) -> None:
    """Save what was summed for a block of owners: its rows of G, its entries of K, and sums over them."""
    size = len(half.starts) - 1
    column, value, diagonal, row_count = _entries_of_g(half, lo)
    found = {
        "column": column,
        "value": value,
        "diagonal": diagonal,
        "row_count": row_count,
        "column_count": np.bincount(column, minlength=lo + size),
        **dict(zip(_ENTRIES, _entries_of_k(half, lo), strict=True)),
    }
    sums, counts = _sums_of_k(half, lo)
    found |= {"sums": np.append(sums.sum(axis=0), diagonal.sum()), "entries": counts.sum(axis=0)}
    for name, array in found.items():
        blocks.save_array(folder, f"{name}-{block}", array)


@kernel
def _entries_of_g(half: Half, lo: int) -> tuple[Array, Array, Array, Array]:
    """Of the entries of G that are not its diagonal the columns, the values and how many an owner has; and the diagonal."""
    starts, column, value = half
    size = len(starts) - 1
    columns, values = np.empty(len(column), np.int32), np.empty(len(column))
    diagonal, counts, end = np.zeros(size), np.zeros(size, np.int64), 0
    for r in range(size):
        for x in range(starts[r], starts[r + 1]):
            if column[x] == lo + r:
                diagonal[r] = value[x, 0]
            elif value[x, 0] != 0.0:
                columns[end], values[end] = column[x], value[x, 0]
                counts[r] += 1
                end += 1
    return columns[:end].copy(), values[:end].copy(), diagonal, counts


@kernel
def _entries_of_k(half: Half, lo: int) -> tuple[Array, Array, Array, Array]:
    """Owner, other, into and out of the pairs that K knows."""
    starts, column, value = half
    room, end = len(column), 0
    owner, other = np.empty(room, np.int32), np.empty(room, np.int32)
    into, out = np.empty(room), np.empty(room)
    for r in range(len(starts) - 1):
        for x in range(starts[r], starts[r + 1]):
            if value[x, 1] != 0.0 or value[x, 2] != 0.0:
                owner[end], other[end] = lo + r, column[x]
                into[end], out[end] = value[x, 1], value[x, 2]
                end += 1
    return owner[:end].copy(), other[:end].copy(), into[:end].copy(), out[:end].copy()


@kernel
def _sums_of_k(half: Half, lo: int) -> tuple[Array, Array]:
    """By owner: what `Sums` wants to know of K, and how many entries lead in, out, either way, and to the item itself."""
    starts, column, value = half
    size = len(starts) - 1
    sums, counts = np.zeros((size, 3)), np.zeros((size, 4), np.int64)
    for r in range(size):
        for x in range(starts[r], starts[r + 1]):
            into, out = value[x, 1], value[x, 2]
            sums[r, 1] += into + out
            if column[x] == lo + r:
                sums[r, 2] += into
                counts[r, 3] += into != 0.0
            else:
                sums[r, 0] += 2 * (into - out) ** 2
                counts[r, 0] += into != 0.0
                counts[r, 1] += out != 0.0
                counts[r, 2] += into != 0.0 or out != 0.0
    return sums, counts


def sums_of(folder: str, count: int, tied: float) -> Sums:
    """What all blocks of owners say of the direction of pairs."""
    each = np.array(list(blocks.load_blocks(folder, "sums", count)))
    distance, total, own, trace = (math.fsum(column) for column in each.T)
    return Sums(distance, total, own, trace, tied)


def entries_of(folder: str, count: int, n: int, share: float) -> int:
    """How many entries K has, as one machine counts them: K + share K' has both directions of a pair where it has one."""
    into, out, either, own = np.sum(list(blocks.load_blocks(folder, "entries", count)), axis=0)
    return int(2 * either + own) if share else int(into + out + n)


_ENTRIES = ("owner", "other", "into", "out")


def _entries(folder: str, block: int) -> list[Array]:
    """Owner, other, into and out of the entries of K of a block of owners."""
    return [blocks.load_array(folder, f"{name}-{block}") for name in _ENTRIES]


def target_cells(
    block: int, share: float, wanted: Array | None, edges: Array, n: int, folder: str
) -> Iterator[pa.RecordBatch]:
    """The entries of K + share K' from the owners of a block, sent to the blocks of their targets."""
    owner, target, into, out = _entries(folder, block)
    value = out + share * into
    stays = (value != 0) & (owner != target)
    if wanted is not None:
        stays &= wanted[target]
    target, source, value = target[stays], owner[stays], value[stays]
    ptr, order = row_kernels.group_rows(target, n)
    bounds = ptr[edges]
    for number in np.flatnonzero(np.diff(bounds)):
        at = order[bounds[number] : bounds[number + 1]]
        length = np.diff(ptr[edges[number] : edges[number + 1] + 1]).astype(np.int32)
        yield blocks.cells(int(number), block, length, source[at], value[at])


def sent_entries(
    batches: blocks.Batches, lo: int, hi: int
) -> tuple[list[Array], list[Array], list[Array]]:
    """What `target_cells` sent to the targets lo..hi: target, source, value, each in pieces, the first of which is empty."""
    targets = np.arange(lo, hi, dtype=np.int32)
    kinds = (np.int32, np.int32, np.float64)
    found = [[np.empty(0, kind) for kind in kinds]]
    for _, (length, source, value) in blocks.arrays_of(batches, *kinds):
        found.append([np.repeat(targets, length), source, value])
    targets_of, sources, values = (list(parts) for parts in zip(*found, strict=True))
    return targets_of, sources, values


def own_entries(
    owners: Array, share: float, wanted: Array | None, lo: int, hi: int, folder: str
) -> tuple[Array, Array, Array]:
    """The entries of K + share K' into the owners lo..hi: target, source, value."""
    first, last = np.searchsorted(owners, lo, "right") - 1, np.searchsorted(owners, hi, "left")
    found = []
    for block in range(first, last):
        target, source, into, out = _entries(folder, block)
        span = slice(*np.searchsorted(target, (lo, hi)))
        target, source, into, out = (one[span] for one in (target, source, into, out))
        value = into + share * np.where(target == source, into, out)
        stays = value != 0 if wanted is None else (value != 0) & wanted[target]
        found.append((target[stays], source[stays], value[stays]))
    target, source, value = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return target, source, value
