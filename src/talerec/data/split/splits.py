"""Splits of a log: training rows, and held-out cases whose next item is known.

Whatever a model learns, its vocabulary too, comes from the training rows of a split alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from talerec.data import Log, TimeLike, Vocabulary, as_log, name_history_unit
from talerec.data.split import windows
from talerec.data.split.cases import Cases, build_cases, select_training_rows
from talerec.data.split.windows import TEST, VALIDATION, NoCasesError, TimeWindow
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Training rows and the test cases held out from them.

    A case is a user's history and the item that came next. Splits are returned by `leave_one_out`,
    `time_split`, `rolling_split` and `every_row_split`.

    Parameters
    ----------
    name : str
        How the log was split, such as ``leave-one-out``.
    users : Vocabulary
        The users of the log that was split.
    train : Log
        The training rows, with their own vocabulary.
    validation, test : Cases or None
        The cases held out to choose a model, and to measure it.
    window : str
        For a split by time: the cutoff from which rows are held out.
    refit : bool
        Whether the validation rows are among the training rows.
    without : int
        For a split with a target event: how many users have no such row after another one.
    first_rows : Cases or None
        For `every_row_split`: cases without a history, the first rows of new users.
    owners : polars.Series, optional
        If the users are sessions: the id of each session's user.

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
    first_rows: Cases | None = None
    owners: pl.Series | None = None

    @property
    def user_ids(self) -> pl.Series:
        """The id of each user, or of each session's user: the unit of statistics."""
        return self.users.ids if self.owners is None else self.owners

    def __repr__(self) -> str:
        held_out = [(self.validation, VALIDATION), (self.test, TEST)]
        shown = [f"{len(cases):,} {on} cases" for cases, on in held_out if cases is not None]
        return f"Split({', '.join([self.name, f'{self.train.rows:,} training rows', *shown])})"

    def cases(self, on: str, *, catalogue: bool = False) -> Cases:
        """Return the cases held out as `on`: "test" or "validation"; an error if there are none.

        A case is a user's history and the item that came next. `self.name` is how the log was
        split, such as "leave-one-out". With `catalogue`, items that only the item table has are in
        the vocabulary (`Cases.with_catalogue`); without, they are unknown.
        """
        windows.require_held_out(on)
        cases = self.test if on == TEST else self.validation
        if cases is None:
            raise TalerecError(f"a split {self.name} has no {on} rows")
        return cases.with_catalogue() if catalogue else cases


def leave_one_out(log: Log, *, refit: bool = False, target: str | None = None) -> Split:
    """Hold out each user's last row as the test, and the row before it as the validation.

    A user with fewer than three rows does not become a case: all these rows are for training. With
    a target event, the test is each user's last row of that event, and the validation the previous
    one; the history of each case has all rows before it, and rows from the first of the two on are
    not used for training.

    Parameters
    ----------
    log : Log
        The rows to split.
    refit : bool
        Whether the validation rows are for training too, as they would be in production.
    target : str, optional
        The event to predict, such as ``"buy"``.

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
    last = np.where(np.diff(log.ptr) >= 3, log.ptr[1:] - 1, -1)
    if (last < 0).all():
        unit = name_history_unit(log)
        message = f"no {unit} has three rows, so leave-one-out has no case; use `time_split`"
        raise InvalidLogError(message, "time_split")
    return hold_out(log, "leave-one-out", last, last - (last >= 0), refit)


def _leave_target_out(log: Log, refit: bool, target: str) -> Split:
    """Hold out each user's last two rows of the event `target` that have a row before them.

    The last is the test, the previous one the validation; with `refit`, validation rows are
    training rows too. In the log, `event` has each row's position in `event_names`, and ptr[u] is
    user u's first row. TalerecError if the log has no such event, NoCasesError if no user has such
    a row. `without` of the split counts users without one.
    """
    if log.event is None or target not in log.event_names:
        events = ", ".join(log.event_names) or "no events (`event` names their column)"
        raise TalerecError(f"no row is a {target!r}: the log has {events}", "event")
    user = log.user_codes()
    is_target = log.event == log.event_names.index(target)
    rows = np.flatnonzero(is_target & (np.arange(log.rows) > log.ptr[user]))
    last, before = np.full((2, len(log.users)), -1, np.int64)
    last[user[rows]] = rows  # the last assignment wins
    earlier = rows[rows < last[user[rows]]]
    before[user[earlier]] = earlier
    if not rows.size:
        raise NoCasesError(f"no user has a {target!r} after another row")
    split = hold_out(log, f"leave-one-out ({target})", last, before, refit)
    return replace(split, without=int((last < 0).sum()))


def hold_out(log: Log, name: str, last: Array, before: Array, refit: bool) -> Split:
    """Return the split with each user's row `last` as test and row `before` as validation.

    Both arrays have a row number per user, -1 for none. User u has rows log.ptr[u]..log.ptr[u + 1].
    Rows from a user's first held-out row on are not used for training; with `refit`, all rows
    before the test row are. Weights are divided by their mean over training rows. `name` is the
    split's name.
    """
    first = last if refit else np.where(before >= 0, before, last)
    ends = np.where(first >= 0, first, log.ptr[1:])
    sizes = np.diff(np.column_stack([log.ptr[:-1], ends, log.ptr[1:]]))
    train = np.repeat(np.tile([True, False], len(ends)), sizes.ravel())
    log = log.normalize_weights(train)
    training, items = select_training_rows(log, train)
    tested, validated = np.flatnonzero(last >= 0), np.flatnonzero(before >= 0)
    test = build_cases(log, items, tested, last[tested])
    validation = None if refit else build_cases(log, items, validated, before[validated])
    return Split(name, log.users, training, validation, test, refit=refit, owners=log.owners)


def time_split(log: Log, moment: TimeLike, *, on: str = TEST) -> Split:
    """Train on the rows before a cutoff; each user's first row from then on is the test.

    Users without rows on both sides of the cutoff are excluded.

    Parameters
    ----------
    log : Log
        The rows to split.
    moment : date, datetime, str or number
        The cutoff: a date, a datetime, a text such as ``2019-10-01``, or a number. From 10^8 on,
        the size of a number shows its unit (s, ms, us or ns); a smaller one has the log's unit.
    on : {"test", "validation"}
        With ``"validation"``, the rows before the cutoff are split once more in the same ratio (at
        most half for validation); rows from the cutoff on are not used.

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
    window = windows.time_window(moment, log.unit, on, lambda when: find_earlier_cut(log, when))
    return _split_at_window(log, window, on)


