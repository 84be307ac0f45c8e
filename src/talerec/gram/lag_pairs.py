"""The pairs of rows of SLIT and rules, weighted by lag in rows, and of SLIS, all equal.

Every `*_pairs` function writes, for a row q, the coefficients of the rows s in begin[q]..after[q]
of the same user, in O(1) each, at s - begin[q]. `accumulate` adds them up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.gram.accumulate_kernels import (
    DenseSums,
    PairCoefficients,
    RowsByItem,
    SparseSums,
    accumulate_dense,
    accumulate_sparse,
)
from talerec.runtime import Array, kernel

# -- by position: SLIT -----------------------------------------------------------------------------


class SlitRows(NamedTuple):
    """What SLIT's pairs read: an entry per log row, where rows are numbers of log rows.

    S and T have a row per log row l (a training example): sources are the user's rows at or before
    l, targets those after it. G = S'S and K = S'T sum up pairs of a user's rows.
    """

    begin: Array  # the user's first row whose weight for this row is not zero
    tail: Array  # decayed sum of the examples' squared factors from this row on (`slit_tails`)
    factor: Array  # multiplies the products of the example whose sources end at this row
    scale: Array  # p ** -trend, p being the number of rows of the item around it in time
    lag_weights: Array  # exp(-d / position), by lag d in rows
    multi: bool  # every later row is a target, not the next alone


@kernel
def slit_sums(ptr: Array, scale: Array, rate: float, multi: bool) -> tuple[Array, ...]:
    """Return four arrays of sums over SLIT's S and T, with one entry per log row r.

    S and T have a row per log row: sources are the user's rows up to r, weighted by scale times
    rate ** lag, and targets those after it (all if `multi`, else the next), weighted by scale times
    rate ** (lag - 1). User u has the rows ptr[u]..ptr[u + 1]. scale: a factor of each row. rate:
    exp(-1 / position), the decay per row.

    - source, target: sums of row r of S and of T
    - as_source, as_target: what r adds to the sum of its item's column of S and of T
    """
    n = ptr[-1]
    source, target, as_source, as_target = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for u in range(len(ptr) - 1):
        before = later = 0.0
        for r in range(ptr[u], ptr[u + 1]):
            if r > ptr[u]:
                later = 1.0 + rate * later if multi else 1.0
            as_target[r] = scale[r] * later
            before = scale[r] + rate * before
            source[r] = before
        coming = ahead = 0.0
        for r in range(ptr[u + 1] - 2, ptr[u] - 1, -1):
            coming = scale[r + 1] + (rate * coming if multi else 0.0)
            ahead = 1.0 + rate * ahead
            target[r] = coming
            as_source[r] = scale[r] * ahead
    return source, target, as_source, as_target


@kernel
def slit_tails(ptr: Array, share: Array, rate: float) -> Array:
    """Return, for each log row q, the sum over l in q..L-1 of share[l] rate^(2(l - q)).

    L is the user's last row, which no target follows. User u has the rows ptr[u]..ptr[u + 1].
    share: the weight of the training example whose sources end at row l.
    """
    tail = np.zeros(ptr[-1])
    for u in range(len(ptr) - 1):
        for q in range(ptr[u + 1] - 2, ptr[u] - 1, -1):
            tail[q] = share[q] + rate * rate * tail[q + 1]
    return tail


@kernel
def slit_pairs(args: SlitRows, q: int, out: PairCoefficients) -> int:
    """Write SLIT's coefficients of the pairs (s, q), s in begin[q]..q; return the first s.

    Entry s - begin[q] of out.g adds to M (G = S'S = M + M'), of out.k to K = S'T. args: per log
    row, begin (the first row that it forms a pair with), tail, factor and scale; lag_weights:
    exp(-d / position) by lag d in rows; multi: all later rows are targets, else the next alone.
    Row l splits a history: a source s <= l weighs exp(-(l - s)/position), a target h > l weighs
    exp(-(h - l - 1)/position). Every l between s and h gives the same product, so K counts them:
    sum over l in s..h-1 of factor[l], times lag_weights[h - 1 - s]. With one target (h = l + 1)
    only l = h - 1 is there.
    """
    begin, tail, factor, scale, lag_weights, multi = args
    g, k, lo = out.g, out.k, begin[q]
    total = 0.0
    for s in range(q - 1, lo - 1, -1):
        pair = scale[s] * scale[q]
        total = total + factor[s] if multi else factor[q - 1]
        g[s - lo] = pair * lag_weights[q - s] * tail[q]
        k[s - lo] = pair * lag_weights[q - 1 - s] * total
    g[q - lo] = 0.5 * scale[q] * scale[q] * tail[q]
    k[q - lo] = 0.0
    return lo  # type: ignore[no-any-return]


# -- by lag (rules), and all equal (SLIS) ----------------------------------------------------------


class LagRows(NamedTuple):
    """What the pairs of sequential rules read of a log's rows.

    A pair has a source row and a target row of one user; rows are numbers of log rows.
    """

    begin: Array  # the first row of its user that each log row forms a pair with
    lag_weights: Array  # by lag in rows


class WeightedRows(NamedTuple):
    """What the pairs of the model SLIS read of a log's rows.

    A pair has a source row and a target row of one user; rows are numbers of log rows.
    """

    begin: Array  # the first row of its user that each log row forms a pair with
    weight: Array  # of each log row


@kernel
def lag_pairs(args: LagRows, q: int, out: PairCoefficients) -> int:
    """Write rules' coefficients of pairs (s, q), K's weights by lag; return the first s.

    Source row s and target row q are of one user, s in begin[q]..q; entry s - begin[q] of out.g and
    out.k is written: K adds lag_weights[q - s], G nothing. args: `begin`, the first row that each
    row forms a pair with, and `lag_weights`.
    """
    begin, lag_weights = args
    g, k, lo = out.g, out.k, begin[q]
    for s in range(lo, q + 1):
        g[s - lo] = 0.0
        k[s - lo] = lag_weights[q - s]
    return lo  # type: ignore[no-any-return]


@kernel
def slis_pairs(args: WeightedRows, q: int, out: PairCoefficients) -> int:
    """Write SLIS's coefficients of pairs (s, q), a user's weight; return the first s.

    Rows s and q are of one user, s in begin[q]..q; entry s - begin[q] is written. out.g adds the
    user's weight[q] to M, half of it for s = q, where G = M + M'. K is G, so out.k is 0. args:
    `begin`, the first row that each row forms a pair with, and `weight` of each row.
    """
    begin, weight = args
    g, k, lo = out.g, out.k, begin[q]
    for s in range(lo, q):
        g[s - lo] = weight[q]
        k[s - lo] = 0.0
    g[q - lo] = 0.5 * weight[q]
    k[q - lo] = 0.0
    return lo  # type: ignore[no-any-return]


# -- bound to the accumulators ---------------------------------------------------------------------


@kernel
def slit_dense(args: SlitRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense M and K' of SLIT.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `SlitRows`, the bounds and weights of each log row. log: the log rows of each item. out: M and
    K' as arrays, items x items.
    """
    accumulate_dense(slit_pairs, args, log, a, b, out)


