"""Loops that split scores into contributions: what each source of a query adds to an item."""

from __future__ import annotations

from typing import NamedTuple

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
from talerec.ranking.scores import KernelWeights
from talerec.runtime import CSR, Array, int32_at, kernel, template


@kernel
def source_contributions(
    blocks: Blocks, sources: Array, shares: Array, targets: Array, items: int
) -> Array:
    """Return what each source (column) of a query adds to the score of each target (row).

    blocks: records of the weights B (source x item). sources: rows of B, numbered through all
    blocks; shares: how much each counts. targets: items. An entry is the share times the weight, 0
    for a source without a weight. items: the number of items.
    """
    out, scratch = np.zeros((len(targets), len(sources))), np.empty(len(targets), np.uint64)
    for x in range(len(sources)):
        _read_source(blocks, sources[x], shares[x], targets, items, scratch, out[:, x])
    return out


@template
def _read_source(
    blocks: Blocks, source: int, share: float, targets: Array, items: int, scratch: Array,
    out: Array,
) -> None:  # fmt: skip
    """Write share * (weight of a source for targets[t]) into out[t], or leave it at 0.

    blocks: records of the weights B (source x item). source: a row of B, numbered through all
    blocks. items: the number of items. scratch: one entry per target. out: zeros on entry; a source
    without a weight for a target changes nothing.
    """
    b = find_block(blocks, source)
    s, share = source - blocks[b].first, share * blocks[b].weight
    if blocks[b].kind == SPARSE:
        _read_sparse_row(sparse_rows(blocks, b), s, share, targets, scratch, out)
    elif blocks[b].kind == DENSE:
        row = dense_row(blocks, b, s, items)
        for t in range(len(targets)):
            out[t] = share * row[np.uint32(targets[t])]
    elif blocks[b].kind == IDENTITY:
        for t in range(len(targets)):
            out[t] = share if targets[t] == s else 0.0
    else:
        _read_sequence(sequence_rows(blocks, b), s, share, targets, out)


@template
def _read_sparse_row(
    rows: CSR, s: int, share: float, targets: Array, scratch: Array, out: Array
) -> None:
    """Write share * (weight of row s for targets[t]) into out[t], if there is such a weight.

    rows: sparse weights, source x item, items ascending in each row. All targets (items) are
    searched for at once, one bisection step at a time, so that many reads of memory are under way.
    scratch: one entry per target.
    """
    low, size = np.uint64(rows.indptr[s]), np.uint64(rows.indptr[s + 1] - rows.indptr[s])
    if size == 0:
        return
    scratch[:] = low
    while size > np.uint64(1):
        middle = size >> np.uint64(1)
        for t in range(len(targets)):
            scratch[t] += middle * np.uint64(rows.indices[scratch[t] + middle] <= targets[t])
        size -= middle
    for t in range(len(targets)):
        if rows.indices[scratch[t]] == targets[t]:
            out[t] = share * rows.values[scratch[t]]


@template
def _read_sequence(sequences: CSR, entry: int, share: float, targets: Array, out: Array) -> None:
    """Add share * decay[d] to out[t] for each targets[t] d positions from `entry`.

    Both are in the same sequence of items, another user's history; sequences.values holds the decay
    by distance. entry: a position in all sequences, one after the other. targets: items.
    """
    low, high = sequence_bounds(sequences, entry)
    for t in range(len(targets)):
        for e in range(low, high):
            if sequences.indices[e] == targets[t]:
                out[t] += share * sequences.values[abs(e - entry)]


@kernel
def source_items(blocks: Blocks, sources: Array) -> Array:
    """Return the item that each source stands for in explanations, -1 for none.

    sources: numbers of rows of the weights B, counted through all blocks (rows of B in one format).
    A block without a list of items has source s (within the block) stand for item s.
    """
    items = np.empty(len(sources), np.int64)
    for x in range(len(sources)):
        b = find_block(blocks, sources[x])
        s = sources[x] - blocks[b].first
        items[x] = s
        if blocks[b].source_item != 0:
            items[x] = int32_at(blocks[b].source_item, s + 1)[s]
    return items


