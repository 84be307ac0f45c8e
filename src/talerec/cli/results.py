"""Printed results: statistics of logs, models, evaluations, comparisons and tuning."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.progress import format_duration
from talerec.cli.terminal import (
    format_number,
    format_settings,
    format_timings,
    print_columns,
    print_heading,
    print_line,
    print_note,
    print_table,
)
from talerec.data import tie_warning
from talerec.evaluation import format_p_value, is_redundant
from talerec.models import model_class
from talerec.models.core import param_fields
from talerec.runtime import memory

if TYPE_CHECKING:
    from talerec.evaluation import Comparison, Evaluation, PairedComparison, Tuning


# -- logs and models -------------------------------------------------------------------------------


def print_log_statistics(title: str, stats: dict[str, Any]) -> None:
    """Print the statistics of a log, and notes on duplicate and simultaneous rows.

    `stats` are the statistics by name that `talerec.describe` returns; `title` names the log.
    """
    shown = {name: value for name, value in stats.items() if name != "item_table"}
    rows = [[_LABELS.get(n, n.replace("_", " ")), _format_stat(n, v)] for n, v in shown.items()]
    print_table(title, ["", ""], rows)
    if duplicates := stats["duplicate_rows"]:
        print_line(
            f"Note: {duplicates:,} rows repeat the user, item and time of another row; "
            "--drop-duplicates keeps one of each"
        )
    if remark := tie_warning(stats["ties"] or 0.0, "file"):
        print_line(f"Note: {remark}")
    if "item_table" in stats:
        _print_item_table(stats["item_table"])


def _print_item_table(table: dict[str, Any]) -> None:
    """Print the columns of an item table with their types, and which items it describes.

    `table` is the entry item_table of the statistics of a log.
    """
    rows = [
        [column["name"], column["kind"], f"{column['coverage']:.1%}", _format_column(column)]
        for column in table["columns"]
    ]
    print_table(f"Item table, {table['rows']:,} rows", ["column", "type", "filled", ""], rows)
    print_line(
        f"{table['matching']:,} items of the log have a row in the table, "
        f"{table['without_row']:,} have none; "
        f"{table['without_events']:,} items of the table are not in the log"
    )


def _format_column(column: dict[str, Any]) -> str:
    """Return what is special of a column of an item table: values, separators, range, width."""
    parts = []
    if "distinct" in column:
        parts.append(f"{column['distinct']:,} values")
    if "separators" in column:
        signs = ("space" if sign == " " else sign for sign in column["separators"])
        parts.append(f"separated by {' '.join(signs)}")
    if "width" in column:
        parts.append(f"{column['width']:,} dimensions")
    if "min" in column:
        parts.append(f"{column['min']} to {column['max']}")
    return ", ".join(parts)


_LABELS = {"interval_days": "interval", "time_read_as": "times read as"}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _format_stat(name: str, value: Any) -> str:
    """Return a statistic of a log, such as its density, as text; a dash for None.

    The value is a number, a text, or a dict of numbers such as mean and median; the name tells how
    to show it: interval_days in days or smaller units, ties and density in per cent, ..._time as a
    date and time, a time unit such as "ms" in full.
    """
    if value is None:
        return "-"
    if name == "interval_days":
        return ", ".join(f"{key} {format_duration(part)}" for key, part in value.items())
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value(part)}" for key, part in value.items())
    if name in ("ties", "density"):
        return f"{value:.3%}"
    if name.endswith("_time"):
        return str(value).replace("T", " ").removesuffix(".000000")
    return _UNITS.get(value, _format_value(value))


def _format_value(value: Any) -> str:
    """Return a number with thousands separators, a float with one decimal; else plain text."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_models(entries: list[dict[str, Any]]) -> None:
    """Print a table with a line per model: its name, what it is good for, and its extra.

    `entries` are dicts with the keys "model", "good_for" and "extra" (the optional dependencies
    that the model needs, or None).
    """
    rows = [[entry["model"], entry["good_for"], entry["extra"] or ""] for entry in entries]
    print_table(f"{len(entries)} models", ["--model", "good for", "extra"], rows)
    print_note("install an extra with pip install 'talerec[NAME]'")
    print_line("talerec models NAME shows a model's parameters and paper")


