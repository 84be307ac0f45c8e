"""Reports as self-contained HTML files: no script, no second file, nothing fetched.

A page is a sequence of parts. A plain `str` is a paragraph of text and is escaped; the functions
here and the charts return markup (`Html`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from numbers import Integral, Real
from typing import Any

from talerec.reports.charts.scales import finite_number, format_fixed, format_short
from talerec.reports.markup import Html, tag

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_DIGITS = 4  # decimals of a float in a table


@dataclass(frozen=True)
class Section:
    """A section of an HTML page."""

    heading: str
    parts: tuple[str, ...]  # markup (`Html`), or plain text, which becomes a paragraph


Part = str | Section


def render_page(title: str, parts: Sequence[Part], *, subtitle: str = "") -> str:
    """Return a whole HTML document; three or more sections get a table of contents.

    parts : sections, markup (`Html`), or plain text, which becomes an escaped paragraph
    """
    section_number = count(1)
    body = [
        _section(p, next(section_number)) if isinstance(p, Section) else _block(p) for p in parts
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
    """Return a section of a page."""
    return Section(heading, parts)


def callout(text: str) -> Html:
    """Return a highlighted paragraph."""
    return tag("p", text, class_="callout")


def note(text: str) -> Html:
    """Return a paragraph in small print."""
    return tag("p", text, class_="note")


def figure(chart: Html, caption: str = "") -> Html:
    """Return a chart with its caption; on a narrow screen it scrolls in its own box."""
    below = tag("figcaption", caption) if caption else None
    return tag("figure", tag("div", chart, class_="scroll"), below)


def standalone_svg(chart: Html) -> str:
    """Return the text of an SVG file for a chart, an <svg> element, with the page's styles."""
    look = "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    opened, rest = chart.split(">", 1)
    named = f'{opened} xmlns="http://www.w3.org/2000/svg"'
    return f"{named}><style>{_style()}{look}</style>{rest}\n"


def fact_list(values: Mapping[str, Any]) -> Html:
    """Return names and values as an HTML definition list in two columns.

    Floats are shown with four significant digits.
    """
    rows = []
    for name, value in values.items():
        text = format_short(value) if isinstance(value, float) else _format_cell(value)
        rows.append(tag("div", tag("dt", name), tag("dd", text)))
    return tag("dl", *rows)


def folded(summary: str, values: Mapping[str, Any]) -> Html:
    """Return names and values as `fact_list` does, which appear when a reader opens `summary`."""
    return tag("details", tag("summary", summary), fact_list(values))


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str = "",
    numeric: Collection[str] | None = None,
    muted: Collection[str] = (),
) -> Html:
    """Return an HTML table that scrolls in its own box; None is shown as a dash.

    numeric: names of right-aligned columns; by default all but the first
    muted:   names of columns in a lighter colour
    """
    figures = header[1:] if numeric is None else numeric
    classes = [_classes(name in figures, name in muted) for name in header]
    head = [tag("th", n, scope="col", class_=c) for n, c in zip(header, classes, strict=True)]
    body = [tag("tr", *_cells(row, classes)) for row in rows]
    above = tag("caption", caption) if caption else None
    inner = tag("table", above, tag("thead", tag("tr", *head)), tag("tbody", *body))
    label = caption or "table"
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex=0)


# -- pieces ----------------------------------------------------------------------------------------


def _style() -> Html:
    """Return the CSS of the page."""
    return Html("\n" + files("talerec.reports").joinpath("page.css").read_text(encoding="utf-8"))


def _section(part: Section, number: int) -> Html:
    """Return a section (heading and parts) as HTML.

    number : of the section, from 1; the heading's anchor is part-NUMBER
    """
    heading = tag("h2", part.heading, id=f"part-{number}")
    return tag("section", heading, *map(_block, part.parts))


def _block(part: str) -> Html:
    """Return markup as it is, and plain text as an escaped paragraph."""
    return part if isinstance(part, Html) else tag("p", part)


def _contents(headings: Sequence[str]) -> Html | None:
    """Return a table of contents with links to the sections; None for fewer than three.

    headings : of the sections, in their order
    """
    if len(headings) < 3:
        return None
    links = [tag("li", tag("a", h, href=f"#part-{n}")) for n, h in enumerate(headings, 1)]
    return tag("nav", tag("ol", *links), aria_label="Contents")


def _classes(figure: bool, muted: bool) -> str | None:
    """Return the CSS classes of a cell: figure (right-aligned) and muted; None for neither."""
    return " ".join(["figure"] * figure + ["muted"] * muted) or None


def _cells(row: Sequence[Any], classes: Sequence[str | None]) -> Iterator[Html]:
    """Yield the cells of a table row as HTML, the first as row heading.

    row : the values; classes : the CSS classes of each column, None for none
    """
    for column, (value, kind) in enumerate(zip(row, classes, strict=True)):
        if column:
            yield tag("td", _format_cell(value), class_=kind)
        else:
            yield tag("th", _format_cell(value), scope="row", class_=kind)


def _format_cell(value: Any) -> str:
    """Return a table value as text: whole numbers in full, floats to four decimals.

    Text stays as it is, bool is yes or no, and a missing or infinite number is a dash.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return format_fixed(int(value), 0)
    if value is None or isinstance(value, Real):
        number = finite_number(value)
        return format_short(None) if number is None else format_fixed(number, _DIGITS)
    return str(value)
