"""Measures of the paper's figures and Table 8: intervals between rows, changes of genre, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.lazy import sparse

#: Upper edges of the intervals, in days, and their names.
EDGES = (0.0, 1 / 24, 1.0, 7.0, 30.0, 180.0, float("inf"))
SPANS = ("same time", "1 hour", "1 day", "1 week", "1 month", "6 months", "longer")
_POINTS = 40  # of a curve over items


def steps(log: Log) -> tuple[Array, Array, Array]:
    """All pairs of consecutive rows of a user: item, next item, and the days between."""
    last = np.zeros(log.rows, bool)
    last[log.ptr[1:][np.diff(log.ptr) > 0] - 1] = True
    here = np.flatnonzero(~last)
    days = (log.time[here + 1] - log.time[here]) / DAY
    return log.item[here], log.item[here + 1], days


def _span(days: Array) -> Array:
    """The number of the interval in `SPANS` that each falls into."""
    return np.searchsorted(EDGES, days, side="left")


def co_occurrence(log: Log) -> dict[str, float]:
    """The share of consecutive pairs of items by the mean interval of the pair."""
    mean = _mean_intervals(log)
    counts = np.bincount(_span(mean.data), minlength=len(SPANS))
    return dict(zip(SPANS, (counts / counts.sum()).tolist(), strict=True))


def _mean_intervals(log: Log) -> Any:
    """Items x items: the mean days from an item to the next; an entry for each pair that occurs."""
    item, after, days = steps(log)
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
    """Pearson's r of the weights and the inverse mean interval (Table 8), over pairs of consecutive items.

    The paper does not say how it treats other pairs and intervals of 0. Here other pairs are left out,
    and the inverse is 1 / (1 + days).
    """
    mean = _mean_intervals(log)
    rows = np.repeat(np.arange(len(log.items)), np.diff(mean.indptr))
    values = weights[rows, mean.indices]
    values = np.asarray(values.todense() if is_sparse(values) else values, float).ravel()
    found: float = np.corrcoef(1 / (1 + mean.data), values)[0, 1]
    return float(found)


def weight_by_popularity(log: Log, weights: Any) -> dict[str, list[float]]:
    """The mean weight that items receive, the most popular items first, in forty steps at most."""
    rows = np.bincount(log.item, minlength=len(log.items))
    mean = np.asarray(weights.sum(axis=0, dtype=np.float64)).ravel() / len(rows)
    order = np.argsort(-rows, kind="stable")
    parts = np.array_split(mean[order], min(_POINTS, len(rows)))
    ends = np.cumsum([len(part) for part in parts])
    middle = (ends + np.concatenate([[0], ends[:-1]])) / 2
    return {"rank": middle.tolist(), "weight": [float(part.mean()) for part in parts]}


def transitions(log: Log, attribute: pl.DataFrame) -> dict[str, float | None]:
    """How often the attribute changes from a row to the next, by the interval between them.

    attribute: a frame of item_id and, in its second column, the attribute.
    """
    ids = pl.DataFrame({columns.ITEM: log.items.ids})
    names = attribute.select(
        pl.col(columns.ITEM).cast(ids[columns.ITEM].dtype), attribute.columns[1]
    )
    value = ids.join(names, on=columns.ITEM, how="left", maintain_order="left").to_series(1)
    codes = value.cast(pl.Categorical).to_physical().fill_null(np.iinfo(np.uint32).max).to_numpy()
    item, after, days = steps(log)
    changed = (codes[item] != codes[after]).astype(float)
    span = _span(days)
    count = np.bincount(span, minlength=len(SPANS))
    total = np.bincount(span, changed, minlength=len(SPANS))
    return {name: float(total[s] / count[s]) if count[s] else None for s, name in enumerate(SPANS)}
