"""The sources that the local solver chooses for a target: those with the largest gain.

The gain of source i for target j is K_ij^2 / (G_ii + penalty_i).
Items are numbered by rank (see `triangle`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import CSR, Array, copy_range, kernel, kth_largest, template

#: Entries of G that the step outside the support may read for one target. Ordinary logs need
#: fewer; a user of thousands of rows makes some targets that need more.
_WORK = 65_536


class NormalEquations(NamedTuple):
    """The normal equations (G + diag(penalty)) b_j = K_j of all target items j.

    b_j has the weights of source items for target j. The solver numbers items by rank: in a fit 0
    has the most entries in its row of G, after an update or on Spark ranks are others. Arrays are
    by rank, except for `rank`, which is by item, and for K, whose rows are target items and whose
    indices are source items.
    """

    lower: CSR  # G below the diagonal
    lengths: Array  # of the rows of `lower`, were items ranked by their present entries of G
    K: CSR  # compressed by target
    diagonal: Array  # of G, plus the penalty
    rank: Array  # of each item
    item: Array  # of each rank


class SourceLimits(NamedTuple):
    """How many source items the local solver gives to a target item.

    The support are the sources whose weights are solved together; others get one descent step.
    """

    together: int  # in the support, which is solved exactly; all items if that is as many
    total: int  # with the sources outside the support, the target itself included
    includes_target: bool  # whether a target may be its own source


class SourceCandidates(NamedTuple):
    """Scratch: the source items of one target, as ranks (item numbers in the solver).

    The gain of source i for target j is K_ij^2 / (G_ii + penalty_i), G and K being those of the
    normal equations (G + diag(penalty)) B = K.
    """

    right: Array  # the target's column of K, by rank; zeros between targets
    sources: Array  # all sources besides the target itself
    support: Array  # the sources that are solved together
    gain: Array  # of the sources at the same positions


@template
def new_candidates(items: int) -> SourceCandidates:
    """Return scratch space for the sources of one target among `items` items.

    Only the target's column of K is zeroed; the other arrays are uninitialized.
    """
    return SourceCandidates(
        np.zeros(items), np.empty(items + 1, np.int32), np.empty(items + 1, np.int32),
        np.empty(items),
    )  # fmt: skip


@template
def set_column(equations: NormalEquations, j: int, right: Array) -> None:
    """Write column j of K into `right`, by rank of the source; other entries stay (zeros).

    equations: (G + diag(penalty)) B = K; a rank is the number of an item in the solver.
    """
    K = equations.K
    for x in range(K.indptr[j], K.indptr[j + 1]):
        right[equations.rank[K.indices[x]]] = K.values[x]


@template
def clear_column(equations: NormalEquations, j: int, right: Array) -> None:
    """Set the entries of column j of K in `right`, by rank of the source, back to zero.

    equations: (G + diag(penalty)) B = K; a rank is the number of an item in the solver.
    """
    K = equations.K
    for x in range(K.indptr[j], K.indptr[j + 1]):
        right[equations.rank[K.indices[x]]] = 0.0


@kernel
def keep_largest(gain: Array, item: Array, count: int, k: int) -> int:
    """Move the k items of largest gain to the front of `item`, in their relative order.

    gain: a number per entry of `item`; the first `count` entries of both are read. `gain` is
    unchanged, so it no longer lines up with `item`. Of equal gains at the threshold, the first
    items stay. Returns how many are kept: k, or `count` if smaller.
    """
    if count <= k:
        return count
    threshold = kth_largest(gain[:count], k)
    above = 0
    for c in range(count):
        above += gain[c] > threshold
    size, equal = 0, k - above
    for c in range(count):
        if gain[c] > threshold or (gain[c] == threshold and equal > 0):
            equal -= gain[c] == threshold
            item[size] = item[c]
            size += 1
    return size


@template
def round_sum(value: float) -> float:
    """Return a number rounded to 26 binary digits, of 53.

    Sums that are added in another order differ in the last digits. Rounded, they are equal: so the
    order of items decides between equal gains, and weights are the same, whether a log is summed at
    once, on a cluster, or by an update.
    """
    shifted = value * 134_217_729.0  # 2**27 + 1: the difference below loses the last 27 digits
    return shifted - (shifted - value)


@template
def _keep_best(
    candidates: SourceCandidates, diagonal: Array, source: Array, count: int, k: int
) -> int:
    """Move the k sources of largest gain to the front of `source`; return how many are kept.

    source: `count` ranks (the solver's item numbers). The gain of source i is K_ij^2 / diagonal_i,
    rounded, with the target's column of K in candidates.right and the diagonal of G plus the
    penalty in `diagonal`; candidates.gain is overwritten. All stay if there are no more than k; of
    equal gains the first stay.
    """
    for c in range(count):
        gain = candidates.right[source[c]] ** 2 / diagonal[source[c]]
        candidates.gain[c] = round_sum(gain)
    return keep_largest(candidates.gain, source, count, k)


@template
def _list_sources(equations: NormalEquations, j: int, k: int, candidates: SourceCandidates) -> int:
    """Write the sources of target j, at most k, to candidates.sources; return how many.

    Sources are the ranks of items other than j with a nonzero entry in column j of K; if there are
    more than k, those with the largest gain K_ij^2 / (G_ii + penalty_i) stay. candidates.right
    has column j of K on entry. equations: (G + diag(penalty)) B = K; a rank is the solver's number
    of an item.
    """
    K, count = equations.K, 0
    for x in range(K.indptr[j], K.indptr[j + 1]):
        if K.indices[x] != j and K.values[x] != 0.0:
            candidates.sources[count] = equations.rank[K.indices[x]]
            count += 1
    return _keep_best(candidates, equations.diagonal, candidates.sources, count, k)


@template
def _drop_costly(
    equations: NormalEquations, candidates: SourceCandidates, count: int, least: int
) -> int:
    """Drop sources of smallest gain if the sources' rows of G have too many entries to read.

    equations.lengths has the entries of each row; too many are over 65,536 for a target. The gain
    of source i for target j is K_ij^2 / (G_ii + penalty_i). The first `count` candidates.sources
    are read and moved to the front; at least `least` stay. Returns how many there are.
    """
    work = 0
    for c in range(count):
        work += equations.lengths[candidates.sources[c]]
    if work <= _WORK:
        return count
    k = max(least, count * _WORK // work)
    return _keep_best(candidates, equations.diagonal, candidates.sources, count, k)


@template
def _choose_support(
    diagonal: Array, candidates: SourceCandidates, count: int, target: int, capacity: int
) -> int:
    """Write the sources to solve together to candidates.support; return how many.

    These are up to `capacity` of the `count` candidates.sources, those with the largest gain K_ij^2
    / diagonal_i, in their order, and then the rank `target` of the target itself, unless it is -1
    or they fill the capacity. diagonal: of G plus the penalty.
    """
    support = candidates.support
    copy_range(candidates.sources, support, 0, count)
    others = capacity - 1 if target >= 0 and capacity > 1 else capacity
    size = _keep_best(candidates, diagonal, support, count, others)
    if target >= 0 and size < capacity:
        support[size] = target
        size += 1
    return size


@template
def _take_all(items: int, excluded: int, support: Array) -> int:
    """Write all ranks (item numbers) but `excluded` to `support`; return their number.

    excluded: a rank, or -1 for none. items: the number of items.
    """
    size = 0
    for r in range(items):
        if r != excluded:
            support[size] = r
            size += 1
    return size


@template
def choose_sources(
    equations: NormalEquations, limits: SourceLimits, j: int, candidates: SourceCandidates
) -> tuple[int, int]:
    """Choose the sources of target j; return how many there are, and the size of the support.

    equations, limits: (G + diag(penalty)) B = K, and how many sources a target gets. The support
    are the sources that are solved together exactly. They are written to candidates.sources and
    candidates.support, as ranks (item numbers in the solver); candidates.right has column j of K on
    entry.

    The first number leaves out the target itself. It is 0 if all items are in the support, and both
    are 0 if there are limits and column j of K is empty.
    """
    n, target = len(equations.diagonal), equations.rank[j]
    if limits.together >= n:
        return 0, _take_all(n, -1 if limits.includes_target else target, candidates.support)
    if equations.K.indptr[j] == equations.K.indptr[j + 1]:
        return 0, 0
    count = _list_sources(equations, j, max(limits.total - limits.includes_target, 1), candidates)
    count = _drop_costly(equations, candidates, count, limits.together)
    target = target if limits.includes_target else -1
    size = _choose_support(equations.diagonal, candidates, count, target, limits.together)
    return count, size
