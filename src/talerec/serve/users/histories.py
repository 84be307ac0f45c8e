"""What a worker knows of users: the histories of the artifact, and every event since.

The rule of merging is that of `data/log_merge.py`: rows with the same item and time are one row, unless there are more of them among the
events; simultaneous rows of the artifact come first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from talerec.data.log import Log
from talerec.errors import TalerecError
from talerec.models.core.persistence import STORE, STORE_SEQ
from talerec.runtime.arrays import Array
from talerec.serve.model.served import ServedModel
from talerec.serve.model.user_rows import UserRows
from talerec.store.events import Kept
from talerec.store.tail import Recent, Remembered

logger = logging.getLogger("talerec")


class Users:
    """The users of one worker; without a store, those of the artifact."""

    def __init__(self, recent: Recent | None, limit: int) -> None:
        self.recent, self._limit = recent, limit
        self.served: Callable[[], Collection[str]] = tuple  # the versions of models in use

    def known(self, model: ServedModel, user: str) -> UserRows | None:
        """The rows of a user, where they are at hand; None where `find` has to ask the store, which may take a while. While the store does not answer, as far as the artifact knows."""
        if self.recent is None:
            return self.rows(model, user, [])
        found = self.recent.get(user)
        if found is None and not self.recent.answers:
            return self.rows(model, user, [])
        if found is None and self.recent.kind == "sqlite":
            return self.find(model, user)  # a look into an index of a file: quicker than a thread
        return None if found is None else self._merged(model, user, found)

    def find(self, model: ServedModel, user: str) -> UserRows:
        """The rows of a user. Where the store does not answer, as far as the artifact knows."""
        assert self.recent is not None
        try:
            found = self.recent.get(user) or self.recent.load(user)
        except TalerecError:
            return self.rows(model, user, [])
        return self._merged(model, user, found)

    def is_deleted(self, model: ServedModel, user: str) -> bool:
        """Was a user deleted after the artifact was made?"""
        return self.recent is not None and self.recent.deleted.get(user, 0) > seq_of(
            model, self.recent
        )

    def _merged(self, model: ServedModel, user: str, found: Remembered) -> UserRows:
        made, rows = found.made, found.rows  # in this order: `made` is replaced after `rows`
        merged: UserRows | None = made.get(model.version)
        if merged is None:
            assert self.recent is not None
            merged = self.rows(model, user, rows).copied()  # nothing of a model that is replaced
            self.recent.keep_made(user, rows, {model.version: merged}, self.served())
        return merged

    def rows(self, model: ServedModel, user: str, rows: list[Kept]) -> UserRows:
        """The artifact's rows, unless they were deleted, and the events that came after it."""
        seq = 0 if self.recent is None else seq_of(model, self.recent)
        events = [row for row in rows if row.seq > seq]
        log = model.model.fitted.log
        item, time = _EMPTY, _NO_TIME
        if log is not None and not self.is_deleted(model, user):
            place = int(log.users.of_texts([user])[0])
            if place >= 0:
                mine = slice(log.ptr[place], log.ptr[place + 1])
                item, time = log.item[mine], log.time[mine]
        if not events:
            return UserRows(item[-self._limit :], time[-self._limit :])
        found = model.items.of_texts([str(row.item) for row in events])
        return _join(item, time, found, events, log, self._limit)


_EMPTY, _NO_TIME = np.empty(0, np.int32), np.empty(0, np.int64)
_EMPTY.flags.writeable = _NO_TIME.flags.writeable = False


def seq_of(model: ServedModel, recent: Recent) -> int:
    """The last seq of this store whose event is in the histories of a model."""
    seq = seq_in(model.facts["training"], recent.store)
    if recent.seq < seq and model not in _put_back:
        _put_back[model] = _is_put_back(recent, seq)
    return 0 if _put_back.get(model) else seq


def seq_in(training: dict[str, Any], store: str) -> int:
    """The last seq of a store that the facts of a training name."""
    return int(training.get(STORE_SEQ, 0)) if training.get(STORE) == store else 0


#: Models that know more of the store than it has, or seemed to: its next events have numbers that the model takes for old ones.
_put_back: WeakKeyDictionary[ServedModel, bool] = WeakKeyDictionary()


def _is_put_back(recent: Recent, seq: int) -> bool:
    """Was the store put back from a backup since the model learned from it? A process that only lags asks the store itself."""
    try:
        found = recent.end()
    except TalerecError:
        return False
    return warn_if_put_back(recent.name, found, seq)


def warn_if_put_back(name: str, found: int, seq: int) -> bool:
    """Has a store fewer rows than a model has learned from? That is told."""
    if found < seq:
        logger.warning(
            "%s ends at row %d, and the model has learned up to row %d: it was put back from a backup, and its rows are taken as new ones",
            name, found, seq,
        )  # fmt: skip
    return found < seq


def _join(
    item: Array, time: Array, found: Array, events: list[Kept], log: Log | None, limit: int
) -> UserRows:
    fresh = _fresh(item, time, found.tolist(), events)
    rows = [events[n] for n in fresh]
    items = np.concatenate([item, found[fresh].astype(np.int32, copy=False)])
    times = np.concatenate([time, np.array([row.time for row in rows], np.int64)])
    if len(time) and rows and rows[0].time <= time[-1]:
        by_item = log is not None and log.ties == "item"
        order = np.lexsort((items, times)) if by_item else np.argsort(times, kind="stable")
    else:
        order = np.arange(len(items))
    order = order[-limit:]
    items, times = items[order], times[order]
    items.flags.writeable = times.flags.writeable = (
        False  # as mapped ones are: kernels know one kind
    )
    first = len(item)
    places = {n: rows[was - first] for n, was in enumerate(order.tolist()) if was >= first}
    return UserRows(items, times, places)


def _fresh(item: Array, time: Array, found: list[int], events: list[Kept]) -> list[int]:
    """The places of events that the artifact does not have, or has less often."""
    fresh: list[int] = []
    seen: Counter[tuple[Any, int]] = Counter()
    for n, (position, row) in enumerate(zip(found, events, strict=True)):
        if position >= 0 and len(time) and row.time <= time[-1]:
            a, b = np.searchsorted(time, row.time), np.searchsorted(time, row.time, "right")
            key = (position, row.time)
            seen[key] += 1
            if seen[key] <= int((item[a:b] == position).sum()):
                continue
        fresh.append(n)
    return fresh
