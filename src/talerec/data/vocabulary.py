"""Vocabularies: external ids and their positions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import TalerecError, UnknownIdError
from talerec.runtime import Array

logger = logging.getLogger("talerec")

_MAX_LOOKUPS = 1000  # ids: up to here, separate lookups are faster than a join
_MAX_INTEGER = 10**38 - 1  # the largest integer that texts are sorted by
_MAX_DICTIONARY = 200_000  # ids: up to here, a dictionary of all ids takes little memory


class Vocabulary:
    """External ids and their positions 0..n-1, in both directions.

    Positions follow the order of the ids: as numbers if every id is an integer (in a column of text
    too, up to 38 digits), else as text. So they do not depend on the order of rows. `ids` is the
    Polars series of the ids, by position.
    """

    def __init__(self, ids: pl.Series) -> None:
        self.ids = ids.alias("id")
        self._size = len(ids)  # quicker to read than the length of a series

    def __len__(self) -> int:
        return self._size

    @classmethod
    def encode(cls, values: pl.Series) -> tuple[Vocabulary, Array]:
        """Return the vocabulary of a column's distinct ids, and each row's int32 position in it.

        `values` is a Polars series of ids, integers or text; they are sorted, and a position is a
        number from 0 in this order.
        """
        vocabulary = cls(sort_ids(values.unique()))
        return vocabulary, vocabulary.codes(values)

    def sorted_places(self) -> Array:
        """Return the place of each id (int32) among all ids in sorted order.

        It is the id's position in a vocabulary of `encode`; an updated model appends new ids.
        """
        return Vocabulary(sort_ids(self.ids)).codes(self.ids)

    def positions(self, values: Sequence[Any] | pl.Series, kind: str, unknown: str) -> Array:
        """Return the positions of external ids (int32); `kind` (user or item) is for messages.

        A position is the number of an id in this vocabulary, from 0. An unknown id raises an
        UnknownIdError that names it, or is -1 with unknown="skip". TalerecError for a value that is
        not text or a whole number. `self._type` is the Python type of the ids,
        `self._position_by_id` a dict for few lookups.
        """
        if unknown not in ("error", "skip"):
            raise TalerecError(f'unknown is {unknown!r}; it takes "error" or "skip"')
        is_list = type(values) is list  # a service looks up lists, thousands a second
        if not is_list and (isinstance(values, str) or not isinstance(values, Iterable)):
            raise TalerecError(f"{values!r} is not a list of {kind} ids")
        ids = list(values)
        is_quick = len(ids) <= _MAX_LOOKUPS and self._has_dictionary
        if is_quick and set(map(type, ids)) == {self._type}:
            lookup = map(self._position_by_id.get, ids, repeat(-1))
            return self._require_known(np.fromiter(lookup, np.int32, len(ids)), ids, kind, unknown)
        for value in ids if not set(map(type, ids)) <= {int, str} else ():
            if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
                raise TalerecError(f"{kind} {value!r} is not an id: ids are text or whole numbers")
        return self._require_known(self.codes(self._to_series(ids)), ids, kind, unknown)

    def text_positions(self, texts: list[str]) -> Array:
        """Return the positions (int32) of ids that are all given as text, -1 for unknown ids.

        If this vocabulary's ids are integers, "7" stands for 7, but "07" is unknown.
        """
        if self._type is str:
            return self.positions(texts, "id", "skip")
        integers = [parse_integer(text) for text in texts]
        numeric = [number for number in integers if number is not None]
        if len(numeric) == len(texts):
            return self.positions(numeric, "id", "skip")
        positions = np.full(len(texts), -1, np.int32)
        if numeric:
            mask = np.array([number is not None for number in integers])
            positions[mask] = self.positions(numeric, "id", "skip")
        return positions

    @cached_property
    def _type(self) -> type:
        """The Python type of the ids: str or int."""
        return str if self.ids.dtype == pl.String else int

    @cached_property
    def _has_dictionary(self) -> bool:
        """Whether the vocabulary is small enough for `_position_by_id`."""
        return len(self.ids) <= _MAX_DICTIONARY

    @cached_property
    def _position_by_id(self) -> dict[Any, int]:
        """The position of each id, its number in this vocabulary from 0, as a dict."""
        return {name: position for position, name in enumerate(self._id_list)}

    @cached_property
    def _id_list(self) -> list[Any]:
        """All ids as a list, in position order."""
        ids: list[Any] = self.ids.to_list()
        return ids

    def take_ids(self, positions: Array) -> list[Any]:
        """Return the ids at these positions (integers from 0) as plain values."""
        if self._has_dictionary:
            ids = self._id_list
            return [ids[position] for position in positions.tolist()]
        names: list[Any] = self.ids.gather(positions).to_list()
        return names

    def _require_known(self, positions: Array, ids: list[Any], kind: str, unknown: str) -> Array:
        """Return `positions`; UnknownIdError for the first -1 if `unknown` is "error".

        `ids` are the ids that were looked up, and `kind` (user or item) is for the message.
        """
        if unknown == "error" and (missing := np.flatnonzero(positions < 0)).size:
            raise UnknownIdError(
                f"{kind} {ids[missing[0]]!r} is not known to the model"
                + self._suggest_spelling(ids[missing[0]])
            )
        return positions

    def _suggest_spelling(self, name: Any) -> str:
        """Return "; '17.0' is" if the id is known with .0 (or spaces) added or removed, else "".

        Tables of pandas with missing ids write whole numbers as 17.0.
        """
        text = str(name)
        for spelling in (f"{text}.0", text.removesuffix(".0"), text.strip()):
            is_known = self._has_dictionary and self.text_positions([spelling])[0] >= 0
            if spelling != text and is_known:
                return f"; {spelling!r} is"
        return ""

    def _to_series(self, ids: list[Any]) -> pl.Series:
        """Return ids (text or whole numbers) as a Polars series of this vocabulary's type.

        The type is that of `self.ids`, text or int64. An id that cannot have it, such as "x" among
        integers, becomes null.
        """
        if self.ids.dtype == pl.Int64 and set(map(type, ids)) == {int}:
            with suppress(OverflowError):
                return pl.Series(np.array(ids, np.int64))
        return self.cast_ids(pl.Series([str(value) for value in ids], dtype=pl.String))

    def cast_ids(self, ids: pl.Series) -> pl.Series:
        """Return ids, such as 5 or '5', in this vocabulary's type; null where impossible.

        The type is text or an integer type; a text such as "05" that is not an integer's plain
        spelling has no integer.
        """
        texts = ids.cast(pl.String)
        if self.ids.dtype == pl.String:
            return texts
        integers = texts.cast(self.ids.dtype, strict=False)
        return pl.select(pl.when(integers.cast(pl.String) == texts).then(integers)).to_series()

    def take(self, positions: Array) -> Vocabulary:
        """Return the ids at these positions, which must ascend, as a new vocabulary."""
        return Vocabulary(self.ids.gather(positions))

    @cached_property
    def _table(self) -> pl.DataFrame:
        """The ids and their positions as a frame with the columns "id" and "position"."""
        positions = pl.arange(len(self), eager=True, dtype=pl.Int32)
        return pl.DataFrame({"id": self.ids, "position": positions})

    @cached_property
    def _index(self) -> tuple[Array, Array]:
        """The hash keys of all ids in ascending order, and the position of each key's id.

        A hash key is an integer id itself, or the 64-bit hash of a text.
        """
        keys = _hash_keys(self.ids)
        order = np.argsort(keys, kind="stable").astype(np.int32)
        return keys[order], order

    def _look_up(self, values: pl.Series) -> Array | None:
        """Return positions (int32) of ids of this vocabulary's type, -1 for unknown ids.

        They are found by bisection over the sorted hashes of all ids (`self._index`: the hashes and
        the position of each). None if two ids of the vocabulary may have the same hash: then the
        caller joins instead.
        """
        keys, order = self._index
        wanted_keys = _hash_keys(values)
        slots = np.searchsorted(keys, wanted_keys)
        inside = slots + 1 < len(keys)
        if (keys[slots[inside] + 1] == wanted_keys[inside]).any():
            return None
        slots = np.minimum(slots, len(keys) - 1)
        positions = order[slots]
        same = keys[slots] == wanted_keys
        if self.ids.dtype == pl.String:
            same &= np.array(self.ids[positions].to_list()) == np.array(values.to_list())
        return np.where(same, positions, np.int32(-1))

    def codes(self, values: pl.Series) -> Array:
        """Return positions (int32) of ids of this vocabulary's type, -1 for unknown ids.

        A position is the number of an id in the vocabulary, from 0. Few ids are looked up one by
        one, many are joined. `values` has the ids; `self._table` is a frame of all ids and their
        positions.
        """
        if 0 < len(values) <= _MAX_LOOKUPS < len(self) and not values.null_count():
            positions = self._look_up(values)
            if positions is not None:
                return positions
        frame = pl.DataFrame({"id": values})
        joined = frame.join(self._table, on="id", how="left", maintain_order="left")["position"]
        return joined.fill_null(-1).to_numpy(writable=True)


def parse_integer(text: str) -> int | None:
    """Return the 64-bit integer that a text spells plainly; None for 007, +7, 7.0 and words."""
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
        return None
    number = int(text)
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def _hash_keys(ids: pl.Series) -> Array:
    """Return a number for every id: an integer itself, or the 64-bit hash of a text."""
    return (ids if ids.dtype == pl.Int64 else ids.hash()).to_numpy()


def sort_ids(ids: pl.Series) -> pl.Series:
    """Return distinct ids sorted as numbers if all are integers, else as text.

    `ids` is a column of integers or text; text that spells integers, such as "10", stays text.
    """
    if ids.dtype != pl.String:
        return ids.sort()
    integers = ids.cast(pl.Int128, strict=False)
    if integers.null_count() or not integers.is_between(-_MAX_INTEGER, _MAX_INTEGER).all():
        return ids.sort()
    return pl.DataFrame({"number": integers, "text": ids}).sort("number", "text")["text"]


#: Spellings of a missing value; they are accepted as ids, with a warning.
_NULL_WORDS = (
    "NULL", "null", "nan", "NaN", "NAN", "None", "none", "NA", "N/A", "n/a", "<NA>", "undefined"
)  # fmt: skip


def warn_of_odd_ids(name: str, ids: Vocabulary, codes: Array) -> None:
    """Log a warning for text ids that may not be what they seem: NULL, " 17", or 17.0.

    An id such as NULL or NaN may merge the rows of many users. Ids with spaces around them, or
    numbers with decimals, may not match those of other files; all ids stay as they are. `name` is
    the column's name, `ids` its distinct values (a Vocabulary, whose `ids` are a Polars series),
    and `codes` each row's position in `ids`.
    """
    texts = ids.ids
    if texts.dtype != pl.String:
        return
    for position in texts.is_in(_NULL_WORDS).arg_true():
        n_rows, word = int((codes == position).sum()), texts[int(position)]
        rows_have, them = ("row has", "it") if n_rows == 1 else ("rows have", "them")
        message = "%s %s %s %r, treated as an id; remove %s if it means missing"
        logger.warning(message, f"{n_rows:,}", rows_have, name, word, them)
    padded = texts.filter(texts.str.contains(r"^\s|\s$"))
    if len(padded):
        message = "%s: %d ids begin or end with a space, which is part of the id, such as %r"
        logger.warning(message, name, len(padded), padded[0])
    if texts.str.contains(r"^\d+\.0$").all():
        message = "%s: all ids end in .0, such as %r; write whole numbers to match other files"
        logger.warning(message, name, texts[0])
