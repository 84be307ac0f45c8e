"""Render several models on one split as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping

from talerec.evaluation import Evaluation, Leaderboard, format_p_value
from talerec.reports import page
from talerec.reports.baskets import tabulate_baskets
from talerec.reports.charts.row_charts import DotRow, dot_chart, stacked_bar_chart
from talerec.reports.charts.trade_off import TradePoint, trade_off_chart
from talerec.reports.markup import Html
from talerec.reports.report import LIST_COLUMNS, LIST_WORDS, draw_seconds

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
        page.section("Accuracy", *_accuracy(board)),
        *_differences(board),
        page.section("Time and memory", *_costs(board)),
        *_skipped(board),
        page.section("Settings", *(_settings(board, label) for label in board.order)),
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


def _accuracy(board: Leaderboard) -> list[Html]:
    """Return tables of the models, best first: metrics at the largest k, and of the lists."""
    results = {n: r for n, r in board.results.items() if isinstance(r, Evaluation)}
    if not results:
        return [*tabulate_baskets(board), *_hidden(board)]
    tables = [_tabulate_accuracy(board, results), *_hidden(board)]
    return [*tables, _tabulate_lists(board, results), page.note(LIST_WORDS)]


def _tabulate_accuracy(board: Leaderboard, results: Mapping[str, Evaluation]) -> Html:
    """Return a table of the models, best first: metrics at the largest k, and their interval.

    results : those of `board`, by label
    """
    metric = board.headline
    k = metric.partition("@")[2]
    names = [f"HR@{k}", f"MRR@{k}"]
    has_twin = not _all_hide_seen(board)
    rows = [
        [
            label,
            results[label].metrics[metric],
            results[label].describe_interval(metric),
            *([results[label].metrics_hidden[metric]] if has_twin else []),
            *(results[label].metrics[name] for name in names),
        ]
        for label in board.order
    ]
    header = ["Model", metric, "95 % interval", *(["Seen hidden"] if has_twin else []), *names]
    return page.table(header, rows, muted=[header[2]])


def _tabulate_lists(board: Leaderboard, results: Mapping[str, Evaluation]) -> Html:
    """Return a table of what the lists of the models are like, at the largest k.

    results : those of `board`, by label
    """
    k = board.headline.partition("@")[2]
    lists = [results[label].lists for label in board.order]
    names = [name for name in LIST_COLUMNS if any(f"{name}@{k}" in each for each in lists)]
    rows = [
        [label, *(each.get(f"{name}@{k}") for name in names)]
        for label, each in zip(board.order, lists, strict=True)
    ]
    return page.table(["Model", *(LIST_COLUMNS[name] for name in names)], rows)


def _all_hide_seen(board: Leaderboard) -> bool:
    """Return whether all lists are without seen items: the metrics "seen hidden" are the same."""
    return all(result.hide_seen for result in board.results.values())


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
    header, columns = ["Model"], []
    for name, adjusted in board.adjusted.items():
        is_first = name == "metrics"
        if not is_first and _all_hide_seen(board):
            continue
        header += ["Difference", "p (Holm)"] if is_first else ["Seen hidden", "p (Holm) "]
        compared = {label: getattr(board.differences[label], name)[metric] for label in labels}
        columns.append([compared[label].difference for label in labels])
        columns.append([format_p_value(adjusted[label]) for label in labels])
    rows = [list(row) for row in zip(labels, *columns, strict=True)]
    words = (
        f"Paired by user, sign-flip test over {next(iter(pairs.values())).users:,} users; p-values"
        f" are corrected by Holm's method for {len(pairs)} tests, intervals are not."
    )
    heading = f"Difference to {board.first}"
    return [page.section(heading, page.figure(chart), page.table(header, rows), page.note(words))]


def _costs(board: Leaderboard) -> list[Html]:
    """Return the own and shared seconds of each model as a chart, and a table with memory.

    Results that were read from files have no costs: the chart has their seconds by step.
    """
    if not board.costs:
        return [draw_seconds({label: board.results[label].seconds for label in board.order})]
    seconds, rows = {}, []
    for label in board.order:
        cost, shared = board.costs[label], sum(board.costs[label].shared_seconds.values())
        own_seconds = max(board.seconds(label) - shared, 0.0)
        seconds[label] = {"own": own_seconds, "shared": shared}
        peak = None if cost.peak_mb is None else round(cost.peak_mb)
        rows.append([label, f"{own_seconds:.2f}", f"{shared:.2f}", peak])
    chart = stacked_bar_chart(seconds, title="Own and shared seconds", x_label="seconds")
    table = page.table(["Model", "Own seconds", "Shared seconds", "Peak memory (MB)"], rows)
    whole = ", ".join(f"{name} {value:.1f} s" for name, value in board.run_seconds.items())
    words = (
        f"Shared: steps that two or more models use; each was computed once. Of the run: {whole}."
        " Seconds are without the one-time compilation of kernels. Memory is the high-water mark"
        " of the process, reset before each model; it includes the log and what models share."
    )
    return [page.figure(chart), table, page.note(words)]


def _skipped(board: Leaderboard) -> list[page.Part]:
    """Return the section on models that were not evaluated; empty if there are none."""
    if not board.skipped:
        return []
    rows = [[entry.label, entry.reason] for entry in board.skipped]
    return [page.section("Not evaluated", page.table(["Model", "Why"], rows, numeric=()))]


def _settings(board: Leaderboard, label: str) -> Html:
    """Return a model's parameters by name, and the solver that ran, below its label, folded."""
    result = board.results[label]
    return page.folded(label, {**result.params, "solver that ran": result.solver or "none"})
