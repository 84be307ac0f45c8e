"""Statistics of a log: median interval, repeat rates, order of simultaneous rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Log, basket_starts, median_interval
from talerec.models.core import require
from talerec.models.tempo.tie_order import TieOrder
from talerec.runtime import Array, kernel, template

#: Score of a seen item if users do not repeat items: far below any score, and exact in float64.
NEVER_REPEAT = -1000.0
_MIN_REPEAT_SHARE = 0.01  # share of repeats among rows below which seen items are not recommended

_MAX_BUCKETS = 32  # lag buckets 0, 1-2, 3-6, ...: more than any history has
#: Name of the array of repeat factors in an artifact.
REPEAT_FACTORS = "repeat_factors"
NO_FACTORS: Array = np.empty(0)
_PRIOR_REPEATS = 2.0  # repeats of every item at the mean rate, added to those of the log


class LogStatistics(NamedTuple):
    """Statistics of a log that tempo's weights and queries depend on.

    Repeat rates are by lag bucket (0, 1-2, 3-6, ... rows back): the probability that the next row
    of a user repeats a row at such a lag; all -1000 if users hardly repeat items.
    """

    median_interval: float  # days from a user's row to the next one
    tie_order: TieOrder  # whether rows of one user with equal times are ordered, and why
    repeat_rates: Array  # 32 probabilities, by lag bucket
    repeat_factors: Array = NO_FACTORS  # per item, see `measure_repeat_factors`; may be empty

    @classmethod
    def measure(cls, log: Log, tie_order: TieOrder) -> LogStatistics:
        """Return the statistics of a log; tie_order: of its simultaneous rows."""
        rates, factors = measure_repeat_rates(log), measure_repeat_factors(log)
        return cls(median_interval(log), tie_order, rates, factors)

    @property
    def is_joint(self) -> bool:
        """Whether rows of one user with equal times are treated as unordered."""
        return not self.tie_order.is_ordered

    @property
    def has_repeats(self) -> bool:
        """Whether users repeat items: at least one row in a hundred with an earlier row does."""
        return allows_repeats(self.repeat_rates)

    def to_arrays(self, decay: float) -> dict[str, Array]:
        """Return the arrays that an artifact stores, by name; see `check_arrays`.

        decay: days in which a source's weight falls to 1/e.
        """
        arrays = {
            "repeats": self.repeat_rates,
            "decay": np.array([decay]),
            "joint": np.array([self.is_joint]),
        }
        return arrays | ({REPEAT_FACTORS: self.repeat_factors} if len(self.repeat_factors) else {})


def read_repeat_factors(arrays: dict[str, Array]) -> Array:
    """Return the repeat factors among the arrays of an artifact; empty if it has none."""
    return arrays.get(REPEAT_FACTORS, NO_FACTORS)


def check_arrays(arrays: dict[str, Array], n_items: int) -> None:
    """Raise TalerecError if statistics, read from an artifact, have another shape or range.

    arrays, by name: "repeats" (32 repeat rates by lag bucket), "decay" (one number above 0: days in
    which a source's weight falls to 1/e) and "joint" (one flag: a user's rows with equal times are
    unordered). "repeat_factors", if it is there, has a number above 0 for each of `n_items` items.
    """
    is_complete = arrays["repeats"].shape == (_MAX_BUCKETS,)
    require(is_complete, f"repeats does not have {_MAX_BUCKETS} weights")
    for name in ("decay", "joint"):
        require(arrays[name].shape == (1,), f"{name} is not a single number")
    require(arrays["decay"][0] > 0, "decay is not above 0")
    factors = read_repeat_factors(arrays)
    is_fitting = factors.shape in ((0,), (n_items,)) and (factors > 0).all()
    require(bool(is_fitting), f"{REPEAT_FACTORS} are not {n_items} numbers above 0")


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


def measure_repeat_factors(log: Log) -> Array:
    """Return how much more often than others each item is bought again; empty without baskets.

    The factor of an item is (repeats + 2) / (expected repeats + 2). A repeat is a basket with an
    item that an earlier basket of the user has, too; every later basket is an opportunity, and
    expected are as many repeats as opportunities times the mean rate of all items.
    """
    if not log.has_baskets:
        return NO_FACTORS
    n_items, user = len(log.items), log.user_codes()
    basket = np.cumsum(basket_starts(log) == np.arange(log.rows))  # number of each row's basket
    key = np.unique(np.column_stack([user.astype(np.int64) * n_items + log.item, basket]), axis=0)
    pairs, first, count = np.unique(key[:, 0], return_index=True, return_counts=True)
    has_rows = np.diff(log.ptr) > 0
    last = np.zeros(len(log.users), np.int64)
    last[has_rows] = basket[log.ptr[1:][has_rows] - 1]
    n_chances = last[pairs // n_items] - key[first, 1]
    repeats = np.bincount(pairs % n_items, count - 1, n_items)
    chances = np.bincount(pairs % n_items, n_chances, n_items)
    expected = chances * (repeats.sum() / max(chances.sum(), 1))
    factors: Array = (repeats + _PRIOR_REPEATS) / (expected + _PRIOR_REPEATS)
    return factors


def scale_repeats(source: Array, weight: Array, n_items: int, factors: Array) -> None:
    """Multiply weights of repeats by the factors of their items, in place.

    source: rows of the stacked weights [B; I; P]; repeats have the numbers n_items + item. factors:
    per item; empty if all are 1.
    """
    if len(factors):
        at = np.flatnonzero((source >= n_items) & (source < 2 * n_items))
        weight[at] *= factors[source[at] - n_items]


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
