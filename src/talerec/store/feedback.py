"""Negative feedback: events by which a user says that an item is not wanted.

Such events hide the item from the user's lists for a time. They are stored and shown like other
events, but do not belong to the history: no model scores, counts or learns from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from talerec.store.events import StoredRow

NEGATIVE_EVENTS = ("hide", "dislike", "return")  # names of events, unless the caller sets others
HIDE_DAYS = 90.0  # for which an item is hidden, unless the caller sets another time


@dataclass(frozen=True)
class NegativeFeedback:
    """Which events are negative feedback, and for how long each hides its item.

    names: of events, such as "hide"; without any, no event is negative. hide_for: seconds.
    """

    names: frozenset[str] = frozenset(NEGATIVE_EVENTS)
    hide_for: float = HIDE_DAYS * 86_400

    def is_negative(self, row: StoredRow) -> bool:
        """Is a row of the store an event with one of the names?"""
        return row.event is not None and row.event in self.names

    def split(self, events: Collection[StoredRow]) -> tuple[list[StoredRow], list[StoredRow]]:
        """Return the events that are history, and those that are negative feedback, in order."""
        negative = [event for event in events if self.is_negative(event)]
        if not negative:
            return list(events), negative
        return self.select_history(events), negative

    def select_history(self, rows: Iterable[StoredRow]) -> list[StoredRow]:
        """Return the rows that are not negative feedback; deletions of users stay."""
        return [row for row in rows if not self.is_negative(row)]

    def hides(self, event_time: int, now: int) -> bool:
        """Does negative feedback hide its item at the time `now`? Both are in microseconds."""
        return event_time > now - 1e6 * self.hide_for


NO_FEEDBACK = NegativeFeedback(frozenset())
