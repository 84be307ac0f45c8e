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
from talerec.runtime import Array

_MAX_QUERIES = 20_000  # of each kind
_ROWS_HELD = 3  # rows of a user per row that is held back
_ENOUGH = 12_000  # current queries, for which logs of few users hold back more rows of each
_ROWS_BACK = (2, 4)  # fewest and most rows that are held back by default
_CUTOFF_SHARES = (0.85, 0.7, 0.55)  # of the rows before a cutoff of delayed queries
ENOUGH_DELAYED = 6_000  # delayed queries with which no further cutoff is taken
_ROWS_AFTER = 3  # first rows of a user after a cutoff that are queries


class QuerySplit(NamedTuple):
    """How the queries of a round are held out from a log, or from some users of a log.

    cutoff: a time (microseconds): queries ask for users' first rows from then on, and histories are
    the rows before. None: queries ask for the last rows of users, `rows_back` at most.
    """

    cutoff: int | None
    rows_back: int = _ROWS_AFTER

    def count_held(self, log: Log) -> Array:
        """Return how many rows of each user may be held out, 0 for a user without queries.

        In a log of baskets, last baskets are counted. With a cutoff, it is 1 for a user with
        queries.
        """
        if self.cutoff is None:
            counts: Array = np.minimum(np.diff(_Steps.of(log).ptr) // _ROWS_HELD, self.rows_back)
            return counts
        cut, every_item = TimeCut.at(log, self.cutoff), np.ones(len(log.items), bool)
        n_held = np.zeros(len(log.users), np.int64)
        n_held[cut.eligible_users(every_item)[1]] = 1
        return n_held

    def sample_size(self, n_users: int, n_held: int) -> int:
        """Return how many users may have queries, of `n_users` who may hold out `n_held` rows."""
        if self.cutoff is not None:
            return _MAX_QUERIES // _ROWS_AFTER
        return int(_MAX_QUERIES / (max(n_held / n_users, 1) if n_users else 1))

    def hold_out(self, log: Log, users: Array) -> tuple[Log, HoldoutQueries]:
        """Return the training rows of a log, and the queries of these users.

        users: positions of users whose `count_held` is not 0, ascending.
        """
        if self.cutoff is None:
            return self._hold_out_last(log, users)
        cut = TimeCut.at(log, self.cutoff)
        every_item = np.ones(len(log.items), bool)
        return cut.before, cut.delayed_queries(users, every_item, self.rows_back)

    def _hold_out_last(self, log: Log, users: Array) -> tuple[Log, HoldoutQueries]:
        """Return the other rows of a log, and queries for the last rows of these users."""
        steps, n_held = _Steps.of(log), self.count_held(log)
        number, held = list_rows(steps.ptr[users + 1] - n_held[users], steps.ptr[users + 1])
        step, row = list_rows(steps.start[held], steps.stop[held])
        is_train = np.ones(log.rows, bool)
        is_train[row] = False
        if log.has_baskets:
            step, row = sample_targets(step, row, log.item[row])
        user, stop = users[number[step]], steps.start[held][step]
        histories = Histories(
            log.ptr[user], stop, log.item, log.time, log.time[row], log.weight,
            take_context(log.context, row), log.context,
        )  # fmt: skip
        return log.keep(is_train), HoldoutQueries(histories, log.item[row].astype(np.int64), user)


class _Steps(NamedTuple):
    """The rows of a log one by one, or its baskets, if it has any.

    start, stop: the rows of each step. ptr: where each user's steps begin.
    """

    start: Array
    stop: Array
    ptr: Array

    @classmethod
    def of(cls, log: Log) -> _Steps:
        """Return the steps of a log."""
        start = np.unique(basket_starts(log)) if log.has_baskets else np.arange(log.rows)
        return cls(start, np.append(start[1:], log.rows), np.searchsorted(start, log.ptr))


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
    return choose_rows_back(int(np.count_nonzero(np.diff(log.ptr))))


def choose_rows_back(n_users: int) -> int:
    """Return how many last rows of each user are queries in a log of that many users: 2 to 4."""
    return int(np.clip(_ENOUGH // max(n_users, 1), *_ROWS_BACK))


def current_round(log: Log, rows_back: int, *, asks_new: bool = False) -> QueryRound:
    """Return queries for users' last rows, up to `rows_back` of each, and the other rows.

    A user with n rows has n // 3 queries at most; the history of a query is all earlier rows. In a
    log of baskets, that holds for baskets; up to four items of a basket are targets of a query
    each. If there are too many queries, they are those of an even sample of users. asks_new:
    whether targets may be items without training rows.
    """
    end = int(log.time.max()) + 1
    return _build_round(log, QuerySplit(None, rows_back), end, asks_new=asks_new)


def delayed_rounds(log: Log, *, asks_new: bool = False) -> list[QueryRound]:
    """Return queries for the first rows of users after cutoffs: one round per cutoff.

    The last cutoff has 85 % of the rows before it; earlier ones follow until there are 6,000
    queries or no cutoffs. A user has up to three queries per cutoff, whose history is the user's
    rows before it. Targets without rows before the cutoff are dropped unless `asks_new`; of many
    users an even sample is taken.
    """
    rounds: list[QueryRound] = []
    for cutoff in delayed_cutoffs(np.sort(log.time)):
        rounds.append(_build_round(log, QuerySplit(cutoff), cutoff, asks_new=asks_new))
        if sum(len(each.queries) for each in rounds) >= ENOUGH_DELAYED:
            break
    return [held_out for held_out in rounds if len(held_out.queries)]


def delayed_cutoffs(times: Array) -> list[int]:
    """Return the cutoffs of delayed queries, the last one first.

    times: of all rows, ascending (microseconds).
    """
    shares = (int(times[int(share * len(times))]) for share in _CUTOFF_SHARES)
    return list(dict.fromkeys(shares))


def _build_round(log: Log, split: QuerySplit, known_until: int, *, asks_new: bool) -> QueryRound:
    """Return the queries of a split, of an even sample of users if there are too many.

    Queries stay whose target occurs in the training rows; asks_new: those for other targets, too.
    """
    n_held = split.count_held(log)
    users = np.flatnonzero(n_held)
    users = spread_sample(users, split.sample_size(len(users), int(n_held.sum())))
    train, queries = split.hold_out(log, users)
    in_train = np.bincount(train.item, minlength=len(train.items)) > 0
    in_train |= asks_new
    return QueryRound(train, select_answerable(queries, in_train), known_until)
