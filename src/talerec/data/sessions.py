"""Sessions in place of users, and baskets: rows of one visit, or of one purchase.

A session model learns from short sequences, and answers each with what happened in it alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from talerec.data.durations import parse_duration
from talerec.data.log import Log, as_log
from talerec.data.vocabulary import Vocabulary
from talerec.errors import InvalidLogError
from talerec.runtime import Array


def split_sessions(log: Log, session_gap: str | None = None, *, across: bool = False) -> Log:
    """Return the log with each session in place of a user: a session is a history of its own.

    Parameters
    ----------
    log : Log
        The rows; without `session_gap`, its column `group` has the session of each row
        (`read_log` and `Log.from_frame` read it).
    session_gap : str, optional
        A duration such as ``"30m"``: a user's row that is later than the previous one by more than
        this begins a session. Its id is the user's and the time of its first row:
        ``ann/2024-05-01T10:00:00``.
    across : bool
        Keep users, whose histories then go across sessions; the log returned has the session of
        each row in `group`, by which `every_row_split` counts positions.

    Returns
    -------
    Log
        Its `users` are the sessions, and `owners` the id of each session's user, the unit of
        statistics. With `across`, its users are those of `log`.

    Raises
    ------
    TalerecError
        If the log has no sessions, a session has rows of two users, or `session_gap` is not a
        duration or the log has no times.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> times = ["2024-05-01 10:00", "2024-05-01 10:05", "2024-05-03 09:00"]
    >>> rows = {"user_id": ["ann"] * 3, "item_id": ["tea", "cup", "tea"], "timestamp": times}
    >>> sessions = tr.split_sessions(tr.Log.from_frame(pl.DataFrame(rows)), "30m")
    >>> sessions.users.ids.to_list()
    ['ann/2024-05-01T10:00:00', 'ann/2024-05-03T09:00:00']
    """
    log = as_log(log)
    log = _check_sessions(log) if session_gap is None else _cut_at_gaps(log, session_gap)
    if across:
        return log
    assert log.group is not None
    assert log.group_ids is not None
    rows = np.argsort(log.group, kind="stable")  # rows of a session stay in order of time
    sizes = np.bincount(log.group, minlength=len(log.group_ids))
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    owner = np.zeros(len(sizes), np.int64)
    owner[log.group] = log.user_codes()
    by_session = replace(log.reorder(rows, log.ties), ptr=ptr, users=log.group_ids, owners=None)
    owners = log.users.ids.gather(owner)
    return replace(by_session, group=None, group_ids=None, owners=owners).compact()


def name_history_unit(log: Log) -> str:
    """Return what a log's histories belong to: "session" after `split_sessions`, or "user"."""
    return "user" if log.owners is None else "session"


def _check_sessions(log: Log) -> Log:
    """Return the log; InvalidLogError if it has no sessions, or one of several users.

    `log.group` has the session of each row, and `log.group_ids` the sessions' ids.
    """
    if log.group is None or log.group_ids is None:
        message = "the log has no sessions: read it with `group`, or set `session_gap`"
        raise InvalidLogError(message, "group", "session_gap")
    user = log.user_codes()
    first, last = np.zeros((2, len(log.group_ids)), np.int32)
    last[log.group] = user  # rows are in order of users: the last assignment wins
    first[log.group[::-1]] = user[::-1]
    if (crossing := np.flatnonzero(first != last)).size:
        session = int(crossing[0])
        names = " and ".join(repr(log.users.ids[int(code[session])]) for code in (first, last))
        raise InvalidLogError(
            f"session {log.group_ids.ids[session]!r} has rows of users {names}: each session "
            "belongs to one user"
        )
    return log


def _cut_at_gaps(log: Log, gap: str) -> Log:
    """Return the log with sessions in `group`, which end where a user pauses.

    `gap` is a duration such as "30m": a row that is later than the previous one by more begins a
    session. Ids are the user's id and the first row's time, in ISO form.
    """
    width = parse_duration(gap, "session_gap")
    if log.unit == "none":
        raise InvalidLogError("`session_gap` needs times, and the log has none", "session_gap")
    begins = np.ones(log.rows, bool)
    begins[1:] = np.diff(log.time) > width
    begins[log.ptr[:-1][np.diff(log.ptr) > 0]] = True
    first = np.flatnonzero(begins)
    users = log.users.ids.gather(log.user_codes()[first]).cast(pl.String)
    times = pl.Series(log.time[first]).cast(pl.Datetime("us")).dt.to_string("iso:strict")
    times = times.str.strip_suffix(".000000")
    ids = pl.select(pl.concat_str(users, pl.lit("/"), times).alias("id")).to_series()
    sessions, codes = Vocabulary.encode(ids)
    return replace(log, group=codes[np.cumsum(begins) - 1], group_ids=sessions)


