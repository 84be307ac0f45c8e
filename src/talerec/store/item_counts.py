"""How often each item occurs in the events of the last days."""

from __future__ import annotations

import threading
import time
from collections import Counter

from talerec.store.events import StoredRow

_HOUR = 3_600_000_000  # microseconds


def start_of_days(latest: int, days: float) -> int:
    """Return the start of the `days` before the hour of `latest`, in microseconds since 1970.

    `latest` is in microseconds too; times before 1970 are negative.
    """
    return (latest // _HOUR - round(24 * days)) * _HOUR


class RecentCounts:
    """Event counts per item over the last `days` before the latest event.

    Counts are kept per hour, and hours that are too old are dropped. Events more than a day in the
    future are ignored: one wrong clock would expire all others. Methods may be called from several
    threads.
    """

    def __init__(self, days: float) -> None:
        self._days, self._n_hours = days, round(days * 24)
        self._counts_by_hour: dict[int, Counter[str]] = {}  # hours since 1970; counts by item id
        self._lock = threading.Lock()
        self._latest_hour: int | None = None  # of the latest event, in hours since 1970
        self.changes = 0  # grows with every counted event: a cache can tell when it is stale

    def add(self, rows: list[StoredRow]) -> None:
        """Count the events among `rows` by hour and item; drop hours that are now too old.

        Rows are events, and deletions of users (`item` is None), which are ignored. So are events
        older than the counted `_n_hours` before the latest event, and events more than a day in the
        future. `changes` grows by 1 for each counted event.
        """
        last_hour = time.time_ns() // 1000 // _HOUR + 24
        with self._lock:
            for row in rows:
                hour = row.time // _HOUR
                latest = hour if self._latest_hour is None else self._latest_hour
                if row.item is None or not latest - self._n_hours <= hour <= last_hour:
                    continue
                if self._latest_hour is None or hour > self._latest_hour:
                    self._latest_hour = hour
                    for old_hour in [h for h in self._counts_by_hour if h < hour - self._n_hours]:
                        del self._counts_by_hour[old_hour]
                self._counts_by_hour.setdefault(hour, Counter())[row.item] += 1
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
