"""Half of a symmetric matrix, and what is to be added to it: row by row, each pair where it stood."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array, Matrix, readonly
from talerec.runtime.jit import kernel
from talerec.runtime.threads import equal_work, run_chunks
from talerec.solvers.compressed import Compressed
from talerec.solvers.triangle import Half, halved

_CHUNKS = 64  # of work, whatever the number of threads
_ROUNDING = 1000  # times the precision: what is less, of what was there, is what subtracting leaves over of nothing


class Sum(NamedTuple):
    """Two matrices by row, and the share of an entry that is as good as nothing."""

    old: Compressed
    more: Compressed
    least: float


def grown(half: Half, change: Matrix) -> tuple[Half, Half]:
    """The half plus a change (CSR), and the half of the change; items that the half does not know get the last ranks."""
    n, known = change.shape[0], half.items
    rank = np.concatenate([half.rank, np.arange(known, n, dtype=np.int32)]).astype(np.int32)
    more = halved(change, rank)
    starts = np.concatenate([half.lower.starts, np.full(n - known, half.lower.starts[-1])]).astype(
        np.int64
    )
    old = Compressed(readonly(starts), *(readonly(part) for part in half.lower[1:]))
    least = _ROUNDING * float(np.finfo(old.values.dtype).eps)
    both = Sum(old, more.lower, least)
    count = np.empty(n, np.int64)
    chunks = equal_work(starts + np.arange(n + 1), _CHUNKS)
    run_chunks("gram", lambda a, b: _count_sum(both, a, b, count), chunks)
    ends = np.concatenate([[0], np.cumsum(count)])
    out = Compressed(ends, np.empty(ends[-1], np.int32), np.empty(ends[-1], old.values.dtype))
    run_chunks("gram", lambda a, b: _write_sum(both, a, b, out), chunks)
    before = np.concatenate([half.diagonal, np.zeros(n - known)])
    diagonal = before + more.diagonal
    diagonal[diagonal <= least * before] = 0.0
    return Half(out, rank, diagonal), more


@kernel
def _count_sum(both: Sum, a: int, b: int, count: Array) -> None:
    """How many entries the rows a..b of the sum have."""
    old, more, _ = both
    mark = np.full(len(count), -1, np.int32)
    for r in range(a, b):
        found = old.starts[r + 1] - old.starts[r]
        if more.starts[r] < more.starts[r + 1]:
            for x in range(old.starts[r], old.starts[r + 1]):
                mark[old.indices[x]] = r
            for y in range(more.starts[r], more.starts[r + 1]):
                found += mark[more.indices[y]] != r
        count[r] = found


@kernel
def _write_sum(both: Sum, a: int, b: int, out: Compressed) -> None:
    """Write the rows a..b of the sum: entries that were there in their order, then new ones."""
    old, more, least = both
    place = np.zeros(len(out.starts) - 1, np.int64)  # of an item in the row, from 1 on
    for r in range(a, b):
        first, begin, end = out.starts[r], old.starts[r], old.starts[r + 1]
        for x in range(begin, end):
            out.indices[first + x - begin] = old.indices[x]
            out.values[first + x - begin] = old.values[x]
        if more.starts[r] == more.starts[r + 1]:
            continue
        for x in range(begin, end):
            place[old.indices[x]] = first + x - begin + 1
        free = first + end - begin
        for y in range(more.starts[r], more.starts[r + 1]):
            at = place[more.indices[y]] - 1
            if at < 0:
                out.indices[free], out.values[free] = more.indices[y], more.values[y]
                free += 1
            else:
                total = out.values[at] + more.values[y]
                out.values[at] = total if total > least * out.values[at] else 0.0
        for x in range(begin, end):
            place[old.indices[x]] = 0
