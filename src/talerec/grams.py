"""The Gram: G = S'S and K = S'T, built pair by pair without ever building a row of S.

Grams add: users may be counted in parts and summed, and a blend of two models is a sum of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from talerec import kernels
from talerec.arrays import Array, Arrays, Matrix, is_sparse, narrow
from talerec.errors import TalerecError
from talerec.log import Log
from talerec.memory import available_bytes, require
from talerec.threads import equal_work, run_chunks
from talerec.times import DAY, days

logger = logging.getLogger("talerec")

_CHUNKS = 128  # pieces of work; more than any number of cores, so that all stay busy
_SMALL = 4_000  # items: a full dense Gram is so small that its pattern need not be counted
_ADVICE = "use a k-core, or a smaller max_history"
_SPARSE_ENTRY = 12  # bytes: a float64 and an int32


@dataclass(frozen=True, eq=False)
class Gram:
    """G (symmetric) and K (source x target), float64; both sparse (CSR, CSC) or both dense.

    A sparse one is float32 where a memory budget allows no more.
    """

    G: Matrix
    K: Matrix

    @property
    def items(self) -> int:
        return int(self.G.shape[0])

    @property
    def is_sparse(self) -> bool:
        return is_sparse(self.G)

    @property
    def density(self) -> float:
        """The share of entries of G that are stored."""
        return float(self.G.nnz / self.items**2) if self.is_sparse else 1.0

    def __add__(self, other: Gram) -> Gram:
        if self.is_sparse and other.is_sparse:
            return Gram(self.G + other.G, self.K + other.K)
        return Gram(_dense(self.G) + _dense(other.G), _dense(self.K) + _dense(other.K))

    def __mul__(self, share: float) -> Gram:
        return Gram(self.G * share, self.K * share)

    __rmul__ = __mul__


def _dense(matrix: Matrix) -> Array:
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)


# -- TALE ------------------------------------------------------------------------------------------


def trend_scale(log: Log, window: float, trend: float, trend_side: str) -> Array:
    """Eq. 14: p ** -trend for every row, p = rows of its item within `window` days (both sides, or past)."""
    if trend == 0:
        return np.ones(log.rows)
    ptr, rows = kernels.group_rows(log.item, len(log.items))
    kernels.sort_groups(ptr, rows, log.time)
    span = days(window)
    counts = kernels.trend_counts(ptr, log.time[rows], span, span if trend_side == "both" else 0)
    scale = np.empty(log.rows)
    scale[rows] = counts.astype(np.float64) ** -trend
    return scale


def tale_gram(
    log: Log,
    *,
    decay: float,
    floor: float,
    window: float,
    trend: float,
    trend_side: str,
    same_time: str,
    max_history: int,
    memory: int | None = None,
) -> Gram:
    """Eqs. 6, 13, 14: TALE's Gram. `decay` and `window` in days; `memory`: bytes it may take (None: what is free)."""
    recent = log.recent(max_history)
    if not recent.all():
        log = log.keep(recent)
    if log.rows >= 2**31:
        raise TalerecError(f"the log has {log.rows:,} rows; one machine takes up to {2**31 - 1:,}")
    scale = trend_scale(log, window, trend, trend_side)
    step, reach, begin = kernels.tale_intervals(log.ptr, log.time, decay * DAY, floor)
    first, after = _instants(log, same_time)
    rows = (begin, first, after, reach, kernels.ends(log.ptr), step, scale, floor)
    return _accumulate(log, begin, after, rows, kernels.tale_sparse, kernels.tale_dense, memory)


def _instants(log: Log, same_time: str) -> tuple[Array, Array]:
    """Which rows are simultaneous: with `ordered`, each row is an instant of its own."""
    if same_time == "joint":
        return kernels.instants(log.ptr, log.time)
    places = np.arange(log.rows, dtype=np.int32)
    return places, places + np.int32(1)


# -- accumulation ----------------------------------------------------------------------------------


def _accumulate(
    log: Log,
    begin: Array,
    after: Array,
    args: tuple[Any, ...],
    sparse_kernel: Callable[..., None],
    dense_kernel: Callable[..., None],
    memory: int | None,
) -> Gram:
    """Sum a model's pairs (s in begin[q]..after[q] for every row q) into a Gram, sparse while that is smaller."""
    n = len(log.items)
    ptr, rows = kernels.group_rows(log.item, n)
    by_item = (ptr, rows, log.item, begin, after)
    pairs = (after - begin)[rows].astype(np.int64)
    work = np.concatenate([[0], np.cumsum(pairs + 16)])[ptr]
    chunks = equal_work(work, _CHUNKS)
    longest = int(np.diff(log.ptr).max(initial=1))

    small = n <= _SMALL and work[-1] >= n * n
    indptr = None if small else _pattern(by_item, n, chunks)
    if indptr is None or 2 * indptr[-1] * _SPARSE_ENTRY >= n * n * 8:
        require(2 * 8 * n * n, f"the dense Gram of {n:,} items", _ADVICE, memory)
        M, KT = np.empty((n, n)), np.empty((n, n))
        run_chunks("gram", lambda a, b: dense_kernel(args, by_item, longest, a, b, M, KT), chunks)
        triangle = equal_work(np.arange(n + 1.0) ** 2, _CHUNKS)
        run_chunks("gram", lambda a, b: kernels.symmetrise(M, a, b), triangle)
        return Gram(M, KT.T)
    kind = _value_type(indptr[-1], memory)
    indices = np.empty(indptr[-1], np.int32)
    M, KT = np.empty(indptr[-1], kind), np.empty(indptr[-1], kind)
    run_chunks(
        "gram",
        lambda a, b: sparse_kernel(args, by_item, longest, a, b, indptr, indices, M, KT),
        chunks,
    )
    G = _symmetric(indptr, indices, M)
    return Gram(G, sparse.csc_array((KT, indices, narrow(indptr)), shape=(n, n)))


def _value_type(entries: int, memory: int | None) -> type:
    """float64, or float32 where only that fits the budget; refused, with sizes, where neither does."""
    needed = {kind: entries * (3 * 4 + 4 * kind().itemsize) for kind in (np.float64, np.float32)}
    if needed[np.float64] <= (available_bytes() if memory is None else memory):
        return np.float64  # per entry: pattern, M and K, and M + M' before it is merged
    require(needed[np.float32], f"the Gram of {entries:,} pairs of items", _ADVICE, memory)
    logger.warning("the Gram is kept in float32: float64 does not fit the memory budget")
    return np.float32


def _symmetric(indptr: Array, indices: Array, M: Array) -> Matrix:
    """M + M', sparse, with no more memory than both take side by side."""
    n = len(indptr) - 1
    start, middle, items, values = kernels.both_ways(indptr, indices, M)
    count = np.empty(n, np.int64)
    run_chunks(
        "gram",
        lambda a, b: kernels.merge_rows(start, middle, items, values, a, b, count),
        equal_work(start, _CHUNKS),
    )
    bounds = kernels.close_gaps(start, count, items, values)
    items, values = items[: bounds[-1]], values[: bounds[-1]]
    return sparse.csr_array((values, items, narrow(bounds)), shape=(n, n))


def _pattern(by_item: Arrays, n: int, chunks: list[tuple[int, int]]) -> Array:
    counts = np.zeros(n, np.int64)
    run_chunks("pattern", lambda a, b: kernels.count_pattern(by_item, a, b, counts), chunks)
    return np.concatenate([[0], np.cumsum(counts)])
