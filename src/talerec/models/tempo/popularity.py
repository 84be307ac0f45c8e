"""Popularity over time: decayed item shares at several horizons, as snapshots.

At a horizon, an event's weight falls to 1/e while the log grows by a number of rows, so that a busy
log forgets in less time. All horizons together store no more entries than a single one may.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from talerec.data import Histories, Log
from talerec.models.core import check_indptr, require
from talerec.runtime import (
    Array,
    Matrix,
    as_readonly,
    kernel,
    run_chunks,
    sized_chunks,
    sort_indices,
    sparse,
    template,
)

_TOP_ITEMS = 300  # items that a snapshot stores at most
_STEP = 0.25  # rows between snapshots, as a share of the rows in which a weight falls to 1/e
_WIDE_STEP = 0.5  # the same, with several horizons
_MAX_SNAPSHOTS = 1024  # of a single horizon
_MIN_DECAY_ROWS = 16.0
_MIN_ITEMS = 64  # items per snapshot, where many snapshots share the room
_WINDOW = 5.0  # decay lengths after which an event is forgotten
_MAX_WEIGHT = 1e200  # of an event, at which all weights are rescaled
_BISECTIONS = 16  # steps to find the smallest of the largest values

#: Horizons that validation chooses from, as multiples of tempo's parameter `span`.
HORIZONS: tuple[float, ...] = (1 / 128, 1 / 16, 1.0, 8.0)
DEFAULT_HORIZON: int = HORIZONS.index(1.0)


class PopularitySnapshots(NamedTuple):
    """Item shares over time, at several horizons (how quickly events are forgotten).

    The snapshots of horizon m are rows indptr[m]..indptr[m + 1] of `shares`.

    shares    snapshot x item (CSR): the item's share of the decayed event weight
    times     when each snapshot was taken (microseconds), ascending within a horizon
    indptr    where the snapshots of each horizon begin
    lifetime  microseconds that the log's last rows took, as many as an event's weight falls
              to 1/e in, per horizon; infinite for horizons that do not age
    """

    shares: Matrix
    times: Array
    indptr: Array
    lifetime: Array

    def latest(self, histories: Histories) -> Array:
        """Return the number of the last snapshot before each request: request x horizon, or -1.

        Requests are histories with request times (`now`, microseconds). A snapshot is a row of
        `shares`, the popularity of items at one time; -1: there is none before the request.
        """
        now = histories.now
        assert now is not None
        latest = np.empty((len(histories), len(self.indptr) - 1), np.int64)
        for m, (a, b) in enumerate(pairwise(self.indptr)):
            at = np.searchsorted(self.times[a:b], now, side="left") - 1
            latest[:, m] = np.where(at >= 0, a + at, -1)
        return latest

    def freshness(self, histories: Histories, log_end: int) -> Array:
        """Return 1 / (1 + age / lifetime), request x horizon: how current popularity still is.

        age: from `log_end`, the time of the log's last row, to the request time of each history; 0
        for requests before the log's end. All times are microseconds. lifetime: what each horizon
        spans (infinite: freshness 1).
        """
        assert histories.now is not None
        age = np.maximum(histories.now[:, None] - log_end, 0)
        fresh: Array = 1.0 / (1.0 + age / self.lifetime)
        return fresh

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays, by name, that an artifact stores besides the shares.

        "moments": the times of snapshots (microseconds); "memories": where those of each horizon
        begin; "lifetime": microseconds per horizon, an infinite one as 0.
        """
        lifetime = np.where(np.isfinite(self.lifetime), self.lifetime, 0.0)
        return {"moments": self.times, "memories": self.indptr, "lifetime": lifetime}

    @classmethod
    def from_arrays(cls, shares: Matrix, arrays: dict[str, Array]) -> PopularitySnapshots:
        """Return the snapshots of an artifact, from its shares and the arrays of `to_arrays`.

        shares: snapshot x item, or None if only the arrays are needed. A missing "memories" is one
        horizon, a missing "lifetime" horizons that do not age, as in version 0.1.
        """
        times = arrays["moments"]
        indptr = arrays.get("memories", np.array([0, len(times)]))
        lifetime = arrays.get("lifetime", np.zeros(len(indptr) - 1))
        return cls(shares, times, indptr, np.where(lifetime > 0, lifetime, np.inf))

    def check(self, n_snapshots: int) -> None:
        """Raise TalerecError if the arrays, read from an artifact, do not fit `n_snapshots`.

        n_snapshots: rows of the stored shares. Each snapshot needs a time, each horizon a lifetime;
        times must ascend within each horizon.
        """
        n_horizons = len(self.indptr) - 1
        check_indptr("memories", self.indptr, n_horizons, n_snapshots)
        require(self.times.shape == (n_snapshots,), "moments has another length than snapshots")
        require(self.lifetime.shape == (n_horizons,), "lifetime has another length")
        for a, b in pairwise(self.indptr):
            times = self.times[a:b]
            require((times[1:] >= times[:-1]).all(), "moments of snapshots are not ascending")

    def check_horizons(self, horizons: Array, default: int) -> None:
        """Raise TalerecError if horizons, read from an artifact, are not of these snapshots.

        horizons: multiples of tempo's parameter `span`. default: the number of the horizon that
        must be 1.
        """
        has_same_size = horizons.shape == self.lifetime.shape
        require(has_same_size, "lengths and memories differ in number")
        require(horizons[default] == 1, "the default memory has another length than 1")
        require(set(horizons.tolist()) <= set(HORIZONS), "lengths has unsupported values")


