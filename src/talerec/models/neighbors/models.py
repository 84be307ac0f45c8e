"""Nearest neighbours: what users with histories like this one have (SKNN), and have near what is shared (STAN)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.gram.row_weights import newest_rows
from talerec.models.core.base import Model
from talerec.models.core.params import param
from talerec.models.neighbors import search as _neighbours
from talerec.models.neighbors.search import Decays
from talerec.ranking.blocks import RunsBlock
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock


@dataclass(eq=False, kw_only=True)
class SKNN(Model):
    """Each of the nearest histories gives its likeness to all of its items.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SKNN().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 17, 11]
    """

    name: ClassVar[str] = "sknn"
    good_for: ClassVar[str] = "Sessions that resemble earlier ones; nothing is solved"
    paper: ClassVar[str] = (
        "When Recurrent Neural Networks meet the Neighborhood for Session-Based Recommendation, RecSys 2017"
    )
    weighs_items: ClassVar[bool] = False

    nearest: int = param(100, "histories that are asked", low=1, high=100_000, search=(50, 1000))
    sample: int = param(1000, "newest histories with a shared item to choose from; 0: all", low=0)
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    @property
    def needs_time(self) -> bool:
        return self.sample > 0

    @property
    def _decays(self) -> Decays:
        return Decays(math.inf, math.inf)

    def _fade(self, longest: int) -> Array:
        """What an item gets that stands so many places from the newest shared one."""
        return np.ones(longest)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        with clock("gram"):
            recent = newest_rows(log, self.max_history)
            return _neighbours.index(recent, self._fade(int(np.diff(recent.ptr).max()))), None

    def query(self, histories: Histories) -> Query:
        room = min(self.nearest, self._histories.runs)
        asked = (histories, self.max_history, room, self.sample, self._decays)
        return _neighbours.neighbours(self.fitted.weights, *asked)

    def _check_loaded(self) -> None:
        _neighbours.check_arrays(self.fitted.weights, self._histories.runs)

    @property
    def _histories(self) -> RunsBlock:
        """The histories that are asked."""
        block: RunsBlock = self.fitted.weights.blocks[0]
        return block

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """A neighbour's part of the score, shared out among the history's items that it has."""
        known, users = self._histories, self.fitted.weights.query_arrays["user"]
        given = np.zeros((len(targets), len(history.item)))
        rows = np.array(_newest(history.item, self.max_history), np.int64)
        decays = np.exp((rows + 1 - len(history.item)) / self._decays.query)
        for entry, likeness in zip(x.source.tolist(), x.weight.tolist(), strict=True):
            lo, hi = known.indptr[users[entry]], known.indptr[users[entry] + 1]
            theirs = known.indices[lo:hi]
            wanted, place = np.nonzero(targets[:, None] == theirs)
            if not wanted.size:
                continue
            part = likeness * known.fade[np.abs(entry - lo - place)]
            shared = np.isin(history.item[rows], theirs)
            share = decays[shared] / decays[shared].sum()
            given[np.ix_(wanted, rows[shared])] += part[:, None] * share
        return given


def _newest(item: Array, longest: int) -> list[int]:
    """The last row of every known item among the last `longest` rows."""
    rows = range(max(0, len(item) - longest), len(item))
    return sorted({int(item[row]): row for row in rows if item[row] >= 0}.values())


@dataclass(eq=False, kw_only=True)
class STAN(SKNN):
    """SKNN with three decays: place in the query, age of the neighbour, distance from the shared item.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.STAN().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name: ClassVar[str] = "stan"
    good_for: ClassVar[str] = "As sknn, where order and recent sessions matter"
    paper: ClassVar[str] = (
        "Sequence and Time Aware Neighborhood for Session-based Recommendations, SIGIR 2019"
    )

    recency: float = param(
        2.0, "places in which a history row's weight falls to 1/e", above=0, search=(0.5, 32)
    )
    decay_user: float = param(
        0.0, "days in which a neighbour's weight falls to 1/e; 0: age does not count", low=0
    )
    position: float = param(
        2.0,
        "places from the shared item in which a neighbour's item falls to 1/e",
        above=0,
        search=(0.5, 32),
    )

    @property
    def needs_time(self) -> bool:
        return self.sample > 0 or self.decay_user > 0

    @property
    def _decays(self) -> Decays:
        return Decays(self.recency, self.decay_user * DAY or math.inf)

    def _fade(self, longest: int) -> Array:
        fade: Array = np.exp(-np.arange(longest) / self.position)
        return fade
