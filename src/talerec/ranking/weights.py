"""Weights: B from source (row) to item (column), as blocks; and queries, the rows x of scores x @ B.

Sources are items, as a rule; x says how much each of them counts. Models may bring others: an item as a thing seen,
a moment, a dimension of a factor model, an entry of another user's history. An item has a score when some source of the
query has a weight for it that is not zero, or when the model gives it a base score. Every other item has none and is
never ranked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.ranking.blocks import KINDS, Block, DenseBlock, block_of, name_of, table_of
from talerec.ranking.ranks import QueryRows, Scratch
from talerec.ranking.reasons import contributions, source_items
from talerec.ranking.scores import Stack
from talerec.ranking.stores import new_sums, new_table
from talerec.runtime.arrays import Array
from talerec.runtime.lazy import sparse

#: Up to so many items there is one sum per item: they fit into the second-level cache, and nearly so beyond.
_SUM_PER_ITEM = 2**17

_QUERY_ARRAY = "aside_"  # before the names of query arrays in an artifact
_OLD_NAMES = {
    "weights": "dense",
    "fade": "runs",
    "data": "sparse",
}  # of the arrays of a first block


@dataclass(frozen=True, eq=False)
class Query:
    """Histories as sparse rows x: query q has the sources source[ptr[q]:ptr[q+1]], none twice, and their weights.

    Parameters
    ----------
    ptr : array of int64
        Where each query begins; one entry more than queries.
    source : array of int64
        Numbers of sources, counted through all blocks of the weights. What they give is added in this order.
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
        """Each source counting so many times as much."""
        return Query(self.ptr, self.source, self.weight * factor)

    def one(self, q: int) -> Query:
        """Query q alone."""
        mine = slice(self.ptr[q], self.ptr[q + 1])
        return Query(self.ptr[q : q + 2] - self.ptr[q], self.source[mine], self.weight[mine])

    @classmethod
    def empty(cls, queries: int) -> Query:
        """Queries without sources: only base scores count."""
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int64), np.empty(0))

    def rows(self) -> QueryRows:
        """What kernels read."""
        return QueryRows(self.ptr, self.source.astype(np.int64, copy=False), self.weight)