class TimedRows(NamedTuple):
    """The rows of all users of a log, ordered by time: an entry per row in both arrays.

    item: positions in the vocabulary, 0 to n_items - 1. time: microseconds.
    """

    item: Array
    time: Array
    n_items: int

    @classmethod
    def from_log(cls, log: Log) -> TimedRows:
        """Return the rows of a log ordered by time, over all users.

        Rows with equal times keep the order of the log.
        """
        order = np.argsort(log.time, kind="stable")
        return cls(log.item[order], log.time[order], len(log.items))


def log_popularity(counts: Array) -> Array:
    """Return the log of each item's count, minus its mean over items with events; 0 without.

    counts: the (weighted) rows of each item; counts below 1 are taken as 1.
    """
    logs = np.log(np.maximum(counts, 1.0))
    has_events = counts > 0
    mean = logs[has_events].mean() if has_events.any() else 0.0
    centered: Array = np.where(has_events, logs - mean, 0.0)
    return centered


def build_default_horizon(rows: TimedRows, span: float) -> tuple[Matrix, Array]:
    """Return the item shares (CSR, snapshot x item) at the default horizon, and their times.

    rows: all rows of a log in time order. An event's weight falls to 1/e while the log grows by
    `span` rows per item. A snapshot counts the rows up to its time (microseconds), and stores the
    300 most popular items only, each with its share of the weight of all items.
    """
    (item, time, n_items), n_rows = rows, len(rows.item)
    decay_rows = max(span * n_items, 1.0)
    count = int(min(_MAX_SNAPSHOTS, n_rows, max(n_rows / (_STEP * decay_rows), 1)))
    cuts = _spread_cuts(n_rows, count)
    total, a, snapshots = np.zeros(n_items), 0, []
    for b in cuts:
        # w_b(i) = w_a(i) e^((a - b) / decay) + sum of e^((r + 1 - b) / decay), rows r of i in a..b
        total *= np.exp((a - b) / decay_rows)
        total += np.bincount(item[a:b], np.exp((np.arange(a, b) + 1 - b) / decay_rows), n_items)
        snapshots.append(_top_shares(total / total.sum()))
        a = b
    return sparse.vstack(snapshots, format="csr"), time[cuts - 1]


