"""Metrics: accuracy from the ranks of targets, and what recommended lists are like. Each is a mean over cases.

A case is a hit at k when its target's rank is 1..k; rank 0 is a miss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

RANK = "rank"
RANK_HIDDEN = "rank_hidden"  # with seen items hidden


def hit_rate(k: int, rank: str = RANK) -> pl.Expr:
    """HR@k: 1 for a hit."""
    return _hit(k, rank).cast(pl.Float64).alias(f"HR@{k}")


def ndcg(k: int, rank: str = RANK) -> pl.Expr:
    """NDCG@k with one relevant item: 1 / log2(rank + 1) for a hit."""
    gain = 1.0 / (pl.col(rank) + 1).log(2)
    return pl.when(_hit(k, rank)).then(gain).otherwise(0.0).alias(f"NDCG@{k}")


def mrr(k: int, rank: str = RANK) -> pl.Expr:
    """MRR@k: 1 / rank for a hit."""
    return pl.when(_hit(k, rank)).then(1.0 / pl.col(rank)).otherwise(0.0).alias(f"MRR@{k}")


def _hit(k: int, rank: str) -> pl.Expr:
    return pl.col(rank).is_between(1, k)


def per_case(ks: Sequence[int], rank: str = RANK) -> list[pl.Expr]:
    """Every accuracy metric at every k, as expressions over a frame with one row per case."""
    return [metric(k, rank) for metric in (hit_rate, ndcg, mrr) for k in cutoffs(ks)]


def is_double(metric: str) -> bool:
    """Whether a table can leave a metric out: at k = 1 all three are the hit rate."""
    return metric.endswith("@1") and metric != "HR@1"


def cutoffs(ks: Sequence[int]) -> list[int]:
    """Each k once, in order; a k that is not a whole number from 1 is refused."""
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TalerecError(f"k is {k!r}; it takes a whole number from 1")
    return sorted(set(ks))


# -- lists -----------------------------------------------------------------------------------------


def coverage(lists: Array, items: int) -> float:
    """The share of the catalogue that is in at least one list."""
    there = np.zeros(items + 1, bool)
    there[lists] = True  # -1, no item, marks the last entry
    return int(np.count_nonzero(there[:-1])) / items


def novelty(lists: Array, rows: Array) -> Array:
    """Bits of surprise of each list's items: the mean of -log2 of their share of the training rows."""
    with np.errstate(divide="ignore"):
        bits = -np.log2(rows / rows.sum())
    return row_means(lists, bits)


def row_means(lists: Array, values: Array) -> Array:
    """The mean value of the items (positions) in each row; -1 is no item, and a row without items has NaN."""
    there = lists >= 0
    total = np.where(there, values[lists], 0.0).sum(axis=1)
    count = there.sum(axis=1)
    means: Array = np.divide(total, count, out=np.full(len(lists), np.nan), where=count > 0)
    return means
