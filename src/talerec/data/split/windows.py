"""Windows of time: where a split by time cuts a log, said of moments and counts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from talerec.data import times
from talerec.errors import TalerecError

TEST, VALIDATION = "test", "validation"

_MOST_WINDOWS = 1000
_ROLLING = "rolling:"

Earlier = Callable[[int], int]  # the moment that splits rows before another as it splits all


class NoCases(TalerecError):
    """A split without a single case."""


class Window(NamedTuple):
    """What a split by time holds back: rows before `when` are for training, cases lie from then on, and before `end`."""

    name: str  # of the split
    when: int  # microseconds
    end: int | None

    @property
    def is_rolling(self) -> bool:
        """Is it one of several that may follow each other?"""
        return self.name.startswith(_ROLLING)

    @property
    def words(self) -> str:
        """The moment from which on rows are held back."""
        return in_words(self.when)


def in_words(when: int) -> str:
    """A moment as text, cut to what NumPy can write."""
    return str(np.datetime64(max(-times.FARTHEST, min(when, times.FARTHEST)), "us"))


def window_at(moment: times.Moment, unit: str, on: str, earlier: Earlier) -> Window:
    """The window from a moment to the end of the log; that of validation lies before the moment."""
    when = times.microseconds(moment, unit)
    name = f"at:{moment if isinstance(moment, str) else in_words(when)}"
    return Window(name, when, None) if on == TEST else Window(name, earlier(when), when)


def rolling_windows(
    moment: times.Moment, days: float, unit: str, last: int | None, on: str
) -> list[Window]:
    """Windows from a moment to the last time of a log (None: it has no rows); those of validation end at the moment."""
    if not days > 0:
        raise TalerecError(f"windows of {days:g} days cannot be: give a number above 0")
    first, width = times.microseconds(moment, unit), round(days * times.DAY)
    if width < 1:
        raise TalerecError(
            f"windows of {days:g} days are shorter than a microsecond: give more days"
        )
    last = first - 1 if last is None else last
    count = -(-(last + 1 - first) // width)
    if not 1 <= count <= _MOST_WINDOWS:
        too_many = f"{count:,} windows are more than {_MOST_WINDOWS:,}: give more days"
        problem = "no row lies after the first window begins" if count < 1 else too_many
        raise TalerecError(f"rolling from {moment} by {days:g} days: {problem}")
    if on == VALIDATION:
        first -= count * width
    starts = range(first, first + count * width, width)
    return [Window(f"{_ROLLING}{moment},{days:g}", start, start + width) for start in starts]


def earlier_row(before: int, rows: int) -> int:
    """Of so many rows before a moment, in the order of time: the one that splits them as the moment splits all."""
    if not before:
        raise NoCases("no row lies before the point of the split")
    share = min(1 - before / rows, 0.5)
    return min(int((1 - share) * before), before - 1)


# -- windows without cases -------------------------------------------------------------------------


def check_sides(before: int, rows: int) -> None:
    """Refuse a moment that has all rows on one side."""
    if before in (0, rows):
        side = "after" if before else "before"
        raise NoCases(f"no row lies {side} the point of the split")


def no_askers() -> NoCases:
    """The error of a window without a case."""
    return NoCases("no user has rows on both sides of the point of the split")


def no_window(name: str) -> TalerecError:
    """The error of rolling windows none of which has a case."""
    return TalerecError(f"no window of {name} has a user with rows before it and in it")
