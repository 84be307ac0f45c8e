"""Charts with a row for each name, as SVG text for a page: values with intervals, and bars cut into parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.reports.charts import drawing
from talerec.reports.charts.drawing import SMALL, WIDTH
from talerec.reports.charts.scales import Scale, interval, linear, real, short
from talerec.reports.markup import Html, join, tag

_ROW = 27  # height of a row
_NAMES = 240  # the most that the names of rows take
_LEAST = 220  # the least that names leave to the plot


@dataclass(frozen=True)
class Dot:
    """A row of `dots`: a value with its interval."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


def dots(rows: Sequence[Dot], *, title: str, x_label: str, mark_x: float | None = None) -> Html:
    """A row for each name with its value, its interval, and both in figures.

    mark_x: where a vertical line stands; unless given, at zero if there are values on both sides of it.
    """
    top, head = drawing.head(title, [], "")
    texts = [interval(row.value, row.low, row.high) for row in rows]
    left, right = _between([row.name for row in rows], texts)
    found = [number for row in rows for number in (row.value, row.low, row.high)]
    x = linear([*found, mark_x], left, right, ticks=_tick_count(left, right))
    bottom, end, axis = _axis_below(x, top, rows, x_label)
    line = 0.0 if mark_x is None and x.low < 0 < x.high else mark_x
    parts = [axis, drawing.segment("zero", (x(line), top), (x(line), bottom))]
    for row, text, y in zip(rows, texts, _middles(top, rows), strict=True):
        parts += [
            _row_name(row.name, left, y),
            _whisker(x, row, y),
            drawing.mark(0, (x(row.value), y), f"{row.name}: {text}"),
            drawing.words(text, WIDTH, y + 4.5, "value", anchor="end"),
        ]
    described = "; ".join(f"{row.name}: {text}" for row, text in zip(rows, texts, strict=True))
    return drawing.svg(title, end, described, head, *parts)


def stacked(rows: Mapping[str, Mapping[str, float | None]], *, title: str, x_label: str) -> Html:
    """One bar for each row, cut into its parts (the time of each step, say), with the sum at its end."""
    shown = {
        name: {part: number for part, value in parts.items() if (number := real(value) or 0.0) > 0}
        for name, parts in rows.items()
    }
    styles = {
        part: style for style, part in enumerate(dict.fromkeys(p for r in rows.values() for p in r))
    }
    top, head = drawing.head(title, [drawing.box_key(*style) for style in styles.items()], "")
    sums = [sum(parts.values()) for parts in shown.values()]
    left, right = _between(list(shown), [short(total) for total in sums])
    x = linear([0.0, *sums], left, right, ticks=_tick_count(left, right))
    _, end, axis = _axis_below(x, top, shown, x_label)
    drawn = [axis]
    for (name, parts), total, y in zip(shown.items(), sums, _middles(top, shown), strict=True):
        drawn += [_row_name(name, left, y), *_boxes(name, parts, styles, x, y)]
        drawn.append(drawing.words(short(total), WIDTH, y + 4.5, "value", anchor="end"))
    described = "; ".join(
        f"{name}: " + ", ".join(f"{part} {short(v)}" for part, v in parts.items())
        for name, parts in shown.items()
    )
    return drawing.svg(title, end, described, head, *drawn)


# -- layout ----------------------------------------------------------------------------------------


def _between(row_names: Sequence[str], values: Sequence[str]) -> tuple[float, float]:
    """Where the plot begins and ends, between names at the left and values at the right; long names are cut."""
    right = WIDTH - max((drawing.wide(text, SMALL) for text in values), default=0.0) - 26
    right = max(right, WIDTH / 2)
    longest = max(map(drawing.wide, row_names), default=0.0)
    return min(longest, _NAMES, right - _LEAST) + 22, right


def _tick_count(left: float, right: float) -> int:
    """As many ticks as there is room for labels."""
    return max(int((right - left) / 75), 2)


def _axis_below(
    x: Scale, top: float, rows: Collection[Any], label: str
) -> tuple[float, float, Html]:
    """Where the rows end, where the chart ends, and the axis under the rows."""
    bottom = top + _ROW * max(len(rows), 1)
    end, axis = drawing.below(x, top, bottom, label)
    empty = None if rows else drawing.nothing((x.start + x.end) / 2, bottom - 9)
    return bottom, end, join(axis, empty)


def _middles(top: float, rows: Collection[Any]) -> list[float]:
    return [top + (place + 0.5) * _ROW for place in range(len(rows))]


# -- marks -----------------------------------------------------------------------------------------


def _row_name(name: str, left: float, y: float) -> Html:
    return drawing.words(
        drawing.cut(name, left - 22), left - 14, y + 4.5, "name", anchor="end", tip=name
    )


def _whisker(x: Scale, row: Dot, y: float) -> Html | None:
    """A horizontal interval with caps."""
    ends = [x(row.value if side is None else side) for side in (row.low, row.high)]
    if ends[0] == ends[1]:
        return None
    caps = [drawing.segment("whisker s1", (end, y - 4), (end, y + 4)) for end in ends]
    return join(drawing.segment("whisker s1", (ends[0], y), (ends[1], y)), *caps)


def _boxes(
    name: str, parts: Mapping[str, float], styles: Mapping[str, int], x: Scale, y: float
) -> list[Html]:
    """The parts of one bar, each with its value inside where there is room."""
    drawn, before = [], 0.0
    for part, value in parts.items():
        start, end = x(before) or 0.0, x(before + value) or 0.0
        before += value
        tip = tag("title", f"{name}, {part}: {short(value)}")
        look = drawing.look(styles[part])
        drawn.append(
            tag("rect", tip, x=drawing.at(start), y=drawing.at(y - 9), width=drawing.at(end - start),
                height=18, class_=f"fill {look}")
        )  # fmt: skip
        if drawing.wide(short(value)) + 8 < end - start:
            middle = (start + end) / 2
            drawn.append(
                drawing.words(short(value), middle, y + 4.5, f"inside {look}", anchor="middle")
            )
    return drawn
