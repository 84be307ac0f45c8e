"""Metrics of a case: accuracy from its target's rank, and properties of its list.

A case is one evaluated query: a history and the held-out item that came next, its target. It is a
hit at k if the target's rank is 1..k; a target without a rank (null) is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.runtime import Array

RANK = "rank"
RANK_HIDDEN = "rank_hidden"  # with the items of the history hidden


def hit_rate(k: int, rank: str = RANK) -> pl.Expr:
    """Return the expression of HR@k over a frame of cases: 1 for a hit, else 0.

    `rank` is the column with each target's rank from 1; null or 0: no rank, a miss.
    """
    return _is_hit(k, rank).cast(pl.Float64).alias(f"HR@{k}")


def ndcg(k: int, rank: str = RANK) -> pl.Expr:
    """Return the expression of NDCG@k of one relevant item: 1 / log2(rank + 1) for a hit.

    0 for a miss. `rank` is the column with each target's rank from 1; null or 0: no rank, a miss.
    """
    gain = 1.0 / (pl.col(rank) + 1).log(2)
    return pl.when(_is_hit(k, rank)).then(gain).otherwise(0.0).alias(f"NDCG@{k}")


def mrr(k: int, rank: str = RANK) -> pl.Expr:
    """Return the expression of MRR@k over a frame of cases: 1 / rank for a hit, else 0.

    `rank` is the column with each target's rank from 1; null or 0: no rank, a miss.
    """
    return pl.when(_is_hit(k, rank)).then(1.0 / pl.col(rank)).otherwise(0.0).alias(f"MRR@{k}")


def _is_hit(k: int, rank: str) -> pl.Expr:
    """Return the expression whether the rank in column `rank` is from 1 to k; never null."""
    return pl.col(rank).is_between(1, k).fill_null(False)


def metric_expressions(ks: Sequence[int], rank: str = RANK) -> list[pl.Expr]:
    """Return HR, NDCG and MRR at every k, as expressions over a frame of cases.

    `rank` is the column with each target's rank from 1; null or 0: no rank, a miss.
    """
    return [metric(k, rank) for metric in (hit_rate, ndcg, mrr) for k in check_cutoffs(ks)]


def is_redundant(metric: str) -> bool:
    """Return whether a metric repeats HR@1, as NDCG@1 and MRR@1 do; tables omit them."""
    return metric.endswith("@1") and metric != "HR@1"


def check_cutoffs(ks: Sequence[int]) -> list[int]:
    """Return each list length k once, ascending; TalerecError unless whole numbers from 1."""
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TalerecError(f"`k` is {k!r}; it takes a whole number from 1", "k")
    return sorted(set(ks))


# -- lists -----------------------------------------------------------------------------------------


def item_coverage(counts: Array) -> float:
    """Return the share of the items that are in at least one list; counts: lists of each item."""
    return int(np.count_nonzero(counts)) / len(counts)


def novelty(lists: Array, counts: Array) -> Array:
    """Return each list's mean of -log2(share of training rows) over its items; NaN if empty.

    `lists` (cases x k) has positions of items, -1 for none; `counts` has each item's training rows.
    An item without training rows is as novel as one with a single row.
    """
    return row_means(lists, -np.log2(np.maximum(counts, 1.0) / counts.sum()))


def row_means(lists: Array, values: Array) -> Array:
    """Return the mean of values[item] over the items of each list; NaN for an empty list.

    `lists` (cases x k) has positions of items; -1 for none.
    """
    is_item = lists >= 0
    total = np.where(is_item, values[lists], 0.0).sum(axis=1)
    count = is_item.sum(axis=1)
    means: Array = np.divide(total, count, out=np.full(len(lists), np.nan), where=count > 0)
    return means
