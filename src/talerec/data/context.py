"""Context of requests: values besides the history, such as the device or the channel.

A context column has a value per row of a log. A user column (age group, country) is a context
column whose value is the same in all rows of a user. Values are text or numbers; a row may have
none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from talerec.data.frames import require_columns
from talerec.data.vocabulary import Vocabulary
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array

logger = logging.getLogger("talerec")

#: Values of one column in a request: text, numbers or true and false; None: missing.
Context = Mapping[str, str | float | bool | None]

_TEXT_TYPES = (pl.String, pl.Categorical, pl.Enum, pl.Boolean)
_MAX_TEXT = 200  # characters of a value
_MAX_NAME = 100


@dataclass(frozen=True, eq=False)
class ContextColumn:
    """The values of one context column, one per row of a log, or per request.

    codes: int32, positions in `values`; -1: missing. values: the different values, as text or as
    finite numbers (Float64). by_user: whether it describes users, and is the same in all rows of a
    user.
    """

    name: str
    codes: Array
    values: pl.Series
    by_user: bool = False

    @classmethod
    def from_series(cls, name: str, column: pl.Series, *, by_user: bool = False) -> ContextColumn:
        """Return the column of a frame as a context column.

        Blank text, null and NaN are missing. Whole numbers are categories in a log, such as the
        number of a shop, and numbers in a table of users, such as an age. InvalidLogError for other
        types, infinite numbers and text of more than 200 characters.
        """
        _check_name(name)
        clean = _clean_values(name, column, whole_are_numbers=by_user)
        values = clean.drop_nulls().unique().sort()
        codes = pl.DataFrame({"value": clean}).join(
            pl.DataFrame({"value": values, "code": np.arange(len(values), dtype=np.int32)}),
            on="value", how="left", maintain_order="left",
        )["code"]  # fmt: skip
        return cls(name, codes.fill_null(-1).to_numpy(), values.alias(name), by_user)

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers, of which neighbors are alike."""
        return self.values.dtype == pl.Float64

    def take(self, which: Any) -> ContextColumn:
        """Return the column with its entries indexed by `which`: positions, a mask or a slice."""
        return replace(self, codes=self.codes[which])


ContextColumns = tuple[ContextColumn, ...]


def take_context(columns: ContextColumns, which: Any) -> ContextColumns:
    """Return each context column indexed by `which`: positions, a mask or a slice."""
    return tuple(column.take(which) for column in columns)


def read_context(table: pl.DataFrame, names: Iterable[str]) -> ContextColumns:
    """Return columns of a log's frame as context columns; InvalidLogError for unusable values."""
    return tuple(ContextColumn.from_series(name, table[name]) for name in dict.fromkeys(names))


def add_users(
    columns: ContextColumns, table: pl.DataFrame, key: str, users: Vocabulary, rows_of: Array
) -> ContextColumns:  # fmt: skip
    """Return the context columns of a log and those of a table of users, one value per row.

    columns: those that the log has. table: a row per user, with ids in the column `key`. users: the
    users of the log. rows_of: the position of each row's user. Users without a row have missing
    values. InvalidLogError if a user has two rows, no user of the log has one, a column cannot be
    used, or the log has a column of this name.
    """
    require_columns(table.columns, [key])
    names = [name for name in table.columns if name != key]
    if not names:
        raise InvalidLogError(f"the table of users has no column besides {key!r}")
    ids = users.cast_ids(table[key])
    repeated = ids.drop_nulls().filter(ids.drop_nulls().is_duplicated())
    if len(repeated):
        raise InvalidLogError(f"user {repeated[0]!r} has two rows in the table of users")
    places = pl.DataFrame({"id": users.ids}).join(
        pl.DataFrame({"id": ids, "row": np.arange(len(ids))}).drop_nulls("id"),
        on="id", how="left", maintain_order="left",
    )["row"]  # fmt: skip
    n_matching = len(places) - places.null_count()
    words = f"{n_matching:,} of {len(users):,} ids match"
    if not n_matching:
        raise InvalidLogError(f"the table of users describes no user of the log: {words}")
    logger.info("the table of users describes users of the log: %s", words)
    in_table, rows = places.is_not_null().to_numpy(), places.fill_null(0).to_numpy()
    added = []
    for name in names:
        if any(column.name == name for column in columns):
            raise InvalidLogError(f"there are two context columns {name!r}")
        column = ContextColumn.from_series(name, table[name], by_user=True)
        by_user = np.where(in_table, column.codes[rows], np.int32(-1)).astype(np.int32)
        added.append(replace(column, codes=by_user[rows_of]))
    return (*columns, *added)


