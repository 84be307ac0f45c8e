"""The Log: interactions in columns, sorted by user, then time, then tie order. External ids end here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.frames import as_polars, checked_ids, refuse_kind
from talerec.data.times import days as in_days
from talerec.data.times import to_microseconds
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array


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
        users, user_code = Vocabulary.encode(checked_ids(table[user]))
        items, item_code = Vocabulary.encode(checked_ids(table[item]))
        moments, unit = to_microseconds(table[time], time_unit, any_time=any_time)
        del table
        return cls._sorted(user_code, item_code, moments, users, items, unit)

    @classmethod
    def _sorted(
        cls, user: Array, item: Array, time: Array, users: Vocabulary, items: Vocabulary, unit: str
    ) -> Log:
        from talerec.data import row_kernels

        ptr, rows = row_kernels.group_rows(user, len(users))
        row_kernels.sort_groups(ptr, rows, time)
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
        refuse_kind(table[columns.ITEM])
        side = table.with_columns(self.items.own(table[columns.ITEM]).alias(columns.ITEM))
        side = side.unique(columns.ITEM, keep="first", maintain_order=True)
        mine = pl.DataFrame({columns.ITEM: self.items.ids})
        info = mine.join(side, on=columns.ITEM, how="left", maintain_order="left")
        return replace(self, info=info)
