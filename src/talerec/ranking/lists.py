"""Rank queries on threads: top items, ranks of targets, and lists with reasons.

One rule serves recommending and evaluating: a higher score ranks first, and of equal scores the
item with the lower position. An item without a score, or hidden, has no rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from talerec.ranking.plain import rank_plainly
from talerec.ranking.ranks import Mask, QueryArrays, Ranked, RankScratch, rank_with_dense_scores
from talerec.ranking.reasons import (
    largest_contributions,
    merge_by_item,
    source_contributions,
    source_items,
)
from talerec.ranking.scores import KernelWeights
from talerec.ranking.search import rank_with_hash_scores
from talerec.ranking.weights import Query, Weights
from talerec.runtime import (
    Array,
    Kernel,
    as_readonly,
    compiled,
    interprets_small,
    kernel,
    run_chunks,
    sized_chunks,
    template,
)

_BATCH = 256  # queries a thread takes at a time
_NO_TARGETS = np.empty(0, np.int32)


class FamilyShare(NamedTuple):
    """The contribution of a family of features to an item's score."""

    family: str  # "repeats"
    reason: str  # in words: "the user has it at this hour"
    contribution: float  # in units of the score
    share: float  # contribution over the sum of all families' absolute contributions


class ExplainedLists(NamedTuple):
    """The top items of some histories with scores and reasons, as plain Python values.

    Lists stand one after the other, those of history h first for h = 0. The reasons of the n-th
    listed item are the history items that contribute most to its score: sources[ends[n-1]:ends[n]],
    the largest first.
    """

    counts: list[int]  # how many items each history has
    items: list[int]  # the listed items, as positions
    scores: list[float]  # of each listed item
    ends: list[int]  # where each listed item's reasons end
    sources: list[int]  # contributing items
    shares: list[float]  # their shares of the score
    families: list[list[FamilyShare] | None] | None = None  # of each item; None: the model has none

    @classmethod
    def concatenate(cls, parts: Iterable[ExplainedLists]) -> ExplainedLists:
        """Return the lists of several results, one after the other, as one result.

        `ends`, where the reasons of each listed item end, is shifted; the other columns are joined.
        """
        lists = cls([], [], [], [], [], [])
        for part in parts:
            lists.ends.extend(len(lists.sources) + end for end in part.ends)
            for column in ("counts", "items", "scores", "sources", "shares"):
                getattr(lists, column).extend(getattr(part, column))
        return lists


def rank_queries(
    weights: Weights, query: Query, mask: Mask, k: int, targets: Array | None = None
) -> Ranked:
    """Return the top k items of every query, and the ranks of one target item per query.

    weights, query: the model's weights B, and weights x of its sources (rows of B); scores are x @
    B. mask: items that may not be listed, or are hidden per query. targets: an item per query, -1
    for none; without `targets` the result has no ranks. Works on all cores.
    """
    n = len(query)
    rank = rank_with_dense_scores if weights.uses_dense_scores else rank_with_hash_scores
    if targets is None and interprets_small(rank, n):
        return rank_plainly(weights, query, mask, k)
    target_items = _NO_TARGETS if targets is None else targets.astype(np.int32, copy=False)
    out = Ranked(
        np.full((n, k), -1, np.int32),
        np.full((n, k), np.nan),
        np.zeros(n, np.int64),
        np.zeros((0 if targets is None else n, 2), np.int64),
    )
    arguments = (weights.kernel_weights, query.rows(), mask, as_readonly(target_items))

    def work(a: int, b: int) -> None:
        rank(*arguments, weights.scratch(), a, b, out)

    if n == 1:  # needs no chunks, threads or progress bars
        work(0, 1)
    else:
        run_chunks("rank", work, sized_chunks(n, _BATCH))
    return out


def top_items(weights: Weights, query: Query, mask: Mask, k: int) -> tuple[Array, Array, Array]:
    """Return (items, scores, counts) of the top k items of every query.

    weights, query: the model's weights B, and weights x of its sources (rows of B); scores are x @
    B, plus base scores if there are any. mask: items that may not be listed, or are hidden per
    query. items, scores: queries x k, best first, filled with -1 and NaN; counts: how many of the k
    each query has.
    """
    ranked = rank_queries(weights, query, mask, k)
    return ranked.items, ranked.scores, ranked.counts


def explain_queries(
    weights: Weights, query: Query, mask: Mask, k: int, n_reasons: int
) -> ExplainedLists:
    """Return the top k items of every query, and the items that contribute most to each.

    query: weights of sources (rows of the weights B); scores are query @ B. mask: items that may
    not be listed, or are hidden per query. n_reasons: at most so many contributing items per listed
    item. weights: B. Counts, items and scores of the lists are plain Python values.
    """
    explain = _explain_dense if weights.uses_dense_scores else _explain_hash
    inputs = (weights.kernel_weights, query.rows(), mask, weights.scratch())
    columns = compiled(explain)(*inputs, k, n_reasons)
    return ExplainedLists(*(column.tolist() for column in columns))


