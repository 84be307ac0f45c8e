"""Weights B (source x item, as blocks), and queries: the rows x of scores x @ B.

Sources are items as a rule, and x says how much each of them counts. Models may have other
sources: a time, a dimension of a factor model, an entry of another user's history. An item has a
score if some source of the query has a nonzero weight for it, or if the model gives it a base
score. Other items have no score and are never ranked.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.ranking.blocks import KINDS, Block, DenseBlock, block_kind, block_table, make_block
from talerec.ranking.ranks import QueryArrays, RankScratch
from talerec.ranking.reasons import source_contributions, source_items
from talerec.ranking.scores import KernelWeights, new_dense_scores, new_hash_scores
from talerec.runtime import Array, sparse

#: Up to so many items there is one score per item: they fit into the second-level cache, or nearly.
_DENSE_UP_TO = 2**17

_QUERY_ARRAY = "aside_"  # prefix of the names of query arrays in an artifact
#: The kind of the only block of an artifact of version 0.1, by the name of its array.
_KIND_BY_ARRAY = {"weights": "dense", "fade": "runs", "data": "sparse"}


@dataclass(frozen=True, eq=False)
class Query:
    """Queries as sparse rows x of scores x @ B; q has source[ptr[q]:ptr[q+1]], none twice.

    Parameters
    ----------
    ptr : array of int64
        Where each query begins; one entry more than queries.
    source : array of int64
        Numbers of sources, counted through all blocks of the weights; added up in this order.
    weight : array of float64
        How much each source counts.

    Examples
    --------
    >>> import numpy as np
    >>> x = Query(np.array([0, 2]), np.array([4, 1]), np.array([1.0, 0.5]))
    >>> len(x)
    1
    """

    ptr: Array
    source: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def times(self, factor: Array) -> Query:
        """Return the queries with the weight of each entry multiplied by its factor.

        factor: one per entry of all queries. An entry is a source (row of the weights B) of a query
        and how much it counts.
        """
        return Query(self.ptr, self.source, self.weight * factor)

    def select(self, q: int) -> Query:
        """Return query q alone, as one query.

        Query q has the entries ptr[q]..ptr[q + 1] of `source` (rows of the weights B) and `weight`.
        """
        span = slice(self.ptr[q], self.ptr[q + 1])
        return Query(self.ptr[q : q + 2] - self.ptr[q], self.source[span], self.weight[span])

    def one(self, q: int) -> Query:
        """Return `select(q)`; the deprecated name of that method."""
        message = "Query.one is now Query.select; the old name goes with version 0.4"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.select(q)

    @classmethod
    def empty(cls, queries: int) -> Query:
        """Return `queries` queries without sources: only base scores count.

        A source is a row of the weights B; base scores do not depend on the query.
        """
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int64), np.empty(0))

    def rows(self) -> QueryArrays:
        """Return the queries as the arrays (ptr, source, share) that kernels read."""
        return QueryArrays(self.ptr, self.source.astype(np.int64, copy=False), self.weight)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights B of a fitted model, and the arrays that it makes queries from.

    Scores are x @ B: a query x says how much each source (row of B), mostly an item of the history,
    counts.

    Parameters
    ----------
    blocks : NumPy or SciPy matrix, Block, or list of blocks
        B, source x item. Blocks are stacked, and their sources are numbered through.
    base : array of float64, optional
        A score of each item that does not depend on the history; NaN for an item without one.
    query_arrays : dict of arrays, optional
        What else the model needs to make queries, by name; saved with the weights.

    Examples
    --------
    >>> import numpy as np
    >>> Weights(np.eye(3, dtype=np.float32)).items
    3
    """

    blocks: Any
    base: Array | None = None
    query_arrays: dict[str, Array] = field(default_factory=dict)
    #: the work space of each thread, created on first use
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def __post_init__(self) -> None:
        blocks = self.blocks
        if isinstance(blocks, Block):
            blocks = (blocks,)
        elif not isinstance(blocks, Sequence):
            blocks = (make_block(blocks),)
        object.__setattr__(self, "blocks", tuple(blocks))

    def __reduce__(self) -> tuple[Any, ...]:  # work space stays with its threads
        return Weights, (self.blocks, self.base, self.query_arrays)

    @property
    def items(self) -> int:
        """The number of items: the columns of the weights B, which every block has."""
        return int(self.blocks[0].items)

    @property
    def matrix(self) -> Any:
        """The first block of the weights B as a matrix, source x item; often item x item.

        A block is some rows of B in one storage format. `self.blocks` are all of them.
        """
        return self.blocks[0].matrix

    def first_source(self, block: int) -> int:
        """Return the number of a block's first source, counted through all blocks.

        A source is a row of the weights B, a block some rows of B in one format. `_first_sources`
        has the number for each block.
        """
        return self._first_sources[block]

    @cached_property
    def _first_sources(self) -> list[int]:
        return list(accumulate((block.sources for block in self.blocks), initial=0))

    # -- for kernels --

    @cached_property
    def uses_dense_scores(self) -> bool:
        """Whether ranking stores a score per item (`DenseScores`), or of scored items only.

        It does up to 131,072 items, and if a block of B is dense or items have base scores.
        """
        dense = any(isinstance(block, DenseBlock) for block in self.blocks)
        return dense or self.base is not None or self.items <= _DENSE_UP_TO

    @cached_property
    def kernel_weights(self) -> KernelWeights:
        """The table of blocks and the base scores (empty if there are none) that kernels read.

        A block is some rows of the weights B; base scores do not depend on the query.
        """
        base = np.empty(0) if self.base is None else np.ascontiguousarray(self.base, np.float64)
        return KernelWeights(block_table(self.blocks, peaks=not self.uses_dense_scores), base)

    def scratch(self) -> RankScratch:
        """Return this thread's store of scores and marks per item; kernels leave them clear.

        It is created when the thread first asks for it, and kept in `self._scratch`. The store has
        a score per item (`uses_dense_scores`), or is a hash table.
        """
        scratch: RankScratch | None = getattr(self._scratch, "value", None)
        if scratch is None:
            n = self.items
            store: Any = new_dense_scores(n) if self.uses_dense_scores else new_hash_scores(n)
            scratch = RankScratch(store, np.zeros(n, np.uint8), np.zeros(n, np.uint8))
            self._scratch.value = scratch
        return scratch

    def marks(self) -> Array:
        """Return a zero for every item, for this thread; its user resets it to zeros."""
        return self.scratch().marks

    # -- contributions to scores --

    def contributions(self, query: Query, targets: Array) -> Array:
        """Return what each source (column) of one query adds to the scores of items (rows).

        A source is a row of the weights B that the query weights. targets: the items. An entry is 0
        if the source has no weight for the item.
        """
        rows, items = query.rows(), np.ascontiguousarray(targets, np.int32)
        blocks = self.kernel_weights.blocks
        return source_contributions(blocks, rows.source, rows.share, items, self.items)

    def source_items(self, query: Query) -> Array:
        """Return the item that each source (row of B) of a query stands for in reasons, or -1."""
        return source_items(self.kernel_weights.blocks, query.rows().source)

    # -- artifacts --

    def stored(self) -> tuple[list[dict[str, Any]], dict[str, Array]]:
        """Return what a saved model stores: [{"kind", "weight"} per block], and arrays by name.

        A block is some rows of the weights B in one format (sparse, dense, identity, runs), with a
        factor. The arrays are those of the blocks, the base scores, and what the model needs to
        make queries. `query_arrays` are the latter.
        """
        arrays = {f"{_QUERY_ARRAY}{name}": array for name, array in self.query_arrays.items()}
        if self.base is not None:
            arrays["base"] = self.base
        facts = []
        for number, block in enumerate(self.blocks):
            facts.append({"kind": block_kind(block), "weight": block.weight})
            block_arrays = dict(block.arrays())
            if block.source_item is not None and block_kind(block) != "runs":
                block_arrays["source_item"] = block.source_item
            arrays |= {
                _format_array_name(name, number): array for name, array in block_arrays.items()
            }
        return facts, arrays

    @classmethod
    def restored(
        cls, facts: list[dict[str, Any]] | None, arrays: dict[str, Array], items: int
    ) -> Weights:
        """Return weights from what `stored` returned; items: the number of items.

        facts: {"kind", "weight"} of each block (rows of the weights B in one format); None in saved
        models of version 0.1, which have one block. arrays: those of the saved model by name; names
        that begin with ``aside_`` are what the model needs to make queries.
        """
        if facts is None:
            kind = next(kind for name, kind in _KIND_BY_ARRAY.items() if name in arrays)
            facts = [{"kind": kind, "weight": 1.0}]
        blocks = [_restore_block(fact, arrays, items, number) for number, fact in enumerate(facts)]
        query_arrays = {
            name.removeprefix(_QUERY_ARRAY): array
            for name, array in arrays.items()
            if name.startswith(_QUERY_ARRAY)
        }
        return cls(blocks, arrays.get("base"), query_arrays)


