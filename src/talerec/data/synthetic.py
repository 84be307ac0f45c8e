"""A synthetic shop whose log has bursts, drift, fashion, a long tail and baskets.

The catalogue consists of *product lines* ("Alpine Trail": tent, footprint, sleeping bag, ...), each
of one category, with its items in the order in which people buy them. Customers walk along a line
during a visit; the longer ago their last purchase, the less it predicts the next.

Each user's random numbers come from (seed, user): the log does not depend on the threads.
"""

from __future__ import annotations

import math
import tomllib
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.log import Log
from talerec.data.pseudo_random import (
    STEP,
    draw_long_tailed,
    draw_uniform,
    hash_numbers,
    hash_uniforms,
    mix_bits,
)
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.runtime import Array, balanced_chunks, kernel, run_chunks

MAX_ROWS = 100_000_000
START, END = datetime(2023, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)

_ORIGIN = int(START.timestamp())
_SPAN = int((END - START).total_seconds())
_DAY = 86_400.0  # seconds, as are all times before the log is built
_SLOTS = 24  # fashion changes from slot to slot: about a month
_CHUNKS = 256
_LINE = 10  # items in a line

_ZIPF = 0.8  # exponent of popularity over product lines
_CLASSIC = 0.1  # demand for a classic, as a share of a fashion's peak
_BASKET_SHARE = 0.12  # of rows have the same second as the previous row
_STAY_ON = 0.6  # of the others follow within minutes; then the customer is away for days
_REPEAT = 0.03  # of rows repeat an earlier purchase
_VISIT = _DAY / 4  # older rows belong to another visit
_LOOK_BACK = 0.75  # chance that a row follows from an earlier row than this one
_FOLLOW, _FOLLOW_DAYS = 0.7, 1  # chance of a companion of that row, and its decay
_STAY, _STAY_DAYS = 0.9, 4  # likewise for any item of that row's category
_HOME_AGAIN = 0.15  # of the others are of the customer's first category

_USERS, _LENGTHS, _PLACES, _FAME, _BIRTH, _RISE = range(1, 7)  # streams of random numbers


# -- the catalogue ---------------------------------------------------------------------------------

_SHOP: dict[str, Any] = tomllib.loads((files(__package__) / "catalogue.toml").read_text("utf-8"))
_CATEGORIES: dict[str, dict[str, Any]] = _SHOP["categories"]
_N_WORDS = 12  # in each list of words


