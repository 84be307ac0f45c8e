"""Charts over two axes, as SVG text for a page: lines, points and bars.

A chart has no script, fetches nothing and has no colours of its own: colours and fonts are classes that
`page.css` defines for light, for dark and for paper. Each series has a colour, a marker and a dash of
its own, so that it can be told apart without the colour. A missing value (None, not a number) leaves a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from talerec.reports.charts import drawing
from talerec.reports.charts.drawing import EDGE, LINE, SMALL, WIDTH, Key, Point
from talerec.reports.charts.scales import (
    Names,
    Scale,
    interval,
    linear,
    logarithmic,
    name_of,
    names,
    real,
    short,
)
from talerec.reports.markup import Html, join, tag

_PLOT = 250  # height of the area between the axes
_ONE_BY_ONE = 400  # points of a scatter with a marker each; more are specks without tooltips
_SPOKEN = 40  # values of a series that its description lists


@dataclass(frozen=True)
class Series:
    """Values under one name: y at x, and for `bars` the interval from low to high around y."""

    name: str
    x: Collection[Any]
    y: Collection[Any]
    low: Collection[Any] | None = None
    high: Collection[Any] | None = None

    def rows(self) -> list[tuple[Any, Any, Any, Any]]:
        """x, y, low and high of each value; None where an interval is not known."""
        nothing = [None] * len(self.x)
        low, high = (nothing if side is None else side for side in (self.low, self.high))
        return list(zip(self.x, self.y, low, high, strict=True))


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
    """Lines with a marker at each value; `mark_x` draws a vertical line at a value worth knowing."""
    keys = [drawing.line_key(one.name, style) for style, one in enumerate(series)]
    top, head = drawing.head(title, keys, y_label)
    y = linear(_ys(series), top + _PLOT, top)
    xs = [x for one in series for x in one.x] + ([] if mark_x is None else [mark_x])
    x = _x_axis(xs, drawing.margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    marked = drawing.upright(x, y, mark_x, mark_label)
    drawn = [*_lines(series, x, y), _nothing(series, x, y)]
    return drawing.svg(title, end, _described(series), head, axes, marked, *drawn)


def scatter(
    series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False
) -> Html:
    """A point for each value."""
    keys = [Key(one.name, drawing.marker(style)) for style, one in enumerate(series)]
    top, head = drawing.head(title, keys, y_label)
    y = linear(_ys(series), top + _PLOT, top)
    xs = [x for one in series for x in one.x]
    x = _x_axis(xs, drawing.margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    few = len(xs) <= _ONE_BY_ONE
    drawn = [
        _markers(_points(one, x, y), style) if few else _specks(one, style, x, y)
        for style, one in enumerate(series)
    ]
    empty = _nothing(series, x, y)
    return drawing.svg(title, end, _described(series), head, axes, *drawn, empty)


def bars(groups: Sequence[str], series: Sequence[Series], *, title: str, y_label: str) -> Html:
    """Bars side by side for each group, the value at their ends; x says which groups a series has."""
    keys = [drawing.box_key(one.name, style) for style, one in enumerate(series)]
    top, head = drawing.head(title, keys, y_label)
    y = linear([0.0, *_heights(series)], top + _PLOT, top)
    x = _name_axis(groups, drawing.margin(y))
    step = min(x.slot * 0.84 / max(len(series), 1), 72.0)
    texts = [short(number) for number in map(real, _ys(series)) if number is not None]
    longest = max((drawing.wide(text, SMALL) for text in texts), default=0.0)
    room = LINE if longest <= step else longest + 8
    y = replace(y, start=y.start + room, end=y.end + room)
    end, axes = _axes(x, y, "", bottom=y.start + (room if y.low < 0 else 0))
    drawn: list[Html | None] = []
    for style, one in enumerate(series):
        shift = (style - (len(series) - 1) / 2) * step
        drawn += _bars(one, style, shift, step, longest <= step, x, y)
    empty = _nothing(series, x, y)
    return drawing.svg(title, end, _described(series), head, axes, *drawn, empty)


# -- axes ------------------------------------------------------------------------------------------


def _x_axis(xs: Iterable[Any], left: float, log: bool) -> Scale | Names:
    """Categories if any value is text, else numbers."""
    known = [x for x in xs if isinstance(x, str) or real(x) is not None]
    if any(isinstance(x, str) for x in known):
        return _name_axis(known, left)
    scale = (logarithmic if log else linear)(known, left, WIDTH - EDGE)
    half = max((drawing.wide(label) / 2 for _, label in scale.ticks), default=0.0)
    return replace(scale, end=WIDTH - max(half, EDGE))


def _name_axis(known: Iterable[Any], left: float) -> Names:
    """Categories from `left` on, or from where their names have room."""
    axis = names(known, left, WIDTH - EDGE)
    return replace(axis, start=max(left, drawing.room_of_tilted(axis)))


def _axes(
    x: Scale | Names, y: Scale, x_label: str, bottom: float | None = None
) -> tuple[float, Html]:
    """Where the chart ends, and both of its axes."""
    under = y.start if bottom is None else bottom
    end, labels = drawing.below(x, y.end, under, x_label)
    return end, join(labels, drawing.across(y, x.start, x.end))


def _left_out(values: Iterable[Any], log: bool) -> str:
    """A note about values that a logarithmic axis cannot show."""
    count = (
        sum((number := real(value)) is not None and number <= 0 for value in values) if log else 0
    )
    return f" (not shown: {count:,} at or below 0)" if count else ""


def _ys(series: Iterable[Series]) -> list[Any]:
    return [value for one in series for value in one.y]


def _heights(series: Iterable[Series]) -> list[Any]:
    """All values and the ends of their intervals."""
    return [value for one in series for _, *values in one.rows() for value in values]


# -- marks -----------------------------------------------------------------------------------------


def _points(one: Series, x: Scale | Names, y: Scale) -> list[Point]:
    return [
        Point(f"{one.name}, {x.say(a)}: {interval(b, low, high)}", x(a), y(b), y(low), y(high))
        for a, b, low, high in one.rows()
    ]


def _lines(series: Sequence[Series], x: Scale | Names, y: Scale) -> list[Html | None]:
    """All lines, then all markers, which lie over them."""
    points = [
        sorted((p for p in _points(one, x, y) if p.x is not None), key=lambda p: p.x or 0.0)
        for one in series
    ]
    strokes = [drawing.stroke(run, style) for style, run in enumerate(points)]
    return [*strokes, *(_markers(run, style) for style, run in enumerate(points))]


def _markers(points: Iterable[Point], style: int) -> Html:
    return join(*(drawing.mark(style, (p.x, p.y), p.tip) for p in points))


def _specks(one: Series, style: int, x: Scale | Names, y: Scale) -> Html:
    places = [(x(a), y(b)) for a, b, *_ in one.rows()]
    dots = [
        f"M{drawing.at(a)} {drawing.at(b)}h0" for a, b in places if a is not None and b is not None
    ]
    return tag("path", d="".join(dots), class_=f"specks {drawing.look(style)}")


def _bars(
    one: Series, style: int, shift: float, step: float, flat: bool, x: Names, y: Scale
) -> list[Html | None]:
    """One series' bars, `shift` beside the middle of their groups; values are written across if `flat`."""
    return [
        drawing.bar(
            point._replace(x=(point.x or 0.0) + shift),
            style,
            y(0.0),
            step * 0.92,
            short(value) if step > SMALL else "",
            flat=flat,
        )
        for point, value in zip(_points(one, x, y), one.y, strict=True)
        if point.shown
    ]


def _nothing(series: Iterable[Series], x: Scale | Names, y: Scale) -> Html | None:
    if any(real(value) is not None for value in _ys(series)):
        return None
    return drawing.nothing((x.start + x.end) / 2, 0.55 * y.start + 0.45 * y.end)


# -- the description -------------------------------------------------------------------------------


def _described(series: Iterable[Series]) -> str:
    """What a chart shows, in words: the values, or their range where there are many."""
    return "; ".join(_series_described(one) for one in series)


def _series_described(one: Series) -> str:
    if len(one.x) <= _SPOKEN:
        return f"{one.name}: " + ", ".join(f"{name_of(a)} {short(b)}" for a, b, *_ in one.rows())
    known = [number for value in one.y if (number := real(value)) is not None]
    ends = f" from {short(min(known))} to {short(max(known))}" if known else ""
    return f"{one.name}: {len(known):,} values{ends}"
