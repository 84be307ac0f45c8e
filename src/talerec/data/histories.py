"""Histories: what is known of each asker, as runs of rows in two shared columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from itertools import accumulate, chain
from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.data.times import FARTHEST, moment
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

UNTIMED = -FARTHEST // 2  # rows without a time lie before it


@dataclass(frozen=True, eq=False)
class Histories:
    """History h is rows start[h]..stop[h], oldest first.

    item int32: positions in a vocabulary, -1 for an item that is not in it (it keeps its place)
    time int64 microseconds
    now  int64 microseconds: the moment at which each asks, or None where nobody said
    """

    start: Array
    stop: Array
    item: Array
    time: Array
    now: Array | None = None

    def __len__(self) -> int:
        return len(self.start)

    def slice(self, a: int, b: int) -> Histories:
        """Histories a..b, with no more of the columns than they span."""
        start, stop = self.start[a:b], self.stop[a:b]
        low, high = int(start.min(initial=len(self.item))), int(stop.max(initial=0))
        now = None if self.now is None else self.now[a:b]
        return Histories(start - low, stop - low, self.item[low:high], self.time[low:high], now)

    def asked(self, when: int | None) -> Histories:
        """The same, asked at a moment; None: nobody says when."""
        now = None if when is None else np.full(len(self), when, np.int64)
        return replace(self, now=now)

    def last(self) -> Array:
        """When the last row of each happened; `UNTIMED` where that is not known or there is none."""
        there = self.stop > self.start
        last = self.time[np.where(there, self.stop - 1, 0)] if len(self.time) else UNTIMED
        found: Array = np.where(there, np.maximum(last, UNTIMED), UNTIMED)
        return found

    def known(self, h: int) -> bool:
        """Is any item of history h in the vocabulary?"""
        return bool((self.item[self.start[h] : self.stop[h]] >= 0).any())

    def moments(self, *, joint: bool) -> Array:
        """When rows happened, or nothing: unless `joint`, every row is a moment of its own."""
        return self.time if joint else np.empty(0, np.int64)

    @classmethod
    def of_users(cls, log: Log, users: Array) -> Histories:
        return cls(log.ptr[users], log.ptr[users + 1], log.item, log.time)

    @classmethod
    def untimed(cls, rows: list[list[Any]], items: Vocabulary, unknown: str) -> Histories:
        """Histories of item ids without times, oldest first: every row is an instant of its own."""
        names = rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))
        item = items.positions(names, "item", unknown).astype(np.int32, copy=False)
        ptr = np.array([0, *accumulate(map(len, rows))])
        return cls(ptr[:-1], ptr[1:], item, np.arange(-FARTHEST, len(names) - FARTHEST))

    @classmethod
    def from_ids(cls, given: Sequence[Sequence[Any]], items: Vocabulary, unknown: str) -> Histories:
        """From external ids: each history a sequence of item ids, or of (item id, time) pairs, oldest first.

        Without times every row is an instant of its own. With them rows are put into time order.
        """
        if not _is_list(given) or not all(type(one) is list or _is_list(one) for one in given):
            raise TalerecError("histories is a list of histories, each a list of items")
        rows = [list(history) for history in given]
        ptr = np.array([0, *accumulate(map(len, rows))])
        names = list(chain.from_iterable(rows))
        time = np.arange(len(names)) - FARTHEST  # before anything that has a time
        if not set(map(type, names)) <= {int, str}:
            flat = [event for history in rows for event in _in_time([_row(row) for row in history])]
            names = [name for name, _ in flat]
            time = np.fromiter((moment for _, moment in flat), np.int64, len(flat))
        item = items.positions(names, "item", unknown)
        return cls(ptr[:-1], ptr[1:], item.astype(np.int32, copy=False), time)


def _is_list(given: Any) -> bool:
    return type(given) is list or (
        isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    )


def _row(event: Any) -> tuple[Any, int | None]:
    if isinstance(event, tuple | list):
        if len(event) != 2:
            raise TalerecError(f"{event!r} is no row of a history: write an item, or (item, time)")
        return event[0], _moment(event[1])
    return event, None


def _moment(value: Any) -> int | None:
    """A time in a history: a datetime, or microseconds as Log keeps them."""
    if value is None:
        return None
    if isinstance(value, datetime) and value == value:  # pandas' NaT is not
        return moment(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return moment(datetime(value.year, value.month, value.day))
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TalerecError(f"{value!r} is no time: give a datetime or whole microseconds")
    if abs(int(value)) > FARTHEST:
        raise TalerecError(f"time {value} is beyond any date")
    return int(value)


def _in_time(history: list[tuple[Any, int | None]]) -> list[tuple[Any, int]]:
    moments = [moment for _, moment in history if moment is not None]
    if len(moments) == len(history):
        return sorted(((name, moment) for name, moment in history if moment is not None), key=_time)
    if moments:
        raise TalerecError("give a time with every row of a history, or with none")
    return [(name, place - FARTHEST) for place, (name, _) in enumerate(history)]


def _time(row: tuple[Any, int]) -> int:
    return row[1]
