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

from talerec.ranking.block_records import BLOCK, DENSE, IDENTITY, SEQUENCES, SPARSE
from talerec.runtime import Array, address, is_sparse, kernel, sparse


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
        """The number of sources of the block: rows of the weights B; a source is mostly an item."""

    @property
    def matrix(self) -> Any:
        """The block, some rows of the weights B, as a NumPy or SciPy matrix, source x item.

        Not defined for blocks of sequences, which are never built as a matrix.
        """
        raise NotImplementedError

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return the stored arrays, by their names in an artifact (a saved model's folder)."""

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values."""
        raise NotImplementedError

    @abstractmethod
    def columns(self) -> dict[str, int]:
        """Return the addresses and sizes that kernels read the block by (fields of `BLOCK`)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseBlock(Block):
    """Rows of the weights B (source x item) as compressed rows.

    Row s has the items indices[indptr[s]:indptr[s + 1]] and the same range of values.
    """

    indptr: Array
    indices: Array  # items, ascending in each row
    values: Array  # float32, parallel to `indices`
    stored_peaks: Array | None = None  # `peaks`, if a saved model has them
    kind: ClassVar[int] = SPARSE

    @property
    def sources(self) -> int:
        """The number of rows of the weights B in the block; each is a source, mostly an item.

        `indptr` has the bounds of the compressed rows.
        """
        return len(self.indptr) - 1

    @property
    def matrix(self) -> Any:
        """The block as a SciPy CSR array, source x item, without a copy and without `weight`.

        A block is some rows of the weights B, compressed as `indptr`, `indices` and `values`;
        `weight` is a factor of the whole block. `sources` and `items` are the numbers of rows and
        columns.
        """
        shape = (self.sources, self.items)
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=shape)

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values.

        `source_item` has the item that each row stands for in explanations, `stored_peaks` each
        row's largest absolute value; None if there are none. `indptr`, `indices` and `values` are
        the compressed rows.
        """
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
        """The largest absolute value of each row: a bound on what its source adds to any item.

        As a saved model stores it (`stored_peaks`), or computed from `values` on first use.
        `_kernel_indptr` has the bounds of the rows as int64.
        """
        if self.stored_peaks is not None:
            return self.stored_peaks
        return _find_row_peaks(self._kernel_indptr, self.values)

    @cached_property
    def _kernel_indptr(self) -> Array:
        return np.ascontiguousarray(self.indptr, np.int64)

    @cached_property
    def _kernel_indices(self) -> Array:
        return np.ascontiguousarray(self.indices, np.int32)

    def arrays(self) -> dict[str, Array]:
        """Return what a saved model stores of the block, by name: compressed rows, and peaks.

        Peaks are the largest absolute value of each row. `indptr`, `indices` and `values` are the
        compressed rows, source x item.
        """
        rows = {"indptr": self.indptr, "indices": self.indices, "data": self.values}
        return {**rows, "peaks": self.peaks}

    def columns(self) -> dict[str, int]:
        """Return the memory addresses of the compressed rows, and how many values they have.

        By name, for the record from which kernels read the block. `_kernel_indptr` and
        `_kernel_indices` are the bounds and items of the rows as int64 and int32.
        """
        return {
            "indptr": address(self._kernel_indptr, np.int64),
            "indices": address(self._kernel_indices, np.int32),
            "values": address(self.values, np.float32),
            "size": len(self.indices),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseBlock(Block):
    """Rows of the weights B as a dense float32 array, source x item; 0 means no weight."""

    values: Array  # source x item
    kind: ClassVar[int] = DENSE

    @property
    def sources(self) -> int:
        """The number of rows of the weights B in the block; each is a source, mostly an item.

        `values` is the block as an array, source x item.
        """
        return len(self.values)

    @property
    def matrix(self) -> Any:
        return self.values

    @cached_property
    def column_peaks(self) -> Array:
        """The largest absolute value of each column: a bound on what a source adds to the item.

        Computed from `values` on first use, which reads all of them.
        """
        values = self.values
        peaks: Array = np.maximum(values.max(axis=0, initial=0), -values.min(axis=0, initial=0))
        return peaks

    def rows(self, a: int, b: int) -> Block:
        """Return rows (sources) a..b, b excluded, as a block, without a copy of the values.

        `source_item` has the item that each row stands for in explanations; None: row s for item s.
        """
        item = None if self.source_item is None else self.source_item[a:b]
        return replace(self, values=self.values[a:b], source_item=item)

    def arrays(self) -> dict[str, Array]:
        return {"weights": self.values}

    def columns(self) -> dict[str, int]:
        return {"values": address(self.values, np.float32), "size": self.values.size}


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityBlock(Block):
    """Rows of the weights B that are the identity matrix: source s has weight 1 for item s.

    Nothing is stored, and kernels need no arrays.
    """

    kind: ClassVar[int] = IDENTITY

    @property
    def sources(self) -> int:
        """The number of rows of the weights B in the block: one source per item."""
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
    """Rows of the weights B that are not stored: entries of other users' histories.

    Every entry of a history is a source (a row of B). Sequence h has the items
    indices[indptr[h]:indptr[h + 1]] in time order. A source adds decay[d] to the items that are d
    positions away from it in its sequence.
    """

    indptr: Array
    indices: Array
    decay: Array  # by distance in positions, from 0
    kind: ClassVar[int] = SEQUENCES

    def __post_init__(self) -> None:
        if self.source_item is None:  # an entry stands for its item
            object.__setattr__(self, "source_item", self.indices)

    @property
    def sources(self) -> int:
        """The number of sources (rows of the weights B): one per entry of a sequence.

        `indices` has the items of all sequences, one after the other.
        """
        return len(self.indices)

    @property
    def sequences(self) -> int:
        """The number of sequences: histories of other users, whose entries are sources.

        `indptr` has their bounds.
        """
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
        """Return the memory addresses of sequences and decay, and how many entries there are.

        By name, for the record from which kernels read the block: `indptr`, `indices` (the items of
        all sequences), `values` (the decay by distance), `size` (entries) and `sequences` (their
        number). `_kernel_indptr` and `_kernel_decay` are the bounds of sequences and the decay as
        int64 and float64.
        """
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
    """Return the class that a deprecated name of this module stands for, with a warning."""
    if name != "RunsBlock":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "RunsBlock is now SequenceBlock; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return SequenceBlock


def block_kind(block: Block) -> str:
    """Return a block's form as saved models name it: sparse, dense, identity or runs.

    A block is some rows of the weights B; "runs" are sequences of items.
    """
    return next(name for name, kind in KINDS.items() if isinstance(block, kind))


def make_block(matrix: Any, **settings: Any) -> Block:
    """Return a NumPy or SciPy matrix, source x item, as a dense or sparse block of weights.

    A block is some rows of the weights B of a model; scores are x @ B. settings: other fields of
    `Block` (weight: a factor; source_item: the item that each row stands for).

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
    """Return one record (dtype BLOCK) per block for kernels; blocks must outlive the table.

    A block is some rows of the weights B in one format; a record has its kind, its range of sources
    (rows numbered through all blocks), its factor and the addresses of its arrays. peaks: whether
    to include the largest absolute value of each row of sparse blocks, which a search that stops
    early needs.
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
def _find_row_peaks(indptr: Array, values: Array) -> Array:
    """Return the largest absolute value of each compressed row (float32).

    Row i has values[indptr[i]:indptr[i + 1]]; 0 for an empty row.
    """
    peaks = np.zeros(len(indptr) - 1, np.float32)
    for i in range(len(peaks)):
        for e in range(indptr[i], indptr[i + 1]):
            peaks[i] = max(peaks[i], abs(values[e]))
    return peaks
