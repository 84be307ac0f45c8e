"""A base class of tempo with item features: fit, updates and new items."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import polars as pl

from talerec.data import Histories, ItemColumn, Log
from talerec.errors import UndescribedItemsError
from talerec.models.core import (
    AUTO,
    ITEM_COLUMNS,
    UNSEEN_ITEMS,
    FitCache,
    Fitted,
    TopItems,
    join_reasons,
    last_rows,
    require,
)
from talerec.models.tempo.descriptions import describe_content
from talerec.models.tempo.plan_cache import PlanCachingModel
from talerec.models.tempo.popularity import PopularitySnapshots
from talerec.models.tempo.query import CONTENT_BLOCK, CONTENT_PREFIX, check_weights, split_blocks
from talerec.ranking import (
    DenseBlock,
    ExplainedLists,
    FamilyShare,
    Mask,
    Query,
    Weights,
    rank_queries,
)
from talerec.runtime import Array

if TYPE_CHECKING:  # at run time only models with content import it
    from talerec.models.tempo.content import ItemScores

#: Training fact: the users, gain and standard error by which content was judged; empty if the item
#: table had no item without rows.
CONTENT = "content"

_MAX_ITEMS = 200_000  # of log and item table, up to which a query's cost is bearable
_MAX_DENSE = 12_000  # if item-item weights are stored densely


class ContentTakingModel(PlanCachingModel):
    """A model that adds scores by content, where held-out queries gain from them.

    Content is learned only where the item table has items without rows in the log.
    """

    content: str
    _scores_cache: tuple[Fitted, ItemScores | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_scores_cache"}

    @property
    def scores_catalogue(self) -> bool:
        """Whether the fit used item features, so that items without rows have scores."""
        return self._fitted is not None and self._content is not None

    @property
    def _content(self) -> ItemScores | None:
        """The scores by content of the fit; None without. Cached for the fit."""
        if self._scores_cache is None or self._scores_cache[0] is not self.fitted:
            self._scores_cache = (self.fitted, _restore_scores(self.fitted))
        return self._scores_cache[1]

    def fit(self, log: Log | Any, *, cache: FitCache | None = None) -> Self:
        """Learn from a log; see `RecommenderModel.fit`.

        With `content=auto`, items that only the item table has are included, too, if the table has
        such items and held-out queries gain from scores by content.
        """
        self._fitted = None
        super().fit(log, cache=cache)
        fitted_log = self.fitted.log
        assert fitted_log is not None
        if self.content == AUTO and self._can_take_content(fitted_log):
            self._take_in_content(fitted_log.with_catalogue())
        elif self.content == AUTO and (table := fitted_log.catalogue) is not None:
            self.fitted.training.update({CONTENT: {}} if table.is_empty() else {})
        return self

    def _take_in_content(self, log: Log) -> None:
        """Add scores by content to the fit, if held-out queries gain from them.

        log: the rows of the fit, with the items that only the item table has.
        """
        from talerec.models.content import Content
        from talerec.models.tempo.categories import CategoryScores
        from talerec.models.tempo.content import ItemScores
        from talerec.models.tempo.content_learning import DIMS, learn_content_weights

        plain = self.with_params(content="off")
        choice = learn_content_weights(lambda rows: plain.with_params().fit(rows), log, self)
        verdict = {"users": choice.n_users, "gain": choice.gain, "error": choice.error}
        self.fitted.training[CONTENT] = verdict
        if choice.weights is None:
            return
        try:
            model = Content(dims=DIMS).fit(log)
        except UndescribedItemsError:
            return
        scores = ItemScores.build(model, log.counts(), choice.weights)
        if choice.category is not None:
            scores = replace(scores, categories=CategoryScores.build(log, *choice.category))
        fitted, n_unseen = self.fitted, len(log.items) - len(self.fitted.items)
        training = {
            **fitted.training, "items": len(log.items), UNSEEN_ITEMS: n_unseen,
            ITEM_COLUMNS: [asdict(column) for column in scores.encoder.types],
        }  # fmt: skip
        extended = replace(
            fitted, weights=_add_content(fitted.weights, scores), items=log.items, info=log.info,
            log=log, training=training,
        )  # fmt: skip
        self.set_fitted(extended)

    def add_items(self, table: pl.DataFrame) -> Self:
        """Return a copy of the fitted model with scores for more items, without a new fit.

        table: rows of the item table, with ids in item_id. A row of an item that the model has
        replaces its row. TalerecError if the model was fitted without item features.
        """
        scores, fitted = self._content, self.fitted
        if scores is None:
            return super().add_items(table)
        from talerec.models.content import extend_fitted, place_rows

        placed = place_rows(fitted, table)
        more = scores.with_rows(placed.rows, placed.positions, len(placed.items))
        weights = _add_content(fitted.weights, more)
        return self.with_params().set_fitted(extend_fitted(fitted, placed, weights))

    def encode_catalogue(self, log: Log) -> Weights:
        """Return the weights with scores for all items of a log, whose item table has changed.

        log: the training rows, with the items of the fit and then new ones, and their item table.
        """
        return self.restore_content(self.fitted.weights, log)

    def restore_content(self, weights: Weights, log: Log) -> Weights:
        """Return the weights of an update with the scores by content of the fit, if it has any.

        weights: without content. log: old and new rows, with their item table.
        """
        scores = self._content
        if scores is None or log.info is None:
            return weights
        from talerec.models.tempo.categories import CategoryScores
        from talerec.models.tempo.content import classify_items, mean_newness, read_days

        old = scores.categories
        categories = old and CategoryScores.build(log, old.column, old.weight)
        encoder, days = scores.encoder, read_days(log.info, scores.encoder.types)
        updated = replace(
            scores, features=np.ascontiguousarray(encoder.encode(log.info).T), days=days,
            classes=classify_items(log.counts()), log_end=int(log.time.max()),
            newness=mean_newness(log, days, scores.weights.lifetime), categories=categories,
        )  # fmt: skip
        return _add_content(weights, updated)

    def describe_content(self) -> list[str]:
        """Return sentences on whether content is used, and how it was judged."""
        if self._fitted is None:
            return []
        scores, verdict = self._content, self.fitted.training.get(CONTENT)
        return [] if scores is None and verdict is None else describe_content(scores, verdict)

    def append_content(self, x: Query, histories: Histories) -> Query:
        """Return queries with the sources of content added, if the fit used item features."""
        scores = self._content
        if scores is None:
            return x
        return scores.append_to(x, self.fitted.weights, histories, self.max_history)

    # -- explanations --

    def rank_masked_with_reasons(
        self, histories: Histories, mask: Mask, k: int, n_reasons: int
    ) -> ExplainedLists:
        """Return the top k items that a mask allows, each with the history items that explain it.

        What content adds to a score belongs to the items of the history that are alike.
        """
        query = self.query(histories)
        if not self._is_content_source(query).any():
            return super().rank_masked_with_reasons(histories, mask, k, n_reasons)
        lists = TopItems(*rank_queries(self.fitted.weights, query, mask, k)[:3])
        contributions = self._explain_query(query, histories, lists.listed())
        return join_reasons(histories, lists, contributions, n_reasons)

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of one history (column) contributes to targets' scores (rows).

        What content adds is divided among the rows; see `Model.contributions`.
        """
        shares = super().contributions(x, history, targets)
        if (scores := self._content) is not None and self._is_content_source(x).any():
            from talerec.models.tempo.content_explaining import content_contributions

            weights = self.fitted.weights
            items, added = content_contributions(
                scores, weights, history, targets, self.max_history
            )
            shares[:, last_rows(history, items)] += added
        return shares

    def describe_links(self, items: Array, target: int) -> list[str] | None:
        """Return what each item and a target have in common; None without content.

        items, target: item positions, -1 for an unknown item.
        """
        if (scores := self._content) is None or (table := self.fitted.info) is None:
            return None
        from talerec.models.tempo.content_explaining import describe_common

        return describe_common(scores, table, items, target)

    def describe_base(self, history: Histories, target: int) -> str | None:
        """Return "new: DATE" if newness adds to the score of a target; None if not."""
        families = self.explain_families(history, target) or []
        return next((each.reason for each in families if each.family == "newness"), None)

    def explain_families(self, history: Histories, target: int) -> list[FamilyShare] | None:
        """Return what history, popularity, content and newness add to an item's score.

        history: one history. target: an item position. They add up to the score. None where content
        is not used.
        """
        scores, weights, x = self._content, self.fitted.weights, self.query(history)
        if scores is None or x.source.max(initial=0) < weights.first_source(CONTENT_BLOCK):
            return None
        from talerec.models.tempo.content_explaining import content_contributions, list_families

        targets = np.array([target])
        items, added = content_contributions(scores, weights, history, targets, self.max_history)
        best = items[added[0].argmax()] if added.size else -1
        links = self.describe_links(np.array([best]), target) or [""]
        return list_families(scores, weights, x, target, links[0])

    def _is_base_source(self, x: Query) -> Array:
        flags: Array = super()._is_base_source(x) & ~self._is_content_source(x)
        return flags

    def _is_content_source(self, x: Query) -> Array:
        """Return a flag per source of a query: whether it is a dimension of content."""
        if self._content is None:
            return np.zeros(len(x.source), bool)
        return self._in_block(x, CONTENT_BLOCK)

    def base_scores(self, history: Histories, targets: Array) -> Array | None:
        """Return what popularity adds to the scores of items; None if it has no weight."""
        stored = PopularitySnapshots.from_arrays(None, self.fitted.weights.query_arrays)
        has_popularity = self.params["popularity_weight"] != 0 and len(stored.lifetime) > 0
        has_base = has_popularity or self._content is not None
        return super().base_scores(history, targets) if has_base else None

    def _upgrade_fitted(self, fitted: Fitted) -> Fitted:
        return replace(fitted, weights=split_blocks(fitted.weights))

    def _check_loaded(self) -> None:
        super()._check_loaded()
        check_weights(self.fitted.weights)
        scores, weights = self._content, self.fitted.weights
        n_content = 0 if scores is None else 2 + (scores.categories is not None)
        n_blocks = len(weights.blocks)
        require(n_blocks == CONTENT_BLOCK + n_content, f"there are {n_blocks} blocks")
        if scores is not None:
            scores.check(weights.items)
            sizes = [block.sources for block in weights.blocks[CONTENT_BLOCK:]]
            expected = [len(scores.features) + 1, len(scores.edges)]
            if scores.categories is not None:
                expected.append(len(scores.categories.keys) + 1)
            require(sizes == expected, f"content has {sizes} sources, not {expected}")

    def _can_take_content(self, log: Log) -> bool:
        """Return whether content can be learned: the item table has items without rows.

        log: of the fit.
        """
        if log.catalogue is None or log.catalogue.is_empty() or log.unit == "none":
            return False
        from talerec.models.content import is_described

        n_items = len(log.items) + len(log.catalogue)
        is_dense = isinstance(self.fitted.weights.blocks[0], DenseBlock)
        return n_items <= (_MAX_DENSE if is_dense else _MAX_ITEMS) and is_described(log)


def _restore_scores(fitted: Fitted) -> ItemScores | None:
    """Return the scores by content that a fit stored; None without item features."""
    arrays = fitted.weights.query_arrays
    if not any(name.startswith(CONTENT_PREFIX) for name in arrays):
        return None
    from talerec.models.tempo.content import ItemScores

    types = [ItemColumn(**each) for each in fitted.training.get(ITEM_COLUMNS, [])]
    return ItemScores.restore(arrays, types)


def _add_content(weights: Weights, scores: ItemScores) -> Weights:
    """Return tempo's weights with content, in place of the content that they have.

    weights: of the first items that `scores` has.
    """
    from talerec.models.tempo.query_parts import pad_weights

    blocks = [*pad_weights(weights, len(scores.classes)), *scores.blocks()]
    return Weights(blocks, query_arrays={**weights.query_arrays, **scores.to_arrays()})
