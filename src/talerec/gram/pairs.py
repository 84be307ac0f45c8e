"""The pairs of rows of each model: what two rows of one user add to G and K.

Every `*_pairs` function writes, for a row q, the coefficients of the rows s in begin[q]..after[q]
of the same user, in O(1) each, at s - begin[q]. `accumulate` adds them up.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from talerec.gram.accumulate import (
    DenseSums,
    PairCoefficients,
    RowsByItem,
    SparseSums,
    accumulate_dense,
    accumulate_sparse,
)
from talerec.runtime import Array, kernel, template

#: exp(-x) is zero in float64 beyond this.
UNDERFLOW = 745.2


# -- by time: TALE ---------------------------------------------------------------------------------


class TaleRows(NamedTuple):
    """What TALE's pairs read of each row r of a user; all rows are numbers of log rows.

    The weight max(exp(-d / decay), floor) of an interval d is the floor beyond the *horizon*.
    An instant is the group of the user's rows with one time, or a single row (`ordered`).
    """

    begin: Array  # the first row whose weight for target r is not zero
    first: Array  # the first row of r's instant
    after: Array  # the first row after r's instant
    reach: Array  # the first row more than a horizon later than r
    stop: Array  # the end of the user's rows
    step: Array  # exp(-(interval to the user's next row) / decay)
    scale: Array  # p ** -trend, p being the number of rows of r's item around it in time
    floor: float


class MultiTargetRows(NamedTuple):
    """What TALE's pairs read of each row r if every later row is a target."""

    rows: TaleRows
    back: Array  # the first row at most a horizon (where exp(-d / decay) is the floor) earlier
    ahead: Array  # the sum of exp(-(t_l - t_r) / decay) over the rows l after r and before reach[r]


@kernel
def instants(ptr: Array, time: Array) -> tuple[Array, Array]:
    """Return, for every row, its user's first row of equal time and first row of a later time.

    User u has the rows ptr[u]..ptr[u + 1], in time order; without a later row `after` is the end.
    """
    first, after = np.empty(len(time), np.int32), np.empty(len(time), np.int32)
    for u in range(len(ptr) - 1):
        a = ptr[u]
        while a < ptr[u + 1]:
            b = a + 1
            while b < ptr[u + 1] and time[b] == time[a]:
                b += 1
            first[a:b] = a
            after[a:b] = b
            a = b
    return first, after


@template
def _horizon(decay: float, floor: float) -> float:
    """Return the interval d from which on max(exp(-d / decay), floor) is the floor."""
    if floor >= 1:
        return 0.0
    return decay * math.log(1 / floor) if floor > 0 else math.inf


@kernel
def tale_intervals(ptr: Array, time: Array, decay: float, floor: float) -> tuple[Array, ...]:
    """Return `step`, `reach` and `begin` of `TaleRows` for every row; `decay` in microseconds.

    step: exp(-(interval to the user's next row) / decay), 1 for the last. reach: the first row so
    much later that its weight is the floor. begin: the first row whose weight for r is not zero.
    """
    horizon = _horizon(decay, floor)
    vanish = math.inf if floor > 0 else UNDERFLOW * decay
    step = np.ones(len(time), np.float64)
    reach, begin = np.empty(len(time), np.int32), np.empty(len(time), np.int32)
    for u in range(len(ptr) - 1):
        end, low = ptr[u], ptr[u]
        for r in range(ptr[u], ptr[u + 1]):
            if r + 1 < ptr[u + 1]:
                step[r] = math.exp(-(time[r + 1] - time[r]) / decay)
            while end < ptr[u + 1] and time[end] - time[r] <= horizon:
                end += 1
            while time[r] - time[low] > vanish:
                low += 1
            reach[r], begin[r] = end, low
    return step, reach, begin


