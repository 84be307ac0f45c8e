"""What the commands about logs and models print: descriptions, evaluations, comparisons, tuning."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.tables import (
    duration,
    heading,
    line,
    note,
    number,
    settings,
    table,
    table_of_columns,
    timings,
)
from talerec.data.summary import tie_note
from talerec.evaluation.metrics import is_double
from talerec.models import model_class
from talerec.models.core.params import fields
from talerec.runtime import memory

if TYPE_CHECKING:
    from talerec.evaluation.comparison import Comparison
    from talerec.evaluation.intervals import Paired
    from talerec.evaluation.result import Evaluation
    from talerec.evaluation.trials import Tuning


# -- logs and models -------------------------------------------------------------------------------


def facts(title: str, values: dict[str, Any]) -> None:
    """A description of a log as a table."""
    rows = [[_WORDS.get(n, n.replace("_", " ")), _fact(n, value)] for n, value in values.items()]
    table(title, ["", ""], rows)
    if copies := values["duplicate_rows"]:
        line(
            f"Note: {copies:,} rows repeat user, item and time of another: --drop-duplicates keeps one of each"
        )
    if remark := tie_note(values["ties"] or 0.0, "file"):
        line(f"Note: {remark}")


_WORDS = {"interval_days": "interval", "time_read_as": "times read as"}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _fact(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "interval_days":
        return ", ".join(f"{key} {duration(part)}" for key, part in value.items())
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(part)}" for key, part in value.items())
    if name in ("ties", "density"):
        return f"{value:.3%}"
    if name.endswith("_time"):
        return str(value).replace("T", " ").removesuffix(".000000")
    return _UNITS.get(value, _plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def models(kinds: list[dict[str, Any]]) -> None:
    """Every model in a line."""
    rows = [[kind["model"], kind["good_for"], kind["extra"] or ""] for kind in kinds]
    table(f"{len(kinds)} models", ["--model", "good for", "extra"], rows)
    note("an extra is installed by pip install 'talerec[NAME]'")
    line("talerec models NAME shows one: its parameters, what they mean, and its paper")


def model(kind: dict[str, Any]) -> None:
    """A model and its parameters."""
    title = f"{kind['model']}: {kind['about']}"
    rows = [
        [p["name"], f"{p['default']}", p["help"], p["takes"], _search(p["search"])]
        for p in kind["parameters"]
    ]
    if rows:
        table(title, ["--set", "default", "meaning", "takes", "search"], rows)
    else:
        heading(title)
    extra = kind["extra"] and f"Needs an extra: pip install 'talerec[{kind['extra']}]'"
    good_for = kind["good_for"] and f"Good for: {kind['good_for']}"
    paper = kind["paper"] and f"Paper: {kind['paper']}"
    for text in filter(None, (good_for, extra, paper)):
        note(text)


def _search(span: tuple[float, float] | None) -> str:
    return "" if span is None else f"{span[0]:g} to {span[1]:g}"


def fitted(path: Path, manifest: dict[str, Any]) -> None:
    """What was saved, and how long each step took."""
    training = manifest["training"]
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    line(
        f"{path}: {manifest['model']} from {training['rows']:,} rows of {training['users']:,} users "
        f"and {training['items']:,} items, {memory.human(size)}, version {manifest['version']}"
    )
    solver = f"; {manifest['solver']} solver" if manifest["solver"] else ""
    note(f"{timings(manifest['seconds'])}{solver}")
    for sentence in manifest.get("chosen", ()):
        note(sentence)


# -- evaluation ------------------------------------------------------------------------------------


def evaluation(result: Evaluation) -> None:
    """Accuracy over all cases and over groups of them, then what the lists are like."""
    hidden = ", seen items hidden" if result.hide_seen else ""
    title = f"{result.model}, {result.split}: {result.asked}{hidden}"
    _overall(result, title)
    _groups(result)
    lists = [[name, number(value)] for name, value in result.lists.items()]
    table("What is recommended", ["", ""], lists)
    note(
        "novelty: in bits, more for rarer items; "
        "lift: mean training rows of recommended items over that of the histories' items"
    )
    for remark in result.notes:
        line(f"Note: {remark}")
    refitted = "fitted on training and validation rows" if result.refit else ""
    note("; ".join(filter(None, [f"ties: {result.ties}", refitted, settings(result.params)])))
    solver = f"; {result.solver} solver" if result.solver else ""
    peak = memory.peak_rss_mb()
    used = "" if peak is None else f"; peak memory {peak:,.0f} MB"
    note(f"{timings(result.seconds)}{solver}{used}")


def _overall(result: Evaluation, title: str) -> None:
    """Each metric: mean, interval, spread over orders of ties, mean with seen items hidden; then windows."""
    found = {n: v for n, v in result.metrics.items() if not is_double(n)}
    spans, spread, unseen = result.intervals, result.spread, result.metrics_hidden
    columns = {
        "mean": [number(value) for value in found.values()],
        "95 % interval": [_span(spans[name]) for name in found],
    }
    if len(result.orders) > 1:
        columns["spread over\ntie orders"] = [f"±{number(spread[name])}" for name in found]
    if not result.hide_seen:
        columns["seen items\nhidden"] = [number(unseen[name]) for name in found]
    table_of_columns(title, list(found), columns)
    windows = result.windows
    if len(windows) > 1:
        metric = list(found)[-1]
        rows = [[w["window"], f"{w['cases']:,}", number(w["metrics"][metric])] for w in windows]
        table("By window", ["from", "cases", metric], rows)


def _span(bounds: Sequence[float]) -> str:
    return f"{number(bounds[0])} to {number(bounds[1])}"


def _groups(result: Evaluation) -> None:
    """Each metric by popularity of the item, gap, length of the history, and repeat or new."""
    shown = [name for name in result.metrics if not is_double(name)]
    columns = {
        f"{name}\n{_GROUP_WORDS[group]}": [
            f"{values['cases']:,}",
            *(number(values[metric]) for metric in shown),
        ]
        for group, parts in result.groups.items()
        for name, values in parts.items()
    }
    table_of_columns("By group", ["cases", *shown], columns)
    note("head: the fifth of the items with most training rows; gap: time since the row before")


_GROUP_WORDS = {"popularity": "items", "gap": "gap", "length": "history", "kind": "item"}


# -- tuning and comparing --------------------------------------------------------------------------


def tuning(result: Tuning, out: Path | None, source: str) -> None:
    """The best settings, and the command that uses the first; `source` is the log as the command line named it."""
    trials = sorted(result.trials, key=lambda trial: -trial.value)[:_BEST]
    rows = [
        [
            str(trial.number),
            *(f"{trial.params[n]:.4g}" for n in result.searched),
            number(trial.value),
        ]
        for trial in trials
    ]
    title = f"{result.model}, {result.split}: the best of {len(result.trials):,} settings on validation rows"
    table(title, ["trial", *result.searched, result.metric], rows)
    note(f"ties: {result.ties}; {settings(result.params)}")
    note(timings(result.seconds))
    given = " ".join(f"--set {setting}" for setting in _own_settings(result))
    chosen = f"--params {shlex.quote(str(out))}" if out else f"--model {result.model} {given}"
    line(f"Next: talerec fit {source} -o {result.model}.tale {chosen}".rstrip())


_BEST = 5


def _own_settings(result: Tuning) -> list[str]:
    """The parameters that differ from the model's own, as --set takes them."""
    own = {field.name: field.default for field in fields(model_class(result.model))}
    return [
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in result.params.items()
        if value != own[name]
    ]


def comparison(result: Comparison) -> None:
    """Both models, metric by metric, and the verdict in a sentence."""
    for words, found in (("", result.metrics), (", seen items hidden", result.metrics_hidden)):
        rows = [
            [
                name,
                number(pair.a),
                number(pair.b),
                _change(pair),
                f"{pair.p:.2g}",
                f"{pair.effect:+.3f}",
            ]
            for name, pair in found.items()
            if not is_double(name)
        ]
        title = f"A: {result.a.model}, B: {result.b.model}; {result.a.split}{words}"
        table(title, ["", "A", "B", "B - A (95 % interval)", "p", "effect"], rows)
    note("p: sign-flip test over users; effect: mean difference over its standard deviation")
    pair = result.metrics[result.headline]
    note(
        f"{result.headline}: better for {pair.better:,} of {pair.users:,}, worse for {pair.worse:,}"
    )
    for remark in result.notes:
        line(f"Note: {remark}")
    line(result.verdict)


def _change(pair: Paired) -> str:
    return f"{pair.difference:+.4f} ({pair.interval[0]:+.4f} to {pair.interval[1]:+.4f})"
