"""Measures for the paper's figures and Table 8: intervals, changes of genre, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import DAY, Log
from talerec.runtime import Array, is_sparse, sparse

#: Upper edges of the intervals, in days, and their names.
EDGES = (0.0, 1 / 24, 1.0, 7.0, 30.0, 180.0, float("inf"))
SPANS = ("same time", "1 hour", "1 day", "1 week", "1 month", "6 months", "longer")
_POINTS = 40  # of a curve over items


def consecutive_rows(log: Log) -> tuple[Array, Array, Array]:
    """Return item, next item and days between, for all consecutive rows of a user.

    Three arrays with one entry per pair of rows; items are positions in the log's catalogue. User u
    has rows log.ptr[u]..log.ptr[u + 1], in time order.
    """
    is_last = np.zeros(log.rows, bool)
    is_last[log.ptr[1:][np.diff(log.ptr) > 0] - 1] = True
    rows = np.flatnonzero(~is_last)
    days = (log.time[rows + 1] - log.time[rows]) / DAY
    return log.item[rows], log.item[rows + 1], days


def _span(days: Array) -> Array:
    """Return the index in `SPANS`, the names of classes of intervals, of each interval.

    days : the intervals. The classes end at 0, 1 hour, 1 day, 1 week, 30 days and 180 days.
    """
    return np.searchsorted(EDGES, days, side="left")


def co_occurrence(log: Log) -> dict[str, float]:
    """Return the share of consecutive item pairs, by the mean interval of the pair.

    A pair is (item, next item), counted once; the keys are the names in `SPANS`, the shares sum to
    1.
    """
    mean = _mean_intervals(log)
    counts = np.bincount(_span(mean.data), minlength=len(SPANS))
    return dict(zip(SPANS, (counts / counts.sum()).tolist(), strict=True))


def _mean_intervals(log: Log) -> Any:
    """Return a sparse item x next-item matrix of mean days between consecutive rows.

    It has an entry for every pair of items that ever followed each other, also if the mean is 0.
    """
    item, after, days = consecutive_rows(log)
    n = len(log.items)
    total = sparse.coo_array((days, (item, after)), (n, n)).tocsr()
    count = sparse.coo_array((np.ones(len(days)), (item, after)), (n, n)).tocsr()
    total.sum_duplicates()
    count.sum_duplicates()
    total.sort_indices()
    count.sort_indices()
    total.data /= count.data
    return total


def interval_correlation(log: Log, weights: Any) -> float:
    """Return Pearson's r of weights and inverse mean intervals of item pairs (Table 8).

    weights : item x item matrix of a linear model, dense or sparse. Only pairs of consecutive items
    count, and the inverse is 1 / (1 + days): the paper does not say how it treats other pairs and
    intervals of 0.
    """
    mean = _mean_intervals(log)
    rows = np.repeat(np.arange(len(log.items)), np.diff(mean.indptr))
    values = weights[rows, mean.indices]
    values = np.asarray(values.todense() if is_sparse(values) else values, float).ravel()
    return float(np.corrcoef(1 / (1 + mean.data), values)[0, 1])


def weight_by_popularity(log: Log, weights: Any) -> dict[str, list[float]]:
    """Return mean incoming weights over popularity ranks, as a curve of at most 40 points.

    weights : item x item matrix, source x target. Items are ordered by their rows in the log, most
    first, and cut into equal parts: "rank" is the middle of a part, "weight" its mean.
    """
    rows = np.bincount(log.item, minlength=len(log.items))
    mean = np.asarray(weights.sum(axis=0, dtype=np.float64)).ravel() / len(rows)
    order = np.argsort(-rows, kind="stable")
    parts = np.array_split(mean[order], min(_POINTS, len(rows)))
    ends = np.cumsum([len(part) for part in parts])
    middle = (ends + np.concatenate([[0], ends[:-1]])) / 2
    return {"rank": middle.tolist(), "weight": [float(part.mean()) for part in parts]}


def transitions(log: Log, attribute: pl.DataFrame) -> dict[str, float | None]:
    """Return how often an item attribute changes from a row to the next, by their interval.

    attribute : a frame of item_id and, in its second column, the attribute (such as the genre)
    The keys are names of classes of intervals (`SPANS`, such as "1 day"); a share from 0 to 1, None
    for a class without pairs of rows.
    """
    ids = pl.DataFrame({columns.ITEM: log.items.ids})
    names = attribute.select(
        pl.col(columns.ITEM).cast(ids[columns.ITEM].dtype), attribute.columns[1]
    )
    value = ids.join(names, on=columns.ITEM, how="left", maintain_order="left").to_series(1)
    codes = value.cast(pl.Categorical).to_physical().fill_null(np.iinfo(np.uint32).max).to_numpy()
    item, after, days = consecutive_rows(log)
    changed = (codes[item] != codes[after]).astype(float)
    span = _span(days)
    count = np.bincount(span, minlength=len(SPANS))
    total = np.bincount(span, changed, minlength=len(SPANS))
    return {name: float(total[s] / count[s]) if count[s] else None for s, name in enumerate(SPANS)}
