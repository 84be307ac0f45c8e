"""What is popular now: for askers of whom nothing is known."""

from __future__ import annotations

import threading
import time
from functools import cached_property

import numpy as np

from talerec.models.core.persistence import RECENT_DAYS, Fitted
from talerec.runtime.arrays import Array
from talerec.store.item_counts import RecentCounts

_SHARE = 20  # what is popular is counted anew at most for this part of the time


class PopularNow:
    """All items of a model, the most frequent of the last days first, and how often they occur in them.

    With events, the last days are those before the latest event: rows of the artifact count as far as they are in them, and events
    at once. Items that do not occur follow in the order of the log's last days, then of the whole log. Equal ones are in the order of positions.
    """

    def __init__(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self.events = RecentCounts(RECENT_DAYS)  # that the artifact does not have
        self._changes, self._took, self._made = -1, 0.0, 0.0
        self._found: tuple[Array, Array] | None = None
        self._counting = threading.Lock()  # requests are answered in several threads
        self._since = -1
        self._rows = np.zeros(0)

    def ranked(self) -> tuple[Array, Array]:
        """The positions of all items, most popular first, and their counts. While one thread counts anew, others get what was found before."""
        if self._is_stale() and self._counting.acquire(blocking=self._found is None):
            try:
                if self._is_stale():  # nobody has counted meanwhile
                    self._count()
            finally:
                self._counting.release()
        assert self._found is not None
        return self._found

    def _is_stale(self) -> bool:
        due = self._made + _SHARE * self._took
        changed = self._changes != self.events.changes and time.perf_counter() >= due
        return self._found is None or changed

    def _count(self) -> None:
        began = time.perf_counter()
        self._changes = self.events.changes
        self._found = self._ranked()
        self._made = time.perf_counter()
        self._took = self._made - began

    def _ranked(self) -> tuple[Array, Array]:
        now = self._recent if not self._changes else self._counted()
        there = np.flatnonzero(now)
        there = there[np.argsort(-now[there], kind="stable")]
        rest = self._rest[now[self._rest] == 0]
        order = np.concatenate([there, rest])
        return order, now[order]

    @cached_property
    def _recent(self) -> Array:
        """How often items occur in the log's last days."""
        counts = self._fitted.recent_counts
        return np.zeros(len(self._fitted.items)) if counts is None else counts

    @cached_property
    def _rest(self) -> Array:
        """All items in the order in which they fill up."""
        log = self._fitted.log
        every = self._recent if log is None else log.counts()
        return np.lexsort((-every, -self._recent))

    def _counted(self) -> Array:
        """The artifact's rows since the beginning of the last days, and the events."""
        since = self.events.since
        if since != self._since:
            self._since, self._rows = since, self._rows_since(since)
        counts = self._rows.copy()
        totals = self.events.totals()
        items = self._fitted.items.of_texts(list(totals))
        known = items >= 0
        np.add.at(counts, items[known], np.array(list(totals.values()), float)[known])
        return counts

    def _rows_since(self, since: int) -> Array:
        log = self._fitted.log
        if log is None:  # of the log's end alone its counts are known
            there = self._fitted.training.get("last_time", 0) >= since
            return self._recent if there else np.zeros_like(self._recent)
        late = log.time >= since
        worth = None if log.weight is None else log.weight[late]
        return np.bincount(log.item[late], worth, len(log.items)).astype(np.float64)
