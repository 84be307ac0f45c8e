"""The cached events of one user, kept in order as rows arrive."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from talerec.store.events import StoredRow
from talerec.store.feedback import NO_FEEDBACK, NegativeFeedback


@dataclass(eq=False, slots=True)
class CachedUser:
    """The latest events of a user, sorted by time and seq, and values derived from them."""

    events: list[StoredRow]  # their seq numbers the store's rows in commit order
    derived: dict[str, Any] = field(default_factory=dict)
    # A value with a length by a name of the caller's choice, such as the merged history by model
    # version; emptied when `events` change.

    @property
    def size(self) -> int:
        """The memory that a cached user takes, in units of one event.

        The user counts 1, each event 1, each derived value 1 and another 1 per 16 of its elements.
        """
        return 1 + len(self.events) + sum(1 + len(value) // 16 for value in self.derived.values())

    def apply(
        self, row: StoredRow, max_events: int, feedback: NegativeFeedback = NO_FEEDBACK
    ) -> None:
        """Insert a new event of the user, or remove the events before a deletion.

        An event goes to its place by time and seq (the number in commit order), unless it is there
        already; the oldest events beyond `max_events` are dropped, of negative feedback and of
        other events apart. A deletion (a row without an item) removes all events with a smaller
        seq. Derived values are dropped.
        """
        events = self.events
        if row.item is None:
            self.events = [event for event in events if event.seq > row.seq]
        else:
            index = bisect_left(events, (row.time, row.seq), key=lambda each: (each.time, each.seq))
            if index < len(events) and events[index].seq == row.seq:
                return
            events = [*events[:index], row, *events[index:]]
            self.events = events
            if len(events) > max_events:
                history, negative = feedback.split(events)
                latest = history[-max_events:] + negative[-max_events:]
                self.events = sorted(latest, key=lambda each: (each.time, each.seq))
        self.derived = {}
