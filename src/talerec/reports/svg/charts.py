"""Charts as SVG text that stands in a page: no script, no colour of its own, nothing fetched.

Colours and fonts are classes that `page.css` gives a meaning in light, in dark and on paper. Each
series has a colour, a marker and a dash of its own, so that it is known without the colour too.
What is missing (None, not a number) leaves a gap.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from talerec.reports.markup import Html, join, tag
from talerec.reports.svg import drawing
from talerec.reports.svg.drawing import EDGE, LINE, SMALL, WIDTH, Key, Point
from talerec.reports.svg.scales import (
    Names,
    Scale,
    linear,
    logarithmic,
    name_of,
    names,
    real,
    short,
)

Write = Callable[[float], str]

_PLOT = 250  # height of what the axes enclose
_ROW = 27  # height of a row of `dots` and `stacked`
_NAMES = 240  # the most that the names of rows take
_LEAST = 220  # the least that names leave to the plot
_ONE_BY_ONE = 400  # points of a scatter with a marker each; more are specks without tooltips
_SPOKEN = 40  # values of a series that its description lists


@dataclass(frozen=True)
class Series:
    """Values under one name: y at x, and where known the interval from low to high around it."""

    name: str
    x: Collection[Any]
    y: Collection[Any]
    low: Collection[Any] | None = None
    high: Collection[Any] | None = None

    def rows(self) -> list[tuple[Any, Any, Any, Any]]:
        nothing = [None] * len(self.x)
        low, high = (nothing if side is None else side for side in (self.low, self.high))
        return list(zip(self.x, self.y, low, high, strict=True))


@dataclass(frozen=True)
class Dot:
    """A row of `dots`: a value with its interval, and beside it somebody else's figure."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    other: float | None = None


# -- charts over two axes --------------------------------------------------------------------------


