"""Impressions as a frame of shown items, in the form in which figures are counted."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from talerec import columns
from talerec.store import Impression, expand_impressions


def shown_item_frame(impressions: Sequence[Impression]) -> pl.DataFrame:
    """Return the shown items of impressions with what is counted, times in microseconds.

    Texts that repeat are categories, which need a fraction of the memory.
    """
    frame = expand_impressions(impressions).drop("rules", "probability")
    categories = pl.col("model", "role", "list").cast(pl.Categorical)
    time = pl.col(columns.TIME).cast(pl.Int64).alias("time")
    return frame.with_columns(categories, time, pl.col("rank").cast(pl.Int32)).drop(columns.TIME)
