"""A report as one HTML file that needs nothing else: no script, no host, no second file.

A page is a list of parts, one after the other. A plain `str` is a paragraph of somebody's text and is
escaped; what the functions here and the charts return is markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from numbers import Integral, Real
from typing import Any

from talerec.reports.charts.scales import real, short, written
from talerec.reports.markup import Html, tag

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_DIGITS = 4  # decimals of a float in a table


@dataclass(frozen=True)
class Section:
    """A heading and the parts under it."""

    heading: str
    parts: tuple[str, ...]


Part = str | Section


def page(title: str, parts: Sequence[Part], *, subtitle: str = "") -> str:
    """The whole document, with a table of contents where there are three sections or more."""
    numbers = count(1)
    body = [
        _section(part, next(numbers)) if isinstance(part, Section) else _block(part)
        for part in parts
    ]
    headings = [part.heading for part in parts if isinstance(part, Section)]
    top = tag("header", tag("h1", title), tag("p", subtitle) if subtitle else None)
    document = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", title),
            tag("style", _style()),
        ),
        tag("body", tag("main", top, _contents(headings), *body)),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{document}\n"


def section(heading: str, *parts: str) -> Section:
    """A section of a page."""
    return Section(heading, parts)


def callout(text: str) -> Html:
    """A sentence that a reader must not miss."""
    return tag("p", text, class_="callout")


def note(text: str) -> Html:
    """Background information, in small print."""
    return tag("p", text, class_="note")


def figure(chart: Html, caption: str = "") -> Html:
    """A chart with its caption; on a narrow screen it scrolls in its own box."""
    below = tag("figcaption", caption) if caption else None
    return tag("figure", tag("div", chart, class_="scroll"), below)


def picture(chart: Html) -> str:
    """A chart as an SVG file of its own, which looks as it does on a page."""
    look = "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    opened, rest = chart.split(">", 1)
    named = f'{opened} xmlns="http://www.w3.org/2000/svg"'
    return f"{named}><style>{_style()}{look}</style>{rest}\n"


def facts(values: Mapping[str, Any]) -> Html:
    """Names and values, in two columns."""
    rows = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", short(value) if isinstance(value, float) else _cell(value)),
        )
        for name, value in values.items()
    ]
    return tag("dl", *rows)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str = "",
    numeric: Collection[str] | None = None,
    muted: Collection[str] = (),
) -> Html:
    """A table; None is shown as a dash.

    numeric: the columns of figures, all but the first unless given
    muted:   the columns that are less important
    """
    figures = header[1:] if numeric is None else numeric
    classes = [_classes(name in figures, name in muted) for name in header]
    head = [tag("th", n, scope="col", class_=c) for n, c in zip(header, classes, strict=True)]
    body = [tag("tr", *_cells(row, classes)) for row in rows]
    above = tag("caption", caption) if caption else None
    inner = tag("table", above, tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag(
        "div", inner, class_="scroll", role="region", aria_label=caption or "table", tabindex=0
    )


# -- pieces ----------------------------------------------------------------------------------------


def _style() -> Html:
    return Html("\n" + files("talerec.reports").joinpath("page.css").read_text(encoding="utf-8"))


def _section(part: Section, number: int) -> Html:
    heading = tag("h2", part.heading, id=f"part-{number}")
    return tag("section", heading, *map(_block, part.parts))


def _block(part: str) -> Html:
    return part if isinstance(part, Html) else tag("p", part)


def _contents(headings: Sequence[str]) -> Html | None:
    if len(headings) < 3:
        return None
    links = [
        tag("li", tag("a", name, href=f"#part-{number}")) for number, name in enumerate(headings, 1)
    ]
    return tag("nav", tag("ol", *links), aria_label="Contents")


def _classes(figure: bool, muted: bool) -> str | None:
    return " ".join(["figure"] * figure + ["muted"] * muted) or None


def _cells(row: Sequence[Any], classes: Sequence[str | None]) -> Iterator[Html]:
    """The cells of a row; the first is its heading."""
    for place, (value, kind) in enumerate(zip(row, classes, strict=True)):
        if place:
            yield tag("td", _cell(value), class_=kind)
        else:
            yield tag("th", _cell(value), scope="row", class_=kind)


def _cell(value: Any) -> str:
    """A value as it is shown: text unchanged, whole numbers in full, floats to four decimals."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return written(int(value), 0)
    if value is None or isinstance(value, Real):
        number = real(value)
        return short(None) if number is None else written(number, _DIGITS)
    return str(value)
