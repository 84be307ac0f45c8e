"""Values of an item table that clients send as JSON: which are accepted, in which type."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl

from talerec import columns
from talerec.data.items import DATE, ItemColumn, parse_dates
from talerec.data.times import time_to_microseconds
from talerec.errors import TalerecError

MAX_FIELD_TEXT = 100_000  # characters of the text of one field, or of all texts of a list
MAX_FIELD_ENTRIES = 10_000  # entries of a list

#: Fields that say whether an item may be recommended; they belong to no item table.
HIDDEN, AVAILABLE, AVAILABLE_FROM, AVAILABLE_UNTIL = AVAILABILITY = (
    "hidden", "available", "available_from", "available_until"
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1)
_MAX_SHOWN = 40  # characters of a value in a message
_INTEGER_BITS: dict[Any, int] = {
    pl.Int8: 8, pl.UInt8: 8, pl.Int16: 16, pl.UInt16: 16, pl.Int32: 32, pl.UInt32: 32
}  # fmt: skip


@dataclass(frozen=True)
class ItemField:
    """A column of an item table, as clients may write it.

    Parameters
    ----------
    name : str
        The column.
    dtype : polars.DataType
        Its type.
    is_date : bool
        Whether it is a column of text whose values are dates.
    width : int
        The number of dimensions of a column of vectors; 0 for other columns.
    """

    name: str
    dtype: Any
    is_date: bool = False
    width: int = 0

    def parse(self, value: Any) -> Any:
        """Return a value of JSON as one of this column's type; None for null.

        TalerecError if it is of another type or too large. The message names the field.
        """
        if value is None:
            return None
        try:
            return self._parse(value, self.dtype)
        except _InvalidValueError as error:
            raise TalerecError(f"{self.name}: {error}") from None

    def _parse(self, value: Any, dtype: Any) -> Any:
        """Return a value that is not null in the type `dtype`; _InvalidValueError if it has not."""
        if isinstance(dtype, pl.List | pl.Array):
            return self._parse_list(value, dtype)
        if dtype == pl.Boolean:
            return _require(value, isinstance(value, bool), "true or false")
        if dtype.is_numeric():
            return _parse_number(value, dtype)
        if dtype in (pl.Date, pl.Datetime):
            return _parse_time(value, dtype)
        if dtype != pl.String:
            raise _InvalidValueError(f"a column of the type {dtype} cannot be written")
        text: str = _require(value, isinstance(value, str), "text")
        _check_text(text)
        if self.is_date and parse_dates(pl.Series([text])).null_count():
            raise _InvalidValueError(f"{_show(value)} is not a date, as the others of the column")
        return text

    def _parse_list(self, value: Any, dtype: Any) -> list[Any]:
        """Return a list whose entries have the inner type of `dtype`, none of them null."""
        entries: list[Any] = _require(value, isinstance(value, list), "a list")
        if len(entries) > MAX_FIELD_ENTRIES:
            count = f"it has {len(entries):,} entries"
            raise _InvalidValueError(f"{count}; the limit is {MAX_FIELD_ENTRIES:,}")
        if self.width and len(entries) != self.width:
            expected = f"the vectors of the column have {self.width}"
            raise _InvalidValueError(f"it has {len(entries)} numbers; {expected}")
        if isinstance(dtype.inner, pl.List | pl.Array):
            raise _InvalidValueError(f"a column of the type {dtype} cannot be written")
        parsed = [self._parse_entry(n, entry, dtype.inner) for n, entry in enumerate(entries)]
        if sum(len(entry) for entry in parsed if isinstance(entry, str)) > MAX_FIELD_TEXT:
            raise _InvalidValueError(f"its texts have more than {MAX_FIELD_TEXT:,} characters")
        return parsed

    def _parse_entry(self, n: int, entry: Any, dtype: Any) -> Any:
        """Return entry number `n` of a list in the type `dtype`; the error names the number."""
        try:
            if entry is None:
                raise _InvalidValueError("a list has no null")
            return self._parse(entry, dtype)
        except _InvalidValueError as error:
            raise _InvalidValueError(f"[{n}]: {error}") from None


class _InvalidValueError(Exception):
    """The problem with a value, without the name of its field."""


def describe_fields(table: pl.DataFrame, types: Collection[ItemColumn]) -> dict[str, ItemField]:
    """Return the fields that clients may write of an item table's rows, by name.

    table: the item table; its ids are not a field, and the title is one even if the table has no
    titles. types: of its columns, as a model's fit found them; empty if it did not look. The fields
    of `AVAILABILITY` follow, unless the table has columns of these names.
    """
    kinds = {column.name: column for column in types}
    fields = {}
    for column in table.get_columns():
        kind = kinds.get(column.name)
        width = _find_width(column, kind)
        is_date = kind is not None and kind.kind == DATE and column.dtype == pl.String
        fields[column.name] = ItemField(column.name, _writable_type(column.dtype), is_date, width)
    fields.pop(columns.ITEM, None)
    title = columns.TITLES[0]
    fields.setdefault(title, ItemField(title, pl.String()))
    for name in AVAILABILITY:
        dtype: Any = pl.Boolean() if name in (HIDDEN, AVAILABLE) else pl.Datetime("us")
        fields.setdefault(name, ItemField(name, dtype))
    return fields


def _find_width(column: pl.Series, kind: ItemColumn | None) -> int:
    """Return the width of a column of vectors (lists of fractions); 0 for other columns."""
    if kind is not None and kind.width:
        return kind.width
    if isinstance(column.dtype, pl.Array):
        return int(column.dtype.size)
    if not isinstance(column.dtype, pl.List) or not column.dtype.inner.is_float():
        return 0
    widths = column.list.len().drop_nulls()
    return int(widths[0]) if len(widths) else 0


def _writable_type(dtype: Any) -> Any:
    """Return the type in which values of a column are written: text for categoricals."""
    return pl.String() if dtype in (pl.Categorical, pl.Enum) else dtype


def check_fields(values: Mapping[str, Any], fields: Mapping[str, ItemField]) -> dict[str, Any]:
    """Return the values that a client sends of an item, ready to be stored.

    values: of JSON, by field; null empties one. fields: those that may be written. Times of
    availability become ISO 8601 in UTC. TalerecError names the first field that does not exist, or
    whose value is invalid.
    """
    checked = {}
    for name, value in values.items():
        field = fields.get(name)
        if field is None:
            shown = ", ".join(list(fields)[:20])
            raise TalerecError(f"there is no column {name[:_MAX_SHOWN]!r}; there are {shown}")
        parsed = field.parse(value)
        is_time = isinstance(parsed, datetime) and name in AVAILABILITY
        checked[name] = f"{parsed.replace(tzinfo=None).isoformat()}Z" if is_time else value
    return checked


def _require(value: Any, is_valid: bool, kind: str) -> Any:
    """Return a value; _InvalidValueError, which says that it is not `kind`, if it is invalid."""
    if not is_valid:
        raise _InvalidValueError(f"{_show(value)} is not {kind}")
    return value


def _show(value: Any) -> str:
    """Return a value for a message, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _parse_number(value: Any, dtype: Any) -> int | float:
    """Return a number in the range of a numeric type; _InvalidValueError if it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(value, is_number, "a number")
    if dtype.is_integer():
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        _require(value, isinstance(value, int), "a whole number")
        low, high = integer_range(dtype)
        return int(_require(value, low <= value <= high, f"from {low} to {high}"))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return float(_require(number, math.isfinite(number), "a finite number"))


def integer_range(dtype: Any) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type of Polars."""
    bits = _INTEGER_BITS.get(dtype, 64)
    low = 0 if dtype.is_unsigned_integer() else -(2 ** (bits - 1))
    return low, low + 2**bits - 1


