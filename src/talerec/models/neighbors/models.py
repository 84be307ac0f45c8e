"""Nearest-neighbor models SKNN and STAN: items of the most similar histories."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from talerec.data import DAY, Histories, Log
from talerec.gram import newest_rows
from talerec.models.core import Model, param
from talerec.models.neighbors.search import (
    NeighborOptions,
    build_index,
    check_index,
    find_neighbors,
)
from talerec.models.neighbors.shares import divide_among_shared
from talerec.ranking import Query, SequenceBlock, Weights
from talerec.runtime import Array, Clock, as_readonly


@dataclass(eq=False, kw_only=True)
class SKNN(Model):
    """An item scores the similarities of the nearest histories that have it.

    The nearest are the `nearest` training users whose items are most similar (cosine) to those of
    the history.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.SKNN().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 17, 11]
    """

    name = "sknn"
    summary = "Sessions that resemble earlier ones; no solve"
    paper = (
        "When Recurrent Neural Networks meet the Neighborhood for Session-Based Recommendation, "
        "RecSys 2017"
    )
    sources_are_items = False

    nearest: int = param(100, "neighbors of a history", low=1, high=100_000, search=(50, 1000))
    sample: int = param(1000, "most recent histories with a shared item to compare; 0: all", low=0)
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    @property
    def needs_time(self) -> bool:
        """Whether times are used: only to select the most recent histories (`sample`)."""
        return self.sample > 0

    @property
    def _decays(self) -> tuple[float, float]:
        """The decays of similarity: by lag of the shared item (rows), by age (microseconds).

        Infinite: no decay. The age is that of the neighbor's last row at the time of the query.
        """
        return math.inf, math.inf

    def _distance_weights(self, longest: int) -> Array:
        """Return the weight of a neighbor's item by its distance, in rows, to the shared item.

        A neighbor is a similar training user; here all weights are 1. longest: rows of the longest
        history; distances are 0 to longest - 1.
        """
        return np.ones(longest)

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return an index of users' newest rows, to find neighbors; no solver is used (None).

        Its block holds the items of each user; its query arrays say which users have which items.
        Only a user's last `max_history` rows are used. clock("gram") adds up the seconds.
        """
        with clock("gram"):
            recent = newest_rows(log, self.max_history)
            longest = int(np.diff(recent.ptr).max())
            return build_index(recent, self._distance_weights(longest)), None

    def query(self, histories: Histories) -> Query:
        """Return the neighbors of each history as sources of x, weighted by similarity.

        Neighbors are the `nearest` training users most similar to the history. A source is an entry
        of the index: a neighbor's row of the newest item that it shares with the history. Scores
        are x times what each entry's user adds to the items of its history.
        """
        nearest = min(self.nearest, self._histories.sequences)
        options = NeighborOptions(self.max_history, self.sample, *self._decays)
        return find_neighbors(self.fitted.weights, histories, nearest, options)

    def _check_loaded(self) -> None:
        """Raise TalerecError if the index of neighbors, read from an artifact, is damaged."""
        check_index(self.fitted.weights, self._histories.sequences)

    @property
    def _histories(self) -> SequenceBlock:
        """The items of each training user, as sequences: the only stored matrix of the fit."""
        block: SequenceBlock = self.fitted.weights.blocks[0]
        return block

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of a history (column) contributes to targets' scores (rows).

        x: the neighbors of this one history with their similarities, as `query` returns them; a
        neighbor is a training user, and a source the number of one of its rows in the index.
        targets: item positions. Each neighbor's part of a score is divided among the history items
        it shares.
        """
        block, users = self._histories, self.fitted.weights.query_arrays["user"]
        rows = np.array(_last_rows(history.item, self.max_history), np.int64)
        weights = np.exp((rows + 1 - len(history.item)) / self._decays[0])
        shared = np.zeros((len(targets), len(rows)))
        neighbors = (x.source, as_readonly(users[x.source]), x.weight)
        sequences = (block.indptr, block.indices, np.ascontiguousarray(block.decay, np.float64))
        divide_among_shared(sequences, neighbors, history.item[rows], weights, targets, shared)
        shares = np.zeros((len(targets), len(history.item)))
        shares[:, rows] = shared
        return shares


def _last_rows(item: Array, max_history: int) -> list[int]:
    """Return, ascending, the last row of each known item among the last `max_history` rows.

    item: the item positions of one history, -1 for unknown ones.
    """
    rows = range(max(0, len(item) - max_history), len(item))
    return sorted({int(item[row]): row for row in rows if item[row] >= 0}.values())


@dataclass(eq=False, kw_only=True)
class STAN(SKNN):
    """SKNN (nearest neighbors by shared items) with decays by lag, age and distance.

    The weight of a shared item falls with its lag in the history, that of a neighbor (a training
    user) with its age, and that of the neighbor's items with their distance to the shared item.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000, seed=1)
    >>> tr.STAN().fit(log).recommend([1], k=3)["item_id"].to_list()
    [86, 11, 17]
    """

    name = "stan"
    summary = "As sknn, where order and recent sessions matter"
    paper = "Sequence and Time Aware Neighborhood for Session-based Recommendations, SIGIR 2019"

    recency: float = param(
        2.0, "decay length of history weights, in rows", above=0, search=(0.5, 32)
    )
    decay_user: float = param(
        0.0, "days in which a neighbor's weight falls to 1/e; 0: no decay", low=0
    )
    position: float = param(
        2.0, "decay length from the shared item, in rows", above=0, search=(0.5, 32)
    )

    @property
    def needs_time(self) -> bool:
        """Whether times are used: to select recent users (`sample`), or to weigh them by age."""
        return self.sample > 0 or self.decay_user > 0

    @property
    def _decays(self) -> tuple[float, float]:
        """The decays of similarity to 1/e: lag of the shared item (rows), age (microseconds).

        The age is the time from the neighbor's last row to the query; infinite for no decay.
        """
        return self.recency, self.decay_user * DAY or math.inf

    def _distance_weights(self, longest: int) -> Array:
        """Return exp(-d / position) for distances d of 0 to longest - 1 rows to the shared item.

        It is the weight of an item of a neighbor (a similar training user), by the distance in rows
        to the item that the neighbor shares with the history.
        """
        weights: Array = np.exp(-np.arange(longest) / self.position)
        return weights
