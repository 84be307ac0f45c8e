"""Counts of each item in the events of the last days, at most three per user."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np

from talerec.runtime import Array
from talerec.store.clock import now_us
from talerec.store.events import StoredRow
from talerec.store.feedback import NO_FEEDBACK

_HOUR = 3_600_000_000  # microseconds
MAX_PER_USER = 3  # events of one user with one item that count: nobody leads by sending often
_MAX_PAIRS = 200_000  # pairs of a user and an item that are remembered, the latest ones


def limit_repeats(pairs: Array) -> Array:
    """Return a mask of the rows that count: of rows with equal `pairs`, the first three.

    `pairs` has one integer per row, equal for rows with the same user and item.
    """
    order = np.argsort(pairs, kind="stable")
    ordered = pairs[order]
    is_repeat = np.zeros(len(pairs), bool)
    is_repeat[order[MAX_PER_USER:]] = ordered[MAX_PER_USER:] == ordered[:-MAX_PER_USER]
    return ~is_repeat


def start_of_days(latest: int, days: float) -> int:
    """Return the start of the `days` before the hour of `latest`, in microseconds since 1970.

    `latest` is in microseconds too; times before 1970 are negative.
    """
    return (latest // _HOUR - round(24 * days)) * _HOUR


class RecentCounts:
    """Event counts per item over the last `days` before the latest event.

    Of a user's events with one item, the latest three count. Counts are kept per hour, and hours
    that are too old are dropped. Events more than a day in the future are ignored: one wrong clock
    would expire all others. Methods may be called from several threads.
    """

    def __init__(self, days: float) -> None:
        self._days, self._n_hours = days, round(days * 24)
        self.feedback = NO_FEEDBACK  # which events are negative, and do not count
        self._counts_by_hour: dict[int, Counter[str]] = {}  # hours since 1970; counts by item id
        # By the hash of user and item, the hours of the events that count; latest pairs last.
        self._pair_hours: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self._latest_hour: int | None = None  # of the latest event, in hours since 1970
        self.changes = 0  # grows with every counted event: a cache can tell when it is stale

    def add(self, rows: list[StoredRow]) -> None:
        """Count the events among `rows` by hour and item; drop hours that are now too old.

        Rows are events, and deletions of users (`item` is None), which are ignored. So are events
        older than the counted `_n_hours` before the latest event, and events more than a day in the
        future. `changes` grows by 1 for each counted event.
        """
        last_hour = now_us() // _HOUR + 24
        with self._lock:
            if self._latest_hour is not None and self._latest_hour > last_hour:
                self._drop_hours_after(last_hour)  # the clock was ahead, and was set back
            for row in rows:
                hour = row.time // _HOUR
                latest = hour if self._latest_hour is None else self._latest_hour
                if row.item is None or not latest - self._n_hours <= hour <= last_hour:
                    continue
                if self.feedback.is_negative(row):
                    continue
                if self._latest_hour is None or hour > self._latest_hour:
                    self._latest_hour = hour
                    for old_hour in [h for h in self._counts_by_hour if h < hour - self._n_hours]:
                        del self._counts_by_hour[old_hour]
                self._count(row.user, row.item, hour)

    def _count(self, user: str, item: str, hour: int) -> None:
        """Count an event, in place of the earliest of the user and item if three count already.

        `hour` is that of the event since 1970. An event before those three does not count.
        """
        pair = hash((user, item))
        hours = self._pair_hours.pop(pair, [])
        if len(hours) == MAX_PER_USER and hour > hours[0]:
            earliest = self._counts_by_hour.get(hours[0], Counter())
            if earliest[item] > 1:
                earliest[item] -= 1
            else:
                del earliest[item]
            del hours[0]
        if len(hours) < MAX_PER_USER:
            hours.append(hour)
            hours.sort()
            self._counts_by_hour.setdefault(hour, Counter())[item] += 1
            self.changes += 1
        self._pair_hours[pair] = hours
        if len(self._pair_hours) > _MAX_PAIRS:
            del self._pair_hours[next(iter(self._pair_hours))]

    def _drop_hours_after(self, last_hour: int) -> None:
        """Forget the counts of hours after `last_hour`, and which pairs were counted."""
        for hour in [hour for hour in self._counts_by_hour if hour > last_hour]:
            del self._counts_by_hour[hour]
        self._pair_hours.clear()
        self._latest_hour = max(self._counts_by_hour, default=None)
        self.changes += 1

    @property
    def since(self) -> int:
        """The start of the counted period in microseconds since 1970; 0 before the first event.

        The period has `_n_hours` hours before the hour of the latest event.
        """
        latest = self._latest_hour
        return 0 if latest is None else start_of_days(latest * _HOUR, self._days)

    def totals(self) -> Counter[str]:
        """Return the number of events of each item id over all counted hours.

        These are the hours of the last days before the latest event; ids are text, and items
        without events are missing.
        """
        with self._lock:
            total: Counter[str] = Counter()
            for counts in self._counts_by_hour.values():
                total.update(counts)
        return total
