"""The pairs of rows of each model: what two rows of one user add to G and K.

Every `*_pairs` function writes, for a row q, the coefficients of the rows s in begin[q]..after[q]
of the same user, in O(1) each, at s - begin[q]. `accumulate` adds them up.
"""

from __future__ import annotations

import math
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
from talerec.runtime import Array, borrow, kernel, template, unsigned_range

#: exp(-x) is zero in float64 beyond this.
UNDERFLOW = 745.2


# -- by time: TALE ---------------------------------------------------------------------------------


class TaleRows(NamedTuple):
    """What TALE's pairs read: an entry per log row r; rows are numbers of log rows.

    TALE weights a source row by its interval d to the target row of the same user: max(exp(-d /
    decay), floor). Beyond an interval called the *horizon*, the weight is the floor. An instant is
    the group of the user's rows with one time, or a single row if simultaneous rows are ordered.
    """

    begin: Array  # the first row whose weight for target r is not zero
    first: Array  # the first row of r's instant
    after: Array  # the first row after r's instant
    reach: Array  # the first row more than a horizon later than r
    stop: Array  # the end of the user's rows
    step: Array  # exp(-(interval to the user's next row) / decay)
    scale: Array  # p ** -trend, p being the number of rows of r's item around it in time
    floor: float  # the smallest weight


class MultiTargetRows(NamedTuple):
    """What TALE's pairs read of each log row r if every later row of its user is a target.

    A source weighs exp(-d / decay) at the interval d to its target, up to the horizon, where that
    is the floor; reach[r] of `rows` is the first row more than a horizon later than r.
    """

    rows: TaleRows
    back: Array  # the first row at most a horizon earlier than r
    ahead: Array  # the sum of exp(-(t_l - t_r) / decay) over the rows l after r and before reach[r]


