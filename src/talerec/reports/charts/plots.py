"""Charts over two axes, as SVG text for a page: lines, points and bars.

A chart has no script, fetches nothing and has no colours of its own: colours and fonts are classes
that `page.css` defines for light, dark and print. Each series has its own colour, marker and dash,
so that series differ without colour too. A missing value (None, not a number) leaves a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from talerec.reports.charts import drawing
from talerec.reports.charts.drawing import EDGE, LINE, SMALL, WIDTH, LegendEntry, Point
from talerec.reports.charts.scales import (
    CategoryAxis,
    NumberAxis,
    category_axis,
    category_name,
    finite_number,
    finite_numbers,
    format_interval,
    format_short,
    linear_axis,
    log_axis,
)
from talerec.reports.markup import Html, format_coordinate, join, tag

_PLOT = 250  # height of the area between the axes
_MAX_MARKERS = 400  # points of a scatter with a marker each; more are specks without tooltips
_SPOKEN = 40  # values of a series that its description lists


@dataclass(frozen=True)
class Series:
    """Named values of a chart: y at x, and for bar charts the interval around y.

    All collections have the same length; a value that is None or not finite is missing.
    """

    name: str  # in the legend; "" for none
    x: Collection[Any]  # numbers, or names of categories
    y: Collection[Any]
    low: Collection[Any] | None = None  # ends of the intervals
    high: Collection[Any] | None = None

    def rows(self) -> list[tuple[Any, Any, Any, Any]]:
        """Return (x, y, low, high) of each value; low and high are None without intervals."""
        nothing = [None] * len(self.x)
        low, high = (nothing if side is None else side for side in (self.low, self.high))
        return list(zip(self.x, self.y, low, high, strict=True))


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    mark_x: float | str | None = None,
    mark_label: str = "",
) -> Html:
    """Return a line chart as SVG, one line per series with a marker at each value.

    log_x : logarithmic x axis. mark_x : draws a vertical line, labelled `mark_label`, at that x;
    None: no line.
    """
    keys = [drawing.line_key(line.name, style) for style, line in enumerate(series)]
    top, head = drawing.draw_head(title, keys, y_label)
    y = linear_axis(_ys(series), top + _PLOT, top)
    xs = [x for line in series for x in line.x] + ([] if mark_x is None else [mark_x])
    x = _x_axis(xs, drawing.y_axis_margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    marked = drawing.draw_vertical_line(x, y, mark_x, mark_label)
    drawn = [*_lines(series, x, y), _nothing(series, x, y)]
    return drawing.draw_svg(title, end, _describe_chart(series), head, axes, marked, *drawn)


def scatter_chart(
    series: Sequence[Series], *, title: str, x_label: str, y_label: str, log_x: bool = False
) -> Html:
    """Return a scatter chart as SVG: one point per value, series in different styles.

    log_x : logarithmic x axis. Above 400 points they are small dots without tooltips.
    """
    keys = [LegendEntry(line.name, drawing.draw_marker(style)) for style, line in enumerate(series)]
    top, head = drawing.draw_head(title, keys, y_label)
    y = linear_axis(_ys(series), top + _PLOT, top)
    xs = [x for line in series for x in line.x]
    x = _x_axis(xs, drawing.y_axis_margin(y), log_x)
    end, axes = _axes(x, y, x_label + _left_out(xs, log_x))
    few = len(xs) <= _MAX_MARKERS
    drawn = [
        _markers(_points(line, x, y), style) if few else _specks(line, style, x, y)
        for style, line in enumerate(series)
    ]
    empty = _nothing(series, x, y)
    return drawing.draw_svg(title, end, _describe_chart(series), head, axes, *drawn, empty)


def bar_chart(groups: Sequence[str], series: Sequence[Series], *, title: str, y_label: str) -> Html:
    """Return a bar chart as SVG: for each group, the bars of all series side by side.

    groups : names on the x axis; each series has the group of each of its values in `x`.
    """
    keys = [drawing.box_key(line.name, style) for style, line in enumerate(series)]
    top, head = drawing.draw_head(title, keys, y_label)
    y = linear_axis([0.0, *_heights(series)], top + _PLOT, top)
    x = _name_axis(groups, drawing.y_axis_margin(y))
    step = min(x.slot * 0.84 / max(len(series), 1), 72.0)
    texts = map(format_short, finite_numbers(_ys(series)))
    longest = max((drawing.text_width(text, SMALL) for text in texts), default=0.0)
    room = LINE if longest <= step else longest + 8
    y = replace(y, start=y.start + room, end=y.end + room)
    end, axes = _axes(x, y, "", bottom=y.start + (room if y.low < 0 else 0))
    drawn: list[Html | None] = []
    for style, line in enumerate(series):
        shift = (style - (len(series) - 1) / 2) * step
        drawn += _bars(line, style, shift, step, longest <= step, x, y)
    empty = _nothing(series, x, y)
    return drawing.draw_svg(title, end, _describe_chart(series), head, axes, *drawn, empty)


# -- axes ------------------------------------------------------------------------------------------


def _x_axis(xs: Iterable[Any], left: float, log: bool) -> NumberAxis | CategoryAxis:
    """Return a category axis if any value is text, else a linear or logarithmic number axis.

    left : x at which the axis starts; it ends near the right edge of the chart.
    """
    values = [x for x in xs if isinstance(x, str) or finite_number(x) is not None]
    if any(isinstance(x, str) for x in values):
        return _name_axis(values, left)
    scale = (log_axis if log else linear_axis)(values, left, WIDTH - EDGE)
    half_label = max((drawing.text_width(label) / 2 for _, label in scale.ticks), default=0.0)
    return replace(scale, end=WIDTH - max(half_label, EDGE))


def _name_axis(values: Iterable[Any], left: float) -> CategoryAxis:
    """Return a category axis that starts at x `left`, or later if its labels need the room.

    values : names or numbers; it has one category for each distinct value
    """
    axis = category_axis(values, left, WIDTH - EDGE)
    return replace(axis, start=max(left, drawing.tilted_labels_start(axis)))


def _axes(
    x: NumberAxis | CategoryAxis, y: NumberAxis, x_label: str, bottom: float | None = None
) -> tuple[float, Html]:
    """Return the y coordinate at which the chart ends, and the markup of both axes.

    bottom : y below which the x labels stand; by default the start of the y axis
    """
    under = y.start if bottom is None else bottom
    end, labels = drawing.draw_x_axis(x, y.end, under, x_label)
    return end, join(labels, drawing.draw_y_axis(y, x.start, x.end))


def _left_out(values: Iterable[Any], log: bool) -> str:
    """Return a note with the number of values <= 0, which a logarithmic axis cannot show.

    "" if there are none or the axis is linear; the note continues the axis label.
    """
    count = sum(number <= 0 for number in finite_numbers(values)) if log else 0
    return f" (not shown: {count:,} at or below 0)" if count else ""


def _ys(series: Iterable[Series]) -> list[Any]:
    """Return the y values of all series in one list."""
    return [value for line in series for value in line.y]


def _heights(series: Iterable[Series]) -> list[Any]:
    """Return the y values of all series and the ends of their intervals, in one list.

    Missing values are None.
    """
    return [value for line in series for _, *values in line.rows() for value in values]


# -- marks -----------------------------------------------------------------------------------------


def _points(line: Series, x: NumberAxis | CategoryAxis, y: NumberAxis) -> list[Point]:
    """Return the values of a series as points in coordinates of the chart, with tooltips.

    x, y : the axes, which map values to coordinates (None outside the chart)
    """
    return [
        Point(f"{line.name}, {x.format(a)}: {format_interval(*values)}", x(a), *map(y, values))
        for a, *values in line.rows()
    ]


def _lines(
    series: Sequence[Series], x: NumberAxis | CategoryAxis, y: NumberAxis
) -> list[Html | None]:
    """Return the markup of all series: all lines, then all markers over them.

    x, y : the axes, which map values to coordinates
    """
    points = [
        sorted((p for p in _points(line, x, y) if p.x is not None), key=lambda p: p.x or 0.0)
        for line in series
    ]
    strokes = [drawing.draw_line(run, style) for style, run in enumerate(points)]
    return [*strokes, *(_markers(run, style) for style, run in enumerate(points))]


def _markers(points: Iterable[Point], style: int) -> Html:
    """Return a marker at each point inside the chart; style : number of the series."""
    return join(*(drawing.draw_point(style, (p.x, p.y), p.tip) for p in points))


def _specks(line: Series, style: int, x: NumberAxis | CategoryAxis, y: NumberAxis) -> Html:
    """Return all points of a series as one path of small dots, without tooltips.

    style : number of the series, which decides the colour; x, y : the axes, which map values to
    coordinates
    """
    places = [(x(a), y(b)) for a, b, *_ in line.rows()]
    dots = [
        f"M{format_coordinate(a)} {format_coordinate(b)}h0"
        for a, b in places
        if a is not None and b is not None
    ]
    return tag("path", d="".join(dots), class_=f"specks {drawing.series_class(style)}")


def _bars(
    line: Series, style: int, shift: float, step: float, flat: bool, x: CategoryAxis, y: NumberAxis
) -> list[Html | None]:
    """Return the bars of one series, `shift` units right of the middle of their groups.

    style : number of the series, which decides the colour; step : width reserved for a bar; flat :
    the values are written horizontally; x, y : the axes, which map values to coordinates
    """
    drawn = []
    for point, value in zip(_points(line, x, y), line.y, strict=True):
        if point.is_shown:
            point = point._replace(x=(point.x or 0.0) + shift)
            text = format_short(value) if step > SMALL else ""
            drawn.append(drawing.draw_bar(point, style, y(0.0), step * 0.92, text, flat=flat))
    return drawn


def _nothing(series: Iterable[Series], x: NumberAxis | CategoryAxis, y: NumberAxis) -> Html | None:
    """Return the text "nothing to show" for the middle of the plot; None if there are values.

    x, y : the axes; start and end are coordinates of the plot's edges
    """
    if finite_numbers(_ys(series)):
        return None
    return drawing.draw_empty_note((x.start + x.end) / 2, 0.55 * y.start + 0.45 * y.end)


# -- the description -------------------------------------------------------------------------------


def _describe_chart(series: Iterable[Series]) -> str:
    """Return a chart in words: its values, or their range if there are many."""
    return "; ".join(_describe_series(line) for line in series)


def _describe_series(series: Series) -> str:
    """Return a series in words: up to 40 values as "x y" pairs, else their count and range."""
    if len(series.x) <= _SPOKEN:
        return f"{series.name}: " + ", ".join(
            f"{category_name(a)} {format_short(b)}" for a, b, *_ in series.rows()
        )
    values = finite_numbers(series.y)
    ends = f" from {format_short(min(values))} to {format_short(max(values))}" if values else ""
    return f"{series.name}: {len(values):,} values{ends}"