@dataclass(frozen=True, eq=False)
class Weights:
    """B, and what else a fitted model needs to answer.

    Parameters
    ----------
    blocks : NumPy or SciPy matrix, Block, or list of blocks
        B, source x item. Blocks stand on top of each other, and their sources are numbered through.
    base : array of float64, optional
        A score for each item that no history is asked for; NaN for an item without one.
    query_arrays : dict of arrays, optional
        What else the model needs to make queries, by name; it is saved with the rest.

    Examples
    --------
    >>> import numpy as np
    >>> Weights(np.eye(3, dtype=np.float32)).items
    3
    """

    blocks: Any
    base: Array | None = None
    query_arrays: dict[str, Array] = field(default_factory=dict)
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def __post_init__(self) -> None:
        given = self.blocks
        if isinstance(given, Block):
            given = (given,)
        elif not isinstance(given, Sequence):
            given = (block_of(given),)
        object.__setattr__(self, "blocks", tuple(given))

    def __reduce__(self) -> tuple[Any, ...]:  # work space stays with its threads
        return Weights, (self.blocks, self.base, self.query_arrays)

    @property
    def items(self) -> int:
        """How many items there are."""
        return int(self.blocks[0].items)

    @property
    def matrix(self) -> Any:
        """The first block as a NumPy or SciPy matrix; for an item-item model, B from item to item."""
        return self.blocks[0].matrix

    def first_source(self, block: int) -> int:
        """The number of a block's first source."""
        return self._firsts[block]

    @cached_property
    def _firsts(self) -> list[int]:
        return list(accumulate((one.sources for one in self.blocks), initial=0))

    # -- for kernels --

    @cached_property
    def has_sums(self) -> bool:
        """Is there one sum per item, or a table of the items found?"""
        dense = any(isinstance(block, DenseBlock) for block in self.blocks)
        return dense or self.base is not None or self.items <= _SUM_PER_ITEM

    @cached_property
    def stack(self) -> Stack:
        """The weights as kernels read them."""
        base = np.empty(0) if self.base is None else np.ascontiguousarray(self.base, np.float64)
        return Stack(table_of(self.blocks, peaks=not self.has_sums), base)

    def scratch(self) -> Scratch:
        """This thread's work space, which kernels leave as they found it."""
        held: Scratch | None = getattr(self._scratch, "held", None)
        if held is None:
            n = self.items
            store: Any = new_sums(n) if self.has_sums else new_table(n)
            held = Scratch(store, np.zeros(n, np.uint8), np.zeros(n, np.uint8))
            self._scratch.held = held
        return held

    def marks(self) -> Array:
        """A zero for every item, for whoever makes queries on this thread and leaves zeros behind."""
        return self.scratch().marks

    # -- what scores are made of --

    def contributions(self, query: Query, targets: Array) -> Array:
        """What each source (column) of one query gives to the scores of items (rows); 0 where it has no weight."""
        rows = query.rows()
        wanted = np.ascontiguousarray(targets, np.int32)
        found: Array = contributions(self.stack.blocks, rows.source, rows.share, wanted, self.items)
        return found

    def source_items(self, query: Query) -> Array:
        """The item that each source of a query stands for, -1 for none."""
        found: Array = source_items(self.stack.blocks, query.rows().source)
        return found

    # -- keeping --

    def stored(self) -> tuple[list[dict[str, Any]], dict[str, Array]]:
        """What an artifact keeps: a line of facts about each block, and every array by name."""
        arrays = {f"{_QUERY_ARRAY}{name}": array for name, array in self.query_arrays.items()}
        if self.base is not None:
            arrays["base"] = self.base
        facts = []
        for number, block in enumerate(self.blocks):
            facts.append({"kind": name_of(block), "weight": block.weight})
            mine = dict(block.arrays())
            if block.source_item is not None and name_of(block) != "runs":
                mine["source_item"] = block.source_item
            arrays |= {_numbered(name, number): array for name, array in mine.items()}
        return facts, arrays

    @classmethod
    def restored(
        cls, facts: list[dict[str, Any]] | None, arrays: dict[str, Array], items: int
    ) -> Weights:
        """Weights from what `stored` gave. Artifacts of version 0.1 have one block, and no facts about it."""
        if facts is None:
            kind = next(kind for name, kind in _OLD_NAMES.items() if name in arrays)
            facts = [{"kind": kind, "weight": 1.0}]
        blocks = [_restored(fact, arrays, items, number) for number, fact in enumerate(facts)]
        query_arrays = {
            name.removeprefix(_QUERY_ARRAY): array
            for name, array in arrays.items()
            if name.startswith(_QUERY_ARRAY)
        }
        return cls(blocks, arrays.get("base"), query_arrays)


def _numbered(name: str, number: int) -> str:
    """The name of a block's array in an artifact; those of the first block are as they always were."""
    return f"{name}_{number}" if number else name


#: The arrays of each form of block in an artifact, and the fields that they fill.
_ARRAYS = {
    "sparse": {"indptr": "indptr", "indices": "indices", "data": "values", "peaks": "known_peaks"},
    "dense": {"weights": "values"},
    "identity": {},
    "runs": {"indptr": "indptr", "indices": "indices", "fade": "fade"},
}


def _restored(fact: dict[str, Any], arrays: dict[str, Array], items: int, number: int) -> Block:
    form = fact["kind"]
    if form not in _ARRAYS:
        raise TalerecError(
            f"the model has weights of a form {form!r}, which this version does not know"
        )
    named = {**_ARRAYS[form], "source_item": "source_item"}
    found = {
        field: arrays[_numbered(name, number)]
        for name, field in named.items()
        if _numbered(name, number) in arrays
    }
    return KINDS[form](items=items, weight=fact["weight"], **found)


def no_weights(n: int) -> Any:
    """B with nothing in it."""
    return sparse.csr_array((n, n), dtype=np.float32)