def _parse_time(value: Any, dtype: Any) -> date | datetime:
    """Return ISO 8601 text, or a number since 1970, as a date or a datetime (UTC)."""
    try:
        time = _EPOCH + timedelta(microseconds=time_to_microseconds(value))
    except (TalerecError, OverflowError):
        example = "text such as 2024-05-01T12:00:00Z"
        raise _InvalidValueError(f"{_show(value)} is not a time ({example})") from None
    if dtype == pl.Date:
        return time.date()
    return time if dtype.time_zone is None else time.replace(tzinfo=UTC)


def _check_text(text: str) -> None:
    """Raise _InvalidValueError for text that is too long, or that databases cannot store."""
    if len(text) > MAX_FIELD_TEXT:
        count = f"it has {len(text):,} characters"
        raise _InvalidValueError(f"{count}; the limit is {MAX_FIELD_TEXT:,}")
    if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
        raise _InvalidValueError("it is not valid Unicode")
    if "\0" in text:
        raise _InvalidValueError("it contains a null character, which databases cannot store")


def build_rows(
    items: list[Any], values: list[dict[str, Any]], fields: Mapping[str, ItemField], dtype: Any
) -> pl.DataFrame:
    """Return stored values of items as rows of an item table, with ids in item_id.

    items: the ids, of the type `dtype`. values: of JSON, by field, one dict per item. A field that
    an item does not have is null, and so is a value that does not fit its column: a model that was
    loaded later may have other types.
    """
    rows = {columns.ITEM: pl.Series(columns.ITEM, items, dtype)}
    for name, field in fields.items():
        parsed = [_parse_or_null(field, each.get(name)) for each in values]
        is_decimal = field.dtype == pl.Decimal
        series = pl.Series(name, parsed, pl.Float64 if is_decimal else field.dtype)
        rows[name] = series.cast(field.dtype) if is_decimal else series
    return pl.DataFrame(rows)


def _parse_or_null(field: ItemField, value: Any) -> Any:
    """Return a value in the type of its field; None if it has no value of this type."""
    try:
        return field.parse(value)
    except TalerecError:
        return None


def to_json_value(value: Any) -> Any:
    """Return a value of an item table as JSON has it: times as ISO 8601, other types as text.

    None for null, and for numbers that are not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [to_json_value(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else str(value)
