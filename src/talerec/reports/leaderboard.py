"""Render several models on one split as a self-contained HTML page."""

from __future__ import annotations

from typing import Any

from talerec.evaluation import Leaderboard, format_p_value
from talerec.reports import page
from talerec.reports.charts.row_charts import DotRow, dot_chart, stacked_bar_chart
from talerec.reports.charts.trade_off import TradePoint, trade_off_chart
from talerec.reports.markup import Html

_MIN_SECONDS = 0.01  # models that take less stand at the left end of the axis


def render_leaderboard(board: Leaderboard, source: str) -> str:
    """Return the HTML page about several models on one log.

    board : results, differences to the first model and costs; source : name of the log
    """
    result = board.results[board.first]
    parts: list[page.Part] = [
        page.callout(board.advice),
        *(page.note(f"{note}.") for note in board.notes),
        page.section("Accuracy against time", page.figure(draw_trade_off(board), _WORDS)),
        page.section("Accuracy", _accuracy(board), *_hidden(board), _lists(board)),
        *_differences(board),
        page.section("Time and memory", *_costs(board)),
        *_skipped(board),
        page.section("Settings", *(page.fact_list(_settings(board, n)) for n in board.order)),
    ]
    title = f"{len(board.results)} models"
    subtitle = f"{source}: {result.split}, {result.description}, ties {result.ties}"
    return page.render_page(title, parts, subtitle=subtitle)


_WORDS = (
    "Right and up: slower and more accurate. Vertical lines are 95 % intervals; the line joins the"
    " models that no other one beats in both respects. Seconds are those of fitting and ranking,"
    " with the steps that models share; the log is read once."
)


def draw_trade_off(board: Leaderboard) -> Html:
    """Return the chart of accuracy against seconds of fit and evaluation: a point per model."""
    metric = board.headline
    points = [
        TradePoint(
            label,
            max(board.seconds(label), _MIN_SECONDS),
            board.results[label].metrics[metric] or 0.0,
            *board.results[label].intervals[metric],
        )
        for label in board.order
    ]
    title = "Accuracy against seconds"
    return trade_off_chart(points, title=title, x_label="seconds", y_label=metric)


def _accuracy(board: Leaderboard) -> Html:
    """Return a table of the models, best first: metrics at the largest k, and their interval."""
    metric = board.headline
    k = metric.partition("@")[2]
    names = [f"HR@{k}", f"MRR@{k}"]
    rows = [
        [
            label,
            board.results[label].metrics[metric],
            board.results[label].describe_interval(metric),
            board.results[label].metrics_hidden[metric],
            *(board.results[label].metrics[name] for name in names),
        ]
        for label in board.order
    ]
    header = ["Model", metric, "95 % interval", "Seen hidden", *names]
    return page.table(header, rows, muted=[header[2]])


def _lists(board: Leaderboard) -> Html:
    """Return a table of what the lists of the models are like, at the largest k."""
    k = board.headline.partition("@")[2]
    names = {"coverage": "Coverage", "gini": "Gini of exposure", "novelty": "Novelty (bits)"}
    rows = [
        [label, *(board.results[label].lists.get(f"{name}@{k}") for name in names)]
        for label in board.order
    ]
    return page.table(["Model", *names.values()], rows)


def _hidden(board: Leaderboard) -> list[Html]:
    """Return a note if some results are about lists without seen items."""
    hidden = [label for label, result in board.results.items() if result.hide_seen]
    return [page.note(f"Seen items are hidden in the lists of {', '.join(hidden)}.")] * bool(hidden)


def _differences(board: Leaderboard) -> list[page.Part]:
    """Return the section on differences to the first model; empty if there is one model only."""
    if len(board.results) < 2:
        return []
    metric, labels = board.headline, [name for name in board.order if name != board.first]
    pairs = {label: board.differences[label].metrics[metric] for label in labels}
    chart = dot_chart(
        [DotRow(label, pair.difference, *pair.interval) for label, pair in pairs.items()],
        title=f"{metric}, less that of {board.first}",
        x_label="difference with 95 % interval",
        mark_x=0.0,
    )
    hidden = {label: board.differences[label].metrics_hidden[metric] for label in labels}
    rows = [
        [
            label, pairs[label].difference, format_p_value(board.adjusted["metrics"][label]),
            hidden[label].difference, format_p_value(board.adjusted["metrics_hidden"][label]),
        ]
        for label in labels
    ]  # fmt: skip
    header = ["Model", "Difference", "p (Holm)", "Seen hidden", "p (Holm) "]
    words = (
        f"Paired by user, sign-flip test over {next(iter(pairs.values())).users:,} users; p-values"
        f" are corrected by Holm's method for {len(pairs)} tests."
    )
    heading = f"Difference to {board.first}"
    return [page.section(heading, page.figure(chart), page.table(header, rows), page.note(words))]


def _costs(board: Leaderboard) -> list[Html]:
    """Return the seconds of each model by step as a chart, and a table with memory."""
    steps = {label: board.results[label].seconds.items() for label in board.order}
    seconds = {label: {n: v for n, v in pairs if v >= 0.005} for label, pairs in steps.items()}
    chart = stacked_bar_chart(seconds, title="Seconds by step", x_label="seconds")
    if not board.costs:
        return [page.figure(chart)]
    rows: list[list[Any]] = []
    for label in board.order:
        cost, shared = board.costs[label], sum(board.costs[label].shared_seconds.values())
        sums = [f"{max(board.seconds(label) - shared, 0.0):.2f}", f"{shared:.2f}"]
        rows.append([label, *sums, None if cost.peak_mb is None else round(cost.peak_mb)])
    table = page.table(["Model", "Own seconds", "Shared seconds", "Peak memory (MB)"], rows)
    whole = ", ".join(f"{name} {value:.1f} s" for name, value in board.run_seconds.items())
    words = (
        f"Shared: steps that two or more models use; each was computed once. Of the run: {whole}."
        " The table leaves out the one-time compilation of kernels. Memory is the high-water mark"
        " of the process, reset before each model; it includes the log and what models share."
    )
    return [page.figure(chart), table, page.note(words)]


def _skipped(board: Leaderboard) -> list[page.Part]:
    """Return the section on models that were not evaluated; empty if there are none."""
    if not board.skipped:
        return []
    rows = [[entry.label, entry.reason] for entry in board.skipped]
    return [page.section("Not evaluated", page.table(["Model", "Why"], rows, numeric=()))]


def _settings(board: Leaderboard, label: str) -> dict[str, Any]:
    """Return a model's parameters by name, with its label and the solver that ran."""
    result = board.results[label]
    return {"model": label, **result.params, "solver that ran": result.solver or "none"}
