"""Scores of chosen items of each query, which a second stage (a ranker) reads."""

from __future__ import annotations

import numpy as np

from talerec.ranking.ranks import QueryArrays, RankScratch, borrow_query
from talerec.ranking.scores import (
    NO_SCORE,
    KernelWeights,
    add_query,
    borrow_dense,
    borrow_hash,
    borrow_weights,
    clear_hash,
    get_dense,
    get_hash,
)
from talerec.ranking.search import add_source
from talerec.ranking.weights import Query, Weights
from talerec.runtime import Array, as_readonly, borrow, kernel, run_chunks, sized_chunks

_BATCH = 256  # queries a thread takes at a time


def score_items(weights: Weights, query: Query, items: Array, counts: Array) -> Array:
    """Return the score of each query's items (float64, queries x columns); NaN for no score.

    weights, query: the model's weights B, and weights x of its sources (rows of B); scores are x @
    B, plus base scores. items: int32, item positions, queries x columns, of which the first
    counts[q] of query q are scored; other columns are NaN. Works on all cores.
    """
    out = np.full(items.shape, np.nan)
    rows, table = query.rows(), weights.kernel_weights
    score = _score_dense if weights.uses_dense_scores else _score_hash

    def work(a: int, b: int) -> None:
        score(table, rows, as_readonly(items), as_readonly(counts), weights.scratch(), a, b, out)

    if len(query) == 1:  # needs no chunks, threads or progress bars
        work(0, 1)
    else:
        run_chunks("rank", work, sized_chunks(len(query), _BATCH))
    return out


@kernel
def _score_dense(
    weights: KernelWeights, query: QueryArrays, items: Array, counts: Array, scratch: RankScratch,
    a: int, b: int, out: Array,
) -> None:  # fmt: skip
    """Write the scores of the items of queries a..b to `out`, summed in a dense array.

    items: query x column, the first counts[q] of query q. scratch: the thread's work space, clear
    before and after.
    """
    weights, query = borrow_weights(weights), borrow_query(query)
    store = borrow_dense(scratch.store)
    for q in range(a, b):
        low, high = query.ptr[q], query.ptr[q + 1]
        add_query(weights, query.source[low:high], query.share[low:high], store)
        for c in range(counts[q]):
            out[q, c] = get_dense(store, items[q, c])
        store.scores[:] = NO_SCORE


@kernel
def _score_hash(
    weights: KernelWeights, query: QueryArrays, items: Array, counts: Array, scratch: RankScratch,
    a: int, b: int, out: Array,
) -> None:  # fmt: skip
    """Write the scores of the items of queries a..b to `out`, summed in a hash table.

    Scores are x @ B, without the base scores of items; NaN for an item that no source reaches.
    items: query x column, the first counts[q] of query q. scratch: the thread's work space, clear
    before and after.
    """
    blocks, query, store = borrow(weights.blocks), borrow_query(query), borrow_hash(scratch.store)
    for q in range(a, b):
        for x in range(query.ptr[q], query.ptr[q + 1]):
            add_source(blocks, query.source[x : x + 1], query.share[x : x + 1], store)
        for c in range(counts[q]):
            out[q, c] = get_hash(store, items[q, c])
        clear_hash(store)