def print_model(entry: dict[str, Any]) -> None:
    """Print a model's parameters as a table, then what it is good for, its extra and paper.

    `entry` has the keys "model" (its name), "about", "good_for", "extra" (the optional dependencies
    that it needs, or None), "paper" and "parameters", as `describe_params` returns them.
    """
    title = f"{entry['model']}: {entry['about']}"
    rows = [
        [p["name"], f"{p['default']}", p["help"], p["takes"], _format_range(p["search"])]
        for p in entry["parameters"]
    ]
    if rows:
        print_table(title, ["--set", "default", "meaning", "takes", "search"], rows)
    else:
        print_heading(title)
    extra = entry["extra"] and f"Needs an extra: pip install 'talerec[{entry['extra']}]'"
    good_for = entry["good_for"] and f"Good for: {entry['good_for']}"
    paper = entry["paper"] and f"Paper: {entry['paper']}"
    for text in filter(None, (good_for, extra, paper)):
        print_note(text)


def _format_range(bounds: tuple[float, float] | None) -> str:
    """Return the lower and upper bound of a search as text; empty for a parameter without any."""
    return "" if bounds is None else f"{bounds[0]:g} to {bounds[1]:g}"


def print_fit(path: Path, manifest: dict[str, Any]) -> None:
    """Print a saved model's size, the seconds of each step, and what the model learned.

    `manifest` is the content of the model's manifest; its entry "chosen" are sentences about
    parameters that the fit learned from the log.
    """
    training = manifest["training"]
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    print_line(
        f"{path}: {manifest['model']} from {training['rows']:,} rows of {training['users']:,} "
        f"users and {training['items']:,} items, {memory.format_bytes(size)}, "
        f"version {manifest['version']}"
    )
    solver = f"; {manifest['solver']} solver" if manifest["solver"] else ""
    print_note(f"{format_timings(manifest['seconds'])}{solver}")
    for sentence in manifest.get("chosen", ()):
        print_note(sentence)


# -- evaluation ------------------------------------------------------------------------------------


def print_evaluation(result: Evaluation) -> None:
    """Print an evaluation: accuracy over all held-out rows and by group, statistics of lists.

    Warnings, parameters, the seconds of each step and the peak memory follow.
    """
    hidden = ", seen items hidden" if result.hide_seen else ""
    title = f"{result.model}, {result.split}: {result.description}{hidden}"
    _print_accuracy(result, title)
    _print_groups(result)
    rows = [[name, format_number(value)] for name, value in result.lists.items()]
    print_table("Recommended items", ["", ""], rows)
    print_note(
        "novelty: in bits, higher for rarer items; "
        "lift: mean training rows of recommended items, divided by that of history items; "
        "gini: 0 if all items are listed equally often; new: share of items not in the history"
    )
    for remark in result.notes:
        print_line(f"Note: {remark}")
    refitted = "fitted on training and validation rows" if result.refit else ""
    print_note(
        "; ".join(filter(None, [f"ties: {result.ties}", refitted, format_settings(result.params)]))
    )
    solver = f"; {result.solver} solver" if result.solver else ""
    peak = memory.peak_rss_mb()
    memory_used = "" if peak is None else f"; peak memory {peak:,.0f} MB"
    print_note(f"{format_timings(result.seconds)}{solver}{memory_used}")


def _print_accuracy(result: Evaluation, title: str) -> None:
    """Print a table of metrics such as NDCG@10; with rolling windows, also a table of windows.

    Columns of the first: mean, 95 % interval, spread over random orders of a user's simultaneous
    rows, mean with the items of the history hidden. A window is one of several test periods; its
    row has the last metric. `title` is the first table's.
    """
    metrics = {n: v for n, v in result.metrics.items() if not is_redundant(n)}
    columns = {
        "mean": [format_number(value) for value in metrics.values()],
        "95 % interval": [result.describe_interval(name) for name in metrics],
    }
    if len(result.orders) > 1:
        columns["spread over\ntie orders"] = [
            f"±{format_number(result.spread[name])}" for name in metrics
        ]
    if not result.hide_seen:
        columns["seen items\nhidden"] = [
            format_number(result.metrics_hidden[name]) for name in metrics
        ]
    print_columns(title, list(metrics), columns)
    windows = result.windows
    if len(windows) > 1:
        last = list(metrics)[-1]
        rows = [
            [w["window"], f"{w['cases']:,}", format_number(w["metrics"][last])] for w in windows
        ]
        print_table("By window", ["from", "cases", last], rows)


def _print_groups(result: Evaluation) -> None:
    """Print the metrics of an evaluation by group of held-out rows.

    Groups are by popularity of the item, time since the user's previous event, history length,
    whether the item is new to the user, the item's number of training rows and, in a split of every
    row, whether the user has training rows. First rows of new users follow.
    """
    metrics = [name for name in result.metrics if not is_redundant(name)]
    columns = {
        f"{name}\n{_GROUP_LABELS[group]}": [
            f"{values['cases']:,}",
            *(format_number(values[metric]) for metric in metrics),
        ]
        for group, parts in result.groups.items()
        for name, values in parts.items()
    }
    print_columns("By group", ["cases", *metrics], columns)
    _print_first_rows(result, metrics)
    print_note(
        "head: the fifth of the items with the most training rows; "
        "gap: time since the previous event; rows: training rows of the item, few: 1 to 4"
    )


