"""Parts of SVG charts: fitted text, a head with a legend, axes and marks.

Coordinates are in units of the drawing, y downwards. A coordinate that is None lies outside the
chart, and nothing is drawn for it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from talerec.reports.charts.scales import CategoryAxis, NumberAxis, finite_number
from talerec.reports.markup import Html, format_coordinate, join, tag

WIDTH = 680  # of every chart; the page scales it
LINE = 18  # from one line of text to the next
EDGE = 14  # room at the right for half a tick label
_FONT = 13
SMALL = 11.5  # the size of values at marks
_ROUNDING = 0.01  # of sums of widths
_TILTED = 190  # the most that a tilted name takes
STYLES = 6
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-5l4.6 8.2h-9.2z",
    "M0-5.2l5.2 5.2l-5.2 5.2l-5.2-5.2z",
    "M0 5l4.6-8.2h-9.2z",
    "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
)

Coordinates = tuple[float | None, float | None]


class Point(NamedTuple):
    """A value of a series in coordinates of the drawing; None where it lies outside the chart."""

    tip: str  # text of its tooltip
    x: float | None
    y: float | None  # downwards
    low: float | None  # y of the lower end of its interval; None: no interval
    high: float | None  # y of the upper end

    @property
    def is_shown(self) -> bool:
        """Return whether the point lies inside the chart: both coordinates are not None."""
        return self.x is not None and self.y is not None


# -- text ------------------------------------------------------------------------------------------


def text_width(text: str, size: float = _FONT) -> float:
    """Return an upper estimate of the width of a text in units of the drawing.

    size : of the font; the estimate holds for the widest of the common fonts.
    """
    return size * sum(map(_letter_width, text))


def _letter_width(letter: str) -> float:
    """Return the width of a letter relative to the font size, for the widest common font."""
    if letter in " .,:;!'|()[]-/fijlrtI":
        return 0.4
    if letter in "mwMW@%…" or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.72 if letter.isupper() else 0.64


def truncate_text(text: str, room: float) -> str:
    """Return a text shortened to the width `room`, with an ellipsis for what is cut.

    room : in units of the drawing
    """
    while text_width(text) > room + _ROUNDING and len(text) > 1:
        text = text[:-2].rstrip() + "…"
    return text


def wrap_text(text: str, room: float, size: float = _FONT) -> list[str]:
    """Return a text as lines of at most the width `room`; only too long words are cut.

    size : of the font, which decides how wide the words are
    """
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(truncate_text(word, room))
    return lines


def text_element(
    text: str, x: float, y: float, kind: str, *, anchor: str | None = None, tip: str | None = None
) -> Html:
    """Return an SVG text element at (x, y).

    kind : CSS class; anchor : text-anchor ("start", "middle", "end")
    tip : the full text, which becomes a tooltip if `text` is a shortened form of it
    """
    more = tag("title", tip) if tip is not None and tip != text else None
    return tag("text", text, more, x=x, y=y, class_=kind, text_anchor=anchor)


# -- the chart and its head ------------------------------------------------------------------------


def draw_svg(title: str, height: float, description: str, *parts: Html | None) -> Html:
    """Return the whole chart as an <svg> element of width 680.

    height : in units of the drawing; description : what the chart shows in words, for screen
    readers; parts : the content, None is skipped
    """
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *parts,
        class_="chart",
        viewBox=f"0 0 {WIDTH} {format_coordinate(height)}",
        role="img",
        aria_label=title,
    )


class LegendEntry(NamedTuple):
    """An entry of the legend: a name, and a sample of the mark drawn around (0, 0).

    width : of the sample, in units of the drawing
    """

    name: str
    sample: Html
    width: float = 15


def draw_head(title: str, keys: Sequence[LegendEntry], y_label: str) -> tuple[float, Html]:
    """Return the y at which the plot may begin, and the markup of title, legend and y label.

    keys : legend entries; those without a name are left out. y_label : of the vertical axis
    """
    keys = [key for key in keys if key.name]
    y, parts = 2.0, []
    for line in wrap_text(title, WIDTH, 17):
        y += 20
        parts.append(text_element(line, 0, y - 4, "title"))
    x = 0.0
    y += LINE + 4 if keys else 0
    for name, sample, width in keys:
        label = truncate_text(name, WIDTH - width - 6)
        if x and x + width + 6 + text_width(label) > WIDTH:
            x, y = 0.0, y + LINE + 2
        parts.append(tag("g", sample, transform=_translate(x + width / 2, y - 4.5)))
        parts.append(text_element(label, x + width + 6, y, "key", tip=name))
        x += width + text_width(label) + 24
    if y_label:
        y += LINE + 6
        parts.append(text_element(y_label, 0, y, "label"))
    return y + 16, join(*parts)


def line_key(name: str, style: int) -> LegendEntry:
    """Return the legend entry of a line: its name, and a short line with its marker.

    style : number of the series, which decides colour, dash and marker
    """
    sample = tag("path", d="M-14 0h28", class_=f"line {series_class(style)}")
    return LegendEntry(name, join(sample, draw_marker(style)), 28)


def box_key(name: str, style: int) -> LegendEntry:
    """Return the legend entry of bars: their name, and a box in their colour.

    style : number of the series, which decides the colour
    """
    box = tag("rect", x=-7, y=-7, width=14, height=14, class_=f"fill {series_class(style)}")
    return LegendEntry(name, box)


def series_class(style: int) -> str:
    """Return the CSS class that gives a series its colour and dash."""
    return f"s{style % STYLES + 1}"


# -- axes ------------------------------------------------------------------------------------------


def y_axis_margin(y: NumberAxis) -> float:
    """Return the width that the tick labels of a vertical axis take at the left."""
    return max(text_width(label) for _, label in y.ticks) + 12


def draw_y_axis(y: NumberAxis, left: float, right: float) -> Html:
    """Return labelled grid lines at a vertical axis' ticks, from x `left` to `right`."""
    ticks = []
    for value, label in y.ticks:
        rule = tag("line", x1=left, x2=right, class_="zero" if value == 0 else "grid")
        text = text_element(label, left - 8, 4.5, "tick", anchor="end")
        ticks.append(tag("g", rule, text, class_="y-tick", transform=_translate(0, y(value))))
    return join(*ticks)


