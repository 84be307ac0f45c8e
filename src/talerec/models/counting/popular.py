"""Popularity, of all time or of the last days: what every other model has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.models.core.base import Model
from talerec.models.core.params import param
from talerec.models.core.persistence import RECENT_DAYS
from talerec.ranking.weights import Query, Weights, no_weights
from talerec.runtime.clock import Clock


@dataclass(eq=False)
class Popular(Model):
    """An item scores its rows in the training log, whatever the history.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Popular().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 86, 57]
    """

    name: ClassVar[str] = "popular"
    good_for: ClassVar[str] = "The least that a model has to beat"

    @property
    def takes_weights(self) -> bool:
        return True

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = log.counts()
        return Weights(no_weights(len(log.items)), counts), None

    def query(self, histories: Histories) -> Query:
        return Query.empty(len(histories))


@dataclass(eq=False, kw_only=True)
class Trending(Popular):
    """An item scores its rows in the last days of the training log; one without any has no score.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Trending().fit(log).recommend([1], k=3)["item_id"].to_list()
    [16, 22, 24]
    """

    name: ClassVar[str] = "trending"
    good_for: ClassVar[str] = "News and fashions; what a new user is shown"

    window: float = param(
        RECENT_DAYS, "days before the log's last row that count", low=0, search=(0.1, 90)
    )

    @property
    def needs_time(self) -> bool:
        return True

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = log.counts(self.window)
            counts[counts == 0] = np.nan
        return Weights(no_weights(len(log.items)), counts), None
