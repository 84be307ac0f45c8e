"""Blocks: the parts of the weights B, each stored in the form that suits it.

B is a stack of blocks. The rows of a block are its sources: source s adds x_s times the block's
weight times its row to the scores of the items. No block is converted into the form of another:
a sparse one, a dense one and one that is not stored at all can be stacked.

Kernels read blocks through a table of addresses with one record per block (`block_table`), so that
one compiled kernel serves any number of blocks of any form.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from talerec.runtime import (
    CSR,
    Array,
    address,
    float32_at,
    float64_at,
    int32_at,
    int64_at,
    is_sparse,
    kernel,
    sparse,
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
#: peaks        address of the largest absolute value of each row (float32)
_FIELDS = "kind first last weight indptr indices values size sequences source_item peaks"
BLOCK = np.dtype([(x, np.float64 if x == "weight" else np.int64) for x in _FIELDS.split()])

Blocks = Array  # of BLOCK records, one per block


@dataclass(frozen=True, eq=False, kw_only=True)
class Block(ABC):
    """Some rows of the weights B (source x item): scores are x @ B, x weighting the sources.

    Parameters
    ----------
    items : int
        Columns: every block of a model has one for every item.
    weight : float
        What the whole block is multiplied by.
    source_item : array of int32, optional
        The item that each source stands for in an explanation, -1 for none. By default, source s
        stands for item s.
    """

    items: int
    weight: float = 1.0
    source_item: Array | None = None
    kind: ClassVar[int]

    @property
    @abstractmethod
    def sources(self) -> int:
        """How many rows of the weights B the block has; each is a source, mostly an item."""

    @property
    def matrix(self) -> Any:
        """The block, some rows of the weights B, as a NumPy or SciPy matrix, source x item."""
        raise NotImplementedError

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the stored arrays, by their names in an artifact."""

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values."""
        raise NotImplementedError

    @abstractmethod
    def columns(self) -> dict[str, int]:
        """Return the addresses and sizes that kernels read the block by (fields of `BLOCK`)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseBlock(Block):
    """Rows of the weights B, compressed: float32 values, items ascending in each row."""

    indptr: Array
    indices: Array
    values: Array
    stored_peaks: Array | None = None  # `peaks`, if an artifact has them
    kind: ClassVar[int] = SPARSE

    @property
    def sources(self) -> int:
        """How many rows of the weights B the block has; each is a source, mostly an item."""
        return len(self.indptr) - 1

    @property
    def matrix(self) -> Any:
        """The block as a SciPy CSR array, source x item, without a copy and without `weight`."""
        shape = (self.sources, self.items)
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=shape)

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values."""
        low, high = self.indptr[a], self.indptr[b]
        return replace(
            self,
            indptr=self.indptr[a : b + 1] - low,
            indices=self.indices[low:high],
            values=self.values[low:high],
            stored_peaks=None if self.stored_peaks is None else self.stored_peaks[a:b],
            source_item=None if self.source_item is None else self.source_item[a:b],
        )

    @cached_property
    def peaks(self) -> Array:
        """The largest absolute value of each row: a bound on what its source adds to any item."""
        if self.stored_peaks is not None:
            return self.stored_peaks
        return _row_peaks(self._kernel_indptr, self.values)

    @cached_property
    def _kernel_indptr(self) -> Array:
        return np.ascontiguousarray(self.indptr, np.int64)

    @cached_property
    def _kernel_indices(self) -> Array:
        return np.ascontiguousarray(self.indices, np.int32)

    def arrays(self) -> dict[str, Array]:
        """Return what an artifact stores of the block, by name: compressed rows, and peaks."""
        rows = {"indptr": self.indptr, "indices": self.indices, "data": self.values}
        return {**rows, "peaks": self.peaks}

    def columns(self) -> dict[str, int]:
        """Return the addresses of the compressed rows, and how many values they have."""
        return {
            "indptr": address(self._kernel_indptr, np.int64),
            "indices": address(self._kernel_indices, np.int32),
            "values": address(self.values, np.float32),
            "size": len(self.indices),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseBlock(Block):
    """Rows of the weights B as a dense float32 array, source x item; 0 means no weight."""

    values: Array
    kind: ClassVar[int] = DENSE

    @property
    def sources(self) -> int:
        """How many rows of the weights B the block has; each is a source, mostly an item."""
        return len(self.values)

    @property
    def matrix(self) -> Any:
        return self.values

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values."""
        item = None if self.source_item is None else self.source_item[a:b]
        return replace(self, values=self.values[a:b], source_item=item)

    def arrays(self) -> dict[str, Array]:
        return {"weights": self.values}

    def columns(self) -> dict[str, int]:
        return {"values": address(self.values, np.float32), "size": self.values.size}


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityBlock(Block):
    """Rows of the weights B that are the identity matrix: source s has weight 1 for item s."""

    kind: ClassVar[int] = IDENTITY

    @property
    def sources(self) -> int:
        """How many rows of the weights B the block has: one source per item."""
        return self.items

    @property
    def matrix(self) -> Any:
        return sparse.eye_array(self.items, dtype=np.float32, format="csr")

    def arrays(self) -> dict[str, Array]:
        return {}

    def columns(self) -> dict[str, int]:
        return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class SequenceBlock(Block):
    """Histories of other users; every entry of a history is a source.

    Sequence h has the items indices[indptr[h]:indptr[h+1]] in time order. A source adds decay[d]
    to the items that are d positions away from it in its sequence.
    """

    indptr: Array
    indices: Array
    decay: Array
    kind: ClassVar[int] = SEQUENCES

    def __post_init__(self) -> None:
        if self.source_item is None:  # an entry stands for its item
            object.__setattr__(self, "source_item", self.indices)

    @property
    def sources(self) -> int:
        """How many sources (rows of the weights B) the block has: one per entry of a sequence."""
        return len(self.indices)

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return len(self.indptr) - 1

    @cached_property
    def _kernel_indptr(self) -> Array:
        return np.ascontiguousarray(self.indptr, np.int64)

    @cached_property
    def _kernel_decay(self) -> Array:
        return np.ascontiguousarray(self.decay, np.float64)

    def arrays(self) -> dict[str, Array]:
        return {"indptr": self.indptr, "indices": self.indices, "fade": self.decay}

    def columns(self) -> dict[str, int]:
        """Return the addresses of sequences and decay, and the numbers of entries and sequences."""
        return {
            "indptr": address(self._kernel_indptr, np.int64),
            "indices": address(self.indices, np.int32),
            "values": address(self._kernel_decay, np.float64),
            "size": len(self.indices),
            "sequences": self.sequences,
        }