def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    mark_x: float | str | None = None,
    mark_label: str = "",
) -> Html:
    """Lines with a marker at each value and a band over the intervals; `mark_x` is a line across."""
    keys = [drawing.line_key(one.name, style) for style, one in enumerate(series)]
    top, head = drawing.head(title, keys, y_label)
    y = linear(_heights(series), top + _PLOT, top)
    xs = [x for one in series for x in one.x] + ([] if mark_x is None else [mark_x])
    x = _x_axis(xs, drawing.margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    marked = drawing.upright(x, y, mark_x, mark_label)
    drawn = [*_drawn(series, x, y), _nothing(series, x, y)]
    return drawing.svg(title, end, _told(series), head, axes, marked, *drawn)


def scatter(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    bins: int | None = None,
) -> Html:
    """A point for each value; with `bins`, a line through the medians of that many equal parts of
    the x axis and a band over their middle halves."""
    keys = [
        drawing.line_key(one.name, s) if bins else Key(one.name, drawing.marker(s))
        for s, one in enumerate(series)
    ]
    ys = _ys(series)
    top, head = drawing.head(title, keys, y_label + _left_out(ys, log_y))
    y = (logarithmic if log_y else linear)(ys, top + _PLOT, top)
    xs = [x for one in series for x in one.x]
    x = _x_axis(xs, drawing.margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    few = not bins and len(xs) <= _ONE_BY_ONE
    drawn: list[Html | None] = [
        _marks(_points(one, x, y), s) if few else _specks(one, s, x, y)
        for s, one in enumerate(series)
    ]
    if bins:
        drawn += _drawn([_binned(one, x, y, bins) for one in series], x, y)
    drawn.append(_nothing(series, x, y))
    return drawing.svg(title, end, _told(series), head, axes, *drawn)


def bars(
    groups: Sequence[str],
    series: Sequence[Series],
    *,
    title: str,
    y_label: str,
    write: Write = short,
) -> Html:
    """Bars side by side for each group, the value at their ends; x says which groups a series has."""
    keys = [drawing.box_key(one.name, style) for style, one in enumerate(series)]
    top, head = drawing.head(title, keys, y_label)
    y = linear([0.0, *_heights(series)], top + _PLOT, top)
    x = names(groups, drawing.margin(y), WIDTH - EDGE)
    step = min(x.slot * 0.84 / max(len(series), 1), 72.0)
    texts = [write(number) for number in map(real, _ys(series)) if number is not None]
    longest = max((drawing.wide(text, SMALL) for text in texts), default=0.0)
    room = LINE if longest <= step else longest + 8
    y = replace(y, start=y.start + room, end=y.end + room)
    end, axes = _axes(x, y, "", bottom=y.start + (room if y.low < 0 else 0))
    drawn = []
    for style, one in enumerate(series):
        shift = (style - (len(series) - 1) / 2) * step
        for point, value in zip(_points(one, x, y, write), one.y, strict=True):
            if point.shown:
                moved = point._replace(x=(point.x or 0.0) + shift)
                text = write(value) if step > SMALL else ""
                drawn.append(
                    drawing.bar(moved, style, y(0.0), step * 0.92, text, flat=longest <= step)
                )
    drawn.append(_nothing(series, x, y))
    return drawing.svg(title, end, _told(series), head, axes, *drawn)


def _x_axis(xs: Iterable[Any], left: float, log: bool) -> Scale | Names:
    """Categories where a value is a word, else numbers."""
    known = [x for x in xs if isinstance(x, str) or real(x) is not None]
    if any(isinstance(x, str) for x in known):
        return names(known, left, WIDTH - EDGE)
    scale = (logarithmic if log else linear)(known, left, WIDTH - EDGE)
    half = max((drawing.wide(label) / 2 for _, label in scale.ticks), default=0.0)
    return replace(scale, end=WIDTH - max(half, EDGE))


def _axes(
    x: Scale | Names, y: Scale, x_label: str, bottom: float | None = None
) -> tuple[float, Html]:
    under = y.start if bottom is None else bottom
    end, labels = drawing.below(x, y.end, under, x_label)
    return end, join(labels, drawing.across(y, x.start, x.end))


def _left_out(values: Iterable[Any], log: bool) -> str:
    """What a logarithmic axis cannot show is said."""
    count = (
        sum((number := real(value)) is not None and number <= 0 for value in values) if log else 0
    )
    return f" (not shown: {count:,} at or below 0)" if count else ""


def _ys(series: Iterable[Series]) -> list[Any]:
    return [value for one in series for value in one.y]


def _heights(series: Iterable[Series]) -> list[Any]:
    return [value for one in series for _, *values in one.rows() for value in values]


def _nothing(series: Iterable[Series], x: Scale | Names, y: Scale) -> Html | None:
    if any(real(value) is not None for value in _ys(series)):
        return None
    return drawing.nothing((x.start + x.end) / 2, 0.55 * y.start + 0.45 * y.end)


def _points(one: Series, x: Scale | Names, y: Scale, write: Write = short) -> list[Point]:
    return [
        Point(
            f"{one.name}, {x.say(a)}: {_interval(b, low, high, write)}",
            x(a),
            y(b),
            y(low),
            y(high),
        )
        for a, b, low, high in one.rows()
    ]


def _drawn(series: Sequence[Series], x: Scale | Names, y: Scale) -> list[Html | None]:
    """Bands under all lines, lines under all markers."""
    points = [
        sorted((p for p in _points(one, x, y) if p.x is not None), key=lambda p: p.x or 0.0)
        for one in series
    ]
    bands = [drawing.band(run, style) for style, run in enumerate(points)]
    strokes = [drawing.stroke(run, style) for style, run in enumerate(points)]
    return [*bands, *strokes, *(_marks(run, style) for style, run in enumerate(points))]


def _marks(points: Iterable[Point], style: int) -> Html:
    return join(*(drawing.mark(style, (p.x, p.y), p.tip) for p in points))


def _specks(one: Series, style: int, x: Scale | Names, y: Scale) -> Html:
    places = [(x(a), y(b)) for a, b, *_ in one.rows()]
    dots = [
        f"M{drawing.at(a)} {drawing.at(b)}h0" for a, b in places if a is not None and b is not None
    ]
    return tag("path", d="".join(dots), class_=f"specks {drawing.look(style)}")


def _binned(one: Series, x: Scale | Names, y: Scale, bins: int) -> Series:
    """Medians and quartiles of y, and the median of x, in equal parts of the axis."""
    parts: dict[int, list[tuple[float, float]]] = {}
    for a, b, *_ in one.rows():
        place, number = x(a), real(a)
        if place is not None and number is not None and y(b) is not None:
            share = (place - x.start) / (x.end - x.start)
            parts.setdefault(min(int(share * bins), bins - 1), []).append((number, float(b)))
    held = [list(zip(*parts[part], strict=True)) for part in sorted(parts)]
    quartiles = [
        statistics.quantiles(b, n=4, method="inclusive") if len(b) > 1 else [*b] * 3
        for _, b in held
    ]
    low, middle, high = zip(*quartiles, strict=True) if held else ((), (), ())
    return Series(one.name, [statistics.median(a) for a, _ in held], middle, low, high)


# -- charts by rows --------------------------------------------------------------------------------


def dots(
    rows: Sequence[Dot],
    *,
    title: str,
    x_label: str,
    value: str = "",
    other: str = "",
    mark_x: float | None = None,
    write: Write = short,
) -> Html:
    """A row for each name with its value, its interval and both in words. `value` and `other` say in
    the legend whose figures they are; `mark_x` is a line across, zero where the values lie around it."""
    keys = [
        Key(name, drawing.marker(style, hollow=style > 0))
        for style, name in enumerate((value, other))
        if name
    ]
    top, head = drawing.head(title, keys, "")
    told = [_interval(row.value, row.low, row.high, write) for row in rows]
    left, right = _between([row.name for row in rows], told)
    found = [number for row in rows for number in (row.value, row.low, row.high, row.other)]
    x = linear([*found, mark_x], left, right, ticks=_few(left, right))
    bottom, (end, labels) = _under(x, top, rows, x_label)
    line = 0.0 if mark_x is None and x.low < 0 < x.high else mark_x
    parts = [labels, drawing.segment("zero", (x(line), top), (x(line), bottom))]
    for row, text, y in zip(rows, told, _middles(top, rows), strict=True):
        theirs = f"{row.name}, {other or 'other'}: {_interval(row.other, None, None, write)}"
        parts += [
            _row_name(row.name, left, y),
            _level(x, row, y),
            drawing.mark(1, (x(row.other), y), theirs, hollow=True),
            drawing.mark(0, (x(row.value), y), f"{row.name}: {text}"),
            drawing.words(text, WIDTH, y + 4.5, "value", anchor="end"),
        ]
    spoken = "; ".join(f"{row.name}: {text}" for row, text in zip(rows, told, strict=True))
    return drawing.svg(title, end, spoken, head, *parts)


def stacked(
    rows: Mapping[str, Mapping[str, float | None]],
    *,
    title: str,
    x_label: str,
    write: Write = short,
) -> Html:
    """One bar for each row, cut into its parts (the time of each stage, say), with the sum at its end."""
    held = {
        name: {part: number for part, value in parts.items() if (number := real(value) or 0.0) > 0}
        for name, parts in rows.items()
    }
    styles = {
        part: style for style, part in enumerate(dict.fromkeys(p for r in rows.values() for p in r))
    }
    top, head = drawing.head(title, [drawing.box_key(*style) for style in styles.items()], "")
    sums = [sum(parts.values()) for parts in held.values()]
    left, right = _between(list(held), [write(total) for total in sums])
    x = linear([0.0, *sums], left, right, ticks=_few(left, right))
    _, (end, labels) = _under(x, top, held, x_label)
    drawn = [labels]
    for (name, parts), total, y in zip(held.items(), sums, _middles(top, held), strict=True):
        drawn += [_row_name(name, left, y), *_pieces(name, parts, styles, x, y, write)]
        drawn.append(drawing.words(write(total), WIDTH, y + 4.5, "value", anchor="end"))
    spoken = "; ".join(
        f"{name}: " + ", ".join(f"{part} {write(v)}" for part, v in parts.items())
        for name, parts in held.items()
    )
    return drawing.svg(title, end, spoken, head, *drawn)


def _between(row_names: Sequence[str], values: Sequence[str]) -> tuple[float, float]:
    """The room for the plot, between names at the left and values at the right; names give way."""
    right = WIDTH - max((drawing.wide(text, SMALL) for text in values), default=0.0) - 26
    right = max(right, WIDTH / 2)
    longest = max(map(drawing.wide, row_names), default=0.0)
    return min(longest, _NAMES, right - _LEAST) + 22, right


def _few(left: float, right: float) -> int:
    """As many ticks as have room for a label each."""
    return max(int((right - left) / 75), 2)


def _under(
    x: Scale, top: float, rows: Collection[Any], label: str
) -> tuple[float, tuple[float, Html]]:
    """Where the rows end, and the axis under them."""
    bottom = top + _ROW * max(len(rows), 1)
    end, axis = drawing.below(x, top, bottom, label)
    empty = None if rows else drawing.nothing((x.start + x.end) / 2, bottom - 9)
    return bottom, (end, join(axis, empty))


def _middles(top: float, rows: Collection[Any]) -> list[float]:
    return [top + (place + 0.5) * _ROW for place in range(len(rows))]


def _row_name(name: str, left: float, y: float) -> Html:
    return drawing.words(
        drawing.cut(name, left - 22), left - 14, y + 4.5, "name", anchor="end", tip=name
    )


def _level(x: Scale, row: Dot, y: float) -> Html | None:
    """An interval that lies, with caps."""
    ends = [x(row.value if side is None else side) for side in (row.low, row.high)]
    if ends[0] == ends[1]:
        return None
    caps = [drawing.segment("whisker s1", (end, y - 4), (end, y + 4)) for end in ends]
    return join(drawing.segment("whisker s1", (ends[0], y), (ends[1], y)), *caps)


def _pieces(
    name: str,
    parts: Mapping[str, float],
    styles: Mapping[str, int],
    x: Scale,
    y: float,
    write: Write,
) -> list[Html]:
    drawn, before = [], 0.0
    for part, value in parts.items():
        start, end = x(before) or 0.0, x(before + value) or 0.0
        before += value
        tip = tag("title", f"{name}, {part}: {write(value)}")
        look = drawing.look(styles[part])
        drawn.append(
            tag("rect", tip, x=drawing.at(start), y=drawing.at(y - 9), width=drawing.at(end - start),
                height=18, class_=f"fill {look}")
        )  # fmt: skip
        if drawing.wide(write(value)) + 8 < end - start:
            middle = (start + end) / 2
            drawn.append(
                drawing.words(write(value), middle, y + 4.5, f"inside {look}", anchor="middle")
            )
    return drawn


# -- in words --------------------------------------------------------------------------------------


def _interval(value: Any, low: Any, high: Any, write: Write) -> str:
    """A value with its interval, as far as they are known."""
    v, lo, hi = (
        "–" if (number := real(side)) is None else write(number) for side in (value, low, high)
    )
    return v if real(low) is None and real(high) is None else f"{v} [{lo}, {hi}]"


def _told(series: Iterable[Series]) -> str:
    return "; ".join(_spoken(one) for one in series)


def _spoken(one: Series) -> str:
    if len(one.x) <= _SPOKEN:
        return f"{one.name}: " + ", ".join(f"{name_of(a)} {short(b)}" for a, b, *_ in one.rows())
    known = [number for value in one.y if (number := real(value)) is not None]
    ends = f" from {short(min(known))} to {short(max(known))}" if known else ""
    return f"{one.name}: {len(known):,} values{ends}"
