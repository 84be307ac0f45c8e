"""Popularity, of all time and of late: the floor that every model has to clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.models.base import Model
from talerec.models.keeping import RECENT_DAYS
from talerec.models.params import param
from talerec.ranking.weights import Query, Weights, no_weights
from talerec.runtime.clock import Clock


@dataclass(eq=False)
class Popular(Model):
    """Every item's rows in the training log, whatever the history."""

    name: ClassVar[str] = "popular"
    paper: ClassVar[str] = "-"

    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = log.counts()
        return Weights(no_weights(len(log.items)), counts), None

    def query(self, histories: Histories) -> Query:
        return Query.empty(len(histories))


@dataclass(eq=False, kw_only=True)
class Trending(Popular):
    """Every item's rows in the last days of the training log; an item without any has no score."""

    name: ClassVar[str] = "trending"

    window: float = param(
        RECENT_DAYS, "days before the log's last row that count", low=0, search=(0.1, 90)
    )

    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = log.counts(self.window)
            counts[counts == 0] = np.nan
        return Weights(no_weights(len(log.items)), counts), None
