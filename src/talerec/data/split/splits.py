"""Splits: rows to learn from, and cases whose answers are known and held back.

Whatever is learned, the vocabulary too, comes from the training rows of a split alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from talerec.data import times
from talerec.data.histories import Histories
from talerec.data.log import Log, as_log
from talerec.data.split.windows import (
    TEST,
    VALIDATION,
    Earlier,
    NoCases,
    Window,
    check_sides,
    earlier_row,
    no_askers,
    no_window,
    rolling_windows,
    window_at,
)
from talerec.data.vocabulary import Vocabulary
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime.arrays import Array


@dataclass(frozen=True, eq=False)
class Cases:
    """Questions with their answers: after history c, `target[c]` came next, at `target_time[c]`."""

    user: Array  # positions in the users of the log that was split
    histories: Histories
    target: Array  # positions in the training vocabulary; -1 for an item that is not in it
    target_time: Array

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Rows to learn from, and the cases held back from them.

    Made by `leave_one_out`, `time_split` and `rolling_split`.

    Parameters
    ----------
    name : str
        How the log was split, such as ``leave-one-out``.
    users : Vocabulary
        The users of the log that was split.
    train : Log
        The rows to learn from, with a vocabulary of their own.
    validation, test : Cases or None
        What is held back to choose a model, and to measure it.
    window : str
        Of a split by time: the moment from which on rows are held back.
    refit : bool
        Whether the validation rows are among the training rows.
    without : int
        Of a split with a target event: how many users have no such row after another one.

    Examples
    --------
    >>> import talerec as tr
    >>> split = tr.leave_one_out(tr.synthetic_log(2000))
    >>> split
    Split(leave-one-out, 1,694 training rows, 153 validation cases, 153 test cases)
    """

    name: str
    users: Vocabulary
    train: Log
    validation: Cases | None
    test: Cases | None
    window: str = ""
    refit: bool = False
    without: int = 0

    def __repr__(self) -> str:
        held = [(self.validation, VALIDATION), (self.test, TEST)]
        shown = [f"{len(cases):,} {on} cases" for cases, on in held if cases is not None]
        return f"Split({', '.join([self.name, f'{self.train.rows:,} training rows', *shown])})"

    def cases(self, on: str) -> Cases:
        """The cases held back as `test` or as `validation`; an error where there are none."""
        found = {TEST: self.test, VALIDATION: self.validation}
        if on not in found:
            raise TalerecError(f"on is {on!r}; it takes test or validation")
        cases = found[on]
        if cases is None:
            raise TalerecError(f"a split {self.name} has no {on} rows")
        return cases


def leave_one_out(log: Log, *, refit: bool = False, target: str | None = None) -> Split:
    """Hold back each user's last row as the test, and the one before it as the validation.

    A user with fewer than three rows does not become a case: all of these rows are for training.
    With a target, the test is each user's last row of that event, the validation the one before it; both are asked
    after all rows before them, and rows from the first of them on are in nobody's training.

    Parameters
    ----------
    log : Log
        The rows to split.
    refit : bool
        Whether the validation rows are for training too, as they would be in production.
    target : str, optional
        The event that is to be foretold, such as ``"buy"``.

    Returns
    -------
    Split

    Raises
    ------
    InvalidLogError
        If no user has three rows.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.leave_one_out(tr.synthetic_log(2000))
    Split(leave-one-out, 1,694 training rows, 153 validation cases, 153 test cases)
    """
    log = as_log(log)
    if target is not None:
        return _leave_target_out(log, refit, target)
    count = np.diff(log.ptr)
    askers = np.flatnonzero(count >= 3)
    if not askers.size:
        raise InvalidLogError(
            "no user has three rows, so leave-one-out has no case; use time_split (--split at:TIME)"
        )
    last = log.ptr[askers + 1] - 1
    train = np.ones(log.rows, bool)
    train[last] = False
    if not refit:
        train[last - 1] = False
    log = log.evenly_weighed(train)
    learned, items = _learned(log, train)
    validation = None if refit else cases_of(log, items, askers, last - 1)
    test = cases_of(log, items, askers, last)
    return Split("leave-one-out", log.users, learned, validation, test, refit=refit)


def _leave_target_out(log: Log, refit: bool, target: str) -> Split:
    """See `leave_one_out`: the questions are rows of one event that have a row before them."""
    if log.event is None or target not in log.event_names:
        known = ", ".join(log.event_names) or "no events (--event COLUMN names them)"
        raise TalerecError(f"no row is a {target!r}: the log has {known}")
    user = log.user_codes()
    there = log.event == log.event_names.index(target)
    rows = np.flatnonzero(there & (np.arange(log.rows) > log.ptr[user]))
    last, before = np.full((2, len(log.users)), -1, np.int64)
    last[user[rows]] = rows  # of several, the last one stays
    earlier = rows[rows < last[user[rows]]]
    before[user[earlier]] = earlier
    if not rows.size:
        raise NoCases(f"no user has a {target!r} after another row")
    first = last if refit else np.where(before >= 0, before, last)
    train = np.arange(log.rows) < np.where(first >= 0, first, log.ptr[1:])[user]
    log = log.evenly_weighed(train)
    learned, items = _learned(log, train)
    tested, validated = np.flatnonzero(last >= 0), np.flatnonzero(before >= 0)
    test = cases_of(log, items, tested, last[tested])
    validation = None if refit else cases_of(log, items, validated, before[validated])
    name, without = f"leave-one-out ({target})", len(log.users) - len(tested)
    return Split(name, log.users, learned, validation, test, refit=refit, without=without)


