"""How often each item occurs in the events of the last days."""

from __future__ import annotations

import threading
import time
from collections import Counter

from talerec.store.events import StoredRow

_HOUR = 3_600_000_000  # microseconds


def start_of_days(latest: int, days: float) -> int:
    """Return the start of the `days` before the hour of `latest`, in microseconds since 1970.

    `latest` is in microseconds too; days before 1970 are cut off.
    """
    return max(0, latest // _HOUR - round(24 * days)) * _HOUR


class RecentCounts:
    """Event counts per item over the last `days` before the latest event.

    Counts are kept per hour, and hours that are too old are dropped. Events more than a day in the
    future are ignored: one wrong clock would expire all others. `changes` grows with every counted
    event, so that a cache can tell when it is stale.
    """

    def __init__(self, days: float) -> None:
        self._days, self._hours = days, round(24 * days)
        self._by_hour: dict[int, Counter[str]] = {}
        self._lock = threading.Lock()
        self._latest = 0  # hours since 1970, of the latest event
        self.changes = 0

    def add(self, rows: list[StoredRow]) -> None:
        """Count the events among `rows`; deletions and times out of range are ignored.

        A time is in range from the counted days before the latest event to a day from now.
        """
        end = time.time_ns() // 1000 // _HOUR + 24
        with self._lock:
            for row in rows:
                hour = row.time // _HOUR
                if row.item is None or not self._latest - self._hours <= hour <= end:
                    continue
                if hour > self._latest:
                    self._latest = hour
                    for old in [h for h in self._by_hour if h < hour - self._hours]:
                        del self._by_hour[old]
                self._by_hour.setdefault(hour, Counter())[row.item] += 1
                self.changes += 1

    @property
    def since(self) -> int:
        """The start of the counted days in microseconds since 1970; 0 before the first event."""
        return start_of_days(self._latest * _HOUR, self._days)

    def totals(self) -> Counter[str]:
        """Return the number of events of each item id in the counted days.

        These are the last days before the latest event; ids are text, and items without events are
        missing.
        """
        with self._lock:
            total: Counter[str] = Counter()
            for counts in self._by_hour.values():
                total.update(counts)
        return total
