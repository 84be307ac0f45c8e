"""Results that show themselves: an HTML page, and a chart for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from talerec.exports import import_export


class Reportable:
    """A result with a page and a chart, which the room `reports`, above this one, renders."""

    def report(self, path: str | Path | None = None, *, source: str = "log") -> Any:
        """Return the HTML page about this result, and write it to a file if `path` is given.

        Parameters
        ----------
        path
            The file to write.
        source
            The name of the log, for the page's subtitle.

        Returns
        -------
        ReportPage
            The text of the page, which works offline; notebooks show it.
        """
        return import_export("talerec.reports", "render_result")(self, source).save_to(path)

    def plot(self) -> Any:
        """Return a chart of this result that notebooks show.

        Returns
        -------
        Chart
            The text of an SVG file, which needs nothing else; ``chart.save("chart.svg")`` writes
            it.
        """
        return import_export("talerec.reports", "plot_result")(self)
