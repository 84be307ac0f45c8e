"""The records by which kernels read the blocks of the weights B, and their readers.

A block is some rows of B in one storage format; `blocks.block_table` makes the records.
"""

from __future__ import annotations

import numpy as np

from talerec.runtime import (
    CSR,
    Array,
    count_before,
    float32_at,
    float64_at,
    int32_at,
    int64_at,
    template,
)

SPARSE, DENSE, IDENTITY, SEQUENCES = range(4)


#: A block for kernels, a record of int64 fields (`weight`: float64). An address of 0 is none.
#:
#: kind         SPARSE, DENSE, IDENTITY or SEQUENCES
#: first, last  the number of the block's first source, and of the first one after its last
#: weight       what the block is multiplied by
#: indptr       address of the bounds of its rows or sequences (int64)
#: indices      address of their items (int32)
#: values       address of the values (float32), or of the decay by distance (float64)
#: size         number of values
#: sequences    number of sequences
#: source_item  address of the item that each source stands for (int32); 0: source s for item s
#: peaks        address of the largest absolute value (float32) of each row of a sparse block, or of
#:              each column of a dense one
_FIELDS = "kind first last weight indptr indices values size sequences source_item peaks"
BLOCK = np.dtype([(x, np.float64 if x == "weight" else np.int64) for x in _FIELDS.split()])

Blocks = Array  # of BLOCK records, one per block


@template
def find_block(blocks: Blocks, source: int) -> int:
    """Return the index of the block that has a source.

    blocks: a record per block (some rows of the weights B in one format). A source is a row of B,
    numbered through all blocks.
    """
    b = 0
    while source >= blocks[b].last:
        b += 1
    return b


@template
def sparse_rows(blocks: Blocks, b: int) -> CSR:
    """Return the rows (source x item) of block b, which is sparse, without a copy.

    blocks: a record of addresses per block (some rows of the weights B in one format).
    """
    size, sources = blocks[b].size, blocks[b].last - blocks[b].first
    indptr = int64_at(blocks[b].indptr, sources + 1)
    return CSR(indptr, int32_at(blocks[b].indices, size), float32_at(blocks[b].values, size))


@template
def sequence_rows(blocks: Blocks, b: int) -> CSR:
    """Return the sequences of items of block b; `values` is not per entry, but by distance.

    blocks: a record of addresses per block of the weights B. Block b holds histories of other
    users: sequence h has the items indices[indptr[h]:indptr[h + 1]]; values[d] is the decay at a
    distance of d positions.
    """
    indptr = int64_at(blocks[b].indptr, blocks[b].sequences + 1)
    indices = int32_at(blocks[b].indices, blocks[b].size)
    return CSR(indptr, indices, float64_at(blocks[b].values, blocks[b].size))


@template
def dense_row(blocks: Blocks, b: int, s: int, items: int) -> Array:
    """Return row s (from 0 within the block) of dense block b, without a copy.

    blocks: a record of addresses per block of the weights B (source x item). items: the number of
    items, the row's length.
    """
    return float32_at(blocks[b].values + 4 * s * items, items)


@template
def sequence_bounds(sequences: CSR, entry: int) -> tuple[int, int]:
    """Return (first, end) of the entries in the same sequence as `entry`, end excluded.

    Sequence h has the entries sequences.indptr[h]..sequences.indptr[h + 1].
    """
    sequence = count_before(sequences.indptr, 0, len(sequences.indptr), entry + 1) - 1
    return sequences.indptr[sequence], sequences.indptr[sequence + 1]


@template
def row_length(blocks: Blocks, b: int, s: int, items: int) -> int:
    """Return the number of weights in row s (from 0 within block b) of the block.

    blocks: a record of addresses per block of the weights B (source x item). items: the number of
    items, which a dense row has weights for. In a block of sequences, it is the length of the
    sequence that has entry s.
    """
    if blocks[b].kind == SPARSE:
        indptr = sparse_rows(blocks, b).indptr
        return int(indptr[s + 1] - indptr[s])
    if blocks[b].kind == IDENTITY:
        return 1
    if blocks[b].kind == DENSE:
        return items
    low, high = sequence_bounds(sequence_rows(blocks, b), s)
    return high - low
