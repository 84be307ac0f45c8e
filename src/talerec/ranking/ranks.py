"""Ranking loops: the top k and the rank of a target in one pass over the scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.ranking.block_records import (
    IDENTITY,
    SPARSE,
    Blocks,
    find_block,
    row_length,
    sequence_bounds,
    sequence_rows,
    sparse_rows,
)
from talerec.ranking.scores import (
    NO_SCORE,
    DenseScores,
    KernelWeights,
    add_query,
    borrow_dense,
    borrow_weights,
    get_dense,
    has_score,
)
from talerec.ranking.top_k import ItemFlags, TopK, is_allowed, push_item, ranks_before, sort_top_k
from talerec.runtime import Array, Kernel, as_readonly, borrow, kernel, template, unsigned_range

_SPAN = 64  # scores that are compared with the threshold at a time
_LOOKUP_COST = 2  # of one item by its number, in scores that are read in a row


class QueryArrays(NamedTuple):
    """Queries for kernels: sparse rows x, whose scores are x @ B (weights, source x item)."""

    ptr: Array  # query q has the entries ptr[q]..ptr[q + 1]
    source: Array  # numbers of rows of B, mostly items of a history
    share: Array  # how much each source counts: its entry of x


_ALL_ITEMS = np.empty(0, np.uint8)


class Mask(NamedTuple):
    """Rules of top k lists: flags of allowed items, and each query's history to hide."""

    allowed: Array  # uint8 per item, 0 for an item that is not allowed; empty allows all
    start: Array  # query q has the history item[start[q]:stop[q]]
    stop: Array
    item: Array  # -1: an unknown item
    hide_seen: bool  # whether a list must not contain its query's history

    @classmethod
    def make(cls, histories: Histories, *, hide_seen: bool, allowed: Array | None = None) -> Mask:
        """Return the mask (items that must not be listed) of one list per history.

        hide_seen: whether a list leaves out the items of its history. allowed: uint8 per item, 0
        for an item that no list may contain (None: all items may be listed).
        """
        flags = _ALL_ITEMS if allowed is None else allowed
        return cls(flags, histories.start, histories.stop, as_readonly(histories.item), hide_seen)


@template
def borrow_query(query: QueryArrays) -> QueryArrays:
    """Return the queries with arrays that Numba does not reference-count, for innermost loops.

    The caller keeps the original arrays alive.
    """
    return QueryArrays(borrow(query.ptr), borrow(query.source), borrow(query.share))


@template
def borrow_mask(mask: Mask) -> Mask:
    """Return the mask with arrays that Numba does not reference-count, for innermost loops.

    The caller keeps the original arrays alive. A mask has flags of allowed items, and each query's
    history, which lists may have to leave out.
    """
    start, stop, item = borrow(mask.start), borrow(mask.stop), borrow(mask.item)
    return Mask(borrow(mask.allowed), start, stop, item, mask.hide_seen)


class RankScratch(NamedTuple):
    """A thread's work space for ranking queries; all clear between queries."""

    store: Any  # scores of one query: DenseScores or HashScores
    seen: Array  # uint8 per item, 1 for the items in the history of a query
    marks: Array  # uint8 per item, for code that builds queries


class Ranked(NamedTuple):
    """Ranking results, one row per query."""

    items: Array  # the top k items, queries x k, best first
    scores: Array  # their scores
    counts: Array  # how many of the k columns are filled
    #: of the target item, from 1 (0: none): among all items (column 0), and among items that are
    #: not in the history (column 1); no rows without targets
    ranks: Array


class ScoredTarget(NamedTuple):
    """The target item, whose rank is to be found, and its score.

    -1 and infinity (nothing ranks before it) if there is no target, or it has no score.
    """

    item: int
    score: float


