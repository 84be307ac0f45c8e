"""Sum the pairs of rows of a log into G and K: on all cores, sparse while that is smaller.

For every row q of a target item, a *pairs* function (module `pairs`) gives two coefficients for
each row s of the same user:

    g[s]  what the unordered pair (s, q), s <= q, adds to M, where G = M + M' (s = q: one half)
    k[s]  the weight of source s for target q, which K adds up

The accumulators add them up per item of s. The row of M (and of K') of a target item belongs to
one thread, which visits the item's log rows in one order, so sums do not depend on the number of
threads. If only one of M and K is needed, the array of the other has length zero.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np

from talerec.data import Log, group_rows
from talerec.gram.accumulate_kernels import (
    DenseSums,
    RowsByItem,
    SparseSums,
    add_dense_transpose,
    count_row_entries,
)
from talerec.runtime import (
    CSR,
    Array,
    Kernel,
    Matrix,
    add_transpose,
    available_bytes,
    balanced_chunks,
    require_memory,
    run_chunks,
    shrink_indptr,
    sparse,
)

logger = logging.getLogger("talerec")

_CHUNKS = 128  # pieces of work: more than any number of cores, so that all stay busy
_ROW_WORK = 16  # the fixed cost of a log row, in pairs
_SMALL = 4_000  # items: up to here a full Gram is dense without counting its entries first
_SPARSE_ENTRY = 12  # bytes: a float64 and an int32
_ADVICE = "use a k-core, or a smaller max_history"

Chunks = list[tuple[int, int]]


class Pairs(NamedTuple):
    """A model's pairs of rows, and the two kernels that sum them into G = S'S and K = S'T.

    A pair has a source row and a target row of one user; a row of S has the source items of a
    training example, and T its target items.
    """

    begin: Array  # row q forms pairs with rows begin[q] up to (without) after[q] of its user
    after: Array
    args: Any  # the arrays that the kernels read, with an entry per log row
    sparse: Kernel  # kernel(args, rows by item, a, b, out) writes rows a..b of sparse matrices
    dense: Kernel  # the same for dense matrices


class GramParts(NamedTuple):
    """Which of the two matrices of a Gram, G = S'S and K = S'T, are computed.

    G (source x source) is symmetric; K is source x target. A row of S has the source items of a
    training example, and T its target items.
    """

    G: bool
    K: bool


BOTH, ONLY_G, ONLY_K = GramParts(True, True), GramParts(True, False), GramParts(False, True)


def longest_history(log: Log) -> int:
    """Return the number of rows of the user with the most rows (at least 1).

    User u of the log has rows ptr[u]..ptr[u + 1].
    """
    return int(np.diff(log.ptr).max(initial=1))


def accumulate_gram(
    log: Log,
    pairs: Pairs,
    memory: int | None,
    parts: GramParts = BOTH,
    targets: Array | None = None,
) -> tuple[Matrix, Matrix]:
    """Return (G, K) = (S'S, S'T), items x items, added up from a model's pairs of rows.

    A row of S has the source items of a training example, and T its target items. Both matrices are
    dense or both sparse, whichever is smaller. One that `parts` leaves out is None or an empty
    array.

    pairs: which rows of a user form pairs, and the kernels that weight and add them up
    memory: bytes that the result may take (None: the free memory)
    targets: a flag per item; pairs whose target row holds an item without the flag are left out
    """
    n = len(log.items)
    indptr, rows = _group_rows(log, targets)
    by_item = RowsByItem(indptr, rows, log.item, pairs.begin, pairs.after, longest_history(log))
    row_pairs = (pairs.after - pairs.begin)[rows].astype(np.int64)
    work = np.concatenate([[0], np.cumsum(row_pairs + _ROW_WORK)])[indptr]
    chunks = balanced_chunks(work, _CHUNKS)
    if n <= _SMALL and work[-1] >= n * n:
        return _accumulate_dense(pairs, by_item, chunks, memory, parts)
    counts = np.zeros(n, np.int64)
    run_chunks("pattern", lambda a, b: count_row_entries(by_item, a, b, counts), chunks)
    pattern = np.concatenate([[0], np.cumsum(counts)])
    if sum(parts) * pattern[-1] * _SPARSE_ENTRY >= n * n * 8:
        return _accumulate_dense(pairs, by_item, chunks, memory, parts)
    return _accumulate_sparse(pairs, by_item, chunks, pattern, memory, parts)


def accumulate_targets(
    item: Array, pairs: Pairs, items: int, longest: int, lo: int, hi: int, parts: GramParts = BOTH
) -> SparseSums:
    """Return the rows of M and of K' (K = S'T transposed) of the target items lo..hi alone.

    G = S'S is M + M' over all targets. Arrays may be memory-mapped: memory grows with the rows and
    pairs of these targets and with `items`.

    item: of every log row, -1 for a row to skip
    pairs: which rows of a user form pairs, and the kernels that weight and add them up
    items: the number of items
    longest: rows of the longest history
    """
    rows = np.flatnonzero((item >= lo) & (item < hi))
    groups, order = group_rows(item[rows], items)
    by_item = RowsByItem(groups, rows[order], item, pairs.begin, pairs.after, longest)
    counts = np.zeros(items, np.int64)
    count_row_entries(by_item, lo, hi, counts)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    M, KT = (np.empty(indptr[-1] if is_needed else 0) for is_needed in parts)
    out = SparseSums(indptr, np.empty(indptr[-1], np.int32), M, KT)
    pairs.sparse(pairs.args, by_item, lo, hi, out)
    return out


def _group_rows(log: Log, targets: Array | None) -> tuple[Array, Array]:
    """Return (indptr, rows), log rows grouped by item; only items flagged in `targets`.

    Item j has the row numbers rows[indptr[j]:indptr[j + 1]]. targets: a flag per item (None: all).
    """
    if targets is None:
        return group_rows(log.item, len(log.items))
    rows = np.flatnonzero(targets[log.item])
    indptr, order = group_rows(log.item[rows], len(log.items))
    return indptr, rows[order]


def _accumulate_dense(
    pairs: Pairs, by_item: RowsByItem, chunks: Chunks, memory: int | None, parts: GramParts
) -> tuple[Matrix, Matrix]:
    """Return (G, K) = (S'S, S'T) as dense arrays; the one that `parts` leaves out is empty.

    Threads write rows of M and of K transposed for `chunks` (ranges of target items); then M
    becomes G = M + M'. pairs, by_item: the pairs of rows with their kernels, and the log rows of
    each item. memory: bytes that both may take (None: the free memory), else TalerecError.
    """
    n = len(by_item.indptr) - 1
    require_memory(sum(parts) * 8 * n * n, f"the dense Gram of {n:,} items", _ADVICE, memory)
    out = DenseSums(*(np.empty((n if is_needed else 0, n)) for is_needed in parts))
    run_chunks("gram", lambda a, b: pairs.dense(pairs.args, by_item, a, b, out), chunks)
    if parts.G:
        triangle = balanced_chunks(np.arange(n + 1.0) ** 2, _CHUNKS)
        run_chunks("gram", lambda a, b: add_dense_transpose(out.M, a, b), triangle)
    return out.M, out.KT.T


def _accumulate_sparse(
    pairs: Pairs,
    by_item: RowsByItem,
    chunks: Chunks,
    indptr: Array,
    memory: int | None,
    parts: GramParts,
) -> tuple[Matrix, Matrix]:
    """Return (G, K) as sparse arrays (CSR, CSC); the one that `parts` leaves out is None.

    G = S'S, K = S'T. Threads write rows of M and of K transposed for `chunks` (ranges of target
    items); then G is M + M'. pairs, by_item: the pairs of rows with their kernels, and the log rows
    of each item. `indptr` is that of the pattern that M and K transposed share. memory: bytes that
    both may take (None: the free memory), else TalerecError.
    """
    n, entries = len(indptr) - 1, indptr[-1]
    dtype = _choose_dtype(entries, memory, parts)
    indices = np.empty(entries, np.int32)
    M, KT = (np.empty(entries if is_needed else 0, dtype) for is_needed in parts)
    out = SparseSums(indptr, indices, M, KT)
    run_chunks("gram", lambda a, b: pairs.sparse(pairs.args, by_item, a, b, out), chunks)
    G = K = None
    if parts.G:
        bounds, columns, values = add_transpose(CSR(indptr, indices, M))
        G = sparse.csr_array((values, columns, shrink_indptr(bounds)), shape=(n, n))
    if parts.K:
        K = sparse.csc_array((KT, indices, shrink_indptr(indptr)), shape=(n, n))
    return G, K


def _choose_dtype(entries: int, memory: int | None, parts: GramParts) -> type:
    """Return float64 for the values of a sparse Gram, or float32 if only that fits.

    TalerecError if neither does; float32 is logged as a warning. entries: those of M (G = S'S is M
    + M'). memory: the budget in bytes (None: the free memory). parts: which of G and K = S'T are
    needed.
    """
    # per entry: the pattern, M, K, and M + M' before it is merged
    indices, values = 1 + 2 * parts.G, 3 * parts.G + parts.K
    needed = {
        dtype: entries * (4 * indices + values * dtype().itemsize)
        for dtype in (np.float64, np.float32)
    }
    if needed[np.float64] <= (available_bytes() if memory is None else memory):
        return np.float64
    require_memory(needed[np.float32], f"the Gram of {entries:,} pairs of items", _ADVICE, memory)
    logger.warning("the Gram is stored in float32: float64 does not fit the memory budget")
    return np.float32