def join_columns(first: ContextColumn, second: ContextColumn) -> ContextColumn:
    """Return the entries of one column, then those of another, of the same name.

    InvalidLogError if one has numbers and the other text.
    """
    if not len(second.values):  # all are missing: any type is right
        return replace(first, codes=np.concatenate([first.codes, second.codes]))
    if not len(first.values):
        return replace(first, codes=np.concatenate([first.codes, second.codes]),
                       values=second.values)  # fmt: skip
    check_type(first.name, first.is_number, second)
    both = pl.concat([first.values, second.values.alias(first.values.name)])
    values = both.unique(maintain_order=True)  # those of the first keep their codes
    positions = translate_values(second, values)
    codes = _look_up(positions, second.codes)
    return replace(first, codes=np.concatenate([first.codes, codes]), values=values)


def translate_values(column: ContextColumn, values: pl.Series) -> Array:
    """Return the position of each of a column's values among `values` of the same type, or -1."""
    coded = pl.DataFrame({"value": values, "code": np.arange(len(values), dtype=np.int32)})
    rows = pl.DataFrame({"value": column.values})
    codes = rows.join(coded, on="value", how="left", maintain_order="left")["code"]
    return codes.fill_null(-1).to_numpy()


def _look_up(positions: Array, codes: Array) -> Array:
    """Return the position of each code's value; -1 for code -1."""
    table: Array = np.append(positions, np.int32(-1)).astype(np.int32)
    return table[codes]


def fill_users(column: ContextColumn, user: Array) -> ContextColumn:
    """Return a user column in which all rows of a user have the user's newest value.

    user: the position of each row's user; the rows of a user are in order of time.
    """
    ptr = np.searchsorted(user, np.arange(int(user.max(initial=-1)) + 2))
    return newest_values((column,), ptr)[0].take(user)


def fill_missing(column: ContextColumn, other: ContextColumn) -> ContextColumn:
    """Return a column whose missing entries are those of another column with as many entries."""
    both = join_columns(column, other)
    size = len(column.codes)
    codes = np.where(both.codes[:size] >= 0, both.codes[:size], both.codes[size:])
    return replace(both, codes=codes)


def missing_column(like: ContextColumn, size: int) -> ContextColumn:
    """Return a column of the same name and kind with `size` missing values."""
    return replace(like, codes=np.full(size, -1, np.int32))


def check_type(name: str, is_number: bool, column: ContextColumn) -> None:
    """Raise InvalidLogError if a column has text instead of numbers, or the reverse.

    name, is_number: of the column as the model was fitted with it.
    """
    if len(column.values) and column.is_number != is_number:
        kinds = ("numbers", "text") if is_number else ("text", "numbers")
        message = f"column {name!r} had {kinds[0]} when the model was fitted, and has {kinds[1]}"
        raise InvalidLogError(message)


def concatenate_context(parts: Sequence[ContextColumns], sizes: Sequence[int]) -> ContextColumns:
    """Return the columns of one log's rows, part after part, with `sizes` rows.

    A part without columns has missing values. All parts have the same columns and values.
    """
    columns = next((part for part in parts if part), ())
    if not columns:
        return ()
    joined = []
    for number, column in enumerate(columns):
        codes = [
            part[number].codes if part else np.full(size, -1, np.int32)
            for part, size in zip(parts, sizes, strict=True)
        ]
        joined.append(replace(column, codes=np.concatenate(codes)))
    return tuple(joined)


