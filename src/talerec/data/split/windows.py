"""Time windows of a split, computed from times and counts alone, without a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from talerec.data import DAY, FARTHEST, TimeLike, time_to_microseconds
from talerec.errors import TalerecError

TEST, VALIDATION = "test", "validation"

_MAX_WINDOWS = 1000
EVERY, _ROLLING = "every:", "rolling:"

#: From the time that splits a log to the earlier time that splits the rows before it likewise.
FindEarlierCut = Callable[[int], int]


class NoCasesError(TalerecError):
    """A split without a test case: no user has a row to predict and rows before it."""


def require_held_out(on: str) -> None:
    """Raise TalerecError unless `on`, the held-out rows to use, is "test" or "validation"."""
    if on not in (TEST, VALIDATION):
        raise TalerecError(f"`on` is {on!r}; it takes test or validation", "on")


class TimeWindow(NamedTuple):
    """The test period of a split by time: training rows lie before it, targets in it.

    A target is a user's first row in the period (or each row, see `is_every_row`), which the model
    has to predict from the user's rows before it. A rolling split has several consecutive windows,
    each with its own training rows.
    """

    name: str  # of the split
    when: int  # where it begins, in microseconds
    end: int | None  # None: the end of the log

    @property
    def is_every_row(self) -> bool:
        """Whether each row of the period is a target, and not only each user's first one.

        Then `name`, the split's, is "every:TIME" or "every:TIME,7d".
        """
        return self.name.startswith(EVERY)

    @property
    def words(self) -> str:
        """The beginning of the test period as ISO text, to name the period in results.

        `self.when` is the beginning, in microseconds since 1970.
        """
        return format_time(self.when)


def format_time(when: int) -> str:
    """Return microseconds since 1970 as ISO text, clipped to what NumPy can format."""
    return str(np.datetime64(max(-FARTHEST, min(when, FARTHEST)), "us"))


def time_window(
    cutoff: TimeLike, unit: str, on: str, find_earlier_cut: FindEarlierCut
) -> TimeWindow:
    """Return the test period of a split by time: from a cutoff to the end of the log.

    cutoff, unit : the time, and the log's time unit, which a number below 10^8 has
    on : "test" or "validation"; for validation, the period ends at the cutoff instead
    find_earlier_cut : function from the cutoff to the time at which the validation period begins,
    both in microseconds
    """
    when = time_to_microseconds(cutoff, unit)
    name = f"at:{cutoff if isinstance(cutoff, str) else format_time(when)}"
    if on == TEST:
        return TimeWindow(name, when, None)
    return TimeWindow(name, find_earlier_cut(when), when)


def rolling_windows(
    cutoff: TimeLike, days: float, unit: str, last: int | None, on: str
) -> list[TimeWindow]:
    """Return consecutive windows of `days` days, from a cutoff to the last time of a log.

    A window is the test period of one split: rows before it are for training. `unit` is the log's
    time unit, and `last` its last time in microseconds, None for a log without rows. With `on`
    "validation" there are as many windows, and the last one ends at the cutoff. TalerecError if
    there would be no window, or over 1,000.
    """
    if not days > 0:
        raise TalerecError(f"windows of {days:g} days are impossible: give a number above 0")
    first, width = time_to_microseconds(cutoff, unit), round(days * DAY)
    if width < 1:
        message = f"windows of {days:g} days are shorter than a microsecond: give more days"
        raise TalerecError(message)
    last = first - 1 if last is None else last
    return _build_consecutive_windows(f"{_ROLLING}{cutoff},{days:g}", first, width, last, on)


def every_row_name(cutoff: str, refit_every: str | None) -> str:
    """Return the name of a split of every row from a cutoff on: every:TIME or every:TIME,7d."""
    return f"{EVERY}{cutoff}" + ("" if refit_every is None else f",{refit_every.strip()}")


def every_row_windows(
    name: str,
    when: int,
    refit_every: int | None,
    last: int,
    on: str,
    find_earlier_cut: FindEarlierCut,
) -> list[TimeWindow]:
    """Return the test periods of a split in which each row from a cutoff on is a target.

    name : of the split, for messages and results
    when : the cutoff, in microseconds
    refit_every : microseconds after which the model is refitted, which is the length of a
        period; None: one period, from the cutoff on
    last : the last time of the log, in microseconds
    on : "test", or "validation" for periods that end at the cutoff
    find_earlier_cut : function from the cutoff to the time at which the validation period begins

    TalerecError if there would be over 1,000 periods, or no row lies after the cutoff.
    """
    if refit_every is not None:
        return _build_consecutive_windows(name, when, refit_every, last, on)
    if on == TEST:
        return [TimeWindow(name, when, None)]
    return [TimeWindow(name, find_earlier_cut(when), when)]


def _build_consecutive_windows(
    name: str, first: int, width: int, last: int, on: str
) -> list[TimeWindow]:
    """Return windows of `width` microseconds from time `first` to `last`, the log's last time.

    With `on` "validation" there are as many windows, and the last one ends at `first`. `name` is
    that of the split. TalerecError if there would be no window, or over 1,000.
    """
    count = -(-(last + 1 - first) // width)
    if not 1 <= count <= _MAX_WINDOWS:
        too_many = f"{count:,} windows are more than {_MAX_WINDOWS:,}: make them longer"
        problem = "no row lies after the first window begins" if count < 1 else too_many
        raise TalerecError(f"{name}: {problem}")
    if on == VALIDATION:
        first -= count * width
    starts = range(first, first + count * width, width)
    return [TimeWindow(name, start, start + width) for start in starts]


def earlier_cut_row(before: int, rows: int) -> int:
    """Return which of the rows before a cutoff, in time order, begins the validation window.

    `before` of the log's `rows` rows lie before the cutoff. The row returned (from 0) splits them
    in the ratio in which the cutoff splits all rows; at most half of them are for validation.
    """
    if not before:
        raise NoCasesError("no row lies before the point of the split")
    share = min(1 - before / rows, 0.5)
    return min(int((1 - share) * before), before - 1)


def require_both_sides(before: int, rows: int) -> None:
    """Raise NoCasesError unless rows lie on both sides of a cutoff, which splits a log.

    `before` is the number of rows before it, and `rows` that of all rows of the log.
    """
    if before in (0, rows):
        side = "after" if before else "before"
        raise NoCasesError(f"no row lies {side} the point of the split")


def no_users_error() -> NoCasesError:
    """Return the error for a test period in which no user has a row to predict."""
    return NoCasesError("no user has rows on both sides of the point of the split")


def no_history_error(unit: str = "user") -> NoCasesError:
    """Return the error for a test period of every row without a row that has a history.

    unit: what histories are of, "user" or "session".
    """
    return NoCasesError(f"no row from the point of the split on has an earlier row of its {unit}")


def no_window_error(name: str) -> TalerecError:
    """Return the error for a rolling split, `name`, whose test periods all lack cases.

    A case is a user with rows before the period and in it.
    """
    return TalerecError(f"no window of {name} has a user with rows before it and in it")
