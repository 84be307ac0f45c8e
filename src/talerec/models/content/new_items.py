"""Further rows of the item table of a fitted model: of new items, and changed ones."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Vocabulary, equal_rows, replace_rows, shape_rows
from talerec.models.core import UNSEEN_ITEMS, Fitted
from talerec.ranking import Weights
from talerec.runtime import Array


class PlacedRows(NamedTuple):
    """Rows of an item table that a model does not have, with the positions of their items.

    New items, of which there are `n_new`, have the last positions. items, info: the vocabulary and
    the item table with the rows.
    """

    rows: pl.DataFrame
    positions: Array
    n_new: int
    items: Vocabulary
    info: pl.DataFrame


def place_rows(fitted: Fitted, table: pl.DataFrame) -> PlacedRows:
    """Return the rows of a table that differ from those of a fit, in the columns of the fit."""
    assert fitted.info is not None
    rows = shape_rows(table, fitted.info, fitted.items)
    positions = fitted.items.codes(rows[columns.ITEM])
    is_same = equal_rows(rows, fitted.info[np.maximum(positions, 0)]) & (positions >= 0)
    rows, positions = rows.filter(pl.Series(~is_same)), positions[~is_same]
    is_new = positions < 0
    n_new = int(is_new.sum())
    positions[is_new] = len(fitted.items) + np.arange(n_new)
    ids = pl.concat([fitted.items.ids, rows[columns.ITEM].filter(pl.Series(is_new)).alias("id")])
    info = replace_rows(fitted.info, rows, positions)
    return PlacedRows(rows, positions, n_new, Vocabulary(ids), info)


def extend_fitted(fitted: Fitted, placed: PlacedRows, weights: Weights) -> Fitted:
    """Return a fitted state whose item table has the rows of `placed`, some of new items.

    weights: those of all items, known and new. New items are counted as items without rows.
    """
    items, info = placed.items, placed.info
    log = None if fitted.log is None else replace(fitted.log, items=items, info=info)
    counts = fitted.stored_recent_counts
    n_unseen = fitted.training.get(UNSEEN_ITEMS, 0) + placed.n_new
    return replace(
        fitted, weights=weights, items=items, info=info, log=log,
        training={**fitted.training, "items": len(items), UNSEEN_ITEMS: n_unseen},
        stored_recent_counts=None if counts is None else np.pad(counts, (0, placed.n_new)),
    )  # fmt: skip
