"""The contract of models for linear models: scores are x @ B.

A linear model defines `learn_weights` (B) and `query` (x of a history); `Model` ranks and explains
with them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from talerec.artifact import Bundle
from talerec.data import Histories, Log
from talerec.models.core import registry
from talerec.models.core.checks import check_fitted, check_item_sources
from talerec.models.core.contract import RecommenderModel
from talerec.models.core.persistence import Fitted
from talerec.models.core.scorer import TopItems, join_reasons
from talerec.ranking import (
    ExplainedLists,
    Mask,
    Query,
    Ranked,
    Weights,
    explain_queries,
    rank_queries,
)
from talerec.runtime import Array, Clock


class Model(RecommenderModel):
    """A linear model: the score of an item is x @ B for a history's query x and weights B.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn_weights`
    and `query`; if the sources of a query are not items of the history (`sources_are_items` is
    false), `contributions` too.

    Examples
    --------
    >>> import talerec as tr
    >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
    >>> model.recommend_histories([[model.item_ids[0]]], k=1).columns
    ['history', 'item_id', 'score', 'rank']
    """

    sources_are_items: ClassVar[bool] = True  # rows of B stand for items of the history
    weighs_items = registry.FormerAttribute("weighs_items")

    @abstractmethod
    def learn_weights(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return the weights B for a log, and the name of the solver (None: nothing was solved).

        Parameters
        ----------
        log : Log
            The training rows.
        clock : Clock
            Measures the time of steps: `with clock("gram"): ...`.

        Returns
        -------
        tuple of Weights and str or None
            B has a row per source (mostly an item of a history) and a column per item.
        """

    @abstractmethod
    def query(self, histories: Histories) -> Query:
        """Return the weight of each source for each history: the rows x of scores x @ B.

        Parameters
        ----------
        histories : Histories
            The items and times of each history, and the request times.
        """

    @property
    def weights(self) -> Any:
        """B, a NumPy or SciPy CSR array: rows are sources (mostly items), columns items."""
        return self.fitted.weights.matrix

    def learn_from(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Return `learn_weights` of the log."""
        return self.learn_weights(log, clock)

    def rank_masked(
        self, histories: Histories, mask: Mask, k: int, targets: Array | None = None
    ) -> Ranked:
        """Return the top k items that a mask allows, and ranks of `targets` (one per history).

        mask: which items may be listed for each history. targets: item positions; None: no ranks. A
        `Ranked` has items, scores, list lengths and ranks, a row per history.
        """
        return rank_queries(self.fitted.weights, self.query(histories), mask, k, targets)

    def rank_masked_with_reasons(
        self, histories: Histories, mask: Mask, k: int, n_reasons: int
    ) -> ExplainedLists:
        """Return the top k items that a mask allows, each with its reasons.

        The reasons of an item are the `n_reasons` history items that contribute most to its score x
        @ B. mask: which items may be listed for each history. If rows of B do not stand for items
        (`sources_are_items` is false), the model's `contributions` are used.
        """
        query, weights = self.query(histories), self.fitted.weights
        if self.sources_are_items:
            return explain_queries(weights, query, mask, k, n_reasons)
        lists = TopItems(*rank_queries(weights, query, mask, k)[:3])
        contributions = self._explain_query(query, histories, lists.listed())
        return join_reasons(histories, lists, contributions, n_reasons)

    def explain_targets(self, histories: Histories, targets: Sequence[Array]) -> Iterator[Array]:
        """Yield, per history, what each row (column) adds to the scores of its targets (rows).

        targets: an array of item positions per history.
        """
        return self._explain_query(self.query(histories), histories, targets)

    def _explain_query(
        self, query: Query, histories: Histories, targets: Sequence[Array]
    ) -> Iterator[Array]:
        """Yield, per history, the contributions of its rows to the scores of its targets.

        A contribution matrix is target x history row. query: the history vectors x; scores are x @
        B. targets: an array of item positions per history.
        """
        for h, items in enumerate(targets):
            yield self.contributions(query.select(h), histories.slice(h, h + 1), items)

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """Return what each row of one history (column) contributes to targets' scores (rows).

        x: the history's query, the weights of its sources (rows of B, here items); scores are x @
        B. targets: item positions. An item's contribution is in its last row of the history; blocks
        (parts of B stored apart) may each have one.
        """
        weights = self.fitted.weights
        parts, items = weights.contributions(x, targets), weights.source_items(x)
        contributions = np.zeros((len(targets), len(history.item)))
        for block in range(len(weights.blocks)):
            in_block = (items >= 0) & self._in_block(x, block)
            contributions[:, last_rows(history, items[in_block])] += parts[:, in_block]
        return contributions

    def base_score(self, history: Histories, target: int) -> float | None:
        """Return the part of an item's score that no history row contributes; None without one.

        target: an item position. See `base_scores`.
        """
        scores = self.base_scores(history, np.array([target]))
        return None if scores is None else float(scores[0])

    def base_scores(self, history: Histories, targets: Array) -> Array | None:
        """Return the part of each target's score that no history row contributes, or None.

        It is the item's base score, such as its popularity, plus what sources that stand for no
        item (source_item -1) add. targets: item positions. None: no item has such a part.
        """
        weights = self.fitted.weights
        has_other_sources = self.sources_are_items and any(
            block.source_item is not None and bool((block.source_item < 0).any())
            for block in weights.blocks
        )
        if weights.base is None and not has_other_sources:
            return None
        base = np.zeros(len(targets))
        if weights.base is not None:
            base += np.nan_to_num(weights.base[targets])
        if not has_other_sources:
            return base
        x = self.query(history)
        parts = weights.contributions(x, targets)[:, self._is_base_source(x)]
        base += np.ascontiguousarray(parts).sum(axis=1)
        return base

    def _is_base_source(self, x: Query) -> Array:
        """Return a flag per source of a query: whether it stands for no item of the history."""
        flags: Array = self.fitted.weights.source_items(x) < 0
        return flags

    def row_weights(self, history: Histories) -> Array | None:
        """Return the query weight of each row of one history; None if sources are not items.

        Scores are x @ B: the weight of an item in x is at the item's last row; other rows have 0.
        Only sources of the first block of B count.
        """
        if not self.sources_are_items:
            return None
        x = self.query(history)
        in_first = self._in_block(x, 0)
        weights = np.zeros(len(history.item))
        weights[last_rows(history, x.source[in_first])] = x.weight[in_first]
        return weights

    def _in_block(self, x: Query, block: int) -> Array:
        """Return a flag per source of a query: whether it is a row of block number `block` of B.

        B is stored as blocks of rows; sources are numbered through all blocks.
        """
        sources = x.source - self.fitted.weights.first_source(block)
        in_block: Array = (sources >= 0) & (sources < self.fitted.weights.blocks[block].sources)
        return in_block

    def _check_loaded(self) -> None:
        """Raise TalerecError if sources are items, but B does not have one row per item.

        Scores are x @ B; sources are the rows of the weights B, in its first block.
        """
        if self.sources_are_items:
            check_item_sources(self.fitted)


def restore_model(model: RecommenderModel, bundle: Bundle, *, verify: bool = False) -> None:
    """Set the fit that an artifact stores on a model with the artifact's parameters.

    bundle: the contents of the artifact (a saved model): facts, arrays and tables. Raises
    TalerecError if arrays are inconsistent; `verify` checks numbers of large arrays, too.
    """
    fitted = Fitted.restore(bundle)
    check_fitted(fitted, verify=verify)
    model.set_fitted(model._upgrade_fitted(fitted))
    model._check_loaded()


def last_rows(history: Histories, items: Array) -> list[int]:
    """Return, for each item position, its last row in one history (row 0 is the oldest).

    All items must occur in the history.
    """
    last = {item: row for row, item in enumerate(history.item.tolist())}
    return [last[item] for item in items.tolist()]
