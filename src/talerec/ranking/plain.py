"""Rank by NumPy: the first queries of a process, which then needs no compiled kernel.

Scores are those of the kernels to the last bit: the same additions, in the same order.
"""

from __future__ import annotations

import numpy as np

from talerec.ranking.blocks import Block, DenseBlock, IdentityBlock, SequenceBlock, SparseBlock
from talerec.ranking.ranks import Mask, Ranked
from talerec.ranking.scores import NO_SCORE
from talerec.ranking.weights import Query, Weights
from talerec.runtime import Array


def rank_plainly(weights: Weights, query: Query, mask: Mask, k: int) -> Ranked:
    """Return the top k items of every query, without ranks of targets.

    weights, query: the model's weights B, and weights x of its sources (rows of B); scores are x @
    B. mask: items that may not be listed, or are hidden per query.
    """
    n = len(query)
    items, scores = np.full((n, k), -1, np.int32), np.full((n, k), np.nan)
    counts = np.zeros(n, np.int64)
    for q in range(n):
        values = _add_scores(weights, query.select(q))
        with np.errstate(invalid="ignore"):
            is_listed = ~np.isnan(values) & ~((values == 0) & np.signbit(values))
        if len(mask.allowed):
            is_listed &= mask.allowed != 0
        if mask.hide_seen:
            history = mask.item[mask.start[q] : mask.stop[q]]
            is_listed[history[history >= 0]] = False
        listed = np.flatnonzero(is_listed)
        best = listed[np.argsort(-values[listed], kind="stable")[:k]]
        counts[q] = len(best)
        items[q, : len(best)], scores[q, : len(best)] = best, values[best]
    return Ranked(items, scores, counts, np.zeros((0, 2), np.int64))


def _add_scores(weights: Weights, query: Query) -> Array:
    """Return the score of every item for one query; -0.0 for an item without a score."""
    scores = np.full(weights.items, NO_SCORE)
    if weights.base is not None:
        has_base = ~np.isnan(weights.base)
        scores[has_base] = weights.base[has_base] + 0.0
    first_sources = np.array([weights.first_source(b) for b in range(len(weights.blocks))])
    block_of = np.searchsorted(first_sources, query.source, side="right") - 1
    for source, share, b in zip(query.source, query.weight, block_of, strict=True):
        block = weights.blocks[b]
        _add_source(scores, block, int(source - first_sources[b]), share * block.weight)
    return scores


def _add_source(scores: Array, block: Block, s: int, share: float) -> None:
    """Add share times the weights of source s of a block to the scores, in place.

    Weights of zero are skipped: an item to which only they are added has no score. A product that
    underflows is 0.0, never -0.0, which would be no score.
    """
    if isinstance(block, DenseBlock):
        row = block.values[s]
        scores += np.where(row != 0, share * row.astype(np.float64) + 0.0, NO_SCORE)
    elif isinstance(block, SparseBlock):
        entries = slice(int(block.indptr[s]), int(block.indptr[s + 1]))
        items, values = block.indices[entries], block.values[entries].astype(np.float64)
        is_used = values != 0
        scores[items[is_used]] += share * values[is_used] + 0.0
    elif isinstance(block, IdentityBlock):
        scores[s] += share + 0.0
    else:
        assert isinstance(block, SequenceBlock)
        sequence = int(np.searchsorted(block.indptr, s, side="right")) - 1
        entry = np.arange(block.indptr[sequence], block.indptr[sequence + 1])
        decay = block.decay[np.abs(entry - s)].astype(np.float64)
        is_used = decay != 0
        # an item may stand in a sequence several times: added in the order of its entries
        np.add.at(scores, block.indices[entry[is_used]], share * decay[is_used] + 0.0)
