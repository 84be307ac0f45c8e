"""S-Walk (WSDM 2022): a random walk over SLIT's transitions that starts again from SLIS' similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.log import Log
from talerec.gram.gram import Gram
from talerec.models.core.params import param
from talerec.models.linear.slist import SLIT
from talerec.models.linear.walks import stochastic, walk
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Matrix, is_sparse
from talerec.runtime.clock import Clock
from talerec.runtime.lazy import sparse
from talerec.solvers.solver import solve


@dataclass(eq=False, kw_only=True)
class SWalk(SLIT):
    """A random walk over items: at each step it goes on along SLIT's weights, or starts again along those of SLIS.

    M <- alpha M R + (1 - alpha) (beta T + (1 - beta) I), `steps` times from M = I, with R from SLIT, T from
    SLIS, both without negative weights and every row with a sum of 1; B is the last M.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SWalk().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 4]
    """

    name: ClassVar[str] = "swalk"
    good_for: ClassVar[str] = "Short sessions with few links between items"
    by_target: ClassVar[bool] = False
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
    width: int = param(200, "items that a walk keeps after every step (local solver)", low=1)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            slit, slis = self.gram(log), self._slis(log).gram(self.budget)
        with clock("solve"):
            R, solver = self._transition_weights(slit, self.solver)
            similar, _ = self._transition_weights(slis, solver)
            T = _or_stay(similar, self.beta)
            return Weights(walk(R, T, self.alpha, self.steps, self.width)), solver

    def _transition_weights(self, gram: Gram, solver: str) -> tuple[Matrix, str]:
        found = solve(gram, self.reg, solver=solver, neighbors=self.neighbors)
        return stochastic(found.weights), found.solver


def _or_stay(T: Matrix, beta: float) -> Matrix:
    """beta T + (1 - beta) I: a walk goes along T, or stays."""
    n = T.shape[0]
    if is_sparse(T):
        made = beta * T + (1 - beta) * sparse.eye_array(n, format="csr", dtype=np.float32)
        return made.astype(np.float32)
    T = np.float32(beta) * T
    T.flat[:: n + 1] += np.float32(1 - beta)
    return T
