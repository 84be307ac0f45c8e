"""Held-out queries that the ranker learns from: current ones and delayed ones.

Current queries ask for the last rows of users, with every earlier row known; delayed queries for
the first rows after a cutoff, by a model that knows the rows before it alone. There are several
cutoffs where one has few queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Histories, Log, basket_starts, list_rows, take_context
from talerec.models.core import (
    HoldoutQueries,
    TimeCut,
    sample_targets,
    select_answerable,
    spread_sample,
)

_MAX_QUERIES = 20_000  # of each kind
_ROWS_HELD = 3  # rows of a user per row that is held back
_ENOUGH = 12_000  # current queries, for which logs of few users hold back more rows of each
_ROWS_BACK = (2, 4)  # fewest and most rows that are held back by default
_CUTOFF_SHARES = (0.85, 0.7, 0.55)  # of the rows before a cutoff of delayed queries
_ENOUGH_DELAYED = 6_000  # delayed queries with which no further cutoff is taken
_ROWS_AFTER = 3  # first rows of a user after a cutoff that are queries


class QueryRound(NamedTuple):
    """Queries held out from training rows, which the parts are fitted to.

    known_until: time (microseconds) until which rows may be counted: the cutoff of delayed queries;
    for current ones, a time after all rows.
    """

    train: Log
    queries: HoldoutQueries
    known_until: int


def default_rows_back(log: Log) -> int:
    """Return how many last rows of each user are queries: 2 to 4, more in logs of few users.

    In a log of baskets, it is the number of last baskets: 2.
    """
    if log.has_baskets:
        return _ROWS_BACK[0]
    n_users = int(np.count_nonzero(np.diff(log.ptr)))
    return int(np.clip(_ENOUGH // max(n_users, 1), *_ROWS_BACK))


def current_round(log: Log, rows_back: int, *, asks_new: bool = False) -> QueryRound:
    """Return queries for users' last rows, up to `rows_back` of each, and the other rows.

    A user with n rows has n // 3 queries at most; the history of a query is all earlier rows. In a
    log of baskets, that holds for baskets; up to four items of a basket are targets of a query
    each. If there are too many queries, they are those of an even sample of users. asks_new:
    whether targets may be items without training rows.
    """
    starts = np.unique(basket_starts(log)) if log.has_baskets else np.arange(log.rows)
    stops = np.append(starts[1:], log.rows)
    ptr = np.searchsorted(starts, log.ptr)  # where each user's rows, or baskets, begin
    n_held = np.minimum(np.diff(ptr) // _ROWS_HELD, rows_back)
    users = np.flatnonzero(n_held)
    mean = max(n_held[users].mean(), 1) if users.size else 1
    users = spread_sample(users, int(_MAX_QUERIES / mean))
    number, held = list_rows(ptr[users + 1] - n_held[users], ptr[users + 1])
    step, row = list_rows(starts[held], stops[held])
    is_train = np.ones(log.rows, bool)
    is_train[row] = False
    if log.has_baskets:
        step, row = sample_targets(step, row, log.item[row])
    user, stop = users[number[step]], starts[held][step]
    histories = Histories(
        log.ptr[user], stop, log.item, log.time, log.time[row], log.weight,
        take_context(log.context, row), log.context,
    )  # fmt: skip
    queries = HoldoutQueries(histories, log.item[row].astype(np.int64), user)
    end = int(log.time.max()) + 1
    return _answerable(log.keep(is_train), queries, end, asks_new=asks_new)


def delayed_rounds(log: Log, *, asks_new: bool = False) -> list[QueryRound]:
    """Return queries for the first rows of users after cutoffs: one round per cutoff.

    The last cutoff has 85 % of the rows before it; earlier ones follow until there are 6,000
    queries or no cutoffs. A user has up to three queries per cutoff, whose history is the user's
    rows before it. Targets without rows before the cutoff are dropped unless `asks_new`; of many
    users an even sample is taken.
    """
    times, rounds, n_queries = np.sort(log.time), [], 0
    every_item = np.ones(len(log.items), bool)
    for cutoff in dict.fromkeys(int(times[int(share * log.rows)]) for share in _CUTOFF_SHARES):
        cut = TimeCut.at(log, cutoff)
        users = spread_sample(cut.eligible_users(every_item)[1], _MAX_QUERIES // _ROWS_AFTER)
        queries = cut.delayed_queries(users, every_item, _ROWS_AFTER)
        rounds.append(_answerable(cut.before, queries, cutoff, asks_new=asks_new))
        n_queries += len(rounds[-1].queries)
        if n_queries >= _ENOUGH_DELAYED:
            break
    return [held_out for held_out in rounds if len(held_out.queries)]


def _answerable(
    train: Log, queries: HoldoutQueries, known_until: int, *, asks_new: bool
) -> QueryRound:
    """Return a round with the queries whose target occurs in the training rows.

    asks_new: keep the queries for other targets, too.
    """
    in_train = np.bincount(train.item, minlength=len(train.items)) > 0
    in_train |= asks_new
    return QueryRound(train, select_answerable(queries, in_train), known_until)
