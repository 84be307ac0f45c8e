"""What a row is worth: by a column of weights, or by its event (a purchase counts more than a click)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime.arrays import Array

_EVEN = 1e-12  # weights that differ by less are the same, or have a mean of 1


class Worth(NamedTuple):
    """What is known of the worth of rows."""

    weight: Array | None  # above 0, or 0 for a row that is to be left out
    event: Array | None  # positions in `names`
    names: tuple[str, ...]


def worth_of(
    table: pl.DataFrame,
    weight: str | None,
    event: str | None,
    event_weights: Mapping[str, float] | None,
) -> Worth:
    """The worth of the rows of a table, from the columns that hold it."""
    if weight is not None and event_weights is not None:
        raise TalerecError("give --weight or --event-weights, one of the two")
    if event_weights is not None and event is None:
        raise TalerecError("--event-weights needs --event COLUMN")
    by_column = None if weight is None else _numbers(table[weight])
    if event is None:
        return Worth(by_column, None, ())
    names, codes = _events(table[event])
    if event_weights is not None:
        by_column = _by_event(table[event], names, codes, event_weights)
    return Worth(by_column, codes, names)


def _numbers(column: pl.Series) -> Array:
    if column.dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
    elif column.dtype.is_numeric():
        numbers = column.cast(pl.Float64)
    else:
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values; weights are numbers"
        )
    values: Array = numbers.fill_null(np.nan).to_numpy()
    for bad, what in (
        (~np.isfinite(values), "is not a finite number"),
        (values < 0, "is below 0"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            shown = "" if column[row] is None else f" {column[row]!r}"
            raise InvalidLogError(
                f"row {row + 1}: {column.name}{shown} {what}; weights are 0 or more"
            )
    if not (values > 0).any():
        raise InvalidLogError(f"every row has the {column.name} 0: nothing is left")
    return _summable(values, column.name)


def _summable(values: Array, name: str) -> Array:
    """Weights whose sum is a number; others have no mean to be divided by."""
    with np.errstate(over="ignore"):
        if np.isinf(values.sum()):
            raise InvalidLogError(beyond(name))
    return values


def beyond(name: str) -> str:
    """What is said of weights whose sum is not finite."""
    return f"the weights of {name} add up to more than a number can hold: only ratios matter, so divide them"


def _events(column: pl.Series) -> tuple[tuple[str, ...], Array]:
    text = column.cast(pl.String)
    if text.null_count():
        raise InvalidLogError(f"row {text.is_null().arg_true()[0] + 1}: {column.name} is empty")
    names = text.unique().sort()
    if len(names) > _MOST_EVENTS:
        raise InvalidLogError(
            f"column {column.name!r} has {len(names):,} different values: it does not hold events"
        )
    codes = text.replace_strict(names, pl.Series(np.arange(len(names), dtype=np.int16)))
    return tuple(names.to_list()), codes.to_numpy()


_MOST_EVENTS = 1000


def _by_event(
    column: pl.Series, names: tuple[str, ...], codes: Array, weights: Mapping[str, float]
) -> Array:
    _check_weights(weights)
    for place, name in enumerate(names):
        if name not in weights:
            row = int(np.flatnonzero(codes == place)[0])
            raise InvalidLogError(
                f"row {row + 1}: {column.name} {name!r} has no weight; {name}=0 leaves such rows out"
            )
    values: Array = np.array([float(weights[name]) for name in names])[codes]
    if not (values > 0).any():
        raise InvalidLogError("every row has the weight 0: nothing is left")
    return _summable(values, column.name)


def check_events(column: str, names: Sequence[str | None], weights: Mapping[str, float]) -> None:
    """Refuse events of a column that have no weight, and numbers that are no weights."""
    if None in names:
        raise InvalidLogError(f"{column} is empty in some rows")
    there = sorted(name for name in names if name is not None)
    if len(there) > _MOST_EVENTS:
        raise InvalidLogError(
            f"column {column!r} has over {_MOST_EVENTS:,} different values: it does not hold events"
        )
    _check_weights(weights)
    for name in there:
        if name not in weights:
            raise InvalidLogError(f"{column} {name!r} has no weight; {name}=0 leaves such rows out")


def _check_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights that are none; one of an event that no row has is well: the rows of another day may have it."""
    for name, value in weights.items():
        if isinstance(value, bool) or not np.isfinite(value) or value < 0:
            raise TalerecError(f"the weight of {name} is {value}; it takes a number from 0 on")


def are_even(low: float, high: float) -> bool:
    """Are weights the same, given the least and the largest?"""
    return high - low <= _EVEN * low


def divided(weight: Array | None, rows: Array | None = None) -> tuple[Array | None, float]:
    """Weights over their mean (of some rows), so that only ratios matter, and that mean; no weights where all are the same."""
    if weight is None or not len(weight):
        return None, 1.0
    mine = weight if rows is None else weight[rows]
    mean = float(mine.mean()) if len(mine) else 1.0
    if not len(mine) or np.ptp(weight) <= _EVEN * weight[0]:
        return None, mean
    return (weight, 1.0) if abs(mean - 1) <= _EVEN else (weight / mean, mean)
