"""What compiled loops read blocks by: a table of addresses with one entry per block, and the rows that it leads to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.addresses import float32_at, float64_at, int32_at, int64_at
from talerec.runtime.arrays import Array
from talerec.runtime.jit import template

SPARSE, DENSE, IDENTITY, RUNS = range(4)


#: A block for kernels. An address of 0 leads to nothing.
#:
#: kind         SPARSE, DENSE, IDENTITY or RUNS
#: first, last  the numbers of the block's first source, and of the first one after its last
#: weight       what the block is multiplied by
#: bounds       address of the bounds of its rows or runs (int64)
#: indices      address of their items (int32)
#: values       address of the values (float32), or of what fades with distance (float64)
#: size         how many values it has
#: runs         how many runs it has
#: source_item  address of the item that each source stands for (int32); 0: the item of its number
#: peaks        address of the largest absolute value of each row (float32)
BLOCK = np.dtype(
    [
        ("kind", np.int64),
        ("first", np.int64),
        ("last", np.int64),
        ("weight", np.float64),
        ("bounds", np.int64),
        ("indices", np.int64),
        ("values", np.int64),
        ("size", np.int64),
        ("runs", np.int64),
        ("source_item", np.int64),
        ("peaks", np.int64),
    ]
)

Blocks = Array  # of records as BLOCK describes them, one per block


class Rows(NamedTuple):
    """Compressed rows."""

    bounds: Array
    items: Array
    values: Array


@template
def block_at(blocks: Blocks, source: int) -> int:
    """The block in which a source is."""
    b = 0
    while source >= blocks[b].last:
        b += 1
    return b


@template
def end_of_run(blocks: Blocks, sources: Array, x: int, b: int) -> int:
    """The end of the sources from x on that are all in block b."""
    y = x + 1
    while y < len(sources) and blocks[b].first <= sources[y] < blocks[b].last:
        y += 1
    return y


@template
def sparse_rows(blocks: Blocks, b: int) -> Rows:
    """The compressed rows of a sparse block."""
    size, sources = blocks[b].size, blocks[b].last - blocks[b].first
    bounds = int64_at(blocks[b].bounds, sources + 1)
    return Rows(bounds, int32_at(blocks[b].indices, size), float32_at(blocks[b].values, size))


@template
def runs_of(blocks: Blocks, b: int) -> Rows:
    """The histories of a block of runs; its values fade with distance."""
    bounds = int64_at(blocks[b].bounds, blocks[b].runs + 1)
    items = int32_at(blocks[b].indices, blocks[b].size)
    return Rows(bounds, items, float64_at(blocks[b].values, blocks[b].size))


@template
def dense_row(blocks: Blocks, b: int, s: int, items: int) -> Array:
    """Row s of a dense block."""
    return float32_at(blocks[b].values + 4 * s * items, items)


@template
def run_around(runs: Rows, entry: int) -> tuple[int, int]:
    """Where the run that an entry stands in begins and ends."""
    run = np.searchsorted(runs.bounds, entry, side="right") - 1
    return runs.bounds[run], runs.bounds[run + 1]


@template
def item_of(blocks: Blocks, b: int, s: int) -> int:
    """The item that source s of block b stands for in an explanation, -1 for none."""
    if blocks[b].source_item == 0:
        return s
    item: int = int32_at(blocks[b].source_item, s + 1)[s]
    return item


@template
def row_length(blocks: Blocks, b: int, s: int, items: int) -> int:
    """How many items source s of block b gives to."""
    if blocks[b].kind == SPARSE:
        bounds = sparse_rows(blocks, b).bounds
        length: int = bounds[s + 1] - bounds[s]
        return length
    if blocks[b].kind == IDENTITY:
        return 1
    if blocks[b].kind == DENSE:
        return items
    low, high = run_around(runs_of(blocks, b), s)
    return high - low
