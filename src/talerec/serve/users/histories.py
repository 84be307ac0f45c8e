"""Histories of users, merged from the training log of a model and the events of the store.

The merge follows `data/preprocessing.py`: rows with equal item and time are one row, kept as
often as the events have it; simultaneous rows of the training log come first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from talerec.data import ContextColumns, Log, concatenate_context, take_context
from talerec.errors import TalerecError
from talerec.models.core import STORE, STORE_SEQ
from talerec.runtime import Array
from talerec.serve.model import ServedModel, UserRows
from talerec.store import NO_FEEDBACK, CachedUser, EventTail, NegativeFeedback, StoredRow

logger = logging.getLogger("talerec")

_NO_ITEMS, _NO_TIMES = np.empty(0, np.int32), np.empty(0, np.int64)
_NO_ITEMS.flags.writeable = _NO_TIMES.flags.writeable = False


class UserHistories:
    """The histories of one worker's users: rows of the training log and events of the store.

    Parameters
    ----------
    tail : EventTail, optional
        The cache of the event store, kept up to date by polling; without a store, histories are
        those of the training log.
    max_rows : int
        The most rows of a history; older rows are cut off.
    versions : function
        Returns `vocabulary_key` of the models in use, whose merged histories stay in the cache.
    feedback : NegativeFeedback
        Which events hide their items, and are not rows of a history.
    """

    def __init__(
        self,
        tail: EventTail | None,
        max_rows: int,
        versions: Callable[[], Collection[str]] = tuple,
        feedback: NegativeFeedback = NO_FEEDBACK,
    ) -> None:
        self.tail, self._max_rows, self._served_versions = tail, max_rows, versions
        self.feedback = feedback

    def get(self, model: ServedModel, user: str) -> UserRows | None:
        """Return a user's history if that is quick; None if `load` has to read a remote store.

        `user` is an external id; the history has the rows of the model's training log and later
        events. `tail` caches the store's events of requested users, None without a store. Without a
        store, or while it does not answer, the history is that of the training log.
        """
        if self.tail is None:
            return self.merge(model, user, [])
        cached = self.tail.get(user)
        if cached is not None:
            return self._merge_cached(model, user, cached)
        if not self.tail.is_available:
            return self.merge(model, user, [])
        if self.tail.kind == "sqlite":
            return self.load(model, user)  # an index lookup in a file is quicker than a thread
        return None

    def load(self, model: ServedModel, user: str) -> UserRows:
        """Return a user's history; read the user's events from the store unless they are cached.

        The history has the rows of the model's training log and later events; if the store does not
        answer, only the former. `tail` is the cache of the store; this method needs one.
        """
        assert self.tail is not None
        try:
            cached = self.tail.get(user) or self.tail.load(user)
        except TalerecError:
            return self.merge(model, user, [])
        return self._merge_cached(model, user, cached)

    def is_deleted(self, model: ServedModel, user: str) -> bool:
        """Return whether a user was deleted after the last event that the model was trained on.

        `user` is an external id. `tail` is this worker process's cache of the event store; it maps
        each deleted user to the seq, the row number in the store, of the deletion. False without a
        store.
        """
        if self.tail is None:
            return False
        return self.tail.deleted.get(user, 0) > trained_seq(model, self.tail)

    def _merge_cached(self, model: ServedModel, user: str, cached: CachedUser) -> UserRows:
        """Return the history of a cached user, merged with the model's training log.

        `cached` has the user's latest events of the store, and in `derived` merged histories by
        model version and vocabulary; the result is added there, and is used until the user's events
        change. Histories of versions that are no longer served are dropped.
        """
        derived, events = cached.derived, cached.events  # in this order: `derived` is reset last
        merged: UserRows | None = derived.get(model.vocabulary_key)
        if merged is None:
            assert self.tail is not None
            merged = self.merge(model, user, events).copied()  # holds no file of the model open
            self.tail.cache_derived(
                user, events, {model.vocabulary_key: merged}, self._served_versions()
            )
        return merged

    def merge(self, model: ServedModel, user: str, events: list[StoredRow]) -> UserRows:
        """Return a user's rows of the training log and `events` as one history in time order.

        `events` are the user's events in the store, oldest first. Those that the model was trained
        on (up to the row number `last_trained`) are left out, and those that the log has; so are
        the log's rows if the user was deleted since. `tail` is the cache of the store, None without
        one. At most `max_rows` of the latest rows are returned, with item positions in the model's
        vocabulary, -1 for unknown items. Negative feedback is not a row: `hidden` has all of it.
        """
        events, negative = self.feedback.split(events)
        rows = self._merge_history(model, user, events)
        if not negative:
            return rows
        positions = model.items.text_positions([str(event.item) for event in negative]).tolist()
        return replace(rows, hidden=tuple(zip(positions, negative, strict=True)))

    def _merge_history(self, model: ServedModel, user: str, events: list[StoredRow]) -> UserRows:
        """Return `merge` of events without negative feedback."""
        last_trained = 0 if self.tail is None else trained_seq(model, self.tail)
        events = [event for event in events if event.seq > last_trained]
        log = model.model.fitted.log
        item, time = _NO_ITEMS, _NO_TIMES
        context: ContextColumns = ()
        if log is not None and not self.is_deleted(model, user):
            item, time, context = find_rows(log, user)
        if not events:
            newest = slice(-self._max_rows, None)
            return UserRows(item[newest], time[newest], context=take_context(context, newest))
        event_items = model.items.text_positions([str(event.item) for event in events])
        new = _find_new_events(item, time, event_items.tolist(), events)
        events = [events[n] for n in new]
        items = np.concatenate([item, event_items[new].astype(np.int32, copy=False)])
        times = np.concatenate([time, np.array([event.time for event in events], np.int64)])
        context = concatenate_context([context, ()], [len(item), len(events)])
        order = _sort_rows(items, times, len(item), log)[-self._max_rows :]
        items, times = items[order], times[order]
        items.flags.writeable = times.flags.writeable = False  # as memory-mapped arrays are
        n_log = len(item)
        events_by_row = {
            row: events[n - n_log] for row, n in enumerate(order.tolist()) if n >= n_log
        }
        return UserRows(items, times, events_by_row, context=take_context(context, order))


def find_rows(log: Log, user: str) -> tuple[Array, Array, ContextColumns]:
    """Return item positions, times and context of a user's rows in a log, oldest first.

    `user` is an external id as text; times are in microseconds since 1970. Both arrays are empty if
    the log does not have the user.
    """
    position = int(log.users.text_positions([user])[0])
    if position < 0:
        return _NO_ITEMS, _NO_TIMES, ()
    rows = slice(log.ptr[position], log.ptr[position + 1])
    return log.item[rows], log.time[rows], take_context(log.context, rows)


def _find_new_events(
    item: Array, time: Array, positions: list[int], events: list[StoredRow]
) -> list[int]:
    """Return the indices of the events that the training log lacks, or has less often.

    `item` and `time` are the user's rows of the training log (item positions, microseconds),
    ascending in time; `positions` the item positions of `events`, -1 for items that the model does
    not have. An event equals a row if item and time are equal. An item's position is its number in
    the vocabulary.
    """
    new: list[int] = []
    n_equal_events: Counter[tuple[int, int]] = Counter()
    for n, (position, event) in enumerate(zip(positions, events, strict=True)):
        if position >= 0 and len(time) and event.time <= time[-1]:
            begin = np.searchsorted(time, event.time)
            end = np.searchsorted(time, event.time, "right")
            key = (position, event.time)
            n_equal_events[key] += 1
            if n_equal_events[key] <= int((item[begin:end] == position).sum()):
                continue
        new.append(n)
    return new


def _sort_rows(items: Array, times: Array, n_log: int, log: Log | None) -> Array:
    """Return the indices that sort a user's rows by time, rows of the log before equal events.

    The first `n_log` of `items` (item positions) and `times` (microseconds) are the user's rows of
    the training log, the rest are later recorded events; both parts are in time order. Rows with
    equal times are sorted by item position if `log.ties` is "item", else they keep their order. An
    item's position is its number in the vocabulary. If one part is empty, or all events are later
    than the log's rows, the order stays as it is.
    """
    if not (0 < n_log < len(times) and times[n_log] <= times[n_log - 1]):
        return np.arange(len(items))  # the events are later than the log
    if log is not None and log.ties == "item":
        return np.lexsort((items, times))
    return np.argsort(times, kind="stable")


# -- the last seq that a model was trained on ------------------------------------------------------

#: Models whose `store_seq` seemed beyond the end of the store, and whether the store was restored
#: from a backup: new events then have seqs that the model was trained on.
_is_restored: WeakKeyDictionary[ServedModel, bool] = WeakKeyDictionary()


def trained_seq(model: ServedModel, tail: EventTail) -> int:
    """Return the number of the last store row that a model was trained on; 0 if there is none.

    Rows are numbered by their seq in commit order. `tail` is this process's cache of the store. 0
    too if the store ends before that row: it was restored from a backup, and all rows are new. That
    is checked, and logged, once per model.
    """
    seq = read_trained_seq(model.facts["training"], tail.store)
    if tail.seq < seq and model not in _is_restored:
        try:  # this process may only lag behind: the store itself knows
            last_seq = tail.read_last_seq()
        except TalerecError:
            last_seq = seq
        _is_restored[model] = warn_if_restored(tail.name, last_seq, seq)
    return 0 if _is_restored.get(model) else seq


def read_trained_seq(training: dict[str, Any], store: str) -> int:
    """Return the number of the last store row that a model was trained on, 0 if none.

    `training` is the saved model's record of its training data, `store` the id of the store; rows
    are numbered in commit order. 0 too if the model was trained on another store.
    """
    return int(training.get(STORE_SEQ, 0)) if training.get(STORE) == store else 0


def warn_if_restored(name: str, last_seq: int, seq: int) -> bool:
    """Does the store end before the row `seq`, which a model was trained on? If so, warn.

    `last_seq` is the number of the store's last row, `name` the store in the log line. Such a store
    was restored from a backup.
    """
    if last_seq < seq:
        logger.warning(
            "%s ends at seq %d, but the model was trained up to seq %d: the store was restored "
            "from a backup, and all its rows count as new",
            name, last_seq, seq
        )  # fmt: skip
    return last_seq < seq
