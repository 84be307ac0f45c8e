"""Pages and charts of results, as text that notebooks show and that can be saved."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Self

from talerec.errors import TalerecError
from talerec.evaluation import (
    BasketEvaluation,
    Comparison,
    Evaluation,
    Leaderboard,
    Tuning,
    is_redundant,
)
from talerec.reports import report
from talerec.reports.baskets import render_baskets
from talerec.reports.charts.row_charts import DotRow, dot_chart
from talerec.reports.leaderboard import draw_trade_off, render_leaderboard
from talerec.reports.page import standalone_svg
from talerec.runtime import write_text


class SavedText(str):
    """Text that can be written to a file."""

    def save(self, path: str | Path) -> Path:
        """Write the text to a file, which appears only once it is complete; return the path."""
        write_text(Path(path), self)
        return Path(path)

    def save_to(self, path: str | Path | None) -> Self:
        """Write the text to a file unless `path` is None, and return the text."""
        if path is not None:
            self.save(path)
        return self


class ReportPage(SavedText):
    """The text of an HTML page, which works offline; notebooks show it in a frame."""

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, so that its styles do not change the notebook."""
        text = escape(self, quote=True)
        return f'<iframe srcdoc="{text}" width="100%" height="640" style="border:0"></iframe>'


class Chart(SavedText):
    """The text of an SVG file with a chart; notebooks show the chart."""

    def _repr_svg_(self) -> str:
        """Return the SVG."""
        return str(self)


def render_result(result: Any, source: str) -> ReportPage:
    """Return the HTML page about a result; source: the name of the log or files.

    result: an `Evaluation`, `BasketEvaluation`, `Comparison`, `Leaderboard` or `Tuning`;
    TalerecError for others.
    """
    kinds: dict[type, Any] = {
        Evaluation: report.render_evaluation,
        BasketEvaluation: render_baskets,
        Comparison: report.render_comparison,
        Leaderboard: render_leaderboard,
        Tuning: report.render_tuning,
    }
    for kind, render in kinds.items():
        if isinstance(result, kind):
            return ReportPage(render(result, source))
    raise TalerecError(f"there is no page about a {type(result).__name__}")


def plot_result(result: Any) -> Chart:
    """Return a chart of a result: metrics with intervals, or accuracy against seconds.

    result: an `Evaluation`, a `BasketEvaluation`, or a `Leaderboard` of several models.
    """
    if isinstance(result, Leaderboard):
        return Chart(standalone_svg(draw_trade_off(result)))
    shown = [name for name in result.metrics if not is_redundant(name)]
    rows = [DotRow(name, result.metrics[name], *result.intervals[name]) for name in shown]
    title = f"{result.model}, {result.split}: {result.description}"
    return Chart(standalone_svg(dot_chart(rows, title=title, x_label="mean and 95 % interval")))
