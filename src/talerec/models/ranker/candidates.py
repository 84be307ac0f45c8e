"""The first stage: candidate items from the lists of several models, and their features."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.features import FeatureInputs, ItemTimes, PartScores, build_features
from talerec.models.core import Model, TopItems
from talerec.ranking import Mask, Query, score_items, top_items
from talerec.runtime import Array, as_readonly, kernel

_LIST = 100  # items of each part's list that may become candidates
_RANKED = 200  # items of each part's list whose rank is a feature
_JOINED = 10.0  # rank at which an entry of a list counts half as much as the first one
_RECENT = 50  # different items of a history, newest first, that may become candidates


class Requests(NamedTuple):
    """Histories with request times, and the time until which the model knows rows.

    now, known_until: int64 microseconds, one per history.
    """

    histories: Histories
    now: Array
    known_until: Array

    def take(self, which: Array) -> Requests:
        """Return the requests at positions `which` (integers or a mask), in that order."""
        return Requests(self.histories.take(which), self.now[which], self.known_until[which])


class CandidateItems(NamedTuple):
    """Candidate items of each request, in the order in which the parts' lists were joined.

    items: int32, request x column; the first counts[q] of a row are the candidates of request q.
    queries: each part's query of all requests, from which scores are computed.
    """

    items: Array
    counts: Array
    queries: list[Query]


class FirstStage(NamedTuple):
    """The fitted models whose lists are joined (parts), and the times of the rows they know.

    names: of the parts, each once. joins_history: whether recent items of a history are candidates
    too, because users repeat items. size: the largest number of candidates.
    """

    parts: list[Model]
    names: list[str]
    log: ItemTimes
    joins_history: bool
    size: int

    def find_candidates(self, histories: Histories, mask: Mask) -> CandidateItems:
        """Return up to `size` candidates of each history that a mask allows.

        They are the items with the largest sum of 1 / (rank + 10) over the first 100 of each part's
        list (ranks from 0). If users repeat items and the mask does not hide seen ones, the newest
        50 items of the history (which the mask carries) are one more list.
        """
        queries = [part.query(histories) for part in self.parts]
        n_items = self.parts[0].fitted.weights.items
        k = min(_LIST, n_items)
        lists = np.empty((len(self.parts), len(histories), k), np.int32)
        for part, query, items in zip(self.parts, queries, lists, strict=True):
            items[:] = top_items(part.fitted.weights, query, mask, k)[0]
        n_recent = _RECENT if self.joins_history and not mask.hide else 0
        size = min(self.size, n_items)
        return CandidateItems(*_join_lists(lists, mask, n_items, n_recent, size), queries)

    def build_features(
        self, requests: Requests, candidates: CandidateItems
    ) -> tuple[Array, Array, PartScores]:
        """Return indptr and a row of features per candidate (float32), and the parts' scores.

        Candidates of request q have the rows indptr[q]..indptr[q + 1]; the parts' scores have an
        array per first-stage model. Features depend on the request (its history, its time `now`,
        and `known_until`, the end of the rows that the models know), on the item, and on
        `self.log`, the times of all rows by item; not on the filter that chose the candidates.
        """
        histories = requests.histories
        parts = self._score_parts(histories, candidates)
        inputs = FeatureInputs(
            histories.start, histories.stop, as_readonly(histories.item),
            as_readonly(histories.time), requests.now, requests.known_until,
            candidates.items, candidates.counts, parts,
            ItemTimes(*map(as_readonly, self.log)),
        )  # fmt: skip
        return *build_features(inputs, self.names), parts

    def _score_parts(self, histories: Histories, candidates: CandidateItems) -> PartScores:
        """Return each part's scores and ranks of the candidates, and its highest scores."""
        items, counts, queries = candidates
        shape = (len(self.parts), *items.shape)
        scores, ranks = np.empty(shape), np.full(shape, np.nan, np.float32)
        tops = np.full((len(self.parts), len(histories), 2), np.nan)
        everything = Mask.make(histories, hide_seen=False)
        for p, (part, query) in enumerate(zip(self.parts, queries, strict=True)):
            weights = part.fitted.weights
            k = min(_RANKED, weights.items)
            lists = TopItems(*top_items(weights, query, everything, k))
            scores[p] = score_items(weights, query, items, counts)
            _look_up_ranks(items, counts, lists, everything, weights.items, ranks[p], tops[p])
        return PartScores(scores, ranks, tops)


