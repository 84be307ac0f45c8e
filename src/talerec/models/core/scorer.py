"""The operations of a fitted model that inference needs, and the lists that they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.models.core.persistence import Fitted
from talerec.ranking import ExplainedLists, FamilyShare, Mask, Ranked, explain_list
from talerec.runtime import Array


class Scorer(ABC):
    """The operations of a fitted model that recommendation, evaluation and explanation need.

    Items are positions in the model's item table. A subclass defines the abstract operations;
    those with reasons build on them.
    """

    name: ClassVar[str]  # of the model

    @property
    @abstractmethod
    def fitted(self) -> Fitted:
        """The result of the fit."""

    @property
    def takes_context(self) -> bool:
        """Whether the model uses context columns of the log."""
        return False

    @property
    def context_columns(self) -> list[tuple[str, bool]]:
        """The name of each context column of the fit, and whether it has numbers."""
        return []

    @abstractmethod
    def rank_masked(
        self, histories: Histories, mask: Mask, k: int, targets: Array | None = None
    ) -> Ranked:
        """Return the top k items that a mask allows, and the ranks of one target per history.

        mask: which items may be listed for each history. `targets` holds an item position per
        history; None: no ranks are computed. A `Ranked` has items, scores, list lengths and ranks,
        a row per history.
        """

    @abstractmethod
    def explain_targets(self, histories: Histories, targets: Sequence[Array]) -> Iterator[Array]:
        """Yield, per history, what each of its rows (columns) adds to its targets' scores (rows).

        `targets` holds an array of item positions per history.
        """

    @abstractmethod
    def base_score(self, history: Histories, target: int) -> float | None:
        """Return the part of an item's score that no history row contributes; None without one."""

    def rank_masked_with_reasons(
        self, histories: Histories, mask: Mask, k: int, n_reasons: int
    ) -> ExplainedLists:
        """Return the top k items that a mask allows, with the history items that explain them.

        The reasons of an item are the `n_reasons` history items that contribute most to its score.
        mask: which items may be listed for each history.
        """
        lists = TopItems(*self.rank_masked(histories, mask, k)[:3])
        return self.explain_lists(histories, lists, n_reasons, hide_seen=mask.hide_seen)

    def explain_lists(
        self, histories: Histories, lists: TopItems, n_reasons: int,
        boosts: Array | None = None, *, hide_seen: bool,
    ) -> ExplainedLists:  # fmt: skip
        """Return lists that this model ranked, with the history items that explain them.

        n_reasons: history items per listed item. boosts: what boosts added to each of `lists`'
        scores, None for nothing; hide_seen: whether the lists leave out history items. Models whose
        explanations depend on how a list came about need both; here they are not used.
        """
        contributions = self.explain_targets(histories, lists.listed())
        return join_reasons(histories, lists, contributions, n_reasons)

    def explain_families(self, history: Histories, target: int) -> list[FamilyShare] | None:
        """Return what each family of features adds to an item's score; they add up to the score.

        history: one history. target: an item position. None, as here, for models whose score is no
        sum over families of features.
        """
        return None


class TopItems(NamedTuple):
    """Recommendation lists, a row per history: item positions and scores, in k columns.

    `counts` holds the length of each list; columns from there on hold -1 and NaN.
    """

    items: Array  # int32, list x k, best first
    scores: Array  # float64, list x k
    counts: Array  # per list

    @classmethod
    def empty(cls, n_lists: int, k: int) -> TopItems:
        """Return `n_lists` lists with room for k items each, and no items yet.

        Items are -1, scores NaN and counts 0.
        """
        items, scores = np.full((n_lists, k), -1, np.int32), np.full((n_lists, k), np.nan)
        return cls(items, scores, np.zeros(n_lists, np.int64))

    def listed(self) -> list[Array]:
        """Return the items of each list."""
        return [row[:count] for row, count in zip(self.items, self.counts, strict=True)]


def join_reasons(
    histories: Histories, lists: TopItems, contributions: Iterable[Array], n_reasons: int
) -> ExplainedLists:
    """Return lists with, for each item, the `n_reasons` history items that contribute most.

    lists: the top items of each history. contributions: per history, what its rows (columns) add to
    the scores of its listed items (rows).
    """
    answers = []
    for h, (items, parts) in enumerate(zip(lists.listed(), contributions, strict=True)):
        history_items = histories.item[histories.start[h] : histories.stop[h]]
        scores = lists.scores[h, : len(items)]
        answers.append(explain_list(items, scores, n_reasons, history_items, parts))
    return ExplainedLists.concatenate(answers)
