"""The Log: interactions in columns, sorted by user, then time, then tie order. External ids end here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any, cast

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.times import days as in_days
from talerec.data.times import to_microseconds
from talerec.errors import TalerecError, UnknownIdError
from talerec.runtime.arrays import Array

_FEW = 1000  # ids: up to here a lookup is faster than a join
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
        vocabulary = cls(_in_order(values.unique()))
        return vocabulary, vocabulary._codes(values)

    def positions(self, values: Sequence[Any] | pl.Series, kind: str, unknown: str) -> Array:
        """Positions of external ids. An unknown one is an error that names it, or -1 with unknown="skip"."""
        if unknown not in ("error", "skip"):
            raise TalerecError(f'unknown is {unknown!r}; it takes "error" or "skip"')
        if type(values) is not list and (
            isinstance(values, str) or not isinstance(values, Iterable)
        ):
            raise TalerecError(f"{values!r} is no list of {kind} ids")
        given = list(values)
        if len(given) <= _FEW and self._is_small and set(map(type, given)) == {self._type}:
            found = np.fromiter(map(self._places.get, given, repeat(-1)), np.int32, len(given))
            return self._known(found, given, kind, unknown)
        for value in given if not set(map(type, given)) <= {int, str} else ():
            if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
                raise TalerecError(f"{kind} {value!r} is no id: ids are text or whole numbers")
        return self._known(self._codes(self._typed(given)), given, kind, unknown)

    @cached_property
    def _type(self) -> type:
        return str if self.ids.dtype == pl.String else int

    @cached_property
    def _is_small(self) -> bool:
        return len(self) <= _SMALL

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {name: place for place, name in enumerate(self.ids.to_list())}

    def _known(self, found: Array, given: list[Any], kind: str, unknown: str) -> Array:
        if unknown == "error" and (missing := np.flatnonzero(found < 0)).size:
            raise UnknownIdError(f"{kind} {given[missing[0]]!r} is not known to the model")
        return found

    def _typed(self, given: list[Any]) -> pl.Series:
        if self.ids.dtype == pl.Int64 and set(map(type, given)) == {int}:
            with suppress(OverflowError):
                return pl.Series(np.array(given, np.int64))
        return self.own(pl.Series([str(value) for value in given], dtype=pl.String))

    def own(self, ids: pl.Series) -> pl.Series:
        """Ids as people give them (5 or "5") in this vocabulary's own type; what cannot be one is null."""
        texts = ids.cast(pl.String)
        if self.ids.dtype == pl.String:
            return texts
        numbers = texts.cast(self.ids.dtype, strict=False)
        return pl.select(pl.when(numbers.cast(pl.String) == texts).then(numbers)).to_series()

    def take(self, positions: Array) -> Vocabulary:
        """The ids at ascending positions, as a vocabulary of their own."""
        return Vocabulary(self.ids.gather(positions))

    @cached_property
    def _table(self) -> pl.DataFrame:
        return pl.DataFrame(
            {"id": self.ids, "position": pl.arange(len(self), eager=True, dtype=pl.Int32)}
        )

    @cached_property
    def _index(self) -> tuple[Array, Array]:
        """Keys of the ids in order, and the position of each."""
        keys = _keys(self.ids)
        order = np.argsort(keys, kind="stable").astype(np.int32)
        return keys[order], order

    def _few(self, values: pl.Series) -> Array | None:
        """Positions by bisection; None where two ids share a key, and bisection may find the wrong one."""
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

    def _codes(self, values: pl.Series) -> Array:
        """Positions of ids in this vocabulary's own type, -1 for others. A few are looked up, many are joined."""
        if 0 < len(values) <= _FEW < len(self) and not values.null_count():
            found = self._few(values)
            if found is not None:
                return found
        frame = pl.DataFrame({"id": values})
        joined = frame.join(self._table, on="id", how="left", maintain_order="left")["position"]
        return joined.fill_null(-1).to_numpy(writable=True)


def _keys(ids: pl.Series) -> Array:
    """A number for every id: a whole number is its own, text has its hash."""
    return (ids if ids.dtype == pl.Int64 else ids.hash()).to_numpy()


