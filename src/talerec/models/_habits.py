"""What a log says of its people: how fast they are, whether they come back, and what was popular when."""

from __future__ import annotations

import numpy as np

from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.runtime.arrays import Array, Matrix
from talerec.runtime.jit import kernel, template
from talerec.runtime.lazy import sparse

#: What a seen item loses where people do not come back: far more than any score, and exact in float64.
NEVER = -1000.0
_SELDOM = 0.01  # of the rows: fewer repeats than this are not worth the seen items in every list

_NEAR = 8  # rows within which simultaneous rows are compared,
_ENOUGH = 2**15  # so many pairs of them,
_SURE = 5.0  # and by how many standard deviations their order has to differ from chance

_OCTAVES = 32  # places 0, 1-2, 3-6, ...: more than any history has

_TOP = 300  # items that a snapshot keeps
_STEP = 0.25  # rows between snapshots, of those in which a row's weight falls to 1/e
_SNAPSHOTS = 1024  # at most


def interval(log: Log) -> float:
    """The median time from a user's row to the next one that is not simultaneous, in days; a day where none is."""
    gaps = np.diff(log.time)
    gaps[log.ptr[1:-1][(log.ptr[1:-1] > 0) & (log.ptr[1:-1] < log.rows)] - 1] = 0  # another user's
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) / DAY if gaps.size else 1.0


# -- simultaneous rows -----------------------------------------------------------------------------


def are_ordered(log: Log) -> bool:
    """Does the order of a user's simultaneous rows say something, or is it chance?

    Of n times that two items stood side by side at one instant, let them stand in one order d times more often than
    in the other. By chance d^2 is n on average, with variance 2n(n - 1); where their order is always the same it
    is n^2. They are ordered where the sum over all pairs is nearer to that, and far beyond chance.
    """
    left, right = _side_by_side(log.ptr, log.time, log.item)
    low, high = np.minimum(left, right), np.maximum(left, right)
    _, pair, count = np.unique(low * len(log.items) + high, return_inverse=True, return_counts=True)
    more = np.bincount(pair, np.where(left < right, 1.0, -1.0))
    found = float((more**2).sum() - count.sum())
    most = float((count.astype(np.float64) ** 2).sum() - count.sum())
    return found > most / 2 and found > _SURE * np.sqrt(2 * most)


@kernel
def _side_by_side(ptr: Array, time: Array, item: Array) -> tuple[Array, Array]:
    """Different items of one user at one instant, at most `_NEAR` rows apart, in their order; enough of them."""
    left, right = np.empty(_ENOUGH, np.int64), np.empty(_ENOUGH, np.int64)
    found = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            s = r + 1
            while s < min(ptr[u + 1], r + 1 + _NEAR) and time[s] == time[r]:
                if item[s] != item[r]:
                    left[found], right[found] = item[r], item[s]
                    found += 1
                    if found == _ENOUGH:
                        return left, right
                s += 1
    return left[:found], right[:found]


# -- repeats ---------------------------------------------------------------------------------------


@template
def octave(place: int) -> int:
    """Places fall into octaves: 0, 1-2, 3-6, 7-14, ..."""
    found, first = 0, 0
    while 2 * first + 1 <= place:
        found, first = found + 1, 2 * first + 1
    return found


def repeat_weights(log: Log) -> Array:
    """For each octave of places, how often the next row repeats the row at such a place: a probability.

    Where less than one row in a hundred repeats anything, it is `NEVER` for all.
    """
    hits, chances, rows = _repeats(log.ptr, log.item, len(log.items), _OCTAVES)
    if hits.sum() < _SELDOM * rows or not rows:
        return np.full(_OCTAVES, NEVER)
    rates: Array = np.divide(hits, chances, out=np.zeros(_OCTAVES), where=chances > 0)
    return rates


@kernel
def _repeats(ptr: Array, item: Array, items: int, octaves: int) -> tuple[Array, Array, int]:
    """Repeats by octave, pairs of a row and an earlier one by octave, and rows that have an earlier one."""
    hits, chances = np.zeros(octaves), np.zeros(octaves)
    user_of, last = np.full(items, -1, np.int64), np.empty(items, np.int64)
    rows = 0
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            earlier, i = r - ptr[u], item[r]
            o, first = 0, 0
            while first < earlier:
                chances[o] += min(earlier, 2 * first + 1) - first
                o, first = o + 1, 2 * first + 1
            rows += earlier > 0
            if user_of[i] == u:
                hits[octave(r - 1 - last[i])] += 1
            user_of[i], last[i] = u, r
    return hits, chances, rows


# -- what is popular now ---------------------------------------------------------------------------


def snapshots(log: Log, span: float) -> tuple[Matrix, Array]:
    """Shares of the items in what was popular, moment by moment (CSR, moment x item), and the moments.

    A row's weight falls to 1/e while the log grows by `span` rows for every item: the busier the log, the
    shorter its memory. A snapshot knows the rows up to its moment, and keeps its first items only.
    """
    order = np.argsort(log.time, kind="stable")
    time, item, n = log.time[order], log.item[order], len(log.items)
    lasting = max(span * n, 1.0)
    count = int(min(_SNAPSHOTS, log.rows, max(log.rows / (_STEP * lasting), 1)))
    cuts = np.unique(np.linspace(0, log.rows, count + 1).astype(np.int64)[1:])
    total, a, kept = np.zeros(n), 0, []
    for b in cuts:
        total *= np.exp((a - b) / lasting)
        total += np.bincount(item[a:b], np.exp((np.arange(a, b) + 1 - b) / lasting), n)
        kept.append(_first(total / total.sum()))
        a = b
    return sparse.vstack(kept, format="csr"), time[cuts - 1]


def _first(shares: Array) -> Matrix:
    """The largest shares, as a sparse row."""
    best = np.arange(len(shares))
    if len(shares) > _TOP:
        best = np.sort(np.argpartition(-shares, _TOP)[:_TOP])
    best = best[shares[best] > 0]
    return sparse.csr_array(
        (shares[best].astype(np.float32), best.astype(np.int32), np.array([0, len(best)])),
        shape=(1, len(shares)),
    )
