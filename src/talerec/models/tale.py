"""TALE (WSDM 2025): single-target augmentation, time-interval weights, trend-aware normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from talerec import weights
from talerec.arrays import Array
from talerec.clock import Clock
from talerec.grams import Gram, tale_gram
from talerec.histories import Histories
from talerec.log import Log
from talerec.models.base import Model
from talerec.models.params import param
from talerec.solve import SOLVERS, solve


@dataclass(eq=False)
class TALE(Model):
    """B = (S'S + reg I)^-1 S'T (Eq. 6) with S weighted by interval (Eq. 13), both by trend (Eq. 14)."""

    name: ClassVar[str] = "tale"
    paper: ClassVar[str] = (
        "Temporal Linear Item-Item Model for Sequential Recommendation, WSDM 2025"
    )

    reg: float = param(100.0, "ridge penalty (lambda)", above=0, high=1e12)
    decay: float = param(1.0, "days in which a source's weight falls to 1/e (tau_time)", above=0)
    floor: float = param(0.3, "least weight of a source, however old (c)", low=0, high=1)
    window: float = param(180.0, "days around a row in which its item's rows count (N)", low=0)
    trend: float = param(
        0.1, "power of that count which divides a row (gamma); 0: off", low=0, high=10
    )
    trend_side: str = param(
        "both", "count on both sides of a row, or its past", choices=("both", "past")
    )
    recency: float = param(2.0, "places in which a history row's weight falls to 1/e", above=0)
    same_time: str = param(
        "ordered",
        "rows of one user at one instant: in order, or each other's source and target",
        choices=("ordered", "joint"),
    )
    solver: str = param("auto", "how the system is solved", choices=SOLVERS)
    neighbors: int = param(100, "sources per target (local solver)", low=1)
    memory: float = param(0.0, "GB that the Gram may take; 0: what is free", low=0)
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    def gram(self, log: Log) -> Gram:
        """G and K of the training rows."""
        return tale_gram(
            log,
            decay=self.decay,
            floor=self.floor,
            window=self.window,
            trend=self.trend,
            trend_side=self.trend_side,
            same_time=self.same_time,
            max_history=self.max_history,
            memory=round(self.memory * 1e9) or None,
        )

    def learn(self, log: Log, clock: Clock) -> tuple[weights.Weights, str | None]:
        with clock("gram"):
            gram = self.gram(log)
        with clock("solve"):
            solution = solve(gram, self.reg, solver=self.solver, neighbors=self.neighbors)
        return weights.Weights(solution.weights), solution.solver

    def query(self, histories: Histories, marks: Array) -> weights.Query:
        moments = histories.moments(joint=self.same_time == "joint")
        return weights.recency(histories, moments, self.recency, self.max_history, marks)
