"""The second stage: order candidates by learned scores, rank targets, and explain scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.features import feature_groups
from talerec.models.core import TopItems
from talerec.models.ranker.candidates import CandidateItems, FirstStage, Requests
from talerec.models.ranker.linear import LinearScore
from talerec.models.ranker.trees import Trees
from talerec.ranking import Mask, Query, rank_queries
from talerec.runtime import Array, kernel, run_chunks, sized_chunks

_BLOCK = 256  # histories that a thread takes at a time
_TIE = 1e-6  # of the first part's relative score, which orders candidates of equal leaves
_START = 0.7  # weight of the first part's log rank, with which learning starts
_UNRANKED = 300.0  # rank of an item that the first part does not rank
_LOWEST_START = float(-_START * np.log(_UNRANKED + 3.0))  # its score before any tree is added


class ScoredItems(NamedTuple):
    """Items that one request scores by trees, and what explains their scores."""

    items: Array
    scores: Array
    rows: Array  # of features, one per item
    ranks: Array  # part (first-stage model) x item: rank in the part's list
    queries: list[Query]  # of each part, for the request


class SecondStage(NamedTuple):
    """Trees, and the linear score they start from, that order the first stage's candidates.

    The score of a candidate (`score_rows`) does not depend on filters. Other items follow in the
    first part's order: such an item has the first part's score less its highest one, plus a number
    below the scores of all candidates (`floor`).
    """

    first: FirstStage
    trees: Trees
    linear: LinearScore

    @property
    def floor(self) -> float:
        """A score below that of every candidate, from which the scores of other items go down."""
        return self.trees.lowest - self.trees.expected - self.linear.bound - 1.0

    def rank(
        self, requests: Requests, mask: Mask, k: int, targets: Array | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Return (items, scores, counts, ranks) of the top k items that a mask allows.

        The first three are a row per request, as in `Ranked`; ranks: of the target among the items
        that the mask lists, from 1, 0 for none. targets: an item position per request; None: no
        ranks.
        """
        n = len(requests.now)
        items, scores = np.full((n, k), -1, np.int32), np.full((n, k), np.nan)
        counts, ranks = np.zeros(n, np.int64), np.zeros(0 if targets is None else n, np.int64)

        def work(a: int, b: int) -> None:
            rows = np.arange(a, b)
            some, shown = requests.take(rows), select_mask(mask, rows)
            block_targets = None if targets is None else targets[a:b]
            block = self._rank_block(some, shown, k, block_targets)
            items[a:b], scores[a:b], counts[a:b] = block[:3]
            if targets is not None:
                ranks[a:b] = block[3]

        if n == 1:  # needs no chunks, threads or progress bars
            work(0, 1)
        else:
            run_chunks("rank", work, sized_chunks(n, _BLOCK))
        return items, scores, counts, ranks

    def _rank_block(
        self, requests: Requests, mask: Mask, k: int, targets: Array | None
    ) -> tuple[Array, Array, Array, Array]:
        """Return (items, scores, counts, ranks) as `rank` does, of a limited number of requests."""
        candidates = self.first.find_candidates(requests.histories, mask, targets)
        order, lists, _ = self._order(requests, mask, k, candidates)
        ranks = np.zeros(0, np.int64)
        if targets is not None:
            items = np.take_along_axis(candidates.items, order, axis=1)
            ranks = _rank_targets(candidates, items, targets)
        return *lists, ranks

    def rank_request(self, requests: Requests, mask: Mask, k: int) -> tuple[TopItems, ScoredItems]:
        """Return the top k items that a mask allows for one request, and what explains them.

        The scored items are those of the list that trees score, its first ones.
        """
        candidates = self.first.find_candidates(requests.histories, mask)
        order, lists, rows = self._order(requests, mask, k, candidates)
        first = order[0, : min(candidates.counts[0], k)]
        items, scores = lists.items[0, : first.size], lists.scores[0, : first.size]
        ranks = candidates.parts.ranks[:, 0, first]
        return lists, ScoredItems(items, scores, rows[first], ranks, candidates.queries)

    def _order(
        self, requests: Requests, mask: Mask, k: int, candidates: CandidateItems
    ) -> tuple[Array, TopItems, Array]:
        """Return the order of each request's candidates, the top k lists, and rows of features."""
        score, rows = self._score(requests, candidates)
        order = _order_candidates(candidates.items, candidates.counts, score)
        items = np.take_along_axis(candidates.items, order, axis=1)
        scores, counts = np.take_along_axis(score, order, axis=1), candidates.counts
        if k > items.shape[1] or (counts < k).any():
            tops = candidates.parts.tops[0, :, 0]
            items, scores, counts = self._append_non_candidates(
                mask, candidates, items, scores, tops, k
            )
        return order, TopItems(items[:, :k], scores[:, :k], np.minimum(counts, k)), rows

    def _score(self, requests: Requests, candidates: CandidateItems) -> tuple[Array, Array]:
        """Return the scores of candidates, and their rows of features.

        The scores are request x column, -inf beyond the candidates of a request.
        """
        _, rows = self.first.build_features(requests, candidates)
        scores = np.full(candidates.items.shape, -np.inf)
        is_candidate = np.arange(candidates.items.shape[1]) < candidates.counts[:, None]
        scores[is_candidate] = score_rows(self.trees, self.linear, rows)
        return scores, rows

    def _append_non_candidates(
        self,
        mask: Mask,
        candidates: CandidateItems,
        items: Array,
        scores: Array,
        tops: Array,
        k: int,
    ) -> TopItems:
        """Return lists of up to k items: candidates, then the first part's other items in order.

        items, scores: the candidates of each request (rows), best first, and the trees' scores.
        tops: the highest score of the first part, per request. Scores of the other items are those
        of the first part, shifted below `floor`, the lowest score that trees can give.
        """
        weights, query = self.first.parts[0].fitted.weights, candidates.queries[0]
        depth = min(k + items.shape[1], weights.items)
        ranked = rank_queries(weights, query, mask, depth)
        shifted = ranked.scores - tops[:, None] + self.floor
        lists = TopItems.empty(len(items), k)
        first = TopItems(items, scores, candidates.counts)
        others = TopItems(ranked.items, shifted, ranked.counts)
        _append_unlisted(first, others, weights.items, lists)
        return lists

    # -- explanations --

    def score_items(self, requests: Requests, items: Array) -> ScoredItems:
        """Return given items of one request as its candidates, with what explains their scores."""
        grid = np.ascontiguousarray(items[None, :], np.int32)
        candidates = self.first.score_candidates(requests.histories, grid, np.array([len(items)]))
        scores, rows = self._score(requests, candidates)
        ranks = candidates.parts.ranks[:, 0, :]
        return ScoredItems(items, scores[0], rows, ranks, candidates.queries)

    def sum_by_group(self, rows: Array) -> Array:
        """Return what each group of features adds to the score of each row of features.

        The result is row x group. The start score belongs to the first group, as far as it is above
        that of an unranked item.
        """
        groups = feature_groups(self.first.sources)
        contributions = self.trees.contributions(rows)
        if not self.linear.is_zero:
            contributions += self.linear.contributions(rows)
        sums = groups.sum_columns(contributions)
        sums[:, 0] += start_scores(rows) - _LOWEST_START
        return sums