def count_earlier_in_session(log: Log) -> Array:
    """Return, for each row of a log, the number of earlier rows in its session (int64).

    The row's position in its session is one more. Sessions are `log.group`, or without it the log's
    users. Rows of the same time are not earlier than each other.
    """
    group = log.user_codes() if log.group is None else log.group
    order = np.argsort(group, kind="stable")
    codes, times = group[order], log.time[order]
    row = np.arange(log.rows)
    is_first = np.ones(log.rows, bool)
    is_first[1:] = codes[1:] != codes[:-1]
    begins = is_first.copy()
    begins[1:] |= times[1:] != times[:-1]
    first, earlier = (np.maximum.accumulate(np.where(flag, row, 0)) for flag in (is_first, begins))
    positions = np.empty(log.rows, np.int64)
    positions[order] = earlier - first
    return positions


def join_baskets(log: Log) -> Log:
    """Return the log with one time for all rows of a basket: that of the basket's first row.

    `log.group` has the basket of each row; a basket that has rows of several users is one basket of
    each. In a log without that column, rows of equal times are a basket already. Simultaneous rows
    of two baskets become one. The log returned has no `group`, and its `has_baskets` is true: tempo
    and the ranker learn to predict next baskets from it.

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": [1, 1, 1], "item_id": [7, 8, 9], "timestamp": [1.7e9, 1.7e9 + 5, 1.8e9]}
    >>> frame = pl.DataFrame({**rows, "basket": ["x", "x", "y"]})
    >>> tr.join_baskets(tr.Log.from_frame(frame, group="basket")).time.tolist()
    [1700000000000000, 1700000000000000, 1800000000000000]
    """
    log = as_log(log)
    if log.unit == "none":
        raise InvalidLogError("`basket` needs times, and the log has none", "basket")
    if log.group is None:
        return replace(log, has_baskets=True)
    user = log.user_codes()
    order = np.lexsort((log.time, log.group, user))
    begins = np.ones(log.rows, bool)
    begins[1:] = (np.diff(log.group[order]) != 0) | (np.diff(user[order]) != 0)
    first = np.maximum.accumulate(np.where(begins, np.arange(log.rows), 0))
    time = np.empty_like(log.time)
    time[order] = log.time[order][first]
    rows = np.lexsort((time, user))
    joined = replace(log, time=time, group=None, group_ids=None, has_baskets=True)
    return joined.reorder(rows, log.ties)


def basket_starts(log: Log) -> Array:
    """Return, for each row, the first row of its basket: of the rows of its user and time."""
    begins = np.ones(log.rows, bool)
    begins[1:] = np.diff(log.time) != 0
    begins[log.ptr[:-1][np.diff(log.ptr) > 0]] = True
    starts: Array = np.maximum.accumulate(np.where(begins, np.arange(log.rows), 0))
    return starts


def basket_stops(log: Log) -> Array:
    """Return, for each row, the row after the last row of its basket (same user and time)."""
    first = np.unique(basket_starts(log))
    ends = np.append(first[1:], log.rows)
    return np.repeat(ends, ends - first)


def list_rows(start: Array, stop: Array) -> tuple[Array, Array]:
    """Return the rows of ranges start[n] to stop[n] - 1: the range n of each, and its number."""
    length = stop - start
    number = np.repeat(np.arange(len(start)), length)
    return number, np.arange(len(number)) + np.repeat(start - np.cumsum(length) + length, length)


def list_history_rows(start: Array, stop: Array, time: Array) -> tuple[Array, Array, Array]:
    """Return all rows of histories: the number of the history, the row, and its later baskets.

    History h has the rows start[h] to stop[h] - 1; `time` has the time of every row number. The
    third array counts, for each row, the baskets (distinct times) of its history that are later.
    """
    number, rows = list_rows(start, stop)
    is_later = np.zeros(len(rows), np.int64)
    is_later[1:] = (time[rows][1:] != time[rows][:-1]) & (number[1:] == number[:-1])
    basket = np.cumsum(is_later)
    last = np.zeros(len(start), np.int64)
    last[number] = basket  # rows are in order: the last assignment wins
    n_later = last[number] - basket
    return number, rows, n_later
