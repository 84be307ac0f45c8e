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
    round_sum,
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

    The support are the source items that are solved together; the sources *outside* get a step
    from their solution. Both are parts of the normal equations (G + diag(penalty)) B = K, in the
    order in which K lists them: it does not depend on ranks (the solver's item numbers), so that
    one machine and a cluster, whose ranks differ, add the same numbers in the same order.
    """

    slot: Array  # of a rank: its column of `A`; zeros between targets
    A: Array  # G of the support (rows, and columns from 1), then of the sources outside (columns)
    G_outside: Array  # G of the sources outside (rows) and the support (columns from 1)
    L: Array  # Cholesky factor, with 1 / L_pp on the diagonal
    diagonal: Array  # of G plus the penalty
    right: Array  # the target's entries of K
    weight: Array  # the solution


class OutsideStep(NamedTuple):
    """Scratch for one descent step of a target's sources outside its support.

    The support of a target are the sources solved together; a rank is the solver's number of an
    item.
    """

    sources: Array  # the sources outside the support, as ranks
    residual: Array  # of their equations, divided by the diagonal; by rank, 0 between targets


# -- the support -----------------------------------------------------------------------------------


@template
def _list_outside(candidates: SourceCandidates, count: int, size: int, system: SupportSystem,
                  step: OutsideStep) -> int:  # fmt: skip
    """Number the columns of a target's sources in system.slot; return how many are outside.

    The support, candidates.support[:size], gets the columns from 1 on, in its order. The other
    ranks in candidates.sources[:count] get the columns behind them, and go to step.sources.
    """
    for p in range(size):
        system.slot[candidates.support[p]] = p + 1
    n_outside = 0
    for c in range(count):
        r = candidates.sources[c]
        if system.slot[r] == 0:
            step.sources[n_outside] = r
            n_outside += 1
            system.slot[r] = size + n_outside
    return n_outside


@template
def _gather_row(lower: CSR, r: int, slot: Array, row: Array) -> None:
    """Write row r of the lower triangle of G into `row`, each entry to the slot of its column.

    The row of the triangle is scanned without a branch: entries without a slot land in row[0].
    """
    for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
        row[np.uint32(slot[np.uint32(lower.indices[x])])] = lower.values[x]


@template
def _gather(
    lower: CSR, candidates: SourceCandidates, count: int, size: int, system: SupportSystem,
    step: OutsideStep,
) -> int:  # fmt: skip
    """Write the entries of G that a target needs to system.A and system.G_outside.

    A[p, q + 1] = G[support[p], support[q]] for q < p, with support = candidates.support[:size], and
    G_outside[o, p + 1] = G[step.sources[o], support[p]], for the sources outside the support, whose
    number is returned. lower: G below the diagonal. Every pair of items is in one of their two
    rows, the other of which has a 0.
    """
    slot, A, G_outside = system.slot, system.A, system.G_outside
    n_outside = _list_outside(candidates, count, size, system, step)
    for p in range(size):
        A[p, : size + n_outside + 1] = 0.0
        _gather_row(lower, candidates.support[p], slot, A[p])
    for o in range(n_outside):
        slot[step.sources[o]] = 0
    for o in range(n_outside):
        G_outside[o, : size + 1] = 0.0
        _gather_row(lower, step.sources[o], slot, G_outside[o])
    for p in range(size):
        slot[candidates.support[p]] = 0
        for q in range(p):
            A[p, q + 1] += A[q, p + 1]
        for o in range(n_outside):
            G_outside[o, p + 1] += A[p, size + o + 1]
    return n_outside


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
    as ranks (the solver's item numbers), whose entries of G are in system.A; candidates.right has
    the target's column K_j of K by rank. The weights go to system.weight.
    """
    for p in range(size):
        r = candidates.support[p]
        system.diagonal[p], system.right[p] = equations.diagonal[r], candidates.right[r]
    _factor(system.A, system.L, system.diagonal, size)
    _substitute(system.L, system.right, size, system.weight)
    explained = 0.0
    for p in range(size):
        explained += system.weight[p] * system.right[p]
    return explained


# -- the sources outside the support ---------------------------------------------------------------


@reduction
def _multiply_entries(row: Array, size: int, vector: Array) -> float:
    """Return the dot product of row[1 : size + 1] and vector[:size]."""
    total = 0.0
    for p in range(size):
        total += row[p + 1] * vector[p]
    return total


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
def _step_outside(
    equations: NormalEquations, right: Array, system: SupportSystem, size: int,
    step: OutsideStep, n_outside: int,
) -> tuple[float, float]:  # fmt: skip
    """Take one step of steepest descent for a target's sources outside the support.

    equations: (G + diag(penalty)) B = K, of which `right` is the target's column by rank. The
    support are `size` sources, already solved with weights b = system.weight; the sources outside
    are step.sources[:n_outside], as ranks (the solver's item numbers), with their entries of G in
    system.G_outside.
    Source i moves along the residual of its normal equation over its diagonal, d_i = (K_ij - sum
    over the support of G_ik b_k) / diagonal_i, left in step.residual (0 for all other ranks). All
    get d times one factor, the best for them together, since they explain partly the same: d'Dd /
    d'(G + diag(penalty))d, with D the diagonal. Returns that factor, and by how much the step
    lowers the penalised squared error.
    """
    alone = 0.0
    for o in range(n_outside):
        r = step.sources[o]
        total = right[r] - _multiply_entries(system.G_outside[o], size, system.weight)
        step.residual[r] = total / equations.diagonal[r]
        alone += step.residual[r] * total
    overlap = 0.0  # half of d'Gd without G's diagonal: the pairs of sources of each row
    for o in range(n_outside):
        r = step.sources[o]
        overlap += step.residual[r] * _multiply_row(equations.lower, r, step.residual)
    share = round_sum(alone / (alone + 2 * overlap)) if alone > 0.0 else 0.0
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
    most_outside = min(limits.total - limits.together, n)
    candidates = new_candidates(n)
    system = SupportSystem(
        np.zeros(n, np.int32), np.empty((widest, widest + most_outside + 1)),
        np.empty((most_outside, widest + 1)), np.zeros((widest, widest)),
        np.empty(widest), np.empty(widest), np.empty(widest),
    )  # fmt: skip
    step = OutsideStep(np.empty(most_outside, np.int32), np.zeros(n))
    for j in range(a, b):
        set_column(equations, j, candidates.right)
        count, size = choose_sources(equations, limits, j, candidates)
        n_outside = _gather(equations.lower, candidates, count, size, system, step)
        explained = _solve_support(equations, candidates, size, system)
        _write_support(out, j, equations.item, candidates.support, system.weight, size)
        end = out.ptr[j] + size
        if n_outside:
            share, more = _step_outside(equations, candidates.right, system, size, step, n_outside)
            sources = step.sources[:n_outside]
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
