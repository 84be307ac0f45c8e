"""Content and newness in tempo's scores: items that nobody has taken yet are scored, too.

To the score of item i, of class c by its training rows (none, few, many), tempo adds

    weight_c * (z_i + freshness * taste * exp(-age_i / lifetime))

with z_i the score of `Content` for the history, less its mean over all items and in its standard
deviations, and age_i the days from the item's date, a column of the item table, to the request;
before its date, the second term is 0. taste says how new the items of the history were when the
user took them, relative to all rows of the log. Scores change for requests after the end of the
training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import DATE, DAY, UNTIMED, Histories, ItemColumn, Log, list_rows, parse_dates
from talerec.models.content import Content, ItemEncoder, encode_queries
from talerec.models.core import require
from talerec.models.tempo.categories import CategoryScores
from talerec.models.tempo.query import CONTENT_BLOCK, CONTENT_PREFIX
from talerec.models.tempo.query_parts import join_queries, repeat_ranges
from talerec.ranking import Block, Query, QueryArrays, Weights, make_block, recency_query
from talerec.runtime import Array, sparse

FEW_ROWS = 5  # training rows from which an item has many
_NO_DATE = 1e18  # days, in saved models
_RECENCY = Content().recency  # decay length of history weights, in rows
_MAX_BUCKETS = 400  # of dates after the end of the training rows
_MAX_AGE = 30.0  # lifetimes after which an item is no longer fresh
_TASTE_ROWS = 30  # newest rows of a history that show whether its user takes new items
_TASTE_PRIOR = 15.0  # rows as new as all others that are added to them


class ContentWeights(NamedTuple):
    """How content counts: by class of items (none, few, many training rows), and freshness.

    by_class: three numbers. freshness: of an item on its date. lifetime: days to 1/e.
    """

    by_class: tuple[float, float, float]
    freshness: float
    lifetime: float


@dataclass(frozen=True, eq=False)
class ItemScores:
    """What scores by content are made of, as arrays that are saved with the model.

    Parameters
    ----------
    encoder : ItemEncoder
        Makes the vectors of further items.
    bilinear : array
        A of the scores history @ F A F', dimension x dimension.
    features : float32 array
        F', dimension x item.
    classes : int8 array
        The class of each item: 0, 1, 2 for none, few, many training rows.
    days : array
        The date of each item, in days since 1970; NaN for none.
    weights : ContentWeights
        How content counts.
    log_end : int
        The time of the last training row, in microseconds since 1970.
    newness : float
        The mean of `measure_newness` over the training rows; 0 for none.
    categories : CategoryScores, optional
        What is added by the categories of one column.
    """

    encoder: ItemEncoder
    bilinear: Array
    features: Array
    classes: Array
    days: Array
    weights: ContentWeights
    log_end: int
    newness: float
    categories: CategoryScores | None = None

    @classmethod
    def build(cls, model: Content, counts: Array, weights: ContentWeights) -> ItemScores:
        """Return what scores items by content, from a fitted model of content.

        counts: training rows of each of its items, which decide the items' classes. weights: how
        much the scores count beside those of ids, by class.
        """
        fitted = model.fitted
        assert fitted.info is not None
        assert fitted.log is not None
        arrays, days = fitted.weights.query_arrays, read_days(fitted.info, model.encoder.types)
        return cls(
            model.encoder, arrays["bilinear"], fitted.weights.matrix, classify_items(counts), days,
            weights, int(fitted.training["last_time"]),
            mean_newness(fitted.log, days, weights.lifetime),
        )  # fmt: skip

    @classmethod
    def restore(cls, arrays: dict[str, Array], types: list[ItemColumn]) -> ItemScores | None:
        """Return the scores that `to_arrays` stored; None if there are none.

        types: of the columns of the item table.
        """
        if f"{CONTENT_PREFIX}weights" not in arrays:
            return None
        stored = {
            name.removeprefix(CONTENT_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(CONTENT_PREFIX)
        }
        new, few, many, freshness, lifetime = stored["weights"].tolist()
        days = np.where(stored["days"] == _NO_DATE, np.nan, stored["days"])
        return cls(
            ItemEncoder.restore(types, stored), stored["bilinear"], stored["features"],
            stored["classes"], days, ContentWeights((new, few, many), freshness, lifetime),
            int(stored["log_end"][0]), float(stored.get("newness", np.zeros(1))[0]),
            CategoryScores.restore(stored, types),
        )  # fmt: skip

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays that a model stores, by name."""
        by_class, freshness, lifetime = self.weights
        arrays = {
            **self.encoder.arrays(),
            "bilinear": self.bilinear,
            "features": self.features,
            "classes": self.classes,
            "days": np.nan_to_num(self.days, nan=_NO_DATE),
            "weights": np.array([*by_class, freshness, lifetime]),
            "log_end": np.array([self.log_end]),
            "newness": np.array([self.newness]),
        }
        if self.categories is not None:
            arrays |= self.categories.to_arrays(self.encoder.types)
        return {CONTENT_PREFIX + name: array for name, array in arrays.items()}

    def check(self, n_items: int) -> None:
        """Raise TalerecError if arrays, read from an artifact, do not fit together."""
        n_dims = len(self.features)
        require(self.features.shape == (n_dims, n_items), "content_features has another shape")
        require(self.bilinear.shape == (n_dims, n_dims), "content_bilinear has another shape")
        require(self.classes.shape == (n_items,), "content_classes has another length")
        require(np.isin(self.classes, (0, 1, 2)).all(), "content_classes are not 0, 1 or 2")
        require(self.days.shape == (n_items,), "content_days has another length")
        require(self.weights.lifetime > 0, "content_weights has a lifetime that is not above 0")
        require(0 <= self.newness <= 1, "content_newness is not between 0 and 1")
        if self.categories is not None:
            self.categories.check(n_items)

    def with_rows(self, table: pl.DataFrame, positions: Array, n_items: int) -> ItemScores:
        """Return the scores with new or replaced rows of the item table.

        table: the rows. positions: of their items, of `n_items`. Further items have no rows in the
        training log.
        """
        n_new = n_items - len(self.classes)
        features = np.pad(self.features, ((0, 0), (0, n_new)))
        features[:, positions] = self.encoder.encode(table).T
        days = np.pad(self.days, (0, n_new), constant_values=np.nan)
        days[positions] = read_days(table, self.encoder.types)
        classes = np.pad(self.classes, (0, n_new))
        categories = self.categories and self.categories.with_rows(table, positions, n_items)
        return replace(self, features=features, days=days, classes=classes, categories=categories)

    # -- scores --

    @property
    def reference(self) -> float:
        """The time of the last training row, in days since 1970."""
        return self.log_end / DAY

    @cached_property
    def mean(self) -> Array:
        """The mean vector of all items."""
        return np.asarray(self.features.mean(axis=1, dtype=np.float64))

    @cached_property
    def covariance(self) -> Array:
        """The covariance of the vectors of all items: dimension x dimension."""
        n_dims, n_items = self.features.shape
        total = np.zeros((n_dims, n_dims))
        for a in range(0, n_items, 2**16):
            part = self.features[:, a : a + 2**16].astype(np.float64) - self.mean[:, None]
            total += part @ part.T
        covariance: Array = total / max(n_items, 1)
        return covariance

    @cached_property
    def edges(self) -> Array:
        """The days, ascending, at which items become fresh: one source of weights for each.

        An item adds freshness only to requests from its date on, so items are grouped by date
        (into at most 400 buckets), and a request has the sources of all days up to its own. The
        first day is the end of the training rows, for all items with an earlier date.
        """
        last = self.reference + _MAX_AGE * self.weights.lifetime
        later = np.unique(self.days[(self.days > self.reference) & (self.days <= last)])
        step = -(-len(later) // _MAX_BUCKETS)
        return np.concatenate([[self.reference], later[::-1][:: max(step, 1)][::-1]])

    def encode(self, weights: Weights, histories: Histories, max_history: int) -> Array:
        """Return what each history looks for in the features of items: history x dimension.

        The product of a history's code with the features of item i, less its mean over items, is
        z_i: codes are scaled so that these products have the standard deviation 1 over all items. A
        history without content has the code 0. weights: of the model, which has the items.
        """
        x = self._weigh_items(weights, histories, max_history)
        codes = encode_queries(x, self.features, self.bilinear)
        return self._scale(codes, codes)

    def encode_items(
        self, weights: Weights, history: Histories, max_history: int
    ) -> tuple[Array, Array]:
        """Return the items of one history, and their parts of its code: item x dimension.

        The parts add up to what `encode` returns for the history.
        """
        x = self._weigh_items(weights, history, max_history)
        alone = x._replace(ptr=np.arange(len(x.source) + 1))
        parts = encode_queries(alone, self.features, self.bilinear)
        return x.source, self._scale(parts, parts.sum(axis=0, keepdims=True))

    def _weigh_items(self, weights: Weights, histories: Histories, max_history: int) -> QueryArrays:
        """Return the weight exp(-lag / recency) of each distinct known item of each history."""
        times = histories.moments(joint=True)
        return recency_query(weights, histories, times, _RECENCY, max_history).rows()

    def _scale(self, codes: Array, whole: Array) -> Array:
        """Return codes divided by the standard deviation of the products of items with `whole`.

        whole: a code for each of `codes`, or one for all. The code is 0 where these are constant.
        """
        variance = np.einsum("qd,de,qe->q", whole, self.covariance, whole)
        deviation = np.sqrt(np.maximum(variance, 0.0))[:, None]
        scaled: Array = np.divide(codes, deviation, np.zeros_like(codes), where=deviation > 1e-12)
        return scaled

    def blocks(self) -> list[Block]:
        """Return the blocks of weights: content, freshness by bucket of dates, and categories.

        Rows of the first are the dimensions of F, and one of ones for the mean; those of the second
        the buckets of `edges`. Both are multiplied by the weight of each item's class.
        """
        factor = np.array(self.weights.by_class)[self.classes]
        n_items = len(factor)
        values = np.vstack([self.features, np.ones((1, n_items), np.float32)])
        content = make_block(
            np.ascontiguousarray(values * factor.astype(np.float32), np.float32),
            source_item=np.full(len(values), -1, np.int32),
        )
        edges, lifetime = self.edges, self.weights.lifetime
        bucket = np.searchsorted(edges, self.days)  # NaN comes last
        age = self.reference - np.nan_to_num(self.days, nan=-np.inf)
        fresh = np.exp(-np.maximum(age, -_MAX_AGE * lifetime) / lifetime)
        fresh *= self.weights.freshness * factor
        items = np.flatnonzero((bucket < len(edges)) & (fresh != 0))
        matrix = sparse.csr_array(
            (fresh[items].astype(np.float32), (bucket[items], items)), shape=(len(edges), n_items)
        )
        fresh_block = make_block(matrix, source_item=np.full(len(edges), -1, np.int32))
        return [content, fresh_block, *([self.categories.block()] if self.categories else [])]

    def append_to(
        self, x: Query, weights: Weights, histories: Histories, max_history: int
    ) -> Query:
        """Return queries with the sources of content and freshness added to those of tempo.

        x: the queries to tempo's own blocks. Requests up to the end of the training rows stay as
        they are; histories without request times count as requests right after it, but items with
        a later date are new by the histories' clock.
        """
        days = np.full(len(histories), self.reference)
        is_after = np.ones(len(histories), bool)
        if histories.now is not None:
            is_after = (histories.now > self.log_end) | (histories.now <= UNTIMED)
            days = np.maximum(histories.now / DAY, self.reference)
        if not is_after.any():
            return x
        codes = self.encode(weights, histories, max_history)
        codes = np.column_stack([codes, -codes @ self.mean])
        has_code = is_after & codes.any(axis=1) & any(self.weights.by_class)
        n_buckets = np.searchsorted(self.edges, self._last_day(histories, days), side="right")
        n_buckets *= is_after
        n_buckets *= self.weights.freshness > 0
        first = weights.first_source(CONTENT_BLOCK)
        content = repeat_ranges(first, has_code * codes.shape[1])
        decay = np.exp(-(days - self.reference) / self.weights.lifetime)
        decay *= measure_taste(histories, self.days, self.weights.lifetime, self.newness)
        fresh = repeat_ranges(first + codes.shape[1], n_buckets)
        added = [
            Query(content.ptr, content.source, codes[has_code].ravel()),
            Query(fresh.ptr, fresh.source, self._weigh_buckets(histories, decay, n_buckets)),
        ]
        if self.categories is not None:
            first += codes.shape[1] + len(self.edges)
            added.append(self.categories.query(histories, weights, max_history, first, is_after))
        return join_queries([x, *added])

    def _last_day(self, histories: Histories, days: Array) -> Array:
        """Return the last day on which items have come out, for each history.

        days: of the requests, or of the end of the training rows without request times.
        """
        if histories.now is not None or histories.clock is None:
            return days
        return np.maximum(days, histories.clock / DAY)

    def _weigh_buckets(self, histories: Histories, decay: Array, n_buckets: Array) -> Array:
        """Return the weights of the first `n_buckets` buckets of dates of each history.

        decay: of each history, exp(-(request - end of the training rows) / lifetime) times taste.
        Without request times, buckets after the first are weighted as of the clock.
        """
        weights = np.repeat(decay, n_buckets)
        if histories.now is not None or histories.clock is None:
            return weights
        bucket = np.arange(len(weights)) - np.repeat(np.cumsum(n_buckets) - n_buckets, n_buckets)
        delay = max(histories.clock / DAY - self.reference, 0.0)
        weights[bucket > 0] *= np.exp(-delay / self.weights.lifetime)
        return weights


def measure_newness(time: Array, item: Array, days: Array, lifetime: float) -> Array:
    """Return how new the item of each row was: exp(-age / lifetime), 0 before its date.

    time: of the rows, in microseconds. item: positions of their items, -1 for an unknown one. days:
    the date of each item. NaN for a row without a time, and for an item without a date.
    """
    age = time / DAY - days[np.maximum(item, 0)]
    newness = np.where(age >= 0, np.exp(-np.maximum(age, 0) / lifetime), 0.0)
    has_age = ~np.isnan(age) & (item >= 0) & (time > UNTIMED)
    measured: Array = np.where(has_age, newness, np.nan)
    return measured


def mean_newness(log: Log, days: Array, lifetime: float) -> float:
    """Return the mean of `measure_newness` over the rows of a log; 0 for none."""
    newness = measure_newness(log.time, log.item, days, lifetime)
    measured = newness[~np.isnan(newness)]
    return float(measured.mean()) if len(measured) else 0.0


def measure_taste(histories: Histories, days: Array, lifetime: float, mean: float) -> Array:
    """Return how new the items of each history were, relative to the rows of a log.

    days: the date of each item. mean: `mean_newness` of the log. The newest 30 rows count, together
    with 15 rows as new as the mean; a history without times or dates has 1.
    """
    if mean <= 0:
        return np.ones(len(histories))
    begin = np.maximum(histories.start, histories.stop - _TASTE_ROWS)
    number, row = list_rows(begin, histories.stop)
    newness = measure_newness(histories.time[row], histories.item[row], days, lifetime)
    is_measured = ~np.isnan(newness)
    sums = np.bincount(number[is_measured], newness[is_measured], len(histories))
    n_rows = np.bincount(number[is_measured], minlength=len(histories))
    taste: Array = (_TASTE_PRIOR + sums / mean) / (_TASTE_PRIOR + n_rows)
    return taste


def classify_items(counts: Array) -> Array:
    """Return the class of each item by its training rows: 0 for none, 1 for few, 2 for many."""
    return ((counts > 0).astype(np.int8) + (counts >= FEW_ROWS)).astype(np.int8)


def read_days(table: pl.DataFrame, types: list[ItemColumn]) -> Array:
    """Return the first date of each row of an item table, in days since 1970; NaN for none."""
    for column in types:
        if column.kind == DATE:
            days = parse_dates(table[column.name]).cast(pl.Int32).cast(pl.Float64)
            filled: Array = days.fill_null(np.nan).to_numpy()
            return filled
    return np.full(len(table), np.nan)