@kernel
def slit_sparse(args: SlitRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse M and K' of SLIT.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `SlitRows`, the bounds and weights of each log row. log: the log rows of each item. out: M and
    K' as compressed rows, whose indptr is given.
    """
    accumulate_sparse(slit_pairs, args, log, a, b, out)


@kernel
def lag_dense(args: LagRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense K' of association rules, and of M, which is 0.

    K (source x target item) adds up weights by lag; M + M' would be G = S'S of other models. Row j
    of M and K' is that of target item j. args: the first row that each log row forms a pair with,
    and weights by lag. log: the log rows of each item. out: M and K' as arrays, items x items.
    """
    accumulate_dense(lag_pairs, args, log, a, b, out)


@kernel
def lag_sparse(args: LagRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse K' of association rules, and of M, which is 0.

    K (source x target item) adds up weights by lag; M + M' would be G = S'S of other models. Row j
    of M and K' is that of target item j. args: the first row that each log row forms a pair with,
    and weights by lag. log: the log rows of each item. out: M and K' as compressed rows, whose
    indptr is given.
    """
    accumulate_sparse(lag_pairs, args, log, a, b, out)


@kernel
def slis_dense(args: WeightedRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense M of SLIS, and of K', which is 0: its K is G.

    The linear model is solved from G = S'S = M + M': a row of S has the items of a user. Row j of M
    is that of item j. args: the first row that each log row forms a pair with, and its weight. log:
    the log rows of each item. out: M and K' as arrays, items x items; one that is not needed has no
    rows.
    """
    accumulate_dense(slis_pairs, args, log, a, b, out)


@kernel
def slis_sparse(args: WeightedRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse M of SLIS, and of K', which is 0: its K is G.

    The linear model is solved from G = S'S = M + M': a row of S has the items of a user. Row j of M
    is that of item j. args: the first row that each log row forms a pair with, and its weight. log:
    the log rows of each item. out: M and K' as compressed rows, whose indptr is given; values of
    one that is not needed have length 0.
    """
    accumulate_sparse(slis_pairs, args, log, a, b, out)