def _in_order(ids: pl.Series) -> pl.Series:
    if ids.dtype != pl.String:
        return ids.sort()
    numbers = ids.cast(pl.Int128, strict=False)
    if numbers.null_count():
        return ids.sort()
    return pl.DataFrame({"number": numbers, "text": ids}).sort("number", "text")["text"]


@dataclass(frozen=True, eq=False)
class Log:
    """Interactions: user u has rows ptr[u]..ptr[u+1], oldest first.

    ptr int64 (users + 1) | item int32, positions in `items` | time int64, microseconds since 1970
    info: the item side table, one row per item in position order, or None.
    unit: what the times were read as. ties: how rows of one instant were ordered.
    Of a log that is a part of a larger one, two things are known that its own rows cannot tell:
    trends (the count of each row, Eq. 14) and latest (the last time of all).
    """

    ptr: Array
    item: Array
    time: Array
    users: Vocabulary
    items: Vocabulary
    info: pl.DataFrame | None = None
    unit: str = "us"
    ties: str = "file"
    trends: Array | None = None
    latest: int | None = None

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str = columns.USER,
        item: str = columns.ITEM,
        time: str = columns.TIME,
        time_unit: str | None = None,
        any_time: bool = False,
    ) -> Log:
        """A log from a Polars, pandas or Arrow frame; rows in any order, equal times stay in row order."""
        table = as_polars(frame, [user, item, time])
        if table.is_empty():
            raise TalerecError("the log is empty: it has no rows")
        users, user_code = Vocabulary.encode(_ids(table[user]))
        items, item_code = Vocabulary.encode(_ids(table[item]))
        moments, unit = to_microseconds(table[time], time_unit, any_time=any_time)
        del table
        return cls._sorted(user_code, item_code, moments, users, items, unit)

    @classmethod
    def _sorted(
        cls, user: Array, item: Array, time: Array, users: Vocabulary, items: Vocabulary, unit: str
    ) -> Log:
        from talerec.data import kernels

        ptr, rows = kernels.group_rows(user, len(users))
        kernels.sort_groups(ptr, rows, time)
        return cls(ptr, item[rows], time[rows], users, items, unit=unit)

    @property
    def rows(self) -> int:
        return len(self.item)

    def user_codes(self) -> Array:
        """The user position of every row."""
        return np.repeat(np.arange(len(self.users), dtype=np.int32), np.diff(self.ptr))

    def to_frame(self) -> pl.DataFrame:
        """The rows with external ids; times as datetimes."""
        return pl.DataFrame(
            {
                columns.USER: self.users.ids.gather(self.user_codes()),
                columns.ITEM: self.items.ids.gather(self.item),
                columns.TIME: pl.Series(self.time).cast(pl.Datetime("us")),
            }
        )

    def keep(self, mask: Array) -> Log:
        """The rows where `mask` is true; users and items left without rows stay in the vocabularies."""
        kept = np.concatenate([[0], np.cumsum(mask)])[self.ptr]
        trends = None if self.trends is None else self.trends[mask]
        return replace(self, ptr=kept, item=self.item[mask], time=self.time[mask], trends=trends)

    def compact(self) -> Log:
        """The same rows without users and items that have none."""
        users = np.flatnonzero(np.diff(self.ptr))
        used = np.bincount(self.item, minlength=len(self.items)) > 0
        items = np.flatnonzero(used)
        renumber = np.cumsum(used, dtype=np.int32) - np.int32(1)
        return replace(
            self,
            ptr=np.concatenate([self.ptr[users], self.ptr[-1:]]),
            item=renumber[self.item],
            users=self.users.take(users),
            items=self.items.take(items),
            info=None if self.info is None else self.info[items],
        )

    def counts(self, days: float = math.inf) -> Array:
        """Rows of each item, of all or in the days before the last row; float64."""
        since = int(self.time.max(initial=0)) - in_days(days)
        counted = self.item if days == math.inf else self.item[self.time >= since]
        return np.bincount(counted, minlength=len(self.items)).astype(np.float64)

    def recent(self, limit: int) -> Array:
        """Mask of each user's last `limit` rows."""
        from_end = np.repeat(self.ptr[1:], np.diff(self.ptr)) - np.arange(self.rows)
        return from_end <= limit

    def with_items(self, table: pl.DataFrame) -> Log:
        """Attach an item side table (a column of item ids and whatever describes them)."""
        if columns.ITEM not in table.columns:
            raise TalerecError(f"the item table has no column {columns.ITEM!r}: {table.columns}")
        _refuse_kind(table[columns.ITEM])
        side = table.with_columns(self.items.own(table[columns.ITEM]).alias(columns.ITEM))
        side = side.unique(columns.ITEM, keep="first", maintain_order=True)
        mine = pl.DataFrame({columns.ITEM: self.items.ids})
        info = mine.join(side, on=columns.ITEM, how="left", maintain_order="left")
        return replace(self, info=info)


