"""Pairs of rows with weights v, which multiply a target's error and a source's entry."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.gram.accumulate_kernels import (
    DenseSums,
    PairCoefficients,
    RowsByItem,
    SparseSums,
    accumulate_dense,
    accumulate_sparse,
)
from talerec.gram.pairs import TaleRows
from talerec.runtime import Array, borrow, kernel, unsigned_range


class WeightedTaleRows(NamedTuple):
    """What TALE's pairs read of each log row if rows have weights v.

    A pair has a source row and a target row of one user, and adds to G = S'S and K = S'T: a row of
    S has the source items of a training example, and T its target items.
    """

    rows: TaleRows  # bounds, decays and factors per row; `scale` includes v
    weight: Array  # v
    remaining: Array  # the sum of v from this row to the user's last one


@kernel
def remaining_weights(ptr: Array, weight: Array) -> Array:
    """Return, for every row, the sum of `weight` over it and its user's later rows.

    User u has the rows ptr[u]..ptr[u + 1].
    """
    remaining = np.empty(len(weight))
    for u in range(len(ptr) - 1):
        total = 0.0
        for r in range(ptr[u + 1] - 1, ptr[u] - 1, -1):
            total += weight[r]
            remaining[r] = total
    return remaining


@kernel
def weighted_tale_pairs(args: WeightedTaleRows, q: int, out: PairCoefficients) -> int:
    """Write TALE's coefficients of pairs (s, q) of rows with weights v; return the first s.

    Entry s - begin[q] of out.g gets what the pair adds to M (G = S'S = M + M'): the sum over
    targets l (rows after q, and others of q's time) of v_l w(t_l - t_s) w(t_l - t_q), times both
    scales. out.k gets the entry of K = S'T: w(t_q - t_s) times both scales. w(d) is max(exp(-d /
    decay), floor), and a row's scale is v p ** -trend. Rows s so early that w is the floor come
    before the first s: their pairs are added to out.totals.
    args: the arrays of `TaleRows` (see `pairs.tale_pairs`, which explains the sums), v, and the
    sums of v over a row and its user's later rows.
    """
    rows, weight, remaining = args
    begin, first, after, reach, stop, step, scale, floor = rows
    scale, item, totals = borrow(scale), borrow(out.item), borrow(out.totals)
    g, k, sums = out.g, out.k, out.sums
    lo, next_instant, end = begin[q], after[q], reach[q]
    decayed = 1.0
    sums[0, 0] = sums[0, 1] = 0.0
    for l in range(next_instant, end):  # noqa: E741 (the paper's l)
        decayed *= step[l - 1]
        e = l - next_instant
        sums[e + 1, 0] = sums[e, 0] + weight[l] * decayed
        sums[e + 1, 1] = sums[e, 1] + weight[l] * decayed * decayed
    both_floors = floor * floor * (remaining[end] if end < stop[q] else 0.0)
    exp_total = sums[end - next_instant, 0]
    others = 0.0  # the weight of the other rows of q's instant
    for r in range(first[q], next_instant):
        if r != q:
            others += weight[r]

    decayed = 1.0
    s = q
    while s >= lo and reach[s] > q:  # nearer than the horizon: the weight is an exponential
        if s < q:
            decayed *= step[s]
        e = reach[s] - next_instant
        total = decayed * sums[e, 1] + floor * (exp_total - sums[e, 0]) + both_floors
        together = others - weight[s] if s < q and s >= first[q] else others
        pair = scale[s] * scale[q]
        g[s - lo] = pair * (total + together * decayed)
        k[s - lo] = pair * decayed
        s -= 1
    far = scale[q] * (floor * exp_total + both_floors + others * floor)
    floor_weight = scale[q] * floor
    for r in unsigned_range(lo, s + 1):
        i = np.uint32(item[r])
        totals[i, 0] += scale[r] * far
        totals[i, 1] += scale[r] * floor_weight
    g[q - lo] *= 0.5
    k[q - lo] = 0.0
    for r in range(q + 1, next_instant):
        g[r - lo] = 0.0
        k[r - lo] = scale[r] * scale[q]
    return s + 1


@kernel
def weighted_tale_dense(args: Any, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense M and K' of TALE with row weights.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `WeightedTaleRows`, the bounds, decays and weights of each log row. log: the log rows of each
    item. out: M and K' as arrays, items x items.
    """
    accumulate_dense(weighted_tale_pairs, args, log, a, b, out)


@kernel
def weighted_tale_sparse(args: Any, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse M and K' of TALE with row weights.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `WeightedTaleRows`, the bounds, decays and weights of each log row. log: the log rows of each
    item. out: M and K' as compressed rows, whose indptr is given.
    """
    accumulate_sparse(weighted_tale_pairs, args, log, a, b, out)


class WeightedLagRows(NamedTuple):
    """What association rules by lag read of each log row if rows have weights v.

    Rules add up, in K (source x target item), a weight by the lag of source row and target row of
    one user.
    """

    begin: Array  # the first row of its user that each log row forms a pair with
    lag_weights: Array  # by lag in rows
    weight: Array  # v


@kernel
def weighted_lag_pairs(args: WeightedLagRows, q: int, out: PairCoefficients) -> int:
    """Write rules' coefficients: K adds lag_weights[q - s] weight[s] weight[q], G nothing.

    Source row s and target row q are of one user, s in begin[q]..q; entry s - begin[q] of out.g and
    out.k is written, from the first s on, which is returned. args: `begin` and `weight` of each log
    row, and `lag_weights` by lag.
    """
    begin, lag_weights, weight = args
    g, k, lo = out.g, out.k, begin[q]
    for s in range(lo, q + 1):
        g[s - lo] = 0.0
        k[s - lo] = lag_weights[q - s] * weight[s] * weight[q]
    return lo  # type: ignore[no-any-return]


@kernel
def weighted_lag_dense(args: Any, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense K' of weighted rules, and of M, which is 0.

    Association rules add up in K (source x target item) weights by lag, times both row weights; M +
    M' would be G = S'S of other models. Row j of M and K' is that of target item j. args: the first
    row that each log row forms a pair with, and weights by lag and by row. log: the log rows of
    each item. out: M and K' as arrays, items x items.
    """
    accumulate_dense(weighted_lag_pairs, args, log, a, b, out)


@kernel
def weighted_lag_sparse(args: Any, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse K' of weighted rules, and of M, which is 0.

    Association rules add up in K (source x target item) weights by lag, times both row weights; M +
    M' would be G = S'S of other models. Row j of M and K' is that of target item j. args: the first
    row that each log row forms a pair with, and weights by lag and by row. log: the log rows of
    each item. out: M and K' as compressed rows, whose indptr is given.
    """
    accumulate_sparse(weighted_lag_pairs, args, log, a, b, out)
