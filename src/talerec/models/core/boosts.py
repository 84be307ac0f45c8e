"""Boosts: raise or lower items by a fraction of the list's score range, by the item table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.runtime import Array

#: Boosts as callers write them: {"brand": {"X": 0.2}}, column -> value -> fraction.
BoostSpec = Mapping[str, Mapping[Any, float]]

MAX_BOOST = 1000.0  # larger fractions change no order, and sums stay finite
MAX_VALUES = 10_000  # values that one request may boost


@dataclass(frozen=True, eq=False)
class ItemBoosts:
    """The fraction of a list's score range that is added to each item's score.

    fractions: one number per item, 0 for items without a boost, negative for lowered ones. The
    score range is the first score of a list less its hundredth (or last).
    """

    fractions: Array

    @cached_property
    def groups(self) -> tuple[tuple[Array, float], ...]:
        """Up to two (flags, largest fraction) pairs: of the raised items, and of all others.

        A fraction of the list's score range is added to an item's score; raised items have one
        above 0. Flags are uint8 per item. A group without items is left out.
        """
        raised = self.fractions > 0
        return tuple(
            (flags.astype(np.uint8), float(self.fractions[flags].max()))
            for flags in (raised, ~raised)
            if flags.any()
        )


def build_boosts(info: pl.DataFrame, spec: BoostSpec) -> ItemBoosts:
    """Return the summed boost fraction of every item of an item table (one row per item).

    spec: column -> value -> fraction of the list's score range. A value that no item has boosts
    nothing; an item without a value (null) is not boosted.
    """
    check_boosts(info, spec)
    fractions = np.zeros(len(info))
    for column, values in spec.items():
        fractions += _column_fractions(info[column], values)
    return ItemBoosts(fractions)


def boosts_of_item(
    info: pl.DataFrame, spec: BoostSpec, item: int
) -> Iterator[tuple[str, Any, float]]:
    """Yield column, value and fraction of each boost that applies to one item (a position).

    info: the item table, a row per item. spec: column -> value -> fraction of the score range to
    add.
    """
    for column, values in spec.items():
        row = info[column].slice(item, 1)
        for value, fraction in values.items():
            if _column_fractions(row, {value: fraction})[0]:
                yield column, value, float(fraction)


def check_boosts(info: pl.DataFrame, spec: BoostSpec) -> None:
    """Raise TalerecError where a boost is not valid, naming the column or the value.

    info: the item table. spec: column -> value -> fraction of the score range to add.
    """
    if problem := _find_problem(info, spec):
        raise TalerecError(f"`boost`: {problem}", "boost")


def _find_problem(info: pl.DataFrame, spec: BoostSpec) -> str | None:
    """Return what is wrong with boosts, as text; None for valid ones.

    info: the item table. spec: column -> value -> fraction of the score range to add to the scores
    of items with this value. Wrong are unknown columns, fractions beyond 1000, and other types.
    """
    if not isinstance(spec, Mapping):
        return 'it takes a table such as {"brand": {"X": 0.2}}'
    if sum(len(values) for values in spec.values() if isinstance(values, Mapping)) > MAX_VALUES:
        return f"it has more than {MAX_VALUES:,} values"
    for column, values in spec.items():
        if column not in info.columns:
            return f"the item table has no column {column!r}; it has {', '.join(info.columns)}"
        dtype = info.schema[column]
        if dtype.is_nested() or dtype in (pl.Binary, pl.Object):
            return f"column {column!r} holds {dtype}, not single values"
        if not isinstance(values, Mapping):
            return f"{column} is {values!r}; it takes values and their numbers"
        for value, fraction in values.items():
            is_real = isinstance(fraction, int | float | np.integer | np.floating)
            if isinstance(fraction, bool) or not is_real or not abs(fraction) <= MAX_BOOST:
                limits = f"from {-MAX_BOOST:g} to {MAX_BOOST:g}"
                return f"{column} {value!r} is {fraction!r}; it takes a number {limits}"
    return None


def _column_fractions(column: pl.Series, values: Mapping[Any, float]) -> Array:
    """Return the summed boost fractions of each row of a column of the item table; mostly 0.

    `values` maps values of the column to fractions. Values are compared as numbers or as text,
    depending on the column's type.
    """
    is_float = column.dtype.is_float() or column.dtype == pl.Decimal
    parse = _as_float if is_float else _as_digits if column.dtype.is_integer() else _as_text
    fractions: dict[Any, float] = {}
    for value, fraction in values.items():
        key = parse(value)
        if key is not None:  # None: no item of this column's type has the value
            fractions[key] = fractions.get(key, 0.0) + float(fraction)
    if not fractions:
        return np.zeros(len(column))
    keys = column.cast(pl.Float64 if is_float else pl.String)
    boosted = pl.Series([*fractions], dtype=keys.dtype)
    sums = keys.replace_strict(boosted, [*fractions.values()], default=0.0, return_dtype=pl.Float64)
    return sums.set(keys.is_null(), 0.0).to_numpy()


def _as_text(value: Any) -> str:
    """Return a value as text, as a text or Boolean column holds it: true, false."""
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def _as_float(value: Any) -> float | None:
    """Return a value as float; None if it is not a number."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _as_digits(value: Any) -> str | None:
    """Return a whole number as its digits: 5, 5.0 and "5" are "5"; None for anything else."""
    try:
        return str(int(str(value)))
    except ValueError:
        number = _as_float(value)
        return str(int(number)) if number is not None and number.is_integer() else None
