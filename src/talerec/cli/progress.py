"""Progress of long work on standard error: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from talerec.runtime import Tick, listening, silent

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Labels of stages whose own names say too little.
_LABELS = {"compile": "compiling kernels, once"}

#: Stages of minutes, whose progress is printed in lines where there is no terminal.
_LONG_STAGES = {"trials"}
_LINE_INTERVAL_S = 15.0


def format_duration(days: float | None) -> str:
    """Return days as text in days, hours, minutes or seconds: the largest unit with 1 or more.

    None becomes a dash.
    """
    if days is None:
        return "-"
    for unit, length in (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440)):
        if days >= length:
            return f"{days / length:,.1f} {unit}"
    return f"{days * 86_400:.3g} seconds"


_bars_on_screen: list[Progress] = []
_named_stages: set[str] = set()  # labelled stages that this process has printed


def print_status(message: str) -> None:
    """Print one line on standard error, above the progress bars if there are any."""
    if _bars_on_screen:
        _bars_on_screen[-1].console.print(message, soft_wrap=True)
    else:
        print(message, file=sys.stderr)


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[None]:
    """Show the progress of the library's long work on standard error during the block.

    The library reports stages: named pieces of work of known size. On a terminal each has a bar;
    otherwise stages with a label in `_LABELS` print one line, those in `_LONG_STAGES` a line each
    15 seconds, and none with `quiet`.
    """
    if not sys.stderr.isatty():
        with listening(silent if quiet else _print_stage):
            yield
        return
    bars = _ProgressBars()
    try:
        with listening(bars):
            yield
    finally:
        bars.close()


def _print_stage(name: str, total: float) -> Tick:
    """Print the label of a stage, if it has one, once in the process; no bar is drawn.

    A stage is a named piece of work of size `total`. The returned function prints the progress of
    long stages and ignores that of others.
    """
    if name in _LONG_STAGES:
        return _ProgressLines(name, total)
    if name in _LABELS and name not in _named_stages:
        _named_stages.add(name)
        print_status(_LABELS[name])
    return silent(name, total)


class _ProgressLines:
    """Prints the progress of a stage of work in lines, the first one after the first piece.

    A line has the work done so far, the last remark, and the time that the rest may take. Work
    without a remark, such as trials of an earlier call, took no time in this one.
    """

    def __init__(self, name: str, total: float) -> None:
        self._name, self._total = name, total
        self._start, self._printed = time.monotonic(), -math.inf
        self._before, self._done = 0.0, 0.0  # work of earlier calls, and of this one

    def __call__(self, done: float, words: str = "") -> None:
        """Add work that was just done, with a remark; without one, work of an earlier call."""
        if not words:
            self._before += done
            return
        self._done += done
        now, left = time.monotonic(), self._total - self._before - self._done
        if now - self._printed < _LINE_INTERVAL_S or left <= 0 or not done:
            return
        self._printed = now
        seconds = (now - self._start) * left / self._done
        progress = f"{self._before + self._done:,.0f} of {self._total:,.0f}"
        remaining = format_duration(seconds / 86_400)
        print_status(f"{self._name}: {progress}, {words}, about {remaining} left")


class _ProgressBars:
    """Progress bars on a terminal, one for all stages of the same name.

    A stage is a named piece of work of known size. Calling the bars with both begins a stage; the
    returned function is called with the amount of work that was just done.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None  # Rich's bars, created for the first stage
        self._tasks: dict[str, TaskID] = {}  # the bar of each stage, by name

    def __call__(self, name: str, total: float) -> Tick:
        bars = self._start()
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(_LABELS.get(name, name), total=0, words="")
        task = self._tasks[name]
        total_before = bars.tasks[bars.task_ids.index(task)].total or 0
        bars.update(task, total=total_before + total)

        def tick(done: float, words: str = "") -> None:
            """Advance the stage's bar by an amount of work; `words` is a remark beside the bar."""
            bars.advance(task, done)
            if words:
                bars.update(task, words=words)

        return tick

    def _start(self) -> Progress:
        """Return Rich's progress bars, `self._progress`; the first call creates and shows them."""
        if self._progress is None:
            self._progress = _create_bars()
            self._progress.start()
            _bars_on_screen.append(self._progress)
        return self._progress

    def close(self) -> None:
        """Remove the bars from the screen, if any were shown."""
        if self._progress is not None:
            self._progress.stop()
            _bars_on_screen.remove(self._progress)


def _create_bars() -> Progress:
    """Return Rich's progress bars on standard error, which vanish when they are stopped."""
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
