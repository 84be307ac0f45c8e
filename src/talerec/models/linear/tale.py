"""TALE (WSDM 2025): single-target augmentation, time-interval weights, trend-aware normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.gram.builders import (
    TARGETS,
    slis_summand,
    slit_summand,
    tale_columns,
    tale_summand,
)
from talerec.gram.terms import Summand, mixed
from talerec.models.core.params import param
from talerec.models.linear.base import Solved
from talerec.ranking import places
from talerec.ranking.weights import Query
from talerec.runtime.arrays import Array, Matrix


@dataclass(eq=False, kw_only=True)
class TALE(Solved):
    """Earlier rows predict the next one, the less the older they are: B = (S'S + reg I)^-1 S'T (Eq. 6).

    Every row after a user's first one is a row of T; S holds the rows before it, weighted by the time to it
    (Eq. 13). Both are divided by a power of the item's count at the time (Eq. 14).

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.TALE(reg=50, decay=0.5).fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 9]
    """

    name: ClassVar[str] = "tale"
    good_for: ClassVar[str] = "Next item where the time between rows matters"
    by_target: ClassVar[bool] = True
    paper: ClassVar[str] = (
        "Temporal Linear Item-Item Model for Sequential Recommendation, WSDM 2025"
    )

    decay: float = param(
        1.0,
        "days in which a source's weight falls to 1/e (tau_time)",
        above=0,
        search=(1 / 512, 64),
        grid=tuple(2.0**e for e in range(-10, 11)),
    )
    floor: float = param(
        0.3,
        "least weight of a source, however old (c)",
        low=0,
        high=1,
        search=(0.0, 1.0),
        grid=tuple(tenths / 10 for tenths in range(11)),
    )
    window: float = param(
        180.0,
        "days around a row in which its item's rows count (N)",
        low=0,
        grid=(7, 30, 90, 180, 360, 720),
    )
    trend: float = param(
        0.1,
        "power of that count which divides a row (gamma); 0: off",
        low=0,
        high=10,
        search=(0.0, 0.5),
    )
    trend_side: str = param(
        "both", "count on both sides of a row, or its past", choices=("both", "past")
    )
    alpha: float = param(0.0, "share of SLIS in the Gram (TALE+SLIS); 0: none", low=0, high=1)
    same_time: str = param(
        "ordered",
        "rows of one user at one instant: in order, or each other's source and target",
        choices=("ordered", "joint"),
    )
    targets: str = param("single", "the next row is the target, or all later ones", choices=TARGETS)
    position: float = param(
        0.0, "weigh sources by place, as SLIT does, and not by time; 0: by time", low=0
    )

    @property
    def needs_time(self) -> bool:
        return True

    @property
    def takes_weights(self) -> bool:
        return self.keeps_half

    def summands(self, log: Log) -> list[Summand]:
        return mixed(
            self.alpha, lambda: slis_summand(log, self.max_history), lambda: self._tale(log)
        )

    def _tale(self, log: Log) -> Summand:
        if self.position:
            return slit_summand(log, self.position, targets=self.targets, **self._trend)
        return tale_summand(log, targets=self.targets, **self._times, **self._trend)

    @property
    def _trend(self) -> dict[str, Any]:
        names = ("window", "trend", "trend_side", "max_history")
        return {name: getattr(self, name) for name in names}

    @property
    def _times(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("decay", "floor", "same_time")}

    @property
    def keeps_half(self) -> bool:
        return self.alpha == 0 and self.targets == "single" and not self.position

    def target_columns(self, log: Log, targets: Array) -> Matrix:
        told = {**self._times, **self._trend, "memory": self.budget}
        return tale_columns(log, targets, **told)

    def query(self, histories: Histories) -> Query:
        moments = histories.moments(joint=self.same_time == "joint")
        known = self.fitted.weights
        return places.recency(known, histories, moments, self.recency, self.max_history)
