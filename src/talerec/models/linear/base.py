"""What item-item models share: histories weighed by recency, and weights that solve a linear system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.gram.gram import Gram
from talerec.gram.terms import Summand, total
from talerec.models.core.base import Model
from talerec.models.core.params import LEARN, SCORE, SOLVE, param
from talerec.models.core.update_state import Settled
from talerec.ranking import places
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, Matrix
from talerec.runtime.clock import Clock
from talerec.solvers.exact import require_torch
from talerec.solvers.solver import SOLVERS, Solution, solve
from talerec.solvers.triangle import halved


@dataclass(eq=False, kw_only=True)
class Linear(Model):
    """A model whose scores are x @ B, with x_i = exp(-place / recency)."""

    recency: float = param(
        2.0,
        "places in which a history row's weight falls to 1/e (tau_inf)",
        above=0,
        search=(0.5, 32),
        stage=SCORE,
    )
    memory: float = param(0.0, "GB that the Gram may take; 0: what is free", low=0)
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    @property
    def budget(self) -> int | None:
        """The bytes that the Gram may take; None: what is free."""
        return round(self.memory * 1e9) or None

    def query(self, histories: Histories) -> Query:
        every_row = np.empty(0, np.int64)  # a moment of its own
        known = self.fitted.weights
        return places.recency(known, histories, every_row, self.recency, self.max_history)


@dataclass(eq=False, kw_only=True)
class Solved(Linear):
    """A model whose weights B solve the normal equations of a Gram."""

    reg: float = param(
        100.0,
        "ridge penalty (lambda)",
        above=0,
        high=1e12,
        search=(1, 1000),
        grid=(1, 5, 10, 50, 100, 500, 1000),
        stage=SOLVE,
    )
    solver: str = param("auto", "how the system is solved", choices=SOLVERS, stage=SOLVE)
    neighbors: int = param(100, "sources per target (local solver)", low=1, stage=SOLVE)

    def gram(self, log: Log) -> Gram:
        """G and K of the training rows."""
        return total(self.summands(log), self.budget)

    def summands(self, log: Log) -> list[Summand]:
        """The pairs of rows that the Gram is summed from; a model whose Gram is more than a sum has a `gram` of its own."""
        raise NotImplementedError

    def penalty(self, own: Array) -> Array:
        """What is added to the diagonal of G, given that diagonal."""
        return np.full(len(own), float(self.reg))

    def solution(self, gram: Gram) -> Solution:
        """Weights from the Gram."""
        penalty = self.penalty(np.asarray(gram.G.diagonal()))
        return solve(gram, penalty, solver=self.solver, neighbors=self.neighbors)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        if self.solver == "torch":
            require_torch()  # before the work whose result it is to solve
        with clock("gram"):
            gram = self.cached(LEARN, log, lambda: self.gram(log))
        with clock("solve"):
            found = self.solution(gram)
        return Weights(found.weights), found.solver

    # -- updating --

    #: Whether the local solver's weights of a target are the solution of its own equations, and nothing else.
    by_target: ClassVar[bool] = False

    @property
    def keeps_half(self) -> bool:
        """Whether an update adds to a G that was kept, and counts K target by target (`target_columns`)."""
        return False

    def target_columns(self, log: Log, targets: Array) -> Matrix:
        """The columns of K of some targets (a flag per item), counted from the log."""
        raise NotImplementedError

    def settle(self, log: Log) -> Settled:
        none = np.zeros(len(log.items))
        if self.fitted.solver != "local" or not self.by_target:
            return Settled()
        if not self.keeps_half:
            return Settled(lacking=none)
        gram = self.gram(log)
        return Settled(
            halved(gram.G), int(gram.K.nnz if gram.is_sparse else gram.items**2), lacking=none
        )

    def as_settled(self, settled: Settled) -> Self:
        return self.with_params(solver=self.fitted.solver or self.solver)

    def item_weights(self) -> Matrix:
        """What leads from item to item, as it was solved."""
        return self.fitted.weights.matrix

    def completed(self, item_weights: Matrix, log: Log, clock: Clock) -> Weights:
        """All weights, given what leads from item to item."""
        return Weights(item_weights)


def dropout_penalty(own: Array, reg: float, dropout: float) -> Array:
    """reg + p / (1 - p) diag(G): what dropping a share p of the sources does to the ridge penalty."""
    return reg + dropout / (1 - dropout) * own
