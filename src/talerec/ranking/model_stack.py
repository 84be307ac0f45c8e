"""Scores of several models for the same histories, for a second stage that reads them.

A kernel adds up the scores of one query for each model, reads top lists, ranks of targets and
scores of single items from them, and clears them: scores are computed once, whatever is read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from talerec.ranking.block_records import (
    IDENTITY,
    SPARSE,
    Blocks,
    find_block,
    sequence_bounds,
    sequence_rows,
    sparse_rows,
)
from talerec.ranking.blocks import DenseBlock
from talerec.ranking.ranks import any_reaches, is_cheaper_by_rows
from talerec.ranking.scores import (
    NO_SCORE,
    DenseScores,
    KernelWeights,
    add_query,
    get_dense,
    has_score,
)
from talerec.ranking.top_k import ItemFlags, TopK, is_listable, push_item, ranks_before, sort_top_k
from talerec.ranking.weights import Query, Weights
from talerec.runtime import Array, address, borrow, kth_smallest, template

_SPAN = 64  # scores that are compared with the threshold at a time
_MAXIMA = 4  # maxima per item of a list, from which a lower bound of its last score is computed


class StackTable(NamedTuple):
    """The weights of several models for kernels: scores of a query x are x @ B + base of each."""

    blocks: Blocks  # records of the blocks (rows of B in one storage format) of all models
    block_ptr: Array  # model m has the records block_ptr[m]..block_ptr[m + 1]
    base: Array  # base scores of the models that have any, one row each; NaN for none
    base_row: Array  # of each model: its row of `base`; -1: it has no base scores


class StackQueries(NamedTuple):
    """Queries of several models for kernels; query q of model m has the entries ptr[m, q]..."""

    ptr: Array  # model x (query + 1)
    source: Array  # numbers of rows of the model's own B
    share: Array  # how much each source counts

    @classmethod
    def join(cls, queries: Sequence[Query]) -> StackQueries:
        """Return the queries of several models, one per history each, as one set of arrays."""
        ends = np.cumsum([0] + [len(query.source) for query in queries])
        ptr = np.stack([query.ptr for query in queries]).astype(np.int64, copy=False)
        source = np.concatenate([query.source for query in queries]).astype(np.int64, copy=False)
        share = np.concatenate([query.weight for query in queries])
        return cls(ptr + ends[:-1, None], source, share)


class StackScratch(NamedTuple):
    """A thread's work space for queries of several models.

    Between queries no item has a score, and `seen` is 0. What `score_model` leaves in `values`, and
    in `positions` or `scored`, belongs to the model that was scored last.
    """

    scores: Array  # model x item, float64; -0.0 (NO_SCORE) for none
    bits: Array  # the same memory as int64
    values: Array  # scores to select from, one after the other; -inf for items without one
    positions: Array  # 0, 1, ...: the items of `values` if all are there
    scored: Array  # model x item: otherwise, the items of `values`
    n_scored: Array  # per model: how many items `values` has
    has_all: Array  # per model: whether `values` has all items
    maxima: Array  # work space of `list_top`
    seen: Array  # uint8 per item, not 0 for the items in the history of a query


@dataclass(frozen=True, eq=False)
class WeightsStack:
    """The weights of several models with the same items, and work space of threads for them.

    Parameters
    ----------
    weights : sequence of Weights
        Those of each model.
    """

    weights: Sequence[Weights]
    #: the work space of each thread, created on first use
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    @property
    def items(self) -> int:
        """The number of items, which all models have."""
        return self.weights[0].items

    @cached_property
    def table(self) -> StackTable:
        """The weights as arrays for kernels; `self.weights` must outlive it."""
        tables = [weights.kernel_weights for weights in self.weights]
        blocks = np.concatenate([table.blocks for table in tables])
        for number, block in enumerate(b for weights in self.weights for b in weights.blocks):
            if isinstance(block, DenseBlock):
                blocks[number]["peaks"] = address(block.column_peaks, np.float32)
        has_base = np.array([len(table.base) > 0 for table in tables])
        rows = [table.base for table in tables if len(table.base)]
        return StackTable(
            blocks,
            np.cumsum([0] + [len(table.blocks) for table in tables]),
            np.stack(rows) if rows else np.empty((1, 0)),
            np.where(has_base, np.cumsum(has_base) - 1, -1),
        )

    def scratch(self) -> StackScratch:
        """Return this thread's work space; kernels leave it without scores."""
        scratch: StackScratch | None = getattr(self._scratch, "value", None)
        if scratch is None:
            n_models, n = len(self.weights), self.items
            scores = np.full((n_models, n), NO_SCORE)
            scratch = StackScratch(
                scores, scores.view(np.int64), np.empty(n), np.arange(n, dtype=np.int32),
                np.empty((n_models, n), np.int32), np.zeros(n_models, np.int64),
                np.zeros(n_models, np.bool_), np.empty(n), np.zeros(n, np.uint8),
            )  # fmt: skip
            self._scratch.value = scratch
        return scratch


