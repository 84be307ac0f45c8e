"""From logs to a log: k-cores, duplicates, periods, the order of ties, merging later rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from talerec.data.context import ContextColumns, fill_users, join_columns, missing_column
from talerec.data.log import Log, as_log
from talerec.data.row_kernels import group_rows, order_simultaneous, sort_groups
from talerec.data.times import TimeLike, time_to_microseconds
from talerec.data.vocabulary import Vocabulary, sort_ids
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array


def k_core(log: Log, k: int) -> Log:
    """Drop users and items with fewer than `k` rows, repeatedly until nothing changes.

    Parameters
    ----------
    log : Log
        The rows to filter.
    k : int
        The minimum number of rows of a user and of an item, from 1.

    Returns
    -------
    Log
        The remaining rows, with only their users and items.

    Raises
    ------
    TalerecError
        If `k` is not such a number, or no row is left.

    Examples
    --------
    >>> import talerec as tr
    >>> log = tr.synthetic_log(2000)
    >>> tr.k_core(log, 5).rows < log.rows
    True
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise TalerecError(f"core is {k}; it takes a whole number from 1")
    log = as_log(log)
    user = log.user_codes()
    keep = np.ones(log.rows, bool)
    while True:
        per_user = np.bincount(user[keep], minlength=len(log.users))
        per_item = np.bincount(log.item[keep], minlength=len(log.items))
        remaining = keep & (per_user[user] >= k) & (per_item[log.item] >= k)
        if remaining.sum() == keep.sum():
            break
        keep = remaining
    if not keep.any():
        raise TalerecError(f"nothing is left of the log after a {k}-core; use a smaller core")
    return log.keep(keep).compact()


def drop_duplicates(log: Log) -> Log:
    """Keep only the first of rows that have the same user, item and time.

    Parameters
    ----------
    log : Log
        The rows to filter.

    Returns
    -------
    Log
        The remaining rows; users and items are unchanged.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": ["ann"] * 2, "item_id": ["tea"] * 2, "timestamp": ["2024-05-01"] * 2}
    >>> tr.drop_duplicates(tr.Log.from_frame(pl.DataFrame(rows))).rows
    1
    """
    return log.keep(~duplicate_mask(log))


def duplicate_mask(log: Log) -> Array:
    """Return a boolean per row: whether an earlier row has the same user, item and time.

    User u of the log has rows ptr[u]..ptr[u + 1], in time order.
    """
    order = order_simultaneous(log.ptr, log.time, log.item.astype(np.int64))
    user, item, time = log.user_codes()[order], log.item[order], log.time[order]
    same = (user[1:] == user[:-1]) & (item[1:] == item[:-1]) & (time[1:] == time[:-1])
    mask = np.zeros(log.rows, bool)
    mask[order[1:]] = same
    return mask


def select_period(log: Log, start: TimeLike, end: TimeLike) -> Log:
    """Return the rows of a log with start <= time < end, and only their users and items.

    A time is a date, a datetime, text or a number (see `time_to_microseconds`). TalerecError if no
    row is left or the start is not before the end.
    """
    first, last = (time_to_microseconds(time, log.unit) for time in (start, end))
    if first >= last:
        raise TalerecError(f"the start ({start}) does not lie before the end ({end})")
    keep = (log.time >= first) & (log.time < last)
    if not keep.any():
        oldest, newest = (np.datetime64(int(f(log.time)), "us") for f in (np.min, np.max))
        message = f"no row lies from {start} until {end}; the log goes from {oldest} to {newest}"
        raise TalerecError(message)
    return log.keep(keep).compact()


def order_ties(log: Log, ties: str) -> Log:
    """Order the rows that have the same user and time.

    Parameters
    ----------
    log : Log
        The rows to order.
    ties : str
        ``"file"``: as they are in the log, which is the order of its file unless another was set
        before; ``"item"``: by item id; ``"random:SEED"``: at random, SEED a whole number.

    Returns
    -------
    Log

    Raises
    ------
    TalerecError
        If `ties` is something else.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": ["ann"] * 2, "item_id": ["tea", "cup"], "timestamp": ["2024-05-01"] * 2}
    >>> log = tr.Log.from_frame(pl.DataFrame(rows))
    >>> tr.order_ties(log, "item").to_frame()["item_id"].to_list()
    ['cup', 'tea']
    """
    if ties == "file":
        return log
    if ties == "item":
        key = log.item.astype(np.int64)
    else:
        key = np.random.default_rng(_parse_tie_seed(ties)).integers(0, 2**62, log.rows)
    order = order_simultaneous(log.ptr, log.time, key)
    return log.reorder(order, ties)


