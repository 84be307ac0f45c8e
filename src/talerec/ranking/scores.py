"""Scores of one query: two stores, and the loops that add every source's row to them.

`DenseScores` has one score per item, the faster store by far as long as it fits into the
processor's cache. `HashScores` holds only the items that something was added to, for catalogues so
large that most items get nothing. Both are cleared as they are read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.ranking.block_records import (
    DENSE,
    IDENTITY,
    SPARSE,
    Blocks,
    dense_row,
    find_block,
    sequence_bounds,
    sequence_rows,
    sparse_rows,
)
from talerec.runtime import Array, Kernel, borrow, float32_at, template, unsigned_range

#: The score of an item that nothing was added to. A sum is never -0.0 once something was added.
NO_SCORE = -0.0
_NO_SCORE_BITS = -(2**63)

#: Sources with less than this share of the first source's may be too small to change any score; it
#: is checked before every eighth.
_SMALL_SHARE = 2.0**-54
_CHECK_STEP = 8
_ROWS_AT_ONCE = 4  # rows of a dense block that are added in one pass over the scores
_NO_CHANGE = 2.0**-55  # of a score: what is added to it, at most, without changing its last bit

#: A source weight above this, times the smallest float32, is not zero yet.
_MIN_WEIGHT = 2.0**-800


class DenseScores(NamedTuple):
    """The scores of one query: one per item, -0.0 (`NO_SCORE`) for an item without a score.

    Who reads the scores resets them.
    """

    scores: Array  # float64
    bits: Array  # the same memory as int64, which tells -0.0 (no score) from +0.0 (zero)


def new_dense_scores(items: int) -> DenseScores:
    """Return a store with room for one score for each of `items` items; none has one yet."""
    scores = np.full(items, NO_SCORE)
    return DenseScores(scores, scores.view(np.int64))


@template
def borrow_dense(store: DenseScores) -> DenseScores:
    """Return the store with arrays that innermost loops read without reference counts.

    The store has the scores of a query, one per item; the caller keeps its arrays alive.
    """
    return DenseScores(borrow(store.scores), borrow(store.bits))


@template
def has_score(store: DenseScores, j: Any) -> bool:
    """Return whether item j has a score: something was added to it, be it zero."""
    return bool(store.bits[j] != _NO_SCORE_BITS)


@template
def get_dense(store: DenseScores, j: int) -> float:
    """Return the score of item j of a query, NaN if it has none."""
    return store.scores[j] if has_score(store, j) else np.nan


@template
def _add_dense(store: DenseScores, j: int, value: float) -> None:
    """Add a value to the score of item j, which then has a score even if the value is 0."""
    store.scores[j] += value + 0.0  # a value that underflows is 0.0, not -0.0


@template
def _add_dense_sparse_row(
    store: DenseScores, indices: Array, values: Array, low: int, high: int, weight: float
) -> None:
    """Add weight * values[low:high] to the scores of items indices[low:high].

    Zero values are skipped: an item to which only they are added has no score. `weight` may be so
    small that products underflow; these count as 0.0, which is a score.
    """
    scores = store.scores
    if abs(weight) > _MIN_WEIGHT:
        for e in unsigned_range(low, high):
            scores[np.uint32(indices[e])] += weight * values[e] if values[e] != 0.0 else NO_SCORE
        return
    for e in unsigned_range(low, high):
        if values[e] != 0.0:
            _add_dense(store, indices[e], weight * values[e])


@template
def _add_dense_row(store: DenseScores, row: Array, weight: float) -> None:
    """Add weight * row[j] to the score of every item j; zero values are skipped.

    An item to which only zeros are added has no score.
    """
    scores = store.scores
    for j in unsigned_range(0, len(row)):
        scores[j] += weight * row[j] + 0.0 if row[j] != 0.0 else NO_SCORE


@template
def _add_dense_rows(
    store: DenseScores, blocks: Blocks, b: int, sources: Array, shares: Array
) -> None:
    """Add the rows of four sources of dense block b, times their shares, to the scores.

    As `_add_dense_row` of one after the other, to the last bit, with one pass over the scores.
    """
    scores, first, weight = store.scores, blocks[b].first, blocks[b].weight
    row_0, share_0 = dense_row(blocks, b, sources[0] - first, len(scores)), shares[0] * weight
    row_1, share_1 = dense_row(blocks, b, sources[1] - first, len(scores)), shares[1] * weight
    row_2, share_2 = dense_row(blocks, b, sources[2] - first, len(scores)), shares[2] * weight
    row_3, share_3 = dense_row(blocks, b, sources[3] - first, len(scores)), shares[3] * weight
    for j in unsigned_range(0, len(scores)):
        score = scores[j]
        score += share_0 * row_0[j] + 0.0 if row_0[j] != 0.0 else NO_SCORE
        score += share_1 * row_1[j] + 0.0 if row_1[j] != 0.0 else NO_SCORE
        score += share_2 * row_2[j] + 0.0 if row_2[j] != 0.0 else NO_SCORE
        score += share_3 * row_3[j] + 0.0 if row_3[j] != 0.0 else NO_SCORE
        scores[j] = score


# -- hash table ------------------------------------------------------------------------------------


class HashScores(NamedTuple):
    """A hash table of one query's scored items and their scores, by order of first addition."""

    slots: Array  # positions in `items`, from 1 (0: empty); 2^n of them in use, 0 between queries
    items: Array  # the scored items
    scores: Array  # their scores
    state: Array  # two numbers: of scored items, and of slots in use


