"""SVG charts with one row per name: values with intervals, and stacked bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.reports.charts import drawing
from talerec.reports.charts.drawing import SMALL, WIDTH
from talerec.reports.charts.scales import (
    NumberAxis,
    common_decimals,
    finite_number,
    format_alike,
    format_interval,
    format_short,
    linear_axis,
)
from talerec.reports.markup import Html, join, tag

_ROW = 27  # height of a row
_OTHER = "other"  # parts of bars that have no colour of their own
_NAMES = 240  # the most that the names of rows take
_LEAST = 220  # the least that names leave to the plot


@dataclass(frozen=True)
class DotRow:
    """A row of a dot chart: a name, a value and the ends of its interval."""

    name: str
    value: float | None  # None: missing
    low: float | None = None  # None: the value itself
    high: float | None = None  # None: the value itself


def dot_chart(
    rows: Sequence[DotRow], *, title: str, x_label: str, mark_x: float | None = None
) -> Html:
    """Return a dot chart as SVG: per name a row with value and interval, drawn and as text.

    mark_x : value of a vertical line; by default at zero if values lie on both sides of it
    """
    top, head = drawing.draw_head(title, [], "")
    values = [number for row in rows for number in (row.value, row.low, row.high)]
    decimals = common_decimals(values)
    texts = [format_interval(row.value, row.low, row.high, decimals) for row in rows]
    left, right = _between([row.name for row in rows], texts)
    x = linear_axis([*values, mark_x], left, right, ticks=_tick_count(left, right))
    bottom, end, axis = _axis_below(x, top, rows, x_label)
    line = 0.0 if mark_x is None and x.low < 0 < x.high else mark_x
    parts = [axis, drawing.draw_segment("zero", (x(line), top), (x(line), bottom))]
    for row, text, y in zip(rows, texts, _middles(top, rows), strict=True):
        parts += [
            _row_name(row.name, left, y),
            _whisker(x, row, y),
            drawing.draw_point(0, (x(row.value), y), f"{row.name}: {text}"),
            drawing.text_element(text, WIDTH, y + 4.5, "value", anchor="end"),
        ]
    described = "; ".join(f"{row.name}: {text}" for row, text in zip(rows, texts, strict=True))
    return drawing.draw_svg(title, end, described, head, *parts)


def stacked_bar_chart(
    rows: Mapping[str, Mapping[str, float | None]], *, title: str, x_label: str
) -> Html:
    """Return a chart as SVG with one stacked horizontal bar per row, and its sum as text.

    rows : name of the row to {name of the part: value}; values that are missing or not above 0 are
    left out. If there are more parts than colours, the smallest ones together are "other".
    """
    shown = {
        name: {
            part: number
            for part, value in parts.items()
            if (number := finite_number(value) or 0.0) > 0
        }
        for name, parts in rows.items()
    }
    shown = _merge_small_parts(shown, drawing.STYLES)
    names = dict.fromkeys(part for parts in shown.values() for part in parts)
    styles = {part: style for style, part in enumerate(names)}
    top, head = drawing.draw_head(title, [drawing.box_key(*style) for style in styles.items()], "")
    sums = [sum(parts.values()) for parts in shown.values()]
    decimals = common_decimals(sums)
    totals = [format_alike(total, decimals) for total in sums]
    left, right = _between(list(shown), totals)
    x = linear_axis([0.0, *sums], left, right, ticks=_tick_count(left, right))
    _, end, axis = _axis_below(x, top, shown, x_label)
    drawn = [axis]
    for (name, parts), total, y in zip(shown.items(), totals, _middles(top, shown), strict=True):
        value = drawing.text_element(total, WIDTH, y + 4.5, "value", anchor="end")
        drawn += [_row_name(name, left, y), *_boxes(name, parts, styles, x, y), value]
    described = "; ".join(
        f"{name}: " + ", ".join(f"{part} {format_short(v)}" for part, v in parts.items())
        for name, parts in shown.items()
    )
    return drawing.draw_svg(title, end, described, head, *drawn)


def _merge_small_parts(
    rows: Mapping[str, Mapping[str, float]], n_parts: int
) -> dict[str, dict[str, float]]:
    """Return the rows with at most `n_parts` parts: those of the smallest sums become "other".

    rows : name of the row to {name of the part: value}
    """
    sums: Counter[str] = Counter()
    for parts in rows.values():
        sums.update(parts)
    if len(sums) <= n_parts:
        return {name: dict(parts) for name, parts in rows.items()}
    large = {part for part, _ in sums.most_common(n_parts - 1)}
    merged = {}
    for name, parts in rows.items():
        merged[name] = {part: value for part, value in parts.items() if part in large}
        if rest := sum(value for part, value in parts.items() if part not in large):
            merged[name][_OTHER] = merged[name].get(_OTHER, 0.0) + rest
    return merged


# -- layout ----------------------------------------------------------------------------------------


def _between(row_names: Sequence[str], values: Sequence[str]) -> tuple[float, float]:
    """Return (left, right): x coordinates of the plot between row names and values as text.

    Names stand left of the plot and are cut if they are long; `values` stand right of it.
    """
    right = WIDTH - max((drawing.text_width(text, SMALL) for text in values), default=0.0) - 26
    right = max(right, WIDTH / 2)
    longest = max(map(drawing.text_width, row_names), default=0.0)
    return min(longest, _NAMES, right - _LEAST) + 22, right


def _tick_count(left: float, right: float) -> int:
    """Return how many tick labels fit between the x coordinates `left` and `right`."""
    return max(int((right - left) / 75), 2)


def _axis_below(
    x: NumberAxis, top: float, rows: Collection[Any], label: str
) -> tuple[float, float, Html]:
    """Return the y at which the rows end, the y at which the chart ends, and the axis' markup.

    top : y at which the rows begin; rows : only their number matters; label : of the axis
    """
    bottom = top + _ROW * max(len(rows), 1)
    end, axis = drawing.draw_x_axis(x, top, bottom, label)
    empty = None if rows else drawing.draw_empty_note((x.start + x.end) / 2, bottom - 9)
    return bottom, end, join(axis, empty)


def _middles(top: float, rows: Collection[Any]) -> list[float]:
    """Return the y of the middle of each row of a chart whose rows begin at y `top`."""
    return [top + (place + 0.5) * _ROW for place in range(len(rows))]


# -- marks -----------------------------------------------------------------------------------------


def _row_name(name: str, left: float, y: float) -> Html:
    """Return a row's name as text that ends left of the plot (x `left`), shortened to fit."""
    text = drawing.truncate_text(name, left - 22)
    return drawing.text_element(text, left - 14, y + 4.5, "name", anchor="end", tip=name)


