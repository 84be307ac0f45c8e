"""The local solver's loops: the small system of a few sources for each target.

The *support* of target j holds the sources with the largest gain (see `sources`) and the target
itself. The weight of the target for itself, which K alone would never suggest, keeps an item that
was just seen from being recommended again. The other sources with an entry in column j of K are
too many to be solved together, but not to be left out: they get weights by one descent step from
the support's solution (`_step_outside`).

Items are numbered by rank, and only the lower triangle of G is stored (see `triangle`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from talerec.runtime import CSR, Array, kernel, reduction, template, unsigned_range
from talerec.solvers.sources import (
    NormalEquations,
    SourceCandidates,
    SourceLimits,
    choose_sources,
    clear_column,
    new_candidates,
    set_column,
)


class TargetColumns(NamedTuple):
    """The weights of source items, by target item, with gaps.

    Target j has the entries ptr[j]..ptr[j] + sizes[j] of `item` and `weight`; ptr[j + 1] ends its
    room.
    """

    ptr: Array
    item: Array  # source items
    weight: Array  # their weights for the target
    sizes: Array  # how many weights each target has
    explained: Array  # T_j'T_j minus the penalised squared error of target j


class SupportSystem(NamedTuple):
    """Scratch: the equations A b = right of one target's support, and their solution.

    The support are the source items that are solved together, in the order of their ranks (the
    solver's item numbers). They are a part of the normal equations (G + diag(penalty)) B = K.
    """

    position: Array  # of a rank in the support, from 1; zeros between targets
    A: Array  # G of the support below the diagonal, shifted by one column
    L: Array  # Cholesky factor, with 1 / L_pp on the diagonal
    diagonal: Array  # of G plus the penalty
    right: Array  # the target's entries of K
    weight: Array  # the solution


class OutsideStep(NamedTuple):
    """Scratch for one descent step of a target's sources outside its support, by rank.

    The support of a target are the sources solved together; a rank is the solver's number of an
    item. All arrays have an entry per rank and are 0 between targets.
    """

    residual: Array  # of the sources' normal equations, then divided by the diagonal
    weight: Array  # of the sources in the support
    is_outside: Array  # 1 for a source outside the support


# -- the support -----------------------------------------------------------------------------------


@template
def _gather(lower: CSR, support: Array, size: int, position: Array, A: Array) -> None:
    """Write A[p, q + 1] = G[support[p], support[q]] for q < p; support[:size] ascends.

    lower: G below the diagonal. position: scratch, one entry per item, 0 on entry and on return.
    A row of the triangle holds lower ranks only, so every pair is in one row, the shorter of its
    two, and lands below the diagonal. The row is scanned without a branch: what is not in the
    support lands in column 0.
    """
    for p in range(size):
        position[support[p]] = p + 1
    for p in range(size):
        row = A[p]
        row[: p + 1] = 0.0
        for x in unsigned_range(lower.indptr[support[p]], lower.indptr[support[p] + 1]):
            row[np.uint32(position[np.uint32(lower.indices[x])])] = lower.values[x]
    for p in range(size):
        position[support[p]] = 0


@reduction
def _factor(A: Array, L: Array, diagonal: Array, size: int) -> None:
    """Write the Cholesky factor L of a symmetric matrix; L[p, p] gets 1 / L_pp (0: no weight).

    The matrix has `size` rows, A[p, q + 1] at (p, q), q < p, and `diagonal` on its diagonal. A
    pivot of 0 up to rounding (a source that is a copy of others) leaves L[p, p] 0.
    """
    for p in range(size):
        pivot = diagonal[p]
        for q in range(p):
            total = 0.0
            for k in range(q):
                total += L[p, k] * L[q, k]
            value = (A[p, q + 1] - total) * L[q, q]
            L[p, q] = value
            pivot -= value * value
        # a source that is a copy of others up to rounding gets no weight
        L[p, p] = 1.0 / math.sqrt(pivot) if pivot > 1e-14 * diagonal[p] else 0.0


@reduction
def _substitute(L: Array, right: Array, size: int, b: Array) -> None:
    """Write b = (L L')^-1 right, for a Cholesky factor that holds 1 / L_pp in L[p, p].

    L: size x size, lower triangular; right and b have `size` entries.
    """
    for p in range(size):
        total = 0.0
        for k in range(p):
            total += L[p, k] * b[k]
        b[p] = (right[p] - total) * L[p, p]
    for p in range(size - 1, -1, -1):
        b[p] *= L[p, p]
        for k in range(p):
            b[k] -= L[p, k] * b[p]


@template
def _solve_support(
    equations: NormalEquations, candidates: SourceCandidates, size: int, system: SupportSystem
) -> float:
    """Solve for the weights b of one target's support; return K_j'b, how much they explain.

    equations: (G + diag(penalty)) B = K. The support are the `size` sources in candidates.support,
    as ranks (the solver's item numbers); candidates.right has the target's column K_j of K by rank.
    The weights go to system.weight; the other arrays of `system` are scratch.
    """
    for p in range(size):
        r = candidates.support[p]
        system.diagonal[p], system.right[p] = equations.diagonal[r], candidates.right[r]
    _gather(equations.lower, candidates.support, size, system.position, system.A)
    _factor(system.A, system.L, system.diagonal, size)
    _substitute(system.L, system.right, size, system.weight)
    explained = 0.0
    for p in range(size):
        explained += system.weight[p] * system.right[p]
    return explained


# -- the sources outside the support ---------------------------------------------------------------


@reduction
def _multiply_row(lower: CSR, r: int, vector: Array) -> float:
    """Return the dot product of row r of `lower` and a vector.

    lower: G below the diagonal, compressed by row; vector: one entry per column.
    """
    total = 0.0
    for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
        total += lower.values[x] * vector[np.uint32(lower.indices[x])]
    return total


@template
def _subtract_support(
    lower: CSR, candidates: SourceCandidates, size: int, weight: Array, step: OutsideStep
) -> None:
    """Subtract G_ik b_k from the residual of each source i outside the support, in place.

    The support are the `size` sources that are already solved. b_k: weight[p] of the source k =
    candidates.support[p]; also written to step.weight by rank. Only pairs (i, k) that are stored in
    row k of the lower triangle of G are subtracted here. Flags step.is_outside of the support are
    set to 0.
    """
    for p in range(size):
        step.weight[candidates.support[p]] = weight[p]
        step.is_outside[candidates.support[p]] = 0
    for p in range(size):
        r = candidates.support[p]
        for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
            if step.is_outside[np.uint32(lower.indices[x])]:
                step.residual[np.uint32(lower.indices[x])] -= lower.values[x] * weight[p]


@template
def _divide_residuals(
    equations: NormalEquations, candidates: SourceCandidates, count: int, step: OutsideStep
) -> float:
    """Turn residuals r into d = r / D in step.residual, outside the support; return d'Dd.

    The support are the sources of target j that are already solved, with weights b. r_i = K_ij -
    sum over the support of G_ik b_k, of which step.residual has the pairs stored in rows k; D is
    the diagonal of G + diag(penalty). The first `count` candidates.sources are read. equations: (G
    + diag(penalty)) B = K, with G below the diagonal.
    """
    alone = 0.0
    for c in range(count):
        r = candidates.sources[c]
        if step.is_outside[r]:
            product = _multiply_row(equations.lower, r, step.weight)
            total = candidates.right[r] + step.residual[r] - product
            step.residual[r] = total / equations.diagonal[r]
            alone += step.residual[r] * total
    return alone


@template
def _sum_overlap(lower: CSR, candidates: SourceCandidates, count: int, step: OutsideStep) -> float:
    """Return half of d'Gd without G's diagonal: the sum of d_r G_rs d_s over pairs s < r.

    d is step.residual, the step of each source r outside the support (the sources solved exactly);
    it is 0 for all other ranks, so they add nothing. The first `count` candidates.sources are
    visited, as ranks (the solver's item numbers); step.is_outside flags those outside the support.
    lower: G below the diagonal, by rank. `_step_outside` shortens the common step by this overlap,
    since sources explain partly the same.
    """
    overlap = 0.0
    for c in range(count):
        r = candidates.sources[c]
        if step.is_outside[r]:
            overlap += step.residual[r] * _multiply_row(lower, r, step.residual)
    return overlap


@template
def _step_outside(
    equations: NormalEquations,
    candidates: SourceCandidates,
    count: int,
    size: int,
    weight: Array,
    step: OutsideStep,
) -> tuple[float, float]:
    """Take one step of steepest descent for a target's sources outside the support.

    equations: (G + diag(penalty)) B = K, of which column j is the target's. The support are
    candidates.support[:size], already solved with weights b = `weight`; all sources are
    candidates.sources[:count], as ranks (the solver's item numbers).
    Source i moves along the residual of its normal equation over its diagonal, d_i = (K_ij - sum
    over the support of G_ik b_k) / diagonal_i, left in step.residual (0 in the support). All get d
    times one factor, the best for them together, since they explain partly the same: d'Dd / d'(G +
    diag(penalty))d. Returns that factor, and by how much the step lowers the penalised squared
    error.
    """
    for c in range(count):
        step.is_outside[candidates.sources[c]] = 1
    _subtract_support(equations.lower, candidates, size, weight, step)
    alone = _divide_residuals(equations, candidates, count, step)
    overlap = _sum_overlap(equations.lower, candidates, count, step)
    for c in range(count):
        step.is_outside[candidates.sources[c]] = 0
    for p in range(size):
        step.weight[candidates.support[p]] = 0.0
    share = alone / (alone + 2 * overlap) if alone > 0.0 else 0.0
    return share, share * alone


# -- targets ---------------------------------------------------------------------------------------


@template
def _write_support(
    out: TargetColumns, j: int, item: Array, support: Array, weight: Array, size: int
) -> None:
    """Write target j's weights of the `size` sources that were solved together, into `out`.

    support: the sources as ranks (item numbers in the solver); weight: their weights; item: the
    item of each rank. Target j's entries of out.item and out.weight begin at out.ptr[j].
    """
    first = out.ptr[j]
    for p in range(size):
        out.item[first + p], out.weight[first + p] = item[support[p]], weight[p]


@template
def _write_outside(
    out: TargetColumns, end: int, item: Array, sources: Array, share: float, residual: Array
) -> int:
    """Write the weights share * residual[r] of sources r from `end` on; return the new end.

    sources: ranks (the solver's item numbers); item: the item of each rank; end: the next free
    entry of out.item and out.weight. Sources with a residual of 0 are skipped, and the residuals
    are set to 0.
    """
    for c in range(len(sources)):
        r = sources[c]
        if residual[r] != 0.0:
            out.item[end], out.weight[end] = item[r], share * residual[r]
            end += 1
            residual[r] = 0.0
    return end


@kernel
def solve_targets(
    equations: NormalEquations, limits: SourceLimits, a: int, b: int, out: TargetColumns
) -> None:
    """Write the weights b_j of (G + diag(penalty)) b_j = K_j for targets j in a..b into `out`.

    Each target has few sources: those of its support, the ones with the largest gain K_ij^2 / (G_ii
    + penalty_i), are solved together exactly, the others get one step of steepest descent. limits:
    how many sources there are of each. b is excluded. equations: G and K; out: room for each
    target's sources and weights.
    """
    n = len(equations.diagonal)
    widest = min(limits.together, n)
    candidates = new_candidates(n)
    system = SupportSystem(
        np.zeros(n, np.int32), np.zeros((widest, widest + 1)), np.zeros((widest, widest)),
        np.empty(widest), np.empty(widest), np.empty(widest),
    )  # fmt: skip
    step = OutsideStep(np.zeros(n), np.zeros(n), np.zeros(n, np.uint8))
    for j in range(a, b):
        set_column(equations, j, candidates.right)
        count, size = choose_sources(equations, limits, j, candidates)
        explained = _solve_support(equations, candidates, size, system)
        _write_support(out, j, equations.item, candidates.support, system.weight, size)
        end = out.ptr[j] + size
        if count >= widest:  # else all sources are in the support
            share, more = _step_outside(equations, candidates, count, size, system.weight, step)
            sources = candidates.sources[:count]
            end = _write_outside(out, end, equations.item, sources, share, step.residual)
            explained += more
        out.sizes[j], out.explained[j] = end - out.ptr[j], explained
        clear_column(equations, j, candidates.right)


@kernel
def compress_by_source(columns: TargetColumns) -> CSR:
    """Return weights that are stored by target, with gaps, as compressed rows by source.

    Target j has the entries ptr[j]..ptr[j] + sizes[j] of `item` (sources) and `weight`. Zeros are
    dropped; the indices (targets) of each row ascend.
    """
    n = len(columns.sizes)
    indptr = np.zeros(n + 1, np.int64)
    for j in range(n):
        for x in range(columns.ptr[j], columns.ptr[j] + columns.sizes[j]):
            indptr[columns.item[x] + 1] += columns.weight[x] != 0.0
    for i in range(n):
        indptr[i + 1] += indptr[i]
    indices, values = np.empty(indptr[n], np.int32), np.empty(indptr[n], np.float32)
    free = indptr[:-1].copy()
    for j in range(n):
        for x in range(columns.ptr[j], columns.ptr[j] + columns.sizes[j]):
            if columns.weight[x] != 0.0:
                i = columns.item[x]
                indices[free[i]], values[free[i]] = j, columns.weight[x]
                free[i] += 1
    return CSR(indptr, indices, values)
