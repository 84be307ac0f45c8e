"""What people see: tables, progress bars, one-line messages. Only the command line imports this."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from talerec import columns
from talerec.errors import TalerecError
from talerec.evaluation.comparison import Comparison
from talerec.evaluation.metrics import is_double
from talerec.evaluation.result import Evaluation
from talerec.evaluation.significance import Paired
from talerec.evaluation.trials import Tuning
from talerec.models.base import Model
from talerec.runtime import memory
from talerec.runtime.progress import Tick, listening

# Ids, titles and paths are other people's text: nothing in them is markup.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
_NOTHING = "nothing to recommend: no item is left that the history gives a score"
_LAST = 5  # rows of a history that a title names


class _Notes(logging.Handler):
    """The library's notes, one line each: above the bars, or held back where nobody is watching."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message in self._said:  # a hundred fits say the same a hundred times
            return
        self._said.add(message)
        if sys.stderr.isatty():
            err.print(message, soft_wrap=True)
        else:
            self.held.append(message)

    def tell(self) -> None:
        for note in self.held:
            err.print(note, soft_wrap=True)


@contextmanager
def setup_logging(quiet: bool) -> Iterator[None]:
    """Send the library's notes to standard error; in a pipe, a mistake is the one line that comes out."""
    logger, notes = logging.getLogger("talerec"), _Notes()
    before = logger.handlers[:], logger.level
    logger.handlers[:] = [notes]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    except TalerecError:
        notes.held.clear()
        raise
    finally:
        notes.tell()
        logger.handlers[:] = before[0]
        logger.setLevel(before[1])


@contextmanager
def bars() -> Iterator[None]:
    """Draw a bar for every stage that the library reports inside the block, where somebody can see it."""
    layout = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    hidden = not sys.stderr.isatty()
    with Progress(*layout, console=err, transient=True, disable=hidden) as progress:
        tasks: dict[str, TaskID] = {}

        def listener(name: str, total: float) -> Tick:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=0)
            known = progress.tasks[progress.task_ids.index(tasks[name])].total or 0
            progress.update(tasks[name], total=known + total)
            return lambda done: progress.advance(tasks[name], done)

        with listening(listener):
            yield


# -- JSON ------------------------------------------------------------------------------------------


def as_json(value: Any) -> None:
    """One JSON value on standard output, nothing else."""
    ascii_only = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    print(json.dumps(_strict(value), indent=2, ensure_ascii=ascii_only, allow_nan=False))


