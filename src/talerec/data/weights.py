"""Weights of rows: from a column, or by event (a purchase may count more than a click)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array

_TOLERANCE = 1e-12  # relative: weights that differ by less are equal


class RowWeights(NamedTuple):
    """The weight and the event (view, buy ...) of each row of a table."""

    weight: Array | None  # float64 per row; 0: the row is to be dropped; None: all are 1
    event: Array | None  # int16 per row, a position in `event_names`; None: no events
    event_names: tuple[str, ...]  # the distinct events, sorted; empty without events


def read_weights(
    table: pl.DataFrame,
    weight: str | None,
    event: str | None,
    event_weights: Mapping[str, float] | None,
) -> RowWeights:
    """Return the weight and event of each row of a table, from the columns named.

    `weight` and `event` are the names of columns, None if there is none; `event_weights` has the
    weight of each event, and needs `event` and no `weight`. InvalidLogError if a value is not
    usable.
    """
    if weight is not None and event_weights is not None:
        message = "give `weight` or `event_weights`, one of the two"
        raise TalerecError(message, "weight", "event_weights")
    if event_weights is not None and event is None:
        raise TalerecError("`event_weights` needs `event`", "event_weights", "event")
    by_column = None if weight is None else _read_weight_column(table[weight])
    if event is None:
        return RowWeights(by_column, None, ())
    names, codes = _encode_events(table[event])
    if event_weights is not None:
        by_column = _look_up_weights(table[event], names, codes, event_weights)
    return RowWeights(by_column, codes, names)


def _read_weight_column(column: pl.Series) -> Array:
    """Return a column of row weights as float64; an error unless all are finite and >= 0.

    At least one must be above 0. Text that spells numbers is accepted.
    """
    if column.dtype == pl.String:
        weights = column.str.strip_chars().cast(pl.Float64, strict=False)
    elif column.dtype.is_numeric():
        weights = column.cast(pl.Float64)
    else:
        message = f"column {column.name!r} holds {column.dtype} values; weights are numbers"
        raise InvalidLogError(message)
    values: Array = weights.fill_null(np.nan).to_numpy()
    for bad, what in ((~np.isfinite(values), "is not a finite number"), (values < 0, "is below 0")):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            value = "" if column[row] is None else f" {column[row]!r}"
            message = f"{column.name}{value} {what}; weights are 0 or more"
            raise InvalidLogError(message, row=row + 1)
    if not (values > 0).any():
        raise InvalidLogError(f"every row has the {column.name} 0: nothing is left")
    return _check_sum(values, column.name)


def _check_sum(values: Array, name: str) -> Array:
    """Return the weights; InvalidLogError about the column `name` if their sum overflows.

    `values` are float64, one per row, and are returned as they are.
    """
    with np.errstate(over="ignore"):
        if np.isinf(values.sum()):
            raise InvalidLogError(overflow_message(name))
    return values


def overflow_message(name: str) -> str:
    """Return the message for row weights of the column `name` whose sum is infinite."""
    return f"the weights of {name} add up to infinity: divide them all, as only ratios matter"


def _encode_events(column: pl.Series) -> tuple[tuple[str, ...], Array]:
    """Return a column's distinct events (view, buy ...), sorted, and each row's position.

    Positions among the distinct events are int16. InvalidLogError if a row has no event, or there
    are over 1,000 events.
    """
    text = column.cast(pl.String)
    if text.null_count():
        raise InvalidLogError(f"{column.name} is empty", row=text.is_null().arg_true()[0] + 1)
    names = text.unique().sort()
    if len(names) > _MAX_EVENTS:
        message = f"column {column.name!r} has {len(names):,} different values: too many for events"
        raise InvalidLogError(message)
    codes = text.replace_strict(names, pl.Series(np.arange(len(names), dtype=np.int16)))
    return tuple(names.to_list()), codes.to_numpy()


_MAX_EVENTS = 1000


def _look_up_weights(
    column: pl.Series, names: tuple[str, ...], codes: Array, weights: Mapping[str, float]
) -> Array:
    """Return each row's weight, by its event; InvalidLogError if an event has no weight.

    `codes` has each row's position in `names`, the distinct events of `column`.
    """
    _check_weights(weights)
    for code, name in enumerate(names):
        if name not in weights:
            row = int(np.flatnonzero(codes == code)[0])
            message = f"{column.name} {name!r} has no weight; {name}=0 drops such rows"
            raise InvalidLogError(message, row=row + 1)
    values: Array = np.array([float(weights[name]) for name in names])[codes]
    if not (values > 0).any():
        raise InvalidLogError("every row has the weight 0: nothing is left")
    return _check_sum(values, column.name)


def check_event_weights(
    column: str, names: Sequence[str | None], weights: Mapping[str, float]
) -> None:
    """Raise an error for events without a weight, and for weights that are not numbers >= 0.

    `names` are the distinct events of the column `column`; None among them stands for empty rows.
    At most 1,000 events are allowed.
    """
    if None in names:
        raise InvalidLogError(f"{column} is empty in some rows")
    present = sorted(name for name in names if name is not None)
    if len(present) > _MAX_EVENTS:
        raise InvalidLogError(
            f"column {column!r} has over {_MAX_EVENTS:,} different values: too many for events"
        )
    _check_weights(weights)
    for name in present:
        if name not in weights:
            raise InvalidLogError(f"{column} {name!r} has no weight; {name}=0 drops such rows")


def _check_weights(weights: Mapping[str, float]) -> None:
    """Raise an error for weights that are not finite numbers from 0.

    Weights for events that do not occur in these rows are allowed; later files may contain them.
    `weights` maps the name of an event to its weight.
    """
    for name, value in weights.items():
        if isinstance(value, bool) or not np.isfinite(value) or value < 0:
            raise TalerecError(f"the weight of {name} is {value}; it takes a number from 0")


def are_equal(low: float, high: float) -> bool:
    """Return whether all weights are equal, up to rounding, given the smallest and largest."""
    return high - low <= _TOLERANCE * low


def normalize_by_mean(
    weight: Array | None, rows: Array | None = None
) -> tuple[Array | None, float]:
    """Return row weights divided by their mean over `rows` (a mask; default: all); the mean.

    The weights returned are None if there are none, or all are equal. Weights whose mean is 1
    already are returned as they are, with 1.0.
    """
    if weight is None or not len(weight):
        return None, 1.0
    selected = weight if rows is None else weight[rows]
    mean = float(selected.mean()) if len(selected) else 1.0
    if not len(selected) or np.ptp(weight) <= _TOLERANCE * weight[0]:
        return None, mean
    return (weight, 1.0) if abs(mean - 1) <= _TOLERANCE else (weight / mean, mean)