_GROUP_LABELS = {
    "popularity": "items", "gap": "gap", "length": "history", "kind": "item", "item_rows": "rows",
    "user": "users", "position": "position",
}  # fmt: skip


def _print_first_rows(result: Evaluation, metrics: list[str]) -> None:
    """Print how trending items answer the first rows of new users, if the split has such rows.

    These rows have no history and are not among the cases of the evaluated model. `metrics` are the
    names to print.
    """
    first = result.first_rows
    if not first:
        return
    title = f"First rows of new users: {first['cases']:,}, answered by trending items"
    rows = [
        [name, format_number(first["metrics"][name]), " to ".join(map(format_number, interval))]
        for name, interval in first["intervals"].items()
        if name in metrics
    ]
    print_table(title, ["", "mean", "95 % interval"], rows)


# -- tuning and comparing --------------------------------------------------------------------------


def print_tuning(result: Tuning, path: Path | None, log: str) -> None:
    """Print the five best parameter settings, and the command that fits a model with the best.

    Parameters
    ----------
    result : Tuning
        The trials of a search and the best parameters.
    path : Path, optional
        The file that the best parameters were saved to; without it, the command lists them.
    log : str
        The log and its options, as words of a shell command.
    """
    trials = sorted(result.trials, key=lambda trial: -trial.value)[:_BEST_TRIALS]
    rows = [
        [
            str(trial.number),
            *(f"{trial.params[n]:.4g}" for n in result.searched),
            format_number(trial.value),
        ]
        for trial in trials
    ]
    title = (
        f"{result.model}, {result.split}: "
        f"the best of {len(result.trials):,} settings on validation rows"
    )
    print_table(title, ["trial", *result.searched, result.metric], rows)
    print_note(f"ties: {result.ties}; {format_settings(result.params)}")
    print_note(format_timings(result.seconds))
    settings = " ".join(f"--set {setting}" for setting in _format_changed_settings(result))
    params = f"--params {shlex.quote(str(path))}" if path else f"--model {result.model} {settings}"
    print_line(f"Next: talerec fit {log} -o {result.model}.tale {params}".rstrip())


_BEST_TRIALS = 5


def _format_changed_settings(result: Tuning) -> list[str]:
    """Return the best parameters of a tuning that differ from the model's defaults.

    As texts NAME=VALUE, for --set.
    """
    defaults = {field.name: field.default for field in param_fields(model_class(result.model))}
    return [
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in result.params.items()
        if value != defaults[name]
    ]


def print_comparison(result: Comparison) -> None:
    """Print two models metric by metric, and in a sentence or two whether B is better than A.

    A table has the means of A and B, their difference with its interval, the p-value of the test
    and the effect size; a second table has the same with the items of the histories hidden. Metrics
    that repeat HR@1 (NDCG@1, MRR@1) are left out.
    """
    for suffix, metrics in (("", result.metrics), (", seen items hidden", result.metrics_hidden)):
        pairs = {name: pair for name, pair in metrics.items() if not is_redundant(name)}
        if not pairs:  # results of baskets are about one kind of list
            continue
        columns = {
            "A": [format_number(pair.a) for pair in pairs.values()],
            "B": [format_number(pair.b) for pair in pairs.values()],
            "B - A (95 % interval)": [_format_difference(pair) for pair in pairs.values()],
            "p": [format_p_value(pair.p) for pair in pairs.values()],
            "effect": [f"{pair.effect:+.3f}" for pair in pairs.values()],
        }
        title = f"A: {result.a.model}, B: {result.b.model}; {result.a.split}{suffix}"
        print_columns(title, list(pairs), columns)
    print_note("p: sign-flip test over users; effect: mean difference over its standard deviation")
    pair = result.metrics[result.headline]
    print_note(
        f"{result.headline}: better for {pair.better:,} of {pair.users:,}, worse for {pair.worse:,}"
    )
    for remark in result.notes:
        print_line(f"Note: {remark}")
    print_line(result.verdict)


def _format_difference(pair: PairedComparison) -> str:
    """Return the difference of two models in a metric, with its interval, as text."""
    return f"{pair.difference:+.4f} ({pair.interval[0]:+.4f} to {pair.interval[1]:+.4f})"