def newest_values(columns: ContextColumns, ptr: Array) -> ContextColumns:
    """Return the user columns among columns of rows, with the newest value of each user.

    ptr: user u has rows ptr[u]..ptr[u + 1], oldest first.
    """
    of_users = [column for column in columns if column.by_user]
    if not of_users:
        return ()
    users = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    newest = []
    for column in of_users:
        is_known = column.codes >= 0
        codes = np.full(len(ptr) - 1, -1, np.int32)
        codes[users[is_known]] = column.codes[is_known]  # the last assignment wins
        newest.append(replace(column, codes=codes))
    return tuple(newest)


# -- requests --------------------------------------------------------------------------------------


def context_of_requests(
    requests: Sequence[Context], model_columns: Sequence[tuple[str, bool]]
) -> ContextColumns:
    """Return the contexts of requests as columns, one entry per request.

    requests: values by column. model_columns: names of the columns that a model knows, and whether
    each has numbers. Columns that no request mentions are left out. TalerecError for another
    column, or a value that it cannot have.
    """
    names = [name for name, _ in model_columns]
    for context in requests:
        for name in context:
            if name not in names:
                message = f"there is no context column {name!r}; the model has {', '.join(names)}"
                raise TalerecError(message, "context")
    columns = []
    for name, is_number in model_columns:
        if any(name in context for context in requests):
            values = [parse_value(name, context.get(name), is_number) for context in requests]
            kind: Any = pl.Float64 if is_number else pl.String
            columns.append(ContextColumn.from_series(name, pl.Series(name, values, kind)))
    return tuple(columns)


def parse_value(name: str, value: Any, is_number: bool) -> str | float | None:
    """Return the value of a context column in a request, as text or a number; None if missing.

    Text that spells a number is a number where the column has numbers. TalerecError for another
    value.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise TalerecError(f"context {name!r} is {value!r}; it takes a finite number", "context")
    if is_number:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            shown = repr(value)[:60]
            raise TalerecError(f"context {name!r} is {shown}; it takes a number", "context")
        return number
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float) and not value.is_integer():
        raise TalerecError(f"context {name!r} is {value!r}; it takes text", "context")
    if not isinstance(value, str | int | float | np.integer):
        raise TalerecError(f"context {name!r} is {repr(value)[:60]}; it takes text", "context")
    text = str(int(value)) if isinstance(value, float) else str(value).strip()
    if len(text) > _MAX_TEXT:
        message = f"context {name!r} has {len(text)} characters; {_MAX_TEXT} are allowed"
        raise TalerecError(message, "context")
    return text


# -- values of frames ------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    """Raise InvalidLogError for a name of a column that could not be shown in one line."""
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise InvalidLogError(f"{name[:_MAX_NAME]!r} is no name for a context column")


def _clean_values(name: str, column: pl.Series, *, whole_are_numbers: bool) -> pl.Series:
    """Return a column as text or Float64, with null for a missing value.

    whole_are_numbers: whether whole numbers are numbers, or names.
    """
    kind = column.dtype
    if kind.is_float() or kind.is_decimal() or (kind.is_integer() and whole_are_numbers):
        values = column.cast(pl.Float64).fill_nan(None)
        if values.is_infinite().any():
            row = int(values.is_infinite().fill_null(False).arg_true()[0])
            raise InvalidLogError(f"{name} is not a finite number", row=row + 1)
        return values + 0.0  # -0.0 is 0.0
    if not (kind.is_integer() or kind in _TEXT_TYPES or kind == pl.Null):
        message = f"column {name!r} holds {kind} values; context is text or numbers"
        raise InvalidLogError(message)
    text = column.cast(pl.String).str.strip_chars()
    text = text.set(text.str.len_chars().fill_null(0) == 0, None)
    too_long = text.str.len_chars().fill_null(0) > _MAX_TEXT
    if too_long.any():
        row = int(too_long.arg_true()[0])
        raise InvalidLogError(f"{name} has more than {_MAX_TEXT} characters", row=row + 1)
    return text
