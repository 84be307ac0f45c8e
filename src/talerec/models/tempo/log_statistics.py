"""What a log says of its users: how fast they are, and whether they repeat items."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.models.core import checks
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template

#: What a seen item loses where users do not repeat items: far more than any score, and exact in float64.
NEVER = -1000.0
_SELDOM = (
    0.01  # of the rows: with fewer repeats than this, seen items are not worth recommending again
)

_NEAR = 8  # simultaneous rows are compared where they are at most so many rows apart
_ENOUGH = 2**15  # pairs of them that are compared at most
_SURE = 5.0  # standard deviations by which their order has to differ from chance

_OCTAVES = 32  # places 0, 1-2, 3-6, ...: more than any history has


def check_arrays(known: dict[str, Array]) -> None:
    """Refuse arrays of an artifact that no log gives: weights by octave, and single numbers."""
    checks.need(known["repeats"].shape == (_OCTAVES,), f"repeats has not {_OCTAVES} weights")
    for name in ("decay", "joint"):
        checks.need(known[name].shape == (1,), f"{name} is not a single number")
    checks.need(known["decay"][0] > 0, "decay is not above 0")


class Habits(NamedTuple):
    """What a log says of its users."""

    interval: float  # from a row to the next one, in days
    joint: bool  # whether the order of simultaneous rows is chance
    repeats: Array  # see `repeat_weights`

    @property
    def does_repeat(self) -> bool:
        """Do people come back to what they had?"""
        return bool(self.repeats[0] > NEVER)


def interval(log: Log) -> float:
    """The median time from a user's row to the next one, in days, simultaneous rows aside; a day where there is none."""
    found = gaps(log)
    return in_days(float(np.median(found)) if found.size else None)


def gaps(log: Log) -> Array:
    """The times (microseconds) from users' rows to their next ones, simultaneous rows aside."""
    found = np.diff(log.time)
    found[log.ptr[1:-1][(log.ptr[1:-1] > 0) & (log.ptr[1:-1] < log.rows)] - 1] = (
        0  # the next row is another user's
    )
    return found[found > 0]


def in_days(median: float | None) -> float:
    """A median gap in days; a day where there is none."""
    return 1.0 if median is None else median / DAY


# -- simultaneous rows -----------------------------------------------------------------------------


def are_ordered(log: Log) -> bool:
    """Whether the order of a user's simultaneous rows says something, or is chance.

    Of n times that two items stood side by side at one instant, let them stand in one order d times more often than
    in the other. By chance d^2 is n on average, with variance 2n(n - 1); where their order is always the same it
    is n^2. They are ordered where the sum over all pairs is nearer to that, and far beyond chance.
    """
    return tell_order(*side_by_side(log), len(log.items))


def side_by_side(log: Log) -> tuple[Array, Array]:
    """Items of different rows of one user at one instant, in their order: those of the first users, and enough of them."""
    left, right = _side_by_side(log.ptr, log.time, log.item)
    return left, right


def tell_order(left: Array, right: Array, items: int) -> bool:
    """Whether the order of such pairs of items says something (see `are_ordered`); no more than enough are looked at."""
    left, right = left[:_ENOUGH], right[:_ENOUGH]
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, pair, count = np.unique(low * items + high, return_inverse=True, return_counts=True)
    more = np.bincount(pair, np.where(left < right, 1.0, -1.0))
    found = float((more**2).sum() - count.sum())
    most = float((count.astype(np.float64) ** 2).sum() - count.sum())
    return found > most / 2 and found > _SURE * np.sqrt(2 * most)


@template
def _instant_end(time: Array, r: int, end: int) -> int:
    """The row after those that follow row r at its instant, before row `end` and at most `_NEAR` rows away."""
    s = r + 1
    while s < min(end, r + 1 + _NEAR) and time[s] == time[r]:
        s += 1
    return s


@template
def _add_pairs(item: Array, r: int, end: int, left: Array, right: Array, found: int) -> int:
    """Write row r's item beside each other item of the rows up to `end`, while there is room; returns how many stand there."""
    for s in range(r + 1, end):
        if item[s] != item[r] and found < len(left):
            left[found], right[found] = item[r], item[s]
            found += 1
    return found


@kernel
def _side_by_side(ptr: Array, time: Array, item: Array) -> tuple[Array, Array]:
    """Pairs of different items of one user at one instant, at most `_NEAR` rows apart, in their order; enough of them."""
    left, right = np.empty(_ENOUGH, np.int64), np.empty(_ENOUGH, np.int64)
    found = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            end = _instant_end(time, r, ptr[u + 1])
            found = _add_pairs(item, r, end, left, right, found)
        if found == _ENOUGH:
            break
    return left[:found], right[:found]


# -- repeats ---------------------------------------------------------------------------------------


@template
def octave(place: int) -> int:
    """The octave of a place: places 0, 1-2, 3-6, 7-14, ... are octaves 0, 1, 2, 3, ..."""
    found, first = 0, 0
    while 2 * first + 1 <= place:
        found, first = found + 1, 2 * first + 1
    return found


def repeat_weights(log: Log) -> Array:
    """For each octave of places, the probability that the next row repeats the row at such a place.

    It is `NEVER` for all of them where less than one row in a hundred repeats anything.
    """
    return repeat_rates(*repeat_counts(log))


def repeat_counts(log: Log) -> tuple[Array, Array, int]:
    """Repeats by octave, the chances of one, and rows that could be one: those of parts of a log add up to those of the log."""
    hits, chances, rows = _repeats(log.ptr, log.item, len(log.items), _OCTAVES)
    return hits, chances, rows


def repeat_rates(hits: Array, chances: Array, rows: int) -> Array:
    """What `repeat_counts` says, as `repeat_weights`."""
    if hits.sum() < _SELDOM * rows or not rows:
        return np.full(_OCTAVES, NEVER)
    rates: Array = np.divide(hits, chances, out=np.zeros(_OCTAVES), where=chances > 0)
    return rates


@template
def _add_chances(chances: Array, earlier: int) -> None:
    """Count the places of `earlier` rows by octave."""
    o, first = 0, 0
    while first < earlier:
        chances[o] += min(earlier, 2 * first + 1) - first
        o, first = o + 1, 2 * first + 1


@kernel
def _repeats(ptr: Array, item: Array, items: int, octaves: int) -> tuple[Array, Array, int]:
    """Repeats by octave, pairs of a row and an earlier one by octave, and rows that have an earlier one."""
    hits, chances = np.zeros(octaves), np.zeros(octaves)
    user_of, last = np.full(items, -1, np.int64), np.empty(items, np.int64)
    rows = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            i = item[r]
            _add_chances(chances, r - ptr[u])
            rows += r > ptr[u]
            if user_of[i] == u:
                hits[octave(r - 1 - last[i])] += 1
            user_of[i], last[i] = u, r
    return hits, chances, rows
