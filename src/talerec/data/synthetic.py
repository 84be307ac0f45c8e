"""A made-up shop. Its log has what real ones have: bursts, drift, fashion, a long tail, baskets.

The catalogue is made of *lines* ("Alpine Trail": tent, footprint, sleeping bag, ...), each of one
category, with its items in the order in which people come to need them. Customers walk along a line
while they are at it; the longer they have been away, the less their last item says about the next.

Each user has random numbers of their own, from (seed, user): threads do not change the log.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data.catalogue import CATEGORIES, descriptions
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.threads import equal_work, run_chunks

MOST_ROWS = 100_000_000
START, END = datetime(2023, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)

_ORIGIN = int(START.timestamp())
_SPAN = int((END - START).total_seconds())
_DAY = 86_400.0  # seconds, as are all times until a log is made
_SLOTS = 24  # what is in fashion changes from slot to slot: about a month
_CHUNKS = 256
_LINE = 10  # items in a line

_ZIPF = 0.8  # of fame over lines
_CLASSIC = 0.1  # what a classic sells, in shares of a fashion's peak
_BASKET = 0.12  # of rows come in the same second as the one before
_STAY_ON = 0.6  # of the others come minutes later; then the customer is away for days
_REPEAT = 0.03  # of rows buy again what the customer had before
_VISIT = _DAY / 4  # what is older than that belongs to another visit
_LOOK_BACK = 0.75  # chance that a row follows not from this row, but from one before it
_FOLLOW, _FOLLOW_DAYS = 0.7, 1  # chance of a companion of that row, and how fast it fades
_STAY, _STAY_DAYS = 0.9, 4  # likewise, for anything of that row's category
_HOME_AGAIN = 0.15  # of the others are of the customer's first category

# -- random numbers --------------------------------------------------------------------------------

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_USERS, _LENGTHS, _PLACES, _FAME, _BIRTH, _RISE = range(1, 7)  # streams


@kernel
def _mix(x: np.uint64) -> np.uint64:
    """splitmix64's output function: a bijection of 64 bits that looks random."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@kernel
def _hashes(seed: np.uint64, stream: int, n: int) -> Array:
    """n distinct numbers of 64 bits."""
    base = _mix(_mix(seed) + np.uint64(stream) * _STEP)
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = _mix(base + np.uint64(i) * _STEP)
    return out


@kernel
def _uniform(state: Array) -> float:
    """The next number of a stream, in (0, 1)."""
    state[0] += _STEP
    drawn: float = (np.float64(_mix(state[0]) >> np.uint64(12)) + 0.5) * 2.0**-52
    return drawn


def _uniforms(seed: np.uint64, stream: int, n: int) -> Array:
    return ((_hashes(seed, stream, n) >> np.uint64(12)) + 0.5) * 2.0**-52


@kernel
def _long_tailed(state: Array, mean: float, power: float) -> float:
    """A waiting time whose tail falls as x ** -power (Lomax)."""
    tail: float = _uniform(state) ** (-1 / power)
    return mean * (power - 1) * (tail - 1)


# -- the catalogue ---------------------------------------------------------------------------------


