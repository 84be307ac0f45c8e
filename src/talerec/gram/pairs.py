"""The pairs of each model: what two rows of one user add to G and K; `accumulators` adds them up.

Every `*_pairs` function gives, for a row q, the coefficients of the rows s in begin[q]..after[q] of
the same user, in O(1) each, at s - begin[q]: no augmented row is ever built.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from talerec.gram.accumulators import (
    DenseSums,
    RowsByItem,
    Scratch,
    SparseSums,
    accumulate_dense,
    accumulate_sparse,
)
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template

#: exp(-x) is zero in float64 beyond this.
UNDERFLOW = 745.2


# -- by time: TALE ----------------------------------------------------------------------------------


class TaleRows(NamedTuple):
    """What TALE's pairs need of each row."""

    begin: Array  # the first row whose weight for it is not zero
    first: Array  # the first row of its instant
    after: Array  # the first row after its instant
    reach: Array  # the first row more than a horizon later
    stop: Array  # the end of its user's rows
    step: Array  # exp(-(interval to the user's next row) / decay)
    scale: Array  # p ** -trend
    floor: float


class SeveralTargets(NamedTuple):
    """What TALE's pairs need of each row where every later row is a target."""

    rows: TaleRows
    back: Array  # the first row no more than a horizon earlier
    ahead: Array  # the sum of exp(-(t_l - t_r) / decay) over the rows l after r and before reach[r]


@kernel
def instants(ptr: Array, time: Array) -> tuple[Array, Array]:
    """For every row, the first row of its user's instant and the first row after it."""
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
    """The interval from which on Eq. 13 is the floor."""
    if floor >= 1:
        return 0.0
    return decay * math.log(1 / floor) if floor > 0 else math.inf


@kernel
def tale_intervals(ptr: Array, time: Array, decay: float, floor: float) -> tuple[Array, ...]:
    """What Eq. 13 needs of each row; `decay` in microseconds.

    step   exp(-(t_{r+1} - t_r) / decay), to the user's next row
    reach  the first row that comes more than a horizon later: there w is the floor
    begin  the first row whose weight for row r is not zero (all of them when floor > 0)
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
def tale_pairs(args: TaleRows, q: int, out: Scratch) -> None:
    """Eqs. 6, 13 for the pairs (s, q) of one user, s in begin[q]..after[q].

    The sum over targets l after q of w(t_l - t_s) w(t_l - t_q) falls into three runs: up to
    reach[s] both weights are exponentials, up to reach[q] one is the floor, then both are.
    With E1, E2 the running sums of exp(-(t_l - t_q)/decay) and of its square,

        exp(-(t_q - t_s)/decay) E2(reach[s]) + floor (E1(reach[q]) - E1(reach[s])) + floor^2 (stop - reach[q])

    Rows of q's own instant are each other's targets: each of the m - 1 others (less s, when s
    is one of them) adds w(t_q - t_s). Nothing large is subtracted, so nothing cancels.
    """
    begin, first, after, reach, stop, step, scale, floor = args
    half, cross, sums = out
    lo, next_instant, end = begin[q], after[q], reach[q]
    decayed = 1.0
    sums[0, 0] = sums[0, 1] = 0.0
    for l in range(next_instant, end):  # noqa: E741 (the paper's l)
        decayed *= step[l - 1]
        k = l - next_instant
        sums[k + 1, 0] = sums[k, 0] + decayed
        sums[k + 1, 1] = sums[k, 1] + decayed * decayed
    both_floors = floor * floor * (stop[q] - end)
    all_one = sums[end - next_instant, 0]
    mates = next_instant - first[q] - 1

    decayed = 1.0
    s = q
    while s >= lo and reach[s] > q:  # nearer than the horizon: the weight is an exponential
        if s < q:
            decayed *= step[s]
        k = reach[s] - next_instant
        total = decayed * sums[k, 1] + floor * (all_one - sums[k, 0]) + both_floors
        together = mates - 1 if s < q and s >= first[q] else mates
        pair = scale[s] * scale[q]
        half[s - lo] = pair * (total + together * decayed)
        cross[s - lo] = pair * decayed
        s -= 1
    far = scale[q] * (floor * all_one + both_floors + mates * floor)
    weight = scale[q] * floor
    for r in range(lo, s + 1):
        half[r - lo] = scale[r] * far
        cross[r - lo] = scale[r] * weight
    half[q - lo] *= 0.5
    cross[q - lo] = 0.0
    for r in range(q + 1, next_instant):
        half[r - lo] = 0.0
        cross[r - lo] = scale[r] * scale[q]


@kernel
def tale_several(
    ptr: Array, time: Array, decay: float, floor: float, step: Array, reach: Array
) -> tuple[Array, Array]:
    """`back` and `ahead` of `SeveralTargets`; `decay` in microseconds."""
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
def tale_multi_pairs(args: SeveralTargets, q: int, out: Scratch) -> None:
    """TALE's pairs with every later row as a target, weighed by its interval to the first one (`targets=multi`).

    K gets the sum over l in s+1..q of w(t_l - t_s) w(t_q - t_l). Rows l before reach[s] are near s, rows
    from back[q] on are near q: near both, the product is exp(-(t_q - t_s)/decay); near one, floor times
    the exponential of the other interval; near none, floor^2.
    """
    rows, back, ahead = args
    tale_pairs(rows, q, out)
    _, cross, sums = out
    reach, step, scale, floor = rows.reach, rows.step, rows.scale, rows.floor
    lo, near = rows.begin[q], back[q]
    recent = sums[:, 0]  # recent[l - near]: the sum of exp(-(t_q - t_k) / decay) over k in l..q
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
        cross[s - lo] = scale[s] * scale[q] * value


# -- by place: SLIT ----------------------------------------------------------------------------------


class PlaceRows(NamedTuple):
    """What SLIT's pairs need of each row."""

    begin: Array  # the first row whose weight for it is not zero
    ahead: Array  # see `place_ahead`
    each: Array  # what a row of S and T that ends its sources there is multiplied by
    scale: Array  # p ** -trend
    fade: Array  # exp(-d / position), by distance d
    multi: bool  # every later row is a target, and not the next alone


