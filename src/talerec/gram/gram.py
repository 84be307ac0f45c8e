"""The Gram: G = S'S and K = S'T, built pair by pair without ever building a row of S.

Grams add: users may be counted in parts and summed, and a blend of two models is a sum of theirs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from talerec.data import kernels
from talerec.data.log import Log
from talerec.data.times import DAY, days
from talerec.errors import TalerecError
from talerec.gram import pairs
from talerec.runtime.arrays import Array, Arrays, Matrix, dense, is_sparse, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.runtime.memory import available_bytes, require
from talerec.runtime.threads import equal_work, run_chunks

logger = logging.getLogger("talerec")

TARGETS = ("single", "multi")  # the next row, or all later ones
NORMS = ("none", "l1", "symmetric")

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
        return Gram(dense(self.G) + dense(other.G), dense(self.K) + dense(other.K))

    def __mul__(self, share: float) -> Gram:
        return Gram(self.G * share, self.K * share)

    __rmul__ = __mul__

    def two_way(self, even: float, tied: float = 0.0) -> Gram:
        """K + share K': a row also leads to what came before it, by as much as direction is chance.

        Of the squared difference between K and K', sampling explains 2 s (sum(K) - tied), s = trace(G) /
        sum(K) being the mean weight of a pair, and `tied` what simultaneous rows have in K: these count
        both ways already. With b that part of it (times `even`, at most 1), the best guess
        of K_ij is (1 - b/2) K_ij + b/2 K_ji, or K_ij + b/(2 - b) K_ji up to a factor.
        """
        turned = self.K.T.asformat(self.K.format) if self.is_sparse else self.K.T
        found = _squared_distance(self.K, turned)
        total, own = float(self.K.sum()), float(self.K.diagonal().sum())
        if not (even and total and found):
            return self
        expected = 2 * float(self.G.diagonal().sum()) * max(1 - (own + tied) / total, 0.0)
        chance = min(even * expected / found, 1.0)
        return Gram(self.G, self.K + chance / (2 - chance) * turned)

    def scaled(self, source: Array, target: Array) -> Gram:
        """diag(source) G diag(source) and diag(source) K diag(target)."""
        return Gram(_times(self.G, source, source), _times(self.K, source, target))


def _squared_distance(left: Matrix, right: Matrix) -> float:
    """The sum of the squared differences of two matrices of one form, without making a third."""
    if not is_sparse(left):
        return float(((left - right) ** 2).sum())
    for matrix in (left, right):
        matrix.sort_indices()
    entries = ((m.indptr, m.indices, m.data) for m in (left, right))
    return float(kernels.squared_distance(*entries))


def _times(matrix: Matrix, rows: Array, columns: Array) -> Matrix:
    """diag(rows) matrix diag(columns), in the form that it has."""
    if not is_sparse(matrix):
        return matrix * rows[:, None] * columns
    made = matrix.multiply(rows[:, None]).multiply(columns[None, :])
    return made.asformat(matrix.format)


# -- rows ------------------------------------------------------------------------------------------


def newest_rows(log: Log, max_history: int) -> Log:
    """Each user's last `max_history` rows: what is cut plays no part at all."""
    recent = log.recent(max_history)
    if not recent.all():
        log = log.keep(recent)
    if log.rows >= 2**31:
        raise TalerecError(f"the log has {log.rows:,} rows; one machine takes up to {2**31 - 1:,}")
    return log


def trend_scale(log: Log, window: float, trend: float, trend_side: str) -> Array:
    """Eq. 14: p ** -trend for every row, p = rows of its item within `window` days (both sides, or past)."""
    if trend == 0:
        return np.ones(log.rows)
    counts: Any = counted(log, window, trend, trend_side).trends
    scale: Array = counts.astype(np.float64) ** -trend
    return scale


def counted(log: Log, window: float, trend: float, trend_side: str) -> Log:
    """The log with the counts that `trend_scale` asks for, where it will ask more than once."""
    if trend == 0 or log.trends is not None:
        return log
    counts = trend_counts(log.item, log.time, len(log.items), window, trend_side)
    return replace(log, trends=counts)


def trend_counts(item: Array, time: Array, items: int, window: float, trend_side: str) -> Array:
    """Eq. 14: for every row, how many rows of its item lie within `window` days."""
    ptr, rows = kernels.group_rows(item, items)
    kernels.sort_groups(ptr, rows, time)
    counts = np.empty(len(item), np.int64)
    counts[rows] = kernels.trend_counts(ptr, time[rows], *trend_span(window, trend_side))
    return counts


def trend_span(window: float, trend_side: str) -> tuple[int, int]:
    """How far the counting of Eq. 14 reaches before a row and after it, in microseconds."""
    span = days(window)
    return span, span if trend_side == "both" else 0


def age_weights(log: Log, decay_user: float) -> Array:
    """exp(-(t_max - t_user) / decay_user) for every row, t_user the user's last time; 0 days: all weigh 1."""
    if decay_user == 0 or not log.rows:
        return np.ones(log.rows)
    last = np.repeat(log.time[log.ptr[1:] - 1], np.diff(log.ptr))  # a user without rows has no row
    latest = log.time.max() if log.latest is None else log.latest
    weights: Array = np.exp((last - latest) / (decay_user * DAY))
    return weights


# -- TALE ------------------------------------------------------------------------------------------


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
    args: Any = (begin, first, after, reach, kernels.ends(log.ptr), step, scale, floor)
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


# -- the family ------------------------------------------------------------------------------------


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
    once = kernels.last_rows(log.ptr, log.item, len(log.items))
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


# -- accumulation ----------------------------------------------------------------------------------


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
    ptr, rows = kernels.group_rows(log.item, n)
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
            run_chunks("gram", lambda a, b: kernels.symmetrise(M, a, b), triangle)
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
    start, middle, items, values = kernels.both_ways(indptr, indices, M)
    count = np.empty(n, np.int64)
    run_chunks(
        "gram",
        lambda a, b: kernels.merge_rows(start, middle, items, values, a, b, count),
        equal_work(start, _CHUNKS),
    )
    bounds = kernels.close_gaps(start, count, items, values)
    items, values = items[: bounds[-1]], values[: bounds[-1]]
    return sparse.csr_array((values, items, shrink_indptr(bounds)), shape=(n, n))


def _pattern(by_item: Arrays, n: int, chunks: list[tuple[int, int]]) -> Array:
    counts = np.zeros(n, np.int64)
    run_chunks("pattern", lambda a, b: kernels.count_pattern(by_item, a, b, counts), chunks)
    return np.concatenate([[0], np.cumsum(counts)])