def _line_starts(items: int) -> Array:
    """Where each category's lines start: lines 0, 1, ... come category by category."""
    lines = -(-items // _LINE)
    categories = min(max(lines // 4, 1), len(CATEGORIES))
    return np.arange(categories + 1) * lines // categories


def _demand(seed: np.uint64, starts: Array) -> Array:
    """How much each line is asked for, fame times fashion, as running sums (slots x lines + 1).

    A line sells nothing before its birth, most after its rise, then ever less. One in four is a
    classic that always sells; each category begins with one, so it always has something to offer.
    """
    lines, days = int(starts[-1]), _SPAN / _DAY
    rank = np.argsort(_hashes(seed, _FAME, lines)).argsort()
    fame = (1.0 + rank) ** -_ZIPF
    birth = (1.5 * _uniforms(seed, _BIRTH, lines) - 0.5) * days
    rise = 20 + 60 * _uniforms(seed, _RISE, lines)
    classic = (np.arange(lines) - np.repeat(starts[:-1], np.diff(starts))) % 4 == 0
    sums = np.zeros((_SLOTS, lines + 1))
    for slot in range(_SLOTS):
        age = np.maximum((slot + 0.5) * days / _SLOTS - birth, 0) / rise
        fashion = np.where(classic, _CLASSIC, age * np.exp(1 - age))
        np.cumsum(fame * fashion, out=sums[slot, 1:])
    return sums


# -- the customers ---------------------------------------------------------------------------------


def _row_starts(seed: np.uint64, rows: int, users: int) -> Array:
    """Where each user's rows start: one row each, the others shared out by long-tailed weights."""
    weight = _uniforms(seed, _LENGTHS, users) ** (-1 / 3.5) - 1
    share = np.cumsum(np.minimum(weight, 50 * weight.mean()))
    ends = np.floor(share * ((rows - users) / share[-1])).astype(np.int64)
    ends[-1] = rows - users
    return np.concatenate([[0], ends + np.arange(1, users + 1)])


@kernel
def _write_times(state: Array, time: Array) -> None:
    """One user's times, seconds from the start: first the gaps, then their sums."""
    pace = _DAY * 14 * math.exp(1.2 * (_uniform(state) + _uniform(state) + _uniform(state) - 1.5))
    pace = min(pace, 0.6 * _SPAN / (1 + (1 - _STAY_ON) * len(time)))
    total = 0
    time[0] = 0
    for r in range(1, len(time)):
        if _uniform(state) < _BASKET:
            gap = 0.0
        elif _uniform(state) < _STAY_ON:
            gap = 5 + min(_long_tailed(state, 100.0, 2.5), 1800.0)
        else:
            gap = 0.3 * _DAY + _long_tailed(state, pace, 2.2)
        time[r] = int(gap)
        total += time[r]
    shrink = min(1.0, (_SPAN - 1) / max(total, 1))
    moment = int(_uniform(state) * (_SPAN - total * shrink))
    for r in range(len(time)):
        moment += int(time[r] * shrink)
        time[r] = moment


@kernel
def _in_demand(state: Array, sums: Array, lo: int, hi: int, items: int) -> int:
    """An item of lines lo..hi: a line by demand, then most often one of its first (the tent)."""
    mark = sums[lo] + _uniform(state) * (sums[hi] - sums[lo])
    line: int = lo + np.searchsorted(sums[lo + 1 : hi], mark, side="right")
    size = min(_LINE, items - line * _LINE)
    return line * _LINE + int(size * _uniform(state) ** 2)


@kernel
def _in_category_of(state: Array, known: int, sums: Array, starts: Array, items: int) -> int:
    """An item in demand, of the same category as the item `known`."""
    category = np.searchsorted(starts, known // _LINE, side="right") - 1
    return _in_demand(state, sums, starts[category], starts[category + 1], items)


@kernel
def _companion(state: Array, last: int, items: int) -> int:
    """What people need after item `last`: a later item of its line, most often the nearest."""
    line = last // _LINE
    size = min(_LINE, items - line * _LINE)
    ahead = 1 + int(8 * _uniform(state) ** 2)  # the next one in 35 of 100 cases
    return line * _LINE + (last - line * _LINE + ahead) % size


@kernel
def _anchor(state: Array, time: Array, r: int) -> int:
    """The row that row r follows from: the last one, or one before it in the same visit."""
    s = r - 1
    while s > 0 and time[r] - time[s - 1] < _VISIT and _uniform(state) < _LOOK_BACK:
        s -= 1
    return s


@kernel
def _choose(
    state: Array, first: int, known: int, gap: float, sums: Array, starts: Array, items: int
) -> int:
    """What a customer wants `gap` days after item `known`: something that goes with it, while it is fresh."""
    chance = _uniform(state)
    if chance < _FOLLOW * math.exp(-gap / _FOLLOW_DAYS):
        return _companion(state, known, items)
    if chance < _STAY * math.exp(-gap / _STAY_DAYS):
        return _in_category_of(state, known, sums, starts, items)
    if _uniform(state) < _HOME_AGAIN:
        return _in_category_of(state, first, sums, starts, items)
    return _in_demand(state, sums, 0, starts[-1], items)


@kernel
def _write_items(
    state: Array, time: Array, starts: Array, demand: Array, items: int, item: Array
) -> None:
    """One user's items, numbered along the lines, given their times."""
    item[0] = _in_demand(state, demand[time[0] * _SLOTS // _SPAN], 0, starts[-1], items)
    for r in range(1, len(time)):
        if _uniform(state) < _REPEAT:
            item[r] = item[int(_uniform(state) * r)]
            continue
        sums = demand[time[r] * _SLOTS // _SPAN]
        for _ in range(4):  # tries to find something that the customer did not just buy
            s = _anchor(state, time, r)
            gap = (time[r] - time[s]) / _DAY
            item[r] = _choose(state, item[0], item[s], gap, sums, starts, items)
            if item[r] not in item[max(r - 30, 0) : r]:
                break


class _Shop(NamedTuple):
    """The catalogue and what is in demand."""

    starts: Array  # where each category's lines start
    demand: Array  # running sums of the lines' demand, slots x lines + 1
    position: Array  # of each item, numbered along the lines, in the log's vocabulary


@kernel
def _write_users(
    a: int, b: int, seed: np.uint64, ptr: Array, shop: _Shop, item: Array, time: Array
) -> None:
    """Write the rows of users a..b."""
    starts, demand, position = shop
    state = np.empty(1, np.uint64)
    for u in range(a, b):
        state[0] = _mix(_mix(_mix(seed) + np.uint64(_USERS) * _STEP) + np.uint64(u) * _STEP)
        rows = slice(ptr[u], ptr[u + 1])
        _write_times(state, time[rows])
        _write_items(state, time[rows], starts, demand, len(position), item[rows])
        for r in range(ptr[u], ptr[u + 1]):
            item[r] = position[item[r]]
            time[r] = (_ORIGIN + time[r]) * 1_000_000


# -- the log ---------------------------------------------------------------------------------------


def synthetic_log(
    rows: int = 20_000,
    *,
    items: int | None = None,
    users: int | None = None,
    seed: int = 0,
    titles: bool = True,
) -> Log:
    """Make up the log of a shop in 2023 and 2024; the same arguments give the same log.

    Parameters
    ----------
    rows : int
        How many rows there are.
    items : int, optional
        How many items there are, sold or not; by default one for every 20 rows, and at least 20.
    users : int, optional
        How many users there are; by default one for every 10 rows.
    seed : int
        Another seed gives another log.
    titles : bool
        Whether the items have titles and categories.

    Returns
    -------
    Log

    Raises
    ------
    TalerecError
        If a number is not a whole number from 1, or there are more users than rows.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.synthetic_log(2000, seed=7)
    Log(200 users, 100 items, 2,000 rows, 2023-01-01 to 2024-12-28)
    """
    _check("rows", rows)
    users = max(rows // 10, 1) if users is None else users
    items = max(rows // 20, 20) if items is None else items
    _check("users", users)
    _check("items", items)
    if users > rows:
        raise TalerecError(f"users is {users}, but {rows} rows are enough for {rows} users at most")
    return _generate(rows, users, items, np.uint64(int(seed) & 0xFFFF_FFFF_FFFF_FFFF), titles)


def _check(name: str, value: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MOST_ROWS:
        raise TalerecError(f"{name} is {value!r}; it takes a whole number from 1 to {MOST_ROWS:,}")


def _generate(rows: int, users: int, items: int, seed: np.uint64, titles: bool) -> Log:
    # Items stand in the log in an order of their own: an id says nothing of line or fame.
    order = np.argsort(_hashes(seed, _PLACES, items))
    position = np.empty(items, np.int32)
    position[order] = np.arange(items, dtype=np.int32)
    starts = _line_starts(items)
    shop = _Shop(starts, _demand(seed, starts), position)
    ptr = _row_starts(seed, rows, users)
    item, time = np.empty(rows, np.int32), np.empty(rows, np.int64)
    chunks = equal_work(ptr, _CHUNKS)
    run_chunks("synthetic", lambda a, b: _write_users(a, b, seed, ptr, shop, item, time), chunks)
    info = descriptions(*np.divmod(order, _LINE), starts) if titles else None
    return Log(ptr, item, time, _numbers(users), _numbers(items), info)


def _numbers(n: int) -> Vocabulary:
    return Vocabulary(pl.Series(np.arange(1, n + 1)))