@kernel
def place_sums(ptr: Array, scale: Array, fading: float, multi: bool) -> tuple[Array, ...]:
    """Sums of SLIT's S and T: for each row r, of the rows of S and T that end their sources there, and of
    the entries that r itself has in the columns of S and T."""
    n = ptr[-1]
    source, target, as_source, as_target = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for u in range(len(ptr) - 1):
        before = later = 0.0
        for r in range(ptr[u], ptr[u + 1]):
            if r > ptr[u]:
                later = 1.0 + fading * later if multi else 1.0
            as_target[r] = scale[r] * later
            before = scale[r] + fading * before
            source[r] = before
        coming = ahead = 0.0
        for r in range(ptr[u + 1] - 2, ptr[u] - 1, -1):
            coming = scale[r + 1] + (fading * coming if multi else 0.0)
            ahead = 1.0 + fading * ahead
            target[r] = coming
            as_source[r] = scale[r] * ahead
    return source, target, as_source, as_target


@kernel
def place_ahead(ptr: Array, share: Array, fading: float) -> Array:
    """For each row q, the sum over l in q..L-1 of share[l] fading^(2(l - q)); a user's last row ends no sources."""
    ahead = np.zeros(ptr[-1])
    for u in range(len(ptr) - 1):
        for q in range(ptr[u + 1] - 2, ptr[u] - 1, -1):
            ahead[q] = share[q] + fading * fading * ahead[q + 1]
    return ahead


@kernel
def place_pairs(args: PlaceRows, q: int, out: Scratch) -> None:
    """SLIT: for each l, sources s <= l weigh exp(-(l - s)/position) and targets h > l exp(-(h - l - 1)/position).

    Every l between s and h gives the same product, so K counts them: sum over l in s..h-1 of each[l],
    times fade[h - 1 - s]. With one target (h = l + 1) only the last of them is there.
    """
    begin, ahead, each, scale, fade, multi = args
    half, cross, _ = out
    lo = begin[q]
    total = 0.0
    for s in range(q - 1, lo - 1, -1):
        pair = scale[s] * scale[q]
        total = total + each[s] if multi else each[q - 1]
        half[s - lo] = pair * fade[q - s] * ahead[q]
        cross[s - lo] = pair * fade[q - 1 - s] * total
    half[q - lo] = 0.5 * scale[q] * scale[q] * ahead[q]
    cross[q - lo] = 0.0


# -- by distance in rows (rules), and all alike (SLIS) -----------------------------------------------


class WeighedRows(NamedTuple):
    """The first row that each forms a pair with, and weights: by distance (rules), or by row (SLIS)."""

    begin: Array
    weight: Array


@kernel
def gap_pairs(args: WeighedRows, q: int, out: Scratch) -> None:
    """Rules: a source that is d rows before its target counts weight[d]."""
    begin, weight = args
    half, cross, _ = out
    lo = begin[q]
    for s in range(lo, q + 1):
        half[s - lo] = 0.0
        cross[s - lo] = weight[q - s]


@kernel
def alike_pairs(args: WeighedRows, q: int, out: Scratch) -> None:
    """SLIS: any two items of a user, once each, weigh the same; K is G."""
    begin, weight = args
    half, cross, _ = out
    lo = begin[q]
    for s in range(lo, q):
        half[s - lo] = weight[q]
        cross[s - lo] = 0.0
    half[q - lo] = 0.5 * weight[q]
    cross[q - lo] = 0.0


# -- bound to the accumulators -----------------------------------------------------------------------


@kernel
def tale_dense(args: TaleRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(tale_pairs, args, log, a, b, out)


@kernel
def tale_sparse(args: TaleRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(tale_pairs, args, log, a, b, out)


@kernel
def tale_multi_dense(args: SeveralTargets, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(tale_multi_pairs, args, log, a, b, out)


@kernel
def tale_multi_sparse(
    args: SeveralTargets, log: RowsByItem, a: int, b: int, out: SparseSums
) -> None:
    accumulate_sparse(tale_multi_pairs, args, log, a, b, out)


@kernel
def place_dense(args: PlaceRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(place_pairs, args, log, a, b, out)


@kernel
def place_sparse(args: PlaceRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(place_pairs, args, log, a, b, out)


@kernel
def gap_dense(args: WeighedRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(gap_pairs, args, log, a, b, out)


@kernel
def gap_sparse(args: WeighedRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(gap_pairs, args, log, a, b, out)


@kernel
def alike_dense(args: WeighedRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(alike_pairs, args, log, a, b, out)


@kernel
def alike_sparse(args: WeighedRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(alike_pairs, args, log, a, b, out)
