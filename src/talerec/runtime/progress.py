"""Progress and duration of long work: the library reports it, and a listener shows it.

A stage is a named piece of work of known size. The command line listens and draws bars; without a
listener, reports are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Tick(Protocol):
    """A function called with the amount of work just done, and perhaps a short remark.

    `done` is in the unit of the total that was announced when the stage of work began; `words` is
    the remark.
    """

    def __call__(self, done: float, words: str = "") -> None: ...


Listener = Callable[[str, float], Tick]


def silent(stage: str, total: float) -> Tick:
    """Return a function that discards reports of progress.

    It is the listener of stages (named pieces of work of size `total`) unless another is set.
    """
    return _discard


def _discard(done: float, words: str = "") -> None:
    pass


_listener: ContextVar[Listener] = ContextVar("talerec_progress", default=silent)


def stage(name: str, total: float) -> Tick:
    """Begin a piece of work of size `total`, and return the function that reports progress.

    Call it with the amount of work that was just done, in the unit of `total`. Reports go to the
    listener that is set, such as progress bars, which show the stage's `name`.
    """
    return _listener.get()(name, total)


def has_listener() -> bool:
    """Return whether a listener, such as a progress bar, receives the reports of stages."""
    return _listener.get() is not silent


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of every stage that begins inside the block to `listener`.

    A listener is called with a stage's name and total work, and returns the function that gets
    reports.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Clock:
    """Seconds by the name of a step: `with clock("solve"): ...`; a repeated step adds up.

    `clock.seconds` has the sums, in seconds of wall-clock time.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed


def sum_seconds(clocks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of each step by name, summed over several such mappings.

    Each of `clocks` maps the name of a step, such as "load", to its seconds.
    """
    total: dict[str, float] = {}
    for seconds in clocks:
        for name, value in seconds.items():
            total[name] = total.get(name, 0.0) + value
    return total
