"""Statistics of a log: median interval, repeat rates, order of simultaneous rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log
from talerec.models.core import require
from talerec.runtime import Array, kernel, template

#: Score of a seen item if users do not repeat items: far below any score, and exact in float64.
NEVER_REPEAT = -1000.0
_MIN_REPEAT_SHARE = 0.01  # share of repeats among rows below which seen items are not recommended

_MAX_DISTANCE = 8  # rows between two simultaneous rows whose order is compared
_MAX_PAIRS = 2**15  # pairs of simultaneous rows that are compared
_MIN_Z = 5.0  # standard deviations by which their order must differ from chance
_MIN_PAIRS = 32  # pairs below which the order of item ids is not looked for
_SORTED_SHARE = 0.95  # of the pairs that ascend by item id where a file is sorted by it
_MIN_DRIFT = 0.05  # share of users' steps to larger ids minus that to smaller ones
MAX_FIRST_ROWS = 2**17  #: rows of a log in which these steps are counted

_MAX_BUCKETS = 32  # lag buckets 0, 1-2, 3-6, ...: more than any history has


class LogStatistics(NamedTuple):
    """Statistics of a log that tempo's weights and queries depend on.

    Repeat rates are by lag bucket (0, 1-2, 3-6, ... rows back): the probability that the next row
    of a user repeats a row at such a lag; all -1000 if users hardly repeat items.
    """

    median_interval: float  # days from a user's row to the next one
    is_joint: bool  # rows of one user with equal times are treated as unordered
    repeat_rates: Array  # 32 probabilities, by lag bucket

    @property
    def has_repeats(self) -> bool:
        """Whether users repeat items: at least one row in a hundred with an earlier row does."""
        return allows_repeats(self.repeat_rates)


def check_arrays(arrays: dict[str, Array]) -> None:
    """Raise TalerecError if statistics, read from an artifact, have another shape or range.

    arrays, by name: "repeats" (32 repeat rates by lag bucket), "decay" (one number above 0: days in
    which a source's weight falls to 1/e) and "joint" (one flag: a user's rows with equal times are
    unordered).
    """
    is_complete = arrays["repeats"].shape == (_MAX_BUCKETS,)
    require(is_complete, f"repeats does not have {_MAX_BUCKETS} weights")
    for name in ("decay", "joint"):
        require(arrays[name].shape == (1,), f"{name} is not a single number")
    require(arrays["decay"][0] > 0, "decay is not above 0")


# -- simultaneous rows -----------------------------------------------------------------------------


class TieOrder(NamedTuple):
    """Whether the order of a user's simultaneous rows (ties) carries information, and why.

    Rows are simultaneous if their times are equal. reason: what the decision rests on, as the end
    of a message, such as ": item ids alone explain their order"; empty if the statistical test of
    `is_order_significant` decided.
    """

    is_ordered: bool
    reason: str = ""


class FirstRows(NamedTuple):
    """The first rows of a log, by user and then by time: three arrays with an entry per row.

    user: a number per user, ascending. time: microseconds. item: the item's position in the
    vocabulary.
    """

    user: Array
    time: Array
    item: Array


def find_tie_order(log: Log) -> TieOrder:
    """Return whether the order of a user's simultaneous rows carries information, and why.

    Simultaneous rows have equal times. Their order carries none if item ids alone, or chance,
    explain it; see `classify_ties`.
    """

    def first_rows() -> FirstRows:
        head = slice(0, MAX_FIRST_ROWS)
        return FirstRows(log.user_codes()[head], log.time[head], log.item[head])

    return classify_ties(simultaneous_pairs(log), log.items.ids, first_rows)


def classify_ties(
    item_pairs: tuple[Array, Array], ids: pl.Series, first_rows: Callable[[], FirstRows]
) -> TieOrder:
    """Return whether the order of simultaneous rows carries information, from pairs of items.

    Files are often sorted by item id. If 95 % of the pairs (at least 32) ascend or descend by id,
    as number or as text, the order is information only if users' later rows also tend to have
    larger (smaller) ids, as where ids are given in the order in which items appear. Otherwise
    `is_order_significant` decides.

    item_pairs: item positions of the earlier and the later row of two rows of one user with equal
    times. ids: item ids by position, in their natural order. first_rows: returns the first
    `MAX_FIRST_ROWS` rows of the log; it is called only if the pairs are sorted by id.
    """
    left, right = (items[:_MAX_PAIRS] for items in item_pairs)
    # positions follow ids as numbers, or as text if they are text
    keys: list[Callable[[Array], Array]] = [lambda item: item]
    if ids.dtype.is_integer() or ids.str.contains(r"^-?\d+$").all():
        keys.append(partial(_rank_as_text, ids))
    for key in keys if len(left) >= _MIN_PAIRS else ():
        earlier, later = np.split(key(np.concatenate([left, right])), 2)
        ascending = np.count_nonzero(earlier < later) / len(left)
        if max(ascending, 1 - ascending) >= _SORTED_SHARE:
            rows = first_rows()
            drift, z = _measure_drift(rows, key(rows.item))
            sign = 1 if ascending > 0.5 else -1
            if sign * drift > _MIN_DRIFT and sign * z > _MIN_Z:
                return TieOrder(True, ": by item id, which also grows over users' time")
            return TieOrder(False, ": item ids alone explain their order")
    return TieOrder(is_order_significant(left, right, len(ids)))


def _rank_as_text(ids: pl.Series, item: Array) -> Array:
    """Return the rank of each entry of `item` by its id as text; equal for equal items.

    Ranks ascend from 1. ids: the id of each item position. item: item positions, in which an item
    may occur several times.
    """
    distinct, inverse = np.unique(item, return_inverse=True)
    ranks: Array = ids.gather(distinct).cast(pl.String).rank("ordinal").to_numpy()[inverse]
    return ranks


def _measure_drift(rows: FirstRows, key: Array) -> tuple[float, float]:
    """Return the share of steps to larger keys minus that to smaller ones, and its z-score.

    rows: user, time and item of log rows, by user and then by time. key: a number of each row by
    which its item is ordered. A step is from a user's rows of one time to those of the next; one
    row of each time, chosen without regard to its key, stands for all. Users are the units of the
    z-score: the steps of a user are not independent. Both are 0 without steps.
    """
    starts = np.flatnonzero(np.diff(rows.user, prepend=-1) | np.diff(rows.time, prepend=-1))
    size = np.diff(starts, append=len(rows.user))
    scatter = (np.arange(len(starts), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> 40
    at = starts + (scatter % size.astype(np.uint64)).astype(np.int64)
    is_step = np.diff(rows.user[at]) == 0
    steps = np.sign(np.diff(key[at].astype(np.int64)))[is_step]
    by_user = np.bincount(rows.user[at[1:]][is_step], steps)
    spread = float(np.sqrt(by_user @ by_user))
    return float(steps.mean()) if len(steps) else 0.0, float(steps.sum()) / max(spread, 1.0)


def simultaneous_pairs(log: Log) -> tuple[Array, Array]:
    """Return item pairs (left before right) of one user at one time, at most 2^15 pairs.

    Two arrays of item positions, of equal length: the item of the earlier row of each pair in the
    log's order, and that of the later row. Only pairs of different items, at most 8 rows apart.
    """
    left, right = _simultaneous_pairs(log.ptr, log.time, log.item)
    return left, right


def is_order_significant(left: Array, right: Array, n_items: int) -> bool:
    """Return whether the order of item pairs (left before right) differs from chance.

    left, right: item positions of the earlier and the later of two rows of one user with equal
    times, one entry per pair; n_items: the number of items. For two items that occur simultaneously
    n times, let one order occur d times more often than the other. By chance E[d^2] = n, with
    variance 2n(n - 1); if the order is always the same, d^2 = n^2. The order is significant if the
    sum of d^2 over all pairs is nearer to the latter, and at least 5 standard deviations from
    chance. The first 2^15 pairs are tested.
    """
    left, right = left[:_MAX_PAIRS], right[:_MAX_PAIRS]
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, pair, n = np.unique(low * n_items + high, return_inverse=True, return_counts=True)
    d = np.bincount(pair, np.where(left < right, 1.0, -1.0))
    # sum (d^2 - n) against its largest value, sum (n^2 - n), and its deviation, sqrt(sum 2n(n - 1))
    excess = float((d**2).sum() - n.sum())
    max_excess = float((n.astype(np.float64) ** 2).sum() - n.sum())
    return bool(excess > max_excess / 2 and excess > _MIN_Z * np.sqrt(2 * max_excess))


@template
def _instant_end(time: Array, r: int, end: int) -> int:
    """Return the first row after row r with another time, but at most row r + 1 + 8.

    time: of each row of the log, ascending within a user. end: the end (excluded) of the user's
    rows, which the result does not exceed.
    """
    s = r + 1
    while s < min(end, r + 1 + _MAX_DISTANCE) and time[s] == time[r]:
        s += 1
    return s


@template
def _add_pairs(item: Array, r: int, end: int, left: Array, right: Array, count: int) -> int:
    """Append pairs of row r's item and the other items of rows r + 1 to end - 1.

    item: the item of each row. Writes row r's item to `left` and the other one to `right`, from
    entry `count` on, as far as they have room; rows with the item of row r are skipped. Returns the
    new count.
    """
    for s in range(r + 1, end):
        if item[s] != item[r] and count < len(left):
            left[count], right[count] = item[r], item[s]
            count += 1
    return count


@kernel
def _simultaneous_pairs(ptr: Array, time: Array, item: Array) -> tuple[Array, Array]:
    """Return pairs of different items of one user at one time, at most 2^15 pairs.

    The result is (left, right): items of the earlier and of the later row of each pair, which are
    at most 8 rows apart. User u has the rows ptr[u]..ptr[u + 1], which ascend in time
    (microseconds); item: the item position of each row.
    """
    left, right = np.empty(_MAX_PAIRS, np.int64), np.empty(_MAX_PAIRS, np.int64)
    count = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            end = _instant_end(time, r, ptr[u + 1])
            count = _add_pairs(item, r, end, left, right, count)
        if count == _MAX_PAIRS:
            break
    return left[:count], right[:count]


# -- repeats ---------------------------------------------------------------------------------------


@template
def lag_bucket(lag: int) -> int:
    """Return the bucket of a lag: lags 0, 1-2, 3-6, 7-14, ... are in buckets 0, 1, 2, 3, ...

    lag: how many rows lie between a row of a history and its end; 0 is the last row.
    """
    bucket, first = 0, 0
    while 2 * first + 1 <= lag:
        bucket, first = bucket + 1, 2 * first + 1
    return bucket


def measure_repeat_rates(log: Log) -> Array:
    """Return, by lag bucket, the probability that the next row repeats a row at such a lag.

    The lag is the number of the user's rows between the two; lag buckets are 0, 1-2, 3-6, ..., 32
    of them. All are `NEVER_REPEAT` (-1000) if fewer than one row in a hundred repeats an item of
    the same user.
    """
    return rates_from_counts(*repeat_counts(log))


def allows_repeats(rates: Array) -> bool:
    """Return whether repeat rates (by lag bucket) are those of users who repeat items.

    rates: as `measure_repeat_rates` returns them, not empty; for users who hardly repeat items, all
    of them are the constant `NEVER_REPEAT`, -1000.
    """
    return bool(rates[0] > NEVER_REPEAT)


def repeat_counts(log: Log) -> tuple[Array, Array, int]:
    """Return repeats by lag bucket, opportunities by lag bucket, and rows with an earlier row.

    A row is a repeat if its user had the item before; its lag counts the rows between it and the
    last row of that item (0: the row right before). Each row has an opportunity at every lag of an
    earlier row of the user: it could have repeated that row. Lag buckets are 0, 1-2, 3-6, ...; both
    arrays have 32 entries. If a log is divided by users, the counts of its divisions add up to
    those of the log.
    """
    hits, chances, n_rows = _repeat_counts(log.ptr, log.item, len(log.items))
    return hits, chances, n_rows


def rates_from_counts(hits: Array, chances: Array, n_rows: int) -> Array:
    """Return repeat rates by lag bucket, hits / chances, from the counts of `repeat_counts`.

    hits: repeats, by lag bucket (0, 1-2, 3-6, ... rows between a row and the row that it repeats).
    chances: by lag bucket, how often a row could have repeated one at such a lag. n_rows: rows with
    an earlier row of the same user. 0 where there was no chance; all rates are `NEVER_REPEAT`
    (-1000) if fewer than one such row in a hundred repeats an item.
    """
    if hits.sum() < _MIN_REPEAT_SHARE * n_rows or not n_rows:
        return np.full(_MAX_BUCKETS, NEVER_REPEAT)
    rates: Array = np.divide(hits, chances, out=np.zeros(_MAX_BUCKETS), where=chances > 0)
    return rates


@template
def _add_chances(chances: Array, n_earlier: int) -> None:
    """Add the opportunities of one row to repeat an earlier one to `chances`, in place.

    n_earlier: the number of the user's earlier rows; they have the lags 0 (the row right before) to
    n_earlier - 1. chances: by lag bucket (lags 0, 1-2, 3-6, ...), how many rows could have been
    repeated; each earlier row adds 1 to the bucket of its lag.
    """
    bucket, first = 0, 0
    while first < n_earlier:
        chances[bucket] += min(n_earlier, 2 * first + 1) - first
        bucket, first = bucket + 1, 2 * first + 1


@kernel
def _repeat_counts(ptr: Array, item: Array, n_items: int) -> tuple[Array, Array, int]:
    """Return repeats by lag bucket, opportunities by lag bucket, and rows with an earlier row.

    A row repeats its item's last row of the same user; its lag counts the rows between the two.
    Each earlier row of the user is an opportunity: it could have been repeated. Lag buckets are 0,
    1-2, 3-6, ...; both arrays have 32 entries. User u has the rows ptr[u]..ptr[u + 1], in time
    order; item: the item position (0 to n_items - 1) of each row.
    """
    hits, chances = np.zeros(_MAX_BUCKETS), np.zeros(_MAX_BUCKETS)
    user_of, last = np.full(n_items, -1, np.int64), np.empty(n_items, np.int64)
    n_rows = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            i = item[r]
            _add_chances(chances, r - ptr[u])
            n_rows += r > ptr[u]
            if user_of[i] == u:
                hits[lag_bucket(r - 1 - last[i])] += 1
            user_of[i], last[i] = u, r
    return hits, chances, n_rows
