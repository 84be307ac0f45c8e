"""From a log to a cleaner log, and to a split: rows to learn from and questions with known answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from talerec import kernels, times
from talerec.arrays import Array
from talerec.errors import TalerecError
from talerec.histories import Histories
from talerec.log import Log, Vocabulary

# -- cleaning --------------------------------------------------------------------------------------


def k_core(log: Log, k: int) -> Log:
    """Drop users and items with fewer than `k` rows, again and again until nothing changes."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise TalerecError(f"core is {k}; it takes a whole number from 1")
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
    """Keep one of the rows that have the same user, item and time."""
    return log.keep(~duplicated(log))


def duplicated(log: Log) -> Array:
    """Mask of rows that repeat an earlier row's user, item and time."""
    order = kernels.order_within_instants(log.ptr, log.time, log.item.astype(np.int64))
    user, item, time = log.user_codes()[order], log.item[order], log.time[order]
    same = (user[1:] == user[:-1]) & (item[1:] == item[:-1]) & (time[1:] == time[:-1])
    mask = np.zeros(log.rows, bool)
    mask[order[1:]] = same
    return mask


def between(log: Log, start: str | datetime | int, end: str | datetime | int) -> Log:
    """Keep the rows with start <= time < end; moments are written as for `split_at`."""
    first, last = _microseconds(start), _microseconds(end)
    if first >= last:
        raise TalerecError(f"the start ({start}) does not lie before the end ({end})")
    keep = (log.time >= first) & (log.time < last)
    if not keep.any():
        oldest, newest = (
            np.datetime64(int(moment), "us") for moment in (log.time.min(), log.time.max())
        )
        raise TalerecError(
            f"no row lies from {start} until {end}; the log goes from {oldest} to {newest}"
        )
    return log.keep(keep).compact()


def order_ties(log: Log, ties: str) -> Log:
    """Order the rows of one user at one instant: as in the `file`, by `item` id, or `random:SEED`."""
    if ties == "file":
        return log
    if ties == "item":
        key = log.item.astype(np.int64)
    else:
        key = np.random.default_rng(_tie_seed(ties)).integers(0, 2**62, log.rows)
    order = kernels.order_within_instants(log.ptr, log.time, key)
    return replace(log, item=log.item[order], ties=ties)


def _tie_seed(ties: str) -> int:
    kind, _, seed = ties.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise TalerecError(f"ties is {ties!r}; it takes file, item or random:SEED (a whole number)")
    return int(seed)


# -- splits ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cases:
    """Questions: after `histories[c]`, what came next? Items are positions in the training vocabulary, or -1."""

    user: Array  # positions in the users of the log that was split
    histories: Histories
    target: Array
    target_time: Array

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, eq=False)
class Split:
    """Training rows (with the only vocabulary that is learned) and the cases held back from them."""

    name: str
    users: Vocabulary  # of the log that was split
    train: Log
    validation: Cases | None
    test: Cases

    def cases(self, on: str) -> Cases:
        if on == "test":
            return self.test
        if on != "validation":
            raise TalerecError(f"on is {on!r}; it takes test or validation")
        if self.validation is None:
            raise TalerecError(f"a split {self.name} has no validation rows")
        return self.validation


def leave_one_out(log: Log) -> Split:
    """Each user's last row is the test, the one before it the validation, the rest training.

    A user with fewer than three rows asks no question; all of them are training rows.
    """
    count = np.diff(log.ptr)
    askers = np.flatnonzero(count >= 3)
    if not askers.size:
        raise TalerecError("no user has three rows: leave-one-out has nothing to ask")
    train = np.ones(log.rows, bool)
    train[log.ptr[askers + 1] - 1] = train[log.ptr[askers + 1] - 2] = False
    learned, items = _learned(log, train)
    last = log.ptr[askers + 1] - 1
    return Split(
        "leave-one-out",
        log.users,
        learned,
        _cases(log, items, askers, last - 1),
        _cases(log, items, askers, last),
    )


def split_at(log: Log, moment: str | datetime | int) -> Split:
    """Rows before `moment` are training; each user's first row from then on is the test.

    A moment is a datetime, a text such as 2019-10-01 or unix seconds as text, or whole microseconds.

    Users with no row before the moment, or none after it, ask no question.
    """
    when = _microseconds(moment)
    train = log.time < when
    if train.all() or not train.any():
        side = "after" if train.all() else "before"
        raise TalerecError(f"no row lies {side} the point of the split")
    learned, items = _learned(log, train)
    before = np.concatenate([[0], np.cumsum(train)])[log.ptr]  # training rows before each user's
    target = log.ptr[:-1] + np.diff(before)
    askers = np.flatnonzero((target > log.ptr[:-1]) & (target < log.ptr[1:]))
    if not askers.size:
        raise TalerecError("no user has rows on both sides of the point of the split")
    name = f"at:{moment if isinstance(moment, str) else np.datetime64(when, 'us')}"
    return Split(name, log.users, learned, None, _cases(log, items, askers, target[askers]))


def _microseconds(moment: str | datetime | int) -> int:
    if isinstance(moment, datetime):
        return times.moment(moment)
    return times.parse_moment(moment) if isinstance(moment, str) else int(moment)


def _learned(log: Log, train: Array) -> tuple[Log, Array]:
    """The training rows with their own vocabulary, and each row's item as a position in it (-1: not there)."""
    learned = log.keep(train).compact()
    renumber = np.full(len(log.items), -1, np.int32)
    renumber[np.unique(log.item[train])] = np.arange(len(learned.items), dtype=np.int32)
    return learned, renumber[log.item]


def _cases(log: Log, items: Array, askers: Array, target: Array) -> Cases:
    histories = Histories(log.ptr[askers], target, items, log.time)
    return Cases(askers, histories, items[target], log.time[target])