@kernel
def instants(ptr: Array, time: Array) -> tuple[Array, Array]:
    """Return, for every row, its user's first row of equal time and first row of a later time.

    User u has the rows ptr[u]..ptr[u + 1], in time order. Both arrays are int32 row numbers;
    without a later row, the second is the end of the user's rows.
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
    """Return the interval d from which on max(exp(-d / decay), floor) is the floor.

    In the unit of `decay`; 0 if the floor is 1 or more, infinity if it is 0.
    """
    if floor >= 1:
        return 0.0
    return decay * math.log(1 / floor) if floor > 0 else math.inf


@kernel
def tale_intervals(ptr: Array, time: Array, decay: float, floor: float) -> tuple[Array, ...]:
    """Return three arrays with an entry per log row r: step, reach and begin.

    A row weighs max(exp(-d / decay), floor) for a row d microseconds later; `decay` is in
    microseconds. User u has the rows ptr[u]..ptr[u + 1], in time order. step: exp(-(interval to the
    user's next row) / decay), 1 for the last. reach: the first row so much later that its weight is
    the floor. begin: the first row whose weight for r is not zero in float64.
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
def tale_pairs(args: TaleRows, q: int, out: PairCoefficients) -> int:
    """Write TALE's coefficients of the pairs (s, q) of one user; return the first s.

    s runs over begin[q]..after[q]. Entry s - begin[q] of out.g gets what the pair adds to M (G =
    S'S = M + M'), of out.k the weight of source s for target q in K = S'T; w(d) is max(exp(-d /
    decay), floor). Rows s so early that w is the floor come before the first s: their pairs are
    added to out.totals.
    args, per log row r: begin, the first row that r forms a pair with; first and after, the bounds
    of r's instant (rows of one time); reach, the first row later than w's exponential part; stop,
    the end of the user's rows; step, exp(-(interval to the next row) / decay); scale, a factor of
    the row. floor is a number.

    The sum over targets l after q of w(t_l - t_s) w(t_l - t_q) falls into three runs: up to
    reach[s] both weights are exponentials, up to reach[q] one is the floor, then both are. With E1,
    E2 the running sums of exp(-(t_l - t_q)/decay) and of its square, the sum is

        exp(-(t_q - t_s)/decay) E2(reach[s])
        + floor (E1(reach[q]) - E1(reach[s])) + floor^2 (stop - reach[q])

    Rows of q's instant are each other's targets: each of the m - 1 others (less s, if s is one of
    them) adds w(t_q - t_s). Nothing large is subtracted, so nothing cancels.
    """
    lo, floor, scale, item = args.begin[q], args.floor, borrow(args.scale), borrow(out.item)
    s, far = write_near_pairs(args, q, out)
    totals = borrow(out.totals)
    for r in unsigned_range(lo, s):
        i = np.uint32(item[r])
        totals[i, 0] += scale[r] * far
        totals[i, 1] += scale[r] * (scale[q] * floor)
    return s


@template
def write_near_pairs(args: TaleRows, q: int, out: PairCoefficients) -> tuple[int, float]:
    """Write TALE's coefficients of the pairs (s, q) that are nearer than the horizon.

    Returns the first such row s, and what the pair of q and an earlier row adds to M, divided by
    that row's scale; to K it adds scale[s] scale[q] floor. See `tale_pairs` for sums and arguments.
    """
    begin, first, after, reach, stop, step, scale, floor = args
    reach, step, scale = borrow(reach), borrow(step), borrow(scale)
    g, k, sums = borrow(out.g), borrow(out.k), borrow(out.sums)
    lo, next_instant, end = begin[q], after[q], reach[q]
    decayed, exp_total, square_total = 1.0, 0.0, 0.0
    sums[0, 0] = sums[0, 1] = 0.0
    e = np.uint64(1)
    for l in unsigned_range(next_instant, end):  # noqa: E741 (the paper's l)
        decayed *= step[l - np.uint64(1)]
        exp_total += decayed
        square_total += decayed * decayed
        sums[e, 0], sums[e, 1] = exp_total, square_total
        e += np.uint64(1)
    both_floors = floor * floor * (stop[q] - end)
    others = next_instant - first[q] - 1  # rows of q's instant besides q

    decayed = 1.0
    s = q
    while s >= lo and reach[np.uint64(s)] > q:  # nearer than the horizon: an exponential
        row, at = np.uint64(s), np.uint64(s - lo)
        if s < q:
            decayed *= step[row]
        e = np.uint64(reach[row] - next_instant)
        total = decayed * sums[e, 1] + floor * (exp_total - sums[e, 0]) + both_floors
        together = others - 1 if s < q and s >= first[q] else others
        pair = scale[row] * scale[q]
        g[at] = pair * (total + together * decayed)
        k[at] = pair * decayed
        s -= 1
    g[q - lo] *= 0.5
    k[q - lo] = 0.0
    for r in range(q + 1, next_instant):
        g[r - lo] = 0.0
        k[r - lo] = scale[r] * scale[q]
    return s + 1, scale[q] * (floor * exp_total + both_floors + others * floor)


@kernel
def multi_target_sums(
    ptr: Array, time: Array, decay: float, floor: float, step: Array, reach: Array
) -> tuple[Array, Array]:
    """Return two arrays, back and ahead, with an entry per log row r, for multiple targets.

    A row weighs max(exp(-d / decay), floor) for a row d microseconds later; all later rows are
    targets. User u has the rows ptr[u]..ptr[u + 1], in time order. step: exp(-(interval to the next
    row) / decay). reach: the first row so much later that the weight is the floor. back: the user's
    first row whose weight for r is not yet the floor. ahead: the sum of exp(-(t_l - t_r) / decay)
    over the rows l after r and before reach[r].
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
def tale_multi_pairs(args: MultiTargetRows, q: int, out: PairCoefficients) -> int:
    """Write TALE's coefficients of the pairs (s, q) of one user if all later rows are targets.

    Entry s - begin[q] of out.g gets what the pair adds to M (G = S'S = M + M'), of out.k what it
    adds to K = S'T. args: the arrays of TaleRows, and back and ahead of MultiTargetRows, per log
    row.
    A target is weighted by the time from the first one; w(d) is max(exp(-d / decay), floor). K gets
    the sum over l in s+1..q of w(t_l - t_s) w(t_q - t_l). Rows l before reach[s] are near s, rows
    from back[q] on are near q: near both, the product is exp(-(t_q - t_s)/decay); near one, floor
    times the exponential of the other interval; near none, floor^2.
    """
    rows, back, ahead = args
    g, k, sums = out.g, out.k, out.sums
    reach, step, scale, floor = rows.reach, rows.step, rows.scale, rows.floor
    lo, near = rows.begin[q], back[q]
    first_near, floor_g = write_near_pairs(rows, q, out)
    for r in range(lo, first_near):
        g[r - lo] = scale[r] * floor_g
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
    return lo  # type: ignore[no-any-return]


# -- bound to the accumulators ---------------------------------------------------------------------


@kernel
def tale_dense(args: TaleRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense M and K' of TALE.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `TaleRows`, the bounds, decays and factors of each log row. log: the log rows of each item. out:
    M and K' as arrays, items x items.
    """
    accumulate_dense(tale_pairs, args, log, a, b, out)


@kernel
def tale_sparse(args: TaleRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse M and K' of TALE.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `TaleRows`, the bounds, decays and factors of each log row. log: the log rows of each item. out:
    M and K' as compressed rows, whose indptr is given.
    """
    accumulate_sparse(tale_pairs, args, log, a, b, out)


@kernel
def tale_multi_dense(args: Any, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    """Write rows a..b (b excluded) of dense M and K' of multi-target TALE.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `MultiTargetRows`, the bounds, decays and sums of each log row. log: the log rows of each item.
    out: M and K' as arrays, items x items.
    """
    accumulate_dense(tale_multi_pairs, args, log, a, b, out)


@kernel
def tale_multi_sparse(args: Any, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    """Write rows a..b (b excluded) of sparse M and K' of multi-target TALE.

    The linear model is solved from G = S'S = M + M' and K = S'T: a row of S has the source items of
    a training example, and T its target items. Row j of M and K' is that of target item j. args:
    `MultiTargetRows`, the bounds, decays and sums of each log row. log: the log rows of each item.
    out: M and K' as compressed rows, whose indptr is given.
    """
    accumulate_sparse(tale_multi_pairs, args, log, a, b, out)
