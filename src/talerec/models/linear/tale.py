"""TALE (WSDM 2025): single targets, time-interval weights, trend-aware normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from talerec.data import Histories, Log
from talerec.gram import (
    TARGETS,
    GramTerm,
    SlitWeighting,
    TaleWeighting,
    blend_terms,
    slis_term,
    slit_term,
    tale_columns,
    tale_term,
)
from talerec.models.core import param
from talerec.models.linear.base import RidgeModel
from talerec.ranking import Query, recency_query
from talerec.runtime import Array, Matrix


@dataclass(eq=False, kw_only=True)
class TALE(RidgeModel):
    """Earlier rows predict the next one, with time decay: B = (S'S + reg I)^-1 S'T.

    Every row after a user's first one is a row of T; S has the earlier rows, weighted by the time
    to it. Both are divided by a power of the item's count at the time. These are Eq. 6, 13 and 14
    of the paper.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.TALE(reg=50, decay=0.5).fit(log).recommend([1], k=3)["item_id"].to_list()
    [4, 70, 9]
    """

    name = "tale"
    summary = "Next item where the time between rows matters"
    is_solved_by_target = True
    paper = "Temporal Linear Item-Item Model for Sequential Recommendation, WSDM 2025"

    decay: float = param(
        1.0, "days in which a source's weight falls to 1/e (tau_time)", above=0,
        search=(1 / 512, 64), grid=tuple(2.0**e for e in range(-10, 11)),
    )  # fmt: skip
    floor: float = param(
        0.3, "least weight of a source, however old (c)", low=0, high=1,
        search=(0.0, 1.0), grid=tuple(tenths / 10 for tenths in range(11)),
    )  # fmt: skip
    window: float = param(
        180.0, "days around a row to count its item in (N)", low=0, grid=(7, 30, 90, 180, 360, 720)
    )
    trend: float = param(
        0.1, "exponent of that count, a divisor (gamma); 0: off", low=0, high=10, search=(0.0, 0.5)
    )
    trend_side: str = param(
        "both", "days counted: on both sides of the row, or before it", choices=("both", "past")
    )
    alpha: float = param(0.0, "share of SLIS in the Gram (TALE+SLIS); 0: none", low=0, high=1)
    same_time: str = param(
        "ordered", "order of rows with equal times (joint: none)", choices=("ordered", "joint")
    )
    targets: str = param(
        "single", "target of a row: the next row, or all later ones", choices=TARGETS
    )
    position: float = param(
        0.0, "weight sources by distance in rows, as SLIT does; 0: by time", low=0
    )

    needs_time = True

    @property
    def takes_weights(self) -> bool:
        """Whether weights of rows are used: only by TALE proper, see `supports_stored_gram`."""
        return self.supports_stored_gram

    def gram_terms(self, log: Log) -> list[GramTerm]:
        """Return the summands of the Gram: alpha times that of SLIS and 1 - alpha times TALE's.

        A Gram term has G = S'S and K = S'T, with S the source items and T the targets of examples.
        """
        terms = (lambda: slis_term(log, self.max_history), lambda: self._tale(log))
        return blend_terms(self.alpha, *terms)

    def _tale(self, log: Log) -> GramTerm:
        """Return the Gram term of TALE: G = S'S and K = S'T, with sources in S and targets in T.

        Sources are the rows before a target row. Sources are weighted by the time to the target; if
        `position` is not 0, by their distance in rows instead (it is the number of rows in which
        the weight falls to 1/e), as the model SLIT does.
        """
        if self.position:
            return slit_term(log, SlitWeighting(self.position, targets=self.targets, **self._trend))
        return tale_term(log, self._weighting, self.targets)

    @property
    def _weighting(self) -> TaleWeighting:
        """TALE's weights of sources: time decay (days), least weight, division by trend counts.

        The trend count of a row is the number of its item's rows within `window` days of it.
        """
        times = {name: getattr(self, name) for name in ("decay", "floor", "same_time")}
        return TaleWeighting(**times, **self._trend)

    @property
    def _trend(self) -> dict[str, Any]:
        """The parameters of the trend count by name, and max_history, for the Gram.

        The trend count of a row is the number of its item's rows within `window` days of it.
        """
        names = ("window", "trend", "trend_side", "max_history")
        return {name: getattr(self, name) for name in names}

    @property
    def supports_stored_gram(self) -> bool:
        """Whether updates add to a stored G = S'S, and recount only some columns of K = S'T.

        True for TALE proper: no share of SLIS, the next row as only target, weights by time.
        """
        return self.alpha == 0 and self.targets == "single" and not self.position

    def target_columns(self, log: Log, targets: Array) -> Matrix:
        """Return K = S'T (source x target) of a log with only the flagged targets' columns filled.

        targets: a flag per item. S has the weighted rows before each target row, T the target rows.
        """
        return tale_columns(log, self._weighting, targets, memory=self.budget)

    def query(self, histories: Histories) -> Query:
        """Return x of each history: exp(-lag / recency) of its items, lag in rows from the last.

        A `Query` has, per history, sources (rows of the weights: the distinct items) and their
        weights. With same_time "joint", rows with equal times have equal lags.
        """
        times = histories.moments(joint=self.same_time == "joint")
        weights = self.fitted.weights
        return recency_query(weights, histories, times, self.recency, self.max_history)
