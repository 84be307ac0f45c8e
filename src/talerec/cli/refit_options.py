"""Logs that come after a fit are read with the options of the fit, unless others are set."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from talerec.cli.groups import LogSource, format_option
from talerec.errors import MissingColumnError, TalerecError

if TYPE_CHECKING:
    from talerec.data import Log
    from talerec.models.core import Model

#: The entry of an artifact's training record with the options that its log was read with.
READ_WITH = "read_with"
_NOT_SAVED = ("log", "core", "query", "items", "user_table")  # options that belong to one log alone
_UNITS = ("s", "ms", "us", "ns")
_MIN_PLAIN_TIME = 10**14  # microseconds: from 1973 on, the size of a number tells its unit
#: An option that is set now replaces these options of the fit.
_REPLACES = {"weight": {"event", "event_weights"}, "event": {"weight"}}

Options = TypeVar("Options")


def changed_options(group: Any) -> dict[str, Any]:
    """Return the options in a dataclass that differ from their defaults, by name.

    They are saved with a model, to read later logs likewise. Options that belong to one log or
    table alone (its path, core, query) are left out.
    """
    return {
        field.name: getattr(group, field.name)
        for field in dataclasses.fields(group)
        if field.name not in _NOT_SAVED and getattr(group, field.name) not in (field.default, [])
    }


def fit_options(training: dict[str, Any], source: LogSource, explicit: set[str]) -> dict[str, Any]:
    """Return those options with which a fit read its log that apply to another log, by name.

    Parameters
    ----------
    training : dict
        The training record of the saved model; its entry "read_with" has the options of the fit.
    source : LogSource
        The other log; a separator does not apply to files that are not text.
    explicit : set of str
        Names of the options that the command line sets; they replace those of the fit.
    """
    from talerec.data.read import may_be_text

    saved = training.get(READ_WITH)
    options = dict(saved) if isinstance(saved, dict) else {}
    if not all(may_be_text(path) for path in source.log):
        options.pop("sep", None)  # these files are not text
    replaced = {name for new, names in _REPLACES.items() if new in explicit for name in names}
    return {name: value for name, value in options.items() if name not in explicit | replaced}


def restore_options(group: Options, saved: dict[str, Any]) -> Options:
    """Return a copy of a dataclass of options with the values that were saved with a model.

    `saved` are options by name; those of other dataclasses or of a wrong type are ignored.
    """
    types = {
        field.name: _find_type(field)
        for field in dataclasses.fields(group)  # type: ignore[arg-type]
        if field.name not in _NOT_SAVED
    }
    values = {n: v for n, v in saved.items() if n in types and isinstance(v, types[n])}
    texts = {n: v for n, v in values.items() if isinstance(v, list)}
    values |= {n: [str(each) for each in v] for n, v in texts.items()}
    return dataclasses.replace(group, **values)  # type: ignore[type-var]


def _find_type(field: dataclasses.Field[Any]) -> type:
    """Return the type of an option's values: list, bool or str."""
    if field.default_factory is list:
        return list
    return bool if isinstance(field.default, bool) else str


@contextmanager
def naming_options(options: dict[str, Any]) -> Iterator[None]:
    """Add `options` to the message of an error about a column or separator in the block.

    `options` are those with which the fit read its log, by name: they may explain the error.
    """
    try:
        yield
    except TalerecError as error:
        if options and (isinstance(error, MissingColumnError) or "sep" in error.parameters):
            words = " ".join(format_option(name, value) for name, value in options.items())
            error.message += f"; the model was fitted with {words}"
        raise


def read_rows(model: Model, source: LogSource) -> Log:
    """Return the rows of a log, with numeric times in the unit of the model's log if in doubt.

    The size of a number tells its unit from 1973 on. If the model's last time is earlier and
    --time-unit is not set, the unit of the model's log applies. If the model was fitted without
    times, the log needs none.
    """
    fitted = model.fitted
    is_small = fitted.training["last_time"] < _MIN_PLAIN_TIME
    if source.time_unit is None and fitted.unit in _UNITS and is_small:
        source = dataclasses.replace(source, time_unit=fitted.unit)
    return source.read(needs_time=fitted.unit != "none", any_order=True)


def split_context(source: LogSource) -> tuple[LogSource, list[str]]:
    """Return the options of a log without the texts COLUMN=VALUE of --context, and these."""
    values = [text for text in source.context if "=" in text]
    return dataclasses.replace(
        source, context=[t for t in source.context if t not in values]
    ), values