def _strict(value: Any) -> Any:
    """JSON has neither NaN (null here) nor infinity ("inf", as it is written on the command line)."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


# -- words and numbers -----------------------------------------------------------------------------


def line(text: str) -> None:
    """One line, broken by nobody."""
    out.print(text, soft_wrap=True)


def aside(text: str) -> None:
    """A line that explains."""
    out.print(Text(text, style="dim"))


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(days: float | None) -> str:
    """Days in the largest unit of which there is at least one."""
    if days is None:
        return "-"
    for unit, length in (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440)):
        if days >= length:
            return f"{days / length:,.1f} {unit}"
    return f"{days * 86_400:.3g} seconds"


def listed(values: Sequence[Any], most: int = 10) -> str:
    """Values, comma-separated; of many, the first."""
    more = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(str(value) for value in values[:most]) + more


def spent(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())


def settings(params: dict[str, Any]) -> str:
    shown = {n: f"{v:g}" if isinstance(v, float) else v for n, v in params.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def titles(model: Model) -> dict[str, str]:
    """Item id, as text, -> title, where the model was given titles."""
    info = model.fitted.info
    if info is None or columns.TITLES[0] not in info.columns:
        return {}
    pairs = info.select(columns.ITEM, columns.TITLES[0]).drop_nulls()
    return {str(item): str(title) for item, title in pairs.iter_rows()}


def described(item: Any, names: dict[str, str]) -> str:
    """An item as people read it: title (id), or the id alone."""
    text = f"{names[str(item)]} ({item})" if str(item) in names else str(item)
    return "".join(sign if sign.isprintable() else " " for sign in text)


# -- tables ----------------------------------------------------------------------------------------


def table(title: str, header: list[str], rows: list[list[str]], *, total: bool = False) -> None:
    """A table; columns of numbers stand right and are never cut short. `total`: a line above the last row."""
    grid = Table(box=box.SIMPLE_HEAD, show_header=any(header), header_style="bold")
    for place, name in enumerate(header):
        numbers = all(row[place][:1].isdigit() or row[place][:1] in "-+." for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", no_wrap=numbers)
    for place, row in enumerate(rows):
        grid.add_row(*row, end_section=total and place == len(rows) - 2)
    out.print(Text(title, style="bold"))
    out.print(grid)


def facts(title: str, values: dict[str, Any]) -> None:
    """A description of a log as a table."""
    rows = [[_WORDS.get(n, n.replace("_", " ")), _fact(n, value)] for n, value in values.items()]
    table(title, ["", ""], rows)


_WORDS = {"interval_days": "interval", "time_read_as": "times read as"}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _fact(name: str, value: Any) -> str:
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
    """Every model and its parameters."""
    for kind in kinds:
        rows = [
            [p["name"], f"{p['default']}", p["help"], p["takes"], _search(p["search"])]
            for p in kind["parameters"]
        ]
        title = f"{kind['model']}: {kind['about']}"
        if rows:
            table(title, ["--set", "default", "meaning", "takes", "search"], rows)
        else:
            out.print(Text(title, style="bold"))
        out.print(Text(f"{kind['paper']}\n", style="dim"))


def _search(span: tuple[float, float] | None) -> str:
    return "" if span is None else f"{span[0]:g} to {span[1]:g}"


def fitted(path: Path, manifest: dict[str, Any]) -> None:
    """What was saved, and how long it took."""
    training = manifest["training"]
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    line(
        f"{path}: {manifest['model']} from {training['rows']:,} rows of {training['users']:,} users "
        f"and {training['items']:,} items, {memory.human(size)}, version {manifest['version']}"
    )
    solver = f"; {manifest['solver']} solver" if manifest["solver"] else ""
    aside(f"{spent(manifest['seconds'])}{solver}")


def evaluation(result: Evaluation) -> None:
    """Accuracy, one line per metric: all cases with their interval, then each group."""
    hidden = ", seen items hidden" if result.hide_seen else ""
    title = f"{result.model}, {result.split}: {len(result.frame):,} {result.on} cases{hidden}"
    _certainty(result, title)
    shown = [name for name in result.metrics if not is_double(name)]
    groups = {
        f"{name}\n{_GROUP_WORDS[group]}": [
            f"{values['cases']:,}",
            *(number(values[metric]) for metric in shown),
        ]
        for group, parts in result.groups.items()
        for name, values in parts.items()
    }
    _columns("By group", ["cases", *shown], groups)
    aside("head: the fifth of the items with most training rows; gap: time since the row before")
    lists = [[name, number(value)] for name, value in result.lists.items()]
    table("What is recommended", ["", ""], lists)
    aside("novelty: bits; lift: training rows of recommended items over those of the histories'")
    for note in result.notes:
        line(f"Note: {note}")
    refitted = "fitted on training and validation rows" if result.refit else ""
    aside("; ".join(filter(None, [f"ties: {result.ties}", refitted, settings(result.params)])))
    solver = f"; {result.solver} solver" if result.solver else ""
    aside(f"{spent(result.seconds)}{solver}; peak memory {memory.peak_rss_mb():,.0f} MB")


_GROUP_WORDS = {"popularity": "items", "gap": "gap", "length": "history", "kind": "item"}


def _certainty(result: Evaluation, title: str) -> None:
    """All cases: the mean, its interval, its spread over orders, and what it is with seen items hidden."""
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
    _columns(title, list(found), columns)
    windows = result.windows
    if len(windows) > 1:
        metric = list(found)[-1]
        rows = [[w["window"], f"{w['cases']:,}", number(w["metrics"][metric])] for w in windows]
        table("By window", ["from", "cases", metric], rows)


def _columns(title: str, names: list[str], columns: dict[str, list[str]]) -> None:
    """A table of columns with `names` at the left; more than one where it is too wide for the screen."""
    for some in _that_fit(columns, out.width - 4 - max(map(len, names))):
        cells = [names, *(columns[name] for name in some)]
        table(title, ["", *some], [list(row) for row in zip(*cells, strict=True)])


def _that_fit(columns: dict[str, list[str]], room: int) -> Iterator[list[str]]:
    """Names of columns, in as many groups as it takes for each to fit."""
    some: list[str] = []
    taken = 0
    for name, cells in columns.items():
        width = 3 + max(len(text) for text in [*name.splitlines(), *cells])
        if some and taken + width > room:
            yield some
            some, taken = [], 0
        some.append(name)
        taken += width
    yield some


def _span(bounds: Sequence[float]) -> str:
    return f"{number(bounds[0])} to {number(bounds[1])}"


def tuning(result: Tuning, output: Path | None) -> None:
    """The best setting, and the next best that differ from it."""
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
    aside(f"ties: {result.ties}; {settings(result.params)}")
    aside(spent(result.seconds))
    given = " ".join(f"--set {name}={result.params[name]:.4g}" for name in result.searched)
    line(f"Next: talerec fit LOG -o NAME.tale {f'--params {output}' if output else given}")


_BEST = 5


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
    aside("p: sign-flip test over users; effect: mean difference over its standard deviation")
    pair = result.metrics[result.headline]
    aside(
        f"{result.headline}: better for {pair.better:,} of {pair.users:,}, worse for {pair.worse:,}"
    )
    for note in result.notes:
        line(f"Note: {note}")
    line(result.verdict)


def _change(pair: Paired) -> str:
    return f"{pair.difference:+.4f} ({pair.interval[0]:+.4f} to {pair.interval[1]:+.4f})"


# -- recommendations -------------------------------------------------------------------------------


def ranking(title: str, frame: pl.DataFrame, names: dict[str, str]) -> None:
    """Recommendations of one asker as a table."""
    if frame.is_empty():
        line(f"{title}: {_NOTHING}")
        return
    rows = [
        [str(row[columns.RANK]), described(row[columns.ITEM], names), f"{row[columns.SCORE]:.4f}"]
        for row in frame.iter_rows(named=True)
    ]
    table(title, ["rank", "item", "score"], rows)


def items_json(frame: pl.DataFrame, names: dict[str, str]) -> list[dict[str, Any]]:
    """Recommendations of one asker as JSON objects."""
    return [
        {**_item_json(row[columns.ITEM], names), **{n: row[n] for n in _RANKED}}
        for row in frame.iter_rows(named=True)
    ]


_RANKED = (columns.SCORE, columns.RANK)


def _item_json(item: Any, names: dict[str, str]) -> dict[str, Any]:
    title = {"title": names[str(item)]} if str(item) in names else {}
    return {columns.ITEM: item, **title}


def recommendations(
    model: Model, frame: pl.DataFrame, askers: dict[Any, str], *, json: bool
) -> None:
    """What each asker (key in the frame's first column -> words) is recommended, also where it is nothing."""
    names, asker = titles(model), frame.columns[0]
    parts = {key[0]: part for key, part in frame.partition_by(asker, as_dict=True).items()}
    nothing = frame.clear()
    if json:
        found = ((key, parts.get(key, nothing)) for key in askers)
        as_json([{asker: key, "items": items_json(part, names)} for key, part in found])
        return
    for key, title in askers.items():
        ranking(title, parts.get(key, nothing), names)


def after(history: Sequence[Any], names: dict[str, str]) -> str:
    """A history in words."""
    if not history:
        return "After nothing"
    more = "... " if len(history) > _LAST else ""
    return "After " + more + ", ".join(described(item, names) for item in history[-_LAST:])


def explanation(
    model: Model, history: Sequence[Any], item: Any, frame: pl.DataFrame, *, json: bool
) -> None:
    """The rows of a history and what each gave. A row beyond them is the model's base score."""
    names = titles(model)
    score = frame[columns.SHARE].sum()
    if json:
        rows = [{**_item_json(name, names), columns.SHARE: given} for name, given in frame.rows()]
        as_json({**_item_json(item, names), columns.SCORE: score, "contributions": rows})
        return
    words = [*(described(row, names) for row in history), "any history"]
    shares = frame[columns.SHARE].to_list()
    lines = [[word, f"{given:+.4f}"] for word, given in zip(words, shares, strict=False)]
    lines.append(["score", f"{score:+.4f}"])
    table(f"Why {described(item, names)}", ["history row", "gives"], lines, total=True)
