"""Questions that a log asks of itself: rows held back from a first fit, of two kinds.

Fresh questions are asked when everything up to them is known, as a service asks. Late ones are asked from behind an end
of the rows: what was popular is as old as that end, and the asker has often been away for long. Nothing but the rows of
the log that is fitted is looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.runtime.arrays import Array

_ENDS = (0.85, 0.9, 0.8, 0.7, 0.6, 0.5)  # shares of the rows after which the first fit may end
_LATE = (
    500  # questions behind an end with which it is good enough; else the end with the most is taken
)
_MOST = 4096  # questions of a kind: a sample teaches as well as all
_LEAST = 512
_ROWS_PER_QUESTION = 40  # of small logs: learning must not take longer than fitting
_ALL_ITEMS = 4000  # up to so many, all items are asked for
_FEW = 200  # questions with a known answer, below which nothing can be learned


class Questions(NamedTuple):
    """Histories, the moment at which each is asked, and what came next."""

    histories: Histories
    target: Array

    def __len__(self) -> int:
        return len(self.target)


class HeldBack(NamedTuple):
    """The rows of a first fit, with the vocabularies of the whole log, and what was held back from it."""

    train: Log
    fresh: Questions
    late: Questions
    wanted: Array  # one flag per item: the first fit is asked for these alone


def held_back(log: Log, *, every_item: bool = False) -> HeldBack | None:
    """Rows for a first fit and questions about the others; None where the log is too small to ask enough.

    Of a large catalogue, half of the items are asked for, or all of them (`every_item`).
    """
    end = _end(log)
    before = log.time < end
    known = log.keep(before)
    length = np.diff(known.ptr)
    wanted = np.ones(len(log.items), bool) if every_item else _wanted(len(log.items))
    most = int(np.clip(log.rows // _ROWS_PER_QUESTION, _LEAST, _MOST))
    askers = np.flatnonzero(length >= 3)
    askers = _sample(askers[wanted[known.item[known.ptr[askers + 1] - 1]]], most)
    last = known.ptr[askers + 1] - 1
    kept = np.ones(known.rows, bool)
    kept[last] = False
    train = known.keep(kept)
    fresh = _questions(train, known, known.ptr[askers], last, known.item[last], known.time[last])
    if len(fresh) < _FEW:
        return None
    first = _first_rows(log, ~before)
    late_askers = np.flatnonzero((first >= 0) & (length > 0))
    late_askers = _sample(late_askers[wanted[log.item[first[late_askers]]]], most)
    row = first[late_askers]
    start, stop = known.ptr[late_askers], known.ptr[late_askers + 1]
    late = _questions(train, known, start, stop, log.item[row], log.time[row])
    return HeldBack(train, fresh, late, wanted)


def _wanted(items: int) -> Array:
    """The items that questions are about: all of a small catalogue, every second one of a large one, by a hash of its number.

    Among every second item the order of all items is the same, and half of them are solved for in half the time.
    """
    if items <= _ALL_ITEMS:
        return np.ones(items, bool)
    mixed = np.arange(items, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    half: Array = (mixed >> np.uint64(40)) % np.uint64(2) == 0
    return half


def _end(log: Log) -> int:
    """The first of some moments behind which enough users are asked, or that with the most."""
    times = np.sort(log.time)
    ends = np.array([times[int(share * (log.rows - 1))] for share in _ENDS])
    there = np.diff(log.ptr) > 0
    first, last = log.time[log.ptr[:-1][there]], log.time[log.ptr[1:][there] - 1]
    late = np.array([np.count_nonzero((first < end) & (last >= end)) for end in ends])
    enough = np.flatnonzero(late >= _LATE)
    return int(ends[enough[0] if enough.size else int(np.argmax(late))])


def _sample(users: Array, most: int) -> Array:
    """At most so many of the users, evenly spread."""
    if len(users) <= most:
        return users
    chosen: Array = users[np.linspace(0, len(users) - 1, most).astype(np.int64)]
    return chosen


def _first_rows(log: Log, wanted: Array) -> Array:
    """The first wanted row of each user, -1 where there is none."""
    first = np.full(len(log.users), -1, np.int64)
    rows = np.flatnonzero(wanted)[::-1]
    first[log.user_codes()[rows]] = rows  # the earliest is written last
    return first


def _questions(
    train: Log, known: Log, start: Array, stop: Array, target: Array, now: Array
) -> Questions:
    """The questions whose answers the first fit can know."""
    there = np.bincount(train.item, minlength=len(train.items)) > 0
    ok = there[target] & (stop > start)
    histories = Histories(start[ok], stop[ok], known.item, known.time, now[ok])
    return Questions(histories, target[ok].astype(np.int64))
