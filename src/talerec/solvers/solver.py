"""From a Gram to weights, B = (G + diag(penalty))^-1 K: which solver, and what it gives back."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from talerec.errors import TalerecError
from talerec.gram.gram import Gram
from talerec.runtime import memory
from talerec.runtime.arrays import Array, Matrix
from talerec.runtime.lazy import sparse
from talerec.solvers.exact import exact, with_torch
from talerec.solvers.local import local, local_explained, local_some

logger = logging.getLogger("talerec")


SOLVERS = ("auto", "exact", "local", "torch")

# what `auto` goes by
_EXACT_UP_TO = 4_000  # items
_FAINT = 1e-3  # of the mean diagonal of G: below it a penalty hardly holds the weights,
_FAINT_UP_TO = 25_000  # and up to so many items that is worth minutes
_DENSE = 0.25  # a Gram fuller than this has no small neighbourhoods


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights (source x target, float32) and the name of the solver that made them."""

    weights: Matrix
    solver: str


def solve(
    gram: Gram,
    penalty: float | Array,
    *,
    solver: str = "auto",
    neighbors: int = 100,
    wanted: Array | None = None,
) -> Solution:
    """Weights by the solver asked for; `penalty` is added to the diagonal of G.

    wanted: a flag per item; the local solver gives weights to these targets alone, the others solve all at once anyway.
    """
    if solver not in SOLVERS:
        raise TalerecError(f"solver is {solver!r}; it takes one of {', '.join(SOLVERS)}")
    ridge = np.broadcast_to(np.float64(penalty), gram.items)
    chosen = choose(gram, ridge) if solver == "auto" else solver
    if chosen == "local":
        found = (
            local(gram, ridge, neighbors)
            if wanted is None
            else local_some(gram, ridge, neighbors, wanted)
        )
        return Solution(found, "local")
    if chosen == "torch" and (weights := with_torch(gram, ridge)) is not None:
        return Solution(weights, "torch")
    return Solution(exact(gram, ridge), "exact")


def solve_bounded(
    gram: Gram, penalty: float | Array, most: float, *, solver: str = "auto", neighbors: int = 100
) -> Solution:
    """B = I - P diag(g), P = (G + diag(penalty))^-1: items predict each other, none itself by more than `most`.

    g_j is the penalty where that leaves 1 - penalty_j P_jj <= most on the diagonal, else (1 - most) / P_jj.
    With `most` 0 this is EASE.
    """
    ridge = np.broadcast_to(np.float64(penalty), gram.items)
    chosen = choose(gram, ridge) if solver == "auto" else solver
    if chosen == "local":
        return Solution(_bounded_local(gram, ridge, most, neighbors), "local")
    identity = sparse.eye_array(gram.items, format="csc")
    found = solve(Gram(gram.G, identity), ridge, solver=chosen)
    _bound_inverse(found.weights, ridge, most)
    return found


def _bound_inverse(inverse: Array, penalty: Array, most: float) -> None:
    """Turn P into I - P diag(g), in place."""
    at = np.arange(len(inverse))
    share = _bounded_share(1 / inverse[at, at].astype(np.float64), penalty, most)
    own = 1 - share  # the weight of an item for itself
    inverse *= (-share / inverse[at, at]).astype(np.float32)
    inverse[at, at] = own


def _bounded_local(gram: Gram, penalty: Array, most: float, neighbors: int) -> Matrix:
    """I - P diag(g) from weights with a zero diagonal: what they leave unexplained of item j is 1 / P_jj."""
    others, explained = local_explained(gram, penalty, neighbors, zero_diagonal=True)
    share = _bounded_share(gram.G.diagonal() + penalty - explained, penalty, most)
    others.data *= share.astype(np.float32)[others.indices]
    if (share != 1).any():
        others = (others + sparse.diags_array(1 - share, format="csr")).astype(np.float32)
    return others


def _bounded_share(unexplained: Array, penalty: Array, most: float) -> Array:
    """g_j P_jj, given 1 / P_jj: what remains of the weights of EASE when an item may predict itself."""
    free = np.minimum(penalty / unexplained, 1)  # rounding aside, it is never more
    return np.where(1 - free <= most, free, 1 - most)


def choose(gram: Gram, penalty: Array) -> str:
    """What `auto` takes; the reason goes to the log, in one line."""
    n = gram.items
    room = memory.available_bytes()
    needed = 2 * n * n * 4
    fits = needed < 0.9 * room
    faint = penalty.mean() < _FAINT * gram.G.diagonal().mean()
    if n <= _EXACT_UP_TO:
        chosen, why = "exact", f"up to {_EXACT_UP_TO:,} items it takes seconds"
    elif faint and n <= _FAINT_UP_TO and 2 * needed < 0.9 * room:
        chosen, why = "exact", "so small a penalty asks for every source"
    elif gram.density < _DENSE:
        chosen, why = "local", f"{gram.density:.1%} of the Gram is filled"
    elif fits:
        chosen, why = "exact", f"{gram.density:.1%} of the Gram is filled, and it fits"
    else:
        chosen, why = "local", f"exact needs {memory.human(needed)} of {memory.human(room)}"
    logger.info("solver auto: %s for %s items (%s)", chosen, f"{n:,}", why)
    return chosen
