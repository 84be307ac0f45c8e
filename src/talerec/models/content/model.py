"""Content: a closed form over features of items, which new items have, too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
import polars as pl

from talerec.data import Histories, ItemColumn, Log, detect_columns, median_interval
from talerec.errors import TalerecError, UndescribedItemsError
from talerec.gram import TaleWeighting
from talerec.models.content.features import ItemEncoder
from talerec.models.content.moments import Moments, add_similarity, solve_bilinear, sum_moments
from talerec.models.content.new_items import extend_fitted, place_rows
from talerec.models.content.shared import describe_shared
from talerec.models.content.words import hash_rows, import_sklearn
from talerec.models.core import (
    ITEM_COLUMNS,
    LEARN,
    SCORE,
    SOLVE,
    FitCache,
    Model,
    last_rows,
    param,
    require,
)
from talerec.ranking import Query, QueryArrays, Weights, make_block, recency_query
from talerec.runtime import Array, Clock, kernel

#: Kinds of columns of the item table that say nothing.
UNUSED_KINDS = ("empty", "skipped")


@dataclass(eq=False, kw_only=True)
class Content(Model):
    """Items by their content: scores x F A F' with A = (F'GF + reg I)^-1 F'KF (F'F + mu I)^-1.

    A row of F has what the item table says of an item (words, categories, numbers, vectors) as a
    vector of length 1; G and K are TALE's sums over pairs of rows. A share of the identity is added
    to A (`similarity`), and of K' to K (`reverse`). Items that the log does not have are scored
    like all others. The log needs an item table (`Log.with_items`).

    Examples
    --------
    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": [1, 1, 2, 2], "item_id": ["a", "b", "a", "b"], "timestamp": [1, 2, 1, 2]}
    >>> table = {"item_id": ["a", "b", "c"], "tags": [["tea"], ["cup"], ["cup"]]}
    >>> log = tr.Log.from_frame(pl.DataFrame(rows), time_unit="s", any_time=True)
    >>> model = tr.Content().fit(log.with_items(pl.DataFrame(table)))
    >>> model.item_ids.to_list()
    ['a', 'b', 'c']
    """

    name = "content"
    summary = "New items, by texts and categories of the item table"
    extra = "content"
    supports_update = False
    sources_are_items = False
    needs_time = True
    takes_weights = True
    scores_catalogue = True

    dims: int = param(
        256, "most dimensions of an item's features", low=1, high=4096, search=(64, 512)
    )
    reg: float = param(
        100.0, "ridge penalty of sources", above=0, high=1e12, search=(0.1, 1000), stage=SOLVE
    )
    mu: float = param(
        10.0, "ridge penalty of targets", above=0, high=1e12, search=(0.1, 1000), stage=SOLVE
    )
    recency: float = param(
        6.0, "decay length of history weights, in rows", above=0, search=(1, 32), stage=SCORE
    )
    similarity: float = param(
        1.0, "share of the plain similarity of features in A", low=0, high=1e6, search=(0.0, 3.0),
        stage=SOLVE,
    )  # fmt: skip
    reverse: float = param(
        0.5, "share of reversed pairs (K') in K", low=0, high=1, search=(0.0, 1.0), stage=SOLVE
    )
    pace: float = param(
        16.0, "decay time, in median gaps between events", above=0, search=(0.25, 64)
    )
    floor: float = param(
        0.15, "least weight of a source, however old", low=0, high=1, search=(0.0, 0.8)
    )
    trend: float = param(
        0.1, "exponent of an item's count around a row, a divisor; 0: off", low=0, high=10
    )
    window: float = param(180.0, "days around a row to count its item in", low=0)
    same_time: str = param(
        "joint", "order of rows with equal times (joint: none)", choices=("ordered", "joint")
    )
    max_history: int = param(2500, "a user's last rows that are used", low=1)

    def check_ready(self) -> None:
        """Raise TalerecError if scikit-learn is not installed."""
        import_sklearn("feature_extraction")

    def fit(self, log: Log | Any, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of a log, and from its item table; see `Model.fit`.

        The types of the table's columns are saved with the model.
        """
        super().fit(log, cache=cache)
        fitted_log = self.fitted.log
        assert fitted_log is not None
        self.fitted.training[ITEM_COLUMNS] = [asdict(column) for column in find_types(fitted_log)]
        return self

    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return F' as weights (dimension x item), and A and the encoder's arrays for queries.

        log: with an item table, whose items without rows are in the vocabulary. clock: adds up the
        seconds of each stage. No solver is named (None).
        """
        self.check_ready()
        with clock("gram"):
            encoder, features, moments = self.cached(LEARN, log, lambda: self._encode_and_sum(log))
        with clock("solve"):
            return self.combine(encoder, features, moments), None

    def combine(self, encoder: ItemEncoder, features: Array, moments: Moments) -> Weights:
        """Return F' as weights (dimension x item), with A and the encoder's arrays for queries.

        features: F, item x dimension. moments: sums over the log, from which A is solved.
        """
        bilinear = solve_bilinear(moments, self.reg, self.mu, self.reverse)
        bilinear = add_similarity(bilinear, self.similarity)
        arrays = {"bilinear": bilinear, **encoder.arrays()}
        return Weights(_feature_block(features), query_arrays=arrays)

    def _encode_and_sum(self, log: Log) -> tuple[ItemEncoder, Array, Moments]:
        """Return the encoder of items with rows, the features of all items, and their moments.

        Features are item x dimension, moments F'GF, F'KF and F'F.
        """
        encoder, features = self.encode_items(log, _has_rows(log))
        weighting = self.pair_weighting(median_interval(log))
        return encoder, features, sum_moments(log, features, weighting)

    def encode_items(self, log: Log, has_rows: Array) -> tuple[ItemEncoder, Array]:
        """Return the encoder of items with rows, and the features of all items.

        Features are item x dimension. log: gives the item table; has_rows: a flag per item.
        TalerecError if the log has no item table, or it describes no item with rows.
        """
        types = find_types(log, has_rows)
        assert log.info is not None
        counts = hash_rows(log.info, types)
        table = log.info.filter(pl.Series(has_rows))
        encoder = ItemEncoder.fit(table, types, self.dims, counts[np.flatnonzero(has_rows)])
        features = encoder.encode(log.info, counts)
        if not features[has_rows].any():
            raise UndescribedItemsError(
                f"the item table says nothing of the log's items: 0 of {int(has_rows.sum()):,} have"
                " a word, category, number or vector in common with another item",
                "items",
            )
        return encoder, features

    def pair_weighting(self, interval: float) -> TaleWeighting:
        """Return how pairs of rows are weighted. interval: the log's median interval, in days."""
        return TaleWeighting(
            self.pace * interval, self.floor, self.window, self.trend, "both", self.same_time,
            self.max_history,
        )  # fmt: skip

    def query(self, histories: Histories) -> Query:
        """Return x F A of each history: a weight per dimension; x_i is exp(-lag / recency).

        A history without items that have features has no sources, and so no scores.
        """
        x, weights = self._item_weights(histories).rows(), self.fitted.weights
        codes = encode_queries(x, weights.matrix, weights.query_arrays["bilinear"])
        has_code = codes.any(axis=1)
        indptr = np.concatenate([[0], np.cumsum(has_code * codes.shape[1])])
        sources = np.tile(np.arange(codes.shape[1]), int(has_code.sum()))
        return Query(indptr, sources, codes[has_code].ravel())

    def _item_weights(self, histories: Histories) -> Query:
        """Return the weight exp(-lag / recency) of each distinct known item of each history."""
        times = histories.moments(joint=self.same_time == "joint")
        weights = self.fitted.weights
        return recency_query(weights, histories, times, self.recency, self.max_history)

    def _features(self, items: Array) -> Array:
        """Return the features of items (positions): item x dimension, float64."""
        features: Array = self.fitted.weights.matrix[:, items].T.astype(np.float64)
        return features

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of one history adds to scores of items, target x history row.

        history: the rows of exactly one user, oldest first. targets: item positions; `x` is not
        used. The contribution of an item that has several rows is in its last one, 0 in the others.
        """
        weights = self._item_weights(history)
        codes = weights.weight[:, None] * self._features(weights.source)
        bilinear = self.fitted.weights.query_arrays["bilinear"]
        shares = np.zeros((len(targets), len(history.item)))
        rows = last_rows(history, weights.source)
        shares[:, rows] = self._features(targets) @ (codes @ bilinear).T
        return shares

    def describe_links(self, items: Array, target: int) -> list[str]:
        """Return what each item and a target have in common: "same author; tags: horror".

        items, target: item positions, -1 for an unknown item. Categories come first, then the
        rarest words; "" if they share none.
        """
        fitted = self.fitted
        assert fitted.info is not None
        weights = dict(
            zip(*(fitted.weights.query_arrays[name].tolist() for name in ("terms", "idf")),
                strict=True)
        )  # fmt: skip
        return describe_shared(fitted.info, self._types, weights, items, target)

    @property
    def _types(self) -> list[ItemColumn]:
        """The types of the columns of the item table, as the fit found them; none in a blend."""
        return [ItemColumn(**column) for column in self.fitted.training.get(ITEM_COLUMNS, [])]

    def update_obstacle(self) -> str:
        """Return why `update` cannot add rows to the model, and what to do instead."""
        return (
            "content cannot be updated: refit it with all rows and the whole item table, or use"
            " tempo or ranker, which score new items, too"
        )

    def describe_learned(self) -> list[str]:
        """Return a sentence on the columns of the item table that scores are made of."""
        used = [f"{c.name} ({c.kind})" for c in self._types if c.kind not in UNUSED_KINDS]
        return [f"Items are compared by {', '.join(used)}."] if used else []

    def add_items(self, table: pl.DataFrame) -> Self:
        """Return a copy of the fitted model that scores more items, without a new fit.

        table: rows of the item table, with ids in item_id; columns of the fit that it does not have
        are empty. A row of an item that the model has replaces its row, and its features.
        """
        fitted = self.fitted
        placed = place_rows(fitted, table)
        features = np.pad(fitted.weights.matrix, ((0, 0), (0, placed.n_new)))
        features[:, placed.positions] = self.encoder.encode(placed.rows).T
        weights = Weights(_feature_block(features.T), query_arrays=fitted.weights.query_arrays)
        return self.with_params().set_fitted(extend_fitted(fitted, placed, weights))

    @property
    def encoder(self) -> ItemEncoder:
        """What makes the features of items from rows of the item table."""
        return ItemEncoder.restore(self._types, self.fitted.weights.query_arrays)

    def _check_loaded(self) -> None:
        """Raise TalerecError if arrays, loaded from an artifact, do not fit together."""
        weights, n_dims = self.fitted.weights, self.fitted.weights.blocks[0].sources
        shape = weights.query_arrays["bilinear"].shape
        require(shape == (n_dims, n_dims), f"bilinear has the shape {shape}, not {n_dims} square")


def _has_rows(log: Log) -> Array:
    """Return a flag per item: whether the log has a row of it."""
    flags: Array = np.bincount(log.item, minlength=len(log.items)) > 0
    return flags


def find_types(log: Log, has_rows: Array | None = None) -> list[ItemColumn]:
    """Return the types of a log's item table, detected from the rows of items with rows.

    has_rows: a flag per item; None: as the log's rows say. TalerecError if the log has no item
    table.
    """
    if log.info is None:
        raise TalerecError(
            "content needs an item table (`items`) with texts, categories, numbers or vectors",
            "items",
        )
    has_rows = _has_rows(log) if has_rows is None else has_rows
    table = log.info.filter(pl.Series(has_rows))
    return detect_columns(table, text=log.item_text, skip=log.item_skip)


def is_described(log: Log) -> bool:
    """Return whether content can be fitted: there are columns of items, and scikit-learn."""
    if log.info is None or log.info.width < 2 or find_spec("sklearn") is None:
        return False
    return any(column.kind not in UNUSED_KINDS for column in find_types(log))


def _feature_block(features: Array) -> Any:
    """Return features (item x dimension) as a block of weights, dimension x item."""
    values = np.ascontiguousarray(features.T, np.float32)
    return make_block(values, source_item=np.full(len(values), -1, np.int32))


@kernel
def encode_queries(x: QueryArrays, features: Array, bilinear: Array) -> Array:
    """Return x F A of each query, query x dimension, always summed in the same order.

    x: items and their weights; features: F', dimension x item; bilinear: A.
    """
    n_dims = len(features)
    codes = np.zeros((len(x.ptr) - 1, n_dims))
    total = np.empty(n_dims)
    for q in range(len(codes)):
        total[:] = 0.0
        for e in range(x.ptr[q], x.ptr[q + 1]):
            for f in range(n_dims):
                total[f] += x.share[e] * features[f, x.source[e]]
        for f in range(n_dims):
            for g in range(n_dims):
                codes[q, g] += total[f] * bilinear[f, g]
    return codes
