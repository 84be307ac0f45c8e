"""Answers as frames, with external ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.vocabulary import Vocabulary
from talerec.runtime.arrays import Array


def names(items: Vocabulary, positions: Array) -> pl.Series:
    """External ids of positions, null for unknown ones."""
    known = pl.Series(np.where(positions >= 0, positions, 0), dtype=pl.Int64)
    names = items.ids.gather(known)
    return pl.select(pl.when(pl.Series(positions >= 0)).then(names)).to_series()


def recommendations(
    first: tuple[Array, Array, Array], items: pl.Series, askers: pl.Series
) -> pl.DataFrame:
    """One row per recommendation: asker, item_id, score, rank."""
    found, scores, counts = first
    there = np.arange(found.shape[1]) < counts[:, None]
    asker, place = np.nonzero(there)
    return pl.DataFrame(
        {
            askers.name: askers[asker],
            columns.ITEM: items[found[there]],
            columns.SCORE: scores[there],
            columns.RANK: place + 1,
        }
    )


def with_boosts(frame: pl.DataFrame, added: list[tuple[str, Any, float]]) -> pl.DataFrame:
    """An explanation with one row more for each boost: its column, its value, and what it adds."""
    rows = {
        columns.ITEM: pl.Series([None] * len(added), dtype=frame.schema[columns.ITEM]),
        columns.SHARE: pl.Series([given for _, _, given in added], dtype=pl.Float64),
        columns.BOOST: pl.Series(
            [f"{column}={value}" for column, value, _ in added], dtype=pl.String
        ),
    }
    known = frame.with_columns(pl.lit(None, pl.String).alias(columns.BOOST))
    return pl.concat([known, pl.DataFrame(rows)])