def _whisker(x: NumberAxis, row: DotRow, y: float) -> Html | None:
    """Return a row's interval as a horizontal line with caps at y; None without an interval.

    x : the axis, which maps values to coordinates; an end of the interval that is None is the value
    """
    ends = [x(row.value if side is None else side) for side in (row.low, row.high)]
    if ends[0] == ends[1]:
        return None
    caps = [drawing.draw_segment("whisker s1", (end, y - 4), (end, y + 4)) for end in ends]
    return join(drawing.draw_segment("whisker s1", (ends[0], y), (ends[1], y)), *caps)


def _boxes(
    name: str, parts: Mapping[str, float], styles: Mapping[str, int], x: NumberAxis, y: float
) -> list[Html]:
    """Return the boxes of one stacked bar at height y, each with its value inside if it fits.

    name : of the row, for tooltips; parts : values by name; styles : number of each part's colour;
    x : the axis, which maps values to coordinates
    """
    drawn, before = [], 0.0
    for part, value in parts.items():
        start, end = x(before) or 0.0, x(before + value) or 0.0
        before += value
        text, look = format_short(value), drawing.series_class(styles[part])
        tip = tag("title", f"{name}, {part}: {text}")
        drawn.append(
            tag("rect", tip, x=start, y=y - 9, width=end - start,
                height=18, class_=f"fill {look}")
        )  # fmt: skip
        if drawing.text_width(text) + 8 < end - start:
            place = (start + end) / 2, y + 4.5
            drawn.append(drawing.text_element(text, *place, f"inside {look}", anchor="middle"))
    return drawn