@template
def borrow_stack(table: StackTable) -> StackTable:
    """Return the table with arrays that innermost loops read without reference counts.

    The caller keeps the original arrays alive.
    """
    return StackTable(
        borrow(table.blocks), borrow(table.block_ptr), borrow(table.base), borrow(table.base_row)
    )


@template
def borrow_scratch(scratch: StackScratch) -> StackScratch:
    """Return the work space with arrays that innermost loops read without reference counts.

    The caller keeps the original arrays alive.
    """
    return StackScratch(
        borrow(scratch.scores), borrow(scratch.bits), borrow(scratch.values),
        borrow(scratch.positions), borrow(scratch.scored), borrow(scratch.n_scored),
        borrow(scratch.has_all), borrow(scratch.maxima), borrow(scratch.seen),
    )  # fmt: skip


# -- one query of one model ------------------------------------------------------------------------


@template
def score_model(
    table: StackTable, queries: StackQueries, m: int, q: int, scratch: StackScratch
) -> None:
    """Add up the scores of query q of model m, and copy them to scratch.values.

    table: the weights of all models. The model has no scores on entry; `clear_model` removes them.
    If scratch.has_all[m], values[i] is that of item i, else values[x] that of scored[m, x]; -inf
    for an item without a score.
    """
    blocks = table.blocks[table.block_ptr[m] : table.block_ptr[m + 1]]
    n_items, row = len(scratch.values), table.base_row[m]
    base = table.base[max(row, 0)][: n_items if row >= 0 else 0]
    low, high = queries.ptr[m, q], queries.ptr[m, q + 1]
    sources, weights = queries.source[low:high], KernelWeights(blocks, base)
    store = DenseScores(scratch.scores[m], scratch.bits[m])
    add_query(weights, sources, queries.share[low:high], store)
    scratch.has_all[m] = not is_cheaper_by_rows(weights, sources, n_items)
    if scratch.has_all[m]:
        values, scores = scratch.values, store.scores
        for j in range(n_items):
            is_number = has_score(store, j) and scores[j] == scores[j]
            values[j] = scores[j] if is_number else -np.inf
        scratch.n_scored[m] = n_items
        return
    size = 0
    for x in range(len(sources)):
        size = _collect_row(blocks, sources[x], store, scratch.scored[m], scratch.values, size)
    for x in range(size):
        store.scores[scratch.scored[m, x]] = scratch.values[x]
        if np.isnan(scratch.values[x]):
            scratch.values[x] = -np.inf
    scratch.n_scored[m] = size


@template
def _collect_row(
    blocks: Blocks, source: int, store: DenseScores, items: Array, values: Array, size: int
) -> int:
    """Move the scores of the items in a source's row to `values`; return the new size.

    source: the number of a row of the weights B, which is in no dense block. items, values: the
    items with scores so far, of which there are `size`. Scores that are moved are reset, so that
    each item comes once.
    """
    b = find_block(blocks, source)
    s = source - blocks[b].first
    if blocks[b].kind == SPARSE:
        rows = sparse_rows(blocks, b)
        for e in range(rows.indptr[s], rows.indptr[s + 1]):
            size = _collect_item(rows.indices[e], store, items, values, size)
    elif blocks[b].kind == IDENTITY:
        size = _collect_item(s, store, items, values, size)
    else:
        sequences = sequence_rows(blocks, b)
        low, high = sequence_bounds(sequences, s)
        for e in range(low, high):
            size = _collect_item(sequences.indices[e], store, items, values, size)
    return size


