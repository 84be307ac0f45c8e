"""Builders of Grams: pair by pair, without ever building a row of S."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.errors import TalerecError
from talerec.gram import accumulators, pairs, sparse_kernels
from talerec.gram.gram import Gram
from talerec.gram.row_weights import age_weights, newest_rows, trend_scale
from talerec.runtime.arrays import Array, Arrays, Matrix, is_sparse, shrink_indptr
from talerec.runtime.memory import available_bytes, require
from talerec.runtime.threads import equal_work, run_chunks

logger = logging.getLogger("talerec")

TARGETS = ("single", "multi")  # the next row, or all later ones
NORMS = ("none", "l1", "symmetric")


_CHUNKS = 128  # pieces of work; more than any number of cores, so that all stay busy
_SMALL = 4_000  # items: a full dense Gram is so small that its pattern need not be counted
_ADVICE = "use a k-core, or a smaller max_history"
_SPARSE_ENTRY = 12  # bytes: a float64 and an int32


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
    targets: str = "single",
    memory: int | None = None,
) -> Gram:
    """Eqs. 6, 13, 14: TALE's Gram. `decay` and `window` in days; `memory`: bytes it may take (None: what is free)."""
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, trend_side)
    step, reach, begin = pairs.tale_intervals(log.ptr, log.time, decay * DAY, floor)
    first, after = _instants(log, same_time)
    args: Any = (begin, first, after, reach, row_kernels.ends(log.ptr), step, scale, floor)
    run = (pairs.tale_sparse, pairs.tale_dense)
    if targets == "multi":
        if same_time == "joint":
            raise TalerecError("same_time=joint knows one target at a time: take targets=single")
        args = (args, *pairs.tale_several(log.ptr, log.time, decay * DAY, floor, step, reach))
        run = (pairs.tale_multi_sparse, pairs.tale_multi_dense)
    return Gram(*_accumulate(log, begin, after, args, run, memory))


def _instants(log: Log, same_time: str) -> tuple[Array, Array]:
    """Which rows are simultaneous: with `ordered`, each row is an instant of its own."""
    if same_time == "joint":
        return pairs.instants(log.ptr, log.time)
    after = _next(log)
    return after - np.int32(1), after


def tied_weight(log: Log, window: float, trend: float, max_history: int) -> float:
    """What simultaneous rows of different items have in K with joint instants: each is a source of the others."""
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, "both")
    first, _ = pairs.instants(log.ptr, log.time)
    together = np.bincount(first, scale, log.rows)
    return float((together**2).sum() - (scale**2).sum())


def slit_gram(
    log: Log,
    *,
    position: float,
    max_history: int,
    targets: str = "multi",
    norm: str = "none",
    decay_user: float = 0.0,
    window: float = 0.0,
    trend: float = 0.0,
    trend_side: str = "both",
    memory: int | None = None,
) -> Gram:
    """SLIT's Gram: sources and targets weighed by their places on either side of each l.

    norm: divide each row of S and T by its sum (`l1`), or each by the roots of its row and column sums
    (`symmetric`, Eq. 4).
    """
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, trend_side)
    multi, fading = targets == "multi", math.exp(-1 / position)
    of_source, of_target, *columns = pairs.place_sums(log.ptr, scale, fading, multi)
    source_share, target_share = (_row_share(sums, norm) for sums in (of_source, of_target))
    weight = age_weights(log, decay_user)
    ahead = pairs.place_ahead(log.ptr, source_share * source_share * weight, fading)
    fade = _until_zero(np.exp(-np.arange(_longest(log) + 1) / position))
    begin = _begin(log, len(fade) - 1)
    args = (begin, ahead, source_share * target_share * weight, scale, fade, multi)
    run = (pairs.place_sparse, pairs.place_dense)
    gram = Gram(*_accumulate(log, begin, _next(log), args, run, memory))
    if norm != "symmetric":
        return gram
    return gram.scaled(*(_column_share(log, entries) for entries in columns))


def slis_gram(
    log: Log,
    *,
    max_history: int,
    norm: str = "none",
    decay_user: float = 0.0,
    memory: int | None = None,
) -> Gram:
    """X'WX, X the users' items, each once; K is the same matrix."""
    log = newest_rows(log, max_history)
    age = age_weights(log, decay_user)
    once = row_kernels.last_rows(log.ptr, log.item, len(log.items))
    log, age = log.keep(once), age[once]
    count = np.repeat(np.diff(log.ptr), np.diff(log.ptr)).astype(np.float64)
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr)).astype(np.int32)
    args = (begin, age * _row_share(count, norm) ** 2)
    run = (pairs.alike_sparse, pairs.alike_dense)
    G, _ = _accumulate(log, begin, _next(log), args, run, memory, directed=False)
    gram = Gram(G, _transposed(G))
    if norm != "symmetric":
        return gram
    share = _column_share(log, np.ones(log.rows))
    return gram.scaled(share, share)


def gap_counts(log: Log, weight: Array, *, max_history: int, memory: int | None = None) -> Matrix:
    """K alone: a row that stands d rows before another counts weight[d] (d from 1 on)."""
    log = newest_rows(log, max_history)
    begin = _begin(log, len(weight) - 1)
    run = (pairs.gap_sparse, pairs.gap_dense)
    _, K = _accumulate(log, begin, _next(log), (begin, weight), run, memory, symmetric=False)
    return K


