"""Popularity, of all time or of the last days: the baseline of every other model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from talerec.data import Histories, Log
from talerec.models.core import RECENT_DAYS, Model, param
from talerec.ranking import Query, Weights, empty_matrix
from talerec.runtime import Clock


@dataclass(eq=False)
class Popular(Model):
    """An item scores its rows in the training log, for all histories alike.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Popular().fit(log).recommend([1], k=3)["item_id"].to_list()
    [17, 86, 57]
    """

    name = "popular"
    summary = "The least that a model has to beat"

    takes_weights = True

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return item counts as base scores, and no item-item weights; no solver is used (None).

        The count of an item is its rows in the log, or the sum of their weights. A base score is an
        item's score without any history. clock: adds up the seconds of each stage.
        """
        with clock("gram"):
            counts = log.counts()
        return Weights(empty_matrix(len(log.items)), counts), None

    def query(self, histories: Histories) -> Query:
        """Return queries without sources: histories do not change the scores.

        Scores are x @ B plus base scores; here each history's x is empty.
        """
        return Query.empty(len(histories))


@dataclass(eq=False, kw_only=True)
class Trending(Popular):
    """An item scores the summed weights of its rows in the log's last days; without any, none.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Trending().fit(log).recommend([1], k=3)["item_id"].to_list()
    [16, 22, 24]
    """

    name = "trending"
    summary = "News and fashions; what a new user is shown"

    window: float = param(
        RECENT_DAYS, "days before the log's last row that are counted", low=0, search=(0.1, 90)
    )

    needs_time = True

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return counts in the last `window` days as base scores; NaN (no score) for 0 rows.

        A base score is an item's score without any history. No solver is used (None).
        """
        with clock("gram"):
            counts = log.counts(self.window)
            counts[counts == 0] = np.nan
        return Weights(empty_matrix(len(log.items)), counts), None