@kernel
def rank_with_dense_scores(
    weights: KernelWeights,
    query: QueryArrays,
    mask: Mask,
    targets: Array,
    scratch: RankScratch,
    a: int,
    b: int,
    out: Ranked,
) -> None:
    """Write the top k items of queries a..b, and ranks of `targets` if not empty, into `out`.

    weights, query: B (source x item) and rows x; a query's scores, x @ B, are kept in an array with
    one entry per item. mask: the items that a list must not contain. targets: an item per query, -1
    for none. scratch: the thread's work space, clear before and after.
    """
    weights, query, mask = borrow_weights(weights), borrow_query(query), borrow_mask(mask)
    store, seen = borrow_dense(scratch.store), borrow(scratch.seen)
    flags = ItemFlags(mask.allowed, seen[: len(seen) if mask.hide_seen else 0])
    for q in range(a, b):
        sources = query.source[query.ptr[q] : query.ptr[q + 1]]
        add_query(weights, sources, query.share[query.ptr[q] : query.ptr[q + 1]], store)
        if mask.hide_seen or len(targets):
            mark_seen(mask, q, seen, 1)
        target = find_target(get_dense, store, flags, targets[q] if len(targets) else -1)
        seen_above = 0
        if len(targets):
            seen_above = count_seen_above(get_dense, store, target, mask, q, seen)
        top = TopK(borrow(out.items[q]), borrow(out.scores[q]))
        if is_cheaper_by_rows(weights, sources, len(store.scores)):
            state = _scan_rows(weights.blocks, sources, store, target, top, flags)
        else:
            state = _scan_all(store, target, top, flags)
        out.counts[q] = sort_top_k(top, state.size)
        if len(targets):
            write_ranks(out.ranks[q], target, state.above, state.above - seen_above, seen)
        if mask.hide_seen or len(targets):
            mark_seen(mask, q, seen, 0)


@template
def mark_seen(mask: Mask, q: int, seen: Array, value: int) -> None:
    """Set seen[i] to `value` for the known items i in the history of query q.

    The history is mask.item[mask.start[q]:mask.stop[q]]; -1 is an unknown item.
    """
    for r in range(mask.start[q], mask.stop[q]):
        if mask.item[r] >= 0:
            seen[mask.item[r]] = value


@template
def find_target(get_score: Kernel, store: Any, flags: ItemFlags, item: int) -> ScoredTarget:
    """Return a target item with its score; item -1 and infinity if it cannot be ranked.

    That is so if `item` is negative, not allowed by `flags`, or has no score. store: the scores of
    one query; get_score: function from the store and an item to its score, NaN if it has none.
    """
    if item < 0 or not is_allowed(flags, item):
        return ScoredTarget(-1, np.inf)
    score = get_score(store, item)
    if np.isnan(score):
        return ScoredTarget(-1, np.inf)
    return ScoredTarget(item, score)


@template
def count_seen_above(
    get_score: Kernel, store: Any, target: ScoredTarget, mask: Mask, q: int, seen: Array
) -> int:
    """Return how many different items of the history of query q rank before the target.

    seen: 1 for the items of the history, which become 2 (counted). store: the scores of the query;
    get_score(store, item) returns a score or NaN. Items that the mask does not allow are not
    counted.
    """
    above = 0
    for r in range(mask.start[q], mask.stop[q]):
        j = mask.item[r]
        if j >= 0 and seen[j] == 1:
            seen[j] = 2
            if len(mask.allowed) == 0 or mask.allowed[j] != 0:
                above += ranks_before(get_score(store, j), j, target.score, target.item)
    return above


@template
def write_ranks(ranks: Array, target: ScoredTarget, above: int, unseen: int, seen: Array) -> None:
    """Write the target's rank among all items, and among items outside the history, from 1.

    above, unseen: how many items, and how many outside the history, rank before it. seen: nonzero
    for items of the history. A rank of 0 is none: no target, or for the second, a seen one.
    """
    ranks[:] = 0
    if target.item >= 0:
        ranks[0] = 1 + above
        ranks[1] = 0 if seen[target.item] else 1 + unseen


class ScanState(NamedTuple):
    """The state of a pass over scores that collects the top k and ranks a target item."""

    above: int  # how many items rank before the target, those of the history included
    size: int  # how many of the top k are filled
    threshold: float  # the lowest score that could rank before the target or enter the top k


@template
def begin_scan(target: ScoredTarget, top: TopK) -> ScanState:
    """Return the state of a pass over scores before any is read.

    The pass ranks the target item and collects the top k in `top`; k = 0 ranks the target only.
    """
    return ScanState(0, 0, -np.inf if len(top.items) else target.score)


