"""Blocks: the parts of B, each kept in the form that suits it.

B stands as blocks on top of each other. A block has sources (its rows of B), and source s gives x_s times the block's
weight times its row to the scores of the items. What all blocks give is added into one score per item.
No block is turned into the form of another: a sparse one, a dense one and one that is not stored at all can stand together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from talerec.ranking import reasons
from talerec.ranking.tables import BLOCK, DENSE, IDENTITY, RUNS, SPARSE
from talerec.runtime.addresses import address
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.lazy import sparse


@dataclass(frozen=True, eq=False, kw_only=True)
class Block(ABC):
    """Rows of B.

    Parameters
    ----------
    items : int
        Columns: every block of a model has one for every item.
    weight : float
        What the whole block is multiplied by.
    source_item : array of int32, optional
        The item that each source stands for in an explanation, -1 for none. Without it, source s stands for item s.
    """

    items: int
    weight: float = 1.0
    source_item: Array | None = None
    kind: ClassVar[int]

    @property
    @abstractmethod
    def sources(self) -> int:
        """How many rows the block has."""

    @property
    def matrix(self) -> Any:
        """The block as a NumPy or SciPy matrix, source x item."""
        raise NotImplementedError

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """What is stored of the block, by name."""

    def rows(self, a: int, b: int) -> Block:
        """Sources a..b as a block of their own, without a copy of what is stored."""
        raise NotImplementedError

    @abstractmethod
    def columns(self) -> dict[str, int]:
        """The addresses and sizes that kernels read the block by (fields of `BLOCK`)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseBlock(Block):
    """Compressed rows: row s has the items indices[indptr[s]:indptr[s+1]], ascending, and their values (float32)."""

    indptr: Array
    indices: Array
    values: Array
    known_peaks: Array | None = None
    kind: ClassVar[int] = SPARSE

    @property
    def sources(self) -> int:
        return len(self.indptr) - 1

    @property
    def matrix(self) -> Any:
        shape = (self.sources, self.items)
        return sparse.csr_array((self.values, self.indices, self.indptr), shape=shape)

    def rows(self, a: int, b: int) -> Block:
        low, high = self.indptr[a], self.indptr[b]
        return replace(
            self,
            indptr=self.indptr[a : b + 1] - low,
            indices=self.indices[low:high],
            values=self.values[low:high],
            known_peaks=None if self.known_peaks is None else self.known_peaks[a:b],
            source_item=None if self.source_item is None else self.source_item[a:b],
        )

    @cached_property
    def peaks(self) -> Array:
        """The largest absolute value of each row: no source can give more than that to any item."""
        if self.known_peaks is not None:
            return self.known_peaks
        peaks: Array = reasons.row_peaks(self._bounds, self.values)
        return peaks

    @cached_property
    def _bounds(self) -> Array:
        return np.ascontiguousarray(self.indptr, np.int64)

    @cached_property
    def _indices(self) -> Array:
        return np.ascontiguousarray(self.indices, np.int32)

    def arrays(self) -> dict[str, Array]:
        rows = {"indptr": self.indptr, "indices": self.indices, "data": self.values}
        return {**rows, "peaks": self.peaks}

    def columns(self) -> dict[str, int]:
        return {
            "bounds": address(self._bounds, np.int64),
            "indices": address(self._indices, np.int32),
            "values": address(self.values, np.float32),
            "size": len(self.indices),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class DenseBlock(Block):
    """A row of float32 values for every source; a value of 0 is none."""

    values: Array
    kind: ClassVar[int] = DENSE

    @property
    def sources(self) -> int:
        return len(self.values)

    @property
    def matrix(self) -> Any:
        return self.values

    def rows(self, a: int, b: int) -> Block:
        item = None if self.source_item is None else self.source_item[a:b]
        return replace(self, values=self.values[a:b], source_item=item)

    def arrays(self) -> dict[str, Array]:
        return {"weights": self.values}

    def columns(self) -> dict[str, int]:
        return {"values": address(self.values, np.float32), "size": self.values.size}


@dataclass(frozen=True, eq=False, kw_only=True)
class IdentityBlock(Block):
    """Source s gives to item s alone, and gives it 1. Nothing is stored."""

    kind: ClassVar[int] = IDENTITY

    @property
    def sources(self) -> int:
        return self.items

    @property
    def matrix(self) -> Any:
        return sparse.eye_array(self.items, dtype=np.float32, format="csr")

    def arrays(self) -> dict[str, Array]:
        return {}

    def columns(self) -> dict[str, int]:
        return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class RunsBlock(Block):
    """Histories: run h has the items indices[indptr[h]:indptr[h+1]] in the order of time, and a source is one entry.

    It gives fade[d] to the items that stand d places away from it in its run.
    """

    indptr: Array
    indices: Array
    fade: Array
    kind: ClassVar[int] = RUNS

    def __post_init__(self) -> None:
        if self.source_item is None:  # an entry stands for its own item
            object.__setattr__(self, "source_item", self.indices)

    @property
    def sources(self) -> int:
        return len(self.indices)

    @property
    def runs(self) -> int:
        """How many histories there are."""
        return len(self.indptr) - 1

    @cached_property
    def _bounds(self) -> Array:
        return np.ascontiguousarray(self.indptr, np.int64)

    @cached_property
    def _fade(self) -> Array:
        return np.ascontiguousarray(self.fade, np.float64)

    def arrays(self) -> dict[str, Array]:
        return {"indptr": self.indptr, "indices": self.indices, "fade": self.fade}

    def columns(self) -> dict[str, int]:
        return {
            "bounds": address(self._bounds, np.int64),
            "indices": address(self.indices, np.int32),
            "values": address(self._fade, np.float64),
            "size": len(self.indices),
            "runs": self.runs,
        }


KINDS: dict[str, type[Block]] = {
    "sparse": SparseBlock,
    "dense": DenseBlock,
    "identity": IdentityBlock,
    "runs": RunsBlock,
}


def name_of(block: Block) -> str:
    """The name of a block's form."""
    return next(name for name, kind in KINDS.items() if isinstance(block, kind))


def block_of(matrix: Any, **settings: Any) -> Block:
    """A NumPy or SciPy matrix, source x item, as a block.

    Examples
    --------
    >>> import numpy as np
    >>> block_of(np.eye(3)).sources
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


def table_of(blocks: Sequence[Block], *, peaks: bool) -> Array:
    """What kernels read, a record per block; the blocks have to outlive it. `peaks`: for a search that stops early."""
    table, first = np.zeros(len(blocks), BLOCK), 0
    for record, block in zip(table, blocks, strict=True):
        last = first + block.sources
        numbers = {"kind": block.kind, "first": first, "last": last, "weight": block.weight}
        for name, value in {**numbers, **block.columns()}.items():
            record[name] = value
        record["source_item"] = _address_of(block.source_item)
        if peaks and isinstance(block, SparseBlock):
            record["peaks"] = address(block.peaks, np.float32)
        first = last
    return table


def _address_of(source_item: Array | None) -> int:
    """The address of what sources stand for; 0: each for the item of its number."""
    return 0 if source_item is None else address(source_item, np.int32)
