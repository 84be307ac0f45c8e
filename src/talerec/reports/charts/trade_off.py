"""An SVG chart of quality against cost: one labelled point per name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from talerec.reports.charts import drawing
from talerec.reports.charts.drawing import EDGE, SMALL, WIDTH, Point
from talerec.reports.charts.scales import format_interval, linear_axis, log_axis
from talerec.reports.markup import Html, join

_PLOT = 330  # height of the area between the axes
_GAP = 8.0  # between a point and its label
_HEIGHT = 13.0  # of a label
_PIECES = 24  # of a line between two points
_FAR = 4  # lines of text that a label may be away from its point


@dataclass(frozen=True)
class TradePoint:
    """A name with its cost (x), its quality (y), and the ends of the interval of the quality."""

    name: str
    cost: float
    quality: float
    low: float | None = None
    high: float | None = None


class _Box(NamedTuple):
    """A rectangle of the drawing, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def contains(self, other: _Box) -> bool:
        """Return whether another rectangle stays between the sides and above the bottom."""
        return self.left <= other.left and other.right <= self.right and other.bottom <= self.bottom

    def overlaps(self, other: _Box) -> bool:
        """Return whether two rectangles have a point in common."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not (is_beside or self.bottom <= other.top or other.bottom <= self.top)


def trade_off_chart(
    points: Sequence[TradePoint], *, title: str, x_label: str, y_label: str
) -> Html:
    """Return a chart as SVG: quality against cost on a logarithmic axis, each point labelled.

    A line joins the points that no other one beats: those without a cheaper and better one. Costs
    must be above 0.
    """
    top, head = drawing.draw_head(title, [], y_label)
    values = [value for p in points for value in (p.quality, p.low, p.high) if value is not None]
    y = linear_axis(values, top + _PLOT, top)
    x = log_axis([p.cost for p in points], drawing.y_axis_margin(y) + EDGE, WIDTH - EDGE)
    x = replace(x, end=WIDTH - 2 * EDGE)
    end, x_axis = drawing.draw_x_axis(x, y.end, y.start, x_label)
    axes = join(x_axis, drawing.draw_y_axis(y, x.start, x.end))
    tips = {p.name: f"{p.name}, {x.format(p.cost)}: {_format(p)}" for p in points}
    drawn = [Point(tips[p.name], x(p.cost), y(p.quality), y(p.low), y(p.high)) for p in points]
    frontier = [point for point, p in zip(drawn, points, strict=True) if _is_unbeaten(p, points)]
    marks = [
        join(_whisker(point), drawing.draw_point(0, (point.x, point.y), point.tip))
        for point in drawn
    ]
    path = sorted(frontier, key=lambda point: point.x or 0.0)
    line, described = drawing.draw_line(path, 1), "; ".join(tips.values())
    axis = _Box(x.start, y.start - 1, WIDTH, y.start + 1)
    lines = [axis, *_whisker_boxes(drawn), *_line_boxes(path)]
    labels = _labels(points, drawn, _Box(x.start, y.end, WIDTH, y.start), lines)
    return drawing.draw_svg(title, end, described, head, axes, line, *marks, *labels)


def _format(point: TradePoint) -> str:
    """Return the quality of a point as text, with its interval."""
    return format_interval(point.quality, point.low, point.high)


def _is_unbeaten(point: TradePoint, points: Sequence[TradePoint]) -> bool:
    """Return whether no other point is as cheap and as good, and in one respect better."""
    return not any(
        other.cost <= point.cost
        and other.quality >= point.quality
        and (other.cost, other.quality) != (point.cost, point.quality)
        for other in points
    )


def _whisker(point: Point) -> Html | None:
    """Return the interval of a point as a vertical line; None without an interval."""
    if point.low is None or point.high is None or point.low == point.high:
        return None
    return drawing.draw_segment("whisker s1", (point.x, point.low), (point.x, point.high))


def _whisker_boxes(drawn: Sequence[Point]) -> list[_Box]:
    """Return the areas of the intervals of all points, in coordinates of the drawing."""
    return [
        _Box((p.x or 0.0) - 1, p.high, (p.x or 0.0) + 1, p.low)
        for p in drawn
        if p.low is not None and p.high is not None
    ]


def _line_boxes(path: Sequence[Point]) -> list[_Box]:
    """Return small areas that cover the line through points, in the drawing's coordinates."""
    boxes = []
    for a, b in pairwise(path):
        for step in range(_PIECES):
            ends = [
                ((a.x or 0.0) + part / _PIECES * ((b.x or 0.0) - (a.x or 0.0)),
                 (a.y or 0.0) + part / _PIECES * ((b.y or 0.0) - (a.y or 0.0)))
                for part in (step, step + 1)
            ]  # fmt: skip
            (left, top), (right, bottom) = ends
            boxes.append(_Box(left, min(top, bottom), right, max(top, bottom)))
    return boxes


def _labels(
    points: Sequence[TradePoint], drawn: Sequence[Point], plot: _Box, lines: Sequence[_Box]
) -> list[Html]:
    """Return the names of all points as text beside them, without overlaps if there is room.

    drawn: the points in coordinates of the drawing. plot: the area that labels stay in. lines: the
    areas of lines, which a label covers only if there is no room elsewhere.
    """
    places = [(point.x or 0.0, point.y or 0.0) for point in drawn]
    occupied = [_Box(px - 5, py - 5, px + 5, py + 5) for px, py in places]
    labels = []
    for point, (px, py) in zip(points, places, strict=True):
        width = drawing.text_width(point.name, SMALL)
        boxes = [
            _Box(left, py + step * _HEIGHT - _HEIGHT / 2, left + width, py + step * _HEIGHT + 6.5)
            for step in sorted(range(-_FAR, _FAR + 1), key=abs)
            for left in (px + _GAP, px - _GAP - width)
        ]
        inside = [b for b in boxes if plot.contains(b)] or boxes[:1]
        free = [b for b in inside if not any(b.overlaps(other) for other in occupied)]
        clear = (b for b in free if not any(b.overlaps(line) for line in lines))
        box = next(clear, (free or inside)[0])
        occupied.append(box)
        labels.append(drawing.text_element(point.name, box.left, box.bottom - 2.5, "value halo"))
    return labels