def _rank_targets(candidates: CandidateItems, ordered: Array, targets: Array) -> Array:
    """Return the rank of each target among the items that a mask lists, from 1; 0: none.

    candidates: those of the mask, with ranks of the targets in the parts' lists. ordered: their
    items, best first. A target that is not a candidate ranks behind all candidates, and behind the
    other items that the first part ranks before it.
    """
    is_target = ordered == targets[:, None]
    position = is_target.argmax(axis=1)
    is_found = is_target[np.arange(len(targets)), position] & (targets >= 0)
    rank, score = candidates.target_ranks[:, 0], candidates.target_scores[:, :1]
    others = candidates.parts.scores[0]  # NaN beyond the candidates of a request
    is_tie = (others == score) & (candidates.items < targets[:, None])
    n_before = ((others > score) | is_tie).sum(axis=1)
    behind = np.where(rank > 0, candidates.counts + rank - n_before, 0)
    ranks: Array = np.where(is_found, position + 1, np.where(targets >= 0, behind, 0))
    return ranks


def start_scores(rows: Array) -> Array:
    """Return the score of each row of features before any tree is added (float64).

    It falls with the logarithm of the first part's rank (column 1), from which learning starts. A
    millionth of that part's relative score (column 2) orders candidates with equal leaves.
    """
    rank = rows[:, 1].astype(np.float64)
    rank[np.isnan(rank)] = _UNRANKED
    ratio = np.fmin(np.fmax(rows[:, 2].astype(np.float64), 0.0), 1.0)  # NaN is 0
    scores: Array = _TIE * ratio - _START * np.log(rank + 3.0)
    return scores


def score_rows(trees: Trees, linear: LinearScore, rows: Array) -> Array:
    """Return the score of each row of features: the sum of its leaves, linear and start score.

    It is 0 for the mean leaves and the mean linear score of training rows, and an item that the
    first part does not rank.
    """
    scores = trees.predict(rows) + start_scores(rows) - (trees.expected + _LOWEST_START)
    return scores if linear.is_zero else scores + linear.predict(rows)


def select_mask(mask: Mask, rows: Array) -> Mask:
    """Return the mask of the requests at positions `rows`."""
    return mask._replace(start=mask.start[rows], stop=mask.stop[rows])


@kernel
def _order_candidates(items: Array, counts: Array, scores: Array) -> Array:
    """Return the order of each request's candidates: by falling score, then by position.

    items, scores: request x column, of which the first counts[q] are filled; other columns stay.
    """
    order = np.empty(items.shape, np.int64)
    for q in range(len(items)):
        by_item = np.argsort(items[q, : counts[q]])
        by_score = np.argsort(-scores[q, : counts[q]][by_item], kind="mergesort")
        for c in range(counts[q]):
            order[q, c] = by_item[by_score[c]]
        for c in range(counts[q], items.shape[1]):
            order[q, c] = c
    return order


@kernel
def _append_unlisted(first: TopItems, others: TopItems, n_items: int, out: TopItems) -> None:
    """Write the items of the first lists, then `others` that are not among them, to `out`.

    n_items: of the model. The lists end at the columns of `out`.
    """
    is_listed, k = np.zeros(n_items, np.uint8), out.items.shape[1]
    for q in range(len(first.items)):
        n = min(first.counts[q], k)
        for c in range(first.counts[q]):
            is_listed[first.items[q, c]] = 1
        for c in range(n):
            out.items[q, c], out.scores[q, c] = first.items[q, c], first.scores[q, c]
        for c in range(others.counts[q]):
            if n == k:
                break
            if not is_listed[others.items[q, c]]:
                out.items[q, n], out.scores[q, n] = others.items[q, c], others.scores[q, c]
                n += 1
        for c in range(first.counts[q]):
            is_listed[first.items[q, c]] = 0
        out.counts[q] = n