_SIZE, _SLOTS = 0, 1  # positions in `HashScores.state`
_MIN_SLOTS = 16


def new_hash_scores(items: int) -> HashScores:
    """Return an empty hash table with room for the scores of `items` items."""
    slots = np.zeros(2 << items.bit_length(), np.int32)
    state = np.array([0, _MIN_SLOTS], np.int64)
    return HashScores(slots, np.empty(items, np.int32), np.empty(items), state)


@template
def borrow_hash(store: HashScores) -> HashScores:
    """Return the hash table with arrays that innermost loops read without reference counts.

    The caller keeps the original arrays alive.
    """
    return HashScores(
        borrow(store.slots), borrow(store.items), borrow(store.scores), borrow(store.state)
    )


@template
def hash_size(store: HashScores) -> int:
    """Return the number of scored items in a hash table of a query's scores."""
    return int(store.state[_SIZE])


@template
def get_hash(store: HashScores, j: int) -> float:
    """Return the score of item j in a hash table of scores, NaN if it has none."""
    position = store.slots[_find_slot(store, j, store.state[_SLOTS] - 1)]
    return store.scores[position - 1] if position > 0 else np.nan


@template
def _find_slot(store: HashScores, j: int, last: int) -> int:
    """Return the slot of item j among the slots 0..last, or the empty slot to put it into.

    A slot has the position of an item in store.items, from 1; 0 is empty. last + 1 is a power of
    two; linear probing.
    """
    slot: int = ((j * 2654435769) >> 7) & last
    while store.slots[slot] != 0 and store.items[store.slots[slot] - 1] != j:
        slot = (slot + 1) & last
    return slot


@template
def _reserve(store: HashScores, more: int) -> None:
    """Enlarge the hash table of scores, if needed, so that `more` further items fit.

    Its items are then placed again. It has at least twice as many slots as items, but not many
    more: a small table stays in the cache.
    """
    capacity = min(store.state[_SIZE] + more, len(store.items))
    size = store.state[_SLOTS]
    if size >= 2 * capacity or size == len(store.slots):
        return
    store.slots[:size] = 0
    while size < 2 * capacity and size < len(store.slots):
        size *= 2
    store.state[_SLOTS] = size
    for c in range(store.state[_SIZE]):
        store.slots[_find_slot(store, store.items[c], size - 1)] = c + 1


@template
def _add_hash(store: HashScores, j: int, value: float) -> None:
    """Add a value to the score of item j in a hash table of scores.

    A slot has the position of an item in store.items, from 1; 0 is empty. `_reserve` must have made
    room for the item.
    """
    slot = _find_slot(store, j, store.state[_SLOTS] - 1)
    if store.slots[slot] == 0:
        size = store.state[_SIZE]
        store.items[size], store.scores[size] = j, 0.0
        store.state[_SIZE] = size + 1
        store.slots[slot] = size + 1
    store.scores[store.slots[slot] - 1] += value


@template
def _add_hash_sparse_row(
    store: HashScores, indices: Array, values: Array, low: int, high: int, weight: float
) -> None:
    """Add weight * values[low:high] to the items indices[low:high]; zero values are skipped.

    `_reserve` must have made room for the items.
    """
    size, last = store.state[_SIZE], store.state[_SLOTS] - 1
    for e in unsigned_range(low, high):
        if values[e] == 0.0:
            continue
        slot = _find_slot(store, indices[e], last)
        if store.slots[slot] == 0:
            store.items[size], store.scores[size] = indices[e], 0.0
            size += 1
            store.slots[slot] = size
        store.scores[store.slots[slot] - 1] += weight * values[e]
    store.state[_SIZE] = size


@template
def clear_hash(store: HashScores) -> None:
    """Remove all items and scores from a hash table, and use 16 slots again."""
    store.slots[: store.state[_SLOTS]] = 0
    store.state[_SIZE] = 0
    store.state[_SLOTS] = _MIN_SLOTS


# -- blocks ----------------------------------------------------------------------------------------


class KernelWeights(NamedTuple):
    """The weights of a model for kernels: the scores of a query x are x @ B + base."""

    blocks: Blocks  # a record of addresses per block: rows of B in one storage format
    base: Array  # a score per item for every query, NaN for none; empty if no item has one


