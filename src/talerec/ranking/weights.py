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

from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.ranking.blocks import KINDS, Block, DenseBlock, block_kind, block_table, make_block
from talerec.ranking.ranks import QueryArrays, RankScratch
from talerec.ranking.reasons import source_contributions, source_items
from talerec.ranking.scores import KernelWeights, new_dense_scores, new_hash_scores
from talerec.runtime import Array, as_readonly, kernel, sparse, template

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
        """Return the queries with the weight of each entry multiplied by its factor."""
        return Query(self.ptr, self.source, self.weight * factor)

    def select(self, q: int) -> Query:
        """Return query q alone."""
        span = slice(self.ptr[q], self.ptr[q + 1])
        return Query(self.ptr[q : q + 2] - self.ptr[q], self.source[span], self.weight[span])

    def one(self, q: int) -> Query:
        """Return `select(q)`; the deprecated name of that method."""
        message = "Query.one is now Query.select; the old name goes with version 0.4"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.select(q)

    @classmethod
    def empty(cls, queries: int) -> Query:
        """Return queries without sources: only base scores count."""
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int64), np.empty(0))

    def rows(self) -> QueryArrays:
        """Return the queries as the arrays (ptr, source, share) that kernels read."""
        return QueryArrays(self.ptr, self.source.astype(np.int64, copy=False), self.weight)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights B of a fitted model, and the arrays that it makes queries from.

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
        """The number of items."""
        return int(self.blocks[0].items)

    @property
    def matrix(self) -> Any:
        """The first block (rows of B in one format) as a matrix; often item x item."""
        return self.blocks[0].matrix

    def first_source(self, block: int) -> int:
        """Return the number of a block's first source (row of B), counted through all blocks."""
        return self._first_sources[block]

    @cached_property
    def _first_sources(self) -> list[int]:
        return list(accumulate((block.sources for block in self.blocks), initial=0))

    # -- for kernels --

    @cached_property
    def uses_dense_scores(self) -> bool:
        """Whether ranking stores a score per item (`DenseScores`), or of scored items only."""
        dense = any(isinstance(block, DenseBlock) for block in self.blocks)
        return dense or self.base is not None or self.items <= _DENSE_UP_TO

    @cached_property
    def kernel_weights(self) -> KernelWeights:
        """The table of blocks and the base scores (empty if there are none) that kernels read."""
        base = np.empty(0) if self.base is None else np.ascontiguousarray(self.base, np.float64)
        return KernelWeights(block_table(self.blocks, peaks=not self.uses_dense_scores), base)

    def scratch(self) -> RankScratch:
        """Return this thread's store of scores and marks per item; kernels leave them clear."""
        scratch: RankScratch | None = getattr(self._scratch, "value", None)
        if scratch is None:
            n = self.items
            store: Any = new_dense_scores(n) if self.uses_dense_scores else new_hash_scores(n)
            scratch = RankScratch(store, np.zeros(n, np.uint8), np.zeros(n, np.uint8))
            self._scratch.value = scratch
        return scratch

    def marks(self) -> Array:
        """Return a zero for every item, for this thread; whoever uses it leaves zeros behind."""
        return self.scratch().marks

    # -- contributions to scores --

    def contributions(self, query: Query, targets: Array) -> Array:
        """Return what each source (column) of one query adds to the scores of items (rows).

        A source is a row of the weights B. targets: the items. An entry is 0 if the source has no
        weight for the item.
        """
        rows, items = query.rows(), np.ascontiguousarray(targets, np.int32)
        blocks = self.kernel_weights.blocks
        return source_contributions(blocks, rows.source, rows.share, items, self.items)

    def source_items(self, query: Query) -> Array:
        """Return the item that each source (row of B) of a query stands for in reasons, or -1."""
        return source_items(self.kernel_weights.blocks, query.rows().source)

    # -- artifacts --

    def stored(self) -> tuple[list[dict[str, Any]], dict[str, Array]]:
        """Return what an artifact stores: [{"kind", "weight"} per block], and arrays by name."""
        arrays = {f"{_QUERY_ARRAY}{name}": array for name, array in self.query_arrays.items()}
        if self.base is not None:
            arrays["base"] = self.base
        facts = []
        for number, block in enumerate(self.blocks):
            facts.append({"kind": block_kind(block), "weight": block.weight})
            block_arrays = dict(block.arrays())
            if block.source_item is not None and block_kind(block) != "runs":
                block_arrays["source_item"] = block.source_item
            arrays |= {_array_name(name, number): array for name, array in block_arrays.items()}
        return facts, arrays

    @classmethod
    def restored(
        cls, facts: list[dict[str, Any]] | None, arrays: dict[str, Array], items: int
    ) -> Weights:
        """Return weights from what `stored` returned; items: the number of items.

        facts: {"kind", "weight"} of each block; None in artifacts of version 0.1, which have one.
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


def _array_name(name: str, number: int) -> str:
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
    """Return block `number` of the weights in an artifact; raise if its kind is unknown.

    fact: the block's {"kind", "weight"}. arrays: all arrays of the artifact by name, the names of
    blocks after the first ending in their number. items: the number of items.
    """
    kind = fact["kind"]
    if kind not in _ARRAYS:
        raise TalerecError(
            f"the model has weights of a form {kind!r}, which this version does not know"
        )
    fields = {
        field: arrays[_array_name(name, number)]
        for name, field in {**_ARRAYS[kind], "source_item": "source_item"}.items()
        if _array_name(name, number) in arrays
    }
    return KINDS[kind](items=items, weight=fact["weight"], **fields)


def empty_matrix(n: int) -> Any:
    """Return a sparse n x n matrix without entries, for models of base scores alone."""
    return sparse.csr_array((n, n), dtype=np.float32)


# -- queries from histories ------------------------------------------------------------------------


def recency_query(
    weights: Weights, histories: Histories, times: Array, recency: float, max_history: int
) -> Query:
    """Return queries with x_i = exp(-lag / recency) for the items of each history.

    The lag of an item is the number of rows later than its last row by `times` (one per row; empty:
    rows are in order). Only the last `max_history` rows are read. If rows have weights, x_i is
    multiplied by the weight of that row.
    """
    arrays = (*_history_arrays(histories), as_readonly(times))
    x = Query(*_recency_query(*arrays, max_history, weights.marks(), recency))
    if histories.weight is None:
        return x
    return x.times(latest_row_weights(weights, histories, max_history))


def latest_lags(
    weights: Weights, histories: Histories, times: Array, max_history: int
) -> tuple[Array, Array, Array]:
    """Return the distinct items of each history, newest first, with their lags.

    The result is (ptr, item, lag); history h has the entries ptr[h]..ptr[h + 1].
    The lag of an item is the number of rows strictly later than its last row by `times` (one per
    row); if `times` is empty, every row has a time of its own. Rows before the last `max_history`
    and unknown items (-1) are left out, but count in lags.
    """
    arrays = (*_history_arrays(histories), as_readonly(times))
    return _latest_lags(*arrays, max_history, weights.marks())


def latest_row_weights(weights: Weights, histories: Histories, max_history: int) -> Array:
    """Return the weight of the last row of each distinct item of each history.

    One history after the other, newest items first, from the last `max_history` rows; unknown
    items (-1) are left out. `histories` must have row weights.
    """
    assert histories.weight is not None
    _, rows = _latest_rows(*_history_arrays(histories), max_history, weights.marks())
    return histories.weight[rows]


def _history_arrays(histories: Histories) -> tuple[Array, Array, Array]:
    """Return (start, stop, item): history h has the rows item[start[h]:stop[h]]."""
    return histories.start, histories.stop, as_readonly(histories.item)


@template
def list_latest_rows(
    item: Array, start: int, stop: int, marks: Array, rows: Array, size: int
) -> int:
    """Append the last row of each known item among rows start..stop, newest first.

    Writes row numbers to `rows` from `size` on and returns the new size. Unknown items are -1.
    marks: a 0 for every item, left so.
    """
    first = size
    for r in range(stop - 1, start - 1, -1):
        i = item[r]
        if i >= 0 and not marks[i]:
            marks[i] = 1
            rows[size] = r
            size += 1
    for x in range(first, size):
        marks[item[rows[x]]] = 0
    return size


@kernel
def _latest_rows(
    start: Array, stop: Array, item: Array, max_history: int, marks: Array
) -> tuple[Array, Array]:
    """Return (ptr, rows): the last row of each known item of each history, newest first.

    History q has the rows start[q]..stop[q], of which the last `max_history` are read, and the
    result's entries ptr[q]..ptr[q + 1]. marks: a 0 for every item, left so.
    """
    room = 0
    for q in range(len(start)):
        room += min(stop[q] - start[q], max_history)
    ptr, rows = np.zeros(len(start) + 1, np.int64), np.empty(room, np.int64)
    for q in range(len(start)):
        low = max(start[q], stop[q] - max_history)
        ptr[q + 1] = list_latest_rows(item, low, stop[q], marks, rows, ptr[q])
    return ptr, rows[: ptr[len(start)]]


@kernel
def _latest_lags(
    start: Array, stop: Array, item: Array, time: Array, max_history: int, marks: Array
) -> tuple[Array, Array, Array]:
    """Return (ptr, item, lag): the distinct items of each history, newest first.

    lag: the number of rows strictly later than the item's last row. marks: zeros, left so.
    """
    ptr, rows = _latest_rows(start, stop, item, max_history, marks)
    items, lags = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for q in range(len(start)):
        lag, r = 0, stop[q] - 1
        for x in range(ptr[q], ptr[q + 1]):
            while r > rows[x]:
                r -= 1
                if len(time) == 0 or time[r] < time[r + 1]:
                    lag = stop[q] - 1 - r
            items[x], lags[x] = item[rows[x]], lag
    return ptr, items, lags


@kernel
def _recency_query(
    start: Array,
    stop: Array,
    item: Array,
    time: Array,
    max_history: int,
    marks: Array,
    recency: float,
) -> tuple[Array, Array, Array]:
    """Return (ptr, source, weight): the items of each history, weighted exp(-lag / recency).

    lag: the number of rows strictly later than the item's last row. marks: zeros, left so.
    """
    ptr, items, lags = _latest_lags(start, stop, item, time, max_history, marks)
    return ptr, items, np.exp(-lags / recency)
