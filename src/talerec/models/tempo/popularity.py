"""What is popular, moment by moment: memories of different length, in snapshots.

A row's weight in a memory falls to 1/e while the log grows by so many rows: the busier the log, the shorter the time that
it remembers. All memories of a model together take no more entries than one of them did alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.models.core import checks
from talerec.runtime.arrays import Array, Matrix, readonly
from talerec.runtime.jit import kernel, template
from talerec.runtime.lazy import sparse
from talerec.runtime.threads import even, run_chunks

_TOP = 300  # items that a snapshot keeps
_STEP = 0.25  # rows between snapshots, as a share of those in which a row's weight falls to 1/e
_WIDE_STEP = 0.5  # the same, where there are several memories
_SNAPSHOTS = 1024  # the most that are taken of one memory alone
_FEWEST_ROWS = 16.0  # that a memory lasts
_FEWEST_ITEMS = 64  # that a snapshot keeps, where many snapshots share the room
_WINDOW = 5.0  # times the rows that a memory lasts, beyond which it has forgotten
_LARGEST = 1e200  # weight of a row, at which all weights are made smaller
_HALVINGS = 16  # of the range of values, to find the largest

#: How long the memories are that a log may choose from, as multiples of `span`. One of them is `span` itself.
LENGTHS = (1 / 128, 1 / 16, 1.0, 8.0)
USUAL = LENGTHS.index(1.0)


class Memories(NamedTuple):
    """Snapshots of some memories on top of each other: those of memory m are rows ptr[m]..ptr[m+1].

    shares    snapshot x item (CSR): the share of each item in what was popular
    moments   when each was taken, ascending within a memory
    ptr       where the snapshots of each memory begin
    lifetime  microseconds that the rows of each memory took in the end; infinite for those that do not age
    """

    shares: Matrix
    moments: Array
    ptr: Array
    lifetime: Array

    def latest(self, histories: Histories) -> Array:
        """The last snapshot of each memory (column) strictly before each history (row) is asked about; -1 where there is none."""
        found, now = np.empty((len(histories), len(self.ptr) - 1), np.int64), histories.now
        assert now is not None
        for m, (a, b) in enumerate(pairwise(self.ptr)):
            at = np.searchsorted(self.moments[a:b], now, side="left") - 1
            found[:, m] = np.where(at >= 0, a + at, -1)
        return found

    def worth(self, histories: Histories, end: int) -> Array:
        """What is left of each memory of rows up to `end` when a history is asked about: a short one ages soon."""
        assert histories.now is not None
        age = np.maximum(histories.now[:, None] - end, 0)
        left: Array = 1.0 / (1.0 + age / self.lifetime)
        return left

    def arrays(self) -> dict[str, Array]:
        """What an artifact keeps beside the shares."""
        ages = np.where(np.isfinite(self.lifetime), self.lifetime, 0.0)
        return {"moments": self.moments, "memories": self.ptr, "lifetime": ages}

    @classmethod
    def restored(cls, shares: Matrix, arrays: dict[str, Array]) -> Memories:
        """What `arrays` gave; version 0.1 had one memory, which did not age."""
        moments = arrays["moments"]
        ptr = arrays.get("memories", np.array([0, len(moments)]))
        ages = arrays.get("lifetime", np.zeros(len(ptr) - 1))
        return cls(shares, moments, ptr, np.where(ages > 0, ages, np.inf))

    def check(self, snapshots: int) -> None:
        """Refuse what came from an artifact and does not lead to so many snapshots."""
        checks.bounds("memories", self.ptr, len(self.ptr) - 1, snapshots)
        checks.need(self.moments.shape == (snapshots,), "there are other moments than snapshots")
        checks.need(self.lifetime.shape == (len(self.ptr) - 1,), "lifetime has another length")
        for a, b in pairwise(self.ptr):
            mine = self.moments[a:b]
            checks.need((mine[1:] >= mine[:-1]).all(), "the moments of snapshots fall")

    def check_lengths(self, lengths: Array, usual: int) -> None:
        """Refuse lengths from an artifact that are not those of these memories; number `usual` is the usual one."""
        same = lengths.shape == self.lifetime.shape
        checks.need(same, "there are other lengths than memories")
        checks.need(lengths[usual] == 1, "the usual memory has another length than 1")
        checks.need(set(lengths.tolist()) <= set(LENGTHS), "lengths that no memory has")


class InTime(NamedTuple):
    """The rows of a log in the order of time: items and times."""

    item: Array
    time: Array
    items: int  # in all

    @classmethod
    def of(cls, log: Log) -> InTime:
        """The rows of a log; those of one moment in the order of users, and as they stand."""
        order = np.argsort(log.time, kind="stable")
        return cls(log.item[order], log.time[order], len(log.items))


def snapshots(rows: InTime, span: float) -> tuple[Matrix, Array]:
    """Shares of the items in what was popular, moment by moment (CSR, moment x item), and the moments.

    A row's weight falls to 1/e while the log grows by `span` rows for every item. A snapshot counts the rows up to its
    moment, and keeps the most popular items only.
    """
    (item, time, n), all_rows = rows, len(rows.item)
    lasting = max(span * n, 1.0)
    count = int(min(_SNAPSHOTS, all_rows, max(all_rows / (_STEP * lasting), 1)))
    cuts = _cuts(all_rows, count)
    total, a, kept = np.zeros(n), 0, []
    for b in cuts:
        total *= np.exp((a - b) / lasting)
        total += np.bincount(item[a:b], np.exp((np.arange(a, b) + 1 - b) / lasting), n)
        kept.append(_largest(total / total.sum()))
        a = b
    return sparse.vstack(kept, format="csr"), time[cuts - 1]


def memories(
    rows: InTime, span: float, lengths: Sequence[float], *, share: bool = True
) -> Memories:
    """A memory for each length, a multiple of `span`; where they share, together they take the room of one."""
    if tuple(lengths) == (1.0,):
        shares, moments = snapshots(rows, span)
        return Memories(shares, moments, np.array([0, len(moments)]), np.array([np.inf]))
    (item, time, n), all_rows = rows, len(rows.item)
    room = _SNAPSHOTS * _TOP // (len(lengths) if share else 1)
    parts: list[Matrix] = [None] * len(lengths)
    taken: list[Array] = [_START] * len(lengths)
    lifetimes = np.empty(len(lengths))

    def remember(m: int, _: int) -> None:
        lasting = max(lengths[m] * span * n, _FEWEST_ROWS)
        most = min(all_rows / (_WIDE_STEP * lasting), room / _FEWEST_ITEMS, all_rows)
        cuts = _cuts(all_rows, int(max(most, 1)))
        found = _recent_shares(readonly(item), cuts, lasting, min(_TOP, room // len(cuts)), n)
        parts[m] = sparse.csr_array(found, shape=(len(cuts), n))
        taken[m] = time[cuts - 1]
        took = max(int(time[-1] - time[-min(int(lasting), all_rows)]), 1)
        lifetimes[m] = float(took) if lengths[m] < 1 else np.inf

    run_chunks("habits", remember, even(len(lengths), 1))
    bounds = np.concatenate([_START, np.cumsum([len(moments) for moments in taken])])
    shares = sparse.vstack(parts, format="csr")
    return Memories(shares, np.concatenate(taken), bounds, lifetimes)


_START = np.zeros(1, np.int64)


def _cuts(rows: int, count: int) -> Array:
    """So many numbers of rows, evenly spread, the last of them all rows."""
    return np.unique(np.linspace(0, rows, count + 1).astype(np.int64)[1:])


def _largest(shares: Array) -> Matrix:
    """The largest shares, as a sparse row."""
    best = np.arange(len(shares))
    if len(shares) > _TOP:
        best = np.sort(np.argpartition(-shares, _TOP)[:_TOP])
    best = best[shares[best] > 0]
    return sparse.csr_array(
        (shares[best].astype(np.float32), best.astype(np.int32), np.array([0, len(best)])),
        shape=(1, len(shares)),
    )


@kernel
def _recent_shares(
    item: Array, cuts: Array, lasting: float, top: int, items: int
) -> tuple[Array, Array, Array]:
    """The largest shares at each cut as compressed rows (values, items, bounds), of rows in the order of time.

    Rows gain weight as they come, instead of losing it as they go: nothing has to be touched twice.
    """
    total, listed = np.zeros(items), np.full(items, -1, np.int64)
    found, held = np.empty(items, np.int64), np.empty(items)
    values, indices = np.empty(len(cuts) * top, np.float32), np.empty(len(cuts) * top, np.int32)
    bounds, end, row = np.zeros(len(cuts) + 1, np.int64), 0, 0
    growth, weight, whole = np.exp(1.0 / lasting), 1.0, 0.0
    for s in range(len(cuts)):
        while row < cuts[s]:
            weight *= growth
            if weight > _LARGEST:
                total /= weight
                whole, weight = whole / weight, 1.0
            total[item[row]] += weight
            whole += weight
            row += 1
        seen = 0
        for r in range(max(0, row - int(_WINDOW * lasting)), row):
            if listed[item[r]] != s:
                listed[item[r]] = s
                found[seen], held[seen] = item[r], total[item[r]]
                seen += 1
        least = _least_of_largest(held[:seen], top)
        kept = np.sort(found[:seen][held[:seen] > least])
        for i in kept:
            values[end], indices[end] = total[i] / whole, i
            end += 1
        bounds[s + 1] = end
    return values[:end], indices[:end], bounds


@template
def _least_of_largest(values: Array, most: int) -> float:
    """A value that at most so many of these positive ones are larger than, and nearly so many are."""
    if len(values) <= most:
        return 0.0
    low, high = 0.0, values.max()
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        more = 0
        for value in values:
            more += value > middle
        if more > most:
            low = middle
        else:
            high = middle
    return float(high)
