"""The loops that add up scores: every block of weights, source by source, into one store."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.ranking.stores import (
    Sums,
    Table,
    add,
    add_dense_row,
    add_row,
    make_room,
    table_add,
    table_add_row,
)
from talerec.ranking.tables import (
    DENSE,
    IDENTITY,
    SPARSE,
    Blocks,
    block_at,
    dense_row,
    end_of_run,
    run_around,
    runs_of,
    sparse_rows,
)
from talerec.runtime.addresses import borrowed
from talerec.runtime.arrays import Array, Kernel
from talerec.runtime.jit import template


class Stack(NamedTuple):
    """Weights for kernels: the blocks, and the base score of each item (NaN for none; empty where no item has one)."""

    blocks: Blocks
    base: Array


@template
def borrowed_stack(weights: Stack) -> Stack:
    """The weights for the innermost loops (`borrowed`)."""
    return Stack(borrowed(weights.blocks), borrowed(weights.base))


@template
def sum_up(weights: Stack, sources: Array, shares: Array, store: Sums) -> None:
    """Add up the scores of one query: the base scores, then each source's row times its share, in the query's order."""
    blocks, base, sums = weights.blocks, weights.base, store.sums
    for j in range(len(base)):
        if not np.isnan(base[j]):
            sums[j] = base[j] + 0.0
    x = 0
    while x < len(sources):
        b = block_at(blocks, sources[x])
        y = end_of_run(blocks, sources, x, b)
        first, weight = blocks[b].first, blocks[b].weight
        if blocks[b].kind == DENSE:
            for z in range(x, y):
                row = dense_row(blocks, b, sources[z] - first, len(sums))
                add_dense_row(store, row, shares[z] * weight)
        else:
            add_block(add, add_row, store, blocks, b, sources[x:y], shares[x:y])
        x = y


@template
def add_block(
    add_one: Kernel,
    add_many: Kernel,
    store: Sums | Table,
    blocks: Blocks,
    b: int,
    sources: Array,
    shares: Array,
) -> None:
    """Add what sources of one block give, which is not a dense one; the first two are operations of the store."""
    first, weight = blocks[b].first, blocks[b].weight
    if blocks[b].kind == SPARSE:
        rows = sparse_rows(blocks, b)
        for x in range(len(sources)):
            low, high = rows.bounds[sources[x] - first], rows.bounds[sources[x] - first + 1]
            add_many(store, rows.items, rows.values, low, high, shares[x] * weight)
    elif blocks[b].kind == IDENTITY:
        for x in range(len(sources)):
            add_one(store, sources[x] - first, shares[x] * weight)
    else:
        for x in range(len(sources)):
            _add_run(add_one, store, blocks, b, sources[x] - first, shares[x] * weight)


@template
def _add_run(
    add_one: Kernel, store: Sums | Table, blocks: Blocks, b: int, entry: int, share: float
) -> None:
    """Add what one entry of a history gives: to each item of the history what fades with its distance."""
    runs = runs_of(blocks, b)
    low, high = run_around(runs, entry)
    for e in range(low, high):
        fade = runs.values[abs(e - entry)]
        if fade != 0.0:
            add_one(store, runs.items[e], share * fade)


@template
def add_to_table(
    table: Table, blocks: Blocks, b: int, sources: Array, shares: Array, length: int
) -> None:
    """Add what sources of one block give, `length` items at most, to a table."""
    make_room(table, length)
    add_block(table_add, table_add_row, table, blocks, b, sources, shares)
