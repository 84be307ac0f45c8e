"""The pieces of charts: text that fits, a head with a legend, axes, marks.

Places are in units of the drawing, y downwards. A place that is None is outside the chart, and nothing
is drawn there.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from talerec.reports.charts.scales import Names, Scale, real
from talerec.reports.markup import Html, join, tag

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

Place = tuple[float | None, float | None]


class Point(NamedTuple):
    """The places of a value and its interval, and the text of its tooltip."""

    tip: str
    x: float | None
    y: float | None
    low: float | None
    high: float | None

    @property
    def shown(self) -> bool:
        """Whether it is inside the chart."""
        return self.x is not None and self.y is not None


# -- text ------------------------------------------------------------------------------------------


def wide(text: str, size: float = _FONT) -> float:
    """About how wide a text is at most: letters as in the widest of the usual fonts."""
    return size * sum(map(_letter, text))


def _letter(letter: str) -> float:
    if letter in " .,:;!'|()[]-/fijlrtI":
        return 0.4
    if letter in "mwMW@%…" or unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.72 if letter.isupper() else 0.64


def cut(text: str, room: float) -> str:
    """As much of a text as fits, with an ellipsis for the rest."""
    while wide(text) > room + _ROUNDING and len(text) > 1:
        text = text[:-2].rstrip() + "…"
    return text


def wrap(text: str, room: float, size: float = _FONT) -> list[str]:
    """A text as lines that fit; only a word that is longer than a line is cut."""
    found: list[str] = []
    for word in text.split():
        if found and wide(f"{found[-1]} {word}", size) <= room:
            found[-1] += f" {word}"
        else:
            found.append(cut(word, room))
    return found


def words(
    text: str, x: float, y: float, kind: str, *, anchor: str | None = None, tip: str | None = None
) -> Html:
    """A text; `tip` is its tooltip where the text was cut."""
    more = tag("title", tip) if tip is not None and tip != text else None
    return tag("text", text, more, x=at(x), y=at(y), class_=kind, text_anchor=anchor)


def at(value: float) -> str:
    """A place as SVG has it: to a hundredth, without needless zeros."""
    return f"{round(value, 2) + 0.0:g}"


# -- the chart and its head ------------------------------------------------------------------------


def svg(title: str, height: float, description: str, *parts: Html | None) -> Html:
    """The chart; `description` says in words what it shows, for those who do not see it."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *parts,
        class_="chart",
        viewBox=f"0 0 {WIDTH} {at(height)}",
        role="img",
        aria_label=title,
    )


class Key(NamedTuple):
    """An entry of the legend: a name, and a sample of its look around (0, 0)."""

    name: str
    sample: Html
    width: float = 15


def head(title: str, keys: Sequence[Key], y_label: str) -> tuple[float, Html]:
    """Title, legend and the name of the vertical axis; and where the plot may begin."""
    keys = [key for key in keys if key.name]
    y, parts = 2.0, []
    for line in wrap(title, WIDTH, 17):
        y += 20
        parts.append(words(line, 0, y - 4, "title"))
    x = 0.0
    y += LINE + 4 if keys else 0
    for name, sample, width in keys:
        label = cut(name, WIDTH - width - 6)
        if x and x + width + 6 + wide(label) > WIDTH:
            x, y = 0.0, y + LINE + 2
        parts.append(tag("g", sample, transform=_moved(x + width / 2, y - 4.5)))
        parts.append(words(label, x + width + 6, y, "key", tip=name))
        x += width + wide(label) + 24
    if y_label:
        y += LINE + 6
        parts.append(words(y_label, 0, y, "label"))
    return y + 16, join(*parts)


def line_key(name: str, style: int) -> Key:
    """The legend's entry of a line."""
    sample = tag("path", d="M-14 0h28", class_=f"line {look(style)}")
    return Key(name, join(sample, marker(style)), 28)


def box_key(name: str, style: int) -> Key:
    """The legend's entry of bars."""
    box = tag("rect", x=-7, y=-7, width=14, height=14, class_=f"fill {look(style)}")
    return Key(name, box)


def look(style: int) -> str:
    """The class that gives a series its colour and dash."""
    return f"s{style % STYLES + 1}"


# -- axes ------------------------------------------------------------------------------------------


def margin(y: Scale) -> float:
    """The room that the labels of a vertical axis take at the left."""
    return max(wide(label) for _, label in y.ticks) + 12


def across(y: Scale, left: float, right: float) -> Html:
    """Lines at the ticks of a vertical axis, with their labels."""
    ticks = []
    for value, label in y.ticks:
        rule = tag("line", x1=at(left), x2=at(right), class_="zero" if value == 0 else "grid")
        text = words(label, left - 8, 4.5, "tick", anchor="end")
        ticks.append(tag("g", rule, text, class_="y-tick", transform=_moved(0, y(value))))
    return join(*ticks)


def below(x: Scale | Names, top: float, bottom: float, label: str) -> tuple[float, Html]:
    """The horizontal axis under a plot from `top` to `bottom`, and where the chart ends."""
    ticks = _thinned(x)
    widest = max((wide(text) for _, text in ticks), default=0.0)
    tilt = isinstance(x, Names) and widest > x.slot - 4
    parts = []
    for place, text in ticks:
        rule = (
            tag("line", y1=at(top), y2=at(bottom), class_="grid") if isinstance(x, Scale) else None
        )
        flat = words(text, 0, bottom + 19, "tick", anchor="middle")
        put = _tilted(text, place, bottom) if tilt else flat
        parts.append(tag("g", rule, put, class_="x-tick", transform=_moved(place, 0)))
    end = bottom + (26 + 0.6 * min(widest, _TILTED) if tilt else 26)
    if label:
        lines = wrap(label, WIDTH - x.start)
        middle = (x.start + x.end) / 2
        for line in lines:
            end += LINE
            parts.append(words(line, middle, end - 2, "label", anchor="middle"))
    return end + 4, join(*parts)


