"""Synthetic click sessions: short, anonymous, with a planted order of the items."""

from __future__ import annotations

import numpy as np

from talerec.data.log import Log
from talerec.data.synthetic import END, START, check_count, number_vocabulary
from talerec.errors import TalerecError
from talerec.runtime import Array

_SHORTEST = 2  # rows of a session, at least
_ZIPF = 0.8  # exponent of popularity over items
_PAUSE, _MEAN_PAUSE = 5, 60  # seconds between rows: at least, and on average beyond that


def synthetic_sessions(
    rows: int = 20_000,
    *,
    items: int | None = None,
    users: int | None = None,
    seed: int = 0,
    order: float = 0.6,
) -> Log:
    """Return a log of short anonymous sessions; equal arguments give equal logs.

    Every item has one planted successor. A row shows the successor of the previous row's item with
    probability `order`, else a random item by popularity (Zipf's law with exponent 0.8), as a
    session's first row does. Following successors from any item leads through all items.

    Parameters
    ----------
    rows : int
        How many rows there are, at least two for every session.
    items : int, optional
        How many items there are, shown or not; by default one for every 20 rows, and at least 20.
    users : int, optional
        How many sessions there are; by default one for every 5 rows. Each is a user id of its own,
        numbered by time. Rows beyond a session's first two are distributed exponentially.
    seed : int
        Another seed gives another log.
    order : float
        Share of rows, from 0 to 1, that follow the planted order; a session's first row never does.

    Returns
    -------
    Log
        Rows of a session are 5 or more seconds apart; sessions start in 2023 and 2024.

    Raises
    ------
    TalerecError
        If a number is not a whole number from 1, there are fewer than two rows for each session, or
        `order` is not a number from 0 to 1.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.synthetic_sessions(2000, seed=7)
    Log(400 users, 100 items, 2,000 rows, 2023-01-02 to 2024-12-31)
    """
    check_count("rows", rows)
    users = max(rows // 5, 1) if users is None else users
    items = max(rows // 20, 20) if items is None else items
    check_count("users", users)
    check_count("items", items)
    if rows < _SHORTEST * users:
        raise TalerecError(
            f"users is {users}, but {rows} rows are enough for {rows // _SHORTEST} sessions at most"
        )
    if not 0 <= order <= 1:
        raise TalerecError(f"order is {order!r}; it takes a number from 0 to 1")
    rng = np.random.default_rng(int(seed) % 2**64)
    ptr = _draw_session_starts(rng, rows, users)
    item = _draw_items(rng, ptr, items, order)
    return Log(ptr, item, _draw_times(rng, ptr), number_vocabulary(users), number_vocabulary(items))


def _draw_session_starts(rng: np.random.Generator, rows: int, users: int) -> Array:
    """Return the first row of each session, then the number of rows (users + 1 entries).

    Each session has two rows; the rest is distributed by exponential random weights.
    """
    share = np.cumsum(-np.log1p(-rng.random(users)))
    extra = np.floor(share * ((rows - _SHORTEST * users) / share[-1])).astype(np.int64)
    extra[-1] = rows - _SHORTEST * users
    return np.concatenate([[0], extra + _SHORTEST * np.arange(1, users + 1)])


def _draw_items(rng: np.random.Generator, ptr: Array, items: int, order: float) -> Array:
    """Return the item of each row (positions below `items`, int32).

    The planted order is a random circle of all items. Rows that do not follow it show an item drawn
    by popularity; the rows after it, up to the next such row, continue along the circle.
    ptr : first row of each session, then the number of rows
    """
    row = np.arange(ptr[-1])
    circle = np.argsort(rng.random(items)).astype(np.int32)
    popularity = np.cumsum((1.0 + np.argsort(rng.random(items))) ** -_ZIPF)
    is_popular = rng.random(len(row)) >= order
    is_popular[ptr[:-1]] = True
    source = np.maximum.accumulate(np.where(is_popular, row, 0))  # the latest row drawn by itself
    drawn = np.searchsorted(popularity[:-1], rng.random(len(row)) * popularity[-1], side="right")
    position: Array = circle[(drawn[source] + row - source) % items]
    return position


def _draw_times(rng: np.random.Generator, ptr: Array) -> Array:
    """Return the time of each row in microseconds, whole seconds, ascending in a session.

    ptr : first row of each session, then the number of rows; sessions start in the order of `ptr`,
    at random times from START to END
    """
    begin = np.sort(rng.random(len(ptr) - 1)) * (END - START).total_seconds()
    pause = _PAUSE + np.floor(-_MEAN_PAUSE * np.log1p(-rng.random(int(ptr[-1])))).astype(np.int64)
    since_first = np.cumsum(pause)
    since_first -= np.repeat(since_first[ptr[:-1]], np.diff(ptr))
    start = int(START.timestamp()) + np.repeat(begin.astype(np.int64), np.diff(ptr))
    time: Array = (start + since_first) * 1_000_000
    return time
