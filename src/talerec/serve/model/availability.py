"""Which items may be recommended at a time: not deleted or hidden, and within their dates."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec.data import AVAILABLE, AVAILABLE_FROM, AVAILABLE_UNTIL, HIDDEN, time_to_microseconds
from talerec.errors import TalerecError
from talerec.runtime import Array
from talerec.store import StoredItem

_ALWAYS, _NEVER = -(2**63), 2**63 - 1  # times before and after all others
_DEFAULTS = (False, False, False, _ALWAYS, _NEVER)  # deleted, hidden, unavailable, begin, end


class Availability:
    """Whether each item may be recommended, by item position and by the clock.

    An item's position is its number in the vocabulary. Times are in microseconds since 1970.

    Parameters
    ----------
    is_deleted, is_hidden, is_unavailable : boolean arrays
        Items that were deleted, are hidden, or are not available.
    begin, end : int64 arrays
        The time from which an item may be recommended, and the time from which it no longer may.
    """

    def __init__(
        self, is_deleted: Array, is_hidden: Array, is_unavailable: Array, begin: Array, end: Array
    ) -> None:
        self.is_deleted = is_deleted
        self._arrays = (is_deleted, is_hidden, is_unavailable, begin, end)
        times = np.unique(np.concatenate([begin, end]))
        self._times = times[(times != _ALWAYS) & (times != _NEVER)]  # at which something changes
        self._flags: tuple[int, Array | None] | None = None  # of the period with this number

    @classmethod
    def read(cls, table: pl.DataFrame) -> Availability:
        """Return the availability of the items of an item table, by its columns if it has them.

        Columns: hidden and available (true or false, or numbers), available_from and
        available_until (dates, or text that spells times). Others, and nulls, change nothing.
        """
        is_hidden = _read_flag(table, HIDDEN)
        is_unavailable = ~_read_flag(table, AVAILABLE, default=True)
        begin = _read_times(table, AVAILABLE_FROM, _ALWAYS)
        end = _read_times(table, AVAILABLE_UNTIL, _NEVER)
        return cls(np.zeros(len(table), bool), is_hidden, is_unavailable, begin, end)

    def extend(self, n_items: int) -> Availability:
        """Return the availability of `n_items` items: these, and others without limits."""
        n_new = n_items - len(self.is_deleted)
        pairs = zip(self._arrays, _DEFAULTS, strict=True)
        return Availability(*(np.pad(a, (0, n_new), constant_values=pad) for a, pad in pairs))

    def set_items(self, positions: Array, rows: list[StoredItem]) -> Availability:
        """Return the availability after clients' changes of some items.

        rows: of the store. positions: of their items, -1 for one that is left out. A field that no
        client has put keeps its value; after a deletion of the item, it has its default.
        """
        arrays = [array.copy() for array in self._arrays]
        is_deleted, is_hidden, is_unavailable, begin, end = arrays
        for position, row in zip(positions.tolist(), rows, strict=True):
            if position < 0:
                continue
            if row.is_whole:
                for array, default in zip(arrays, _DEFAULTS, strict=True):
                    array[position] = default
            is_deleted[position] = row.fields is None
            values = row.values()
            if HIDDEN in values:
                is_hidden[position] = _is_true(values[HIDDEN], default=False)
            if AVAILABLE in values:
                is_unavailable[position] = not _is_true(values[AVAILABLE], default=True)
            if AVAILABLE_FROM in values:
                begin[position] = _parse_time(values[AVAILABLE_FROM], _ALWAYS)
            if AVAILABLE_UNTIL in values:
                end[position] = _parse_time(values[AVAILABLE_UNTIL], _NEVER)
        return Availability(*arrays)

    def describe_item(self, position: int) -> dict[str, Any]:
        """Return the fields of availability of an item that limit it, as JSON has them."""
        _, is_hidden, is_unavailable, begin, end = (array[position] for array in self._arrays)
        fields: dict[str, Any] = {HIDDEN: True} if is_hidden else {}
        fields |= {AVAILABLE: False} if is_unavailable else {}
        fields |= {AVAILABLE_FROM: _format_time(int(begin))} if begin != _ALWAYS else {}
        return fields | ({AVAILABLE_UNTIL: _format_time(int(end))} if end != _NEVER else {})

    def flags(self, now: int) -> Array | None:
        """Return a flag (uint8) per item: whether it may be recommended at a time; None: all may.

        Flags change only when an item's begin or end passes, so those of the latest period between
        two such times are kept.
        """
        period = int(np.searchsorted(self._times, now, "right"))
        cached = self._flags
        if cached is None or cached[0] != period:
            is_deleted, is_hidden, is_unavailable, begin, end = self._arrays
            is_valid = ~(is_deleted | is_hidden | is_unavailable) & (begin <= now) & (now < end)
            flags = None if is_valid.all() else is_valid.astype(np.uint8)
            cached = self._flags = (period, flags)
        return cached[1]


def _is_true(value: Any, *, default: bool) -> bool:
    """Return whether a value of JSON is true or a number other than 0; `default` for others."""
    return bool(value) if isinstance(value, bool | int | float) else default


def _parse_time(value: Any, default: int) -> int:
    """Return a time of JSON in microseconds since 1970; `default` for null and for no time."""
    if value is None:
        return default
    try:
        return time_to_microseconds(value)
    except TalerecError:
        return default


def _format_time(time_us: int) -> str:
    """Return a time in microseconds since 1970 as ISO 8601 in UTC."""
    return str(np.datetime64(time_us, "us")) + "Z"


def _read_flag(table: pl.DataFrame, name: str, *, default: bool = False) -> Array:
    """Return a column of true or false (or numbers) as a boolean array; `default` for null.

    `default` too if the table has no such column, or one of another type.
    """
    if name not in table.columns or not (
        table.schema[name].is_numeric() or table.schema[name] == pl.Boolean
    ):
        return np.full(len(table), default)
    flags: Array = table[name].cast(pl.Boolean).fill_null(default).to_numpy()
    return flags


def _read_times(table: pl.DataFrame, name: str, default: int) -> Array:
    """Return a column of times in microseconds since 1970; `default` for null and for no time."""
    if name not in table.columns:
        return np.full(len(table), default)
    values = table[name]
    if values.dtype in (pl.Date, pl.Datetime):
        return values.cast(pl.Datetime("us")).cast(pl.Int64).fill_null(default).to_numpy()
    times = (_parse_time(value, default) for value in values.to_list())
    return np.fromiter(times, np.int64, len(table))
