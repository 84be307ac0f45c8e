"""The local solver's loops: for each target a few sources, and the small system that they form.

The support N of target j holds the sources with the largest gain (see `sources`) and the target
itself. Its own weight, which K alone would never suggest, is what keeps an item that was just seen
from being recommended again. The other sources that ever led to j are too many to be solved
together, but not to be left out: they join with one step from there (`_join`).

Items are numbered by rank, and of G only the half below the diagonal is kept (see `half`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, reducing, template, unsigned
from talerec.solvers.compressed import Compressed
from talerec.solvers.sources import Candidates, Equations, Limits, choose_sources


class Columns(NamedTuple):
    """Weights target by target: those of target j are entries ptr[j]..ptr[j] + sizes[j]."""

    ptr: Array
    item: Array
    weight: Array
    sizes: Array
    explained: (
        Array  # by how much a target's weights make the penalised squared error less than T'T
    )


class System(NamedTuple):
    """Scratch: the equations of one support, in the order of its ranks."""

    place: Array  # of a rank in the support, from 1; zeros between targets
    A: Array
    L: Array
    ridge: Array
    goal: Array
    weight: Array


class Step(NamedTuple):
    """Scratch: what the sources outside the support lack, by rank; zeros between targets."""

    lacks: Array
    held: Array  # the weights of the support
    outside: Array  # 1 for a source outside the support


# -- the sources that are solved together ----------------------------------------------------------


@template
def _gather(half: Compressed, support: Array, size: int, place: Array, A: Array) -> None:
    """A[p, q + 1] = G[support[p], support[q]] for q < p; support[] ascends.

    A row of the half holds lower ranks only, so every pair is found in one row, the shorter of its
    two, and lands below the diagonal. It is scanned without a branch: what is not in the support
    lands in column 0.
    """
    for p in range(size):
        place[support[p]] = p + 1
    for p in range(size):
        row = A[p]
        row[: p + 1] = 0.0
        for x in unsigned(half.starts[support[p]], half.starts[support[p] + 1]):
            row[np.uint32(place[np.uint32(half.indices[x])])] = half.values[x]
    for p in range(size):
        place[support[p]] = 0


@reducing
def _factor(A: Array, L: Array, diagonal: Array, size: int) -> None:
    """The Cholesky factor of A (see `_gather`) with `diagonal`; L holds 1 / L_pp on its diagonal."""
    for p in range(size):
        left = diagonal[p]
        for q in range(p):
            total = 0.0
            for k in range(q):
                total += L[p, k] * L[q, k]
            value = (A[p, q + 1] - total) * L[q, q]
            L[p, q] = value
            left -= value * value
        # a source that rounding makes a copy of others gets no weight
        L[p, p] = 1.0 / math.sqrt(left) if left > 1e-14 * diagonal[p] else 0.0


@reducing
def _back(L: Array, right: Array, size: int, b: Array) -> None:
    """b = (L L')^-1 right."""
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
def _solve_support(equations: Equations, found: Candidates, size: int, system: System) -> float:
    """The weights of the support, in system.weight; returns how much they explain."""
    for p in range(size):
        r = found.support[p]
        system.ridge[p], system.goal[p] = equations.diagonal[r], found.right[r]
    _gather(equations.half, found.support, size, system.place, system.A)
    _factor(system.A, system.L, system.ridge, size)
    _back(system.L, system.goal, size, system.weight)
    explained = 0.0
    for p in range(size):
        explained += system.weight[p] * system.goal[p]
    return explained


# -- the sources that join -------------------------------------------------------------------------


@reducing
def _row_times(half: Compressed, r: int, by_rank: Array) -> float:
    """Row r of the half times a vector."""
    total = 0.0
    for x in unsigned(half.starts[r], half.starts[r + 1]):
        total += half.values[x] * by_rank[np.uint32(half.indices[x])]
    return total


@template
def _place_support(
    half: Compressed, found: Candidates, size: int, weight: Array, step: Step
) -> None:
    """Hold the support's weights by rank; from what sources outside lack goes G_ik b_k where the support owns the pair."""
    for p in range(size):
        step.held[found.support[p]] = weight[p]
        step.outside[found.support[p]] = 0
    for p in range(size):
        r = found.support[p]
        for x in unsigned(half.starts[r], half.starts[r + 1]):
            if step.outside[np.uint32(half.indices[x])]:
                step.lacks[np.uint32(half.indices[x])] -= half.values[x] * weight[p]


@template
def _find_lacks(equations: Equations, found: Candidates, count: int, step: Step) -> float:
    """d_i, what the normal equation of each source outside lacks, over its diagonal; returns d'Dd."""
    alone = 0.0
    for c in range(count):
        r = found.sources[c]
        if step.outside[r]:
            total = found.right[r] + step.lacks[r] - _row_times(equations.half, r, step.held)
            step.lacks[r] = total / equations.diagonal[r]
            alone += step.lacks[r] * total
    return alone


@template
def _find_overlap(half: Compressed, found: Candidates, count: int, step: Step) -> float:
    """What the sources outside explain in common: half of d'Gd without its diagonal."""
    together = 0.0
    for c in range(count):
        r = found.sources[c]
        if step.outside[r]:
            together += step.lacks[r] * _row_times(half, r, step.lacks)
    return together


@template
def _join(
    equations: Equations, found: Candidates, count: int, size: int, weight: Array, step: Step
) -> tuple[float, float]:
    """What the sources outside the support get: one step of steepest descent from the support's solution.

    Each such i is asked for what its own normal equation lacks, d_i = (K_ij - sum over the support of
    G_ik b_k) / diagonal_i, left in step.lacks; the support has 0 there. All get d times the one factor
    that is best for them together, since they explain in part the same:
    d'Dd / d'(G + diag(penalty))d, which is returned with what the step explains.
    """
    for c in range(count):
        step.outside[found.sources[c]] = 1
    _place_support(equations.half, found, size, weight, step)
    alone = _find_lacks(equations, found, count, step)
    together = _find_overlap(equations.half, found, count, step)
    for c in range(count):
        step.outside[found.sources[c]] = 0
    for p in range(size):
        step.held[found.support[p]] = 0.0
    share = alone / (alone + 2 * together) if alone > 0.0 else 0.0
    return share, share * alone


# -- targets ---------------------------------------------------------------------------------------


@template
def _write_support(
    out: Columns, j: int, item: Array, support: Array, weight: Array, size: int
) -> None:
    first = out.ptr[j]
    for p in range(size):
        out.item[first + p], out.weight[first + p] = item[support[p]], weight[p]


@template
def _write_joined(
    out: Columns, place: int, item: Array, found: Candidates, count: int, share: float, lacks: Array
) -> int:
    """Write the weights of the sources that joined, from `place` on, and clear what they lacked; returns their end."""
    for c in range(count):
        r = found.sources[c]
        if lacks[r] != 0.0:
            out.item[place], out.weight[place] = item[r], share * lacks[r]
            place += 1
            lacks[r] = 0.0
    return place


@kernel
def solve_targets(equations: Equations, limits: Limits, a: int, b: int, out: Columns) -> None:
    """Write the weights of targets a..b."""
    n, K = len(equations.diagonal), equations.K
    widest = min(limits.together, n)
    found = Candidates(
        np.zeros(n), np.empty(n + 1, np.int32), np.empty(n + 1, np.int32), np.empty(n),
        np.empty(n, np.int32),
    )  # fmt: skip
    system = System(
        np.zeros(n, np.int32), np.zeros((widest, widest + 1)), np.zeros((widest, widest)),
        np.empty(widest), np.empty(widest), np.empty(widest),
    )  # fmt: skip
    step = Step(np.zeros(n), np.zeros(n), np.zeros(n, np.uint8))
    for j in range(a, b):
        for x in range(K.starts[j], K.starts[j + 1]):
            found.right[equations.rank[K.indices[x]]] = K.values[x]
        count, size = choose_sources(equations, limits, j, found)
        explained = _solve_support(equations, found, size, system)
        _write_support(out, j, equations.item, found.support, system.weight, size)
        end = out.ptr[j] + size
        if count >= widest:  # else all sources are in the support
            share, more = _join(equations, found, count, size, system.weight, step)
            end = _write_joined(out, end, equations.item, found, count, share, step.lacks)
            explained += more
        out.sizes[j], out.explained[j] = end - out.ptr[j], explained
        for x in range(K.starts[j], K.starts[j + 1]):
            found.right[equations.rank[K.indices[x]]] = 0.0


@kernel
def by_source(made: Columns) -> tuple[Array, Array, Array]:
    """Weights written target by target, with gaps, as CSR by source; zeros are not kept."""
    n = len(made.sizes)
    indptr = np.zeros(n + 1, np.int64)
    for j in range(n):
        for x in range(made.ptr[j], made.ptr[j] + made.sizes[j]):
            indptr[made.item[x] + 1] += made.weight[x] != 0.0
    for i in range(n):
        indptr[i + 1] += indptr[i]
    indices, values = np.empty(indptr[n], np.int32), np.empty(indptr[n], np.float32)
    place = indptr[:-1].copy()
    for j in range(n):
        for x in range(made.ptr[j], made.ptr[j] + made.sizes[j]):
            if made.weight[x] != 0.0:
                i = made.item[x]
                indices[place[i]], values[place[i]] = j, made.weight[x]
                place[i] += 1
    return indptr, indices, values
