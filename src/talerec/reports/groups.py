"""Charts of one metric by groups of the cases of an evaluation, models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from talerec.evaluation import BasketEvaluation, Result
from talerec.reports import page
from talerec.reports.charts.plots import Series, bar_chart
from talerec.reports.markup import Html

_GROUP_WORDS = {
    "popularity": "How popular the item is (head: the fifth of the items with most training rows)",
    "gap": "Time between the target and the previous event",
    "length": "Length of the history",
    "kind": "Whether the target is an item of the history or a new one",
    "item_rows": "Training rows of the item: none, few (1 to 4) or many",
    "user": "Whether the user has training rows, or is new since the model was fitted",
    "position": "Position of the target in its session",
    "repeat_share": "Share of the basket's items that the history has",
}


def draw_groups(results: Mapping[str, Result], metric: str) -> list[Html]:
    """Return one bar chart of a metric per grouping of the test cases, models side by side.

    results : evaluations by the name of the model, on the same cases. Groupings are those of
    `_GROUP_WORDS` that all results have.
    """
    return [
        page.figure(_draw_bars(results, column, metric), words)
        for column, words in _GROUP_WORDS.items()
        if all(column in result.groups for result in results.values())
    ]


def _draw_bars(results: Mapping[str, Result], column: str, metric: str) -> Html:
    """Return a bar chart of a metric with 95 % intervals, by one grouping of the test cases.

    results : evaluations by name of the model, on the same cases (held-out rows or baskets);
    column : the grouping, such as "popularity". Groups without cases are left out.
    """
    first = next(iter(results.values()))
    cases = {part: group["cases"] for part, group in first.groups[column].items()}
    names = {part: f"{part} ({count:,})" for part, count in cases.items() if count}
    series = []
    for label, result in results.items():
        bars = [_read_group(result, column, part, metric) for part in names]
        values = [value for value, _ in bars]
        low, high = zip(*(ends for _, ends in bars), strict=True) if bars else ((), ())
        label = label if len(results) > 1 else ""  # one series needs no legend
        series.append(Series(label, list(names.values()), values, low, high))
    title = f"{metric} by {column.replace('_', ' ')}"
    return bar_chart(list(names.values()), series, title=title, y_label=metric)


def _read_group(result: Result, column: str, part: str, metric: str) -> tuple[Any, Sequence[float]]:
    """Return the mean of a metric in one group of cases, and its 95 % interval."""
    if isinstance(result, BasketEvaluation):
        group = result.groups[column][part]
        return group["metrics"][metric], group["intervals"][metric]
    return result.groups[column][part][metric], result.group_intervals(column, part)[metric]
