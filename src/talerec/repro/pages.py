"""The reproduction as two files for people: RESULTS.md, and a page with the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from talerec.reports import page
from talerec.reports.markup import Html
from talerec.repro import paper
from talerec.repro.chapters import Block, Chapter, Grid, Plot, Text, chapters
from talerec.repro.experiments import Study
from talerec.runtime.files import write_text

_INTRODUCTION = (
    "Tables with the exact solver, figures with the local one where there are more than 4,000 items;"
    " every row by leave-one-out on the test rows, settings as in paper.toml."
)


def write(studies: Sequence[Study], folder: Path) -> tuple[Path, Path]:
    """Write RESULTS.md and results.html, and say where they are."""
    found = chapters(studies)
    text, html = folder / "RESULTS.md", folder / "results.html"
    write_text(text, _markdown(found))
    write_text(html, _html(found))
    return text, html


def _markdown(found: Sequence[Chapter]) -> str:
    parts = [f"# {paper.title()}: reproduced\n", _INTRODUCTION]
    for heading, blocks in found:
        shown = [_as_markdown(block) for block in blocks if not isinstance(block, Plot)]
        if shown:
            parts += [f"\n## {heading}", *shown]
    return "\n".join(parts) + "\n"


def _as_markdown(block: Text | Grid) -> str:
    if isinstance(block, Text):
        return f"\n**{block.text}**" if block.important else f"\n{block.text}"
    lines = [block.header, ["---", *["--:"] * (len(block.header) - 1)], *block.rows]
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"\n{block.caption}\n\n{body}"


def _html(found: Sequence[Chapter]) -> str:
    sections = [
        page.section(heading, *map(_as_html, blocks)) for heading, blocks in found if blocks
    ]
    return page.page("The paper, reproduced", [_INTRODUCTION, *sections], subtitle=paper.title())


def _as_html(block: Block) -> Html:
    if isinstance(block, Text):
        return page.callout(block.text) if block.important else page.note(block.text)
    if isinstance(block, Plot):
        return page.figure(block.chart, block.caption)
    numeric = [
        name
        for place, name in enumerate(block.header)
        if all(row[place][:1] in "0123456789+-–" for row in block.rows)
    ]
    return page.table(block.header, block.rows, caption=block.caption, numeric=numeric)
