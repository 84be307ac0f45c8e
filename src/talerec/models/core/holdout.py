"""Held-out queries of a log: rows left out of a first fit, which that fit must predict.

Current queries ask for a user's last row before a cutoff, when all earlier rows are known. Delayed
queries ask for a user's first rows after the cutoff: the model is then as old as the cutoff, and
the user has often been inactive. Only rows of the log that is fitted are used.

In a log of baskets, the last basket before the cutoff and the first one after it are held out. A
basket has several queries, which differ in the target alone; their history is all earlier baskets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Histories, Log, basket_starts, basket_stops, list_rows, take_context
from talerec.runtime import Array

_CUTOFF_SHARES = (0.85, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the rows before a cutoff, by preference
_ENOUGH_DELAYED = 500  # users on both sides of a cutoff with which it is taken
_MAX_SAMPLE, _MIN_SAMPLE = 4096, 512  # users sampled for each kind of query
_MAX_DELAYED_ROWS = 5  # delayed queries of one user, if few users have any
_ROWS_PER_QUERY = 40  # in small logs: learning must not take longer than fitting
_SMALL_CATALOGUE = 4000  # items, up to which all of them are targets
_MAX_BASKET_USERS = 2048  # users sampled for each kind of query in a log of baskets
_MAX_BASKET_QUERIES = 4  # queries of one basket
_MIN_STEPS = 3  # rows, or baskets, of a user with current queries
_MIN_USERS = 200  # users with answerable current queries below which nothing can be learned


class HoldoutQueries(NamedTuple):
    """Queries of a validation: histories with request times, and the held-out item of each.

    histories: the user's rows before the target; `histories.now` has the request times, in
    microseconds. target: the item position of the row to predict. user: a number for each query,
    equal for queries of one user; users, not queries, are independent of each other.
    """

    histories: Histories
    target: Array
    user: Array

    def __len__(self) -> int:
        return len(self.target)


class Holdout(NamedTuple):
    """Training rows of a first fit (with all ids of the log), and queries held out from it.

    train: the rows to fit. A query is a history with the item that came next, its target. Current
    queries ask for a user's last row before the cutoff, delayed ones for the first rows after it
    (one row, or more if few users have any), which may be long after the training rows.
    """

    train: Log
    current: HoldoutQueries  # for last rows before the cutoff
    delayed: HoldoutQueries  # for first rows after it
    target_mask: Array  # per item: whether queries may ask for it


def split_holdout(log: Log, *, every_item: bool = False) -> Holdout | None:
    """Split a log into training rows and held-out queries; None if the queries are too few.

    The log is cut at a time. Current queries ask for sampled users' last rows before it, which are
    not trained on; delayed queries for users' first rows after it. Queries stay if they have a
    history and an item that occurs in training. every_item: make all items of a large catalogue
    targets, not only about half of them.
    """
    cutoffs = candidate_cutoffs(np.sort(log.time))
    cut = TimeCut.at(log, choose_cutoff(cutoffs, count_users_across(log, cutoffs)))
    target_mask = sample_target_items(len(log.items), every_item=every_item)
    eligible = cut.eligible_users(target_mask)
    sampled = (sample_users(users, log.rows) for users in eligible)
    limit = _MAX_BASKET_USERS if log.has_baskets else _MAX_SAMPLE
    current_users, delayed_users = (spread_sample(users, limit) for users in sampled)
    train = cut.training_rows(current_users)
    in_train = np.bincount(train.item, minlength=len(train.items)) > 0
    current = select_answerable(cut.current_queries(current_users), in_train & target_mask)
    if not has_enough_queries(current):
        return None
    n_rows = delayed_rows_per_user(len(delayed_users), log.rows)
    delayed = select_answerable(cut.delayed_queries(delayed_users, target_mask, n_rows), in_train)
    return Holdout(train, current, delayed, target_mask)


def hold_out_last_rows(log: Log) -> tuple[Log, HoldoutQueries] | None:
    """Return training rows without some users' last rows, and a query for each of those.

    The history of a query is the user's other rows, its target the item of the row held out (in a
    log of baskets: of the last basket). The result is None if fewer than 200 users have a query
    that can be answered (its target occurs in training).
    """
    cut = TimeCut.at(log, int(log.time.max()) + 1)  # nothing lies after the cut
    every_item = np.ones(len(log.items), bool)
    users = sample_users(cut.eligible_users(every_item)[0], log.rows)
    train = cut.training_rows(users)
    in_train = np.bincount(train.item, minlength=len(train.items)) > 0
    queries = select_answerable(cut.current_queries(users), in_train)
    return (train, queries) if has_enough_queries(queries) else None


class TimeCut(NamedTuple):
    """A log cut at a point in time, to hold out rows on both sides as targets of queries.

    log: all rows, grouped by user, oldest first.
    """

    log: Log
    before: Log  # the rows before the cutoff
    first_after: Array  # the first row of each user at or after the cutoff, -1 if there is none

    @classmethod
    def at(cls, log: Log, cutoff: int) -> TimeCut:
        """Return a log cut at time `cutoff` (microseconds); rows at that time are after the cut."""
        is_before = log.time < cutoff
        first_after = np.full(len(log.users), -1, np.int64)
        rows = np.flatnonzero(~is_before)[::-1]
        first_after[log.user_codes()[rows]] = rows  # the earliest row is written last
        return cls(log, log.keep(is_before), first_after)

    def eligible_users(self, target_mask: Array) -> tuple[Array, Array]:
        """Return users with a current query, and users with a delayed one, for an allowed target.

        A current query asks for a user's last row before the cutoff (from three rows, or baskets,
        on), a delayed one for the first row after it (with a row before it). target_mask: a flag
        per item. Users are numbers: their positions in the log.
        """
        before, length = self.before, np.diff(self.before.ptr)
        current = np.flatnonzero(_count_steps(before) >= _MIN_STEPS)
        delayed = np.flatnonzero((self.first_after >= 0) & (length > 0))
        return (
            current[target_mask[before.item[before.ptr[current + 1] - 1]]],
            delayed[target_mask[self.log.item[self.first_after[delayed]]]],
        )

    def training_rows(self, current_users: Array) -> Log:
        """Return the rows before the cutoff, without the last row of each of these users.

        These last rows (in a log of baskets: the rows of last baskets) are held out: they are the
        targets of the current queries.
        """
        is_train = np.ones(self.before.rows, bool)
        is_train[list_rows(*self._last_steps(current_users))[1]] = False
        return self.before.keep(is_train)

    def current_queries(self, users: Array) -> HoldoutQueries:
        """Return one query per user: its last row before the cutoff is the target to predict.

        In a log of baskets, up to four items of the last basket are targets of one query each.
        `before` has the log's rows before the cutoff. users: their numbers. The history of a query
        is the user's rows before the target row, or before its basket, and its request time the
        target row's time.
        """
        first, stop = self._last_steps(users)
        number, row = list_rows(first, stop)
        if self.log.has_baskets:
            number, row = sample_targets(number, row, self.before.item[row])
        return self._queries(users[number], first[number], self.before, row)

    def delayed_queries(self, users: Array, target_mask: Array, n_rows: int) -> HoldoutQueries:
        """Return up to n_rows queries per user: its first rows after the cutoff are the targets.

        `before` has the log's rows before the cutoff, `first_after` each user's first row after it.
        users: their numbers, ascending. target_mask: a flag per item that may be a target. The
        history of a query is the user's rows before the cutoff, and its request time the target
        row's time. Queries of a user follow each other. In a log of baskets, they ask for up to
        four items of the first basket after the cutoff.
        """
        first = self.first_after[users]
        stop = np.minimum(first + n_rows, self.log.ptr[users + 1])
        if self.log.has_baskets:
            stop = basket_stops(self.log)[first]
        number, row = list_rows(first, stop)
        is_target = target_mask[self.log.item[row]]
        number, row = number[is_target], row[is_target]
        if self.log.has_baskets:
            number, row = sample_targets(number, row, self.log.item[row])
        users = users[number]
        stop = self.before.ptr[users + 1]
        return self._queries(users, stop, self.log, row)

    def _last_steps(self, users: Array) -> tuple[Array, Array]:
        """Return where each user's last row, or last basket, begins and ends.

        Row numbers are those of `before`, the rows before the cutoff; the end is the row after it.
        users: their numbers.
        """
        stop = self.before.ptr[users + 1]
        return (basket_starts(self.before)[stop - 1] if self.log.has_baskets else stop - 1), stop

    def _queries(self, users: Array, stop: Array, log: Log, row: Array) -> HoldoutQueries:
        """Return queries whose histories are the users' rows before the row numbers `stop`.

        Row numbers are those of `before`, the log's rows before the cutoff. row: the rows of `log`
        to predict, whose times and contexts are those of the requests. All have an entry per query.
        """
        before = self.before
        context = take_context(log.context, row)
        histories = Histories(
            before.ptr[users], stop, before.item, before.time, log.time[row],
            context=context, row_context=before.context,
        )  # fmt: skip
        return HoldoutQueries(histories, log.item[row].astype(np.int64), users)


def _count_steps(log: Log) -> Array:
    """Return how many rows each user of a log has, or how many baskets in a log of baskets."""
    if not log.has_baskets:
        return np.diff(log.ptr)
    is_first = basket_starts(log) == np.arange(log.rows)
    return np.bincount(log.user_codes()[is_first], minlength=len(log.users))


def sample_targets(number: Array, row: Array, item: Array) -> tuple[Array, Array]:
    """Return the rows that queries have as targets: at most four distinct items of a basket.

    number: the basket of each row, ascending. row, item: its row number and item. An even sample of
    the basket's items, in order of item.
    """
    order = np.lexsort((row, item, number))
    number, row, item = number[order], row[order], item[order]
    is_new = np.ones(len(row), bool)
    is_new[1:] = (np.diff(number) != 0) | (np.diff(item) != 0)
    number, row = number[is_new], row[is_new]
    size = np.bincount(number)[number] if len(number) else number
    rank = np.arange(len(number)) - np.searchsorted(number, number)
    # of n items, number r is taken if a multiple of n / 4 lies in (r - 1, r]
    n_taken = np.minimum(size, _MAX_BASKET_QUERIES)
    is_taken = (rank + 1) * n_taken // size > rank * n_taken // size
    return number[is_taken], row[is_taken]


def sample_target_items(n_items: int, *, every_item: bool) -> Array:
    """Return a flag per item: all items of a small catalogue, half of a large one by a hash.

    Ranking within half of the items orders models alike, and its weights take half the time.
    """
    if every_item or n_items <= _SMALL_CATALOGUE:
        return np.ones(n_items, bool)
    hashes = np.arange(n_items, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    is_target: Array = (hashes >> np.uint64(40)) % np.uint64(2) == 0
    return is_target


def candidate_cutoffs(times: Array) -> Array:
    """Return the times at which a log may be cut, the preferred one first.

    times: of all rows, ascending, in microseconds. A cutoff has 85 %, 90 %, 80 %, ... of the rows
    before it.
    """
    return np.array([times[int(share * (len(times) - 1))] for share in _CUTOFF_SHARES])


def count_users_across(log: Log, cutoffs: Array) -> Array:
    """Return how many users have rows on both sides of each cutoff (a time in microseconds)."""
    has_rows = np.diff(log.ptr) > 0
    first, last = log.time[log.ptr[:-1][has_rows]], log.time[log.ptr[1:][has_rows] - 1]
    return np.array([np.count_nonzero((first < end) & (last >= end)) for end in cutoffs])


def choose_cutoff(cutoffs: Array, n_users: Array) -> int:
    """Return the first cutoff with at least 500 users across, or the one with the most.

    cutoffs: times (microseconds) to cut a log at. n_users: for each, the users with rows on both
    sides.
    """
    enough = np.flatnonzero(n_users >= _ENOUGH_DELAYED)
    return int(cutoffs[enough[0] if enough.size else int(np.argmax(n_users))])


def sample_users(users: Array, n_rows: int) -> Array:
    """Return an evenly spread sample of users, sized for a log of `n_rows`.

    One user for 40 rows, at least 512 and at most 4096; all of `users` if they are fewer.
    """
    return spread_sample(users, _sample_size(n_rows))


def spread_sample(users: Array, size: int) -> Array:
    """Return an evenly spread sample of at most `size` users."""
    if len(users) <= size:
        return users
    sample: Array = users[np.linspace(0, len(users) - 1, size).astype(np.int64)]
    return sample


def delayed_rows_per_user(n_users: int, n_rows: int) -> int:
    """Return how many delayed queries a user may have, 1 to 5: more if few users have any.

    n_users: users with delayed queries. n_rows: of the log, by which samples are sized.
    """
    return int(np.clip(_sample_size(n_rows) // max(n_users, 1), 1, _MAX_DELAYED_ROWS))


def _sample_size(n_rows: int) -> int:
    """Return how many users may be sampled for each kind of query, in a log of `n_rows`."""
    return int(np.clip(n_rows // _ROWS_PER_QUERY, _MIN_SAMPLE, _MAX_SAMPLE))


def has_enough_queries(current: HoldoutQueries) -> bool:
    """Return whether enough users (200) have queries to learn weights from.

    current: queries for users' last rows before the cutoff, whose target occurs in training.
    """
    return len(np.unique(current.user)) >= _MIN_USERS


def select_answerable(queries: HoldoutQueries, in_train: Array) -> HoldoutQueries:
    """Return the queries with a nonempty history and a target that occurs in training.

    in_train: a flag per item.
    """
    histories, target, user = queries
    ok = in_train[target] & (histories.stop > histories.start)
    return HoldoutQueries(histories.take(ok), target[ok], user[ok])