def as_polars(frame: Any, needed: list[str]) -> pl.DataFrame:
    """Columns `needed` of any frame (Polars, lazy or not, pandas, Arrow) as Polars."""
    if twice := [name for name in needed if needed.count(name) > 1]:
        raise TalerecError(f"user, item and time are three columns, but two are {twice[0]!r}")
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        frame = _from_pandas(frame, needed)
    elif not isinstance(frame, pl.DataFrame | pl.LazyFrame):
        frame = _from_arrow(frame)
    refuse_missing(frame.lazy().collect_schema().names(), needed)
    selected: pl.DataFrame = frame.lazy().select(needed).collect(engine="streaming")
    return selected


def _from_pandas(frame: Any, needed: list[str]) -> pl.DataFrame:
    """The needed columns alone: what else a frame holds may be nothing that Polars knows."""
    refuse_missing([str(name) for name in frame.columns], needed)
    return pl.DataFrame([_pandas_column(frame[name], name) for name in needed])


def _pandas_column(column: Any, name: str) -> pl.Series:
    try:
        series = cast(pl.Series, pl.from_pandas(column)).alias(name)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise TalerecError(f"column {name!r} is not of one kind: {reason}") from None
    return series


def _from_arrow(frame: Any) -> pl.DataFrame:
    kind = type(frame).__name__
    if not hasattr(frame, "__arrow_c_stream__") or "Series" in kind:
        raise TalerecError(f"a log comes from a Polars, pandas or Arrow frame, not from {kind}")
    try:
        return pl.DataFrame(frame)
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise TalerecError(f"{kind} is no frame of columns: {str(error).splitlines()[0]}") from None


def refuse_missing(present: list[str], needed: list[str]) -> None:
    """Every needed column has to be there, once."""
    for name in needed:
        if present.count(name) > 1:
            raise TalerecError(f"there are {present.count(name)} columns {name!r}")
        if name not in present:
            shown = ", ".join(_printable(column) for column in present[:20])
            more = f" and {len(present) - 20} more" if len(present) > 20 else ""
            raise TalerecError(f"there is no column {name!r}; the columns are {shown}{more}")


def _printable(name: str) -> str:
    """A name for a message: one line, and no longer than names are."""
    plain = name if name.isprintable() else repr(name)[1:-1]
    return plain if len(plain) <= 40 else f"{plain[:40]}..."


def _refuse_kind(column: pl.Series) -> None:
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Null)):
        raise TalerecError(
            f"column {column.name!r} holds {column.dtype} values; ids are text or whole numbers"
        )


def _ids(column: pl.Series) -> pl.Series:
    """A column of ids, checked: text or whole numbers, none missing or empty; beyond int64 they are text."""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    missing = column.is_null()
    if column.dtype == pl.String:
        missing = missing | (column.str.strip_chars() == "").fill_null(True)
    elif column.dtype.is_float():
        missing = missing | column.is_nan().fill_null(True)
    if missing.any():
        raise TalerecError(f"row {missing.arg_true()[0] + 1}: {column.name} is empty")
    _refuse_kind(column)
    if column.dtype in (pl.String, pl.Int64):
        return column
    whole = column.cast(pl.Int64, strict=False)
    return column.cast(pl.String) if whole.null_count() else whole
