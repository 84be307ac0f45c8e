"""The pictures, the gallery and the page of commands of the documentation, made by the library itself: `python docs/pictures.py`.

Everything is written to docs/made: charts as SVG files, the reports of the gallery as pages of their own, commands as Markdown. README's
picture is kept in docs/static.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import commands
import numpy as np

import talerec as tr
from talerec.reports import page, report
from talerec.reports.charts.plots import Series, lines
from talerec.reports.charts.row_charts import stacked

DOCS = Path(__file__).parent
MADE = DOCS / "made"
_SHOPPER = 290  # one whose rows lead to different things


def shop() -> tr.Log:
    """The shop of `talerec demo`, a third as large."""
    return tr.synthetic_log(60_000, seed=0)


def why(log: tr.Log, model: tr.Model) -> str:
    """What comes next for one shopper, and what each row of the history adds to it."""
    titles = dict(zip(log.items.ids.to_list(), log.info["title"].to_list(), strict=True))
    history = log.items.ids.gather(
        log.item[log.ptr[_SHOPPER] : log.ptr[_SHOPPER + 1]][-4:]
    ).to_list()
    rows: dict[str, dict[str, float | None]] = {}
    for item in model.recommend_histories([history], k=6, hide_seen=True)["item_id"]:
        parts = model.explain(history, item).rows()
        rows[titles[item]] = {
            "popular now" if one is None else titles[one]: max(share, 0.0) for one, share in parts
        }
    return stacked(rows, title="What next, and what each row of the history adds", x_label="score")


def learned(model: tr.Tempo) -> str:
    """What a row of the history counts, by default and as this log chose it."""
    places = np.arange(17)
    recency = float(model.fitted.weights.query_arrays["number_recency"][0])
    series = [
        Series("by default", places, np.exp(-places / 6)),
        Series("learned from this log", places, np.exp(-places / recency)),
    ]
    return lines(
        series,
        title="What a row of the history counts",
        x_label="rows since then",
        y_label="weight",
    )


def growth(figures: dict[str, list[float]]) -> str:
    """How the cost of a fit grows with the log."""
    rows = figures["rows"]
    per_million = [s / r * 1e6 for s, r in zip(figures["seconds"], rows, strict=True)]
    memory = [g / r * 1e6 for g, r in zip(figures["gigabytes"], rows, strict=True)]
    series = [
        Series("seconds per million rows", rows, per_million),
        Series("GB per million rows", rows, memory),
    ]
    return lines(
        series,
        title="The cost of a million rows, from file to artifact",
        x_label="rows of the log, 20 per item",
        y_label="",
        log_x=True,
    )


def gallery(log: tr.Log) -> dict[str, str]:
    """The reports that commands write, as pages."""
    split = tr.leave_one_out(log)
    one, other = (tr.evaluate(m.fit(split.train), split) for m in (tr.Rules(), tr.Tempo()))
    found: dict[str, Any] = {
        "evaluation": report.evaluation(other, "a made-up shop"),
        "comparison": report.comparison(tr.compare(one, other), "a made-up shop"),
    }
    return found


def main() -> None:
    (MADE / "gallery").mkdir(parents=True, exist_ok=True)
    log = shop()
    model = tr.Tempo().fit(log)
    figures = tomllib.loads((DOCS / "figures.toml").read_text("utf-8"))
    (DOCS / "static" / "why.svg").write_text(page.picture(why(log, model)), "utf-8")
    (MADE / "learned.svg").write_text(page.picture(learned(model)), "utf-8")
    (MADE / "growth.svg").write_text(page.picture(growth(figures["growth"])), "utf-8")
    (MADE / "commands.md").write_text(commands.page(), "utf-8")
    for name, text in gallery(log).items():
        (MADE / "gallery" / f"{name}.html").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