def time_split(log: Log, moment: times.Moment, *, on: str = TEST) -> Split:
    """Train on the rows before a moment; each user's first row from then on is the test.

    Users with no row before the moment, or none after it, do not become cases.

    Parameters
    ----------
    log : Log
        The rows to split.
    moment : date, datetime, str or number
        A date, a datetime, a text such as ``2019-10-01``, or a number: of 10^8 and more, its size tells
        whether it counts s, ms, us or ns; a smaller one counts what the log's times do.
    on : {"test", "validation"}
        With ``"validation"``, the rows before the moment are split once more, so that the same share
        of them comes last (half at most); rows from the moment on play no part.

    Returns
    -------
    Split

    Raises
    ------
    TalerecError
        If `moment` is not a time, or no user has rows on both sides of it.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.time_split(tr.synthetic_log(2000), "2024-07-01")
    Split(at:2024-07-01, 1,487 training rows, 14 test cases)
    """
    log = as_log(log)
    if log.unit == "none":
        raise InvalidLogError("the log has no times: it can be split by leave-one-out alone")
    return _between(log, window_at(moment, log.unit, on, lambda when: _earlier(log, when)), on)


def rolling_split(log: Log, moment: times.Moment, days: float, *, on: str = TEST) -> list[Split]:
    """Split a log again and again, by windows of time from a moment to the end of the log.

    Each window is a split: rows before it are for training, each user's first row in it is the test.
    A window without a case is left out.

    Parameters
    ----------
    log : Log
        The rows to split.
    moment : date, datetime, str or number
        Where the first window begins, as for `time_split`.
    days : float
        How long a window is.
    on : {"test", "validation"}
        With ``"validation"`` there are as many windows, and the last one ends at the moment.

    Returns
    -------
    list of Split

    Raises
    ------
    TalerecError
        If there is no window with a case, or `days` gives none or too many.

    Examples
    --------
    >>> import talerec as tr
    >>> splits = tr.rolling_split(tr.synthetic_log(2000), "2024-07-01", days=60)
    >>> [split.train.rows for split in splits]
    [1487, 1645, 1853]
    """
    last = int(log.time.max()) if log.rows else None
    found = []
    for window in rolling_windows(moment, days, log.unit, last, on):
        try:
            found.append(_between(log, window, on))
        except NoCases:
            continue
    if not found:
        raise no_window(f"rolling:{moment},{days:g}")
    return found


def _earlier(log: Log, when: int) -> int:
    """The moment that splits the rows before `when` as `when` splits all of them."""
    before = np.sort(log.time[log.time < when])
    return int(before[earlier_row(len(before), log.rows)])


def _between(log: Log, window: Window, on: str) -> Split:
    """Train on the rows before a window; the cases are users' first rows in it."""
    train = log.time < window.when
    check_sides(int(np.count_nonzero(train)), log.rows)
    askers, target = askers_of(log, window)
    if not askers.size:
        raise no_askers()
    log = log.evenly_weighed(train)
    learned, items = _learned(log, train)
    cases = cases_of(log, items, askers, target)
    test, validation = (cases, None) if on == TEST else (None, cases)
    return Split(window.name, log.users, learned, validation, test, window=window.words)


def askers_of(log: Log, window: Window) -> tuple[Array, Array]:
    """The users who have rows before a window and whose next row lies in it, and that row."""
    before = np.concatenate([[0], np.cumsum(log.time < window.when)])[log.ptr]
    target = log.ptr[:-1] + np.diff(before)
    asks = (target > log.ptr[:-1]) & (target < log.ptr[1:])
    if window.end is not None:
        asks[asks] = log.time[target[asks]] < window.end
    askers = np.flatnonzero(asks)
    return askers, target[askers]


def _learned(log: Log, train: Array) -> tuple[Log, Array]:
    """The training rows with their own vocabulary, and every row's item as a position in it (or -1)."""
    learned = log.keep(train).compact()
    renumber = np.full(len(log.items), -1, np.int32)
    renumber[np.unique(log.item[train])] = np.arange(len(learned.items), dtype=np.int32)
    return learned, renumber[log.item]


def cases_of(log: Log, items: Array, askers: Array, target: Array) -> Cases:
    """A case for each of the users `askers`: its rows before row `target`, asked when that row happened."""
    when = log.time[target]
    rows = (log.ptr[askers], target, items, log.time)
    histories = Histories(*rows, now=when, weight=log.weight)
    return Cases(askers, histories, items[target], when)


# -- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How to split, as the command line says it: leave-one-out, at:TIME or rolling:TIME,DAYS."""

    text: str = "leave-one-out"
    refit: bool = False
    target: str | None = None

    def __post_init__(self) -> None:
        kind, _, rest = self.text.partition(":")
        if self.target is not None and self.text != "leave-one-out":
            raise TalerecError("--target goes with --split leave-one-out")
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
        """An error unless this plan holds back rows of the kind `on`."""
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
            yield leave_one_out(log, refit=self.refit, target=self.target)

    @property
    def is_by_time(self) -> bool:
        """Does a moment split the log, whatever its users have?"""
        return self.text != "leave-one-out"

    def windows(self, on: str, unit: str, last: int, earlier: Earlier) -> list[Window]:
        """The windows of a split by time, of a log whose times were read as `unit` and whose last one is known."""
        self.check(on)
        if self.text.startswith("rolling:"):
            return rolling_windows(*self._window(), unit, last, on)
        return [window_at(self.text.partition(":")[2], unit, on, earlier)]
