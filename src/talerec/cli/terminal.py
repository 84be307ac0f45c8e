"""Standard error and JSON: the library's notes, progress of long work, one JSON value as the answer."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from talerec.errors import TalerecError
from talerec.runtime.progress import Tick, listening, silent

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: What stages are called where their own name says too little.
_LABELS = {"compile": "compiling kernels, once"}


# -- notes -----------------------------------------------------------------------------------------


class _Notes(logging.Handler):
    """The library's notes, one line each: at once on a terminal, else at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message in self._said:  # a hundred fits give the same note a hundred times
            return
        self._said.add(message)
        if sys.stderr.isatty():
            say(message)
        else:
            self.held.append(message)


@contextmanager
def notes(quiet: bool) -> Iterator[None]:
    """Send the library's notes to standard error; in a pipe, a mistake is the only line that comes out."""
    logger, handler = logging.getLogger("talerec"), _Notes()
    before = logger.handlers[:], logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    except TalerecError:
        handler.held.clear()
        raise
    finally:
        for note in handler.held:
            say(note)
        logger.handlers[:] = before[0]
        logger.setLevel(before[1])


# -- progress --------------------------------------------------------------------------------------

_shown: list[Progress] = []  # the bars on the screen, if any


def say(message: str) -> None:
    """One line on standard error, above the bars if there are any."""
    if _shown:
        _shown[-1].console.print(message, soft_wrap=True)
    else:
        print(message, file=sys.stderr)


@contextmanager
def progress(quiet: bool = False) -> Iterator[None]:
    """Show the stages that the library reports: bars on a terminal, else one line for a labelled stage."""
    if not sys.stderr.isatty():
        with listening(_Lines(quiet)):
            yield
        return
    bars = _Bars()
    try:
        with listening(bars):
            yield
    finally:
        bars.close()


_named: set[str] = set()  # stages that this process has named


class _Lines:
    """Progress for a file or a pipe: stages that are slow for a reason are named once."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, name: str, total: float) -> Tick:
        if name in _LABELS and name not in _named and not self._quiet:
            _named.add(name)
            say(_LABELS[name])
        return silent(name, total)


class _Bars:
    """Progress for a terminal: one bar for all stages of one name, from the first stage on."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, name: str, total: float) -> Tick:
        bars = self._started()
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(_LABELS.get(name, name), total=0, words="")
        task = self._tasks[name]
        known = bars.tasks[bars.task_ids.index(task)].total or 0
        bars.update(task, total=known + total)

        def tick(done: float, words: str = "") -> None:
            bars.advance(task, done)
            if words:
                bars.update(task, words=words)

        return tick

    def _started(self) -> Progress:
        if self._progress is None:
            self._progress = _new_bars()
            self._progress.start()
            _shown.append(self._progress)
        return self._progress

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            _shown.remove(self._progress)


def _new_bars() -> Progress:
    """Bars that vanish at the end. Rich is imported here: a quick answer needs none."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
        console=Console(stderr=True, highlight=False, markup=False, emoji=False),
        transient=True,
    )


# -- JSON ------------------------------------------------------------------------------------------


_PAGE = 10_000  # characters of JSON that people may want to read


def as_json(value: Any) -> None:
    """Print one JSON value on standard output, and nothing else; without indents where it is large."""
    text = _dumped(value, None)
    print(_dumped(value, 2) if len(text) <= _PAGE else text)


def as_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, one value per line as it comes."""
    before = "[\n"
    for value in values:
        sys.stdout.write(before + _dumped(value, None))
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _dumped(value: Any, indent: int | None) -> str:
    ascii_only = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    return json.dumps(_strict(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False)


def _strict(value: Any) -> Any:
    """JSON has neither NaN (null here) nor infinity ("inf", as it is written on the command line)."""
    if isinstance(value, dict):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