def rolling_split(log: Log, moment: TimeLike, days: float, *, on: str = TEST) -> list[Split]:
    """Split a log by consecutive time windows, from a cutoff to the end of the log.

    Each window is a split: rows before it are for training, each user's first row in it is the
    test. Windows without a case are omitted.

    Parameters
    ----------
    log : Log
        The rows to split.
    moment : date, datetime, str or number
        Where the first window begins, as for `time_split`.
    days : float
        The length of a window.
    on : {"test", "validation"}
        With ``"validation"`` there are as many windows, and the last one ends at the cutoff.

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
    periods = windows.rolling_windows(moment, days, log.unit, last, on)
    return split_at_windows(periods, lambda window: _split_at_window(log, window, on))


def split_at_windows(
    periods: Sequence[TimeWindow], split_at: Callable[[TimeWindow], Split]
) -> list[Split]:
    """Return the split at each of several test periods, without those that have no case.

    A case is a held-out row with a history. `split_at` returns the split at a period, or raises
    NoCasesError. TalerecError if no period has a case.
    """
    splits = []
    for window in periods:
        try:
            splits.append(split_at(window))
        except NoCasesError:
            continue
    if not splits:
        raise windows.no_window_error(periods[0].name)
    return splits


def find_earlier_cut(log: Log, when: int) -> int:
    """Return the time (microseconds) that splits the rows before `when` as it splits all rows.

    At most half of the rows before `when` lie after the time returned; they are for validation.
    """
    before = np.sort(log.time[log.time < when])
    return int(before[windows.earlier_cut_row(len(before), log.rows)])


def _split_at_window(log: Log, window: TimeWindow, on: str) -> Split:
    """Return the split that trains on rows before a window, and holds out first rows in it.

    A window is a test period, from `window.when` to `window.end` (None: the end of the log). Each
    user's first row in it is a case of `on` (test or validation). NoCasesError if no user has rows
    before the window and in it.
    """
    train = log.time < window.when
    windows.require_both_sides(int(np.count_nonzero(train)), log.rows)
    users, target = find_targets(log, window)
    if not users.size:
        raise windows.no_users_error()
    log = log.normalize_weights(train)
    training, items = select_training_rows(log, train)
    cases = build_cases(log, items, users, target)
    test, validation = (cases, None) if on == TEST else (None, cases)
    return Split(
        window.name, log.users, training, validation, test, window=window.words, owners=log.owners
    )


def find_targets(log: Log, window: TimeWindow) -> tuple[Array, Array]:
    """Return the users whose first row from a window's start on lies in it, and these rows.

    A window is a test period, from `window.when` to `window.end` (None: the end of the log), in
    microseconds. Users are positions, in ascending order, and have at least one row before it; user
    u has rows log.ptr[u]..log.ptr[u + 1], in time order. Both arrays have an entry per user.
    """
    before = np.concatenate([[0], np.cumsum(log.time < window.when)])[log.ptr]
    target = log.ptr[:-1] + np.diff(before)
    is_case = (target > log.ptr[:-1]) & (target < log.ptr[1:])
    if window.end is not None:
        is_case[is_case] = log.time[target[is_case]] < window.end
    users = np.flatnonzero(is_case)
    return users, target[users]