def explain_list(
    items: Array, scores: Array, n_reasons: int, sources: Array, contributions: Array
) -> ExplainedLists:
    """Return one list with the `n_reasons` sources that contribute most to each of its items.

    items, scores: of the list. sources: item numbers. contributions: what each source (column) adds
    to the score of each item (row). Reasons have the share of the score that they contribute.
    """
    ends, columns, shares = largest_contributions(contributions, scores, n_reasons)
    values = (np.array([len(items)]), items, scores, ends, sources[columns], shares)
    return ExplainedLists(*(column.tolist() for column in values))


# -- lists with reasons in one compiled call: a service needs thousands a second -------------------


class _ListColumns(NamedTuple):
    """Top items of several queries with scores and reasons, one list after the other.

    The reasons of the n-th listed item are sources[ends[n-1]:ends[n]].
    """

    counts: Array  # how many items each query has
    items: Array  # the listed items
    scores: Array  # of each listed item
    ends: Array  # where each listed item's reasons end
    sources: Array  # items that contribute most to a listed item's score
    shares: Array  # their shares of the score


@kernel
def _explain_dense(
    weights: KernelWeights, query: QueryArrays, mask: Mask, scratch: RankScratch, k: int,
    n_reasons: int,
) -> _ListColumns:  # fmt: skip
    """Return the top k items of every query with reasons; a thread has one score per item.

    weights, query: B and x; scores are x @ B. mask: items that lists must not contain. scratch:
    work space of the calling thread. n_reasons: at most so many items of the query, those that add
    most to a listed item's score.
    """
    return _explain(rank_with_dense_scores, weights, query, mask, scratch, k, n_reasons)


@kernel
def _explain_hash(
    weights: KernelWeights, query: QueryArrays, mask: Mask, scratch: RankScratch, k: int,
    n_reasons: int,
) -> _ListColumns:  # fmt: skip
    """Return the top k items of every query with reasons; scores are in a hash table.

    weights, query: B and x; scores are x @ B. mask: items that lists must not contain. scratch:
    work space of the calling thread. n_reasons: at most so many items of the query, those that add
    most to a listed item's score.
    """
    return _explain(rank_with_hash_scores, weights, query, mask, scratch, k, n_reasons)


@template
def _explain(
    rank: Kernel, weights: KernelWeights, query: QueryArrays, mask: Mask, scratch: RankScratch,
    k: int, n_reasons: int,
) -> _ListColumns:  # fmt: skip
    """Return the top k items of every query with reasons; `rank` is a ranking kernel.

    A ranking kernel writes top items and scores of queries x (scores are x @ B, with the weights
    B). mask: the items that lists must not contain; scratch: work space of the calling thread. The
    reasons of an item are the (at most `n_reasons`) items of the query that contribute most to its
    score, with their shares of the score.
    """
    blocks, end, size = weights.blocks, 0, 0
    n_queries = len(query.ptr) - 1
    ranked = Ranked(
        np.empty((n_queries, k), np.int32),
        np.empty((n_queries, k)),
        np.zeros(n_queries, np.int64),
        np.empty((0, 2), np.int64),
    )
    rank(weights, query, mask, np.empty(0, np.int32), scratch, 0, n_queries, ranked)
    n_items, room = len(scratch.seen), ranked.counts.sum()
    items, scores, ends = np.empty(room, np.int32), np.empty(room), np.empty(room, np.int64)
    reasons, shares = np.empty(room * n_reasons, np.int64), np.empty(room * n_reasons)
    for q in range(n_queries):
        n, sources = ranked.counts[q], query.source[query.ptr[q] : query.ptr[q + 1]]
        share = query.share[query.ptr[q] : query.ptr[q + 1]]
        top, top_scores = ranked.items[q, :n], ranked.scores[q, :n]
        contributions = source_contributions(blocks, sources, share, top, n_items)
        item = source_items(blocks, sources)
        merge_by_item(contributions, blocks, sources, item)
        upto, columns, parts = largest_contributions(contributions, top_scores, n_reasons)
        for x in range(n):
            items[size + x], scores[size + x] = top[x], top_scores[x]
            ends[size + x] = upto[x] + end
        for c in range(len(columns)):
            reasons[end + c], shares[end + c] = item[columns[c]], parts[c]
        size, end = size + n, end + len(columns)
    return _ListColumns(ranked.counts, items, scores, ends, reasons[:end], shares[:end])
