"""A log and the rows that came later, as one log: old users and items keep their places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary, in_order
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime.arrays import Array


@dataclass(frozen=True, eq=False)
class Merged:
    """A log with new rows in their places, and which of its rows are new."""

    log: Log
    is_new: Array
    users: int  # new ones
    items: int


def merged(old: Log, new: Log) -> Merged:
    """All rows of `old`, and those of `new` that are not in it; new users and items have places at the end.

    Rows with the same user, item and time are the same row, unless there are more of them in `new`: so the same
    rows twice change nothing. Simultaneous rows are in the order that `old.ties` says; new ones come after old ones.
    """
    if old.ties not in ("file", "item"):
        raise TalerecError(
            f"the model has ties {old.ties}: rows that come later have no place among them"
        )
    if (old.unit == "none") != (new.unit == "none"):
        raise InvalidLogError("one of the two logs has times, and the other has none")
    _check_weights(old, new)
    users, user = _extended(old.users, new.users, new.user_codes(), "user")
    items, item = _extended(old.items, new.items, new.item, "item")
    fresh = _fresh(old, user, item, new.time)
    user, item, time = user[fresh], item[fresh], new.time[fresh]
    users, user = _used(users, user, len(old.users))
    items, item = _used(items, item, len(old.items))
    is_new = np.repeat([False, True], [old.rows, len(user)])
    who = np.concatenate([old.user_codes(), user])
    what, when = np.concatenate([old.item, item]), np.concatenate([old.time, time])
    log, order = _sorted(who, what, when, users, items, old)
    log = replace(log, weight=_weights(old, new, fresh, order), weight_unit=old.weight_unit)
    added = (len(users) - len(old.users), len(items) - len(old.items))
    return Merged(log, is_new[order], *added)


def _check_weights(old: Log, new: Log) -> None:
    """Rows are worth something in both logs, or in none."""
    if old.weight_unit is None and new.weight_unit is not None:
        raise InvalidLogError("the model's rows have no weights: leave those of the new rows out")
    if old.weight_unit is not None and new.weight_unit is None:
        raise InvalidLogError(
            "the model's rows have weights: give those of the new rows too (--weight, or --event-weights)"
        )


def _weights(old: Log, new: Log, fresh: Array, order: Array) -> Array | None:
    """What the rows of both are worth, over what the old weights were divided by."""
    if old.weight_unit is None or new.weight_unit is None:
        return None
    mine, theirs = (np.ones(log.rows) if log.weight is None else log.weight for log in (old, new))
    both = np.concatenate([mine, theirs[fresh] * (new.weight_unit / old.weight_unit)])[order]
    return both if (both != 1).any() else None


def _extended(
    old: Vocabulary, new: Vocabulary, codes: Array, kind: str
) -> tuple[Vocabulary, Array]:
    """The old ids and then the new ones, and the new log's positions in that."""
    typed = old.own_type(new.ids)
    if typed.null_count():
        odd = new.ids.filter(typed.is_null())[0]
        raise InvalidLogError(
            f"{kind} {odd!r} is not a whole number, as all {kind} ids of the model are"
        )
    known = old.positions(typed, kind, "skip")
    others = in_order(typed.filter(pl.Series(known < 0)))
    both = Vocabulary(pl.concat([old.ids, others.alias("id")]))
    return both, both.positions(typed, kind, "error")[codes]


def _used(both: Vocabulary, codes: Array, first: int) -> tuple[Vocabulary, Array]:
    """Without the new ids that no row has: theirs were in the log already, under other rows."""
    there = np.zeros(len(both), bool)
    there[:first] = True
    there[codes] = True
    renumber = (np.cumsum(there) - 1).astype(np.int32)
    return both.take(np.flatnonzero(there)), renumber[codes]


def _fresh(old: Log, user: Array, item: Array, time: Array) -> Array:
    """The places of new rows that the old log does not have, or has less often."""
    key = ["user", "item", "time"]
    mine = pl.DataFrame({"user": old.user_codes(), "item": old.item, "time": old.time})
    theirs = pl.DataFrame(
        {"user": user.astype(np.int32), "item": item.astype(np.int32), "time": time}
    )
    touched = mine.filter(pl.col("user").is_in(theirs["user"].unique().implode()))
    had = touched.group_by(key).len("had")
    found = theirs.with_row_index("row").with_columns(nth=pl.int_range(pl.len()).over(key))
    found = found.join(had, on=key, how="left", maintain_order="left")
    fresh = found.filter(pl.col("nth") >= pl.col("had").fill_null(0))["row"]
    return fresh.to_numpy().astype(np.int64)


def _sorted(
    user: Array, item: Array, time: Array, users: Vocabulary, items: Vocabulary, old: Log
) -> tuple[Log, Array]:
    """The rows by user, time and tie order, and where each came from."""
    ptr, rows = row_kernels.group_rows(user, len(users))
    row_kernels.sort_groups(ptr, rows, time)
    if old.ties == "item":
        names = in_order(items.ids)
        key = Vocabulary(names).positions(items.ids, "item", "error").astype(np.int64)
        rows = rows[row_kernels.order_within_instants(ptr, time[rows], key[item[rows]])]
    log = Log(ptr, item[rows].astype(np.int32), time[rows], users, items, None, old.unit, old.ties)
    return log, rows
