"""The rank of an event's item in the list that a served model would have shown before it.

Nothing that is later than the event counts: neither rows of its user nor popular items.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter

import numpy as np

from talerec.models.core import RECENT_DAYS
from talerec.serve.model import ServedModel
from talerec.serve.online.metrics import LIST_LENGTH
from talerec.serve.users import UserHistories, find_rows, trained_seq
from talerec.store import (
    MAX_BACKLOG,
    MAX_PER_USER,
    NO_FEEDBACK,
    EventTail,
    Exclusion,
    Store,
    StoredRow,
    limit_repeats,
    start_of_days,
)

_MAX_EVENTS = 500_000  # events that are counted as popular, the latest ones
_READ_ROWS = 5000  # rows read at a time


class ServedModelRanker:
    """Ranks the item of an event in the list that a served model would have shown before it.

    Parameters
    ----------
    model : ServedModel
        The model; `version` is the hash that names it.
    histories : UserHistories
        Merges a user's events with the model's training log.
    tail : EventTail
        This process's cache of the store, with the deletions of users. It must have been polled
        since the event was read.
    store : Store
        The store itself.
    """

    def __init__(
        self, model: ServedModel, histories: UserHistories, tail: EventTail, store: Store
    ) -> None:
        self.version, self._model = model.version, model
        self._histories, self._tail = histories, tail
        self._popularity = EarlierPopularity(model, store, trained_seq(model, tail))
        self._popularity.feedback = histories.feedback

    def rank_event(self, event: StoredRow, history: list[StoredRow]) -> int:
        """Return the rank, 1 to 10, of the event's item in the model's list right before it.

        `history` has the user's earlier events, oldest first. 0: the item is not in the list. An
        `Exclusion`, below 0: the model has learned the event, or later events of the user.
        """
        model = self._model
        item = int(model.items.text_positions([str(event.item)])[0])
        exclusion = self._find_exclusion(event, item)
        if exclusion is not None:
            return exclusion
        rows = self._histories.merge(model, event.user, history)
        hidden = rows.hidden_items(self._histories.feedback, event.time)
        items = model.top_items(rows, event.time, LIST_LENGTH, hidden)
        if items is None:
            popular = self._popularity.top_before(event, LIST_LENGTH + len(hidden))
            items = [each for each in popular if each not in hidden][:LIST_LENGTH]
        return items.index(item) + 1 if item in items else 0

    def _find_exclusion(self, event: StoredRow, item: int) -> Exclusion | None:
        """Return why the model must not be measured on an event; None if it may be.

        `item` is the position of the event's item, -1 if the model does not know it. The user's
        rows of the training log decide, also for a user who was deleted since; in an artifact
        without histories, the time of the last training row.
        """
        fitted = self._model.model.fitted
        if event.seq <= trained_seq(self._model, self._tail):
            return Exclusion.TRAINED
        if fitted.log is None:
            is_later = event.time > fitted.training["last_time"]
            return None if is_later else Exclusion.OUTDATED
        items, times, _ = find_rows(fitted.log, event.user)
        if not len(times) or event.time > times[-1]:
            return None
        is_trained = bool(((items == item) & (times == event.time)).any())
        return Exclusion.TRAINED if is_trained else Exclusion.OUTDATED


class EarlierPopularity:
    """The items that were most popular right before an event, which unknown users are shown.

    They are counted from rows of the training log and events of the store that the model was not
    trained on, as the service counts them: at most three of a user and an item, and only those
    before the event, in time and in the store.

    model: the model whose items are counted
    store: the store
    seq: the number of the last row of the store that the model was trained on
    """

    def __init__(self, model: ServedModel, store: Store, seq: int) -> None:
        self._model, self._store, self._trained_seq = model, store, seq
        self.feedback = NO_FEEDBACK  # which events are negative, and do not count
        self._seq = seq  # of the last row that was read
        self._times, self._items = array("q"), array("i")  # of events, sorted by time
        self._pairs = array("q")  # a hash of user and item of each event
        self._pair_counts: Counter[int] = Counter()
        self._has_repeats = False  # whether a user has more events of an item than count

    def top_before(self, event: StoredRow, k: int) -> list[int]:
        """Return the positions of the k items that were most popular right before an event."""
        self._read_until(event.seq)
        stop = bisect_left(self._times, event.time)
        since = start_of_days(self._times[stop - 1], RECENT_DAYS) if stop else None
        start = 0 if since is None else bisect_left(self._times, since)
        items = np.array(self._items[start:stop], np.int64)
        if self._has_repeats:
            items = items[limit_repeats(np.array(self._pairs[start:stop], np.int64))]
        return self._model.popular.top_before(event.time, since, items, k)

    def _read_until(self, seq: int) -> None:
        """Read the store's events up to the row before number `seq`, and no others.

        At first only the last 200,000 rows are read, as the service does for its popular items; of
        all events read, the latest 500,000 are held.
        """
        if seq <= self._seq:  # an earlier event than the last one: its measurement was not saved
            self._seq = self._trained_seq
            del self._times[:], self._items[:], self._pairs[:]
            self._pair_counts.clear()
        if not self._times:
            self._seq = max(self._seq, seq - 1 - MAX_BACKLOG)
        while self._seq < seq - 1:
            limit = min(_READ_ROWS, seq - 1 - self._seq)
            rows = self._store.read_after(self._seq, limit)
            self._add([row for row in rows if row.seq < seq and row.item is not None])
            self._seq = min(rows[-1].seq, seq - 1) if len(rows) == limit else seq - 1
        for pair in self._pairs[:-_MAX_EVENTS]:
            self._pair_counts[pair] -= 1
        del self._times[:-_MAX_EVENTS], self._items[:-_MAX_EVENTS], self._pairs[:-_MAX_EVENTS]

    def _add(self, events: list[StoredRow]) -> None:
        """Insert events at their places by time, without negative feedback."""
        events = self.feedback.select_history(events)
        positions = self._model.items.text_positions([str(event.item) for event in events])
        for event, position in zip(events, positions.tolist(), strict=True):
            index = bisect_right(self._times, event.time)
            self._times.insert(index, event.time)
            self._items.insert(index, position)
            pair = hash((event.user, event.item))
            self._pairs.insert(index, pair)
            self._pair_counts[pair] += 1
            self._has_repeats |= self._pair_counts[pair] > MAX_PER_USER