def _draw_line_starts(items: int) -> Array:
    """Return the number of the first product line of each category, then the number of lines.

    A product line is a series of ten items of one category; lines are numbered category by
    category. `items` is the number of items. There is a category for every four lines, up to those
    of the catalogue file.
    """
    lines = -(-items // _LINE)
    categories = min(max(lines // 4, 1), len(_CATEGORIES))
    return np.arange(categories + 1) * lines // categories


def _draw_demand(seed: np.uint64, starts: Array) -> Array:
    """Return the demand for each product line over time, as running sums: slots x (lines + 1).

    A slot is a 24th of the two years (a month). A product line is a series of ten items; the lines
    of category c are starts[c]..starts[c + 1]. Demand is popularity (Zipf) times fashion: a line
    sells nothing before its launch, most at its peak, then less and less. One in four is a classic
    that always sells, as is the first of each category.
    """
    lines, days = int(starts[-1]), _SPAN / _DAY
    rank = np.argsort(hash_numbers(seed, _FAME, lines)).argsort()
    fame = (1.0 + rank) ** -_ZIPF
    birth = (1.5 * hash_uniforms(seed, _BIRTH, lines) - 0.5) * days
    rise = 20 + 60 * hash_uniforms(seed, _RISE, lines)
    classic = (np.arange(lines) - np.repeat(starts[:-1], np.diff(starts))) % 4 == 0
    sums = np.zeros((_SLOTS, lines + 1))
    for slot in range(_SLOTS):
        age = np.maximum((slot + 0.5) * days / _SLOTS - birth, 0) / rise
        fashion = np.where(classic, _CLASSIC, age * np.exp(1 - age))
        np.cumsum(fame * fashion, out=sums[slot, 1:])
    return sums


def _describe_items(line: Array, kind: Array, starts: Array) -> pl.DataFrame:
    """Return the item table of the items 1, 2, ...: item_id, title, category.

    `line` and `kind` are each item's product line and its position in that line; the product lines
    of category c are starts[c]..starts[c + 1]. Titles combine two words of the line's name, the
    kind of item and, in later editions, "Mk 2".
    """
    category = np.searchsorted(starts, line, side="right") - 1
    edition, name = np.divmod(line - starts[category], _N_WORDS**2)
    second, first = np.divmod(name, _N_WORDS)
    second = (first + second) % _N_WORDS  # so that consecutive lines share no word
    words = [_SHOP["words"][category["words"]] for category in _CATEGORIES.values()]
    parts = pl.DataFrame(
        {
            columns.ITEM: np.arange(1, len(line) + 1),
            "first": _pick([lists["first"] for lists in words], category, first),
            "second": _pick([lists["second"] for lists in words], category, second),
            "kind": _pick([shelf["items"] for shelf in _CATEGORIES.values()], category, kind),
            "edition": pl.Series(edition + 1),
            "category": pl.Series(list(_CATEGORIES)).gather(category),
        }
    )
    title = pl.concat_str("first", "second", "kind", separator=" ")
    later = pl.format("{} Mk {}", title, "edition")
    title = pl.when(pl.col("edition") > 1).then(later).otherwise(title)
    return parts.select(columns.ITEM, title.alias("title"), "category")


def _pick(shelves: list[list[str]], category: Array, position: Array) -> pl.Series:
    """Return, for each item, the word shelves[category][position].

    `shelves` has a list of words per category, all of one length; `category` and `position` have an
    entry per item.
    """
    flat = pl.Series([word for shelf in shelves for word in shelf])
    return flat.gather(category * len(shelves[0]) + position)


# -- the customers ---------------------------------------------------------------------------------


def _draw_row_starts(seed: np.uint64, rows: int, users: int) -> Array:
    """Return the first row of each user, then the number of rows (users + 1 entries).

    Each of the `users` users has one row; the rest of the `rows` rows is distributed by long-tailed
    random weights that follow from `seed`.
    """
    weight = hash_uniforms(seed, _LENGTHS, users) ** (-1 / 3.5) - 1
    share = np.cumsum(np.minimum(weight, 50 * weight.mean()))
    ends = np.floor(share * ((rows - users) / share[-1])).astype(np.int64)
    ends[-1] = rows - users
    return np.concatenate([[0], ends + np.arange(1, users + 1)])


@kernel
def _write_times(state: Array, time: Array) -> None:
    """Write one user's times, ascending, in seconds from the start of the log, to `time`.

    `state` is the random generator's; the number of rows is the length of `time`. A row follows the
    previous one in the same second (a basket), within minutes, or, after days away, at the user's
    own random pace. `time` first holds the gaps between rows, then their sums, shrunk to fit the
    log's two years.
    """
    normal = draw_uniform(state) + draw_uniform(state) + draw_uniform(state) - 1.5
    pace = _DAY * 14 * math.exp(1.2 * normal)
    pace = min(pace, 0.6 * _SPAN / (1 + (1 - _STAY_ON) * len(time)))
    total = 0
    time[0] = 0
    for r in range(1, len(time)):
        if draw_uniform(state) < _BASKET_SHARE:
            gap = 0.0
        elif draw_uniform(state) < _STAY_ON:
            gap = 5 + min(draw_long_tailed(state, 100.0, 2.5), 1800.0)
        else:
            gap = 0.3 * _DAY + draw_long_tailed(state, pace, 2.2)
        time[r] = int(gap)
        total += time[r]
    shrink = min(1.0, (_SPAN - 1) / max(total, 1))
    when = int(draw_uniform(state) * (_SPAN - total * shrink))
    for r in range(len(time)):
        when += int(time[r] * shrink)
        time[r] = when


@kernel
def _draw_popular(state: Array, sums: Array, lo: int, hi: int, items: int) -> int:
    """Return a random item of product lines lo..hi: a line by demand, then an early item.

    A line is a series of ten consecutive items. `state`: the random generator's; `sums`: running
    sums of demand by line (lines + 1); `items`: the number of all items.
    """
    mark = sums[lo] + draw_uniform(state) * (sums[hi] - sums[lo])
    line: int = lo + np.searchsorted(sums[lo + 1 : hi], mark, side="right")
    size = min(_LINE, items - line * _LINE)
    return line * _LINE + int(size * draw_uniform(state) ** 2)


@kernel
def _draw_from_category(state: Array, previous: int, sums: Array, starts: Array, items: int) -> int:
    """Return a random item, by demand, of the same category as the item `previous`.

    A category is a range of product lines, each ten consecutive items. `state`: the random
    generator's; `sums`: running sums of demand by line; `starts`: the first line of each category,
    then the number of lines; `items`: the number of all items.
    """
    category = np.searchsorted(starts, previous // _LINE, side="right") - 1
    return _draw_popular(state, sums, starts[category], starts[category + 1], items)


@kernel
def _draw_companion(state: Array, last: int, items: int) -> int:
    """Return a random item after `last` in its product line (cyclic), most likely the next.

    A line is a series of ten consecutive items. `state`: the random generator's; `items`: the
    number of all items.
    """
    line = last // _LINE
    size = min(_LINE, items - line * _LINE)
    ahead = 1 + int(8 * draw_uniform(state) ** 2)  # the next one in 35 of 100 cases
    return line * _LINE + (last - line * _LINE + ahead) % size


@kernel
def _draw_anchor(state: Array, time: Array, r: int) -> int:
    """Return the row that row r follows from: the previous, or an earlier one of the visit.

    `time` has the user's times in seconds, ascending. The visit consists of the rows less than a
    quarter of a day before row r. `state` is the random generator's.
    """
    s = r - 1
    while s > 0 and time[r] - time[s - 1] < _VISIT and draw_uniform(state) < _LOOK_BACK:
        s -= 1
    return s


@kernel
def _draw_item(
    state: Array, first: int, previous: int, gap: float, sums: Array, starts: Array, items: int
) -> int:
    """Return the item that a customer buys `gap` days after the item `previous`.

    The shorter the gap, the likelier an item that follows `previous` in its product line, or an
    item of its category; else one of the category of `first`, the customer's first item, or any
    item by demand. `state`: the random generator's; `sums`: running sums of demand by line;
    `starts`: the first line of each category, then the number of lines; `items`: the number of all
    items.
    """
    chance = draw_uniform(state)
    if chance < _FOLLOW * math.exp(-gap / _FOLLOW_DAYS):
        return _draw_companion(state, previous, items)
    if chance < _STAY * math.exp(-gap / _STAY_DAYS):
        return _draw_from_category(state, previous, sums, starts, items)
    if draw_uniform(state) < _HOME_AGAIN:
        return _draw_from_category(state, first, sums, starts, items)
    return _draw_popular(state, sums, 0, starts[-1], items)


@kernel
def _write_items(
    state: Array, time: Array, starts: Array, demand: Array, items: int, item: Array
) -> None:
    """Write one user's items, numbered along the product lines, to `item`, given their times.

    state: of the random generator
    time: in seconds from the start of the log, ascending
    starts: the first product line of each category, then the number of lines
    demand: running sums of demand, by slot (a 24th of the log's two years) and line
    items: the number of all items

    A few rows repeat an earlier item of the user.
    """
    item[0] = _draw_popular(state, demand[time[0] * _SLOTS // _SPAN], 0, starts[-1], items)
    for r in range(1, len(time)):
        if draw_uniform(state) < _REPEAT:
            item[r] = item[int(draw_uniform(state) * r)]
            continue
        sums = demand[time[r] * _SLOTS // _SPAN]
        for _ in range(4):  # tries to find something that the customer did not just buy
            s = _draw_anchor(state, time, r)
            gap = (time[r] - time[s]) / _DAY
            item[r] = _draw_item(state, item[0], item[s], gap, sums, starts, items)
            if item[r] not in item[max(r - 30, 0) : r]:
                break


class _Shop(NamedTuple):
    """The items of the synthetic shop, in product lines of ten, and the demand for the lines.

    Items are numbered along the lines, lines category by category.
    """

    starts: Array  # the first line of each category, then the number of lines
    demand: Array  # running sums of the lines' demand, slots (months) x (lines + 1)
    position: Array  # of each item in the log's vocabulary


@kernel
def _write_users(
    a: int, b: int, seed: np.uint64, ptr: Array, shop: _Shop, item: Array, time: Array
) -> None:
    """Write items (positions in the vocabulary) and times (microseconds) of users a..b.

    User u has rows ptr[u]..ptr[u + 1] of `item` and `time`; random numbers depend on `seed` and u.
    `shop` has the product lines' categories and demand, and each item's position.
    """
    starts, demand, position = shop
    state = np.empty(1, np.uint64)
    for u in range(a, b):
        state[0] = mix_bits(
            mix_bits(mix_bits(seed) + np.uint64(_USERS) * STEP) + np.uint64(u) * STEP
        )
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
    """Return the log of a synthetic shop in 2023 and 2024; equal arguments give equal logs.

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
    check_count("rows", rows)
    users = max(rows // 10, 1) if users is None else users
    items = max(rows // 20, 20) if items is None else items
    check_count("users", users)
    check_count("items", items)
    if users > rows:
        raise TalerecError(f"users is {users}, but {rows} rows are enough for {rows} users at most")
    return _generate(rows, users, items, np.uint64(int(seed) & 0xFFFF_FFFF_FFFF_FFFF), titles)


def check_count(name: str, value: int) -> None:
    """Raise TalerecError unless the parameter `name` has a whole number from 1 to MAX_ROWS."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MAX_ROWS:
        raise TalerecError(f"{name} is {value!r}; it takes a whole number from 1 to {MAX_ROWS:,}")


def _generate(rows: int, users: int, items: int, seed: np.uint64, titles: bool) -> Log:
    """Return the log of a synthetic shop with so many rows, users and items.

    Random numbers follow from `seed`; with `titles`, the log has an item table of titles and
    categories. Runs on all cores.
    """
    # Items stand in the log in an order of their own: an id says nothing of line or fame.
    order = np.argsort(hash_numbers(seed, _PLACES, items))
    position = np.empty(items, np.int32)
    position[order] = np.arange(items, dtype=np.int32)
    starts = _draw_line_starts(items)
    shop = _Shop(starts, _draw_demand(seed, starts), position)
    ptr = _draw_row_starts(seed, rows, users)
    item, time = np.empty(rows, np.int32), np.empty(rows, np.int64)
    chunks = balanced_chunks(ptr, _CHUNKS)
    run_chunks("synthetic", lambda a, b: _write_users(a, b, seed, ptr, shop, item, time), chunks)
    info = _describe_items(*np.divmod(order, _LINE), starts) if titles else None
    return Log(ptr, item, time, number_vocabulary(users), number_vocabulary(items), info)


def number_vocabulary(n: int) -> Vocabulary:
    """Return the vocabulary of the integer ids 1 to n, in this order."""
    return Vocabulary(pl.Series(np.arange(1, n + 1)))
