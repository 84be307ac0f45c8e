"""Histories: the rows that each asker is known by, as runs of rows in two shared columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.data.times import FARTHEST, microseconds
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

_NO_TIMES = np.empty(0, np.int64)
_NO_TIMES.flags.writeable = False
UNTIMED = -FARTHEST // 2  # rows without a time have times before this one


@dataclass(frozen=True, eq=False, repr=False)
class Histories:
    """The histories that a model is asked about: what authors of models get in `query`.

    History h is rows start[h]..stop[h] of the columns `item` and `time`, oldest first. Build them
    with `from_ids` or `of_users`.

    Parameters
    ----------
    start, stop : int64 arrays
        Where each history begins and ends; histories may share rows.
    item : int32 array
        Positions of items in the model's vocabulary; -1 for an item that is not in it, which keeps
        its place in the history.
    time : int64 array
        Microseconds since 1970. Rows without a time have distinct times before `UNTIMED`, in order.
    now : int64 array, optional
        The moment at which each history is asked about; None where that is not known.
    weight : float64 array, optional
        What each row is worth, where the log has weights; None: every row 1.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(200)
    >>> histories = tr.Histories.from_ids([[3, 5], [7]], log.items)
    >>> histories
    Histories(2 histories, 3 rows)
    >>> histories.item[histories.start[0] : histories.stop[0]]
    array([2, 4], dtype=int32)
    """

    start: Array
    stop: Array
    item: Array
    time: Array
    now: Array | None = None
    weight: Array | None = None

    @classmethod
    def of_users(cls, log: Log, users: Array | None = None) -> Histories:
        """The histories of a log's users: of those at positions `users`, or of all; nothing is copied."""
        chosen = np.arange(len(log.users)) if users is None else users
        bounds = log.ptr[chosen], log.ptr[chosen + 1]
        return cls(*bounds, log.item, log.time, weight=log.weight)

    @classmethod
    def from_ids(
        cls,
        given: Sequence[Sequence[Any]],
        items: Vocabulary,
        unknown: str = "error",
        unit: str = "s",
    ) -> Histories:
        """Histories from external ids.

        Parameters
        ----------
        given : sequence of sequences
            Each history is a sequence of item ids, oldest first, or of pairs (item id, time) in any
            order. A time is a date, a datetime, the text of one, or a number: of 10^8 and more, its
            size tells whether it counts s, ms, us or ns since 1970.
        items : Vocabulary
            The items that are known: ``log.items``, or those of a model.
        unknown : {"error", "skip"}
            Whether an unknown item is an error, or gets the position -1.
        unit : {"s", "ms", "us", "ns", "datetime"}
            What smaller numbers count: the unit of the log (``log.unit``).

        Returns
        -------
        Histories

        Raises
        ------
        UnknownIdError
            If an item is unknown.
        TalerecError
            If something else is not an id, a time or a history.
        """
        if not _is_list(given) or not all(type(one) is list or _is_list(one) for one in given):
            raise TalerecError("histories is a list of histories, each a list of items")
        rows = [list(history) for history in given]
        if set(map(type, chain.from_iterable(rows))) <= {int, str}:
            return cls.untimed(rows, items, unknown)
        return cls.timed(
            [_in_time([_row(row, unit) for row in history]) for history in rows], items, unknown
        )

    @classmethod
    def timed(
        cls, rows: list[list[tuple[Any, int]]], items: Vocabulary, unknown: str = "error"
    ) -> Histories:
        """Histories from lists of (item id, microseconds) in time order, without the checks of `from_ids`."""
        flat = list(chain.from_iterable(rows))
        item = items.positions([name for name, _ in flat], "item", unknown)
        time = np.fromiter((moment for _, moment in flat), np.int64, len(flat))
        return cls(*_bounds(rows), item.astype(np.int32, copy=False), time)

    @classmethod
    def untimed(cls, rows: list[list[Any]], items: Vocabulary, unknown: str = "error") -> Histories:
        """Histories from lists of item ids alone, oldest first, without the checks of `from_ids`."""
        names = rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))
        item = items.positions(names, "item", unknown).astype(np.int32, copy=False)
        item.flags.writeable = False  # as mapped ones are: kernels know one kind
        return cls(*_bounds(rows), item, np.arange(-FARTHEST, len(names) - FARTHEST))

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        rows = int((self.stop - self.start).sum())
        return f"Histories({len(self):,} histories, {rows:,} rows)"

    def slice(self, a: int, b: int) -> Histories:
        """Histories a..b, with only the part of the columns that they span."""
        start, stop = self.start[a:b], self.stop[a:b]
        low, high = int(start.min(initial=len(self.item))), int(stop.max(initial=0))
        now = None if self.now is None else self.now[a:b]
        weight = None if self.weight is None else self.weight[low:high]
        rows = (self.item[low:high], self.time[low:high])
        return Histories(start - low, stop - low, *rows, now, weight)

    def take(self, which: Array) -> Histories:
        """The histories at these places; nothing of the columns is copied."""
        now = None if self.now is None else self.now[which]
        return replace(self, start=self.start[which], stop=self.stop[which], now=now)

    def asked(self, when: int | None) -> Histories:
        """These histories, all asked about at one moment (microseconds); None: at a moment not known."""
        now = None if when is None else np.full(len(self), when, np.int64)
        return replace(self, now=now)

    def last(self) -> Array:
        """The time of each history's last row; `UNTIMED` where there is no row or no time."""
        there = self.stop > self.start
        last = self.time[np.where(there, self.stop - 1, 0)] if len(self.time) else UNTIMED
        found: Array = np.where(there, np.maximum(last, UNTIMED), UNTIMED)
        return found

    def known(self, h: int) -> bool:
        """Whether any item of history h is in the vocabulary."""
        return bool((self.item[self.start[h] : self.stop[h]] >= 0).any())

    def moments(self, *, joint: bool) -> Array:
        """The times of the rows if rows of one time count as one moment (`joint`), else an empty array."""
        return self.time if joint else _NO_TIMES


def _bounds(rows: Sequence[Sequence[Any]]) -> tuple[Array, Array]:
    """Where each of some lists begins and ends when they stand one after the other."""
    ptr = np.array([0, *accumulate(map(len, rows))])
    return ptr[:-1], ptr[1:]


def _is_list(given: Any) -> bool:
    return type(given) is list or (
        isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)
    )


def _row(event: Any, unit: str) -> tuple[Any, int | None]:
    """A row of a history as its item and its time, if it has one."""
    if isinstance(event, tuple | list):
        if len(event) != 2:
            raise TalerecError(
                f"{event!r} is not a row of a history: write an item, or (item, time)"
            )
        return event[0], None if event[1] is None else microseconds(event[1], unit)
    return event, None


def _in_time(history: list[tuple[Any, int | None]]) -> list[tuple[Any, int]]:
    """The rows of a history in time order; without times, as they stand, before `UNTIMED`."""
    moments = [moment for _, moment in history if moment is not None]
    if len(moments) == len(history):
        return sorted(((name, moment) for name, moment in history if moment is not None), key=_time)
    if moments:
        raise TalerecError("give a time with every row of a history, or with none")
    return [(name, place - FARTHEST) for place, (name, _) in enumerate(history)]


def _time(row: tuple[Any, int]) -> int:
    return row[1]
