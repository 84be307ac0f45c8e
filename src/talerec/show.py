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

from talerec import columns, memory
from talerec.errors import TalerecError
from talerec.evaluation import Evaluation
from talerec.models.base import Model
from talerec.progress import Tick, listening

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

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr.isatty():
            err.print(record.getMessage(), soft_wrap=True)
        else:
            self.held.append(record.getMessage())

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


def _in_parts(names: list[str], size: int) -> list[list[str]]:
    return [names[a : a + size] for a in range(0, len(names), size)]


def evaluation(result: Evaluation) -> None:
    """Accuracy, one line per metric: all cases, then each group."""
    hidden = ", seen items hidden" if result.hide_seen else ""
    title = f"{result.model}, {result.split}: {len(result.frame):,} {result.on} cases{hidden}"
    groups = {"all\ncases": {"cases": len(result.frame), **result.metrics}}
    for group, parts in result.groups.items():
        groups |= {f"{name}\n{_GROUP_WORDS[group]}": values for name, values in parts.items()}
    room = max(1, (out.width - 11) // 9)
    for some in _in_parts(list(groups), room):
        counts = ["cases", *(f"{groups[name]['cases']:,}" for name in some)]
        scores = [
            [metric, *(number(groups[name][metric]) for name in some)] for metric in result.metrics
        ]
        table(title, ["", *some], [counts, *scores])
    aside("head: the fifth of the items with most training rows; gap: time since the row before")
    aside("; ".join(filter(None, [f"ties: {result.ties}", settings(result.params)])))
    solver = f"; {result.solver} solver" if result.solver else ""
    aside(f"{spent(result.seconds)}{solver}; peak memory {memory.peak_rss_mb():,.0f} MB")


_GROUP_WORDS = {"popularity": "items", "gap": "gap"}


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
