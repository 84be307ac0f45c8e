"""Accuracy from ranks. A case is a hit at k when its target's rank is 1..k; rank 0 is a miss."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from talerec.errors import TalerecError

RANK = "rank"


def hit_rate(k: int) -> pl.Expr:
    """HR@k: 1 for a hit."""
    return _hit(k).cast(pl.Float64).alias(f"HR@{k}")


def ndcg(k: int) -> pl.Expr:
    """NDCG@k with one relevant item: 1 / log2(rank + 1) for a hit."""
    gain = 1.0 / (pl.col(RANK) + 1).log(2)
    return pl.when(_hit(k)).then(gain).otherwise(0.0).alias(f"NDCG@{k}")


def mrr(k: int) -> pl.Expr:
    """MRR@k: 1 / rank for a hit."""
    return pl.when(_hit(k)).then(1.0 / pl.col(RANK)).otherwise(0.0).alias(f"MRR@{k}")


def _hit(k: int) -> pl.Expr:
    return pl.col(RANK).is_between(1, k)


def per_case(ks: Sequence[int]) -> list[pl.Expr]:
    """Every metric at every k, as columns over a frame with one row per case."""
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TalerecError(f"k is {k!r}; it takes a whole number from 1")
    return [metric(k) for metric in (hit_rate, ndcg, mrr) for k in sorted(set(ks))]
