"""Render evaluations, comparisons and tuning runs as self-contained HTML pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import polars as pl

from talerec.evaluation import (
    LIST_ROWS,
    TARGET_ROWS,
    TIME,
    Comparison,
    Evaluation,
    PairedComparison,
    Result,
    Tuning,
    describe_setting,
    format_p_value,
    is_redundant,
)
from talerec.models import model_class
from talerec.models.core import param_fields
from talerec.reports import page
from talerec.reports.charts import scales
from talerec.reports.charts.plots import Series, line_chart, scatter_chart
from talerec.reports.charts.row_charts import DotRow, dot_chart, stacked_bar_chart
from talerec.reports.groups import draw_groups
from talerec.reports.markup import Html

_PERIODS = 12  # points on a time axis
_MOST_ORDERS = 12  # rows of a plot
#: Statistics of lists that the page shows where a result has them, with their headings.
LIST_COLUMNS = {
    "coverage": "Coverage", "novelty": "Novelty", "lift": "Lift", "gini": "Gini",
    "new": "New items", "diversity": "Diversity", "calibration": "Calibration",
}  # fmt: skip
LIST_WORDS = (
    "Coverage: share of the catalogue in any list. Novelty: -log2 of an item's share of the"
    " training rows, in bits. Lift: mean training rows of recommended items divided by those of"
    " history items. Gini, of exposure: 0 if all items are listed equally often. New: share of"
    " listed items that are not in the history. Diversity: mean distance of two items of a list by"
    " their categories. Calibration: distance of the categories of list and history; 0 if their"
    " shares are equal."
)


def _number(value: float | None) -> str:
    """Format a metric with four decimals; a dash if it is missing."""
    return "–" if value is None else f"{value:.4f}"


def _headline(ks: Sequence[int]) -> str:
    """Return the name of the metric that plots show, such as "NDCG@10".

    ks : list lengths that were evaluated; the longest counts
    """
    return f"NDCG@{max(ks)}"


# -- one model -------------------------------------------------------------------------------------


def render_evaluation(result: Evaluation, source: str) -> str:
    """Return the HTML page about the evaluation of one model on one log.

    result : the evaluation; source : name of the log, for the subtitle
    """
    k = max(result.ks)
    metrics = result.metrics
    name, hits = _headline(result.ks), f"HR@{k}"
    parts: list[page.Part] = [
        page.callout(
            f"{result.model} ranks the next item in its top {k} for {metrics[hits] or 0:.1%} of"
            f" {result.description}: {name} {_number(metrics[name])}"
            f" (95 % interval: {result.describe_interval(name)})."
        ),
        *(page.callout(f"{note}.") for note in result.notes),
        page.section("Accuracy", _accuracy(result), _hidden_note(result)),
        page.section("By group", *draw_groups({result.model: result}, name)),
        page.section("What is recommended", *_lists(result)),
        *_orders(result),
        *_windows(result),
        page.section("Time spent", draw_seconds({result.model: result.seconds})),
        page.section("Settings", page.fact_list(list_settings(result))),
    ]
    subtitle = f"{source}: {result.split}, {result.on} rows, ties {result.ties}"
    return page.render_page(f"How good is {result.model}?", parts, subtitle=subtitle)


def _accuracy(result: Evaluation) -> Html:
    """Return a table of every metric with its 95 % interval, and again with seen items hidden.

    Seen items are those of the user's history; hidden, they are not recommended. Metrics that
    repeat HR@1 (NDCG@1, MRR@1) are left out.
    """
    shown, hidden, span = result.metrics, result.metrics_hidden, result.describe_interval
    rows = [
        [n, shown[n], span(n), hidden[n], span(n, "rank_hidden")]
        for n in shown
        if not is_redundant(n)
    ]
    first = "Seen items hidden" if result.hide_seen else "All items"
    header = ["Metric", first, "95 % interval", "Seen hidden", "95 % interval "]
    return page.table(header, rows, muted=["95 % interval", "95 % interval "])


def _hidden_note(result: Evaluation) -> Html:
    """Return a note on the share of targets that are items of the history.

    A target is the item that came next in a test case; with seen items hidden, such a target cannot
    be recommended.
    """
    share = (result.groups["kind"]["repeat"]["cases"] or 0) / result.cases
    return page.note(
        f"{share:.1%} of the targets are items of the history; with seen items hidden they are"
        " misses. Intervals count users: all cases of a user are one observation."
    )


def _span(bounds: Sequence[float]) -> str:
    """Return an interval (low, high) as text: "0.1 to 0.2"."""
    return f"{_number(bounds[0])} to {_number(bounds[1])}"


def _lists(result: Evaluation) -> list[Html]:
    """Return the parts of the page on which items are recommended, not how accurately.

    A chart of the popularity (training rows) of recommended items and of targets over time, and a
    table of coverage, novelty and popularity lift by list length k, with an explanation.
    """
    k = max(result.ks)
    columns = {n: w for n, w in LIST_COLUMNS.items() if f"{n}@{k}" in result.lists}
    rows = [[f"{k}", *(result.lists[f"{name}@{k}"] for name in columns)] for k in result.ks]
    over_time = _by_period(result.frame, [f"{LIST_ROWS}@{k}", TARGET_ROWS])
    series = [
        Series("recommended items", over_time["at"], over_time[f"{LIST_ROWS}@{k}"]),
        Series("items that came next", over_time["at"], over_time[TARGET_ROWS]),
    ]
    plot = line_chart(
        series, title="Popularity over time", x_label="from", y_label="training rows per item"
    )
    words = "If the first line is above the second, the model recommends more popular items than"
    return [
        page.figure(plot, f"{words} users choose."),
        page.table(["First", *columns.values()], rows),
        page.note(LIST_WORDS),
    ]


def _by_period(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return means of `columns` over up to 12 periods with equally many test cases each.

    frame : one row per case, with its time; column `at` of the result is the date at which a period
    starts, `index` its number.
    """
    ordered = frame.sort(TIME).with_row_index("index")
    size = max(1, -(-len(frame) // _PERIODS))
    day = pl.col(TIME).min().dt.strftime("%Y-%m-%d")
    parts = ordered.group_by(pl.col("index") // size, maintain_order=True)
    return parts.agg(day.alias("at"), *(pl.col(name).mean() for name in columns))


def _orders(result: Evaluation) -> list[page.Part]:
    """Return a section with the headline metric in each evaluated order of simultaneous rows.

    Simultaneous rows have the same user and time; their order is random (`result.orders`), or that
    of the file or of item ids (`fixed_order_metrics`). Empty if there was only one order.
    """
    if len(result.orders) < 2:
        return []
    metric = _headline(result.ks)
    rows = [DotRow(o["ties"], o["metrics"][metric]) for o in result.orders[:_MOST_ORDERS]]
    fixed = result.fixed_order_metrics
    rows += [DotRow(f"{name} order", metrics[metric]) for name, metrics in fixed.items()]
    plot = dot_chart(rows, title="Orders of simultaneous rows", x_label=metric)
    return [page.section("Ties", page.figure(plot, result.tie_sentence or ""))]


def _windows(result: Evaluation) -> list[page.Part]:
    """Return a section with the headline metric in each window of a rolling evaluation.

    A window is a test period; `result.windows` has its start and metrics. Empty if there are fewer
    than two windows.
    """
    windows = result.windows
    if len(windows) < 2:
        return []
    metric = _headline(result.ks)
    begins, values = [w["window"][:10] for w in windows], [w["metrics"][metric] for w in windows]
    series = [Series(result.model, begins, values)]
    title, x_label = "Window by window", "the window begins"
    plot = line_chart(series, title=title, x_label=x_label, y_label=metric)
    return [page.section("Windows", page.figure(plot))]


def draw_seconds(rows: Mapping[str, Mapping[str, float]]) -> Html:
    """Return a chart with a stacked bar per model: the seconds of each step.

    rows : name of the model to {step: seconds}
    """
    plot = stacked_bar_chart(dict(rows), title="Seconds by step", x_label="seconds")
    return page.figure(plot)


def list_settings(result: Result) -> dict[str, Any]:
    """Return an evaluation's settings by name, for a list on the page.

    Model, parameters, the solver that ran, split, order of simultaneous rows (ties), and whether
    validation rows were trained on (refit); None values are left out.
    """
    facts = {"model": result.model, **result.params}
    more = {"solver that ran": result.solver, "split": result.split, "ties": result.ties}
    return {**facts, **{n: v for n, v in more.items() if v is not None}, "refit": result.refit}


# -- two models ------------------------------------------------------------------------------------


def render_comparison(outcome: Comparison, source: str) -> str:
    """Return the HTML page that compares model B with model A on the same users.

    outcome : the comparison: the evaluations `a` and `b`, and per metric their difference with its
    interval; source : name of the log, for the subtitle
    """
    names = _two_names(outcome)
    metric = outcome.headline
    results = dict(zip(names, (outcome.a, outcome.b), strict=True))
    pairs = {n: p for n, p in outcome.metrics.items() if not is_redundant(n)}
    both = ", with seen items allowed and hidden" if outcome.metrics_hidden else ""
    change = dot_chart(
        [DotRow(n, p.difference, *p.interval) for n, p in pairs.items()],
        title="B - A with 95 % intervals",
        x_label="difference",
        mark_x=0.0,
    )
    parts: list[page.Part] = [
        page.callout(outcome.verdict),
        *(page.note(f"{note}.") for note in outcome.notes),
        page.section("Difference", page.figure(change), _pairs(outcome.metrics, names)),
        *_hidden_pairs(outcome, names),
        page.section("By group", *draw_groups(results, metric)),
        page.section("Time spent", draw_seconds({n: r.seconds for n, r in results.items()})),
        page.section("Settings", *(page.fact_list(list_settings(r)) for r in results.values())),
        page.note(
            f"The verdict is about {metric} alone{both}."
            f" p: sign-flip test over {outcome.metrics[metric].users:,} users;"
            " effect: mean difference divided by its standard deviation."
        ),
    ]
    return page.render_page(
        "Is B better than A?", parts, subtitle=f"A: {names[0]}, B: {names[1]} ({source})"
    )


def _hidden_pairs(outcome: Comparison, names: tuple[str, str]) -> list[page.Part]:
    """Return the section on lists without seen items; empty for results of baskets."""
    if not outcome.metrics_hidden:
        return []
    return [page.section("With seen items hidden", _pairs(outcome.metrics_hidden, names))]


def _two_names(outcome: Comparison) -> tuple[str, str]:
    """Return the names of models A and B of a comparison, with (A) and (B) added if equal."""
    if outcome.names != ("A", "B"):
        return outcome.names
    return f"{outcome.a.model} (A)", f"{outcome.b.model} (B)"


def _pairs(pairs: Mapping[str, PairedComparison], names: tuple[str, str]) -> Html:
    """Return a table: per metric A, B, B - A, its 95 % interval, p-value and effect size.

    pairs : the comparison of two models by metric, user by user; names : of models A and B, as
    column headings. Metrics that repeat HR@1 (NDCG@1, MRR@1) are left out.
    """
    rows = [
        [n, p.a, p.b, p.difference, _span(p.interval), format_p_value(p.p), p.effect]
        for n, p in pairs.items()
        if not is_redundant(n)
    ]
    header = ["Metric", *names, "B - A", "95 % interval", "p", "Effect"]
    return page.table(header, rows, muted=["95 % interval"])


# -- many settings ---------------------------------------------------------------------------------


def render_tuning(study: Tuning, source: str) -> str:
    """Return the HTML page about the trials of a tuning and the effect of each parameter.

    study : the tuning: its trials (settings tried), the best parameters and the metric on
    validation rows; source : name of the log, for the subtitle
    """
    best = {name: study.params[name] for name in study.searched}
    parts: list[page.Part] = [
        page.callout(
            f"Best of {len(study.trials):,} settings on validation rows: {describe_setting(best)}"
            f" ({study.metric} {study.value:.4f})."
        ),
        page.section("Progress", page.figure(_progress(study))),
        page.section("Sensitivity", *_sensitivities(study)),
        page.section("The best trials", _best_trials(study)),
        page.section("Time spent", draw_seconds({study.model: study.seconds})),
        page.section("Settings", page.fact_list({"model": study.model, **study.params})),
    ]
    subtitle = f"{source}: {study.split}, ties {study.ties}, {study.metric} on validation rows"
    return page.render_page(f"Tuning {study.model}", parts, subtitle=subtitle)


def _progress(study: Tuning) -> Html:
    """Return a line chart of the best validation metric after each trial of a tuning.

    `study.trials` has the value of the metric (`study.metric`) of each setting tried.
    """
    so_far = list(accumulate((trial.value for trial in study.trials), max))
    series = [Series("", range(1, len(so_far) + 1), so_far)]
    return line_chart(series, title="Best so far", x_label="trials", y_label=study.metric)


def _sensitivities(study: Tuning) -> list[Html]:
    """Return one chart per searched parameter: the metric over its values, a dot per trial.

    A trial is one setting that the tuning evaluated. With fewer than 20 trials, only a note that
    says so.
    """
    if len(study.trials) < _FEW_TRIALS:
        few = f"{len(study.trials)} trials are too few to show the effect of each parameter"
        return [page.note(f"{few}; {_FEW_TRIALS} are needed.")]
    words = "Each dot is a trial. The other parameters vary too, unless a grid was used."
    return [page.note(words), *(page.figure(_sensitivity(study, name)) for name in study.searched)]


_FEW_TRIALS = 20


def _sensitivity(study: Tuning, name: str) -> Html:
    """Return a scatter chart of the metric over parameter `name`, a dot per trial.

    study : a tuning, whose trials have parameters and a value of the metric. The x axis is
    logarithmic if the parameter's search range is above 0.
    """
    field = next(f for f in param_fields(model_class(study.model)) if f.name == name)
    span = field.metadata["search"] or field.metadata["grid"]
    trials = [trial for trial in study.trials if name in trial.params]
    return scatter_chart(
        [Series("", [t.params[name] for t in trials], [t.value for t in trials])],
        title=name,
        x_label=f"{name}: {field.metadata['help']}",
        y_label=study.metric,
        log_x=min(span) > 0,
    )


def _best_trials(study: Tuning) -> Html:
    """Return a table of a tuning's twelve best trials: number, searched parameters, metric."""
    best = sorted(study.trials, key=lambda trial: -trial.value)[:_MOST_ORDERS]
    rows = [
        [str(t.number), *(scales.format_short(t.params[name]) for name in study.searched), t.value]
        for t in best
    ]
    return page.table(["Trial", *study.searched, study.metric], rows)
