"""Histories: each user's past events, as ranges of rows in shared columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np

from talerec.data.context import ContextColumns, take_context
from talerec.data.log import Log
from talerec.data.times import FARTHEST, time_to_microseconds
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError, accept_renamed, forward_renamed
from talerec.runtime import Array

_NO_TIMES = np.empty(0, np.int64)
_NO_TIMES.flags.writeable = False
_CHUNK_HISTORIES, _CHUNK_ROWS = 2**16, 2**22  # histories and rows worked on at a time
UNTIMED = -FARTHEST // 2  # rows without a time have times before this one


@dataclass(frozen=True, eq=False, repr=False)
class Histories:
    """The histories of a batch of requests: the argument of a model's `query`.

    History h is rows start[h]..stop[h] of the columns `item` and `time`, oldest first. Build them
    with `from_ids` or `of_users`.

    Parameters
    ----------
    start, stop : int64 arrays
        Where each history begins and ends; histories may share rows.
    item : int32 array
        Positions of items in the model's vocabulary; -1 for an unknown item, which keeps its place
        in the history.
    time : int64 array
        Microseconds since 1970. Rows without a time have distinct times before `UNTIMED`, in order.
    now : int64 array, optional
        The request time of each history; None if it is unknown.
    weight : float64 array, optional
        The weight of each row; None: every row has weight 1.
    context : tuple of ContextColumn
        The context of each request, such as its device; a column that is not there is missing.
    row_context : tuple of ContextColumn
        The context of each row.
    clock : int, optional
        The time now, where request times are unknown: items that came out after the end of the log
        are new by it.

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
    context: ContextColumns = ()
    row_context: ContextColumns = ()
    clock: int | None = None

    @classmethod
    def of_users(cls, log: Log, users: Array | None = None) -> Histories:
        """Return the histories of a log's users (all, or at positions `users`), without copies.

        A history is all rows of one user, oldest first: rows log.ptr[u]..log.ptr[u + 1] of user u.
        Item positions are those of the log.
        """
        chosen = np.arange(len(log.users)) if users is None else users
        bounds = log.ptr[chosen], log.ptr[chosen + 1]
        context = user_columns(log, chosen)
        rows = log.item, log.time
        return cls(*bounds, *rows, None, log.weight, context, log.context)

    @classmethod
    @accept_renamed("given", "histories")
    def from_ids(
        cls,
        histories: Sequence[Sequence[Any]],
        items: Vocabulary,
        unknown: str = "error",
        unit: str = "s",
    ) -> Histories:
        """Return histories given as external ids, with or without times.

        Parameters
        ----------
        histories : sequence of sequences
            Each history is a sequence of item ids, oldest first, or of pairs (item id, time) in any
            order. A time is a date, a datetime, the text of one, or a number: from 10^8 on, its
            size shows whether it counts s, ms, us or ns since 1970.
        items : Vocabulary
            The known items: ``log.items``, or those of a model.
        unknown : {"error", "skip"}
            Whether an unknown item is an error, or gets the position -1.
        unit : {"s", "ms", "us", "ns", "datetime"}
            The unit of smaller numbers: that of the log (``log.unit``).

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
        if not _is_list(histories) or not all(map(_is_list, histories)):
            raise TalerecError("histories is a list of histories, each a list of items")
        rows = [list(history) for history in histories]
        if set(map(type, chain.from_iterable(rows))) <= {int, str}:
            return cls.untimed(rows, items, unknown)
        parsed = [[_parse_event(row, unit) for row in history] for history in rows]
        return cls.timed([_sort_history(history) for history in parsed], items, unknown)

    @classmethod
    def timed(
        cls, rows: list[list[tuple[Any, int]]], items: Vocabulary, unknown: str = "error"
    ) -> Histories:
        """Return histories of (item id, microseconds since 1970) lists, which are not checked.

        rows : one list per history, in time order
        items : the known items and their positions, the numbers that models use
        unknown : "error" to raise UnknownIdError for another item, "skip" to give it position -1
        """
        flat = list(chain.from_iterable(rows))
        item = items.positions([name for name, _ in flat], "item", unknown)
        time = np.fromiter((when for _, when in flat), np.int64, len(flat))
        return cls(*_find_bounds(rows), item.astype(np.int32, copy=False), time)

    @classmethod
    def untimed(cls, rows: list[list[Any]], items: Vocabulary, unknown: str = "error") -> Histories:
        """Return histories of item id lists, oldest first, without the checks of `from_ids`.

        `rows` has one list per history. `items` are the known items and their positions. `unknown`
        is "error" to raise UnknownIdError for another item, "skip" to give it position -1. Entries
        get the distinct times -FARTHEST, -FARTHEST + 1 ...: times that far back mean "no time".
        """
        names = rows[0] if len(rows) == 1 else list(chain.from_iterable(rows))
        item = items.positions(names, "item", unknown).astype(np.int32, copy=False)
        item.flags.writeable = False  # as in mapped arrays: kernels are compiled for one type
        return cls(*_find_bounds(rows), item, np.arange(-FARTHEST, len(names) - FARTHEST))

    if not TYPE_CHECKING:  # former names
        __getattr__ = forward_renamed({"asked": "as_of", "known": "has_known_item"})

    def __len__(self) -> int:
        return len(self.start)

    def __repr__(self) -> str:
        rows = int((self.stop - self.start).sum())
        return f"Histories({len(self):,} histories, {rows:,} rows)"

    def slice(self, a: int, b: int) -> Histories:
        """Return histories a..b (b excluded), with only the part of the columns that they span.

        History h is rows start[h]..stop[h] of the columns `item`, `time` and `weight`, which are
        views here; `start` and `stop` are shifted to them. `now` has the histories' request times.
        """
        start, stop = self.start[a:b], self.stop[a:b]
        low, high = int(start.min(initial=len(self.item))), int(stop.max(initial=0))
        now = None if self.now is None else self.now[a:b]
        weight = None if self.weight is None else self.weight[low:high]
        rows = (self.item[low:high], self.time[low:high])
        context = take_context(self.context, slice(a, b))
        contexts = context, take_context(self.row_context, slice(low, high))
        return Histories(start - low, stop - low, *rows, now, weight, *contexts, self.clock)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges a, b (b excluded) of histories, in order, that are worked on at a time.

        A range has at most 65,536 histories and, unless it is a single history, at most 4,194,304
        rows (history h has rows start[h]..stop[h]): so memory does not grow with their number.
        """
        ends = np.cumsum(self.stop - self.start)
        a, n_rows = 0, 0
        while a < len(ends):
            b = int(np.searchsorted(ends, n_rows + _CHUNK_ROWS, "right"))
            b = min(max(b, a + 1), a + _CHUNK_HISTORIES)
            yield a, b
            a, n_rows = b, int(ends[b - 1])

    def take(self, which: Array) -> Histories:
        """Return the histories at positions `which` (integers or a mask), in that order.

        History h is rows start[h]..stop[h] of columns that are shared, not copied. `now` has the
        request time of each history; None: unknown.
        """
        now = None if self.now is None else self.now[which]
        context = take_context(self.context, which)
        bounds = self.start[which], self.stop[which]
        return replace(self, start=bounds[0], stop=bounds[1], now=now, context=context)

    def as_of(self, when: int | None) -> Histories:
        """Return the same histories, all with the request time `when` (microseconds since 1970).

        A request time is when the model is asked for recommendations; None: unknown. No row is left
        out; see `before`.
        """
        now = None if when is None else np.full(len(self), when, np.int64)
        return replace(self, now=now)

    def before(self, when: int | None) -> Histories:
        """Return these histories as they were at a request time: only their rows before it.

        when: microseconds since 1970, the request time of all histories; None: all rows, and an
        unknown request time. A row at exactly that time is left out, as is the held-out row in an
        evaluation; rows without a time stay. The columns are shared.
        """
        if when is None:
            return self.as_of(None)
        now = np.full(len(self), when, np.int64)
        return replace(self, stop=self.first_rows_from(now), now=now)

    def first_rows_from(self, when: Array) -> Array:
        """Return, for each history h, its first row (a row number) that is not before when[h].

        when: int64 microseconds. That is stop[h] if all rows are before.
        """
        low, high = self.start.copy(), self.stop.copy()
        while (is_open := low < high).any():  # bisection, in all histories at once
            middle = (low + high) // 2
            is_before = np.zeros(len(self), bool)
            is_before[is_open] = self.time[middle[is_open]] < when[is_open]
            low = np.where(is_open & is_before, middle + 1, low)
            high = np.where(is_open & ~is_before, middle, high)
        return low

    def last(self) -> Array:
        """Return each history's last time (int64 microseconds); `UNTIMED` without a row or a time.

        History h is rows start[h]..stop[h], oldest first; `UNTIMED` is a time before any date.
        """
        has_rows = self.stop > self.start
        last = self.time[np.where(has_rows, self.stop - 1, 0)] if len(self.time) else UNTIMED
        times: Array = np.where(has_rows, np.maximum(last, UNTIMED), UNTIMED)
        return times

    def has_known_item(self, h: int) -> bool:
        """Return whether any item of history number h, from 0, is known to the model.

        History h is rows start[h]..stop[h]; `item` has positions, -1 for unknown items.
        """
        return bool((self.item[self.start[h] : self.stop[h]] >= 0).any())

    def moments(self, *, joint: bool) -> Array:
        """Return each row's time if simultaneous rows are one event (`joint`), else no times.

        Times are in microseconds, one per row of all histories. The empty array, without `joint`,
        tells the caller to treat each row as an event of its own.
        """
        return self.time if joint else _NO_TIMES


