"""Training examples of the ranker: candidates of held-out queries with their features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.features import feature_names
from talerec.models.core import HoldoutQueries
from talerec.models.ranker.candidates import CandidateItems, FirstStage, Requests
from talerec.models.ranker.queries import QueryRound
from talerec.ranking import Mask, rank_queries
from talerec.runtime import Array

_K = 10  # ranks that count


class Examples(NamedTuple):
    """Held-out queries and their candidates with features, from which trees learn an order.

    All are of one kind (current or delayed), with seen items either hidden or allowed. A query of
    which the target is no candidate has no rows: no order of candidates finds it.
    """

    user: Array  # the user's position in the log, of each query
    part_gain: Array  # query x part (a first-stage model): NDCG@10 of the part's own list
    row_ptr: Array  # query q has the rows row_ptr[q]..row_ptr[q + 1], one per candidate
    rows: Array  # float32, candidates x features
    is_target: Array  # per row: whether the candidate is the item that came next

    def __len__(self) -> int:
        return len(self.user)

    def gains(self, scores: Array) -> Array:
        """Return the NDCG@10 of each query if candidates are ordered by `scores` (one per row).

        Of equal scores, the target is counted last.
        """
        gains = np.zeros(len(self))
        target_rows = np.flatnonzero(self.is_target)
        query = np.searchsorted(self.row_ptr, target_rows, side="right") - 1
        target_score = np.repeat(scores[target_rows], np.diff(self.row_ptr)[query])
        is_above = scores >= target_score  # all queries with rows have a target
        sums = np.concatenate([[0], np.cumsum(is_above)])
        rank = sums[self.row_ptr[query + 1]] - sums[self.row_ptr[query]] - 1
        gains[query] = gain_at_rank(rank + 1)
        return gains


def gain_at_rank(rank: Array) -> Array:
    """Return NDCG@10 of lists whose target has these ranks, from 1; 0 for no rank."""
    is_listed = (rank >= 1) & (rank <= _K)
    gains: Array = np.where(is_listed, 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)
    return gains


def build_examples(
    stage: FirstStage, held_out: QueryRound, which: Array, *, hide_seen: bool
) -> Examples:
    """Return the examples of some queries of a round, whose training rows the parts know.

    which: numbers of the queries. hide_seen: whether the candidates leave out the history's items.
    """
    queries = take_queries(held_out.queries, which)
    if not len(queries):
        no_gain = np.zeros((0, len(stage.parts)))
        return _no_examples(queries.user, no_gain, len(feature_names(stage.names)))
    histories = queries.histories
    assert histories.now is not None
    known_until = np.full(len(queries), held_out.known_until, np.int64)
    requests = Requests(histories, histories.now, known_until)
    mask = Mask.make(histories, hide_seen=hide_seen)
    candidates = stage.find_candidates(histories, mask)
    part_gain = np.empty((len(queries), len(stage.parts)))
    for p, (part, query) in enumerate(zip(stage.parts, candidates.queries, strict=True)):
        ranks = rank_queries(part.fitted.weights, query, mask, 0, queries.target).ranks
        part_gain[:, p] = gain_at_rank(ranks[:, int(hide_seen)])
    is_target = candidates.items == queries.target[:, None]
    hit = np.flatnonzero(is_target.any(axis=1))
    if not hit.size:
        return _no_examples(queries.user, part_gain, len(feature_names(stage.names)))
    chosen = requests.take(hit)
    shown = CandidateItems(
        candidates.items[hit], candidates.counts[hit],
        [part.query(chosen.histories) for part in stage.parts],
    )  # fmt: skip
    indptr, rows, _ = stage.build_features(chosen, shown)
    labels = np.zeros(len(rows), np.int8)
    labels[indptr[:-1] + is_target[hit].argmax(axis=1)] = 1
    sizes = np.zeros(len(queries), np.int64)
    sizes[hit] = shown.counts
    row_ptr = np.concatenate([[0], np.cumsum(sizes)])
    return Examples(queries.user, part_gain, row_ptr, rows, labels)


def _no_examples(user: Array, part_gain: Array, n_features: int) -> Examples:
    """Return the examples of queries of which no target is a candidate: they have no rows."""
    row_ptr = np.zeros(len(user) + 1, np.int64)
    rows = np.zeros((0, n_features), np.float32)
    return Examples(user, part_gain, row_ptr, rows, np.zeros(0, np.int8))


def take_queries(queries: HoldoutQueries, which: Array) -> HoldoutQueries:
    """Return the queries at positions `which`."""
    return HoldoutQueries(queries.histories.take(which), queries.target[which], queries.user[which])


def has_seen_target(queries: HoldoutQueries) -> Array:
    """Return a flag per query: whether its target is in its history."""
    histories: Histories = queries.histories
    length = histories.stop - histories.start
    query = np.repeat(np.arange(len(queries)), length)
    offset = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    items = histories.item[np.repeat(histories.start, length) + offset]
    seen: Array = np.bincount(query, items == queries.target[query], len(queries)) > 0
    return seen
