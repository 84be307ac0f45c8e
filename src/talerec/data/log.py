"""The Log: interactions in columns, sorted by user, then time, then tie order.

Outside ids are translated to positions here; all later code works with positions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.context import (
    ContextColumns,
    add_users,
    newest_values,
    read_context,
    take_context,
)
from talerec.data.frames import as_polars, clean_ids
from talerec.data.item_rows import described_rows, match_items
from talerec.data.times import days_to_microseconds, parse_time_column
from talerec.data.vocabulary import Vocabulary, warn_of_odd_ids
from talerec.data.weights import normalize_by_mean, read_weights
from talerec.errors import InvalidLogError, forward_renamed
from talerec.runtime import Array

_SHOWN_ROWS = 5  # in a notebook


def as_log(log: Log | Any) -> Log:
    """Return a log as it is, or the log of a frame with columns user_id, item_id, timestamp."""
    return log if isinstance(log, Log) else Log.from_frame(log)


@dataclass(frozen=True, eq=False, repr=False)
class Log:
    """Interactions of users with items, in time order.

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
        The item table (titles, categories): one row per item, in the order of positions.
    catalogue : polars.DataFrame, optional
        The rows of the item table whose items have no row in the log, with the columns of `info`.
    item_text, item_skip : tuples of str
        Columns of the item table that are text whatever they look like, and that models ignore.
    unit : str
        The unit that times were read in: s, ms, us, ns or datetime; "none" for a log without times,
        whose rows stay in their order.
    ties : str
        How rows of one user and time are ordered: "file", "item" (by id) or "random:SEED".
    trends : int64 array, optional
        For each row, how many rows its item has around that time (TALE's trend count, Eq. 14), in
        the larger log that this one is a part of.
    latest : int, optional
        The last time of the larger log that this one is a part of.
    weight : float64 array, optional
        The weight of each row; their mean is 1.
    weight_unit : float, optional
        The mean that the weights were divided by; None for a log without weights.
    event, event_names : int16 array and tuple of str, optional
        The event of each row (view, buy ...), as a position among the names.
    group, group_ids : int32 array and Vocabulary, optional
        The session or basket of each row, as a position among their ids.
    has_baskets : bool
        Whether a user's rows of one time are a basket, and the next basket is what is predicted
        (`join_baskets`).
    owners : polars.Series, optional
        In a log whose users are sessions (`split_sessions`): the id of each session's user.
    context : tuple of ContextColumn
        Context columns (device, channel) and user columns, with a value per row.

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
    catalogue: pl.DataFrame | None = None
    item_text: tuple[str, ...] = ()
    item_skip: tuple[str, ...] = ()
    group: Array | None = None
    group_ids: Vocabulary | None = None
    owners: pl.Series | None = None
    has_baskets: bool = False
    context: ContextColumns = ()

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
        weight: str | None = None, event: str | None = None,
        event_weights: Mapping[str, float] | None = None, group: str | None = None,
        items: pl.DataFrame | None = None, context: Collection[str] = (),
    ) -> Log:  # fmt: skip
        """Return the log of a Polars, pandas or Arrow frame.

        Parameters
        ----------
        frame : DataFrame, LazyFrame or Arrow table
            Rows in any order; rows of one user and time stay in the order of the frame.
        user, item, time : str
            Its columns; `time` None: there are no times, and rows stay in their order.
        time_unit : {"s", "ms", "us", "ns"} or str, optional
            The unit of numbers (default: guessed), or the format of text: ``"%m/%d/%Y %H:%M"``.
        any_time, weight : bool, and str, optional
            Whether times outside 1970 to 2100 are allowed; the column of row weights (0: no row).
        event, event_weights : str and dict, optional
            The column of events, and the weight of each event: ``{"view": 1, "buy": 10}``.
        group, items, context : str, polars.DataFrame, and list of str, optional
            The column of sessions or baskets (`split_sessions`); the item table (`with_items`);
            columns of the situation of each row, such as device, for the ranker.

        Returns
        -------
        Log

        Raises
        ------
        InvalidLogError
            If a column is missing, or a row has no usable id or time; the message names it.
        """
        needed = (user, item) if time is None else (user, item, time)
        table = as_polars(frame, list(needed), (weight, event, group, *context))
        if table.is_empty():
            raise InvalidLogError("the log is empty: it has no rows")
        weights = read_weights(table, weight, event, event_weights)
        users, user_code = Vocabulary.encode(clean_ids(table[user]))
        vocabulary, item_code = Vocabulary.encode(clean_ids(table[item]))
        for column, ids, codes in ((user, users, user_code), (item, vocabulary, item_code)):
            warn_of_odd_ids(column, ids, codes)
        times, unit = np.zeros(len(table), np.int64), "none"
        if time is not None:
            times, unit = parse_time_column(table[time], time_unit, any_time=any_time)
        options = {**weights._asdict(), "context": read_context(table, context)}
        if group is not None:
            options["group_ids"], options["group"] = Vocabulary.encode(clean_ids(table[group]))
        log = cls(np.zeros(1, np.int64), item_code, times, users, vocabulary, unit=unit, **options)
        log = log._sort_by_user(user_code)
        return log if items is None else log.with_items(items)

    def _sort_by_user(self, user: Array) -> Log:
        """Return this log's unsorted rows as a log in order of user and time, with mean weight 1.

        `user` is the position of each row's user in `self.users`. Rows of weight 0 are dropped, as
        are users and items that have no other row. The mean by which weights were divided becomes
        `weight_unit`.
        """
        from talerec.data.row_kernels import group_rows, sort_groups

        ptr, rows = group_rows(user, len(self.users))
        sort_groups(ptr, rows, self.time)
        log = replace(self._take_rows(rows), ptr=ptr)
        if log.weight is None:
            return log
        if not log.weight.all():
            log = log.keep(log.weight > 0).compact()
        return replace(log, weight_unit=1.0).normalize_weights()

    if not TYPE_CHECKING:  # former names
        __getattr__ = forward_renamed({"evenly_weighed": "normalize_weights", "ordered": "reorder"})

    def __repr__(self) -> str:
        counts = f"{len(self.users):,} users, {len(self.items):,} items, {self.rows:,} rows"
        if not self.rows:
            return f"Log({counts})"
        times = np.array([self.time.min(), self.time.max()], "datetime64[us]")
        first, last = times.astype("datetime64[D]")
        return f"Log({counts}, {first} to {last})"

    def _repr_html_(self) -> str:
        """Return the first five rows as an HTML table for notebooks, with titles if there are any.

        `self.info` is the item table, with one row per item; None if there is none.
        """
        shown = self.keep(np.arange(self.rows) < _SHOWN_ROWS)
        frame = shown.to_frame()
        title = columns.TITLES[0]
        if self.info is not None and title in self.info.columns:
            frame.insert_column(2, self.info[title].gather(shown.item))
        lines = ["".join(f"<th>{escape(name)}</th>" for name in frame.columns)]
        rows = frame.cast(pl.String).iter_rows()
        lines += ["".join(f"<td>{escape(v or '')}</td>" for v in row) for row in rows]
        if self.rows > _SHOWN_ROWS:
            lines.append("<td>…</td>" * frame.width)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<table><caption>{escape(repr(self))}</caption>{body}</table>"

    @property
    def rows(self) -> int:
        """The number of rows (interactions) of the log; `item` has the item of each."""
        return len(self.item)

    def user_codes(self) -> Array:
        """Return the user of every row (int32), as a position in the vocabulary `users`.

        User u has rows ptr[u]..ptr[u + 1].
        """
        return np.repeat(np.arange(len(self.users), dtype=np.int32), np.diff(self.ptr))

    def to_frame(self) -> pl.DataFrame:
        """Return the rows as a Polars frame with the columns user_id, item_id and timestamp.

        Ids are the external ones, which the vocabularies `users` and `items` have by position;
        `item` has each row's position. Times are datetimes (UTC) without a time zone.
        """
        rows = {
            columns.USER: self.users.ids.gather(self.user_codes()),
            columns.ITEM: self.items.ids.gather(self.item),
            columns.TIME: pl.Series(self.time).cast(pl.Datetime("us")),
        }
        return pl.DataFrame(rows)

    def keep(self, mask: Array) -> Log:
        """Return the rows where `mask` (a boolean per row) is true, with the same vocabularies.

        Vocabularies map positions to ids: users and items without rows stay in them. User u has
        rows ptr[u]..ptr[u + 1], before and after.
        """
        ptr = np.concatenate([[0], np.cumsum(mask)])[self.ptr]
        return replace(self._take_rows(mask), ptr=ptr)

    def _take_rows(self, rows: Array) -> Log:
        """Return the log with every column indexed by `rows`, and an unchanged `ptr`.

        `rows` is a boolean mask, or row numbers in the new order. `ptr` says where each user's rows
        begin: if users' numbers of rows change, the caller must replace it. A column is None if the
        log has none.
        """
        names = ("item", "time", "trends", "weight", "event", "group")
        columns = ((name, getattr(self, name)) for name in names)
        selected: Any = {name: None if column is None else column[rows] for name, column in columns}
        return replace(self, **selected, context=take_context(self.context, rows))

    def reorder(self, rows: Array, ties: str) -> Log:
        """Return the log with its rows in another order within each user's rows.

        `rows` has the old row number of each new row; `ties` names the new order of rows with the
        same user and time: "file", "item" or "random:SEED".
        """
        return replace(self._take_rows(rows), ties=ties)

    def normalize_weights(self, rows: Array | None = None) -> Log:
        """Return the log with weights divided by their mean over `rows` (a mask; default: all).

        `weight` has the weight of each row; it becomes None if all are equal. `weight_unit`, the
        product of all means by which weights were divided, is multiplied by the mean.
        """
        weight, mean = normalize_by_mean(self.weight, rows)
        if weight is self.weight:
            return self
        return replace(self, weight=weight, weight_unit=mean * (self.weight_unit or 1.0))

    def compact(self) -> Log:
        """Return the log without users and items that have no rows; positions are renumbered.

        Positions are the numbers of users and items in the vocabularies `users` and `items`, whose
        order stays. User u has rows ptr[u]..ptr[u + 1]; `info` is the item table, a row per item.
        Rows of the item table whose items leave the log move to `catalogue`.
        """
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
            catalogue=self._extend_catalogue(~used),
            owners=None if self.owners is None else self.owners.gather(users),
        )

    def _extend_catalogue(self, leaving: Array) -> pl.DataFrame | None:
        """Return the catalogue with the item table's rows of items that leave the log.

        `leaving` has a flag per item. Items that the table does not describe are left out; None if
        the log has no item table.
        """
        if self.catalogue is None or self.info is None or not leaving.any():
            return self.catalogue
        return pl.concat([described_rows(self.info.filter(pl.Series(leaving))), self.catalogue])

    def counts(self, days: float = math.inf) -> Array:
        """Return each item's weighted number of rows (float64) in the log's last `days` days.

        One entry per item, by position. The days end at the log's last time. A row counts its
        weight; 1 in a log without weights.
        """
        recent: Any = slice(None)
        if days != math.inf and self.rows:
            recent = self.time >= int(self.time.max()) - days_to_microseconds(days)
        weight = None if self.weight is None else self.weight[recent]
        return np.bincount(self.item[recent], weight, len(self.items)).astype(np.float64)

    def recent(self, limit: int) -> Array:
        """Return a boolean mask, one per row, that is true for each user's last `limit` rows.

        User u has rows ptr[u]..ptr[u + 1], oldest first.
        """
        from_end = np.repeat(self.ptr[1:], np.diff(self.ptr)) - np.arange(self.rows)
        return from_end <= limit

    def with_items(
        self, table: pl.DataFrame, *, text: Collection[str] = (), skip: Collection[str] = ()
    ) -> Log:
        """Return the log with an item table (titles, categories) as its `info` and `catalogue`.

        `table` has item ids in the column "item_id". `info` has one row per item of the log, in the
        order of `items`: the table's first row of that id, or nulls if it has none. `catalogue` has
        the rows of other items. `text` and `skip` name columns that are text whatever they look
        like, and that models ignore. InvalidLogError without the column of ids. How many items the
        table describes is written to the program's log.
        """
        from talerec.data.items import check_column_names  # most logs have no item table

        info, catalogue = match_items(table, self.items)
        check_column_names(info, text, skip)
        names = (tuple(text), tuple(skip))
        return replace(self, info=info, catalogue=catalogue, item_text=names[0], item_skip=names[1])

    def with_users(self, table: pl.DataFrame, key: str = columns.USER) -> Log:
        """Return the log with a table of users (ids in column `key`) as context columns."""
        added = add_users(self.context, table, key, self.users, self.user_codes())
        return replace(self, context=added)

    @cached_property
    def user_context(self) -> ContextColumns:
        """The user columns, with the newest value of each user, by position."""
        return newest_values(self.context, self.ptr)

    def with_catalogue(self) -> Log:
        """Return the log with the catalogue's items in its vocabulary, after all others.

        `catalogue` has the rows of the item table whose items have no row in the log; that of the
        log returned is empty. Without such rows, the log is returned as it is.
        """
        return self if self.catalogue is None or self.catalogue.is_empty() else self._extended

    @cached_property
    def _extended(self) -> Log:
        """The log whose items are those of this log and then the others of `catalogue`."""
        assert self.info is not None
        assert self.catalogue is not None
        is_known = pl.col(columns.ITEM).is_in(self.items.ids.implode())  # since an update
        others = self.catalogue.filter(~is_known)
        ids = pl.concat([self.items.ids, others[columns.ITEM].alias("id")])
        info = pl.concat([self.info, others])
        return replace(self, items=Vocabulary(ids), info=info, catalogue=self.catalogue.clear())
