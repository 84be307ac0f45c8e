"""Chapters of a reproduction: the paper's tables and figures, and more experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from talerec.reports import DotRow, Series, bar_chart, dot_chart, line_chart
from talerec.repro import paper
from talerec.repro.blocks import Block, Chapter, Grid, Plot, Text, compare_figures, format_figure
from talerec.repro.experiments import ORDERS, SWEEPS, TABLE_ROWS, Facts, Study
from talerec.repro.measures import SPANS

_METRIC = "NDCG@10"
_NEURAL_NOTE = "neural models: the paper's figures; neural=True computes them too"
_LINEAR = ("SLIST", "TALE")
_GAPS = ("short", "mid", "long")
_SUMMARY_METRICS = ("HR@5", "NDCG@5", "NDCG@10")


def chapters(studies: Sequence[Study]) -> list[Chapter]:
    """Return all chapters of a reproduction of the paper as (heading, blocks) pairs.

    studies : the experiments of each data set with their results; a block is a paragraph, a table
    or a chart
    """
    return [*_from_the_paper(studies), *_beyond_the_paper(studies)]


# -- the paper's tables and figures ----------------------------------------------------------------


def _from_the_paper(studies: Sequence[Study]) -> Iterable[Chapter]:
    """Yield the chapters with the paper's tables and figures, as (heading, blocks) pairs.

    studies : the experiments of each data set; a block is a paragraph, a table or a chart
    """
    yield "Summary", [_summary(studies), *_tie_warnings(studies)]
    yield "Table 1: the data", [_grid(1, s, {"log": _statistics(s)}) for s in studies]
    note = Text(_NEURAL_NOTE)
    yield "Table 2: accuracy", [*(_grid(2, s, _accuracy(s)) for s in studies), note]
    yield "Table 3: efficient models", [*(_grid(3, s, _efficiency(s)) for s in studies), note]
    yield "Tables 4 and 10: head and tail", _head_and_tail(studies)
    yield "Table 5: ablation", list(_ablation(studies))
    yield "Table 8: weights and intervals", list(_correlations(studies))
    yield "Figures: the data", list(_data_figures(studies))
    yield "Figures: accuracy by interval", [_by_gap(s) for s in studies]
    yield "Figures: sensitivity", [_sweep(s, name) for s in studies for name in SWEEPS]
    yield "Figures: weight by popularity", [_weights(s) for s in studies]


def _correlations(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield Table 8 per data set: correlation of a model's weights and inverse intervals.

    studies : the experiments of each data set; the models are SLIST and TALE
    """
    yield Text(
        "Pearson's r of the weights and 1 / (1 + mean days between), over pairs of items that ever"
        " followed each other; the paper does not say how it treats other pairs, or an interval"
        " of 0."
    )
    for study in studies:
        rows = {row: {"pearson": study.row(row)["correlation"]} for row in _LINEAR}
        yield _grid(8, study, rows)


def _summary(studies: Sequence[Study]) -> Block:
    """Return a table of SLIST's and TALE's main metrics: ours, the paper's, the difference.

    studies : the experiments of each data set, with their results
    """
    rows = []
    for study in studies:
        for name in _LINEAR:
            metrics, printed = study.row(name)["metrics"], paper.table(2)
            for metric in _SUMMARY_METRICS:
                both = compare_figures(
                    metrics[metric], printed.figure(study.dataset.key, name, metric)
                )
                rows.append([study.dataset.name, name, metric, *both])
    header = ["data", "model", "metric", "ours", "paper", "difference"]
    return Grid("Linear rows of Table 2, exact solver", header, rows)


