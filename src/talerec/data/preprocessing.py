"""From a log to a cleaner log: cores, duplicates, the order of simultaneous rows."""

from __future__ import annotations

import numpy as np

from talerec.data import row_kernels, times
from talerec.data.log import Log, as_log
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array


def k_core(log: Log, k: int) -> Log:
    """Drop users and items with fewer than `k` rows, again and again until nothing changes.

    Parameters
    ----------
    log : Log
        The rows to choose from.
    k : int
        The fewest rows that a user and an item may have, from 1.

    Returns
    -------
    Log
        The rows that are left, with their users and items alone.

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
        stays = keep & (per_user[user] >= k) & (per_item[log.item] >= k)
        if stays.sum() == keep.sum():
            break
        keep = stays
    if not keep.any():
        raise TalerecError(f"nothing is left of the log after a {k}-core; use a smaller core")
    return log.keep(keep).compact()


def drop_duplicates(log: Log) -> Log:
    """Keep only the first of rows that have the same user, item and time.

    Parameters
    ----------
    log : Log
        The rows to choose from.

    Returns
    -------
    Log
        The rows that are left; users and items are as before.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": ["ann", "ann"], "item_id": ["tea", "tea"], "timestamp": ["2024-05-01"] * 2}
    >>> tr.drop_duplicates(tr.Log.from_frame(pl.DataFrame(rows))).rows
    1
    """
    return log.keep(~duplicated(log))


def duplicated(log: Log) -> Array:
    """Mask of rows that repeat an earlier row's user, item and time."""
    order = row_kernels.order_within_instants(log.ptr, log.time, log.item.astype(np.int64))
    user, item, time = log.user_codes()[order], log.item[order], log.time[order]
    same = (user[1:] == user[:-1]) & (item[1:] == item[:-1]) & (time[1:] == time[:-1])
    mask = np.zeros(log.rows, bool)
    mask[order[1:]] = same
    return mask


def between(log: Log, start: times.Moment, end: times.Moment) -> Log:
    """Keep the rows with start <= time < end; a moment is what `time_split` takes."""
    first, last = (times.microseconds(moment, log.unit) for moment in (start, end))
    if first >= last:
        raise TalerecError(f"the start ({start}) does not lie before the end ({end})")
    keep = (log.time >= first) & (log.time < last)
    if not keep.any():
        oldest, newest = (
            np.datetime64(int(end_of), "us") for end_of in (log.time.min(), log.time.max())
        )
        raise TalerecError(
            f"no row lies from {start} until {end}; the log goes from {oldest} to {newest}"
        )
    return log.keep(keep).compact()


def order_ties(log: Log, ties: str) -> Log:
    """Order the rows that have the same user and time.

    Parameters
    ----------
    log : Log
        The rows to order.
    ties : str
        ``"file"``: as they are; ``"item"``: by item id; ``"random:SEED"``: at random, SEED a whole number.

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
    >>> rows = {"user_id": ["ann", "ann"], "item_id": ["tea", "cup"], "timestamp": ["2024-05-01"] * 2}
    >>> log = tr.Log.from_frame(pl.DataFrame(rows))
    >>> tr.order_ties(log, "item").to_frame()["item_id"].to_list()
    ['cup', 'tea']
    """
    if ties == "file":
        return log
    if ties == "item":
        key = log.item.astype(np.int64)
    else:
        key = np.random.default_rng(_tie_seed(ties)).integers(0, 2**62, log.rows)
    order = row_kernels.order_within_instants(log.ptr, log.time, key)
    return log.ordered(order, ties)


def tie_orders(ties: str) -> list[str]:
    """The orders that a text means: random:0..4 means five of them, anything else one."""
    kind, _, seeds = ties.partition(":")
    low, dots, high = seeds.partition("..")
    if kind != "random" or not dots:
        _check_ties(ties)
        return [ties]
    if not (low.isdecimal() and high.isdecimal()) or int(high) < int(low):
        raise TalerecError(f"ties is {ties!r}; write a range of seeds as random:0..4")
    if int(high) - int(low) >= _MOST_ORDERS:
        raise TalerecError(f"ties is {ties!r}; that is more than {_MOST_ORDERS:,} orders")
    return [f"random:{seed}" for seed in range(int(low), int(high) + 1)]


_MOST_ORDERS = 1000


def _check_ties(ties: str) -> None:
    if ties not in ("file", "item"):
        _tie_seed(ties)


def _tie_seed(ties: str) -> int:
    kind, _, seed = ties.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise TalerecError(f"ties is {ties!r}; it takes file, item or random:SEED (a whole number)")
    return int(seed)