def draw_x_axis(
    x: NumberAxis | CategoryAxis, top: float, bottom: float, label: str
) -> tuple[float, Html]:
    """Return the y at which the chart ends, and the markup of the horizontal axis.

    top, bottom : y of the plot's edges; grid lines run between them, labels stand below `bottom`
    label : of the axis. Names of categories are tilted if they are too wide for their slots.
    """
    ticks = _thin_ticks(x)
    widest = max((text_width(text) for _, text in ticks), default=0.0)
    tilt = isinstance(x, CategoryAxis) and widest > x.slot - 4
    parts = []
    for place, text in ticks:
        rule = tag("line", y1=top, y2=bottom, class_="grid") if isinstance(x, NumberAxis) else None
        flat = text_element(text, 0, bottom + 19, "tick", anchor="middle")
        put = _draw_tilted_label(text, place, bottom) if tilt else flat
        parts.append(tag("g", rule, put, class_="x-tick", transform=_translate(place, 0)))
    end = bottom + (26 + 0.6 * min(widest, _TILTED) if tilt else 26)
    if label:
        middle = (x.start + x.end) / 2
        for line in wrap_text(label, WIDTH - x.start):
            end += LINE
            parts.append(text_element(line, middle, end - 2, "label", anchor="middle"))
    return end + 4, join(*parts)


def tilted_labels_start(x: CategoryAxis) -> float:
    """Return the x at which a category axis must start so that its tilted labels fit.

    That is its present start if the labels need no tilt.
    """
    if max(map(text_width, x.names), default=0.0) <= x.slot - 4:
        return x.start
    shares = ((place + 0.5) / len(x.names) for place in range(len(x.names)))
    return max(
        (0.82 * min(text_width(name), _TILTED) + 2 - share * x.end) / (1 - share)
        for name, share in zip(x.names, shares, strict=True)
    )


def _thin_ticks(x: NumberAxis | CategoryAxis) -> list[tuple[float, str]]:
    """Return the ticks that can be labelled without overlap, as (x coordinate, label) pairs.

    If labels would touch, that is every second, third, ... tick; a tick at zero stays.
    """
    ticks = [(place, text) for value, text in x.ticks if (place := x(value)) is not None]
    if isinstance(x, CategoryAxis):
        return ticks if x.slot > 14 else ticks[:: int(14 / x.slot) + 1]
    room = abs(x.end - x.start) / max(len(ticks), 1)
    step = int(max((text_width(text) + 10 for _, text in ticks), default=0) / room) + 1
    zero = next((place for place, (value, _) in enumerate(x.ticks) if value == 0), 0)
    some = ticks[zero % step :: step]
    return some if len(some) > 1 else [*ticks[:1], *ticks[1:][-1:]]


def _draw_tilted_label(text: str, place: float, bottom: float) -> Html:
    """Return a tick label rotated by 35 degrees that ends under the tick at x = `place`.

    bottom : y of the plot's lower edge. A long label is cut, with the full text as tooltip.
    """
    put = f"translate(4 {format_coordinate(bottom + 15)}) rotate(-35)"
    label = truncate_text(text, min(_TILTED, place / 0.82))
    more = tag("title", text) if label != text else None
    return tag("text", label, more, class_="tick", text_anchor="end", transform=put)


