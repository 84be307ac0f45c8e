"""A report as one HTML file that needs nothing else: no script, no host, no second file.

Parts are put one after the other. A plain `str` is a paragraph of somebody's text and is escaped;
what the functions here and in `charts` give is markup.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from numbers import Integral, Real
from typing import Any

from talerec.reports.markup import Html, join, tag
from talerec.reports.svg.scales import real, short, written

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SAFE_LINK = re.compile(r"(https?://|mailto:|#|(?!//)[\w./-]+$)", re.ASCII)


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; a section in a section is a smaller one."""

    heading: str
    parts: tuple[Part, ...]


Part = str | Section


def page(title: str, parts: Sequence[Part], *, subtitle: str = "") -> str:
    """The whole document, with a table of contents where there are several sections."""
    headings: list[str] = []
    body = [_part(part, 2, headings) for part in parts]
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


def section(heading: str, *parts: Part) -> Section:
    return Section(heading, parts)


def paragraph(*pieces: str) -> Html:
    """Text with links, code and strong words in it."""
    return tag("p", *pieces)


def callout(*pieces: str) -> Html:
    """The sentence that a reader must not miss."""
    return tag("p", *pieces, class_="callout")


def note(*pieces: str) -> Html:
    """What is good to know, in small."""
    return tag("p", *pieces, class_="note")


def code(text: str) -> Html:
    """A command or a piece of a file, to be copied as it is."""
    return tag("pre", tag("code", text), tabindex=0)


def strong(text: str) -> Html:
    return tag("strong", text)


def link(text: str, target: str) -> Html:
    """A link to the web or to a file nearby; any other kind of address is left as text."""
    return tag("a", text, href=target) if _SAFE_LINK.match(target) else join(text)


def figure(chart: Html, caption: str = "") -> Html:
    """A chart with its caption; where the screen is narrow, it scrolls in its own box."""
    below = tag("figcaption", caption) if caption else None
    return tag("figure", tag("div", chart, class_="scroll"), below)


def facts(values: Mapping[str, Any]) -> Html:
    """Names and what they are, in two columns."""
    rows = [
        tag(
            "div",
            tag("dt", name),
            tag("dd", short(value) if isinstance(value, float) else _cell(value, 0)),
        )
        for name, value in values.items()
    ]
    return tag("dl", *rows)


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    caption: str = "",
    numeric: bool | Collection[str] = True,
    best: Mapping[str, str] | None = None,
    muted: Collection[str] = (),
    digits: int | Mapping[str, int] = 4,
) -> Html:
    """A table. `numeric` are the columns of figures, True for all but the first; `best` has "max" or
    "min" for the columns whose best value is set in bold, all that read the same as it included;
    `muted` are columns that stand back. Floats get `digits` decimals (of one column: {name: decimals},
    else 4), None is a dash."""
    places = {name: digits if isinstance(digits, int) else digits.get(name, 4) for name in header}
    figures = header[1:] if numeric is True else numeric or ()
    kinds = [_kind(name in figures, name in muted) for name in header]
    winners = {
        name: _winner(header.index(name), rows, which, places[name])
        for name, which in (best or {}).items()
    }
    head = tag(
        "tr", *(tag("th", n, scope="col", class_=k) for n, k in zip(header, kinds, strict=True))
    )
    body = []
    for row in rows:
        cells = []
        for place, (name, kind, value) in enumerate(zip(header, kinds, row, strict=True)):
            text = _cell(value, places[name])
            shown = strong(text) if text == winners.get(name) else text
            cells.append(
                tag("td", shown, class_=kind)
                if place
                else tag("th", shown, scope="row", class_=kind)
            )
        body.append(tag("tr", *cells))
    above = tag("caption", caption) if caption else None
    held = tag("table", above, tag("thead", head), tag("tbody", *body))
    return tag(
        "div", held, class_="scroll", role="region", aria_label=caption or "table", tabindex=0
    )


# -- pieces ----------------------------------------------------------------------------------------


def _style() -> Html:
    return Html("\n" + files("talerec.reports").joinpath("page.css").read_text(encoding="utf-8"))


def _part(part: Part, level: int, headings: list[str]) -> Html:
    if isinstance(part, Section):
        name = None
        if level == 2:
            headings.append(part.heading)
            name = f"part-{len(headings)}"
        inner = [_part(one, level + 1, headings) for one in part.parts]
        return tag("section", tag(f"h{min(level, 6)}", part.heading, id=name), *inner)
    return part if isinstance(part, Html) else tag("p", part)


def _contents(headings: Sequence[str]) -> Html | None:
    if len(headings) < 3:
        return None
    links = [
        tag("li", tag("a", name, href=f"#part-{number}")) for number, name in enumerate(headings, 1)
    ]
    return tag("nav", tag("ol", *links), aria_label="Contents")


def _kind(figure: bool, quiet: bool) -> str | None:
    return " ".join(["figure"] * figure + ["muted"] * quiet) or None


def _cell(value: Any, digits: int) -> str:
    """A value as it is shown: text as it is, whole numbers in full, floats to so many decimals."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return written(int(value), 0)
    if value is None or isinstance(value, Real):
        number = real(value)
        return short(None) if number is None else written(number, digits)
    return str(value)


def _winner(column: int, rows: Sequence[Sequence[Any]], which: str, digits: int) -> str | None:
    """The best value of a column as it reads, so that equal readings are equally good."""
    found = [
        row[column]
        for row in rows
        if not isinstance(row[column], str) and real(row[column]) is not None
    ]
    return _cell({"max": max, "min": min}[which](found), digits) if found else None