def name_tie_order(log: Log, ties: str) -> str:
    """Return the name of the order of simultaneous rows after `order_ties(log, ties)`.

    That is `ties`, unless it is "file": then it is `log.ties`, the order that the log has. A range
    such as "random:0..4" stays as it is.
    """
    return log.ties if ties == "file" else ties


def expand_tie_orders(ties: str) -> list[str]:
    """Return the orders of simultaneous rows that a text names: "random:0..4" names five.

    Simultaneous rows have the same user and time. "file" (as they are), "item" (by item id) and
    "random:SEED" name one order each; TalerecError for other texts, or over 1,000 seeds.
    """
    kind, _, seeds = ties.partition(":")
    low, dots, high = seeds.partition("..")
    if kind != "random" or not dots:
        if ties not in ("file", "item"):
            _parse_tie_seed(ties)
        return [ties]
    if not (low.isdecimal() and high.isdecimal()) or int(high) < int(low):
        raise TalerecError(f"ties is {ties!r}; write a range of seeds as random:0..4")
    if int(high) - int(low) >= _MAX_ORDERS:
        raise TalerecError(f"ties is {ties!r}; that is more than {_MAX_ORDERS:,} orders")
    return [f"random:{seed}" for seed in range(int(low), int(high) + 1)]


_MAX_ORDERS = 1000


def _parse_tie_seed(ties: str) -> int:
    """Return the seed in "random:SEED"; TalerecError if the text `ties` is anything else.

    `ties` names a random order of the rows of a user that have the same time.
    """
    kind, _, seed = ties.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise TalerecError(f"ties is {ties!r}; it takes file, item or random:SEED (a whole number)")
    return int(seed)


# -- a log and later rows --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MergedLog:
    """An old log with new rows merged in, and what is new."""

    log: Log  # the old rows and the new ones, by user and time
    is_new: Array  # a boolean per row of `log`
    users: int  # how many users the old log lacks
    items: int  # how many items the old log lacks


def merge_logs(old: Log, new: Log) -> MergedLog:
    """Return all rows of `old`, and those of `new` that are not in it.

    `old` is the log of a saved model. New users and items get positions after the old ones. Rows
    with the same user, item and time are the same row, unless `new` has more of them: merging the
    same rows twice changes nothing. Simultaneous rows are in the order `old.ties` (file or item;
    TalerecError for a random order), and new rows come after old ones. InvalidLogError if only one
    of the logs has times, or weights.
    """
    if old.ties not in ("file", "item"):
        message = f"the model has ties {old.ties}: later rows cannot be merged in that order"
        raise TalerecError(message)
    if (old.unit == "none") != (new.unit == "none"):
        raise InvalidLogError("one of the two logs has times, and the other has none")
    _check_weights(old, new)
    users, user = _extend_vocabulary(old.users, new.users, new.user_codes(), "user")
    items, item = _extend_vocabulary(old.items, new.items, new.item, "item")
    new_rows = _find_new_rows(old, user, item, new.time)
    user, item, time = user[new_rows], item[new_rows], new.time[new_rows]
    users, user = _drop_unused_ids(users, user, len(old.users))
    items, item = _drop_unused_ids(items, item, len(old.items))
    is_new = np.repeat([False, True], [old.rows, len(user)])
    who = np.concatenate([old.user_codes(), user])
    what, when = np.concatenate([old.item, item]), np.concatenate([old.time, time])
    log, order = _sort_rows(who, what, when, users, items, old)
    weight = _merge_weights(old, new, new_rows, order)
    context = _merge_context(old, new, new_rows, order, log.user_codes())
    unit, has_baskets = old.weight_unit, old.has_baskets
    log = replace(log, weight=weight, weight_unit=unit, has_baskets=has_baskets, context=context)
    added = (len(users) - len(old.users), len(items) - len(old.items))
    return MergedLog(log, is_new[order], *added)


def _check_weights(old: Log, new: Log) -> None:
    """Raise InvalidLogError unless both logs have row weights, or neither has.

    `old` is the log of a saved model, `new` the rows to be added. `weight_unit` is the mean of the
    weights as they were given; None for a log without weights.
    """
    if old.weight_unit is None and new.weight_unit is not None:
        raise InvalidLogError("the model's rows have no weights: leave those of the new rows out")
    if old.weight_unit is not None and new.weight_unit is None:
        message = "the model's rows have weights: give the new rows `weight` or `event_weights` too"
        raise InvalidLogError(message, "weight", "event_weights")


