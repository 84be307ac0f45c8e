"""Solve a Gram for weights, B = (G + diag(penalty))^-1 K, with one of four solvers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from talerec.errors import TalerecError
from talerec.gram import Gram
from talerec.runtime import Array, Matrix, memory, sparse
from talerec.solvers.exact import solve_exact, solve_with_torch

logger = logging.getLogger("talerec")


SOLVERS = ("auto", "exact", "local", "torch")

# thresholds of `auto`
_EXACT_UP_TO = 4_000  # items
_FAINT = 1e-3  # of the mean diagonal of G: a smaller penalty hardly constrains the weights,
_FAINT_UP_TO = 25_000  # and up to so many items the exact solver's minutes pay off
_DENSE = 0.25  # a Gram fuller than this has no small neighbourhoods


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of a linear model, and the solver that computed them.

    The weights B (source x target item) solve (G + diag(penalty)) B = K, exactly or approximately.
    """

    weights: Matrix  # B, source x target items, float32, dense or sparse
    solver: str  # "exact", "local" or "torch"


def solve_gram(
    gram: Gram,
    penalty: float | Array,
    *,
    solver: str = "auto",
    neighbors: int = 100,
    targets: Array | None = None,
) -> Solution:
    """Return the weights B = (G + diag(penalty))^-1 K, exact or sparse and approximate.

    gram: G = S'S and K = S'T, items x items, of the normal equations of S B = T
    penalty: one number, or one per item
    solver: "auto", "exact", "local" (B is sparse, with about `neighbors` sources per target) or
    "torch" (falls back to "exact")
    targets: a flag per item; the local solver gives weights to the flagged targets only. The other
    solvers solve all targets at once and ignore it.
    """
    if solver not in SOLVERS:
        raise TalerecError(f"solver is {solver!r}; it takes one of {', '.join(SOLVERS)}")
    ridge = np.broadcast_to(np.float64(penalty), gram.items)
    solver = resolve_solver(gram, ridge, solver)
    if solver == "local":
        from talerec.solvers.local import solve_local  # its kernels are loaded where they are used

        return Solution(solve_local(gram, ridge, neighbors, targets=targets)[0], "local")
    if solver == "torch" and (weights := solve_with_torch(gram, ridge)) is not None:
        return Solution(weights, "torch")
    return Solution(solve_exact(gram, ridge), "exact")


@dataclass(frozen=True, eq=False)
class Inverse:
    """P = (G + diag(penalty))^-1 of the exact solvers, or the local solver's approximation.

    weights: P, dense; or, of the local solver, a sparse B with a zero diagonal. explained: of the
    local solver, per target j, how much of G_jj + penalty_j the weights B explain; else None.
    """

    weights: Matrix
    explained: Array | None
    solver: str  # "exact", "local" or "torch"


def invert_gram(
    gram: Gram, penalty: float | Array, *, solver: str = "auto", neighbors: int = 100
) -> Inverse:
    """Return P = (G + diag(penalty))^-1, from which `bound_inverse` computes weights.

    gram: only its G (items x items) is used, which says how often two items occur together.
    penalty, solver, neighbors: as in `solve_gram`.
    """
    ridge = np.broadcast_to(np.float64(penalty), gram.items)
    solver = resolve_solver(gram, ridge, solver)
    if solver == "local":
        from talerec.solvers.local import solve_local

        return Inverse(*solve_local(gram, ridge, neighbors, zero_diagonal=True), "local")
    identity = sparse.eye_array(gram.items, format="csc")
    solution = solve_gram(Gram(gram.G, identity), ridge, solver=solver)
    return Inverse(solution.weights, None, solution.solver)


def bound_inverse(
    inverse: Inverse, gram: Gram, penalty: float | Array, bound: float, *, in_place: bool = False
) -> Solution:
    """Return B = I - P diag(g), P = (G + diag(penalty))^-1, with B_jj of at most `bound`.

    g_j is the penalty if 1 - penalty_j P_jj <= bound, else (1 - bound) / P_jj. With bound 0 this is
    EASE: items predict each other, and none predicts itself. inverse: P, from `invert_gram` of the
    same Gram and penalty; in_place: its arrays may be overwritten.
    """
    ridge = np.broadcast_to(np.float64(penalty), gram.items)
    weights = inverse.weights if in_place else inverse.weights.copy()
    if inverse.explained is None:
        _bound_exact(weights, ridge, bound)
        return Solution(weights, inverse.solver)
    share = _bounded_share(gram.G.diagonal() + ridge - inverse.explained, ridge, bound)
    weights.data *= share.astype(np.float32)[weights.indices]
    if (share != 1).any():
        weights = (weights + sparse.diags_array(1 - share, format="csr")).astype(np.float32)
    return Solution(weights, inverse.solver)


def _bound_exact(inverse: Array, penalty: Array, bound: float) -> None:
    """Turn P into I - P diag(g) in place, the diagonal of the result being at most `bound`.

    inverse: P = (G + diag(penalty))^-1, items x items, dense. g_j is penalty_j if 1 - penalty_j
    P_jj <= bound, else (1 - bound) / P_jj.
    """
    at = np.arange(len(inverse))
    share = _bounded_share(1 / inverse[at, at].astype(np.float64), penalty, bound)
    diagonal = 1 - share
    inverse *= (-share / inverse[at, at]).astype(np.float32)
    inverse[at, at] = diagonal


def _bounded_share(unexplained: Array, penalty: Array, bound: float) -> Array:
    """Return s_j = g_j P_jj, the factor of EASE's weights of item j if it may predict itself.

    P = (G + diag(penalty))^-1, and unexplained is 1 / P_jj. g_j is penalty_j if 1 - penalty_j P_jj
    <= bound, else (1 - bound) / P_jj; the item's weight for itself is 1 - s_j, at most `bound`.
    """
    free = np.minimum(penalty / unexplained, 1)  # more only by rounding
    return np.where(1 - free <= bound, free, 1 - bound)


def resolve_solver(gram: Gram, penalty: Array, solver: str) -> str:
    """Return the solver's name, the chosen one ("exact" or "local") for "auto".

    gram, penalty: of the equations (G + diag(penalty)) B = K to solve, one penalty per item.
    """
    return choose_solver(gram, penalty) if solver == "auto" else solver


def choose_solver(gram: Gram, penalty: Array) -> str:
    """Return "exact" (all weights) or "local" (few sources per target item); log the reason.

    It depends on the number of items, the penalty (one per item) relative to the diagonal of G, the
    density of G and the free memory. gram: G and K of (G + diag(penalty)) B = K, items x items.
    """
    n = gram.items
    free_bytes = memory.available_bytes()
    needed = 2 * n * n * 4
    fits = needed < 0.9 * free_bytes
    faint = penalty.mean() < _FAINT * gram.G.diagonal().mean()
    if n <= _EXACT_UP_TO:
        solver, reason = "exact", f"up to {_EXACT_UP_TO:,} items it takes seconds"
    elif faint and n <= _FAINT_UP_TO and 2 * needed < 0.9 * free_bytes:
        solver, reason = "exact", "so small a penalty needs every source"
    elif gram.density < _DENSE:
        solver, reason = "local", f"{gram.density:.1%} of the Gram is filled"
    elif fits:
        solver, reason = "exact", f"{gram.density:.1%} of the Gram is filled, and it fits"
    else:
        sizes = f"{memory.format_bytes(needed)} of {memory.format_bytes(free_bytes)}"
        solver, reason = "local", f"exact needs {sizes}"
    logger.info("solver auto: %s for %s items (%s)", solver, f"{n:,}", reason)
    return solver
