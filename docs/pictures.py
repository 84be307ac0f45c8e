"""Generate the charts, the gallery and the command reference: `python docs/pictures.py`.

The output goes to docs/made: charts as SVG files, the gallery's reports as HTML pages, the command
reference as Markdown. The chart of the README is written to docs/static, which is committed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import commands
import numpy as np

import talerec as tr
from talerec.reports import Series, line_chart, page, report, stacked_bar_chart

DOCS = Path(__file__).parent
MADE = DOCS / "made"
_SHOPPER = 290  # position of a user whose history items lead to different recommendations


def make_shop() -> tr.Log:
    """Return the synthetic log of `talerec demo`, a third as large."""
    return tr.synthetic_log(60_000, seed=0)


def draw_explanation(log: tr.Log, model: tr.Model) -> str:
    """Return an SVG chart: top items of one user, with the contribution of each history item."""
    titles = dict(zip(log.items.ids.to_list(), log.info["title"].to_list(), strict=True))
    history = log.items.ids.gather(
        log.item[log.ptr[_SHOPPER] : log.ptr[_SHOPPER + 1]][-4:]
    ).to_list()
    rows: dict[str, dict[str, float | None]] = {}
    for item in model.recommend_histories([history], k=6, hide_seen=True)["item_id"]:
        contributions = model.explain(history, item).rows()
        rows[titles[item]] = {
            "popular now" if source is None else titles[source]: max(share, 0.0)
            for source, share in contributions
        }
    return stacked_bar_chart(
        rows, title="Recommended items, by contribution of each history item", x_label="score"
    )


def draw_learned_recency(model: tr.Tempo) -> str:
    """Return an SVG chart of the weight of a history item by lag: default and learned."""
    lags = np.arange(17)
    recency = float(model.fitted.weights.query_arrays["number_recency"][0])
    series = [
        Series("default", lags, np.exp(-lags / 6)),
        Series("learned from this log", lags, np.exp(-lags / recency)),
    ]
    return line_chart(
        series,
        title="Weight of a history item",
        x_label="lag: number of later events",
        y_label="weight",
    )


def draw_growth(figures: dict[str, list[float]]) -> str:
    """Return an SVG chart of seconds and memory per million events, by size of the log."""
    rows = figures["rows"]
    per_million = [s / r * 1e6 for s, r in zip(figures["seconds"], rows, strict=True)]
    memory = [g / r * 1e6 for g, r in zip(figures["gigabytes"], rows, strict=True)]
    series = [
        Series("seconds per million events", rows, per_million),
        Series("GB per million events", rows, memory),
    ]
    return line_chart(
        series,
        title="Cost of a million events, from file to artifact",
        x_label="events in the log, 20 per item",
        y_label="",
        log_x=True,
    )


def render_gallery(log: tr.Log) -> dict[str, str]:
    """Return the gallery's HTML reports by name."""
    split = tr.leave_one_out(log)
    rules, tempo = (tr.evaluate(m.fit(split.train), split) for m in (tr.Rules(), tr.Tempo()))
    return {
        "evaluation": report.render_evaluation(tempo, "a synthetic shop"),
        "comparison": report.render_comparison(tr.compare(rules, tempo), "a synthetic shop"),
    }


def main() -> None:
    """Write all generated files of the documentation."""
    (MADE / "gallery").mkdir(parents=True, exist_ok=True)
    log = make_shop()
    model = tr.Tempo().fit(log)
    figures = tomllib.loads((DOCS / "figures.toml").read_text("utf-8"))
    (DOCS / "static" / "why.svg").write_text(
        page.standalone_svg(draw_explanation(log, model)), "utf-8"
    )
    (MADE / "learned.svg").write_text(page.standalone_svg(draw_learned_recency(model)), "utf-8")
    (MADE / "growth.svg").write_text(page.standalone_svg(draw_growth(figures["growth"])), "utf-8")
    (MADE / "commands.md").write_text(commands.render_commands(), "utf-8")
    for name, text in render_gallery(log).items():
        (MADE / "gallery" / f"{name}.html").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
