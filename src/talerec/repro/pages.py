"""Write a reproduction as RESULTS.md and as an HTML page with the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from talerec.reports import Html, page
from talerec.repro import paper
from talerec.repro.blocks import Block, Chapter, Grid, Plot, Text
from talerec.repro.chapters import chapters
from talerec.repro.experiments import Study
from talerec.runtime import write_text

_INTRODUCTION = (
    "Tables use the exact solver, figures the local solver above 4,000 items; every row is"
    " leave-one-out on the test rows, with the settings of paper.toml."
)


def write(studies: Sequence[Study], folder: Path) -> tuple[Path, Path]:
    """Write RESULTS.md and results.html into a folder, and return their paths in this order.

    studies : the experiments of each data set of the paper
    """
    contents = chapters(studies)
    text, html = folder / "RESULTS.md", folder / "results.html"
    write_text(text, _markdown(contents))
    write_text(html, _html(contents))
    return text, html


def _markdown(contents: Sequence[Chapter]) -> str:
    """Return the text of RESULTS.md: all chapters without their charts.

    contents : (heading, blocks) pairs; a block is a paragraph, a table or a chart
    """
    parts = [f"# {paper.title()}: reproduced\n", _INTRODUCTION]
    for heading, blocks in contents:
        shown = [_as_markdown(block) for block in blocks if not isinstance(block, Plot)]
        if shown:
            parts += [f"\n## {heading}", *shown]
    return "\n".join(parts) + "\n"


def _as_markdown(block: Text | Grid) -> str:
    """Return a paragraph (bold if important) or a table with its caption as Markdown."""
    if isinstance(block, Text):
        return f"\n**{block.text}**" if block.is_important else f"\n{block.text}"
    lines = [block.header, ["---", *["--:"] * (len(block.header) - 1)], *block.rows]
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"\n{block.caption}\n\n{body}"


def _html(contents: Sequence[Chapter]) -> str:
    """Return the HTML page of all chapters with their charts.

    contents : (heading, blocks) pairs; a block is a paragraph, a table or a chart
    """
    sections = [
        page.section(heading, *map(_as_html, blocks)) for heading, blocks in contents if blocks
    ]
    return page.render_page(
        "The paper, reproduced", [_INTRODUCTION, *sections], subtitle=paper.title()
    )


def _as_html(block: Block) -> Html:
    """Return a paragraph, chart or table as HTML; columns of figures are right-aligned."""
    if isinstance(block, Text):
        return page.callout(block.text) if block.is_important else page.note(block.text)
    if isinstance(block, Plot):
        return page.figure(block.chart, block.caption)
    numeric = [
        name
        for column, name in enumerate(block.header)
        if all(row[column][:1] in "0123456789+-–" for row in block.rows)
    ]
    return page.table(block.header, block.rows, caption=block.caption, numeric=numeric)