#: The forms of blocks, by their names in an artifact.
KINDS: dict[str, type[Block]] = {
    "sparse": SparseBlock,
    "dense": DenseBlock,
    "identity": IdentityBlock,
    "runs": SequenceBlock,
}


def __getattr__(name: str) -> Any:
    """Return the class that a deprecated name stands for."""
    if name != "RunsBlock":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "RunsBlock is now SequenceBlock; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return SequenceBlock


def block_kind(block: Block) -> str:
    """Return a block's form as artifacts name it: sparse, dense, identity or runs."""
    return next(name for name, kind in KINDS.items() if isinstance(block, kind))


def make_block(matrix: Any, **settings: Any) -> Block:
    """Return a NumPy or SciPy matrix, source x item, as a dense or sparse block of weights.

    settings: other fields of `Block` (weight, source_item).

    Examples
    --------
    >>> import numpy as np
    >>> make_block(np.eye(3)).sources
    3
    """
    if is_sparse(matrix):
        rows = matrix.tocsr()
        rows = rows if rows.has_sorted_indices else rows.sorted_indices()
        return SparseBlock(
            items=rows.shape[1],
            indptr=rows.indptr,
            indices=np.ascontiguousarray(rows.indices, np.int32),
            values=np.ascontiguousarray(rows.data, np.float32),
            **settings,
        )
    values = np.ascontiguousarray(matrix, np.float32)
    return DenseBlock(items=values.shape[1], values=values, **settings)


def block_table(blocks: Sequence[Block], *, peaks: bool) -> Array:
    """Return one `BLOCK` record per block for kernels; the blocks have to outlive the table.

    peaks: whether to include the largest absolute value of each row of sparse blocks, which a
    search that stops early needs.
    """
    table, first = np.zeros(len(blocks), BLOCK), 0
    for record, block in zip(table, blocks, strict=True):
        last = first + block.sources
        fields = {"kind": block.kind, "first": first, "last": last, "weight": block.weight}
        for name, value in {**fields, **block.columns()}.items():
            record[name] = value
        if block.source_item is not None:
            record["source_item"] = address(block.source_item, np.int32)
        if peaks and isinstance(block, SparseBlock):
            record["peaks"] = address(block.peaks, np.float32)
        first = last
    return table


@kernel
def _row_peaks(indptr: Array, values: Array) -> Array:
    """Return the largest absolute value of each compressed row."""
    peaks = np.zeros(len(indptr) - 1, np.float32)
    for i in range(len(peaks)):
        for e in range(indptr[i], indptr[i + 1]):
            peaks[i] = max(peaks[i], abs(values[e]))
    return peaks


# -- reading a block table in kernels --------------------------------------------------------------


@template
def find_block(blocks: Blocks, source: int) -> int:
    """Return the index of the block that has a source: a row of B, numbered through all."""
    b = 0
    while source >= blocks[b].last:
        b += 1
    return b


@template
def sparse_rows(blocks: Blocks, b: int) -> CSR:
    """Return the rows (source x item) of block b, which is sparse, without a copy."""
    size, sources = blocks[b].size, blocks[b].last - blocks[b].first
    indptr = int64_at(blocks[b].indptr, sources + 1)
    return CSR(indptr, int32_at(blocks[b].indices, size), float32_at(blocks[b].values, size))


@template
def sequence_rows(blocks: Blocks, b: int) -> CSR:
    """Return the item sequences of block b; `values` is not per entry, but decay by distance."""
    indptr = int64_at(blocks[b].indptr, blocks[b].sequences + 1)
    indices = int32_at(blocks[b].indices, blocks[b].size)
    return CSR(indptr, indices, float64_at(blocks[b].values, blocks[b].size))


@template
def dense_row(blocks: Blocks, b: int, s: int, items: int) -> Array:
    """Return row s (from 0 within the block) of dense block b, without a copy."""
    return float32_at(blocks[b].values + 4 * s * items, items)


@template
def sequence_bounds(sequences: CSR, entry: int) -> tuple[int, int]:
    """Return (first, end) of the entries in the same sequence as `entry`, end excluded."""
    sequence = np.searchsorted(sequences.indptr, entry, side="right") - 1
    return sequences.indptr[sequence], sequences.indptr[sequence + 1]


@template
def row_length(blocks: Blocks, b: int, s: int, items: int) -> int:
    """Return the number of weights in row s (from 0 within block b) of the block."""
    if blocks[b].kind == SPARSE:
        indptr = sparse_rows(blocks, b).indptr
        return int(indptr[s + 1] - indptr[s])
    if blocks[b].kind == IDENTITY:
        return 1
    if blocks[b].kind == DENSE:
        return items
    low, high = sequence_bounds(sequence_rows(blocks, b), s)
    return high - low