@kernel
def tale_pairs(args: TaleRows, q: int, out: PairCoefficients) -> None:
    """Write TALE's coefficients of the pairs (s, q) of one user, s in begin[q]..after[q].

    out.g gets what the pair adds to M (G = S'S = M + M'), out.k the weight of source s for target
    q in K = S'T; w(d) is max(exp(-d / decay), floor).
    The sum over targets l after q of w(t_l - t_s) w(t_l - t_q) falls into three runs: up to
    reach[s] both weights are exponentials, up to reach[q] one is the floor, then both are.
    With E1, E2 the running sums of exp(-(t_l - t_q)/decay) and of its square, the sum is

        exp(-(t_q - t_s)/decay) E2(reach[s])
        + floor (E1(reach[q]) - E1(reach[s])) + floor^2 (stop - reach[q])

    Rows of q's instant are each other's targets: each of the m - 1 others (less s, if s is one of
    them) adds w(t_q - t_s). Nothing large is subtracted, so nothing cancels.
    """
    begin, first, after, reach, stop, step, scale, floor = args
    g, k, sums = out
    lo, next_instant, end = begin[q], after[q], reach[q]
    decayed = 1.0
    sums[0, 0] = sums[0, 1] = 0.0
    for l in range(next_instant, end):  # noqa: E741 (the paper's l)
        decayed *= step[l - 1]
        e = l - next_instant
        sums[e + 1, 0] = sums[e, 0] + decayed
        sums[e + 1, 1] = sums[e, 1] + decayed * decayed
    both_floors = floor * floor * (stop[q] - end)
    exp_total = sums[end - next_instant, 0]
    others = next_instant - first[q] - 1  # rows of q's instant besides q

    decayed = 1.0
    s = q
    while s >= lo and reach[s] > q:  # nearer than the horizon: the weight is an exponential
        if s < q:
            decayed *= step[s]
        e = reach[s] - next_instant
        total = decayed * sums[e, 1] + floor * (exp_total - sums[e, 0]) + both_floors
        together = others - 1 if s < q and s >= first[q] else others
        pair = scale[s] * scale[q]
        g[s - lo] = pair * (total + together * decayed)
        k[s - lo] = pair * decayed
        s -= 1
    far = scale[q] * (floor * exp_total + both_floors + others * floor)
    weight = scale[q] * floor
    for r in range(lo, s + 1):
        g[r - lo] = scale[r] * far
        k[r - lo] = scale[r] * weight
    g[q - lo] *= 0.5
    k[q - lo] = 0.0
    for r in range(q + 1, next_instant):
        g[r - lo] = 0.0
        k[r - lo] = scale[r] * scale[q]


@kernel
def multi_target_sums(
    ptr: Array, time: Array, decay: float, floor: float, step: Array, reach: Array
) -> tuple[Array, Array]:
    """Return `back` and `ahead` of `MultiTargetRows` for every row; `decay` in microseconds.

    back: the user's first row whose weight for r is not yet the floor. ahead: the sum of
    exp(-(t_l - t_r) / decay) over the rows l after r and before reach[r].
    """
    horizon = _horizon(decay, floor)
    back, ahead = np.empty(len(time), np.int32), np.zeros(len(time))
    for u in range(len(ptr) - 1):
        low = ptr[u]
        for r in range(ptr[u], ptr[u + 1]):
            while time[r] - time[low] > horizon:
                low += 1
            back[r] = low
            decayed = 1.0
            for l in range(r + 1, reach[r]):  # noqa: E741
                decayed *= step[l - 1]
                ahead[r] += decayed
    return back, ahead


@kernel
def tale_multi_pairs(args: MultiTargetRows, q: int, out: PairCoefficients) -> None:
    """Write TALE's coefficients of the pairs (s, q) if all later rows are targets.

    A target is weighted by the time from the first one; w(d) is max(exp(-d / decay), floor).
    K gets the sum over l in s+1..q of w(t_l - t_s) w(t_q - t_l). Rows l before reach[s] are near
    s, rows from back[q] on are near q: near both, the product is exp(-(t_q - t_s)/decay); near
    one, floor times the exponential of the other interval; near none, floor^2.
    """
    rows, back, ahead = args
    tale_pairs(rows, q, out)
    _, k, sums = out
    reach, step, scale, floor = rows.reach, rows.step, rows.scale, rows.floor
    lo, near = rows.begin[q], back[q]
    recent = sums[:, 0]  # recent[l - near]: sum of exp(-(t_q - t_r) / decay) over r in l..q
    total = decayed = 1.0
    recent[q + 1 - near], recent[q - near] = 0.0, 1.0
    for l in range(q - 1, near - 1, -1):  # noqa: E741
        decayed *= step[l]
        total += decayed
        recent[l - near] = total
    decayed = 1.0
    between = 0.0  # the sum of exp(-(t_l - t_s) / decay) over l in s+1..near-1
    for s in range(q - 1, lo - 1, -1):
        decayed *= step[s]
        if s < near - 1:
            between = step[s] * (1.0 + between)
        far = min(reach[s], q + 1)
        if far > near:
            value = decayed * (far - max(near, s + 1)) + floor * (between + recent[far - near])
        else:
            value = floor * (ahead[s] + recent[0]) + floor * floor * (near - far)
        k[s - lo] = scale[s] * scale[q] * value


# -- by position: SLIT -----------------------------------------------------------------------------


class SlitRows(NamedTuple):
    """What SLIT's pairs read of each row.

    Row l of a user ends the sources of one row of S and T: sources are at or before l, targets
    after it.
    """

    begin: Array  # the first row whose weight for it is not zero
    tail: Array  # see `slit_tails`
    factor: Array  # of the row of S and T whose sources end at this row
    scale: Array  # p ** -trend, p being the number of rows of the item around it in time
    lag_weights: Array  # exp(-d / position), by lag d in rows
    multi: bool  # every later row is a target, not the next alone


