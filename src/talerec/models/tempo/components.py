"""Score components of held-out queries: what scores of candidate items are summed from.

A score is a weighted sum of components. For each held-out query, the components of some candidate
items are computed once; `search` then compares weights of components by sums, without new queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from talerec.models.core import HoldoutQueries
from talerec.ranking import GroupedQueries, Weights, add_group_contributions
from talerec.runtime import Array, kernel, run_chunks, sized_chunks

_COMPONENT_CHUNK = 256  # queries per task of a thread


class Candidates(NamedTuple):
    """Items whose scores are compared, query x candidate; candidate 0 is the target.

    A query is a history whose next item, the target, was held out. Items are positions in the
    vocabulary; entries from counts[q] on mean nothing.
    """

    items: Array
    counts: Array  # candidates of each query
    seen: Array  # query x candidate: whether it is in the history


class ScoreComponents(NamedTuple):
    """What the scores of each query's candidates are summed from (weights times components).

    A component is what one kind of source (history items at some lag, repeats, popularity) adds.

    values          component x query x candidate (float32); candidate 0 is the target
    counts          candidates of each query
    seen            query x candidate: whether it is in the history
    segment         segment (group of requests) of each query: weights differ by segment
    log_popularity  query x candidate: log of the item's popularity, relative to the mean
    user            a number for each query, equal for queries of one user
    """

    values: Array
    counts: Array
    seen: Array
    segment: Array
    log_popularity: Array
    user: Array


def merge_candidates(
    queries: HoldoutQueries, lists: Sequence[Array], target_mask: Array
) -> Candidates:
    """Return each query's candidates: its target, then allowed items of its lists, once each.

    lists: arrays query x rank of items, -1 for none. target_mask: a flag per allowed item.
    """
    histories = queries.histories
    joined = np.concatenate([queries.target[:, None], *lists], axis=1).astype(np.int32)
    rows = (histories.start, histories.stop, histories.item)
    mark = np.zeros(len(target_mask), np.int64)
    items, counts, seen = _deduplicate_lists(joined, *rows, target_mask, mark)
    n = int(counts.max(initial=1))
    return Candidates(np.ascontiguousarray(items[:, :n]), counts, np.ascontiguousarray(seen[:, :n]))


@kernel
def _deduplicate_lists(
    lists: Array, start: Array, stop: Array, item: Array, target_mask: Array, mark: Array
) -> tuple[Array, Array, Array]:
    """Return (items, counts, seen): lists without duplicates, -1 or disallowed items.

    lists: query x rank. items and seen have its shape; counts[q] entries of row q are filled, seen
    tells whether the history has them. The history of query q is item[start[q]:stop[q]], -1 for
    unknown items. target_mask: a flag per allowed item. mark: a 0 for every item, overwritten.
    """
    items = np.zeros(lists.shape, np.int32)
    seen, counts = np.zeros(lists.shape, np.bool_), np.zeros(len(lists), np.int64)
    for q in range(len(lists)):
        in_list, in_history = 2 * q + 2, 2 * q + 1
        for r in range(start[q], stop[q]):
            if item[r] >= 0:
                mark[item[r]] = in_history
        for c in range(lists.shape[1]):
            i = lists[q, c]
            if i >= 0 and target_mask[i] and mark[i] != in_list:
                items[q, counts[q]], seen[q, counts[q]] = i, mark[i] == in_history
                mark[i] = in_list
                counts[q] += 1
    return items, counts, seen


def sum_components(
    weights: Weights, queries: GroupedQueries, candidates: Candidates, n_components: int
) -> Array:
    """Return the scores of candidates by component: component x query x candidate, float32.

    weights: rows are sources, columns items. queries: each query's sources with their weights, and
    the component (group of sources) that each belongs to. candidates: the items to score.
    """
    items, counts, _ = candidates
    values = np.zeros((n_components, *items.shape), np.float32)

    def work(a: int, b: int) -> None:
        sources = (weights.kernel_weights, queries, items, counts, weights.items)
        add_group_contributions(*sources, a, b, values)

    run_chunks("weigh", work, sized_chunks(len(items), _COMPONENT_CHUNK))
    return values