def build_snapshots(
    rows: TimedRows, span: float, horizons: Sequence[float], *, share_room: bool = True
) -> PopularitySnapshots:
    """Return snapshots of items' popularity over time, at each horizon.

    rows: all rows of a log in time order. horizons: multiples of `span`; at a horizon, an event's
    weight falls to 1/e while the log grows by that many rows per item. Those below 1 age after the
    log's end: their lifetime is finite. The horizon 1 alone is built as `build_default_horizon`
    does. share_room: all horizons together store no more entries than one alone may.
    """
    if tuple(horizons) == (1.0,):
        shares, times = build_default_horizon(rows, span)
        indptr = np.array([0, len(times)])
        return PopularitySnapshots(shares, times, indptr, np.array([np.inf]))
    (item, time, n_items), n_rows = rows, len(rows.item)
    room = _MAX_SNAPSHOTS * _TOP_ITEMS // (len(horizons) if share_room else 1)
    shares_of: list[Matrix] = [None] * len(horizons)
    times_of: list[Array] = [_ZERO] * len(horizons)
    lifetime = np.empty(len(horizons))

    def build(m: int, _: int) -> None:
        """Take the snapshots of horizon number m; write them to the lists above.

        Snapshots lie at evenly spread rows (`cuts`). The second argument, the end of the chunk of
        horizons, is not used: chunks have one horizon.
        """
        decay_rows = max(horizons[m] * span * n_items, _MIN_DECAY_ROWS)
        count = min(n_rows / (_WIDE_STEP * decay_rows), room / _MIN_ITEMS, n_rows)
        cuts = _spread_cuts(n_rows, int(max(count, 1)))
        top = min(_TOP_ITEMS, room // len(cuts))
        csr = _decayed_shares(as_readonly(item), cuts, decay_rows, top, n_items)
        shares_of[m] = sparse.csr_array(csr, shape=(len(cuts), n_items))
        times_of[m] = time[cuts - 1]
        duration = max(int(time[-1] - time[-min(int(decay_rows), n_rows)]), 1)
        lifetime[m] = float(duration) if horizons[m] < 1 else np.inf

    run_chunks("habits", build, sized_chunks(len(horizons), 1))
    indptr = np.concatenate([_ZERO, np.cumsum([len(times) for times in times_of])])
    shares = sparse.vstack(shares_of, format="csr")
    return PopularitySnapshots(shares, np.concatenate(times_of), indptr, lifetime)


_ZERO = np.zeros(1, np.int64)


def _spread_cuts(n_rows: int, count: int) -> Array:
    """Return `count` row numbers from 1 to `n_rows`, evenly spread, the last of them `n_rows`.

    Ascending, without duplicates: fewer than `count` if there are fewer rows.
    """
    return np.unique(np.linspace(0, n_rows, count + 1).astype(np.int64)[1:])


def _top_shares(shares: Array) -> Matrix:
    """Return the largest item shares (at most 300, above 0) as a sparse row, float32.

    shares: one number per item, dense. The result is a CSR array, 1 x items.
    """
    best = np.arange(len(shares))
    if len(shares) > _TOP_ITEMS:
        best = np.sort(np.argpartition(-shares, _TOP_ITEMS)[:_TOP_ITEMS])
    best = best[shares[best] > 0]
    csr = (shares[best].astype(np.float32), best.astype(np.int32), np.array([0, len(best)]))
    return sparse.csr_array(csr, shape=(1, len(shares)))


@kernel
def _decayed_shares(
    item: Array, cuts: Array, decay_rows: float, top: int, n_items: int
) -> tuple[Array, Array, Array]:
    """Return the largest decayed item shares at each cut as CSR (values, indices, indptr).

    A row of the CSR matrix (cut x item) is a snapshot: items' shares of the decayed weight of all
    rows before the cut. item: the item position of each row, in time order. cuts: numbers of rows,
    ascending. decay_rows: rows in which a weight falls to 1/e. top: most items per snapshot; only
    items of the last 5 decay_rows rows are listed. Row r weighs exp(r / decay_rows), which after
    normalization is a decay by age: weights grow with new rows, so that old weights stay untouched.
    """
    total, last_listed = np.zeros(n_items), np.full(n_items, -1, np.int64)
    recent, recent_total = np.empty(n_items, np.int64), np.empty(n_items)
    spare = np.empty(n_items, np.int32)
    values, indices = np.empty(len(cuts) * top, np.float32), np.empty(len(cuts) * top, np.int32)
    indptr, end, row = np.zeros(len(cuts) + 1, np.int64), 0, 0
    growth, weight, weight_sum = np.exp(1.0 / decay_rows), 1.0, 0.0
    for s in range(len(cuts)):
        while row < cuts[s]:
            weight *= growth
            if weight > _MAX_WEIGHT:
                for i in range(n_items):
                    total[i] /= weight
                weight_sum, weight = weight_sum / weight, 1.0
            total[item[row]] += weight
            weight_sum += weight
            row += 1
        count = 0
        for r in range(max(0, row - int(_WINDOW * decay_rows)), row):
            if last_listed[item[r]] != s:
                last_listed[item[r]] = s
                recent[count], recent_total[count] = item[r], total[item[r]]
                count += 1
        threshold, first = _top_threshold(recent_total[:count], top), end
        for c in range(count):
            if recent_total[c] > threshold:
                indices[end] = recent[c]
                end += 1
        sort_indices(indices[first:end], n_items, spare)
        for x in range(first, end):
            values[x] = total[indices[x]] / weight_sum
        indptr[s + 1] = end
    return values[:end], indices[:end], indptr


@template
def _top_threshold(values: Array, top: int) -> float:
    """Return a threshold that at most `top`, and nearly `top`, of the positive values exceed.

    0 if there are no more than `top` values. It is found by 16 bisections, so fewer values than
    `top` may exceed it, such as with ties.
    """
    if len(values) <= top:
        return 0.0
    low, high = 0.0, 0.0
    for value in values:
        high = max(high, value)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        count = 0
        for value in values:
            count += value > middle
        if count > top:
            low = middle
        else:
            high = middle
    return float(high)