@kernel
def _join_lists(
    lists: Array, mask: Mask, n_items: int, n_recent: int, size: int
) -> tuple[Array, Array]:
    """Return the `size` items of each request that rank best in several lists, and counts.

    lists: part x request x rank, item positions, -1 for none. n_recent: newest different items of
    the history that are one more list, as far as `mask` allows them. Items are ordered by the sum
    of 1 / (rank + 10), equal sums by position.
    """
    n_parts, n, k = lists.shape
    out, counts = np.full((n, size), -1, np.int32), np.zeros(n, np.int64)
    sums = np.zeros(n_items)
    touched = np.empty(n_parts * k + n_recent, np.int32)
    for q in range(n):
        end = 0
        for p in range(n_parts):
            for r in range(k):
                item = lists[p, q, r]
                if item < 0:
                    break
                if sums[item] == 0.0:
                    touched[end] = item
                    end += 1
                sums[item] += 1.0 / (r + _JOINED)
        end = _join_recent(mask, q, n_recent, sums, touched, end)
        items = np.sort(touched[:end])
        order = np.argsort(-sums[items], kind="mergesort")
        counts[q] = min(end, size)
        for c in range(counts[q]):
            out[q, c] = items[order[c]]
        for c in range(end):
            sums[items[c]] = 0.0
    return out, counts


@kernel
def _join_recent(mask: Mask, q: int, n_recent: int, sums: Array, touched: Array, end: int) -> int:
    """Add the newest items of history q to the sums, each once; return the end of `touched`.

    sums: of 1 / (rank + 10) by item; touched[:end]: the items with a sum above 0.
    """
    rank, r, first = 0, mask.stop[q] - 1, mask.start[q]
    while rank < n_recent and r >= first:
        item, is_new = mask.item[r], True
        for s in range(r + 1, mask.stop[q]):
            if mask.item[s] == item:
                is_new = False
                break
        if item >= 0 and is_new and (len(mask.allowed) == 0 or mask.allowed[item] != 0):
            if sums[item] == 0.0:
                touched[end] = item
                end += 1
            sums[item] += 1.0 / (rank + _JOINED)
            rank += 1
        r -= 1
    return end


@kernel
def _look_up_ranks(
    items: Array, counts: Array, lists: TopItems, histories: Mask, n_items: int, ranks: Array,
    tops: Array,
) -> None:  # fmt: skip
    """Write the ranks of candidates in one part's lists, and the part's highest scores.

    items, counts: the candidates. lists: the part's lists of all items. An unseen candidate's rank
    counts unseen items only, that of a seen one all items. tops: per request, the highest score of
    all items, and of unseen ones.
    """
    listed, scores, lengths = lists.items, lists.scores, lists.counts
    rank_of, is_seen = np.full(n_items, np.nan), np.zeros(n_items, np.uint8)
    for q in range(len(items)):
        for r in range(histories.start[q], histories.stop[q]):
            if histories.item[r] >= 0:
                is_seen[histories.item[r]] = 1
        n_unseen = 0
        for r in range(lengths[q]):
            item = listed[q, r]
            if r == 0:
                tops[q, 0] = scores[q, 0]
            if is_seen[item]:
                rank_of[item] = r
            else:
                if n_unseen == 0:
                    tops[q, 1] = scores[q, r]
                rank_of[item] = n_unseen
                n_unseen += 1
        for c in range(counts[q]):
            ranks[q, c] = rank_of[items[q, c]]
        for r in range(lengths[q]):
            rank_of[listed[q, r]] = np.nan
        for r in range(histories.start[q], histories.stop[q]):
            if histories.item[r] >= 0:
                is_seen[histories.item[r]] = 0
