"""Render the evaluation of one model on next baskets, and tables of several models."""

from __future__ import annotations

from talerec.evaluation import BasketEvaluation, Leaderboard
from talerec.reports import page
from talerec.reports.groups import draw_groups
from talerec.reports.markup import Html
from talerec.reports.report import draw_seconds, list_settings

_PART_WORDS = (
    "Repeats are items of the basket that the history has, new items the others: the same lists,"
    " with these items alone as targets, over baskets that have any. Intervals count users."
)


def render_baskets(result: BasketEvaluation, source: str) -> str:
    """Return the HTML page about the evaluation of one model on the next baskets of a log.

    result : the evaluation; source : name of the log, for the subtitle
    """
    k, shown = max(result.ks), result.to_dict()
    recall, hits = f"recall@{k}", result.metrics[f"HR@{k}"] or 0.0
    parts: list[page.Part] = [
        page.callout(
            f"The top {k} of {result.model} has {result.metrics[recall] or 0.0:.1%} of the items"
            f" of the next basket ({recall}; 95 % interval: {result.describe_interval(recall)}),"
            f" and at least one of them for {hits:.1%} of {result.description}."
        ),
        *(page.callout(f"{note}.") for note in result.notes),
        page.section("Accuracy", _accuracy(result), page.note(_PART_WORDS)),
        page.section("By group", *draw_groups({result.model: result}, recall)),
        page.section("Time spent", draw_seconds({result.model: result.seconds})),
        page.section("Settings", page.fact_list(list_settings(result))),
    ]
    hidden = ", seen items hidden" if result.hide_seen else ""
    sizes = (
        f"{shown['basket_size']:.1f} items per basket, {shown['repeat_share']:.0%} of them repeats"
    )
    subtitle = f"{source}: {result.split}, {result.on} baskets, {sizes}{hidden}"
    return page.render_page(f"How good is {result.model}?", parts, subtitle=subtitle)


def _accuracy(result: BasketEvaluation) -> Html:
    """Return a table of every metric with its interval, and those of repeats and new items."""
    repeats, new = (result.parts[part]["metrics"] for part in ("repeat", "new"))
    rows = [
        [name, value, result.describe_interval(name), repeats[name], new[name]]
        for name, value in result.metrics.items()
    ]
    header = ["Metric", "All items", "95 % interval", "Repeats", "New items"]
    return page.table(header, rows, muted=[header[2]])


def tabulate_baskets(board: Leaderboard) -> list[Html]:
    """Return tables of models on baskets, best first: metrics at the largest k, and by part."""
    metric = board.headline
    k = metric.partition("@")[2]
    names, recall = ["recall", "precision", "HR"], f"recall@{k}"
    rows, part_rows = [], []
    for label in board.order:
        result = board.results[label]
        assert isinstance(result, BasketEvaluation)
        means = [result.metrics[f"{name}@{k}"] for name in names]
        rows.append([label, result.metrics[metric], result.describe_interval(metric), *means])
        recalls = [result.parts[part]["metrics"][recall] for part in ("repeat", "new")]
        part_rows.append([label, result.metrics[f"F1@{k}"], *recalls])
    header = ["Model", metric, "95 % interval", *(f"{name}@{k}" for name in names)]
    parts = ["Model", f"F1@{k}", f"{recall} of repeats", f"{recall} of new items"]
    return [page.table(header, rows, muted=[header[2]]), page.table(parts, part_rows)]
