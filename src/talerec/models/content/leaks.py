"""Columns of an item table that follow the number of events, and so know the future."""

from __future__ import annotations

import logging

import numpy as np
import polars as pl

from talerec.data import NUMBER, Log, detect_columns, read_numbers

logger = logging.getLogger("talerec")

_MIN_CORRELATION, _MIN_ITEMS = 0.8, 50


def find_counting_columns(log: Log) -> dict[str, float]:
    """Return the columns that follow the rows per item, with their rank correlation.

    Items with rows and a number count. A column is among them from a correlation of .8 (or -.8) on,
    and from 50 items on.
    """
    if log.info is None:
        return {}
    counts = log.counts()
    table = log.info.filter(pl.Series(counts > 0))
    n_rows = pl.Series(counts[counts > 0])
    correlations: dict[str, float] = {}
    for column in detect_columns(table, text=log.item_text, skip=log.item_skip):
        if column.kind != NUMBER or column.filled < _MIN_ITEMS:
            continue
        values = read_numbers(table[column.name], table[table.columns[0]])
        correlation = _correlate_ranks(values.drop_nulls(), n_rows.filter(values.is_not_null()))
        if abs(correlation) >= _MIN_CORRELATION:
            correlations[column.name] = correlation
    return correlations


def warn_counting_columns(log: Log) -> None:
    """Log a warning for item-table columns that seem to be event counts (target leakage)."""
    for name, correlation in find_counting_columns(log).items():
        logger.warning(
            "column %r of the item table follows the number of events per item (rank correlation"
            " %.2f): if it counts them, it knows the future of held-out events; leave it out"
            " (`item_skip`)",
            name,
            correlation,
        )


def _correlate_ranks(values: pl.Series, others: pl.Series) -> float:
    """Return Spearman's correlation of two columns; 0 if one is constant or too short."""
    if len(values) < _MIN_ITEMS or values.n_unique() < 2 or others.n_unique() < 2:
        return 0.0
    ranks = values.rank("average").to_numpy(), others.rank("average").to_numpy()
    return float(np.corrcoef(*ranks)[0, 1])