@template
def _collect_item(j: int, store: DenseScores, items: Array, values: Array, size: int) -> int:
    """Move the score of item j, if it has one, to the end of `values`; return the new size.

    size: how many entries of items and values are filled, before and after.
    """
    if not has_score(store, j):
        return size
    items[size], values[size] = j, store.scores[j]
    store.scores[j] = NO_SCORE
    return size + 1


@template
def model_score(scratch: StackScratch, m: int, j: int) -> float:
    """Return the score that model m gives item j for the query that was scored; NaN for none."""
    return get_dense(DenseScores(scratch.scores[m], scratch.bits[m]), j)


@template
def clear_model(scratch: StackScratch, m: int) -> None:
    """Remove the scores of model m, as `score_model` left them."""
    if scratch.has_all[m]:
        scratch.scores[m, :] = NO_SCORE
        return
    for x in range(scratch.n_scored[m]):
        scratch.scores[m, scratch.scored[m, x]] = NO_SCORE


@template
def _scored_items(scratch: StackScratch, m: int) -> Array:
    """Return the items of scratch.values, which are those that model m, scored last, scores."""
    return scratch.positions if scratch.has_all[m] else scratch.scored[m]


@template
def hide_values(scratch: StackScratch, m: int, flags: ItemFlags) -> None:
    """Set the values of items that may not be listed to -inf, for `list_top`.

    m: the model that was scored last. flags: which items may be listed.
    """
    items = _scored_items(scratch, m)
    for x in range(scratch.n_scored[m]):
        if not is_listable(flags, items[x]):
            scratch.values[x] = -np.inf


@template
def list_top(scratch: StackScratch, m: int, flags: ItemFlags, top: TopK) -> int:
    """Write the top k items of model m, scored last, to `top`, best first; return how many.

    k is the length of top's arrays. flags: which items may be listed; unless all may, `hide_values`
    must have been called with them.
    """
    values, items, n, size = scratch.values, _scored_items(scratch, m), scratch.n_scored[m], 0
    threshold = _last_score_bound(values, n, len(top.items), scratch.maxima)
    for start in range(0, n, _SPAN):
        stop = min(start + _SPAN, n)
        if any_reaches(values, start, stop, threshold):
            for x in range(start, stop):
                # a score of -inf counts, an item without a score does not
                if values[x] >= threshold and (
                    values[x] > -np.inf or scratch.scores[m, items[x]] == -np.inf
                ):
                    size = push_item(top, size, items[x], values[x], flags)
                    if size == len(top.items):
                        threshold = max(threshold, top.scores[0])
    return sort_top_k(top, size)


@template
def _last_score_bound(values: Array, n: int, k: int, maxima: Array) -> float:
    """Return a number that at least k of values[:n] reach, close to the k-th largest.

    It is the k-th largest of the maxima of some groups of values; -inf if there are fewer than k.
    maxima: work space, as long as values.
    """
    if n <= k or k == 0:
        return -np.inf
    width = min(n, _MAXIMA * k)
    for x in range(width):
        maxima[x] = values[x]
    for start in range(width, n, width):
        for x in range(min(width, n - start)):
            maxima[x] = max(maxima[x], values[start + x])
    return kth_smallest(maxima[:width], width - k)


@template
def rank_target(scratch: StackScratch, m: int, flags: ItemFlags, target: int) -> int:
    """Return the rank of an item in the list of model m, scored last, from 1; 0 for none.

    flags: which items may be listed. It is 0 if the target is negative, may not be listed, or has
    no score.
    """
    if target < 0 or not is_listable(flags, target):
        return 0
    score = model_score(scratch, m, target)
    if np.isnan(score):
        return 0
    values, items, n, rank = scratch.values, _scored_items(scratch, m), scratch.n_scored[m], 1
    for start in range(0, n, _SPAN):
        stop = min(start + _SPAN, n)
        if any_reaches(values, start, stop, score):
            for x in range(start, stop):
                j = items[x]
                if ranks_before(values[x], j, score, target) and is_listable(flags, j):
                    rank += values[x] > -np.inf or scratch.scores[m, j] == -np.inf
    return rank
