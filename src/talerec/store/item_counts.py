"""How often each item occurs in the events of the last days, kept up to date as events come."""

from __future__ import annotations

import threading
import time
from collections import Counter

from talerec.store.events import Kept

_HOUR = 3_600_000_000  # microseconds


class RecentCounts:
    """Counts of items, by hours: hours that are more than `days` before the latest event are left out.

    Events of the future are not counted: one wrong time would leave out all others. Clocks may differ by a day.

    `changes` grows with every change, so that whoever makes something of the counts knows when to make it again.
    """

    def __init__(self, days: float) -> None:
        self._hours = round(days * 24)
        self._by_hour: dict[int, Counter[str]] = {}
        self._lock = threading.Lock()
        self._latest = 0  # hours since 1970, of the latest event
        self.changes = 0

    def add(self, rows: list[Kept]) -> None:
        """Count the events among these rows."""
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
        """The moment from which on events count, in microseconds; 0 before the first event."""
        return max(0, self._latest - self._hours) * _HOUR

    def totals(self) -> Counter[str]:
        """How often each item occurs."""
        with self._lock:
            total: Counter[str] = Counter()
            for counts in self._by_hour.values():
                total.update(counts)
        return total
