"""Rows that come after a fit: they are read as the fit read its own, unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.groups import READ_WITH, Source, as_option
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.log import Log
    from talerec.models.core.base import Model

_UNITS = ("s", "ms", "us", "ns")
_PLAIN = 10**14  # microseconds: for times from 1973 on, the size of a number tells its unit
_EXCLUDE = (("weight", {"event", "event_weights"}), ("event", {"weight"}))


def kept_options(training: dict[str, Any], source: Source, given: set[str]) -> dict[str, Any]:
    """How the fit read its log, as far as nobody says otherwise now, and as far as it goes for these files."""
    from talerec.data.read.formats import is_known

    facts = training.get(READ_WITH)
    known = dict(facts) if isinstance(facts, dict) else {}
    if not all(is_known(path, ";") for path in map(Path, source.log)):
        known.pop("sep", None)  # they are not text
    instead = {name for new, others in _EXCLUDE if new in given for name in others}
    return {name: value for name, value in known.items() if name not in given | instead}


@contextmanager
def mentioning(kept: dict[str, Any]) -> Iterator[None]:
    """A column that is not there may be one that the fit was told of."""
    try:
        yield
    except TalerecError as error:
        if not kept or not any(sign in str(error) for sign in ("no column", "--sep")):
            raise
        told = " ".join(as_option(name, value) for name, value in kept.items())
        raise type(error)(f"{error}; the model was fitted with {told}") from None


def in_unit(model: Model, source: Source) -> Source:
    """The source; where the size of times does not tell their unit, it is that of the model's."""
    unit, last = model.fitted.unit, model.fitted.training["last_time"]
    if source.time_unit is None and unit in _UNITS and last < _PLAIN:
        return replace(source, time_unit=unit)
    return source


def read(model: Model, source: Source) -> Log:
    """The rows of the source, in the order of the model's."""
    is_timed = model.fitted.unit != "none"
    return in_unit(model, source).read(needs_time=is_timed, any_order=True)
