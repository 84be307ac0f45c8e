"""Questions that a log asks of itself: rows held back from a first fit, of two kinds.

Fresh questions are asked when everything up to them is known, as a service asks. Late ones are asked from behind an end
of the rows: what was popular is as old as that end, and the asker has often been away for long. Nothing but the rows of
the log that is fitted is looked at.
"""

from __future__ import annotations

from dataclasses import replace
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
    ends = end_choices(np.sort(log.time))
    cut = Cut.at(log, chosen_end(ends, users_across(log, ends)))
    wanted = wanted_items(len(log.items), every_item=every_item)
    fresh_askers, late_askers = (sample(one, log.rows) for one in cut.askers(wanted))
    train = cut.train(fresh_askers)
    there = np.bincount(train.item, minlength=len(train.items)) > 0
    fresh = known_answers(cut.fresh(fresh_askers), there)
    if are_few(fresh):
        return None
    return HeldBack(train, fresh, known_answers(cut.late(late_askers), there), wanted)


class Cut(NamedTuple):
    """A log, or a part of its users, that is cut at an end of the rows."""

    log: Log
    known: Log  # the rows before it
    first: Array  # the first row of each user behind it, -1 where there is none

    @classmethod
    def at(cls, log: Log, end: int) -> Cut:
        """Cut a log before the rows of a moment."""
        before = log.time < end
        return cls(log, log.keep(before), _first_rows(log, ~before))

    def askers(self, wanted: Array) -> tuple[Array, Array]:
        """The users who can be asked fresh questions, and late ones, about wanted items (a flag each)."""
        known, length = self.known, np.diff(self.known.ptr)
        fresh = np.flatnonzero(length >= 3)
        late = np.flatnonzero((self.first >= 0) & (length > 0))
        return (
            fresh[wanted[known.item[known.ptr[fresh + 1] - 1]]],
            late[wanted[self.log.item[self.first[late]]]],
        )

    def train(self, askers: Array) -> Log:
        """The rows of the first fit: those before the end, without the last one of each asker of a fresh question."""
        kept = np.ones(self.known.rows, bool)
        kept[self.known.ptr[askers + 1] - 1] = False
        return self.known.keep(kept)

    def fresh(self, askers: Array) -> Questions:
        """Users are asked for their last row before the end."""
        known = self.known
        last = known.ptr[askers + 1] - 1
        return _questions(known, known.ptr[askers], last, known.item[last], known.time[last])

    def late(self, askers: Array) -> Questions:
        """Users are asked for their first row behind the end."""
        known, row = self.known, self.first[askers]
        start, stop = known.ptr[askers], known.ptr[askers + 1]
        return _questions(known, start, stop, self.log.item[row], self.log.time[row])


def wanted_items(items: int, *, every_item: bool) -> Array:
    """The items that questions are about: all of a small catalogue, every second one of a large one, by a hash of its number.

    Among every second item the order of all items is the same, and half of them are solved for in half the time.
    """
    if every_item or items <= _ALL_ITEMS:
        return np.ones(items, bool)
    mixed = np.arange(items, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    half: Array = (mixed >> np.uint64(40)) % np.uint64(2) == 0
    return half


def end_choices(times: Array) -> Array:
    """The moments at which a first fit may end, the best one first, from all times in order."""
    return np.array([times[int(share * (len(times) - 1))] for share in _ENDS])


def users_across(log: Log, ends: Array) -> Array:
    """How many users have rows both before and behind each of some ends."""
    there = np.diff(log.ptr) > 0
    first, last = log.time[log.ptr[:-1][there]], log.time[log.ptr[1:][there] - 1]
    return np.array([np.count_nonzero((first < end) & (last >= end)) for end in ends])


def chosen_end(ends: Array, late: Array) -> int:
    """The first end behind which enough users are asked, or that with the most."""
    enough = np.flatnonzero(late >= _LATE)
    return int(ends[enough[0] if enough.size else int(np.argmax(late))])


def sample(users: Array, rows: int) -> Array:
    """As many of the users as are asked where a log has so many rows, evenly spread."""
    most = int(np.clip(rows // _ROWS_PER_QUESTION, _LEAST, _MOST))
    if len(users) <= most:
        return users
    chosen: Array = users[np.linspace(0, len(users) - 1, most).astype(np.int64)]
    return chosen


def are_few(fresh: Questions) -> bool:
    """Are there too few questions to learn from?"""
    return len(fresh) < _FEW


def _first_rows(log: Log, wanted: Array) -> Array:
    """The first wanted row of each user, -1 where there is none."""
    first = np.full(len(log.users), -1, np.int64)
    rows = np.flatnonzero(wanted)[::-1]
    first[log.user_codes()[rows]] = rows  # the earliest is written last
    return first


def _questions(known: Log, start: Array, stop: Array, target: Array, now: Array) -> Questions:
    return Questions(Histories(start, stop, known.item, known.time, now), target.astype(np.int64))


def known_answers(asked: Questions, there: Array) -> Questions:
    """The questions with a history whose answers the first fit can know (a flag per item)."""
    histories, target = asked
    assert histories.now is not None
    ok = there[target] & (histories.stop > histories.start)
    bounds = (histories.start[ok], histories.stop[ok])
    kept = replace(histories, start=bounds[0], stop=bounds[1], now=histories.now[ok])
    return Questions(kept, target[ok])
