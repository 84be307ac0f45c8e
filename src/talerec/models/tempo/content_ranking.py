"""Rank the targets of held-out queries under many settings of content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Log
from talerec.models.core import HoldoutQueries, Model
from talerec.models.tempo.content import ContentWeights, ItemScores
from talerec.ranking import Query, Weights
from talerec.runtime import Array, kernel, sparse

LIFETIMES = (30.0, 90.0, 180.0, 365.0)  # of freshness that are compared, in days
HIDDEN = -1e9  # the score of an item that the user has
CHUNK = 16  # queries that a thread takes at a time

_K = 10
_MANY = 2  # the class of items with five rows or more
LEVEL_LISTS = 128  # lists whose tenth score is the size of tempo's scores


class HeldOutCutoff(NamedTuple):
    """Models of the rows before a cutoff, and queries for rows after it.

    Parameters
    ----------
    before : Log
        The rows before the cutoff, with the items of the whole log.
    tempo : Model
        Tempo without content, fitted to them.
    scores : ItemScores
        The scores by content, with any weights.
    queries : HoldoutQueries
        Users' first rows after the cutoff.
    tastes : dict
        How much freshness counts in each query, by lifetime.
    level : float
        The median tenth score of a list of tempo.
    cutoff : int
        Its time, in microseconds.
    """

    before: Log
    tempo: Model
    scores: ItemScores
    queries: HoldoutQueries
    tastes: dict[float, Array]
    level: float
    cutoff: int

    @property
    def is_rare(self) -> Array:
        """A flag per query: whether its target has fewer than five rows before the cutoff."""
        flags: Array = self.scores.classes[self.queries.target] < _MANY
        return flags

    def hide_seen(self, scores: Array, first: int) -> None:
        """Give the items of histories the score `HIDDEN`, if the target is not among them.

        scores: query x item, for the queries from number `first` on.
        """
        histories = self.queries.histories
        for row in range(len(scores)):
            q = first + row
            items = histories.item[histories.start[q] : histories.stop[q]]
            items = items[items >= 0]
            if int(self.queries.target[q]) not in items:
                scores[row, items] = HIDDEN


class WeightStack(NamedTuple):
    """The weights of several settings as arrays, for `rank_target`.

    by_class: setting x class. freshness: of each setting. lifetime: its number in `LIFETIMES`.
    """

    by_class: Array
    freshness: Array
    lifetime: Array

    @classmethod
    def build(cls, weights: list[ContentWeights]) -> WeightStack:
        """Return the weights of a list, in its order."""
        lifetimes = [LIFETIMES.index(each.lifetime) for each in weights]
        by_class = np.array([each.by_class for each in weights])
        return cls(by_class, np.array([each.freshness for each in weights]), np.array(lifetimes))


@kernel
def rank_target(
    base: Array, z: Array, newness: Array, classes: Array, target: int, stack: WeightStack,
    out: Array,
) -> None:  # fmt: skip
    """Write the NDCG@10 of one query's target under each setting of a stack.

    base: scores of tempo, 0 for none. z: scores by content. newness: lifetime x item. classes: of
    the items. Items of a class without weight need a score of tempo.
    """
    for s in range(len(out)):
        fresh, row = stack.freshness[s], newness[stack.lifetime[s]]
        weight = stack.by_class[s, classes[target]]
        out[s] = 0.0
        if weight == 0 and base[target] <= 0:
            continue
        goal = base[target] + weight * (z[target] + fresh * row[target])
        rank = 1
        for i in range(len(base)):
            weight = stack.by_class[s, classes[i]]
            if i != target and (base[i] > 0 or (weight != 0 and base[i] > HIDDEN)):
                rank += base[i] + weight * (z[i] + fresh * row[i]) >= goal
                if rank > _K:
                    break
        if rank <= _K:
            out[s] = 1 / np.log2(rank + 1)


def median_tenth_score(weights: Weights, x: Query) -> float:
    """Return the median of the tenth score of some queries' lists; a small number if it is 0."""
    base = score_all_items(weights, x, 0, min(len(x), LEVEL_LISTS))
    k = min(_K, base.shape[1])
    tenth = np.partition(base, -k, axis=1)[:, -k]
    return max(float(np.median(tenth)), 1e-9)


def score_all_items(weights: Weights, x: Query, a: int, b: int) -> Array:
    """Return the scores of all items for queries a to b - 1: query x item, 0 for none."""
    total = np.zeros((b - a, weights.items))
    span = slice(x.ptr[a], x.ptr[b])
    query = np.repeat(np.arange(b - a), np.diff(x.ptr[a : b + 1]))
    source, share = x.source[span], x.weight[span]
    for number, block in enumerate(weights.blocks):
        first = weights.first_source(number)
        inside = (source >= first) & (source < first + block.sources)
        places = (query[inside], source[inside] - first)
        rows = sparse.csr_array((share[inside], places), shape=(b - a, block.sources))
        part = rows @ block.matrix
        total += block.weight * (part if isinstance(part, np.ndarray) else part.toarray())
    return total
