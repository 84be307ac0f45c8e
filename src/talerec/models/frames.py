"""Answers as frames, with external ids."""

from __future__ import annotations

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