def draw_vertical_line(
    x: NumberAxis | CategoryAxis, y: NumberAxis, value: Any, label: str
) -> Html | None:
    """Return a labelled vertical line over the whole height of the plot, at x = `value`.

    x, y : the axes, which map values to coordinates. None if the value lies outside the axis. The
    label is left of the line if the right has no room.
    """
    place = x(value)
    if place is None:
        return None
    ahead = place + text_width(label) + 8 < WIDTH
    shift, anchor = (6, None) if ahead else (-6, "end")
    text = text_element(label, place + shift, y.end + 10, "label", anchor=anchor)
    return join(draw_segment("mark", (place, y.start), (place, y.end)), text if label else None)


# -- marks -----------------------------------------------------------------------------------------


def draw_marker(style: int, *, tip: str | None = None) -> Html:
    """Return the symbol of a series around (0, 0).

    style : number of the series, which decides colour and shape; tip : tooltip
    """
    more = [] if tip is None else [tag("title", tip)]
    shape = _MARKERS[style % STYLES]
    return tag("path", *more, d=shape, class_=f"marker {series_class(style)}")


def draw_point(style: int, point: Coordinates, tip: str) -> Html | None:
    """Return a series' marker at `point` (x, y) with a tooltip; None if outside the chart.

    style : number of the series, which decides colour and shape; tip : the tooltip's text
    """
    x, y = point
    if x is None or y is None:
        return None
    return tag("g", draw_marker(style, tip=tip), class_="point", transform=_translate(x, y))


def draw_segment(kind: str, start: Coordinates, end: Coordinates) -> Html | None:
    """Return a straight line of CSS class `kind`; None if an end lies outside the chart.

    start, end : (x, y) coordinates; None for a coordinate outside the chart
    """
    (x1, y1), (x2, y2) = start, end
    if None in (x1, y1, x2, y2):
        return None
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def draw_line(points: Sequence[Point], style: int) -> Html | None:
    """Return a line through the points, broken where one lies outside the chart.

    style : number of the series, which decides colour and dash. None if no two neighbouring points
    are inside.
    """
    runs = [_path_data(run) for run in _split_at_gaps(points) if len(run) > 1]
    return tag("path", d="".join(runs), class_=f"line {series_class(style)}") if runs else None


def _draw_whisker(point: Point, kind: str) -> Html:
    """Return a vertical interval from low to high with caps, in CSS class `kind`.

    An end that is missing is the point itself; the result is empty if both ends are equal.
    """
    x, low, high = point.x, point.low, point.high
    low, high = (point.y if low is None else low), (point.y if high is None else high)
    if x is None or low is None or high is None or low == high:
        return Html()
    caps = [draw_segment(kind, (x - 3, y), (x + 3, y)) for y in (low, high)]
    return join(draw_segment(kind, (x, low), (x, high)), *caps)


def draw_bar(
    point: Point, style: int, zero: float | None, width: float, text: str, *, flat: bool
) -> Html | None:
    """Return a bar from zero with its interval, and the value as text beyond both.

    zero : y coordinate of the value 0; width : of the bar; text : the value, "" for none
    flat : the text is horizontal, else it runs along the bar. None if the point is outside.
    """
    x, y = point.x, point.y
    if x is None or y is None or zero is None:
        return None
    box = tag(
        "rect", tag("title", point.tip), x=x - width / 2, y=min(y, zero), width=width,
        height=abs(y - zero), class_=f"fill {series_class(style)}",
    )  # fmt: skip
    ends = [place for place in (y, point.low, point.high) if place is not None]
    below = y > zero
    end = max(ends) + (14 if flat else 6) if below else min(ends) - 5
    anchor = "middle" if flat else "end" if below else "start"
    put = _translate(x, end) if flat else f"{_translate(x + 4, end)} rotate(-90)"
    value = tag("text", text, class_="value", text_anchor=anchor, transform=put)
    over = [_draw_whisker(point, kind) for kind in ("halo", "whisker over")]
    return join(box, *over, value if text else None)


def draw_empty_note(x: float, y: float) -> Html:
    """Draw the text in the middle of a chart that has no values."""
    return text_element("nothing to show", x, y, "label", anchor="middle")


def _path_data(points: Sequence[Point]) -> str:
    """Return the `d` attribute of a path through points that all lie inside the chart."""
    places = [f"{format_coordinate(p.x or 0.0)} {format_coordinate(p.y or 0.0)}" for p in points]
    return "M" + "L".join(places)


def _split_at_gaps(points: Sequence[Point]) -> list[list[Point]]:
    """Return runs of neighbouring points that lie inside the chart."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.is_shown:
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _translate(x: float | None, y: float | None) -> str:
    """Return an SVG transform that moves by (x, y); a missing coordinate counts as 0."""
    x, y = finite_number(x) or 0.0, finite_number(y) or 0.0
    return f"translate({format_coordinate(x)} {format_coordinate(y)})"
