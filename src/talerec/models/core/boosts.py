"""Boosts: items whose row of the item table has a value are lifted or lowered by a part of the list's spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.models.core import inference as asking
from talerec.models.core.inference import Asked
from talerec.runtime.arrays import Array

#: What people write: {"brand": {"X": 0.2}}.
Wishes = Mapping[str, Mapping[Any, float]]

SPREAD = 100  # a list's spread is its first score less that of this place
MOST = 1000.0  # the largest boost: more says nothing more, and sums stay finite
MAX_VALUES = 10_000  # values that one question may boost


@dataclass(frozen=True, eq=False)
class Boost:
    """How many spreads each item's score is raised by: 0 for most of them, below 0 for those that are lowered."""

    amount: Array

    @cached_property
    def classes(self) -> tuple[tuple[Array, float], ...]:
        """Items that are raised and all others: the flags of each, and the largest amount among them."""
        up = self.amount > 0
        return tuple(
            (flags.astype(np.uint8), float(self.amount[flags].max()))
            for flags in (up, ~up)
            if flags.any()
        )


# -- what people write -----------------------------------------------------------------------------


def boost_of(info: pl.DataFrame, wishes: Wishes) -> Boost:
    """The boost of every item of a table: what several columns and values say is added up.

    A value that no item has boosts nothing, and an item whose value is unknown (null) is not boosted.
    """
    check(info, wishes)
    amount = np.zeros(len(info))
    for column, values in wishes.items():
        amount += _amounts(info[column], values)
    return Boost(amount)


def parts(info: pl.DataFrame, wishes: Wishes, item: int) -> Iterator[tuple[str, Any, float]]:
    """The column, value and number of each boost that holds for an item."""
    for column, values in wishes.items():
        row = info[column].slice(item, 1)
        for value, number in values.items():
            if _amounts(row, {value: number})[0]:
                yield column, value, float(number)


def check(info: pl.DataFrame, wishes: Wishes) -> None:
    """Refuse what is not a boost, naming the column or the value."""
    if not isinstance(wishes, Mapping):
        raise TalerecError('boost is a table such as {"brand": {"X": 0.2}}')
    if sum(len(values) for values in wishes.values() if isinstance(values, Mapping)) > MAX_VALUES:
        raise TalerecError(f"boost has more than {MAX_VALUES:,} values")
    for column, values in wishes.items():
        if column not in info.columns:
            known = ", ".join(info.columns)
            raise TalerecError(f"boost: the item table has no column {column!r}; it has {known}")
        kind = info.schema[column]
        if kind.is_nested() or kind in (pl.Binary, pl.Object):
            raise TalerecError(f"boost: column {column!r} holds {kind}, not single values")
        if not isinstance(values, Mapping):
            raise TalerecError(f"boost: {column} is {values!r}; it takes values and their numbers")
        for value, number in values.items():
            _check_number(f"{column} {value!r}", number)


def _check_number(what: str, number: Any) -> None:
    real = isinstance(number, int | float | np.integer | np.floating)
    if isinstance(number, bool) or not real or not abs(number) <= MOST:
        raise TalerecError(
            f"boost: {what} is {number!r}; it takes a number from {-MOST:g} to {MOST:g}"
        )


def _amounts(column: pl.Series, values: Mapping[Any, float]) -> Array:
    """The boost of each row of a column."""
    numbers = column.dtype.is_float() or column.dtype == pl.Decimal
    read = _number if numbers else _whole if column.dtype.is_integer() else _text
    wanted: dict[Any, float] = {}
    for value, number in values.items():
        key = read(value)
        if key is not None:  # of another kind than the column: no item has it
            wanted[key] = wanted.get(key, 0.0) + float(number)
    if not wanted:
        return np.zeros(len(column))
    found = column.cast(pl.Float64 if numbers else pl.String)
    kind = pl.Series([*wanted], dtype=found.dtype)
    made = found.replace_strict(kind, [*wanted.values()], default=0.0, return_dtype=pl.Float64)
    return made.set(found.is_null(), 0.0).to_numpy()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if math.isnan(found) else found


def _whole(value: Any) -> str | None:
    """A whole number as its digits; 5.0 is 5."""
    try:
        return str(int(str(value)))
    except ValueError:
        found = _number(value)
        return str(int(found)) if found is not None and found.is_integer() else None


# -- lists -----------------------------------------------------------------------------------------


class Lists(NamedTuple):
    """The first items of histories by their boosted scores.

    counts  how many of a row are certain: nothing that is not in it can stand before them
    more    could there be others behind those that are certain?
    spread  of each history's list
    """

    items: Array
    scores: Array
    counts: Array
    more: Array
    spread: Array


def spread_of(scores: Array, counts: Array) -> Array:
    """The first score of each list less the hundredth, or less the last of a shorter one; 0 for a list of one item or none."""
    rows = np.arange(len(scores))
    last = scores[rows, np.clip(counts, 1, SPREAD) - 1]
    spread = np.where(counts > 1, scores[:, 0] - last, 0.0)
    spread[~np.isfinite(spread)] = 0.0
    return spread


def first_lists(
    model: Asked,
    histories: Histories,
    size: int,
    boost: Boost,
    *,
    hide_seen: bool,
    allowed: Array | None,
) -> Lists:
    """The first `size` items of each history, at least as many as the spread asks for, with boosts added."""
    found = asking.top(model, histories, size, hide_seen=hide_seen, allowed=allowed)
    spread = spread_of(found[1], found[2])
    most = max(most for _, most in boost.classes)
    return _merged([(found, most)], boost, spread, size, len(model.fitted.items))


def longer_lists(
    model: Asked,
    histories: Histories,
    size: int,
    boost: Boost,
    spread: Array,
    *,
    hide_seen: bool,
    allowed: Array | None,
) -> Lists:
    """The first `size` of the items that are raised and of the others, as one list with boosts added."""
    found = []
    for flags, most in boost.classes:
        mine = flags if allowed is None else flags & allowed
        part = asking.top(model, histories, size, hide_seen=hide_seen, allowed=mine)
        found.append((part, most))
    return _merged(found, boost, spread, size, len(model.fitted.items))


def _merged(
    found: list[tuple[tuple[Array, Array, Array], float]],
    boost: Boost,
    spread: Array,
    size: int,
    everything: int,
) -> Lists:
    """Lists of the model in one order by boosted scores.

    An item that its list leaves out scores no more than the list's last, and gets no more than the largest boost of
    the list's items: what is above that in every list is certain.
    """
    items = np.concatenate([part[0] for part, _ in found], axis=1)
    scores = np.concatenate([part[1] for part, _ in found], axis=1)
    scores = raised(items, scores, boost, spread)
    bound = np.full(len(items), -np.inf)
    for (_, own, counts), most in found:
        full = (counts == size) & (size < everything)
        bound = np.where(full, np.maximum(bound, own[:, -1] + most * spread), bound)
    order = np.lexsort((items, -scores), axis=-1)
    items, scores = (np.take_along_axis(part, order, axis=1) for part in (items, scores))
    counts = (scores > bound[:, None]).sum(axis=1)  # no number is not above
    return Lists(items, scores, counts, np.isfinite(bound), spread)


def raised(items: Array, scores: Array, boost: Boost, spread: Array) -> Array:
    """Scores of items (-1 for none) with the boost of each."""
    boosted: Array = scores + np.where(items >= 0, boost.amount[items], 0.0) * spread[:, None]
    return boosted
