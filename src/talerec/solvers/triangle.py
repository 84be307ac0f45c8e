"""Half of a symmetric matrix, its rows and columns by rank.

Rank 0 has the most entries in its row of G. Below the diagonal each pair stands in the row of the item
with fewer entries, so no row is long, not even that of the most popular item.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from talerec.runtime.arrays import Array, Matrix
from talerec.runtime.jit import kernel, unsigned
from talerec.runtime.threads import equal_work, run_chunks
from talerec.solvers.compressed import Compressed, by_row

_CHUNKS = 64  # of work, whatever the number of threads


@dataclass(frozen=True, eq=False)
class Half:
    """A symmetric matrix: what is below its diagonal, rows and columns by rank; the rank of each item; the diagonal by item."""

    lower: Compressed
    rank: Array
    diagonal: Array

    @property
    def items(self) -> int:
        """The number of items."""
        return len(self.rank)

    @property
    def item(self) -> Array:
        """The item of each rank."""
        found = np.empty(self.items, np.int32)
        found[self.rank] = np.arange(self.items, dtype=np.int32)
        return found


def halved(G: Matrix, rank: Array | None = None) -> Half:
    """Half of a symmetric matrix; items are ranked by their entries unless ranks are given."""
    lines = by_row(G)
    rank = ranked(lines)[0] if rank is None else rank
    return Half(lower_half(lines, rank), rank, np.asarray(G.diagonal()))


def ranked(G: Compressed) -> tuple[Array, Array]:
    """The rank of each item by its entries in G, most first, and the item of each rank."""
    n = len(G.starts) - 1
    entries = np.empty(n, np.int64)
    chunks = equal_work(G.starts, _CHUNKS)
    run_chunks("solve", lambda a, b: _count_rows(G, a, b, entries), chunks)
    item = np.argsort(-entries, kind="stable").astype(np.int32)
    rank = np.empty(n, np.int32)
    rank[item] = np.arange(n, dtype=np.int32)
    return rank, item


def lower_half(G: Compressed, rank: Array) -> Compressed:
    """The entries of G below the diagonal, rows and columns by rank."""
    count = np.empty(len(rank), np.int64)
    chunks = equal_work(G.starts, _CHUNKS)
    run_chunks("solve", lambda a, b: _count_half(G, rank, a, b, count), chunks)
    starts = np.concatenate([[0], np.cumsum(count)])
    room = starts[-1]
    half = Compressed(starts, np.empty(room, np.int32), np.empty(room, G.values.dtype))
    run_chunks("solve", lambda a, b: _fill_half(G, rank, a, b, half), chunks)
    return half


@kernel
def _count_rows(G: Compressed, a: int, b: int, count: Array) -> None:
    """How many entries the rows a..b of G have; a stored zero is none."""
    for i in range(a, b):
        found = 0
        for x in unsigned(G.starts[i], G.starts[i + 1]):
            found += G.values[x] != 0.0
        count[i] = found


@kernel
def _count_half(G: Compressed, rank: Array, a: int, b: int, count: Array) -> None:
    """How many entries of rows a..b of G lead to an item of lower rank, by rank of the row."""
    for i in range(a, b):
        found = 0
        for x in unsigned(G.starts[i], G.starts[i + 1]):
            found += G.values[x] != 0.0 and rank[np.uint32(G.indices[x])] < rank[i]
        count[rank[i]] = found


@kernel
def _fill_half(G: Compressed, rank: Array, a: int, b: int, half: Compressed) -> None:
    """Write the entries that `_count_half` counts: row and column by rank."""
    for i in range(a, b):
        place = half.starts[rank[i]]
        for x in range(G.starts[i], G.starts[i + 1]):
            if G.values[x] != 0.0 and rank[G.indices[x]] < rank[i]:
                half.indices[place], half.values[place] = rank[G.indices[x]], G.values[x]
                place += 1
