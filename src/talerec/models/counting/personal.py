"""Items that the user has taken before: by frequency, or of the last basket alone.

On logs of repeat purchases, these baselines beat most models of sequences.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from talerec.data import Histories, Log, list_history_rows
from talerec.models.core import SCORE, Model, param
from talerec.ranking import IdentityBlock, Query, Weights
from talerec.runtime import Array, Clock

_POPULARITY = 1e-6  # scores of items that the history does not have: their share, times this


@dataclass(eq=False, kw_only=True)
class HistoryItems(Model):
    """A model that ranks the items of the history, and other items after them by popularity.

    The score of an item is the sum of its rows' weights, which depend on the number of later
    baskets: distinct times of the history.
    """

    paper = "A Next Basket Recommendation Reality Check, TOIS 2023"

    @abstractmethod
    def _weigh_baskets(self, n_later: Array) -> Array:
        """Return the weight of rows that `n_later` baskets (distinct times) of a history follow."""

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return an identity as weights, and small base scores by popularity; no solver (None).

        Scores are x @ B plus base scores, where x has the items of the history.
        """
        with clock("gram"):
            counts = log.counts()
            base = _POPULARITY * counts / max(counts.sum(), 1.0)
        return Weights(IdentityBlock(items=len(log.items)), base), None

    def query(self, histories: Histories) -> Query:
        """Return the known items of each history, with the summed weights of their rows.

        Items whose weights are all 0 are left out.
        """
        spans, n_items = (histories.start, histories.stop), len(self.fitted.items)
        number, rows, n_later = list_history_rows(*spans, histories.time)
        weight = self._weigh_baskets(n_later)
        counts = (histories.item[rows] >= 0) & (weight > 0)
        keys = number[counts] * n_items + histories.item[rows][counts]
        keys, at = np.unique(keys, return_inverse=True)
        ptr = np.searchsorted(keys, np.arange(len(histories) + 1) * n_items)
        return Query(ptr, keys % n_items, np.bincount(at, weight[counts], len(keys)))


@dataclass(eq=False, kw_only=True)
class Personal(HistoryItems):
    """An item scores its rows in the history; other items follow by popularity.

    A row counts exp(-decay * b), where b is the number of baskets (distinct times) after it.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.Personal().fit(log).recommend_histories([[5, 9, 9]], k=2)["item_id"].to_list()
    [9, 5]
    """

    name = "personal"
    summary = "Repeat purchases: what the user takes most often"

    decay: float = param(
        0.0, "how much less a row counts for each later basket (0: all alike)",
        low=0, search=(0.001, 1), stage=SCORE,
    )  # fmt: skip

    def _weigh_baskets(self, n_later: Array) -> Array:
        """Return exp(-decay * n_later); `n_later` counts the baskets after each row."""
        weights: Array = np.exp(-self.decay * n_later)
        return weights


@dataclass(eq=False, kw_only=True)
class LastBasket(HistoryItems):
    """An item scores its rows in the history's last basket (time); others by popularity.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> model = tr.LastBasket().fit(log)
    >>> model.recommend_histories([[9, 9, 5]], k=1)["item_id"].to_list()
    [5]
    """

    name = "lastbasket"
    summary = "Repeat purchases: the last basket; a baseline"
    needs_time = True

    def _weigh_baskets(self, n_later: Array) -> Array:
        """Return 1 for rows of the last basket, else 0; `n_later` counts baskets after a row."""
        return np.where(n_later == 0, 1.0, 0.0)
