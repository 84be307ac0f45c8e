"""The popular items of a model: those of the last week, with events as they arrive."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import cached_property

import numpy as np

from talerec.data import DAY, Log
from talerec.models.core import RECENT_DAYS, UNSEEN_ITEMS, Fitted
from talerec.runtime import Array
from talerec.store import RecentCounts, limit_repeats

_MAX_RECOUNT_SHARE = 20  # popularity is recounted for at most 1/20 of the time
_MIN_ROWS = 1000  # rows and events that decide alone; below, older rows of the log join them


class PopularItems:
    """All items of a model, the most frequent of the last week first, and their counts.

    Of a user's rows with one item, three count at most, so that nobody leads by sending often. With
    events, the week ends at the latest event; rows of the training log count if they fall into it,
    and events count at once. While these are fewer than 1,000, older rows of the log's last week,
    or of its latest 1,000 if these are more, make up for the missing ones: the first events after
    an old log do not decide what everybody is shown. Items without a count follow in the order of
    the log's last week, then of the whole log. Ties are in the order of positions. `fitted` is the
    fitted state of the model, with the training log if it was saved; `events` are counts of events
    that the saved model does not include, None to begin with none.
    """

    def __init__(self, fitted: Fitted, events: RecentCounts | None = None) -> None:
        self._fitted = fitted
        self.events = events or RecentCounts(RECENT_DAYS)
        self._counted_changes = -1  # `events.changes` at the last count
        self._count_seconds, self._counted_at = 0.0, 0.0  # of the last count
        self._ranking: tuple[Array, Array] | None = None  # item positions and their counts
        self._lock = threading.Lock()  # requests are answered in several threads
        self._counted_since = -1  # the time from which `_log_counts_since` counts
        self._log_counts_since = np.zeros(0)  # rows of the log by item position

    def ranked(self) -> tuple[Array, Array]:
        """Return the positions of all items, most popular first, and their counts in that order.

        Counts are rows and events of the last week. The ranking is recounted if it lacks events.
        While one thread recounts, other threads get the previous ranking. An item's position is its
        number in the vocabulary.
        """
        if self._is_stale() and self._lock.acquire(blocking=self._ranking is None):
            try:
                if self._is_stale():  # no other thread has recounted in the meantime
                    self._recount()
            finally:
                self._lock.release()
        assert self._ranking is not None
        return self._ranking

    def _is_stale(self) -> bool:
        """Is there no ranking yet, or one without the latest events that is old enough?

        `events.changes` grows with each event. A ranking is old enough after 20 times the duration
        of the last count (`_count_seconds`, ended at `_counted_at`).
        """
        due = self._counted_at + _MAX_RECOUNT_SHARE * self._count_seconds
        has_changed = self._counted_changes != self.events.changes and time.perf_counter() >= due
        return self._ranking is None or has_changed

    def _recount(self) -> None:
        """Recount and rank the items, and measure how long that takes.

        Sets `_ranking`: item positions in the vocabulary, most popular first, and their counts.
        Without events these are the counts of the training log's last week. Items without a count
        follow in the order `_log_order` of the log. For the next `_is_stale`, the number of counted
        changes and the time and duration of this count are stored.
        """
        begin = time.perf_counter()
        self._counted_changes = self.events.changes
        counts = self._count_with_events() if self._counted_changes else self._recent_log_counts
        self._ranking = self._rank(counts)
        self._counted_at = time.perf_counter()
        self._count_seconds = self._counted_at - begin

    def _rank(self, counts: Array) -> tuple[Array, Array]:
        """Return all item positions, the highest of `counts` (by position) first, and its counts.

        Items without a count follow in the order of the training log.
        """
        popular = np.flatnonzero(counts)
        popular = popular[np.argsort(-counts[popular], kind="stable")]
        order = np.concatenate([popular, self._log_order[counts[self._log_order] == 0]])
        return order, counts[order]

    def top_before(self, time: int, since: int | None, event_items: Array, k: int) -> list[int]:
        """Return the positions of the k items that were most popular right before a time.

        It counts the rows of the training log before `time`, and events: `event_items` has their
        item positions, -1 for unknown items. The events are those between `since` and `time`, both
        in microseconds since 1970; `since` is None if there are none. `events` is not used.
        """
        log, popular = self._fitted.log, self
        if log is not None and time <= self._fitted.training["last_time"]:
            popular = PopularItems(replace(self._fitted, log=log.keep(log.time < time)))
        counts = popular._recent_log_counts
        if since is not None:
            known_items = event_items[event_items >= 0]
            event_counts = np.bincount(known_items, None, len(counts)).astype(np.float64)
            counts = popular._add_rows(event_counts, since)
        if len(counts) >= k and (least := np.partition(counts, -k)[-k]) > 0:
            first = np.flatnonzero(counts >= least)  # in large catalogues, to sort all takes long
            items = first[np.argsort(-counts[first], kind="stable")]
        else:
            items = popular._rank(counts)[0]
        return [int(item) for item in items[:k]]

    @cached_property
    def _recent_log_counts(self) -> Array:
        """Rows of each item in the training log's last week; zeros if they were not saved.

        A float array by item position. An item's position is its number in the vocabulary.
        """
        log = self._fitted.log
        if log is not None and log.rows:
            return count_rows(log, int(log.time.max()) - round(RECENT_DAYS * DAY))
        counts = self._fitted.recent_counts
        return np.zeros(len(self._fitted.items)) if counts is None else counts

    @cached_property
    def _latest_log_counts(self) -> Array:
        """Rows of each item in the log's last week, or in its latest 1,000 rows if these are more.

        A float array by item position. Without a saved log: those of its last week.
        """
        log = self._fitted.log
        if log is None or not log.rows:
            return self._recent_log_counts
        n_rows = min(_MIN_ROWS, log.rows)
        latest_rows = int(np.partition(log.time, -n_rows)[-n_rows])
        return count_rows(log, min(int(log.time.max()) - round(RECENT_DAYS * DAY), latest_rows))

    @cached_property
    def _log_order(self) -> Array:
        """Positions of items with rows, by rows in the training log's last week, then in all.

        Both in descending order; without a saved log, only the last week counts. An item's position
        is its number in the vocabulary. Items that only the item table has are left out.
        """
        log, n_unseen = self._fitted.log, self._fitted.training.get(UNSEEN_ITEMS, 0)
        totals = self._recent_log_counts if log is None else log.counts()
        order: Array = np.lexsort((-totals, -self._recent_log_counts))
        return order[: len(order) - n_unseen]

    def _count_with_events(self) -> Array:
        """Return the events and rows of the log that count for each item, before the latest event.

        A float array by item position. Events of unknown items are left out. An item's position is
        its number in the vocabulary.
        """
        totals = self.events.totals()
        items = self._fitted.items.text_positions(list(totals))
        is_item, counts = items >= 0, np.zeros(len(self._fitted.items))
        np.add.at(counts, items[is_item], np.array(list(totals.values()), float)[is_item])
        return self._add_rows(counts, self.events.since)

    def _add_rows(self, event_counts: Array, since: int) -> Array:
        """Return counts of events by item, with the rows of the training log since a time.

        `since` is in microseconds since 1970. If there are fewer than 1,000 events and rows, the
        latest of the older rows are added, with weights by which they make up for the missing ones
        at most.
        """
        log_counts = self._count_rows_since(since)
        counts: Array = event_counts + log_counts
        missing = _MIN_ROWS - counts.sum()
        if missing > 0:
            older = np.maximum(self._latest_log_counts - log_counts, 0)
            counts += older * min(1.0, missing / max(older.sum(), 1.0))
        return counts

    def _count_rows_since(self, since: int) -> Array:
        """Return the training log's (weighted) rows of each item since a time in microseconds.

        A float array by item position (its number in the vocabulary); do not change it. Rows are
        counted only when `since` has changed. Without a saved log: the counts of its last week if
        the log ends at `since` or later, else 0.
        """
        if since != self._counted_since:
            self._counted_since, self._log_counts_since = since, self._recount_rows(since)
        return self._log_counts_since

    def _recount_rows(self, since: int) -> Array:
        """Count the training log's (weighted) rows of each item since a time in microseconds."""
        log = self._fitted.log
        if log is None:  # the artifact has only the counts of the log's last week
            is_recent = self._fitted.training.get("last_time", 0) >= since
            return self._recent_log_counts if is_recent else np.zeros_like(self._recent_log_counts)
        return count_rows(log, since)


def count_rows(log: Log, since: int) -> Array:
    """Return the (weighted) rows of each item since a time, at most three of each user.

    `since` is in microseconds since 1970; the result is a float array by item position (its number
    in the vocabulary).
    """
    rows = np.flatnonzero(log.time >= since)
    item = log.item[rows]
    users = np.searchsorted(log.ptr, rows, "right").astype(np.int64)  # rows are sorted by user
    is_counted = limit_repeats(users * len(log.items) + item)
    weight = None if log.weight is None else log.weight[rows][is_counted]
    return np.bincount(item[is_counted], weight, len(log.items)).astype(np.float64)
