"""Popularity: the floor that every model has to clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.arrays import Array
from talerec.clock import Clock
from talerec.histories import Histories
from talerec.log import Log
from talerec.models.base import Model
from talerec.weights import Query, Weights, no_weights


@dataclass(eq=False)
class Popular(Model):
    """Every item's rows in the training log, whatever the history."""

    name: ClassVar[str] = "popular"
    paper: ClassVar[str] = "-"

    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            counts = np.bincount(log.item, minlength=len(log.items)).astype(np.float64)
        return Weights(no_weights(len(log.items)), counts), None

    def query(self, histories: Histories, marks: Array) -> Query:
        return Query.empty(len(histories))