@template
def borrow_weights(weights: KernelWeights) -> KernelWeights:
    """Return the weights with arrays that innermost loops read without reference counts.

    The caller keeps the original arrays alive.
    """
    return KernelWeights(borrow(weights.blocks), borrow(weights.base))


@template
def add_query(weights: KernelWeights, sources: Array, shares: Array, store: DenseScores) -> None:
    """Add up the scores of one query: base scores, then each source's row times its share.

    weights: B (source x item) as blocks, and base scores that do not depend on the query. A source
    is a row of B, mostly an item of the history. sources: numbers of rows through all blocks, added
    in this order; shares: the weight of each in the query. The store, one score per item, has no
    scores on entry. If a dense block has the peaks of its columns, sources that are too old to
    change any score are left out.
    """
    blocks, base, scores = weights.blocks, weights.base, store.scores
    for j in range(len(base)):
        if not np.isnan(base[j]):
            scores[j] = base[j] + 0.0
    x = 0
    while x < len(sources):
        b = find_block(blocks, sources[x])
        first, weight = blocks[b].first, blocks[b].weight
        y = x + 1  # sources x..y are all in block b
        while y < len(sources) and first <= sources[y] < blocks[b].last:
            y += 1
        if blocks[b].kind == DENSE:
            z = x
            while z < y:
                is_small = blocks[b].peaks != 0 and abs(shares[z]) < _SMALL_SHARE * abs(shares[x])
                if is_small and z % _CHECK_STEP == 0:
                    peaks = float32_at(blocks[b].peaks, len(scores))
                    if _is_settled(scores, peaks, shares[z:y], weight):
                        break
                if z % _ROWS_AT_ONCE == 0 and z + _ROWS_AT_ONCE <= y:
                    _add_dense_rows(store, blocks, b, sources[z:y], shares[z:y])
                    z += _ROWS_AT_ONCE
                else:
                    row = dense_row(blocks, b, sources[z] - first, len(scores))
                    _add_dense_row(store, row, shares[z] * weight)
                    z += 1
        else:
            some, part = sources[x:y], shares[x:y]
            _add_block(_add_dense, _add_dense_sparse_row, store, blocks, b, some, part)
        x = y


@template
def _is_settled(scores: Array, peaks: Array, shares: Array, weight: float) -> bool:
    """Return whether rows times these shares and the weight cannot change any score.

    scores: one per item, float64; peaks: the largest absolute value of each item in any row. A sum
    stays as it is, to the last bit, if what is added is below 2^-54 of it.
    """
    largest = 0.0
    for z in range(len(shares)):
        largest = max(largest, abs(shares[z] * weight))
    is_settled = True
    for j in range(len(scores)):
        is_settled &= largest * peaks[j] <= _NO_CHANGE * abs(scores[j])
    return is_settled


@template
def add_to_hash(
    store: HashScores, blocks: Blocks, b: int, sources: Array, shares: Array, length: int
) -> None:
    """Add the rows of sources of block b times their shares; the rows have <= `length` items.

    A source is a row of the weights B, a block some rows of B in one storage format. sources:
    numbers of rows through all blocks; block b is not dense. The hash table is enlarged first.
    """
    _reserve(store, length)
    _add_block(_add_hash, _add_hash_sparse_row, store, blocks, b, sources, shares)


@template
def _add_block(
    add_value: Kernel,
    add_row: Kernel,
    store: DenseScores | HashScores,
    blocks: Blocks,
    b: int,
    sources: Array,
    shares: Array,
) -> None:
    """Add the rows of sources of block b, which is not dense, times their shares, to a store.

    A source is a row of the weights B, numbered through all blocks (rows of B in one storage
    format). add_value, add_row: the store's operations that add one value, and a sparse row.
    """
    first, weight = blocks[b].first, blocks[b].weight
    if blocks[b].kind == SPARSE:
        rows = sparse_rows(blocks, b)
        for x in range(len(sources)):
            low, high = rows.indptr[sources[x] - first], rows.indptr[sources[x] - first + 1]
            add_row(store, rows.indices, rows.values, low, high, shares[x] * weight)
    elif blocks[b].kind == IDENTITY:
        for x in range(len(sources)):
            add_value(store, sources[x] - first, shares[x] * weight)
    else:
        for x in range(len(sources)):
            _add_sequence(add_value, store, blocks, b, sources[x] - first, shares[x] * weight)


@template
def _add_sequence(
    add_value: Kernel,
    store: DenseScores | HashScores,
    blocks: Blocks,
    b: int,
    entry: int,
    share: float,
) -> None:
    """Add share * decay[d] to every item d positions from `entry` in its sequence of items.

    Block b holds the sequences, histories of other users; entry: a position in all of them, one
    after the other. add_value: the store's operation that adds a value to an item.
    """
    sequences = sequence_rows(blocks, b)
    low, high = sequence_bounds(sequences, entry)
    for e in range(low, high):
        decay = sequences.values[abs(e - entry)]
        if decay != 0.0:
            add_value(store, sequences.indices[e], share * decay)
