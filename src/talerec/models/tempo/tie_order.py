"""Whether the order of a user's simultaneous rows (equal times) carries information."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log
from talerec.runtime import Array, kernel, template

_MAX_DISTANCE = 8  # rows between two simultaneous rows whose order is compared
_MAX_PAIRS = 2**15  # pairs of simultaneous rows that are compared
_MIN_Z = 5.0  # standard deviations by which their order must differ from chance
#: Share of one order above chance; items that occur twice at one time cause some of it by chance.
_MIN_SHARE = 0.05
_MIN_PAIRS = 32  # pairs below which the order of item ids is not looked for
_SORTED_SHARE = 0.95  # of the pairs that ascend by item id where a file is sorted by it
_MIN_DRIFT = 0.05  # share of users' steps to larger ids minus that to smaller ones
MAX_FIRST_ROWS = 2**17  #: rows of a log in which these steps are counted
_MAX_NEIGHBOR_ROWS = 2**15  # rows of a log in which neighbours of one time are compared


class TieOrder(NamedTuple):
    """Whether the order of a user's simultaneous rows (ties) carries information, and why.

    Rows are simultaneous if their times are equal. reason: what the decision rests on, as the end
    of a message, such as ": item ids alone explain their order"; empty if the statistical tests of
    `classify_ties` decided. is_open: whether held-out queries may decide otherwise, because the
    order is neither chance nor explained by item ids.
    """

    is_ordered: bool
    reason: str = ""
    is_open: bool = False


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

    Simultaneous rows have equal times. Their order carries none if they are baskets, or if item ids
    alone, or chance, explain it; see `classify_ties`.
    """
    if log.has_baskets:
        return TieOrder(False, ": they are baskets")

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
    larger (smaller) ids, as where ids are given in the order in which items appear. Otherwise rows
    are ordered if pairs that occur several times keep their order in most cases
    (`measure_pair_order`). The result is open unless the order is chance: neither this test nor
    that of neighbours (`_measure_neighbors`) differs from it by 5 standard deviations.

    item_pairs: item positions of the earlier and the later row of two rows of one user with equal
    times. ids: item ids by position, in their natural order. first_rows: returns the first
    `MAX_FIRST_ROWS` rows of the log; it is called only if there are enough pairs.
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
    share, z = measure_pair_order(left, right, len(ids))
    if z > _MIN_Z and share > _MIN_SHARE:
        return TieOrder(share > 0.5, is_open=True)
    is_open = len(left) >= _MIN_PAIRS and _measure_neighbors(first_rows(), len(ids)) > _MIN_Z
    return TieOrder(False, is_open=is_open)


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


def measure_pair_order(left: Array, right: Array, n_items: int) -> tuple[float, float]:
    """Return how constant the order of item pairs (left, right) is: a share and a z-score.

    left, right: item positions of the earlier and the later of two rows of one user with equal
    times, one entry per pair; n_items: the number of items. For two items that occur simultaneously
    n times, let one order occur d times more often than the other. By chance E[d^2] = n, with
    variance 2n(n - 1); if the order is always the same, d^2 = n^2. The share is 0 by chance and 1
    if the order is always the same: the sum of d^2 - n over all pairs, relative to its largest
    value. The z-score has its standard deviations from chance. The first 2^15 pairs count; both
    results are 0 if no pair occurs twice.
    """
    left, right = left[:_MAX_PAIRS], right[:_MAX_PAIRS]
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, pair, n = np.unique(low * n_items + high, return_inverse=True, return_counts=True)
    d = np.bincount(pair, np.where(left < right, 1.0, -1.0))
    # sum (d^2 - n) against its largest value, sum (n^2 - n), and its deviation, sqrt(sum 2n(n - 1))
    excess = float((d**2).sum() - n.sum())
    max_excess = float((n.astype(np.float64) ** 2).sum() - n.sum())
    if not max_excess:
        return 0.0, 0.0
    return excess / max_excess, excess / float(np.sqrt(2 * max_excess))


def _measure_neighbors(rows: FirstRows, n_items: int) -> float:
    """Return a z-score: do related items stand next to each other among simultaneous rows?

    rows: log rows, by user and then by time, of which the first 2^15 count. n_items: the number of
    items. Two items are as related as the logarithm of the number of pairs of simultaneous rows (at
    most 8 apart) that have them. In a random order, neighbours are as related as all such pairs of
    their user and time. The z-score is that of the neighbours' excess; users are its units. 0 if
    all pairs are equally related.
    """
    user, time, item = (array[:_MAX_NEIGHBOR_ROWS] for array in rows)
    group = np.cumsum((np.diff(user, prepend=-1) != 0) | (np.diff(time, prepend=-1) != 0))
    earlier, distance = [], []
    for d in range(1, min(_MAX_DISTANCE, len(item) - 1) + 1):
        row = np.flatnonzero((group[:-d] == group[d:]) & (item[:-d] != item[d:]))
        earlier.append(row)
        distance.append(np.full(len(row), d))
    if not earlier:
        return 0.0
    row, apart = np.concatenate(earlier), np.concatenate(distance)
    left, right = item[row].astype(np.int64), item[row + apart].astype(np.int64)
    key = np.minimum(left, right) * n_items + np.maximum(left, right)
    _, pair, n = np.unique(key, return_inverse=True, return_counts=True)
    relation = np.log(n[pair])
    mean = np.bincount(group[row], relation) / np.maximum(np.bincount(group[row]), 1)
    by_user = np.bincount(user[row], (relation - mean[group[row]]) * (apart == 1))
    spread = float(np.sqrt(by_user @ by_user))
    return float(by_user.sum()) / spread if spread else 0.0


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
