"""Progress of long work: the library reports it, and a listener shows it.

A stage is a named piece of work of known size. The command line listens and draws bars;
without a listener, reports go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Tick(Protocol):
    """Takes the amount of work that was just done, and perhaps a few words about how it goes."""

    def __call__(self, done: float, words: str = "") -> None: ...


Listener = Callable[[str, float], Tick]


def silent(stage: str, total: float) -> Tick:
    """Ignore a stage: the listener where nobody set another."""
    return _ignored


def _ignored(done: float, words: str = "") -> None:
    pass


_listener: ContextVar[Listener] = ContextVar("talerec_progress", default=silent)


def stage(name: str, total: float) -> Tick:
    """Begin a stage; call the result with the amount of work that was just done."""
    return _listener.get()(name, total)


def is_heard() -> bool:
    """Does anybody listen?"""
    return _listener.get() is not silent


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every stage opened inside the block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
