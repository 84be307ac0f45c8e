"""From a model's pairs to G and K: on all cores, sparse while that is smaller, dense otherwise."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.gram import sparse_kernels
from talerec.gram.accumulators import (
    DenseSums,
    RowsByItem,
    SparseSums,
    count_pattern,
    symmetrise,
)
from talerec.runtime.arrays import Array, Kernel, Matrix, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.runtime.memory import available_bytes, require
from talerec.runtime.threads import equal_work, run_chunks

logger = logging.getLogger("talerec")

_CHUNKS = 128  # pieces of work: more than any number of cores, so that all stay busy
_ROW_WORK = 16  # pairs that take as long as what a row costs beside its pairs
_SMALL = 4_000  # items: a full dense Gram is so small that its pattern need not be counted
_SPARSE_ENTRY = 12  # bytes: a float64 and an int32
_ADVICE = "use a k-core, or a smaller max_history"

Chunks = list[tuple[int, int]]


class Pairs(NamedTuple):
    """A model's pairs of rows, and the kernels that add them up."""

    begin: Array  # row q forms pairs with the rows begin[q]..after[q] of its user
    after: Array
    args: Any  # what the kernels need to know of the rows
    sparse: Kernel
    dense: Kernel


class Wanted(NamedTuple):
    """Which of the two matrices is asked for."""

    G: bool
    K: bool


BOTH, ONLY_G, ONLY_K = Wanted(True, True), Wanted(True, False), Wanted(False, True)


def longest_history(log: Log) -> int:
    """The most rows that a user has (1 at least)."""
    return int(np.diff(log.ptr).max(initial=1))


def assemble(
    log: Log,
    pairs: Pairs,
    memory: int | None,
    wanted: Wanted = BOTH,
    targets: Array | None = None,
) -> tuple[Matrix, Matrix]:
    """Sum a model's pairs into G and K; `memory` is in bytes (None: what is free).

    targets: a flag per item; the pairs whose later row holds another item are left out.
    """
    n = len(log.items)
    ptr, rows = _rows_by_item(log, targets)
    by_item = RowsByItem(ptr, rows, log.item, pairs.begin, pairs.after, longest_history(log))
    row_pairs = (pairs.after - pairs.begin)[rows].astype(np.int64)
    work = np.concatenate([[0], np.cumsum(row_pairs + _ROW_WORK)])[ptr]
    chunks = equal_work(work, _CHUNKS)
    if n <= _SMALL and work[-1] >= n * n:
        return _dense(pairs, by_item, chunks, memory, wanted)
    indptr = _pattern(by_item, chunks)
    if sum(wanted) * indptr[-1] * _SPARSE_ENTRY >= n * n * 8:
        return _dense(pairs, by_item, chunks, memory, wanted)
    return _sparse(pairs, by_item, chunks, indptr, memory, wanted)


def assemble_targets(
    item: Array, pairs: Pairs, items: int, longest: int, lo: int, hi: int, wanted: Wanted = BOTH
) -> SparseSums:
    """M and K' of the targets lo..hi alone, one part of a sum: G is M + M' of all targets. Rows of item -1 do not exist.

    item: of every row; `longest`: rows of the user who has most. Arrays may be mapped from files: what is held grows
    with the rows and the pairs of these targets, and with the number of items.
    """
    rows = np.flatnonzero((item >= lo) & (item < hi))
    ptr, places = row_kernels.group_rows(item[rows], items)
    by_item = RowsByItem(ptr, rows[places], item, pairs.begin, pairs.after, longest)
    counts = np.zeros(items, np.int64)
    count_pattern(by_item, lo, hi, counts)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    M, KT = (np.empty(indptr[-1] if matrix else 0) for matrix in wanted)
    out = SparseSums(indptr, np.empty(indptr[-1], np.int32), M, KT)
    pairs.sparse(pairs.args, by_item, lo, hi, out)
    return out


def _rows_by_item(log: Log, targets: Array | None) -> tuple[Array, Array]:
    """Rows by item, of all items or of some."""
    if targets is None:
        return row_kernels.group_rows(log.item, len(log.items))
    chosen = np.flatnonzero(targets[log.item])
    ptr, places = row_kernels.group_rows(log.item[chosen], len(log.items))
    return ptr, chosen[places]


def _pattern(by_item: RowsByItem, chunks: Chunks) -> Array:
    """Where each row of the sparse matrices begins."""
    counts = np.zeros(len(by_item.ptr) - 1, np.int64)
    run_chunks("pattern", lambda a, b: count_pattern(by_item, a, b, counts), chunks)
    return np.concatenate([[0], np.cumsum(counts)])


def _dense(
    pairs: Pairs, by_item: RowsByItem, chunks: Chunks, memory: int | None, wanted: Wanted
) -> tuple[Matrix, Matrix]:
    n = len(by_item.ptr) - 1
    require(sum(wanted) * 8 * n * n, f"the dense Gram of {n:,} items", _ADVICE, memory)
    out = DenseSums(*(np.empty((n if matrix else 0, n)) for matrix in wanted))
    run_chunks("gram", lambda a, b: pairs.dense(pairs.args, by_item, a, b, out), chunks)
    if wanted.G:
        triangle = equal_work(np.arange(n + 1.0) ** 2, _CHUNKS)
        run_chunks("gram", lambda a, b: symmetrise(out.M, a, b), triangle)
    return out.M, out.K.T


def _sparse(
    pairs: Pairs,
    by_item: RowsByItem,
    chunks: Chunks,
    indptr: Array,
    memory: int | None,
    wanted: Wanted,
) -> tuple[Matrix, Matrix]:
    n, entries = len(indptr) - 1, indptr[-1]
    kind = _value_type(entries, memory, wanted)
    indices = np.empty(entries, np.int32)
    M, KT = (np.empty(entries if matrix else 0, kind) for matrix in wanted)
    out = SparseSums(indptr, indices, M, KT)
    run_chunks("gram", lambda a, b: pairs.sparse(pairs.args, by_item, a, b, out), chunks)
    G = _symmetric(indptr, indices, M) if wanted.G else None
    K = sparse.csc_array((KT, indices, shrink_indptr(indptr)), shape=(n, n)) if wanted.K else None
    return G, K


def _value_type(entries: int, memory: int | None, wanted: Wanted) -> type:
    """float64, or float32 where only that fits the budget; where neither does, an error gives the sizes."""
    # per entry: the pattern, M, K, and M + M' before it is merged
    places, values = 1 + 2 * wanted.G, 3 * wanted.G + wanted.K
    needed = {
        kind: entries * (4 * places + values * kind().itemsize) for kind in (np.float64, np.float32)
    }
    if needed[np.float64] <= (available_bytes() if memory is None else memory):
        return np.float64
    require(needed[np.float32], f"the Gram of {entries:,} pairs of items", _ADVICE, memory)
    logger.warning("the Gram is kept in float32: float64 does not fit the memory budget")
    return np.float32


def _symmetric(indptr: Array, indices: Array, M: Array) -> Matrix:
    """M + M', sparse, with no more memory than both take side by side."""
    n = len(indptr) - 1
    both = sparse_kernels.side_by_side(indptr, indices, M)
    count = np.empty(n, np.int64)
    run_chunks(
        "gram",
        lambda a, b: sparse_kernels.merge_rows(both, a, b, count),
        equal_work(both.start, _CHUNKS),
    )
    bounds = sparse_kernels.close_gaps(both, count)
    items, values = both.items[: bounds[-1]], both.values[: bounds[-1]]
    return sparse.csr_array((values, items, shrink_indptr(bounds)), shape=(n, n))