def _format_array_name(name: str, number: int) -> str:
    """Return the name of a block's array in an artifact; the first block's have no number."""
    return f"{name}_{number}" if number else name


#: The arrays of each form of block in an artifact, and the fields that they fill.
_ARRAYS = {
    "sparse": {"indptr": "indptr", "indices": "indices", "data": "values", "peaks": "stored_peaks"},
    "dense": {"weights": "values"},
    "identity": {},
    "runs": {"indptr": "indptr", "indices": "indices", "fade": "decay"},
}


def _restore_block(
    fact: dict[str, Any], arrays: dict[str, Array], items: int, number: int
) -> Block:
    """Return block `number` (some rows of the weights B) of a saved model.

    fact: the block's {"kind", "weight"}; TalerecError if its kind is unknown. arrays: all arrays of
    the saved model by name, the names of blocks after the first ending in their number. items: the
    number of items.
    """
    kind = fact["kind"]
    if kind not in _ARRAYS:
        raise TalerecError(
            f"the model has weights of a form {kind!r}, which this version does not know"
        )
    fields = {
        field: arrays[_format_array_name(name, number)]
        for name, field in {**_ARRAYS[kind], "source_item": "source_item"}.items()
        if _format_array_name(name, number) in arrays
    }
    return KINDS[kind](items=items, weight=fact["weight"], **fields)


def empty_matrix(n: int) -> Any:
    """Return a sparse n x n matrix without entries, for models of base scores alone."""
    return sparse.csr_array((n, n), dtype=np.float32)
