"""S-Walk (WSDM 2022): a random walk over SLIT's transitions that starts again from SLIS' similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.log import Log
from talerec.gram.gram import Gram
from talerec.models._walks import stochastic, walk
from talerec.models.params import param
from talerec.models.slist import SLIT
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Matrix, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse
from talerec.solvers.solve import solve


@dataclass(eq=False, kw_only=True)
class SWalk(SLIT):
    """M <- alpha M R + (1 - alpha) T, R the transitions of SLIT, T those of SLIS and staying put; B is M."""

    name: ClassVar[str] = "swalk"
    paper: ClassVar[str] = (
        "S-Walk: Accurate and Scalable Session-based Recommendation with Random Walks, WSDM 2022"
    )

    alpha: float = param(
        0.5,
        "chance that a walk goes on instead of starting again",
        low=0,
        high=1,
        search=(0.1, 0.9),
    )
    beta: float = param(
        0.5, "chance that a walk starts from a similar item and not where it is", low=0, high=1
    )
    steps: int = param(5, "steps of a walk", low=1, high=1000)
    width: int = param(200, "items a walk keeps in sight (local solver)", low=1)

    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            transitions, alike = self.gram(log), self._alike(log)
        with clock("solve"):
            R, solver = self._graph(transitions, self.solver)
            similar, _ = self._graph(alike, solver)
            T = _staying(similar, self.beta)
            return Weights(walk(R, T, self.alpha, self.steps, self.width)), solver

    def _graph(self, gram: Gram, solver: str) -> tuple[Matrix, str]:
        found = solve(gram, self.reg, solver=solver, neighbors=self.neighbors)
        return stochastic(found.weights), found.solver


def _staying(T: Matrix, beta: float) -> Matrix:
    """beta T + (1 - beta) I."""
    n = T.shape[0]
    if is_sparse(T):
        made = beta * T + (1 - beta) * sparse.eye_array(n, format="csr", dtype=np.float32)
        return made.astype(np.float32)
    T = np.float32(beta) * T
    T.flat[:: n + 1] += np.float32(1 - beta)
    return T