@template
def scan_item(
    state: ScanState, j: int, score: float, target: ScoredTarget, top: TopK, flags: ItemFlags
) -> ScanState:
    """Return the state of a pass over scores after item j, whose score reaches the threshold.

    j enters the top k, `top`, in place if it belongs there and `flags` (which items may be listed)
    allow it, and counts in state.above if it ranks before the target.
    """
    is_above = ranks_before(score, j, target.score, target.item) & is_allowed(flags, j)
    size = push_item(top, state.size, j, score, flags)
    threshold = state.threshold
    if size > 0 and size == len(top.items):
        threshold = min(target.score, top.scores[0])
    return ScanState(state.above + is_above, size, threshold)


@template
def any_reaches(scores: Array, start: int, stop: int, threshold: float) -> bool:
    """Return whether one of scores[start:stop] is at least the threshold.

    There is no branch in the loop, so that several scores are compared at once.
    """
    reached = False
    for j in unsigned_range(start, stop):
        reached |= scores[j] >= threshold
    return reached


@template
def _scan_all(store: DenseScores, target: ScoredTarget, top: TopK, flags: ItemFlags) -> ScanState:
    """Put scored items into `top`, rank the target, reset all scores; return the final state.

    store: the scores of one query, one per item. The state says how many items rank before the
    target, and how many of the top k are filled. flags: the items that may be ranked and listed.
    """
    scores, state = store.scores, begin_scan(target, top)
    for start in range(0, len(scores), _SPAN):
        stop = min(start + _SPAN, len(scores))
        if any_reaches(scores, start, stop, state.threshold):
            for j in range(start, stop):
                if scores[j] >= state.threshold and has_score(store, j):
                    state = scan_item(state, j, scores[j], target, top, flags)
        scores[start:stop] = NO_SCORE
    return state


@template
def is_cheaper_by_rows(weights: KernelWeights, sources: Array, items: int) -> bool:
    """Return whether to read the scores of items in the sources' rows alone, not of all items.

    sources: numbers of the rows of the weights B in one query. items: the number of all items. The
    cost by rows is the number of weights in them, times 2 for lookups, plus the items with base
    scores (scores that do not depend on the query).
    """
    work = len(weights.base)
    for x in range(len(sources)):
        b = find_block(weights.blocks, sources[x])
        s = sources[x] - weights.blocks[b].first
        work += _LOOKUP_COST * row_length(weights.blocks, b, s, items)
    return work < items


@template
def _scan_rows(
    blocks: Blocks,
    sources: Array,
    store: DenseScores,
    target: ScoredTarget,
    top: TopK,
    flags: ItemFlags,
) -> ScanState:
    """Put items of the sources' rows into `top`, and rank the target; return the final state.

    sources: numbers of rows of the weights B, whose items alone have scores. blocks: the rows of B
    by storage format; none of the sources is in a dense one. store: one score per item; each is
    read once, and reset. flags: the items that may be ranked and listed.
    """
    state = begin_scan(target, top)
    for x in range(len(sources)):
        b = find_block(blocks, sources[x])
        s = sources[x] - blocks[b].first
        if blocks[b].kind == SPARSE:
            rows = sparse_rows(blocks, b)
            for e in unsigned_range(rows.indptr[s], rows.indptr[s + 1]):
                state = _scan_one(rows.indices[e], store, state, target, top, flags)
        elif blocks[b].kind == IDENTITY:
            state = _scan_one(s, store, state, target, top, flags)
        else:
            sequences = sequence_rows(blocks, b)
            low, high = sequence_bounds(sequences, s)
            for e in range(low, high):
                state = _scan_one(sequences.indices[e], store, state, target, top, flags)
    return state


@template
def _scan_one(
    j: Any, store: DenseScores, state: ScanState, target: ScoredTarget, top: TopK, flags: ItemFlags
) -> ScanState:
    """Return the state after item j, and reset its score, so that it counts only once.

    store: one score per item. j enters the top k, `top`, in place if it belongs there and `flags`
    allow it, and counts in state.above if it ranks before the target; without a score it changes
    nothing.
    """
    i: Any = np.uint32(j)
    score = store.scores[i]
    if score >= state.threshold and has_score(store, i):
        state = scan_item(state, j, score, target, top, flags)
    store.scores[i] = NO_SCORE
    return state
