"""Pages about results: one self-contained HTML file each, plots before figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from talerec.evaluation.comparison import Comparison
from talerec.evaluation.intervals import Paired
from talerec.evaluation.metrics import is_double
from talerec.evaluation.queries import GROUPS, LIST_ROWS, TARGET_ROWS, TIME
from talerec.evaluation.result import Evaluation
from talerec.evaluation.trials import Tuning, in_words
from talerec.models import model_class
from talerec.models.core import params
from talerec.reports import page
from talerec.reports.charts import scales
from talerec.reports.charts.plots import Series, bars, lines, scatter
from talerec.reports.charts.row_charts import Dot, dots, stacked
from talerec.reports.markup import Html

_PERIODS = 12  # points on a time axis
_MOST_ORDERS = 12  # rows of a plot
_GROUP_WORDS = {
    "popularity": "How popular the item is (head: the fifth of the items with most training rows)",
    "gap": "Time between the target and the row before it",
    "length": "Length of the history",
    "kind": "Whether the target is an item of the history or a new one",
}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _headline(ks: Sequence[int]) -> str:
    """The metric that plots show."""
    return f"NDCG@{max(ks)}"


# -- one model -------------------------------------------------------------------------------------


def evaluation(result: Evaluation, source: str) -> str:
    """The page about one model on one log."""
    k = max(result.ks)
    metrics, spans = result.metrics, result.intervals
    name, hits = _headline(result.ks), f"HR@{k}"
    low, high = spans[name]
    first: list[page.Part] = [
        page.callout(
            f"{result.model} has the next item among its first {k} in {metrics[hits] or 0:.1%} of"
            f" {result.asked}: {name} {_number(metrics[name])}"
            f" (95 % interval {_number(low)} to {_number(high)})."
        ),
        *(page.callout(f"{note}.") for note in result.notes),
    ]
    parts = [
        *first,
        page.section("Accuracy", _accuracy(result), _hidden_note(result)),
        page.section("By group", *_groups({result.model: result}, name)),
        page.section("What is recommended", *_lists(result)),
        *_orders(result),
        *_windows(result),
        page.section("Time spent", _spent({result.model: result.seconds})),
        page.section("Settings", page.facts(_settings(result))),
    ]
    subtitle = f"{source}: {result.split}, {result.on} rows, ties {result.ties}"
    return page.page(f"How good is {result.model}?", parts, subtitle=subtitle)


def _accuracy(result: Evaluation) -> Html:
    shown, hidden = result.metrics, result.metrics_hidden
    spans, hidden_spans = result.intervals, result.intervals_hidden
    rows = [
        [n, shown[n], _span(spans[n]), hidden[n], _span(hidden_spans[n])]
        for n in shown
        if not is_double(n)
    ]
    first = "Seen items hidden" if result.hide_seen else "All items"
    header = ["Metric", first, "95 % interval", "Seen hidden", "95 % interval "]
    return page.table(header, rows, muted=["95 % interval", "95 % interval "])


def _hidden_note(result: Evaluation) -> Html:
    share = (result.groups["kind"]["repeat"]["cases"] or 0) / result.cases
    return page.note(
        f"{share:.1%} of the targets are items of the history; with seen items hidden these are misses."
        " Intervals: bootstrap over users."
    )


def _span(bounds: Sequence[float]) -> str:
    return f"{_number(bounds[0])} to {_number(bounds[1])}"


def _groups(results: Mapping[str, Evaluation], metric: str) -> list[Html]:
    """One metric for each group of cases, with intervals; several models side by side."""
    return [
        page.figure(_group_bars(results, column, metric), words)
        for column, words in _GROUP_WORDS.items()
    ]


def _group_bars(results: Mapping[str, Evaluation], column: str, metric: str) -> Html:
    first = next(iter(results.values()))
    cases = {part: first.groups[column][part]["cases"] for part in GROUPS[column]}
    names = {part: f"{part} ({count:,})" for part, count in cases.items() if count}
    series = []
    for label, result in results.items():
        spans = [result.intervals_of(result.group(column, part))[metric] for part in names]
        values = [result.groups[column][part][metric] for part in names]
        low, high = zip(*spans, strict=True) if spans else ((), ())
        label = label if len(results) > 1 else ""  # one series needs no legend
        series.append(Series(label, list(names.values()), values, low, high))
    return bars(list(names.values()), series, title=f"{metric} by {column}", y_label=metric)


def _lists(result: Evaluation) -> list[Html]:
    k = max(result.ks)
    rows = [
        [f"{k}", *(result.lists[f"{name}@{k}"] for name in ("coverage", "novelty", "lift"))]
        for k in result.ks
    ]
    over_time = _by_period(result.frame, [f"{LIST_ROWS}@{k}", TARGET_ROWS])
    series = [
        Series("recommended items", over_time["at"], over_time[f"{LIST_ROWS}@{k}"]),
        Series("items that came next", over_time["at"], over_time[TARGET_ROWS]),
    ]
    plot = lines(
        series,
        title="Popularity over time",
        x_label="from",
        y_label="training rows per item",
    )
    return [
        page.figure(
            plot,
            "Where the first line is above the second, the model recommends more popular items than people choose.",
        ),
        page.table(["First", "Coverage", "Novelty (bits)", "Popularity lift"], rows),
        page.note(
            "Coverage: share of the catalogue in some list. Novelty: -log2 of an item's share of the"
            " training rows. Lift: training rows of recommended items over those of the histories' items."
        ),
    ]


def _by_period(frame: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Means over a dozen periods with equally many cases each; column `at` says when each begins."""
    ordered = frame.sort(TIME).with_row_index("place")
    size = max(1, -(-len(frame) // _PERIODS))
    day = pl.col(TIME).min().dt.strftime("%Y-%m-%d")
    parts = ordered.group_by(pl.col("place") // size, maintain_order=True)
    return parts.agg(day.alias("at"), *(pl.col(name).mean() for name in columns))


def _orders(result: Evaluation) -> list[page.Part]:
    if len(result.orders) < 2:
        return []
    metric = _headline(result.ks)
    found = [Dot(o["ties"], o["metrics"][metric]) for o in result.orders[:_MOST_ORDERS]]
    found += [Dot(f"{name} order", known[metric]) for name, known in result.beside.items()]
    plot = dots(found, title="Orders of simultaneous rows", x_label=metric)
    return [page.section("Ties", page.figure(plot, result.tie_sentence or ""))]


def _windows(result: Evaluation) -> list[page.Part]:
    windows = result.windows
    if len(windows) < 2:
        return []
    metric = _headline(result.ks)
    plot = lines(
        [
            Series(
                result.model,
                [w["window"][:10] for w in windows],
                [w["metrics"][metric] for w in windows],
            )
        ],
        title="Window by window",
        x_label="the window begins",
        y_label=metric,
    )
    return [page.section("Windows", page.figure(plot))]


def _spent(rows: Mapping[str, Mapping[str, float]]) -> Html:
    plot = stacked(dict(rows), title="Seconds by step", x_label="seconds")
    return page.figure(plot)


def _settings(result: Evaluation) -> dict[str, Any]:
    facts = {"model": result.model, **result.params}
    more = {"solver that ran": result.solver, "split": result.split, "ties": result.ties}
    return {**facts, **{n: v for n, v in more.items() if v is not None}, "refit": result.refit}


# -- two models ------------------------------------------------------------------------------------


def comparison(found: Comparison, source: str) -> str:
    """The page about B against A."""
    names = _two_names(found)
    metric = found.headline
    results = dict(zip(names, (found.a, found.b), strict=True))
    pairs = {n: p for n, p in found.metrics.items() if not is_double(n)}
    change = dots(
        [Dot(n, p.difference, *p.interval) for n, p in pairs.items()],
        title="B - A with 95 % intervals",
        x_label="difference",
        mark_x=0.0,
    )
    parts: list[page.Part] = [
        page.callout(found.verdict),
        *(page.note(f"{note}.") for note in found.notes),
        page.section("Difference", page.figure(change), _pairs(found.metrics, names)),
        page.section("With seen items hidden", _pairs(found.metrics_hidden, names)),
        page.section("By group", *_groups(results, metric)),
        page.section("Time spent", _spent({n: r.seconds for n, r in results.items()})),
        page.section("Settings", *(page.facts(_settings(r)) for r in results.values())),
        page.note(
            f"The verdict is about {metric} alone. p: sign-flip test over"
            f" {found.metrics[metric].users:,} users; effect: mean difference over its standard deviation."
        ),
    ]
    return page.page(
        "Is B better than A?", parts, subtitle=f"A: {names[0]}, B: {names[1]} ({source})"
    )


def _two_names(found: Comparison) -> tuple[str, str]:
    a, b = found.a.model, found.b.model
    return (a, b) if a != b else (f"{a} (A)", f"{b} (B)")


def _pairs(pairs: Mapping[str, Paired], names: tuple[str, str]) -> Html:
    rows = [
        [n, p.a, p.b, p.difference, _span(p.interval), f"{p.p:.2g}", p.effect]
        for n, p in pairs.items()
        if not is_double(n)
    ]
    header = ["Metric", *names, "B - A", "95 % interval", "p", "Effect"]
    return page.table(header, rows, muted=["95 % interval"])


# -- many settings ---------------------------------------------------------------------------------


def tuning(found: Tuning, source: str) -> str:
    """The page about what was tried, and how much each parameter matters."""
    best = {name: found.params[name] for name in found.searched}
    parts: list[page.Part] = [
        page.callout(
            f"The best of {len(found.trials):,} settings on validation rows: {in_words(best)}"
            f" ({found.metric} {found.value:.4f})."
        ),
        page.section("Progress", page.figure(_progress(found))),
        page.section("Sensitivity", *_sensitivities(found)),
        page.section("The best trials", _best_trials(found)),
        page.section("Time spent", _spent({found.model: found.seconds})),
        page.section("Settings", page.facts({"model": found.model, **found.params})),
    ]
    subtitle = f"{source}: {found.split}, ties {found.ties}, {found.metric} on validation rows"
    return page.page(f"Tuning {found.model}", parts, subtitle=subtitle)


def _progress(found: Tuning) -> Html:
    so_far, best = [], float("-inf")
    for trial in found.trials:
        best = max(best, trial.value)
        so_far.append(best)
    numbers = list(range(1, len(so_far) + 1))
    return lines(
        [Series("", numbers, so_far)], title="Best so far", x_label="trials", y_label=found.metric
    )


def _sensitivities(found: Tuning) -> list[Html]:
    """A plot for every parameter, where there are trials enough to show something."""
    if len(found.trials) < _FEW_TRIALS:
        few = f"{len(found.trials)} trials are too few to show how much each parameter matters"
        return [page.note(f"{few}; from {_FEW_TRIALS} on they are plotted here.")]
    words = "Each dot is a trial. The other parameters differ too, unless a grid was tried."
    return [page.note(words), *(page.figure(_sensitivity(found, name)) for name in found.searched)]


_FEW_TRIALS = 20


def _sensitivity(found: Tuning, name: str) -> Html:
    field = next(f for f in params.fields(model_class(found.model)) if f.name == name)
    span = field.metadata["search"] or field.metadata["grid"]
    tried = [trial for trial in found.trials if name in trial.params]
    return scatter(
        [Series("", [t.params[name] for t in tried], [t.value for t in tried])],
        title=name,
        x_label=f"{name}: {field.metadata['help']}",
        y_label=found.metric,
        log_x=min(span) > 0,
    )


def _best_trials(found: Tuning) -> Html:
    best = sorted(found.trials, key=lambda trial: -trial.value)[:_MOST_ORDERS]
    rows = [
        [str(t.number), *(scales.short(t.params[name]) for name in found.searched), t.value]
        for t in best
    ]
    return page.table(["Trial", *found.searched, found.metric], rows)