def _merge_weights(old: Log, new: Log, new_rows: Array, order: Array) -> Array | None:
    """Return the weights of the merged rows, in the old log's unit; None if all are 1.

    A log's weights are divided by their mean, which is its `weight_unit` (None: no weights).

    new_rows : row numbers of `new` that are added
    order : for each merged row, its position in the old rows followed by the added ones
    """
    if old.weight_unit is None or new.weight_unit is None:
        return None
    before, after = (np.ones(log.rows) if log.weight is None else log.weight for log in (old, new))
    added = after[new_rows] * (new.weight_unit / old.weight_unit)
    weight = np.concatenate([before, added])[order]
    return weight if (weight != 1).any() else None


def _merge_context(
    old: Log, new: Log, new_rows: Array, order: Array, user: Array
) -> ContextColumns:  # fmt: skip
    """Return the old log's context columns for the merged rows.

    Columns of `new` alone are ignored. Columns that `new` does not have are missing in its rows,
    but a user keeps the value of a user column. InvalidLogError if a column has text in one log
    and numbers in the other.

    new_rows : row numbers of `new` that are added
    order : for each merged row, its position in the old rows followed by the added ones
    user : the user of each merged row
    """
    by_name = {column.name: column for column in new.context}
    merged = []
    for column in old.context:
        added = by_name.get(column.name, missing_column(column, new.rows)).take(new_rows)
        both = join_columns(column, added).take(order)
        merged.append(fill_users(both, user) if column.by_user else both)
    return tuple(merged)


def _extend_vocabulary(
    old: Vocabulary, new: Vocabulary, codes: Array, kind: str
) -> tuple[Vocabulary, Array]:
    """Return the old ids followed by the unseen new ones, and `codes` as positions in them.

    `codes` are positions in `new`, one per row of the new log; `kind` (user or item) is for
    messages. InvalidLogError if the old ids are integers and a new one is not.
    """
    typed = old.cast_ids(new.ids)
    if typed.null_count():
        odd = new.ids.filter(typed.is_null())[0]
        message = f"{kind} {odd!r} is not a whole number, as all {kind} ids of the model are"
        raise InvalidLogError(message)
    old_positions = old.positions(typed, kind, "skip")
    new_ids = sort_ids(typed.filter(pl.Series(old_positions < 0)))
    both = Vocabulary(pl.concat([old.ids, new_ids.alias("id")]))
    return both, both.positions(typed, kind, "error")[codes]


def _drop_unused_ids(both: Vocabulary, codes: Array, n_old: int) -> tuple[Vocabulary, Array]:
    """Return the vocabulary without unused new ids, and `codes` (one per row) renumbered.

    `both` has the `n_old` ids of an old log, which all stay, followed by new ids, which stay if
    `codes`, positions in `both`, has them.
    """
    is_used = np.zeros(len(both), bool)
    is_used[:n_old] = True
    is_used[codes] = True
    renumber = (np.cumsum(is_used) - 1).astype(np.int32)
    return both.take(np.flatnonzero(is_used)), renumber[codes]


def _find_new_rows(old: Log, user: Array, item: Array, time: Array) -> Array:
    """Return the row numbers (int64) of new rows that the old log lacks, or has fewer times.

    `user`, `item` (positions in the merged vocabularies) and `time` (microseconds) have one entry
    per new row. Of n equal new rows, with m in the old log, the last n - m are new.
    """
    key = ["user", "item", "time"]
    old_rows = pl.DataFrame({"user": old.user_codes(), "item": old.item, "time": old.time})
    codes = {"user": user.astype(np.int32), "item": item.astype(np.int32)}
    candidates = pl.DataFrame({**codes, "time": time})
    relevant = old_rows.filter(pl.col("user").is_in(candidates["user"].unique().implode()))
    old_counts = relevant.group_by(key).len("old_count")
    numbered = candidates.with_row_index("row").with_columns(nth=pl.int_range(pl.len()).over(key))
    numbered = numbered.join(old_counts, on=key, how="left", maintain_order="left")
    new_rows = numbered.filter(pl.col("nth") >= pl.col("old_count").fill_null(0))["row"]
    return new_rows.to_numpy().astype(np.int64)


def _sort_rows(
    user: Array, item: Array, time: Array, users: Vocabulary, items: Vocabulary, old: Log
) -> tuple[Log, Array]:
    """Return a log of the rows, in order of user, time and ties, and their former row numbers.

    `user` and `item` are positions in `users` and `items`, one per row. Simultaneous rows of a user
    are ordered by item id if `old.ties` is "item", else they keep their order; the time unit is
    that of `old`.
    """
    ptr, rows = group_rows(user, len(users))
    sort_groups(ptr, rows, time)
    if old.ties == "item":
        key = items.sorted_places().astype(np.int64)
        rows = rows[order_simultaneous(ptr, time[rows], key[item[rows]])]
    log = Log(ptr, item[rows].astype(np.int32), time[rows], users, items, None, old.unit, old.ties)
    return log, rows
