"""What compiled loops read blocks by: a table of addresses with one entry per block, and the rows that it leads to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.addresses import borrowed, float32_at, float64_at, int32_at, int64_at
from talerec.runtime.arrays import Array
from talerec.runtime.jit import template

SPARSE, DENSE, IDENTITY, RUNS = range(4)


class BlockTable(NamedTuple):
    """Blocks of weights for kernels, as arrays with one entry per block. An address of 0 leads to nothing.

    kind         SPARSE, DENSE, IDENTITY or RUNS
    first        the number of the block's first source; one entry more: how many sources there are
    weight       what the block is multiplied by
    bounds       address of the bounds of its rows or runs (int64)
    indices      address of their items (int32)
    values       address of the values (float32), or of what fades with distance (float64)
    size         how many values it has
    runs         how many runs it has
    source_item  address of the item that each source stands for (int32); 0: the item of its number
    peaks        address of the largest absolute value of each row (float32)
    """

    kind: Array
    first: Array
    weight: Array
    bounds: Array
    indices: Array
    values: Array
    size: Array
    runs: Array
    source_item: Array
    peaks: Array


@template
def borrowed_blocks(blocks: BlockTable) -> BlockTable:
    """The table for the innermost loops (`borrowed`)."""
    return BlockTable(
        borrowed(blocks.kind),
        borrowed(blocks.first),
        borrowed(blocks.weight),
        borrowed(blocks.bounds),
        borrowed(blocks.indices),
        borrowed(blocks.values),
        borrowed(blocks.size),
        borrowed(blocks.runs),
        borrowed(blocks.source_item),
        borrowed(blocks.peaks),
    )


class Rows(NamedTuple):
    """Compressed rows."""

    bounds: Array
    items: Array
    values: Array


@template
def block_at(blocks: BlockTable, source: int) -> int:
    """The block in which a source is."""
    b = 0
    while source >= blocks.first[b + 1]:
        b += 1
    return b


@template
def end_of_run(blocks: BlockTable, sources: Array, x: int, b: int) -> int:
    """The end of the sources from x on that are all in block b."""
    y = x + 1
    while y < len(sources) and blocks.first[b] <= sources[y] < blocks.first[b + 1]:
        y += 1
    return y


@template
def sparse_rows(blocks: BlockTable, b: int) -> Rows:
    """The compressed rows of a sparse block."""
    size, sources = blocks.size[b], blocks.first[b + 1] - blocks.first[b]
    bounds = int64_at(blocks.bounds[b], sources + 1)
    return Rows(bounds, int32_at(blocks.indices[b], size), float32_at(blocks.values[b], size))


@template
def runs_of(blocks: BlockTable, b: int) -> Rows:
    """The histories of a block of runs; its values fade with distance."""
    bounds = int64_at(blocks.bounds[b], blocks.runs[b] + 1)
    items = int32_at(blocks.indices[b], blocks.size[b])
    return Rows(bounds, items, float64_at(blocks.values[b], blocks.size[b]))


@template
def dense_row(blocks: BlockTable, b: int, s: int, items: int) -> Array:
    """Row s of a dense block."""
    return float32_at(blocks.values[b] + 4 * s * items, items)


@template
def run_around(runs: Rows, entry: int) -> tuple[int, int]:
    """Where the run that an entry stands in begins and ends."""
    run = np.searchsorted(runs.bounds, entry, side="right") - 1
    return runs.bounds[run], runs.bounds[run + 1]


@template
def item_of(blocks: BlockTable, b: int, s: int) -> int:
    """The item that source s of block b stands for in an explanation, -1 for none."""
    if blocks.source_item[b] == 0:
        return s
    item: int = int32_at(blocks.source_item[b], s + 1)[s]
    return item


@template
def row_length(blocks: BlockTable, b: int, s: int, items: int) -> int:
    """How many items source s of block b gives to."""
    if blocks.kind[b] == SPARSE:
        bounds = sparse_rows(blocks, b).bounds
        length: int = bounds[s + 1] - bounds[s]
        return length
    if blocks.kind[b] == IDENTITY:
        return 1
    if blocks.kind[b] == DENSE:
        return items
    low, high = run_around(runs_of(blocks, b), s)
    return high - low
