"""Splits: rows to learn from, and questions whose answers are known and held back.

Whatever is learned, the vocabulary too, comes from the training rows of a split alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from talerec.data import times
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

TEST, VALIDATION = "test", "validation"


@dataclass(frozen=True, eq=False)
class Cases:
    """Questions: after `histories[c]`, what came next? Items are positions in the training vocabulary, or -1."""

    user: Array  # positions in the users of the log that was split
    histories: Histories
    target: Array
    target_time: Array

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, eq=False)
class Split:
    """Training rows (with the only vocabulary that is learned) and the cases held back from them."""

    name: str
    users: Vocabulary  # of the log that was split
    train: Log
    validation: Cases | None
    test: Cases | None
    window: str = ""  # of rolling ones: when it begins
    refit: bool = False  # the validation rows are training rows

    def cases(self, on: str) -> Cases:
        found = {TEST: self.test, VALIDATION: self.validation}
        if on not in found:
            raise TalerecError(f"on is {on!r}; it takes test or validation")
        cases = found[on]
        if cases is None:
            raise TalerecError(f"a split {self.name} has no {on} rows")
        return cases


def leave_one_out(log: Log, *, refit: bool = False) -> Split:
    """Each user's last row is the test, the one before it the validation, the rest training.

    A user with fewer than three rows asks no question; all of them are training rows. With `refit`
    the validation rows are training rows too, as they would be in production.
    """
    count = np.diff(log.ptr)
    askers = np.flatnonzero(count >= 3)
    if not askers.size:
        raise TalerecError("no user has three rows: leave-one-out has nothing to ask")
    last = log.ptr[askers + 1] - 1
    train = np.ones(log.rows, bool)
    train[last] = False
    if not refit:
        train[last - 1] = False
    learned, items = _learned(log, train)
    validation = None if refit else _cases(log, items, askers, last - 1)
    test = _cases(log, items, askers, last)
    return Split("leave-one-out", log.users, learned, validation, test, refit=refit)


def time_split(log: Log, moment: times.Moment, *, on: str = TEST) -> Split:
    """Rows before `moment` are training; each user's first row from then on is the test.

    A moment is a datetime, a text such as 2019-10-01 or unix seconds as text, or whole microseconds.
    Users with no row before the moment, or none after it, ask no question.

    on="validation": the same, one step earlier. The rows before the moment are split again, so that
    the same share of them comes last (half at most), and nothing from the moment on plays a part.
    """
    when = times.microseconds(moment)
    name = f"at:{moment if isinstance(moment, str) else _words(when)}"
    if on == TEST:
        return _between(log, name, when, None, on)
    return _between(log, name, _earlier(log, when), when, on)


def rolling_split(log: Log, moment: times.Moment, days: float, *, on: str = TEST) -> list[Split]:
    """Windows of `days` from `moment` to the end of the log, each with a split of its own.

    In each, rows before the window are training, and each user's first row in it is the question.
    on="validation": as many windows, ending at the moment. A window in which nobody asks is left out.
    """
    if not days > 0:
        raise TalerecError(f"rolling windows of {days:g} days; they take a number above 0")
    first, width = times.microseconds(moment), round(days * times.DAY)
    if width < 1:
        raise TalerecError(f"rolling windows of {days:g} days are shorter than a microsecond")
    last = int(log.time.max()) if log.rows else first - 1
    count = -(-(last + 1 - first) // width)
    if not 1 <= count <= _MOST_WINDOWS:
        problem = "no row lies after the first window begins" if count < 1 else f"{count:,} windows"
        raise TalerecError(f"rolling from {moment} by {days:g} days: {problem}")
    if on == VALIDATION:
        first -= count * width
    name, found = f"rolling:{moment},{days:g}", []
    for start in range(first, first + count * width, width):
        try:
            found.append(_between(log, name, start, start + width, on))
        except _NothingToAsk:
            continue
    if not found:
        raise TalerecError(f"no window of {name} has a user with rows before it and in it")
    return found


_MOST_WINDOWS = 1000


class _NothingToAsk(TalerecError):
    """A stretch of time without a question."""


def _earlier(log: Log, when: int) -> int:
    """The moment that splits the rows before `when` as `when` splits all of them."""
    before = np.sort(log.time[log.time < when])
    if not before.size:
        raise _NothingToAsk("no row lies before the point of the split")
    share = min(1 - len(before) / log.rows, 0.5)
    return int(before[min(int((1 - share) * len(before)), len(before) - 1)])


def _between(log: Log, name: str, when: int, end: int | None, on: str) -> Split:
    """Training before `when`; questions are users' first rows from then on, and before `end`."""
    train = log.time < when
    if train.all() or not train.any():
        side = "after" if train.all() else "before"
        raise _NothingToAsk(f"no row lies {side} the point of the split")
    before = np.concatenate([[0], np.cumsum(train)])[log.ptr]  # training rows before each user's
    target = log.ptr[:-1] + np.diff(before)
    asks = (target > log.ptr[:-1]) & (target < log.ptr[1:])
    if end is not None:
        asks[asks] = log.time[target[asks]] < end
    askers = np.flatnonzero(asks)
    if not askers.size:
        raise _NothingToAsk("no user has rows on both sides of the point of the split")
    learned, items = _learned(log, train)
    cases = _cases(log, items, askers, target[askers])
    test, validation = (cases, None) if on == TEST else (None, cases)
    return Split(name, log.users, learned, validation, test, window=_words(when))


