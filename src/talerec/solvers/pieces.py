"""The local solver where half of G is larger than the memory that it may take.

Which rows of the half a target reads is known before any of them is read: those of its sources. So targets are taken
in groups whose sources' rows fit, and these are read once for the group, of each row the columns that are sources too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from talerec.runtime.arrays import Array, Arrays
from talerec.runtime.jit import kernel
from talerec.solvers.compressed import Compressed
from talerec.solvers.local import limits_of, local_columns
from talerec.solvers.sources import Candidates, Equations, Limits, choose_sources

#: Rows first..last of half of G: their columns and values, one row after the other.
Reader = Callable[[int, int], tuple[Array, Array]]


def local_pieces(
    starts: Array,
    read: Reader,
    room: int,
    lengths: Array,
    K: Arrays,
    diagonal: Array,
    neighbors: int,
    entries: int,
    a: int,
    b: int,
) -> Iterator[tuple[Array, Array, Array]]:
    """What `local_columns` gives to the targets a..b, group by group, with about `room` entries of the half at a time.

    starts: where the rows of the half begin; `read` gives them.
    """
    n, columns = len(diagonal), Compressed(*K)
    limits = limits_of(n, neighbors, entries, own=True)
    same = np.arange(n, dtype=np.int32)
    nothing = Compressed(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0))
    equations = Equations(nothing, lengths, columns, diagonal, same, same)
    marks = np.zeros(n, np.uint8)
    first = a
    while first < b:
        last, sources = _group(equations, limits, starts, first, b, room, marks)
        half = _gathered(starts, read, room, np.sort(sources), marks)
        some = (np.clip(columns.starts, columns.starts[first], columns.starts[last]), *K[1:])
        yield local_columns(half, lengths, some, diagonal, neighbors, entries, first, last)
        marks[sources] = 0
        first = last


def _group(
    equations: Equations, limits: Limits, starts: Array, a: int, b: int, room: int, marks: Array
) -> tuple[int, Array]:
    """Targets from a on whose sources' rows have no more than `room` entries (one target at least): their end, and the sources."""
    end, found = _mark_sources(equations, limits, starts, a, b, room, marks)
    return int(end), found


@kernel
def _mark_sources(
    equations: Equations, limits: Limits, starts: Array, a: int, b: int, room: int, marks: Array
) -> tuple[int, Array]:
    """See `_group`; marks[r] becomes 1 for every source r of the group, and only for these."""
    n, K = len(equations.diagonal), equations.K
    found = Candidates(
        np.zeros(n), np.empty(n + 1, np.int32), np.empty(n + 1, np.int32), np.empty(n),
        np.empty(n, np.int32),
    )  # fmt: skip
    listed, held, entries = np.empty(n, np.int32), 0, 0
    for j in range(a, b):
        for x in range(K.starts[j], K.starts[j + 1]):
            found.right[equations.rank[K.indices[x]]] = K.values[x]
        count, size = choose_sources(equations, limits, j, found)
        for x in range(K.starts[j], K.starts[j + 1]):
            found.right[equations.rank[K.indices[x]]] = 0.0
        before = held
        for c in range(count + size):
            r = found.sources[c] if c < count else found.support[c - count]
            if not marks[r]:
                marks[r] = 1
                listed[held] = r
                held += 1
                entries += starts[r + 1] - starts[r]
        if entries > room and j > a:
            for x in range(before, held):
                marks[listed[x]] = 0
            return j, listed[:before].copy()
    return b, listed[:held].copy()


def _gathered(
    starts: Array, read: Reader, room: int, sources: Array, marks: Array
) -> tuple[Array, Array, Array]:
    """Rows of the half, as a half with no other rows and no other columns than those of sources."""
    lengths = np.zeros(len(starts) - 1, np.int64)
    columns, values = [np.empty(0, np.int32)], [np.empty(0)]
    for a, b in _runs(starts, sources, room):
        column, value = read(a, b)
        kept = marks[column] > 0
        row = np.repeat(np.arange(a, b), np.diff(starts[a : b + 1]))
        kept &= marks[row] > 0
        lengths[a:b] = np.bincount(row[kept] - a, minlength=b - a)
        columns.append(column[kept])
        values.append(value[kept])
    made: Array = np.concatenate([[0], np.cumsum(lengths)])
    return made, np.concatenate(columns), np.concatenate(values)


_NEAR = 4096  # entries between two rows that cost less to read than to go around


def _runs(starts: Array, sources: Array, room: int) -> list[tuple[int, int]]:
    """Rows to read in one go, ascending: neighbours together, while they have no more than `room` entries."""
    found: list[tuple[int, int]] = []
    for r in sources.tolist():
        a, b = found[-1] if found else (r, r)
        if found and starts[r] - starts[b] <= _NEAR and starts[r + 1] - starts[a] <= room:
            found[-1] = (a, r + 1)
        else:
            found.append((r, r + 1))
    return found
