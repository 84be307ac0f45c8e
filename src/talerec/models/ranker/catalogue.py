"""A base class of rankers with item features: items of the item table without rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, replace
from typing import Any, Self

import polars as pl

from talerec.data import Log
from talerec.models.content import extend_fitted, find_types, place_rows
from talerec.models.core import ITEM_COLUMNS, UNSEEN_ITEMS, FitCache, Model, RecommenderModel
from talerec.models.ranker.content import encode_items
from talerec.models.ranker.state import RankerState, stores_content
from talerec.ranking import Weights
from talerec.runtime import Array


class CatalogueModel(RecommenderModel):
    """A model that scores items without rows where its fit stored content."""

    @property
    @abstractmethod
    def _state(self) -> RankerState:
        """The fitted parts, the trees and the verdicts."""

    @property
    def scores_catalogue(self) -> bool:
        """Whether the fit used item features, so that items without rows have scores."""
        return self._fitted is not None and stores_content(self._fitted.weights)

    def fit(self, log: Log | Any, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of a log, and from its item table; see `RecommenderModel.fit`.

        With item features, the model also has the items that only the item table has.
        """
        self._fitted = None
        super().fit(log, cache=cache)
        fitted = self.fitted
        if not stores_content(fitted.weights):
            return self
        assert fitted.log is not None
        whole = fitted.log.with_catalogue()
        training = {
            **fitted.training, "items": len(whole.items),
            UNSEEN_ITEMS: len(whole.items) - len(fitted.items),
            ITEM_COLUMNS: [asdict(column) for column in find_types(fitted.log)],
        }  # fmt: skip
        extended = replace(
            fitted, items=whole.items, info=whole.info, log=whole, training=training
        )  # fmt: skip
        return self.set_fitted(extended)

    def add_items(self, table: pl.DataFrame) -> Self:
        """Return a copy of the fitted model with scores for more items, without a new fit.

        table: rows of the item table, with ids in item_id. A row of an item that the model has
        replaces its row. TalerecError if the model was fitted without item features.
        """
        content_model, fitted = self._content_part, self.fitted
        if content_model is None:
            return super().add_items(table)
        extended = place_rows(fitted, table)
        state = self._state.add_items(len(extended.items), content_model.add_items(table))
        return self.with_params().set_fitted(extend_fitted(fitted, extended, state))

    def encode_catalogue(self, log: Log) -> Weights:
        """Return the weights with scores for all items of a log, whose item table has changed.

        log: the training rows, with the items of the fit and then new ones, and their item table.
        TalerecError if a part takes no new items.
        """
        part = self._content_part
        if part is None:
            return self.fitted.weights
        return self._state.add_items(len(log.items), encode_items(part, log))

    @property
    def _content_part(self) -> Model | None:
        """The content model among the parts; None without item features."""
        first = self._state.first
        return None if first.content is None else first.parts[first.content.part]

    def describe_content(self) -> list[str]:
        """Return a sentence on the content that the fit took in; empty if it took none in."""
        if self._fitted is None or (stage := self._state.first.content) is None:
            return []
        n_new = int(stage.is_new.sum())
        noun = "item" if n_new == 1 else "items"
        return [f"Content of the item table is used: {n_new:,} {noun} without events are scored."]

    def describe_links(self, items: Array, target: int) -> list[str] | None:
        """Return what each item and a target have in common; None without content.

        items, target: item positions, -1 for an unknown item.
        """
        part = self._content_part
        return None if part is None else part.describe_links(items, target)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """Return the first part's items after one item alone: columns item_id, score, rank.

        item: an external id; an unknown one is a TalerecError. k: the length of the list. For an
        item without rows, they are the items that are like it by content.
        """
        first = self._state.first
        position = int(self.fitted.items.positions([item], "item", "error")[0])
        if first.content is not None and first.content.is_new[position]:
            return first.parts[first.content.part].similar_items(item, k)
        return first.parts[0].similar_items(item, k)