def _words(when: int) -> str:
    return str(np.datetime64(max(-times.FARTHEST, min(when, times.FARTHEST)), "us"))


def _learned(log: Log, train: Array) -> tuple[Log, Array]:
    """The training rows with their own vocabulary, and each row's item as a position in it (-1: not there)."""
    learned = log.keep(train).compact()
    renumber = np.full(len(log.items), -1, np.int32)
    renumber[np.unique(log.item[train])] = np.arange(len(learned.items), dtype=np.int32)
    return learned, renumber[log.item]


def _cases(log: Log, items: Array, askers: Array, target: Array) -> Cases:
    when = log.time[target]
    histories = Histories(log.ptr[askers], target, items, log.time, now=when)
    return Cases(askers, histories, items[target], when)


# -- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How to split, as the command line says it: leave-one-out, at:TIME or rolling:TIME,DAYS."""

    text: str = "leave-one-out"
    refit: bool = False

    def __post_init__(self) -> None:
        kind, _, rest = self.text.partition(":")
        if self.text == "leave-one-out":
            return
        if kind == "at":
            times.parse_moment(rest)  # a mistake is found before the log is read
        elif kind == "rolling":
            times.parse_moment(self._window()[0])
        else:
            raise TalerecError(
                f"--split is {self.text!r}; it takes leave-one-out, at:TIME or rolling:TIME,DAYS"
            )

    def _window(self) -> tuple[str, float]:
        moment, _, days = self.text.partition(":")[2].rpartition(",")
        try:
            return moment, float(days)
        except ValueError:
            raise TalerecError(
                f"--split is {self.text!r}; rolling takes TIME,DAYS such as rolling:2019-07-01,30"
            ) from None

    def check(self, on: str) -> None:
        """Refuse rows that this plan does not hold back."""
        if self.refit and on == VALIDATION:
            raise TalerecError("--refit learns from the validation rows: they cannot be scored too")
        if on not in (TEST, VALIDATION):
            raise TalerecError(f"on is {on!r}; it takes test or validation")

    def splits(self, log: Log, on: str = TEST) -> Iterator[Split]:
        """The splits of a log, one at a time; more than one for rolling windows."""
        self.check(on)
        kind, _, rest = self.text.partition(":")
        if kind == "rolling":
            yield from rolling_split(log, *self._window(), on=on)
        elif kind == "at":
            yield time_split(log, rest, on=on)
        else:
            yield leave_one_out(log, refit=self.refit)
