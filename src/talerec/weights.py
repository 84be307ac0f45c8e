"""Weights: B from source (row) to target (column), and the scores x @ B of a history x.

An item has a score when some history item has a stored weight to it (one that is not zero), or
when the model gives it a base score. Every other item has none and is never ranked.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from talerec.arrays import Array, Arrays, is_sparse
from talerec.histories import Histories
from talerec.jit import kernel, template


@dataclass(frozen=True, eq=False)
class Query:
    """Histories as sparse rows x: query q weighs items[ptr[q]:ptr[q+1]]; no item twice in a query."""

    ptr: Array
    item: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @classmethod
    def empty(cls, queries: int) -> Query:
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int32), np.empty(0))


@dataclass(frozen=True, eq=False)
class Weights:
    """B, dense float32 (C order) or CSR with float32 values; `base` adds a score that no history is asked for.

    `base` is float64, NaN for an item without one, or None.
    """

    matrix: Any
    base: Array | None = None
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def items(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def is_sparse(self) -> bool:
        return is_sparse(self.matrix)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What the kernels read: (dense, base), or (indptr, indices, data, base)."""
        base = np.empty(0) if self.base is None else self.base
        if self.is_sparse:
            return self.matrix.indptr, self.matrix.indices, self.matrix.data, base
        return self.matrix, base

    def scratch(self) -> tuple[Array, ...]:
        """This thread's work space, one entry per item: scores, candidates, marks, hidden.

        Kernels leave it as they found it: marks and hidden all zero.
        """
        held: tuple[Array, ...] | None = getattr(self._scratch, "arrays", None)
        if held is None:
            n = self.items
            candidates = np.empty(n, np.int32) if self.is_sparse else np.arange(n, dtype=np.int32)
            held = (np.zeros(n), candidates, np.zeros(n, np.uint8), np.zeros(n, np.uint8))
            self._scratch.arrays = held
        return held

    def entry(self, source: int, target: int) -> float:
        """B[source, target], 0 where none is stored."""
        if not self.is_sparse:
            return float(self.matrix[source, target])
        lo, hi = self.matrix.indptr[source], self.matrix.indptr[source + 1]
        x = lo + np.searchsorted(self.matrix.indices[lo:hi], target)
        return float(self.matrix.data[x]) if x < hi and self.matrix.indices[x] == target else 0.0


def no_weights(n: int) -> Any:
    """B with nothing in it."""
    return sparse.csr_array((n, n), dtype=np.float32)


# -- scores ----------------------------------------------------------------------------------------
#
# score_*(weights, items, weights of the items, scratch) -> number of candidates. Scores stand at
# scores[j] for each candidate j; NaN marks one without a score.


@template
def score_dense(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    B, base = arrays
    scores = scratch[0]
    n = len(scores)
    scores[:] = 0.0
    for x in range(len(item)):
        row, w = B[item[x]], weight[x]
        for j in range(n):
            scores[j] += w * row[j]
    for j in range(n):
        if scores[j] == 0.0:
            stored = False
            for x in range(len(item)):
                stored = stored or B[item[x], j] != 0.0
            if not stored:
                scores[j] = np.nan
    if len(base):
        for j in range(n):
            if not np.isnan(base[j]):
                scores[j] = base[j] + (0.0 if np.isnan(scores[j]) else scores[j])
    return n


@template
def score_sparse(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    indptr, indices, values, base = arrays
    scores, candidates, marks = scratch[:3]
    found = 0
    if len(base):
        for j in range(len(base)):
            if not np.isnan(base[j]):
                scores[j] = base[j]
                marks[j] = 1
                candidates[found] = j
                found += 1
    for x in range(len(item)):
        w = weight[x]
        for e in range(indptr[item[x]], indptr[item[x] + 1]):
            j = indices[e]
            if values[e] == 0.0:
                continue
            if not marks[j]:
                marks[j] = 1
                scores[j] = 0.0
                candidates[found] = j
                found += 1
            scores[j] += w * values[e]
    for c in range(found):
        marks[candidates[c]] = 0
    return found


# -- histories -------------------------------------------------------------------------------------


def recency(
    histories: Histories, moments: Array, places: float, longest: int, marks: Array
) -> Query:
    """x_i = exp(-place / places) for the items of each history; see `_recency`."""
    rows = (histories.start, histories.stop, histories.item)
    return Query(*_recency(*rows, moments, places, longest, marks))


@kernel
def _recency(
    start: Array, stop: Array, item: Array, time: Array, recency: float, longest: int, marks: Array
) -> tuple[Array, Array, Array]:
    """x_i = exp(-place / recency), the last occurrence of an item counting.

    A row's place is the number of rows strictly later in `time`. Rows beyond the last `longest`
    and items that are unknown (-1) weigh nothing, but keep their places.
    """
    room = 0
    for q in range(len(start)):
        room += min(stop[q] - start[q], longest)
    ptr = np.zeros(len(start) + 1, np.int64)
    items, weights = np.empty(room, np.int32), np.empty(room)
    found = 0
    for q in range(len(start)):
        place = 0
        for r in range(stop[q] - 1, max(start[q], stop[q] - longest) - 1, -1):
            if r + 1 < stop[q] and time[r] < time[r + 1]:
                place = stop[q] - 1 - r
            i = item[r]
            if i >= 0 and not marks[i]:
                marks[i] = 1
                items[found] = i
                weights[found] = np.exp(-place / recency)
                found += 1
        for x in range(ptr[q], found):
            marks[items[x]] = 0
        ptr[q + 1] = found
    return ptr, items[:found], weights[:found]
