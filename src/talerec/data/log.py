"""The Log: interactions in columns, sorted by user, then time, then tie order. External ids end here."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.frames import as_polars, checked_ids, refuse_kind
from talerec.data.times import days as in_days
from talerec.data.times import to_microseconds
from talerec.data.vocabulary import Vocabulary
from talerec.data.weights import Worth, divided, worth_of
from talerec.errors import InvalidLogError
from talerec.runtime.arrays import Array

_SHOWN_ROWS = 5  # in a notebook


logger = logging.getLogger("talerec")


def as_log(given: Log | Any) -> Log:
    """A log as it is, or the log of a frame."""
    return given if isinstance(given, Log) else Log.from_frame(given)


#: How programs write that there is no value; as ids they are taken as they stand.
_NOTHINGS = (
    "NULL",
    "null",
    "nan",
    "NaN",
    "NAN",
    "None",
    "none",
    "NA",
    "N/A",
    "n/a",
    "<NA>",
    "undefined",
)


def _mention_nothings(name: str, ids: Vocabulary, codes: Array) -> None:
    """A warning where an id looks like a missing value: all rows without one would be one user, or one item."""
    if ids.ids.dtype != pl.String:
        return
    for position in ids.ids.is_in(_NOTHINGS).arg_true():
        rows, word = int((codes == position).sum()), ids.ids[int(position)]
        logger.warning(
            "%s rows have the %s %r, which is taken for an id: leave them out if it means that there is none",
            f"{rows:,}", name, word,
        )  # fmt: skip


def _say_matching(ids: pl.Series, described: pl.Series) -> None:
    """How many items of a log its item table describes; none of them is a warning."""
    known = int(ids.is_in(described.drop_nulls().implode()).sum())
    words = f"{known:,} of {len(ids):,} ids match"
    if not known:
        logger.warning(
            "the item table describes no item of the log: %s (--item-key says which column holds them)",
            words,
        )
    elif known < len(ids):
        logger.info("the item table does not describe every item of the log: %s", words)
    else:
        logger.info("the item table describes every item of the log: %s", words)


@dataclass(frozen=True, eq=False, repr=False)
class Log:
    """Interactions: who had to do with which item, and when.

    Build one with `Log.from_frame`, `read_log` or `synthetic_log`. The columns are sorted by user,
    then time: user u has rows ptr[u]..ptr[u + 1], oldest first.

    Parameters
    ----------
    ptr : int64 array of length users + 1
        Where each user's rows begin.
    item : int32 array
        The item of each row, as a position in `items`.
    time : int64 array
        The time of each row, in microseconds since 1970 (UTC).
    users, items : Vocabulary
        External ids by position.
    info : polars.DataFrame, optional
        What is known of the items (titles ...): one row per item, in the order of positions.
    unit : str
        What the times were read as: s, ms, us, ns or datetime; none: there are none, and rows stay in their order.
    ties : str
        How rows of one user and time were ordered (see `order_ties`).
    trends : int64 array, optional
        The trend count of each row (Eq. 14), where the log is a part of a larger one that knows better.
    latest : int, optional
        The last time of the larger log that this one is a part of.
    weight : float64 array, optional
        What each row is worth; their mean is 1.
    weight_unit : float, optional
        What the weights were divided by; None where none were given.
    event, event_names : int16 array and tuple of str, optional
        What happened in each row, as a position among the names.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {
    ...     "user_id": ["ann", "ann", "bob"],
    ...     "item_id": ["tea", "cup", "tea"],
    ...     "timestamp": ["2024-05-03", "2024-05-01", "2024-05-02"],
    ... }
    >>> log = tr.Log.from_frame(pl.DataFrame(rows))
    >>> log
    Log(2 users, 2 items, 3 rows, 2024-05-01 to 2024-05-03)
    >>> log.to_frame()["item_id"].to_list()
    ['cup', 'tea', 'tea']
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
    weight: Array | None = None
    event: Array | None = None
    event_names: tuple[str, ...] = ()
    weight_unit: float | None = None

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str = columns.USER,
        item: str = columns.ITEM,
        time: str | None = columns.TIME,
        time_unit: str | None = None,
        any_time: bool = False,
        weight: str | None = None,
        event: str | None = None,
        event_weights: Mapping[str, float] | None = None,
    ) -> Log:
        """Make a log of a Polars, pandas or Arrow frame.

        Parameters
        ----------
        frame : DataFrame, LazyFrame or Arrow table
            Rows in any order; rows of one user and time stay in the order of the frame.
        user, item, time : str
            The names of its columns; None for `time`: there are no times, and rows stay in their order.
        time_unit : {"s", "ms", "us", "ns"} or str, optional
            What times that are numbers count; by default their size tells. Or how times are written as text:
            ``"%m/%d/%Y %H:%M"``.
        any_time : bool
            Whether times before 1970 and after 2100 are allowed.
        weight : str, optional
            A column that says what a row is worth; only ratios matter, and rows of weight 0 are left out.
        event, event_weights : str and dict, optional
            A column that says what happened, and what that is worth: ``{"view": 1, "buy": 10}``.

        Returns
        -------
        Log

        Raises
        ------
        InvalidLogError
            If a column is missing, or a row has no usable id or time; the message names it.
        """
        given = (user, item, time, weight, event)
        table = as_polars(frame, [name for name in given[:3] if name is not None], given[3:])
        if table.is_empty():
            raise InvalidLogError("the log is empty: it has no rows")
        worth = worth_of(table, weight, event, event_weights)
        users, user_code = Vocabulary.encode(checked_ids(table[user]))
        items, item_code = Vocabulary.encode(checked_ids(table[item]))
        _mention_nothings(user, users, user_code)
        _mention_nothings(item, items, item_code)
        moments, unit = np.zeros(len(table), np.int64), "none"
        if time is not None:
            moments, unit = to_microseconds(table[time], time_unit, any_time=any_time)
        del table
        return cls._sorted(user_code, item_code, moments, users, items, unit, worth)

    @classmethod
    def _sorted(
        cls,
        user: Array,
        item: Array,
        time: Array,
        users: Vocabulary,
        items: Vocabulary,
        unit: str,
        worth: Worth,
    ) -> Log:
        from talerec.data import row_kernels

        ptr, rows = row_kernels.group_rows(user, len(users))
        row_kernels.sort_groups(ptr, rows, time)
        weight, event = (None if part is None else part[rows] for part in worth[:2])
        log = cls(ptr, item[rows], time[rows], users, items, unit=unit, weight=weight, event=event, event_names=worth.names)  # fmt: skip
        if weight is not None and not weight.all():
            log = log.keep(weight > 0).compact()
        return log if weight is None else replace(log, weight_unit=1.0).evenly_weighed()

    def __repr__(self) -> str:
        counts = f"{len(self.users):,} users, {len(self.items):,} items, {self.rows:,} rows"
        if not self.rows:
            return f"Log({counts})"
        first, last = (
            np.datetime64(int(moment), "us").astype("datetime64[D]")
            for moment in (self.time.min(), self.time.max())
        )
        return f"Log({counts}, {first} to {last})"

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks; titles stand beside the items where there are any."""
        shown = self.keep(np.arange(self.rows) < _SHOWN_ROWS)
        frame = shown.to_frame()
        title = columns.TITLES[0]
        if self.info is not None and title in self.info.columns:
            frame.insert_column(2, self.info[title].gather(shown.item))
        lines = ["".join(f"<th>{escape(name)}</th>" for name in frame.columns)]
        lines += [
            "".join(f"<td>{escape(value or '')}</td>" for value in row)
            for row in frame.cast(pl.String).iter_rows()
        ]
        if self.rows > _SHOWN_ROWS:
            lines.append("<td>…</td>" * frame.width)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><caption>{escape(repr(self))}</caption>{body}</table>"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.item)

    def user_codes(self) -> Array:
        """The user position of every row."""
        return np.repeat(np.arange(len(self.users), dtype=np.int32), np.diff(self.ptr))

    def to_frame(self) -> pl.DataFrame:
        """The rows as a Polars frame, with external ids and datetimes."""
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
        return replace(self._taken(mask), ptr=kept)

    def _taken(self, rows: Array) -> Log:
        """All columns of rows at the places of `rows`, or in another order; users' bounds stay as they are."""
        names = ("item", "time", "trends", "weight", "event")
        given = {name: getattr(self, name) for name in names}
        taken: Any = {name: part if part is None else part[rows] for name, part in given.items()}
        return replace(self, **taken)

    def ordered(self, rows: Array, ties: str) -> Log:
        """The rows in another order within each user's."""
        return replace(self._taken(rows), ties=ties)

    def evenly_weighed(self, rows: Array | None = None) -> Log:
        """The log with weights whose mean (over some rows) is 1; without weights where all are the same."""
        weight, mean = divided(self.weight, rows)
        if weight is self.weight:
            return self
        return replace(self, weight=weight, weight_unit=mean * (self.weight_unit or 1.0))

    def compact(self) -> Log:
        """This log without the users and items that have no rows."""
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
        """How many rows each item has (float64), by their worth: all, or those of the last `days` of the log."""
        since = int(self.time.max(initial=0)) - in_days(days)
        recent = slice(None) if days == math.inf else self.time >= since
        worth = None if self.weight is None else self.weight[recent]
        return np.bincount(self.item[recent], worth, len(self.items)).astype(np.float64)

    def recent(self, limit: int) -> Array:
        """Mask of each user's last `limit` rows."""
        from_end = np.repeat(self.ptr[1:], np.diff(self.ptr)) - np.arange(self.rows)
        return from_end <= limit

    def with_items(self, table: pl.DataFrame) -> Log:
        """This log with an item table: a column of item ids, and whatever describes the items."""
        if columns.ITEM not in table.columns:
            raise InvalidLogError(f"the item table has no column {columns.ITEM!r}: {table.columns}")
        refuse_kind(table[columns.ITEM])
        side = table.with_columns(self.items.own_type(table[columns.ITEM]).alias(columns.ITEM))
        _say_matching(self.items.ids, side[columns.ITEM])
        side = side.unique(columns.ITEM, keep="first", maintain_order=True)
        mine = pl.DataFrame({columns.ITEM: self.items.ids})
        info = mine.join(side, on=columns.ITEM, how="left", maintain_order="left")
        return replace(self, info=info)
