"""Training examples of the ranker: candidates of held-out queries with their features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.features import feature_names
from talerec.models.core import HoldoutQueries
from talerec.models.ranker.candidates import FirstStage, Requests
from talerec.models.ranker.queries import QueryRound
from talerec.ranking import Mask
from talerec.runtime import Array, run_chunks, sized_chunks

_BLOCK = 256  # queries that a thread takes at a time
_K = 10  # ranks that count


class Examples(NamedTuple):
    """Held-out queries and their candidates with features, from which trees learn an order.

    All are of one kind (current or delayed), with seen items either hidden or allowed. A query of
    which the target is not a candidate has no rows: no order of candidates finds it.
    """

    user: Array  # the user's position in the log, of each query
    part_gain: Array  # query x part (a first-stage model): NDCG@10 of the part's own list
    row_ptr: Array  # query q has the rows row_ptr[q]..row_ptr[q + 1], one per candidate
    rows: Array  # float32, candidates x features
    is_target: Array  # per row: whether the candidate is the item that came next

    def __len__(self) -> int:
        return len(self.user)

    @classmethod
    def join(cls, sets: Sequence[Examples]) -> Examples:
        """Return the queries of several sets of examples, one set after the other."""
        if len(sets) == 1:  # needs no copy
            return sets[0]
        sizes = np.concatenate([np.diff(each.row_ptr) for each in sets])
        return cls(
            np.concatenate([each.user for each in sets]),
            np.concatenate([each.part_gain for each in sets]),
            np.concatenate([[0], np.cumsum(sizes)]),
            np.concatenate([each.rows for each in sets]),
            np.concatenate([each.is_target for each in sets]),
        )

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

    which: numbers of the queries; a target of -1 is not a candidate. hide_seen: whether the
    candidates leave out the history's items.
    """
    queries = take_queries(held_out.queries, which)
    assert queries.histories.now is not None
    chunks = sized_chunks(len(queries), _BLOCK)
    part_gain = np.empty((len(queries), len(stage.parts)))
    sizes = np.zeros(len(queries), np.int64)
    blocks: list[tuple[Array, Array] | None] = [None] * len(chunks)

    def work(a: int, b: int) -> None:
        some = take_queries(queries, np.arange(a, b))
        mask = Mask.make(some.histories, hide_seen=hide_seen)
        candidates = stage.find_candidates(some.histories, mask, some.target)
        part_gain[a:b] = gain_at_rank(candidates.target_ranks[:, : len(stage.parts)])
        is_target = (candidates.items == some.target[:, None]) & (candidates.items >= 0)
        hit = np.flatnonzero(is_target.any(axis=1))
        known_until = np.full(len(some), held_out.known_until, np.int64)
        assert some.histories.now is not None
        requests = Requests(some.histories, some.histories.now, known_until)
        indptr, rows = stage.build_features(requests.take(hit), candidates.take(hit))
        labels = np.zeros(len(rows), np.int8)
        labels[indptr[:-1] + is_target[hit].argmax(axis=1)] = 1
        sizes[a + hit] = candidates.counts[hit]
        blocks[a // _BLOCK] = rows, labels

    run_chunks("features", work, chunks)
    row_ptr = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.empty((row_ptr[-1], len(feature_names(stage.sources))), np.float32)
    labels = np.empty(len(rows), np.int8)
    for number, (a, b) in enumerate(chunks):
        block, blocks[number] = blocks[number], None  # freed when it is copied
        assert block is not None
        rows[row_ptr[a] : row_ptr[b]], labels[row_ptr[a] : row_ptr[b]] = block
    return Examples(queries.user, part_gain, row_ptr, rows, labels)


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