def _row_share(sums: Array, norm: str) -> Array:
    """What a row is multiplied by, given its sum; rows that are empty stay so."""
    power = {"none": 0.0, "l1": -1.0, "symmetric": -0.5}[norm]
    return np.power(sums, power, out=np.zeros_like(sums), where=sums > 0)


def _column_share(log: Log, entries: Array) -> Array:
    """One over the root of each item's sum of `entries`, one per row."""
    sums = np.bincount(log.item, entries, len(log.items))
    return np.power(sums, -0.5, out=np.zeros_like(sums), where=sums > 0)


def _until_zero(weights: Array) -> Array:
    """Falling weights, up to the first that is zero."""
    return weights[: int(np.count_nonzero(weights)) + 1]


def _longest(log: Log) -> int:
    return int(np.diff(log.ptr).max(initial=1))


def _begin(log: Log, gap: int) -> Array:
    """For every row, the user's first row that stands no more than `gap` rows before it."""
    start = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    first: Array = np.maximum(start, np.arange(log.rows) - gap).astype(np.int32)
    return first


def _next(log: Log) -> Array:
    """For every row, the one after it: rows are in order, and none is simultaneous."""
    return np.arange(1, log.rows + 1, dtype=np.int32)


def _accumulate(
    log: Log,
    begin: Array,
    after: Array,
    args: tuple[Any, ...],
    run: tuple[Callable[..., None], Callable[..., None]],
    memory: int | None,
    *,
    symmetric: bool = True,
    directed: bool = True,
) -> tuple[Matrix, Matrix]:
    """Sum a model's pairs (s in begin[q]..after[q] for every row q) into G and K, sparse while that is smaller.

    run: the pairs' kernels for sparse and for dense. Not `symmetric`: no G. Not `directed`: no K.
    """
    n = len(log.items)
    sparse_kernel, dense_kernel = run
    ptr, rows = row_kernels.group_rows(log.item, n)
    by_item = (ptr, rows, log.item, begin, after)
    pairs_of = (after - begin)[rows].astype(np.int64)
    work = np.concatenate([[0], np.cumsum(pairs_of + 16)])[ptr]
    chunks = equal_work(work, _CHUNKS)
    longest = _longest(log)
    parts = (symmetric, directed)

    small = n <= _SMALL and work[-1] >= n * n
    indptr = None if small else _pattern(by_item, n, chunks)
    if indptr is None or sum(parts) * indptr[-1] * _SPARSE_ENTRY >= n * n * 8:
        require(sum(parts) * 8 * n * n, f"the dense Gram of {n:,} items", _ADVICE, memory)
        M, KT = (np.empty((n if wanted else 0, n)) for wanted in parts)
        run_chunks("gram", lambda a, b: dense_kernel(args, by_item, longest, a, b, M, KT), chunks)
        if symmetric:
            triangle = equal_work(np.arange(n + 1.0) ** 2, _CHUNKS)
            run_chunks("gram", lambda a, b: accumulators.symmetrise(M, a, b), triangle)
        return M, KT.T
    kind = _value_type(indptr[-1], parts, memory)
    indices = np.empty(indptr[-1], np.int32)
    M, KT = (np.empty(indptr[-1] if wanted else 0, kind) for wanted in parts)
    run_chunks(
        "gram",
        lambda a, b: sparse_kernel(args, by_item, longest, a, b, (indptr, indices), M, KT),
        chunks,
    )
    G = _symmetric(indptr, indices, M) if symmetric else None
    K = sparse.csc_array((KT, indices, shrink_indptr(indptr)), shape=(n, n)) if directed else None
    return G, K


def _value_type(entries: int, parts: tuple[bool, bool], memory: int | None) -> type:
    """float64, or float32 where only that fits the budget; refused, with sizes, where neither does."""
    symmetric, directed = parts  # per entry: the pattern, M, K, and M + M' before it is merged
    places, values = 1 + 2 * symmetric, 3 * symmetric + directed
    needed = {
        kind: entries * (4 * places + values * kind().itemsize) for kind in (np.float64, np.float32)
    }
    if needed[np.float64] <= (available_bytes() if memory is None else memory):
        return np.float64
    require(needed[np.float32], f"the Gram of {entries:,} pairs of items", _ADVICE, memory)
    logger.warning("the Gram is kept in float32: float64 does not fit the memory budget")
    return np.float32


def _transposed(G: Matrix) -> Matrix:
    """A symmetric G by column, without a copy."""
    if not is_sparse(G):
        return G.T
    return sparse.csc_array((G.data, G.indices, G.indptr), shape=G.shape)


def _symmetric(indptr: Array, indices: Array, M: Array) -> Matrix:
    """M + M', sparse, with no more memory than both take side by side."""
    n = len(indptr) - 1
    start, middle, items, values = sparse_kernels.both_ways(indptr, indices, M)
    count = np.empty(n, np.int64)
    run_chunks(
        "gram",
        lambda a, b: sparse_kernels.merge_rows(start, middle, items, values, a, b, count),
        equal_work(start, _CHUNKS),
    )
    bounds = sparse_kernels.close_gaps(start, count, items, values)
    items, values = items[: bounds[-1]], values[: bounds[-1]]
    return sparse.csr_array((values, items, shrink_indptr(bounds)), shape=(n, n))


def _pattern(by_item: Arrays, n: int, chunks: list[tuple[int, int]]) -> Array:
    counts = np.zeros(n, np.int64)
    run_chunks("pattern", lambda a, b: accumulators.count_pattern(by_item, a, b, counts), chunks)
    return np.concatenate([[0], np.cumsum(counts)])