@kernel
def merge_by_item(contributions: Array, blocks: Blocks, sources: Array, items: Array) -> None:
    """Move contributions (target x source) to one column per item, in place.

    A source is a row of the weights B; `sources` are their numbers, and `items` the item that each
    stands for, -1 for none. Sources of several blocks (rows of B in one format) may stand for one
    item: their contributions go to the column of the item's source in the first block. Those of
    sources that stand for no item are dropped.
    """
    for x in range(len(sources)):
        if items[x] >= 0 and sources[x] < blocks[0].last:
            continue
        for t in range(len(contributions)):
            value = contributions[t, x]
            for y in range(len(sources) if value != 0.0 and items[x] >= 0 else 0):
                if items[y] == items[x] and sources[y] < blocks[0].last:
                    contributions[t, x] = 0.0
                    contributions[t, y] += value
                    break
            if items[x] < 0:
                contributions[t, x] = 0.0


@kernel
def largest_contributions(
    contributions: Array, scores: Array, k: int
) -> tuple[Array, Array, Array]:
    """Return the k largest contributions of each row (an item) by absolute value.

    contributions: items x sources, what each source adds to the item's score; scores: of the items.
    The result is (ends, columns, shares): row r has the entries ends[r - 1]..ends[r], largest
    first, and a share is the contribution over the row's score. Equal contributions come in column
    order, zeros are left out, and a score of zero has no shares.
    """
    rows, size = contributions.shape
    ends = np.empty(rows, np.int64)
    columns, shares = np.empty(rows * k, np.int64), np.empty(rows * k)
    end = 0
    for r in range(rows):
        span, count = slice(end, end + k), 0
        for c in range(size if scores[r] != 0.0 else 0):
            count = _insert_by_magnitude(contributions[r, c], c, shares[span], columns[span], count)
        for n in range(end, end + count):
            shares[n] /= scores[r]
        end += count
        ends[r] = end
    return ends, columns[:end], shares[:end]


@template
def _insert_by_magnitude(
    value: float, column: int, values: Array, columns: Array, size: int
) -> int:
    """Insert a value into the `size` largest so far, by absolute value; return the new size.

    values, columns: kept sorted, largest first, with a capacity of len(values) entries; when
    they are full the smallest drops out. Zero is never inserted.
    """
    capacity = len(values)
    place = min(size, capacity)
    if value == 0.0 or (
        place == capacity and (capacity == 0 or abs(values[place - 1]) >= abs(value))
    ):
        return size
    while place > 0 and abs(values[place - 1]) < abs(value):
        if place < capacity:
            values[place], columns[place] = values[place - 1], columns[place - 1]
        place -= 1
    values[place], columns[place] = value, column
    return min(size + 1, capacity)


# -- by groups of sources --------------------------------------------------------------------------


class GroupedQueries(NamedTuple):
    """Queries with grouped sources, whose contributions to scores are added up by group.

    A source is a row of the weights B, mostly an item of the history.
    """

    ptr: Array  # query q has the entries ptr[q]..ptr[q + 1]
    source: Array  # numbers of rows of the weights B
    share: Array  # how much each source counts
    group: Array  # the group of each source, from 0


@kernel
def add_group_contributions(
    weights: KernelWeights,
    queries: GroupedQueries,
    candidates: Array,
    counts: Array,
    items: int,
    a: int,
    b: int,
    out: Array,
) -> None:
    """Add up contributions by groups of sources (rows of the weights B), for queries a..b.

    out[g, q, c] grows by what the sources of group g add to the score of candidates[q, c]. Query q
    has counts[q] candidates (items), and sources queries.source with the weights queries.share; a
    group is any class of sources, such as history rows of similar age. Base scores are left out.
    items: the number of items. weights: B, as blocks; b is excluded.
    """
    blocks, row = weights.blocks, np.empty(candidates.shape[1])
    scratch = np.empty(candidates.shape[1], np.uint64)
    for q in range(a, b):
        count = counts[q]
        targets, contributions = candidates[q, :count], row[:count]
        for x in range(queries.ptr[q], queries.ptr[q + 1]):
            contributions[:] = 0.0
            source, share = queries.source[x], queries.share[x]
            _read_source(blocks, source, share, targets, items, scratch[:count], contributions)
            sums = out[queries.group[x], q]
            for c in range(count):
                sums[c] += np.float32(contributions[c])