@kernel
def slit_sums(ptr: Array, scale: Array, rate: float, multi: bool) -> tuple[Array, ...]:
    """Return sums over SLIT's S and T, with one entry per log row r; rate: exp(-1 / position).

    source, target        sums of row r of S (sources up to r) and of T (targets after r)
    as_source, as_target  what r adds to the sum of its item's column of S and of T
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
    """Return, for each row q, the sum over l in q..L-1 of share[l] rate^(2(l - q)).

    L is the user's last row (nothing follows it). User u has the rows ptr[u]..ptr[u + 1].
    """
    tail = np.zeros(ptr[-1])
    for u in range(len(ptr) - 1):
        for q in range(ptr[u + 1] - 2, ptr[u] - 1, -1):
            tail[q] = share[q] + rate * rate * tail[q + 1]
    return tail


@kernel
def slit_pairs(args: SlitRows, q: int, out: PairCoefficients) -> None:
    """Write SLIT's coefficients of the pairs (s, q): out.g adds to M (G = M + M'), out.k to K.

    Row l splits a history: a source s <= l weighs exp(-(l - s)/position), a target h > l weighs
    exp(-(h - l - 1)/position).
    Every l between s and h gives the same product, so K counts them: sum over l in s..h-1 of
    factor[l], times lag_weights[h - 1 - s]. With one target (h = l + 1) only l = h - 1 is there.
    """
    begin, tail, factor, scale, lag_weights, multi = args
    g, k, _ = out
    lo = begin[q]
    total = 0.0
    for s in range(q - 1, lo - 1, -1):
        pair = scale[s] * scale[q]
        total = total + factor[s] if multi else factor[q - 1]
        g[s - lo] = pair * lag_weights[q - s] * tail[q]
        k[s - lo] = pair * lag_weights[q - 1 - s] * total
    g[q - lo] = 0.5 * scale[q] * scale[q] * tail[q]
    k[q - lo] = 0.0


# -- by lag (rules), and all equal (SLIS) ----------------------------------------------------------


class WeightedRows(NamedTuple):
    """What rules and SLIS read: the first row that each row forms a pair with, and weights.

    weight: by lag in rows (rules), or of each row (SLIS).
    """

    begin: Array
    weight: Array


@kernel
def lag_pairs(args: WeightedRows, q: int, out: PairCoefficients) -> None:
    """Write rules' coefficients of the pairs (s, q): K adds weight[q - s], by lag; G nothing."""
    begin, weight = args
    g, k, _ = out
    lo = begin[q]
    for s in range(lo, q + 1):
        g[s - lo] = 0.0
        k[s - lo] = weight[q - s]


@kernel
def slis_pairs(args: WeightedRows, q: int, out: PairCoefficients) -> None:
    """Write SLIS's coefficients of the pairs (s, q): the user's weight[q], half for s = q.

    out.g adds to M, where G = M + M'. K is G, so out.k is 0.
    """
    begin, weight = args
    g, k, _ = out
    lo = begin[q]
    for s in range(lo, q):
        g[s - lo] = weight[q]
        k[s - lo] = 0.0
    g[q - lo] = 0.5 * weight[q]
    k[q - lo] = 0.0


# -- bound to the accumulators ---------------------------------------------------------------------


@kernel
def tale_dense(args: TaleRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b of TALE's dense M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_dense(tale_pairs, args, log, a, b, out)


@kernel
def tale_sparse(args: TaleRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b of TALE's sparse M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_sparse(tale_pairs, args, log, a, b, out)


@kernel
def tale_multi_dense(args: Any, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b of TALE's multi-target dense M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_dense(tale_multi_pairs, args, log, a, b, out)


@kernel
def tale_multi_sparse(args: Any, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b of TALE's multi-target sparse M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_sparse(tale_multi_pairs, args, log, a, b, out)


@kernel
def slit_dense(args: SlitRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b of SLIT's dense M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_dense(slit_pairs, args, log, a, b, out)


@kernel
def slit_sparse(args: SlitRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b of SLIT's sparse M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_sparse(slit_pairs, args, log, a, b, out)


@kernel
def lag_dense(args: WeightedRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b of the rules' dense M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_dense(lag_pairs, args, log, a, b, out)


@kernel
def lag_sparse(args: WeightedRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b of the rules' sparse M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_sparse(lag_pairs, args, log, a, b, out)


@kernel
def slis_dense(args: WeightedRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b of SLIS's dense M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_dense(slis_pairs, args, log, a, b, out)


@kernel
def slis_sparse(args: WeightedRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b of SLIS's sparse M and K' (G = S'S = M + M', K = S'T)."""
    accumulate_sparse(slis_pairs, args, log, a, b, out)
