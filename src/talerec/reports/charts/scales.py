"""Axes that map values to coordinates, and number formats for labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_HUGE = 1e300  # beyond it differences overflow; no axis goes there
_SAME = 1e-9  # values closer than this, relative to their size, are one value on an axis
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_DIGITS = 4  # significant digits of a short number
_POWERS = 8  # ticks of a logarithmic axis


def finite_number(value: Any) -> float | None:
    """Return a value as a float; None if it is missing, text, not finite or beyond 1e300."""
    if value is None or isinstance(value, str):
        return None
    number = float(value)
    return number if abs(number) < _HUGE else None


def finite_numbers(values: Iterable[Any]) -> list[float]:
    """Return the values that `finite_number` accepts, as floats."""
    return [number for number in map(finite_number, values) if number is not None]


def format_fixed(value: float, decimals: int) -> str:
    """Return a number with so many decimals, thousands separators and a true minus; never -0."""
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")


def format_short(value: Any) -> str:
    """Return a number as text with at most four significant digits; a dash if it is missing.

    Whole numbers below 1e12 are written in full.
    """
    number = finite_number(value)
    if number is None:
        return "\N{EN DASH}"
    size = abs(number)
    if size >= 1e12 or 0 < size < 1e-5:
        return f"{number:.{_DIGITS - 1}g}".replace("-", "\N{MINUS SIGN}")
    if number.is_integer():
        return format_fixed(number, 0)
    text = format_fixed(number, min(max(_DIGITS - 1 - _magnitude(size), 0), _DIGITS + 1))
    return text.rstrip("0").rstrip(".") if "." in text else text


def common_decimals(values: Iterable[Any]) -> int | None:
    """Return the decimals of numbers in a column: four significant digits of the largest.

    None if the numbers are better formatted one by one: whole numbers, or numbers of which one is
    less than a thousandth of another.
    """
    sizes = [abs(number) for number in finite_numbers(values) if number]
    if all(number.is_integer() for number in sizes):
        return None
    if min(sizes) < max(sizes) / 1000 or max(sizes) >= 1e9:
        return None
    return min(max(_DIGITS - 1 - _magnitude(max(sizes)), 0), _DIGITS + 1)


def format_alike(value: Any, decimals: int | None) -> str:
    """Return a number with so many decimals, or as short text (None); a dash if it is missing."""
    number = finite_number(value)
    if number is None or decimals is None:
        return format_short(value)
    return format_fixed(number, decimals)


def format_interval(value: Any, low: Any, high: Any, decimals: int | None = None) -> str:
    """Return a value as text with its interval, if it has one: "3 [1, 7]".

    decimals: of all three numbers; None for short numbers.
    """
    text = format_alike(value, decimals)
    if not finite_numbers([low, high]):
        return text
    return f"{text} [{format_alike(low, decimals)}, {format_alike(high, decimals)}]"


def format_power(value: float, base: int) -> str:
    """Return a power of `base` 2 or 10 as text: 1/512, 1/2, 4; 0.001, 100, 1e+09."""
    if base == 2 and 2**-20 <= value < 1 and (1 / value).is_integer():
        return f"1/{1 / value:.0f}"
    if 1e-4 <= value < 1e9 or base == 2:
        return format_short(value)
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class NumberAxis:
    """An axis of numbers; calling it maps a value to its coordinate, None outside the axis."""

    ticks: tuple[tuple[float, str], ...]  # (value, label) pairs
    low: float  # the smallest value
    high: float  # the largest value
    start: float  # the coordinate of `low`
    end: float  # the coordinate of `high`
    base: int = 0  # of the logarithm; 0: the axis is linear

    def format(self, value: Any) -> str:
        """Return a value as text, formatted as the labels of the axis are.

        On an axis of powers of two (`base` 2), 0.25 is 1/4.
        """
        number = finite_number(value)
        if self.base == 2 and number is not None:
            return format_power(number, 2)
        return format_short(number)

    def __call__(self, value: Any) -> float | None:
        """Return the coordinate of a value; None outside the axis."""
        number = finite_number(value)
        if number is None or (self.base and number <= 0):
            return None
        low, high = self._shown(self.low), self._shown(self.high)
        share = (self._shown(number) - low) / (high - low)
        if not -1e-3 < share < 1.001:
            return None
        return self.start + share * (self.end - self.start)

    def _shown(self, value: float) -> float:
        """Return what is drawn linearly: the value, or its logarithm on a logarithmic axis."""
        return math.log(value) if self.base else value


@dataclass(frozen=True)
class CategoryAxis:
    """An axis of named categories side by side, drawn from coordinate `start` to `end`.

    Calling it maps a category to the middle of its slot, the room of one category; None if the axis
    does not have it.
    """

    names: tuple[str, ...]
    start: float
    end: float

    @property
    def ticks(self) -> tuple[tuple[str, str], ...]:
        """Return (category, label) pairs, which are equal for this axis."""
        return tuple((name, name) for name in self.names)

    @property
    def slot(self) -> float:
        """Return the width of one category, in coordinates of the drawing.

        The axis runs from `start` to `end`; `names` are its categories.
        """
        return (self.end - self.start) / max(len(self.names), 1)

    def format(self, value: Any) -> str:
        """Format a value as the labels of the axis are formatted."""
        return category_name(value)

    @cached_property
    def _number_by_name(self) -> dict[str, int]:
        """The number of each category, from 0, by its name."""
        return {name: place for place, name in enumerate(self.names)}

    def __call__(self, value: Any) -> float | None:
        place = self._number_by_name.get(category_name(value))
        return None if place is None else self.start + (place + 0.5) * self.slot


def category_name(value: Any) -> str:
    """Return the category of a value: the text itself, or the formatted number."""
    return value if isinstance(value, str) else format_short(value)


def category_axis(values: Iterable[Any], start: float, end: float) -> CategoryAxis:
    """Return an axis of the distinct categories, in order of first appearance."""
    return CategoryAxis(tuple(dict.fromkeys(category_name(value) for value in values)), start, end)


def linear_axis(values: Iterable[Any], start: float, end: float, *, ticks: int = 5) -> NumberAxis:
    """Return a linear axis from one round number to another that covers all values.

    start, end : coordinates of its ends; ticks : about how many steps it has. Missing values are
    ignored.
    """
    low, high = _bounds(finite_numbers(values))
    step = _step((high - low) / ticks)
    first, last = math.floor(low / step + _SAME), math.ceil(high / step - _SAME)
    places = [place * step for place in range(first, last + 1)]
    labels = _labels(places, step)
    return NumberAxis(tuple(zip(places, labels, strict=True)), places[0], places[-1], start, end)


def log_axis(values: Iterable[Any], start: float, end: float) -> NumberAxis:
    """Return a logarithmic axis from coordinate `start` to `end` for all positive values.

    Ticks are at powers of two if all values are powers of two, else of ten; a narrow range has
    ticks between the powers too.
    """
    finite = [number for number in finite_numbers(values) if 1e-200 < number < 1e200]
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    if high < low * 1.05:
        low, high = low / 2, high * 2
    base = 2 if finite and all(math.frexp(number)[0] == 0.5 for number in finite) else 10
    places = _powers(low, high, base)
    margin = (high / low) ** 0.03
    low, high = low / margin, high * margin
    return NumberAxis(tuple(places), low, high, start, end, base)


def _powers(low: float, high: float, base: int) -> list[tuple[float, str]]:
    """Return the ticks of a logarithmic axis from `low` to `high`, as (value, label) pairs.

    At most eight or so powers of `base`; in a narrow range 1, 2 and 5 times powers of ten, and if
    fewer than two of these fit, the ticks of a linear axis.
    """
    first = math.ceil(math.log(low, base) - _SAME)
    last = math.floor(math.log(high, base) + _SAME)
    if last - first >= (2 if base == 10 else 1):
        skip = -(-(last - first + 1) // _POWERS)
        finite = [float(base) ** place for place in range(first, last + 1) if place % skip == 0]
        return [(place, format_power(place, base)) for place in finite]
    between = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5)]
    finite = [m for m in between if low <= m * (1 + _SAME) and m <= high * (1 + _SAME)]
    if len(finite) > 1:
        return [(place, format_power(place, 10)) for place in finite]
    return [tick for tick in linear_axis([low, high], 0, 1).ticks if low <= tick[0] <= high]


def _bounds(finite: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value, moved apart if they are equal.

    Without values, 0 and 1.
    """
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    size = max(abs(low), abs(high))
    if high - low > max(size * _SAME, 1 / _HUGE):
        return low, high
    room = size * 0.1 if size > 1 / _HUGE else 1.0
    return low - room, high + room


def _magnitude(size: float) -> int:
    """Return floor(log10(size)), the exponent of its power of ten; 0 if size is not above 0."""
    return math.floor(math.log10(size)) if size > 0 else 0


def _step(least: float) -> float:
    """Return the smallest round number (1, 2, 2.5, 5 times a power of ten) that is >= `least`."""
    unit = 10.0 ** _magnitude(least)
    return next(unit * step for step in _STEPS if unit * step >= least * (1 - _SAME))


def _labels(places: Sequence[float], step: float) -> list[str]:
    """Return the tick labels of values `step` apart, with enough decimals to tell them apart.

    places : the values of the ticks. Tiny steps and huge values are written in scientific notation.
    """
    size, unit = max(abs(place) for place in places), _magnitude(step * (1 + _SAME))
    extra_digit = 0 if math.isclose(step / 10.0**unit % 1, 0, abs_tol=1e-6) else 1
    if step > 1e-6 and size < 1e10:
        return [format_fixed(place, max(extra_digit - unit, 0)) for place in places]
    digits = _magnitude(size) - unit + extra_digit
    return [f"{place + 0.0:.{digits}e}".replace("-", "\N{MINUS SIGN}") for place in places]