def _tie_warnings(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield a paragraph for each data set in which many rows of a user have the same time.

    It gives TALE's accuracy in the published order of such rows and in random order. studies : the
    experiments of each data set; `beside` of a result has the metrics in fixed orders.
    """
    for study in filter(lambda study: study.has_ties, studies):
        facts = study.random_ties_tuned()
        mean, spread = facts["metrics"][_METRIC], facts["spread"][_METRIC]
        published = study.random_ties("TALE")["beside"][study.dataset.ties][_METRIC]
        yield Text(
            f"{study.dataset.name}: {facts['tied']:.0%} of neighbouring rows have the same time. In"
            f" {study.dataset.ties} order, as published, TALE has {_METRIC} {published:.4f}; with"
            f" simultaneous rows in random order it has {mean:.4f} ± {spread:.4f}"
            f" ({ORDERS}, {_describe_settings(study.settings_for_ties)}).",
            is_important=True,
        )


def _describe_settings(settings: dict[str, Any]) -> str:
    """Return parameters and values as text, such as "floor 0.3"; "same settings" for none."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.items()) or "same settings"


def _grid(number: int, study: Study, ours: dict[str, dict[str, float | None]]) -> Block:
    """Return a table of the paper for one data set, with quoted and with computed rows.

    number : of the table; study : the experiments of the data set; ours : our figures by row and
    column, None where there is none. A computed row is followed by the paper's and by their
    difference; other rows are quoted from the paper.
    """
    table = paper.table(number)
    rows: list[list[str]] = []
    for name, printed in table.figures.get(study.dataset.key, {}).items():
        if name not in ours:
            rows.append([f"{name} (paper)", *map(format_figure, printed)])
            continue
        computed = [ours[name].get(column) for column in table.columns]
        both = [compare_figures(a, b) for a, b in zip(computed, printed, strict=True)]
        label = _label(name)
        labels = [label, f"{label} (paper)" if name != "log" else "paper", "difference"]
        rows += [[text, *cells] for text, *cells in zip(labels, *both, strict=True)]
    return Grid(study.dataset.name, ["", *table.columns], rows)


def _label(row: str) -> str:
    """Return a row's label: its name, or for an ablation code its parts in words.

    "12-" is "single target + time weights", "---" is "none (SLIT)", "log" (our statistics) is
    "here".
    """
    if row == "log":
        return "here"
    if len(row) == 3 and set(row) <= set("123-"):
        parts = {"1": "single target", "2": "time weights", "3": "trend"}
        return " + ".join(parts[sign] for sign in row if sign != "-") or "none (SLIT)"
    return row


def _statistics(study: Study) -> dict[str, float | None]:
    """Return the columns of the paper's Table 1 for a data set, by name.

    Counts of users, items and rows, density in percent, mean rows per user and mean days between
    rows. study : the experiments of one data set
    """
    facts = study.statistics()
    return {
        "users": facts["users"],
        "items": facts["items"],
        "rows": facts["rows"],
        "density_percent": 100 * facts["density"],
        "length": facts["rows_per_user"]["mean"],
        "interval_days": facts["interval_days"]["mean"],
    }


def _accuracy(study: Study) -> dict[str, dict[str, float | None]]:
    """Return the metrics of the linear and neural models, by row of the paper's Table 2.

    study : the experiments of one data set; a row is a model by its printed name
    """
    return {row: facts["metrics"] for row, facts in _linear_and_neural(study).items()}


def _linear_and_neural(study: Study) -> dict[str, Facts]:
    """Return the results of SLIST and TALE, and of the neural models if computed, by name.

    study : the experiments of one data set. Results are the fields of an Evaluation.
    """
    linear = {row: study.row(row) for row in _LINEAR}
    return linear | {row: study.neural_row(row) for row in study.neural_rows}


def _efficiency(study: Study) -> dict[str, dict[str, float | None]]:
    """Return the columns of Table 3 by model: metrics, and seconds to train and to evaluate.

    study : the experiments of one data set; training is building the Gram and solving it
    """
    efficiency = {}
    for row, facts in _linear_and_neural(study).items():
        seconds = facts["seconds"]
        train = seconds["gram"] + seconds["solve"]
        efficiency[row] = {**facts["metrics"], "train": train, "eval": seconds["score"]}
    return efficiency


def _split_by_popularity(facts: Facts) -> dict[str, float | None]:
    """Return NDCG@5 of an experiment over all targets, over tail items and over head items.

    facts : fields of an Evaluation; head : the fifth of the items with the most training rows
    """
    groups = facts["groups"]["popularity"]
    parts = {part: groups[part]["NDCG@5"] for part in ("tail", "head")}
    return {"all": facts["metrics"]["NDCG@5"], **parts}


def _head_and_tail(studies: Sequence[Study]) -> list[Block]:
    """Return NDCG@5 for head and tail items per data set, as in Tables 4 and 10.

    studies : the experiments of each data set; the result is a paragraph and a table each
    """
    blocks: list[Block] = [Text("NDCG@5; head: the fifth of the items with most training rows.")]
    for study in studies:
        number = 4 if study.dataset.key in paper.table(4).figures else 10
        rows = {row: _split_by_popularity(study.row(row)) for row in TABLE_ROWS}
        blocks.append(_grid(number, study, rows))
    return blocks


def _ablation(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield Table 5 per data set that it has, and how the variants rank here and in the paper.

    A variant is TALE without some of its parts. studies : the experiments of each data set
    """
    for study in studies:
        printed = paper.table(5).figures.get(study.dataset.key)
        if printed is None:
            continue
        ours = {row: _split_by_popularity(study.row(row)) for row in printed}
        yield _grid(5, study, ours)
        by_us = sorted(ours, key=lambda row: -(ours[row]["all"] or 0.0))
        by_them = sorted(printed, key=lambda row: -printed[row][0])
        yield Text(f"Best to worst here: {_names(by_us)}. In the paper: {_names(by_them)}.")


def _names(rows: Iterable[str]) -> str:
    """Return the labels of rows of the paper's tables, separated by commas."""
    return ", ".join(_label(row) for row in rows)


def _data_figures(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield charts of intervals: shares of item pairs, and changes of genre, by interval.

    studies : the experiments of each data set. An interval is the time between consecutive rows of
    a user, in classes such as "1 day".
    """
    spans = list(SPANS)
    shares = [
        Series(s.dataset.name, spans, [s.co_occurrence()[span] for span in spans]) for s in studies
    ]
    chart = bar_chart(spans, shares, title="Co-occurrence over intervals", y_label="share of pairs")
    yield Plot(chart, "Pairs of consecutive items by the mean time between them.")
    for study in studies:
        changes = study.transitions()
        if changes is not None:
            change = Series("", spans, [changes[span] for span in spans])
            title = f"{study.dataset.name}: the genre changes"
            yield Plot(
                bar_chart(spans, [change], title=title, y_label="probability"),
                "How often the first genre differs from the previous item's, by the time between.",
            )


def _by_gap(study: Study) -> Block:
    """Return a bar chart of NDCG@5 of SLIST and TALE by the time since the previous event.

    study : the experiments of one data set; groups are short, mid and long thirds of the gaps
    """
    series = [
        Series(row, _GAPS, [study.row(row)["groups"]["gap"][g]["NDCG@5"] for g in _GAPS])
        for row in _LINEAR
    ]
    title = f"{study.dataset.name}: NDCG@5"
    chart = bar_chart(_GAPS, series, title=title, y_label="NDCG@5")
    return Plot(chart, "By the time between the test row and the previous event, in thirds.")


def _sweep(study: Study, name: str) -> Block:
    """Return a line chart of TALE's NDCG@10 over the values of parameter `name`.

    study : the experiments of one data set. A vertical line marks the value of the paper's Table 7,
    if it has one.
    """
    chosen = paper.settings(study.dataset.key, "TALE").params.get(name)
    chart = line_chart(
        [Series("", SWEEPS[name], study.sensitivity(name))],
        title=f"{study.dataset.name}: {name}",
        x_label=name,
        y_label=_METRIC,
        log_x=name != "floor",
        mark_x=chosen,
        mark_label="Table 7" if chosen is not None else "",
    )
    return Plot(chart)


def _weights(study: Study) -> Block:
    """Return a line chart of the mean weight of items by popularity, a line per linear model.

    study : the experiments of one data set; a weight is an entry of a model's item x item matrix
    """
    curves = {row: study.row(row)["weights"] for row in TABLE_ROWS}
    chart = line_chart(
        [Series(row, curve["rank"], curve["weight"]) for row, curve in curves.items()],
        title=f"{study.dataset.name}: mean weight of items",
        x_label="items, most popular first",
        y_label="mean weight",
        log_x=True,
    )
    return Plot(chart)


# -- what the paper does not show ------------------------------------------------------------------


def _beyond_the_paper(studies: Sequence[Study]) -> Iterable[Chapter]:
    """Yield the chapters with experiments that the paper does not have, as (heading, blocks).

    studies : the experiments of each data set; a block is a paragraph, a table or a chart
    """
    yield "Beyond the paper: random ties", list(_ties(studies))
    yield "Beyond the paper: seen items hidden", [_hidden(studies)]
    if any(study.neural_rows for study in studies):
        yield "Beyond the paper: neural rows", [_neural(studies)]
    yield "Beyond the paper: a time split", list(_time_split(studies))


def _ties(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield NDCG@10 in random, file and item order of simultaneous rows, as a table.

    Only data sets in which many rows of a user have the same time are listed; a paragraph says so
    if there are none. studies : the experiments of each data set
    """
    yield from _tie_warnings(studies)
    rows = []
    for study in filter(lambda study: study.has_ties, studies):
        runs = {row: study.random_ties(row) for row in _LINEAR}
        runs[f"TALE, {_describe_settings(study.settings_for_ties)}"] = study.random_ties_tuned()
        for name, facts in runs.items():
            fixed = [
                format_figure(facts["beside"].get(o, {}).get(_METRIC)) for o in ("file", "item")
            ]
            mean, spread = facts["metrics"][_METRIC], facts["spread"][_METRIC]
            rows.append([study.dataset.name, name, f"{mean:.4f} ± {spread:.4f}", *fixed])
    if not rows:
        yield Text("No neighbouring rows of these data have the same time.")
        return
    header = ["data", "model", f"{_METRIC}, {ORDERS}", "file order", "item order"]
    yield Grid("Simultaneous rows in random order (local solver above 4,000 items)", header, rows)


def _hidden(studies: Sequence[Study]) -> Block:
    """Return a table of NDCG@10 with all items, and with items of the history not recommended.

    studies : the experiments of each data set; a row per data set and linear model
    """
    rows = []
    for study in studies:
        for name in TABLE_ROWS:
            facts = study.row(name)
            shown, hidden = facts["metrics"][_METRIC], facts["metrics_hidden"][_METRIC]
            figures = format_figure(shown), format_figure(hidden), f"{hidden / shown - 1:+.1%}"
            rows.append([study.dataset.name, name, *figures])
    header = ["data", "model", _METRIC, "seen items hidden", "change"]
    return Grid("Items of the history are not recommended", header, rows)


def _neural(studies: Sequence[Study]) -> Block:
    """Return a table of NDCG@10 of the neural models and TALE: ours and the paper's.

    Also the 95 % interval, NDCG@10 with seen items hidden, and the seconds to fit. studies : the
    experiments of each data set
    """
    rows = []
    for study in studies:
        runs = {row: study.neural_row(row) for row in study.neural_rows}
        for name, facts in {**runs, "TALE": study.row("TALE")}.items():
            printed = paper.table(2).figure(study.dataset.key, name, _METRIC)
            low, high = facts["intervals"][_METRIC]
            hidden, seconds = facts["metrics_hidden"][_METRIC], facts["seconds"]["solve"]
            cells = compare_figures(facts["metrics"][_METRIC], printed)
            cells += [f"{low:.4f} to {high:.4f}", format_figure(hidden), f"{seconds:,.0f}"]
            rows.append([study.dataset.name, name, *cells])
    header = ["data", "model", "ours", "paper", "difference", "95 %", "seen hidden", "fit seconds"]
    return Grid(f"{_METRIC}, stopped on validation rows as in the paper", header, rows)


def _time_split(studies: Sequence[Study]) -> Iterable[Block]:
    """Yield a table and a dot chart per data set: accuracy after a cutoff in time.

    studies : the experiments of each data set; cases are users with rows before and after it
    """
    yield Text("Training: the first four fifths of the rows, by time. Query: each user's next row.")
    for study in studies:
        results = {row: study.time_split(row) for row in study.time_split_rows}
        grid, points = [], []
        for row, facts in results.items():
            metrics = facts["metrics"]
            figures = (format_figure(metrics[name]) for name in ("HR@10", _METRIC))
            grid.append([row, f"{facts['cases']:,}", *figures])
            points.append(DotRow(row, metrics[_METRIC], *facts["intervals"][_METRIC]))
        yield Grid(study.dataset.name, ["model", "cases", "HR@10", _METRIC], grid)
        title = f"{study.dataset.name}: after the cutoff"
        yield Plot(dot_chart(points, title=title, x_label=_METRIC))