def user_columns(log: Log, users: Array) -> ContextColumns:
    """Return the user columns of a log, with the value of each of some users (positions).

    A user's value is that of the newest row with one; a user without rows has none.
    """
    return take_context(log.user_context, users)


def _find_bounds(rows: Sequence[Sequence[Any]]) -> tuple[Array, Array]:
    """Return the start and stop of each list, as arrays, when the lists are concatenated."""
    ptr = np.array([0, *accumulate(map(len, rows))])
    return ptr[:-1], ptr[1:]


def _is_list(value: Any) -> bool:
    """Return whether a value is an iterable other than text, bytes or a mapping."""
    return type(value) is list or (
        isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    )


def _parse_event(event: Any, unit: str) -> tuple[Any, int | None]:
    """Return an entry of a history, an item or (item, time), as (item id, microseconds).

    The microseconds are None without a time; `unit` (s, ms ...) is that of numbers below 10^8.
    """
    if isinstance(event, tuple | list):
        if len(event) != 2:
            message = f"{event!r} is not a row of a history: write an item, or (item, time)"
            raise TalerecError(message)
        return event[0], None if event[1] is None else time_to_microseconds(event[1], unit)
    return event, None


def _sort_history(history: list[tuple[Any, int | None]]) -> list[tuple[Any, int]]:
    """Return (item id, microseconds) pairs in time order; an error if only some have a time.

    `history` has pairs of an item id and microseconds or None. Without any times, entries keep
    their order and get the distinct times -FARTHEST, -FARTHEST + 1 ...: times that far back mean
    "no time".
    """
    timed = [(name, when) for name, when in history if when is not None]
    if len(timed) == len(history):
        return sorted(timed, key=lambda row: row[1])
    if timed:
        raise TalerecError("give a time with every row of a history, or with none")
    return [(name, place - FARTHEST) for place, (name, _) in enumerate(history)]
