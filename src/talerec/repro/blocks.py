"""Blocks of a reproduction's chapters: paragraphs, tables, charts, and figures as text."""

from __future__ import annotations

from dataclasses import dataclass

from talerec.reports import Html


@dataclass(frozen=True)
class Text:
    """A paragraph of a chapter of the reproduction."""

    text: str
    is_important: bool = False  # highlighted


@dataclass(frozen=True)
class Grid:
    """A table of text in a chapter of the reproduction."""

    caption: str
    header: list[str]
    rows: list[list[str]]  # each with as many cells as the header


@dataclass(frozen=True)
class Plot:
    """A chart with its caption; the HTML page shows it, RESULTS.md leaves it out."""

    chart: Html
    caption: str = ""


Block = Text | Grid | Plot
Chapter = tuple[str, list[Block]]


def compare_figures(ours: float | None, published: float | None) -> list[str]:
    """Return our figure, the paper's and the relative difference as text; a dash for None.

    The difference is in percent of the paper's figure.
    """
    if ours is None or published is None:
        return [format_figure(ours), format_figure(published), "–"]
    difference = f"{ours / published - 1:+.1%}" if published else "–"
    return [format_figure(ours), format_figure(published), difference]


def format_figure(value: float | None) -> str:
    """Return a figure as text: four decimals below 10, one above; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}".removesuffix(".0")
