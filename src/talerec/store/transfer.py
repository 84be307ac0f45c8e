"""Whole logs into a store, and whole stores out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.log import Log
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime.arrays import Array
from talerec.runtime.progress import stage
from talerec.store.events import Event, checked_id
from talerec.store.store import Store

_BATCH = 5000  # rows of one commit
_STEP = 50_000  # rows that are read at a time

_SCHEMA: dict[str, Any] = {
    columns.USER: pl.String,
    columns.ITEM: pl.String,
    columns.TIME: pl.Datetime("us", "UTC"),
    "event": pl.String,
    "event_id": pl.String,
}


class Imported(NamedTuple):
    """What became of the rows of a log: kept, there already, and of users who were deleted after them."""

    rows: int
    added: int
    there: int
    deleted: int


def import_log(store: Store, log: Log) -> Imported:
    """Keep the rows of a log as events, in time order, each batch with one commit. What is there already is not added again.

    Rows with the same user, item and time are the same row, unless there are more of them in the log. Rows of a user who was
    deleted are left out unless they are later than the deletion.
    """
    users, items = (
        _texts(names.ids, kind) for names, kind in ((log.users, "user"), (log.items, "item"))
    )
    who = log.user_codes()
    order = np.lexsort((who, log.time))
    added = deleted = 0
    tick = stage("import", float(log.rows))
    for rows in _batches(order, who, log.time):
        parts = (who[rows].tolist(), log.item[rows].tolist(), log.time[rows].tolist())
        some = [
            Event(users[user], items[item], time, name)
            for user, item, time, name in zip(*parts, _names(log, rows), strict=True)
        ]
        new, gone = store.add_missing(some)
        added, deleted = added + new, deleted + gone
        tick(len(rows))
    return Imported(log.rows, added, log.rows - added - deleted, deleted)


def _texts(ids: pl.Series, kind: str) -> list[str]:
    """Ids as a store keeps them; an error names the first that it cannot keep."""
    texts: list[str] = ids.cast(pl.String).to_list()
    for text in texts:
        try:
            checked_id(text, f"{kind} {text[:40]!r}")
        except TalerecError as error:
            raise InvalidLogError(str(error)) from None
    return texts


def _names(log: Log, rows: Array) -> list[str | None]:
    if log.event is None:
        return [None] * len(rows)
    return [log.event_names[code] for code in log.event[rows].tolist()]


def _batches(order: Array, user: Array, time: Array) -> Iterator[Array]:
    """The rows in batches; rows of one user and moment are in the same one, so that equal rows are counted together."""
    begin = 0
    while begin < len(order):
        end = min(begin + _BATCH, len(order))
        while end < len(order) and _same(order[end - 1], order[end], user, time):
            end += 1
        yield order[begin:end]
        begin = end


def _same(a: int, b: int, user: Array, time: Array) -> bool:
    return bool(user[a] == user[b] and time[a] == time[b])


def exported(store: Store) -> Iterator[pl.DataFrame]:
    """The events that are in the store now, in the order in which they were kept, part by part; at least one part."""
    seq, top = 0, store.meta().seq
    tick = stage("export", float(top))
    yield pl.DataFrame(schema=_SCHEMA)
    while seq < top and (rows := store.tail(seq, _STEP)):
        some = [row for row in rows if row.item is not None and row.seq <= top]
        parts = list(zip(*some, strict=True)) if some else [()] * 6
        yield pl.DataFrame(dict(zip(_SCHEMA, parts[1:], strict=True)), schema=_raw()).with_columns(
            pl.col(columns.TIME).cast(_SCHEMA[columns.TIME])
        )
        tick(min(rows[-1].seq, top) - seq)
        seq = rows[-1].seq


def _raw() -> dict[str, Any]:
    """As rows of the store are: times are microseconds."""
    return {name: pl.Int64 if name == columns.TIME else pl.String for name in _SCHEMA}
