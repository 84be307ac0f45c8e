"""Linear autoencoders: EASE, its dropout EDLAE, and RDLAE with a relaxed diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from talerec.data.log import Log
from talerec.gram.builders import slis_gram
from talerec.gram.gram import Gram
from talerec.models.linear import Solved, dropout_penalty
from talerec.models.params import SOLVE, param
from talerec.solvers.solve import Solution, solve_bounded


@dataclass(eq=False, kw_only=True)
class EASE(Solved):
    """The items of a user predict each other, and none itself: B = I - P diag(1 / P_jj)."""

    name: ClassVar[str] = "ease"
    paper: ClassVar[str] = "Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019"

    def gram(self, log: Log) -> Gram:
        return slis_gram(log, max_history=self.max_history, memory=self.budget)

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, self.reg, 0.0)

    def _bounded(self, gram: Gram, penalty: Any, most: float) -> Solution:
        return solve_bounded(gram, penalty, most, solver=self.solver, neighbors=self.neighbors)


@dataclass(eq=False, kw_only=True)
class EDLAE(EASE):
    """EASE with dropout of the input, in closed form: the penalty grows by p / (1 - p) diag(G)."""

    name: ClassVar[str] = "edlae"
    paper: ClassVar[str] = "Autoencoders that don't overfit towards the Identity, NeurIPS 2020"

    dropout: float = param(
        0.3,
        "share of a history that is dropped (p)",
        low=0,
        high=0.99,
        search=(0.0, 0.9),
        stage=SOLVE,
    )

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, dropout_penalty(gram, self.reg, self.dropout), 0.0)


@dataclass(eq=False, kw_only=True)
class RDLAE(EDLAE):
    """EDLAE whose diagonal may grow up to xi instead of being zero."""

    name: ClassVar[str] = "rdlae"
    paper: ClassVar[str] = (
        "It's Enough: Relaxing Diagonal Constraints in Linear Autoencoders, SIGIR 2023"
    )

    xi: float = param(
        0.3, "the most that an item may weigh for itself", low=0, search=(0.0, 1.0), stage=SOLVE
    )

    def solution(self, gram: Gram) -> Solution:
        return self._bounded(gram, dropout_penalty(gram, self.reg, self.dropout), self.xi)
