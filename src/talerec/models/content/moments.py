"""TALE's G and K seen through item features: F'GF and F'KF, without an item x item matrix."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from talerec.data import DAY, Log
from talerec.gram import TaleWeighting, newest_rows, trend_scale
from talerec.runtime import Array, kernel, stage

_BATCH_ROWS = 16_384  # rows of the log whose sums are in memory at a time


class Moments(NamedTuple):
    """Sums over training examples, the rows after a user's first, through features F.

    A row of S has the weighted items before a row of the log, a row of T the item of that row.
    """

    gram: Array  # F'GF = (S F)'(S F), dimension x dimension
    cross: Array  # F'KF = (S F)'(T F)
    features: Array  # F'F over the items with rows


class SourceRows(NamedTuple):
    """The rows of a log as `sum_sources` reads them; user u has rows ptr[u]..ptr[u + 1]."""

    ptr: Array
    item: Array
    time: Array  # microseconds
    scale: Array  # factor of each row as a source


def sum_moments(log: Log, features: Array, weighting: TaleWeighting) -> Moments:
    """Return F'GF, F'KF and F'F for TALE's G = S'S and K = S'T of a log.

    features: F, item x dimension; items without rows do not count. A row of weight v counts v times
    as a target, and its entry as a source is multiplied by v.
    """
    has_rows = np.bincount(log.item, minlength=len(features)) > 0
    return Moments(
        *sum_pair_moments(log, features, weighting), sum_item_moments(features[has_rows])
    )


def sum_item_moments(features: Array) -> Array:
    """Return F'F, dimension x dimension. features: F of the items with rows, item x dimension."""
    values = features.astype(np.float64)
    moments: Array = values.T @ values
    return moments


def sum_pair_moments(log: Log, features: Array, weighting: TaleWeighting) -> tuple[Array, Array]:
    """Return F'GF and F'KF of a log, dimension x dimension; those of parts of a log add up.

    features: F, item x dimension. If the log has trend counts, they are those of the whole log.
    """
    log = newest_rows(log, weighting.max_history)
    trend = trend_scale(log, weighting.window, weighting.trend, weighting.trend_side)
    weight = np.ones(log.rows) if log.weight is None else log.weight
    rows = SourceRows(log.ptr, log.item, log.time, trend * weight)
    horizon = math.log(1 / weighting.floor) if weighting.floor else math.inf
    decay = weighting.decay * DAY
    bounds = (decay, min(horizon * decay, 2.0**62), weighting.floor)
    dims = features.shape[1]
    gram, cross = np.zeros((dims, dims)), np.zeros((dims, dims))
    tick = stage("moments", float(log.rows))
    for a, b in _user_batches(log.ptr):
        first, last = log.ptr[a], log.ptr[b]
        sources = np.zeros((last - first, dims))
        sum_sources(rows, a, b, features, bounds, weighting.same_time == "joint", sources)
        root = np.sqrt(weight[first:last])[:, None]
        targets = features[log.item[first:last]] * (root * trend[first:last, None])
        sources *= root
        gram += sources.T @ sources
        cross += sources.T @ targets
        tick(float(last - first))
    return gram, cross


def solve_bilinear(moments: Moments, reg: float, mu: float, reverse: float = 0.0) -> Array:
    """Return A = (F'GF + reg I)^-1 F'(K + reverse K')F (F'F + mu I)^-1, dimension x dimension.

    With reverse 0, A minimizes |S F A F' - T|^2 + reg |A F'|^2 + mu |S F A|^2 + reg mu |A|^2.
    """
    eye = np.eye(len(moments.gram))
    cross = moments.cross + reverse * moments.cross.T
    left = np.linalg.solve(moments.gram + reg * eye, cross)
    solution: Array = np.linalg.solve(moments.features + mu * eye, left.T).T
    return solution


def add_similarity(bilinear: Array, share: float) -> Array:
    """Return A + share r I, where r is the root of the mean square of A's singular values.

    Scores x F A F' become those of A plus `share` r times x F F', the similarity of an item's
    features with those of the history, which new items have like all others.
    """
    size = float(np.linalg.norm(bilinear)) / math.sqrt(len(bilinear))
    return bilinear + share * size * np.eye(len(bilinear))


def _user_batches(ptr: Array) -> list[tuple[int, int]]:
    """Return ranges of users (first, last + 1) with about 16,384 rows each.

    User u has rows ptr[u]..ptr[u + 1].
    """
    ends = np.arange(_BATCH_ROWS, ptr[-1] + _BATCH_ROWS, _BATCH_ROWS)
    bounds = np.unique(np.append(0, np.minimum(np.searchsorted(ptr, ends), len(ptr) - 1)))
    return [(int(a), int(b)) for a, b in pairwise(bounds)]


@kernel
def sum_sources(
    rows: SourceRows,
    first_user: int,
    last_user: int,
    features: Array,
    bounds: tuple[float, float, float],
    joint: bool,
    out: Array,
) -> None:
    """Write S F of the rows of some users to `out`: row x dimension, all 0 on entry.

    Entry l is the sum over the user's rows s before l of w(t_l - t_s) scale_s F_s, with w(d) =
    max(exp(-d / decay), floor) and F_s the features of the item of s. Users are
    `first_user` to `last_user` - 1. bounds: decay and horizon in microseconds (older rows have
    the weight floor), and floor. With `joint`, all other rows of a row's time are its sources, too.
    """
    decay, horizon, floor = bounds
    first = rows.ptr[first_user]
    n_dims = features.shape[1]
    near, far, same = np.zeros(n_dims), np.zeros(n_dims), np.zeros(n_dims)
    for u in range(first_user, last_user):
        near[:], far[:] = 0.0, 0.0
        begin, stop = rows.ptr[u], rows.ptr[u + 1]
        oldest = begin  # the first row that is in `near`, whose weights are exponentials
        r = begin
        while r < stop:
            end = r + 1
            while joint and end < stop and rows.time[end] == rows.time[r]:
                end += 1
            if r > begin:
                near *= math.exp(-(rows.time[r] - rows.time[r - 1]) / decay)
            while oldest < r and rows.time[r] - rows.time[oldest] > horizon:
                scale = rows.scale[oldest]
                weight = scale * math.exp(-(rows.time[r] - rows.time[oldest]) / decay)
                for f in range(n_dims):
                    value = features[rows.item[oldest], f]
                    near[f] -= weight * value
                    far[f] += floor * scale * value
                oldest += 1
            if oldest == r:
                near[:] = 0.0  # without rounding errors of what was subtracted
            same[:] = 0.0
            for q in range(r, end):
                for f in range(n_dims):
                    same[f] += rows.scale[q] * features[rows.item[q], f]
            for q in range(r, end):
                for f in range(n_dims):
                    out[q - first, f] = near[f] + far[f]
                    if end - r > 1:
                        out[q - first, f] += same[f] - rows.scale[q] * features[rows.item[q], f]
            for f in range(n_dims):
                near[f] += same[f]
            r = end
