"""From values to places on an axis, and numbers as they are written."""

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


def real(value: Any) -> float | None:
    """A value as a finite number; None where it is missing, not a number or too large for an axis."""
    if value is None or isinstance(value, str):
        return None
    number = float(value)
    return number if abs(number) < _HUGE else None


def written(value: float, decimals: int) -> str:
    """A number with commas between thousands and a true minus sign; zero is never written as -0."""
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "\N{MINUS SIGN}")


def short(value: Any) -> str:
    """A number to read: four significant digits at most, whole numbers in full; a dash for a missing one."""
    number = real(value)
    if number is None:
        return "\N{EN DASH}"
    size = abs(number)
    if size >= 1e12 or 0 < size < 1e-5:
        return f"{number:.{_DIGITS - 1}g}".replace("-", "\N{MINUS SIGN}")
    if number.is_integer():
        return written(number, 0)
    text = written(number, min(max(_DIGITS - 1 - _magnitude(size), 0), _DIGITS + 1))
    return text.rstrip("0").rstrip(".") if "." in text else text


def interval(value: Any, low: Any, high: Any) -> str:
    """A value with its interval, as far as they are known: 3 [1, 7]."""
    alone = real(low) is None and real(high) is None
    return short(value) if alone else f"{short(value)} [{short(low)}, {short(high)}]"


def power(value: float, base: int) -> str:
    """A power of 2 or 10 as people say it: 1/512, 1/2, 4; 0.001, 100, 1e+09."""
    if base == 2 and 2**-20 <= value < 1 and (1 / value).is_integer():
        return f"1/{1 / value:.0f}"
    if 1e-4 <= value < 1e9 or base == 2:
        return short(value)
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Scale:
    """An axis of numbers from `low` to `high`, drawn from `start` to `end`."""

    ticks: tuple[tuple[float, str], ...]
    low: float
    high: float
    start: float
    end: float
    base: int = 0  # of the logarithm; 0: the axis is linear

    def say(self, value: Any) -> str:
        """A value as the axis writes it."""
        number = real(value)
        return power(number, 2) if self.base == 2 and number is not None else short(number)

    def __call__(self, value: Any) -> float | None:
        """The place of a value; None outside the axis, where nothing is drawn."""
        number = real(value)
        if number is None or (self.base and number <= 0):
            return None
        low, high = self._shown(self.low), self._shown(self.high)
        share = (self._shown(number) - low) / (high - low)
        if not -1e-3 < share < 1.001:
            return None
        return self.start + share * (self.end - self.start)

    def _shown(self, value: float) -> float:
        return math.log(value) if self.base else value


@dataclass(frozen=True)
class Names:
    """An axis of categories side by side, each in the middle of a slot of its own."""

    names: tuple[str, ...]
    start: float
    end: float

    @property
    def ticks(self) -> tuple[tuple[str, str], ...]:
        """Each category and its label."""
        return tuple((name, name) for name in self.names)

    @property
    def slot(self) -> float:
        """The width that one category has."""
        return (self.end - self.start) / max(len(self.names), 1)

    def say(self, value: Any) -> str:
        """A value as the axis writes it."""
        return name_of(value)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def __call__(self, value: Any) -> float | None:
        place = self._places.get(name_of(value))
        return None if place is None else self.start + (place + 0.5) * self.slot


def name_of(value: Any) -> str:
    """The category that a value is: text itself, or a number as it is written."""
    return value if isinstance(value, str) else short(value)


def names(values: Iterable[Any], start: float, end: float) -> Names:
    """Categories in the order of their first appearance."""
    return Names(tuple(dict.fromkeys(name_of(value) for value in values)), start, end)


def linear(values: Iterable[Any], start: float, end: float, *, ticks: int = 5) -> Scale:
    """An axis from one round number to another, around all values."""
    low, high = _bounds([number for number in map(real, values) if number is not None])
    step = _step((high - low) / ticks)
    first, last = math.floor(low / step + _SAME), math.ceil(high / step - _SAME)
    places = [place * step for place in range(first, last + 1)]
    labels = _labels(places, step)
    return Scale(tuple(zip(places, labels, strict=True)), places[0], places[-1], start, end)


def logarithmic(values: Iterable[Any], start: float, end: float) -> Scale:
    """An axis with ticks at powers of two if all values are such, else of ten, and between them if the range is narrow."""
    found = [
        number for number in map(real, values) if number is not None and 1e-200 < number < 1e200
    ]
    low, high = min(found, default=1.0), max(found, default=1.0)
    if high < low * 1.05:
        low, high = low / 2, high * 2
    base = 2 if found and all(math.frexp(number)[0] == 0.5 for number in found) else 10
    places = _powers(low, high, base)
    margin = (high / low) ** 0.03
    low, high = low / margin, high * margin
    return Scale(tuple(places), low, high, start, end, base)


def _powers(low: float, high: float, base: int) -> list[tuple[float, str]]:
    first = math.ceil(math.log(low, base) - _SAME)
    last = math.floor(math.log(high, base) + _SAME)
    if last - first >= (2 if base == 10 else 1):
        skip = -(-(last - first + 1) // _POWERS)
        found = [float(base) ** place for place in range(first, last + 1) if place % skip == 0]
        return [(place, power(place, base)) for place in found]
    between = [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5)]
    found = [
        place for place in between if low <= place * (1 + _SAME) and place <= high * (1 + _SAME)
    ]
    if len(found) > 1:
        return [(place, power(place, 10)) for place in found]
    return [tick for tick in linear([low, high], 0, 1).ticks if low <= tick[0] <= high]


def _bounds(found: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest value, moved apart where they are equal."""
    low, high = min(found, default=0.0), max(found, default=1.0)
    size = max(abs(low), abs(high))
    if high - low > max(size * _SAME, 1 / _HUGE):
        return low, high
    room = size * 0.1 if size > 1 / _HUGE else 1.0
    return low - room, high + room


def _magnitude(size: float) -> int:
    return math.floor(math.log10(size)) if size > 0 else 0


def _step(least: float) -> float:
    """The round number next to `least`, or above it."""
    unit = 10.0 ** _magnitude(least)
    return next(unit * step for step in _STEPS if unit * step >= least * (1 - _SAME))


def _labels(places: Sequence[float], step: float) -> list[str]:
    """Labels of ticks, with as many decimals as tell two neighbours apart."""
    size, unit = max(abs(place) for place in places), _magnitude(step * (1 + _SAME))
    half = 0 if math.isclose(step / 10.0**unit % 1, 0, abs_tol=1e-6) else 1
    if step > 1e-6 and size < 1e10:
        return [written(place, max(half - unit, 0)) for place in places]
    digits = _magnitude(size) - unit + half
    return [f"{place + 0.0:.{digits}e}".replace("-", "\N{MINUS SIGN}") for place in places]