def room_of_tilted(x: Names) -> float:
    """How far from the left an axis of names begins, so that its tilted names are not cut there."""
    if max(map(wide, x.names), default=0.0) <= x.slot - 4:
        return x.start
    shares = ((place + 0.5) / len(x.names) for place in range(len(x.names)))
    return max(
        (0.82 * min(wide(name), _TILTED) + 2 - share * x.end) / (1 - share)
        for name, share in zip(x.names, shares, strict=True)
    )


def _thinned(x: Scale | Names) -> list[tuple[float, str]]:
    """Ticks in places; only every second, third, ... where the labels would touch, and always zero."""
    ticks = [(place, text) for value, text in x.ticks if (place := x(value)) is not None]
    if isinstance(x, Names):
        return ticks if x.slot > 14 else ticks[:: int(14 / x.slot) + 1]
    room = abs(x.end - x.start) / max(len(ticks), 1)
    step = int(max((wide(text) + 10 for _, text in ticks), default=0) / room) + 1
    zero = next((place for place, (value, _) in enumerate(x.ticks) if value == 0), 0)
    some = ticks[zero % step :: step]
    return some if len(some) > 1 else [*ticks[:1], *ticks[1:][-1:]]


def _tilted(text: str, place: float, bottom: float) -> Html:
    put = f"translate(4 {at(bottom + 15)}) rotate(-35)"
    label = cut(text, min(_TILTED, place / 0.82))
    more = tag("title", text) if label != text else None
    return tag("text", label, more, class_="tick", text_anchor="end", transform=put)


def upright(x: Scale | Names, y: Scale, value: Any, label: str) -> Html | None:
    """A vertical line over the whole height at a value worth knowing."""
    place = x(value)
    if place is None:
        return None
    ahead = place + wide(label) + 8 < WIDTH
    text = words(
        label, place + (6 if ahead else -6), y.end + 10, "label", anchor=None if ahead else "end"
    )
    return join(segment("mark", (place, y.start), (place, y.end)), text if label else None)


# -- marks -----------------------------------------------------------------------------------------


def marker(style: int, *, tip: str | None = None) -> Html:
    """The symbol of a series, around (0, 0)."""
    more = [] if tip is None else [tag("title", tip)]
    shape = _MARKERS[style % STYLES]
    return tag("path", *more, d=shape, class_=f"marker {look(style)}")


def mark(style: int, place: Place, tip: str) -> Html | None:
    """A marker at a place, with its tooltip."""
    x, y = place
    if x is None or y is None:
        return None
    return tag("g", marker(style, tip=tip), class_="point", transform=_moved(x, y))


def segment(kind: str, start: Place, end: Place) -> Html | None:
    """A straight line, if both of its ends are inside the chart."""
    if None in start or None in end:
        return None
    (x1, y1), (x2, y2) = _known(start), _known(end)
    return tag("line", x1=at(x1), y1=at(y1), x2=at(x2), y2=at(y2), class_=kind)


def stroke(points: Sequence[Point], style: int) -> Html | None:
    """A line through the points, broken where one is missing."""
    runs = [_path((p.x, p.y) for p in run) for run in _runs(points) if len(run) > 1]
    return tag("path", d="".join(runs), class_=f"line {look(style)}") if runs else None


def _whisker(point: Point, kind: str) -> Html:
    """A vertical interval with caps."""
    x, low, high = point.x, point.low, point.high
    low, high = (point.y if low is None else low), (point.y if high is None else high)
    if x is None or low is None or high is None or low == high:
        return Html()
    caps = [segment(kind, (x - 3, y), (x + 3, y)) for y in (low, high)]
    return join(segment(kind, (x, low), (x, high)), *caps)


def bar(
    point: Point, style: int, zero: float | None, width: float, text: str, *, flat: bool
) -> Html | None:
    """A bar from zero with its whisker, and its value beyond both: written across if `flat`, else along."""
    x, y = point.x, point.y
    if x is None or y is None or zero is None:
        return None
    box = tag(
        "rect", tag("title", point.tip), x=at(x - width / 2), y=at(min(y, zero)), width=at(width),
        height=at(abs(y - zero)), class_=f"fill {look(style)}",
    )  # fmt: skip
    ends = [place for place in (y, point.low, point.high) if place is not None]
    below = y > zero
    end = max(ends) + (14 if flat else 6) if below else min(ends) - 5
    anchor = "middle" if flat else "end" if below else "start"
    put = _moved(x, end) if flat else f"{_moved(x + 4, end)} rotate(-90)"
    value = tag("text", text, class_="value", text_anchor=anchor, transform=put)
    over = [_whisker(point, kind) for kind in ("halo", "whisker over")]
    return join(box, *over, value if text else None)


def nothing(x: float, y: float) -> Html:
    """The text in the middle of a chart that has no values."""
    return words("nothing to show", x, y, "label", anchor="middle")


def _path(places: Iterable[Place]) -> str:
    return "".join(
        f"{'L' if number else 'M'}{at(x)} {at(y)}"
        for number, (x, y) in enumerate(_known(place) for place in places)
    )


def _known(place: Place) -> tuple[float, float]:
    x, y = place
    assert x is not None
    assert y is not None
    return x, y


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The points between gaps, run by run."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.shown:
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _moved(x: float | None, y: float | None) -> str:
    return f"translate({at(real(x) or 0.0)} {at(real(y) or 0.0)})"
