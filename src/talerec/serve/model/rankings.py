"""Rankings of all items of a model that named lists show: popular ones, and new ones."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import polars as pl

from talerec.data import DAY
from talerec.errors import TalerecError
from talerec.models.core import item_table
from talerec.runtime import Array
from talerec.serve import POPULAR, NamedList, no_histories
from talerec.serve.model.popular import count_rows
from talerec.serve.model.served import ServedModel

Ranking = tuple[Array, Array]  # item positions, best first, and their scores


class RankingCache:
    """Computes the rankings of named lists, and keeps each until the model's items change."""

    def __init__(self) -> None:
        self._rankings: dict[str, tuple[tuple[object, ...], Ranking]] = {}

    def rank(self, model: ServedModel, name: str, named: NamedList) -> Ranking:
        """Return the ranking of a named list: item positions, best first, and scores."""
        if named.order == POPULAR and named.days is None:
            return model.popular.ranked()
        key = (model.version, model.item_changes, len(model.items))
        cached = self._rankings.get(name)
        if cached is None or cached[0] != key:
            cached = (key, rank_items(model, named))
            self._rankings[name] = cached
        return cached[1]


def rank_items(model: ServedModel, named: NamedList) -> Ranking:
    """Return all items that a list may show, best first, and their scores.

    Scores are rows of the last days, values of the column, or times in seconds since 1970. Ties are
    in the order of positions; items without a value are left out. ApiError or TalerecError if the
    model lacks the log or the column that the list needs.
    """
    if named.order == POPULAR:
        scores = _count_last_days(model, named.days or 0.0)
    elif named.by is not None:
        scores = _read_column(model, named.by)
    else:
        scores = _find_first_times(model)
    with_score = np.flatnonzero(~np.isnan(scores))
    order = with_score[np.argsort(-scores[with_score], kind="stable")]
    return order, scores[order]


def _count_last_days(model: ServedModel, days: float) -> Array:
    """Return the rows of each item in the last days of the training log; NaN for none."""
    fitted = model.model.fitted
    if fitted.log is None:
        raise no_histories()
    since = int(fitted.log.time.max(initial=0)) - round(days * DAY)
    counts = np.full(len(fitted.items), np.nan)
    counted = count_rows(fitted.log, since)
    counts[: len(counted)] = np.where(counted > 0, counted, np.nan)
    return counts


def _find_first_times(model: ServedModel) -> Array:
    """Return the time of each item's first row in the training log, in seconds; NaN for none."""
    fitted = model.model.fitted
    if fitted.log is None:
        raise no_histories()
    times = np.full(len(fitted.items), np.inf)
    np.minimum.at(times, fitted.log.item, fitted.log.time / 1e6)
    times[np.isinf(times)] = np.nan
    return times


def _read_column(model: ServedModel, name: str) -> Array:
    """Return the values of a column of the item table, times in seconds; NaN for none.

    TalerecError if there is no such column, or if it has neither dates nor numbers.
    """
    table = item_table(model.model, "where")
    if name not in table.columns:
        raise TalerecError(f"the item table has no column {name!r}: see `by`")
    column = table[name]
    if column.dtype == pl.String:
        with suppress(pl.exceptions.ComputeError):  # nothing in it is a date
            column = column.str.to_datetime(strict=False, time_unit="us")
    if column.dtype.is_temporal() and column.dtype != pl.Time:
        column = column.cast(pl.Datetime("us")).cast(pl.Int64) / 1e6
    if not column.dtype.is_numeric() or column.null_count() == len(column):
        raise TalerecError(f"column {name!r} has neither dates nor numbers to order items by")
    values: Array = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return values
