"""TALE's pairs where rows have weights: a row's error as a target counts v times, its entry as a source is v times as large."""

from __future__ import annotations

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
from talerec.gram.pairs import TaleRows
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel


class WorthRows(NamedTuple):
    """What TALE's pairs need of each row that has a weight v. `rows.scale` is v p ** -trend: source and target alike."""

    rows: TaleRows
    worth: Array  # v
    left: Array  # the sum of v from this row to the user's last one


@kernel
def worth_left(ptr: Array, worth: Array) -> Array:
    """For every row, the sum of `worth` from it to its user's last row."""
    left = np.empty(len(worth))
    for u in range(len(ptr) - 1):
        total = 0.0
        for r in range(ptr[u + 1] - 1, ptr[u] - 1, -1):
            total += worth[r]
            left[r] = total
    return left


@kernel
def worth_pairs(args: WorthRows, q: int, out: Scratch) -> None:
    """The pairs of `pairs.tale_pairs`, the sum over targets l being of v_l w(t_l - t_s) w(t_l - t_q).

    K's entry is v_q w(t_q - t_s) p_q ** -trend times the source's entry, which has v_s.
    """
    rows, worth, left = args
    begin, first, after, reach, stop, step, scale, floor = rows
    half, cross, sums = out
    lo, next_instant, end = begin[q], after[q], reach[q]
    decayed = 1.0
    sums[0, 0] = sums[0, 1] = 0.0
    for l in range(next_instant, end):  # noqa: E741 (the paper's l)
        decayed *= step[l - 1]
        k = l - next_instant
        sums[k + 1, 0] = sums[k, 0] + worth[l] * decayed
        sums[k + 1, 1] = sums[k, 1] + worth[l] * decayed * decayed
    both_floors = floor * floor * (left[end] if end < stop[q] else 0.0)
    all_one = sums[end - next_instant, 0]
    mates = 0.0  # what the other rows of q's instant are worth
    for r in range(first[q], next_instant):
        if r != q:
            mates += worth[r]

    decayed = 1.0
    s = q
    while s >= lo and reach[s] > q:  # nearer than the horizon: the weight is an exponential
        if s < q:
            decayed *= step[s]
        k = reach[s] - next_instant
        total = decayed * sums[k, 1] + floor * (all_one - sums[k, 0]) + both_floors
        together = mates - worth[s] if s < q and s >= first[q] else mates
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
def worth_dense(args: WorthRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(worth_pairs, args, log, a, b, out)


@kernel
def worth_sparse(args: WorthRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(worth_pairs, args, log, a, b, out)


class GapRows(NamedTuple):
    """What rules need of each row that has a weight."""

    begin: Array
    weight: Array  # by distance in rows
    worth: Array


@kernel
def worth_gap_pairs(args: GapRows, q: int, out: Scratch) -> None:
    """Rules: a source that is d rows before its target counts weight[d], times what both are worth."""
    begin, weight, worth = args
    half, cross, _ = out
    lo = begin[q]
    for s in range(lo, q + 1):
        half[s - lo] = 0.0
        cross[s - lo] = weight[q - s] * worth[s] * worth[q]


@kernel
def worth_gap_dense(args: GapRows, log: RowsByItem, a: int, b: int, out: DenseSums) -> None:
    accumulate_dense(worth_gap_pairs, args, log, a, b, out)


@kernel
def worth_gap_sparse(args: GapRows, log: RowsByItem, a: int, b: int, out: SparseSums) -> None:
    accumulate_sparse(worth_gap_pairs, args, log, a, b, out)
