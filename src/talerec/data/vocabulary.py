"""Vocabularies: external ids and their positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import TalerecError, UnknownIdError
from talerec.runtime.arrays import Array

_FEW = 1000  # ids asked for: up to here looking each up is faster than a join
_MOST = 10**38 - 1  # the largest whole number that text is ordered by
_SMALL = 200_000  # ids in a vocabulary: up to here a dictionary of them costs little memory


class Vocabulary:
    """External ids and their positions 0..n-1, both ways.

    Positions follow the ids: as numbers where every id is an integer (in a column of text too, up
    to 38 digits), else as text. So they do not depend on the order of rows.
    """

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids.alias("id")

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def encode(cls, values: pl.Series) -> tuple[Vocabulary, Array]:
        """The vocabulary of a column, and the column as int32 positions."""
        vocabulary = cls(in_order(values.unique()))
        return vocabulary, vocabulary.codes(values)

    def positions(self, values: Sequence[Any] | pl.Series, kind: str, unknown: str) -> Array:
        """Positions of external ids (of a `kind` that messages name: user or item).

        An unknown id is an error that names it, or -1 with unknown="skip".
        """
        if unknown not in ("error", "skip"):
            raise TalerecError(f'unknown is {unknown!r}; it takes "error" or "skip"')
        if type(values) is not list and (
            isinstance(values, str) or not isinstance(values, Iterable)
        ):
            raise TalerecError(f"{values!r} is not a list of {kind} ids")
        given = list(values)
        if len(given) <= _FEW and self._is_small and set(map(type, given)) == {self._type}:
            found = np.fromiter(map(self._places.get, given, repeat(-1)), np.int32, len(given))
            return self._checked(found, given, kind, unknown)
        for value in given if not set(map(type, given)) <= {int, str} else ():
            if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
                raise TalerecError(f"{kind} {value!r} is not an id: ids are text or whole numbers")
        return self._checked(self.codes(self._typed(given)), given, kind, unknown)

    def of_texts(self, texts: list[str]) -> Array:
        """Positions of ids that are all given as text, as stores and paths have them; -1 for unknown ones."""
        if self._type is str:
            return self.positions(texts, "id", "skip")
        numbers = [_whole(text) for text in texts]
        there = [number for number in numbers if number is not None]
        if len(there) == len(texts):
            return self.positions(there, "id", "skip")
        found = np.full(len(texts), -1, np.int32)
        if there:
            mask = np.array([number is not None for number in numbers])
            found[mask] = self.positions(there, "id", "skip")
        return found

    @cached_property
    def _type(self) -> type:
        return str if self.ids.dtype == pl.String else int

    @cached_property
    def _is_small(self) -> bool:
        return len(self) <= _SMALL

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {name: place for place, name in enumerate(self.ids.to_list())}

    def _checked(self, found: Array, given: list[Any], kind: str, unknown: str) -> Array:
        if unknown == "error" and (missing := np.flatnonzero(found < 0)).size:
            raise UnknownIdError(f"{kind} {given[missing[0]]!r} is not known to the model")
        return found

    def _typed(self, given: list[Any]) -> pl.Series:
        if self.ids.dtype == pl.Int64 and set(map(type, given)) == {int}:
            with suppress(OverflowError):
                return pl.Series(np.array(given, np.int64))
        return self.own_type(pl.Series([str(value) for value in given], dtype=pl.String))

    def own_type(self, ids: pl.Series) -> pl.Series:
        """Ids as people write them (5 or "5") in the type of this vocabulary; null where that cannot be."""
        texts = ids.cast(pl.String)
        if self.ids.dtype == pl.String:
            return texts
        numbers = texts.cast(self.ids.dtype, strict=False)
        return pl.select(pl.when(numbers.cast(pl.String) == texts).then(numbers)).to_series()

    def take(self, positions: Array) -> Vocabulary:
        """The ids at ascending positions, as another vocabulary."""
        return Vocabulary(self.ids.gather(positions))

    @cached_property
    def _table(self) -> pl.DataFrame:
        return pl.DataFrame(
            {"id": self.ids, "position": pl.arange(len(self), eager=True, dtype=pl.Int32)}
        )

    @cached_property
    def _index(self) -> tuple[Array, Array]:
        """The keys of all ids in ascending order, and the position of each."""
        keys = _keys(self.ids)
        order = np.argsort(keys, kind="stable").astype(np.int32)
        return keys[order], order

    def _look_up(self, values: pl.Series) -> Array | None:
        """Positions by bisection; None where two ids share a key, so that bisection may find the wrong one."""
        keys, order = self._index
        asked = _keys(values)
        place = np.searchsorted(keys, asked)
        found = np.minimum(place, len(keys) - 1)
        inside = place + 1 < len(keys)
        if (keys[place[inside] + 1] == asked[inside]).any():
            return None
        positions = order[found]
        same = keys[found] == asked
        if self.ids.dtype == pl.String:
            same &= np.array(self.ids[positions].to_list()) == np.array(values.to_list())
        return np.where(same, positions, np.int32(-1))

    def codes(self, values: pl.Series) -> Array:
        """Positions of ids of this vocabulary's type, -1 for unknown ones; a few are looked up, many are joined."""
        if 0 < len(values) <= _FEW < len(self) and not values.null_count():
            found = self._look_up(values)
            if found is not None:
                return found
        frame = pl.DataFrame({"id": values})
        joined = frame.join(self._table, on="id", how="left", maintain_order="left")["position"]
        return joined.fill_null(-1).to_numpy(writable=True)


def _whole(text: str) -> int | None:
    """The whole number that a text writes in the usual way, within 64 bits; None for 007, +7, 7.0 and words."""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    number = int(text)
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def _keys(ids: pl.Series) -> Array:
    """A number for every id: a whole number stands for itself, text for its hash."""
    return (ids if ids.dtype == pl.Int64 else ids.hash()).to_numpy()


def in_order(ids: pl.Series) -> pl.Series:
    """Distinct ids, sorted as numbers where every one is an integer, else as text."""
    if ids.dtype != pl.String:
        return ids.sort()
    numbers = ids.cast(pl.Int128, strict=False)
    if numbers.null_count() or not numbers.is_between(-_MOST, _MOST).all():
        return ids.sort()
    return pl.DataFrame({"number": numbers, "text": ids}).sort("number", "text")["text"]
