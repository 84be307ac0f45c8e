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
from talerec.runtime import (
    CSR,
    Array,
    Kernel,
    Matrix,
    add_transpose,
    available_bytes,
    balanced_chunks,
    kernel,
    require_memory,
    run_chunks,
    shrink_indptr,
    sort_indices,
    sparse,
    template,
)

logger = logging.getLogger("talerec")

_CHUNKS = 128  # pieces of work: more than any number of cores, so that all stay busy
_ROW_WORK = 16  # the fixed cost of a log row, in pairs
_SMALL = 4_000  # items: up to here a full Gram is dense without counting its entries first
_SPARSE_ENTRY = 12  # bytes: a float64 and an int32
_ADVICE = "use a k-core, or a smaller max_history"

Chunks = list[tuple[int, int]]


class RowsByItem(NamedTuple):
    """Log rows grouped by item, and the range of rows that each row forms pairs with.

    A pair has a target row q and a source row s of one user; G = S'S and K = S'T sum up pairs.
    """

    indptr: Array  # item j has rows[indptr[j]:indptr[j + 1]]
    rows: Array
    item: Array  # of every log row
    begin: Array  # row q forms pairs with rows begin[q] up to (without) after[q] of its user
    after: Array
    longest: int  # number of rows of the longest history


class PairCoefficients(NamedTuple):
    """What a model's pairs function writes for one log row q; `sums` is scratch.

    Entry s - begin[q] stands for the pair with row s of the same user: `g` has what it adds to M,
    where M + M' = G = S'S, and `k` the weight of source s for target q, which K = S'T adds up.
    """

    g: Array
    k: Array
    sums: Array


class DenseSums(NamedTuple):
    """Square arrays M, where M + M' = G = S'S, and KT, K = S'T transposed; items x items."""

    M: Array
    KT: Array


class SparseSums(NamedTuple):
    """M, where M + M' = G = S'S, and KT, K = S'T transposed, as compressed rows.

    Both share indptr and indices; the values of a matrix that is not needed have length zero.
    """

    indptr: Array
    indices: Array
    M: Array
    KT: Array


class Pairs(NamedTuple):
    """The pairs of rows of a model, and the two kernels that add them up to G and K.

    G = S'S and K = S'T are the matrices of the normal equations. `sparse` writes `SparseSums`,
    `dense` writes `DenseSums`.
    """

    begin: Array  # row q forms pairs with rows begin[q] up to (without) after[q] of its user
    after: Array
    args: Any  # what the pairs function reads of every row
    sparse: Kernel
    dense: Kernel


class GramParts(NamedTuple):
    """Which of the two matrices of a Gram, G = S'S and K = S'T, are computed.

    G (source x source) is symmetric; K is source x target.
    """

    G: bool
    K: bool


BOTH, ONLY_G, ONLY_K = GramParts(True, True), GramParts(True, False), GramParts(False, True)


def longest_history(log: Log) -> int:
    """Return the number of rows of the user with the most rows (at least 1)."""
    return int(np.diff(log.ptr).max(initial=1))


def accumulate_gram(
    log: Log,
    pairs: Pairs,
    memory: int | None,
    parts: GramParts = BOTH,
    targets: Array | None = None,
) -> tuple[Matrix, Matrix]:
    """Return (G, K) = (S'S, S'T), items x items, added up from a model's pairs of rows.

    Both are dense or both sparse, whichever is smaller. A matrix that `parts` leaves out is None
    or an empty array. memory: bytes that the result may take (None: the free memory). targets: a
    flag per item; pairs whose target row holds an item without the flag are left out.
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
    run_chunks("pattern", lambda a, b: _count_row_entries(by_item, a, b, counts), chunks)
    pattern = np.concatenate([[0], np.cumsum(counts)])
    if sum(parts) * pattern[-1] * _SPARSE_ENTRY >= n * n * 8:
        return _accumulate_dense(pairs, by_item, chunks, memory, parts)
    return _accumulate_sparse(pairs, by_item, chunks, pattern, memory, parts)


def accumulate_targets(
    item: Array, pairs: Pairs, items: int, longest: int, lo: int, hi: int, parts: GramParts = BOTH
) -> SparseSums:
    """Return the rows of M and of K' (K = S'T transposed) of the target items lo..hi alone.

    G = S'S is M + M' over all targets. item: of every log row, -1 for a row to skip. items: the
    number of items. longest: rows of the longest history. Arrays may be memory-mapped: memory
    grows with the rows and pairs of these targets and with `items`.
    """
    rows = np.flatnonzero((item >= lo) & (item < hi))
    groups, order = group_rows(item[rows], items)
    by_item = RowsByItem(groups, rows[order], item, pairs.begin, pairs.after, longest)
    counts = np.zeros(items, np.int64)
    _count_row_entries(by_item, lo, hi, counts)
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

    Threads write rows of M and of K transposed for chunks (ranges) of items; then M becomes G = M +
    M'. memory: bytes that they may take (None: the free memory), else TalerecError.
    """
    n = len(by_item.indptr) - 1
    require_memory(sum(parts) * 8 * n * n, f"the dense Gram of {n:,} items", _ADVICE, memory)
    out = DenseSums(*(np.empty((n if is_needed else 0, n)) for is_needed in parts))
    run_chunks("gram", lambda a, b: pairs.dense(pairs.args, by_item, a, b, out), chunks)
    if parts.G:
        triangle = balanced_chunks(np.arange(n + 1.0) ** 2, _CHUNKS)
        run_chunks("gram", lambda a, b: _add_dense_transpose(out.M, a, b), triangle)
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

    G = S'S, K = S'T. Threads write rows of M and of K transposed for chunks (ranges) of items; then
    G is M + M'. `indptr` is that of the pattern that M and K transposed share. memory: bytes that
    they may take (None: the free memory), else TalerecError.
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
    """Return float64 for a sparse Gram, or float32 if only that fits; raise if neither does.

    entries: those of M (G = S'S is M + M'). memory: the budget in bytes (None: the free memory).
    parts: which of G and K = S'T are needed.
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


# -- kernels ---------------------------------------------------------------------------------------


@kernel
def _count_row_entries(log: RowsByItem, a: int, b: int, out: Array) -> None:
    """Write into out[j] how many items form a pair with target item j, for j in a..b.

    The target itself is counted; out[j] is the number of entries in row j of a sparse M, where
    G = S'S = M + M', and of K = S'T transposed.
    """
    seen = np.full(len(log.indptr) - 1, -1, np.int32)
    for j in range(a, b):
        seen[j] = j
        count = 1
        for x in range(log.indptr[j], log.indptr[j + 1]):
            q = log.rows[x]
            for s in range(log.begin[q], log.after[q]):
                if seen[log.item[s]] != j:
                    seen[log.item[s]] = j
                    count += 1
        out[j] = count


@template
def _new_coefficients(longest: int) -> PairCoefficients:
    """Return uninitialized arrays for the pairs of one log row with rows of its user.

    longest: the most rows of a user. See `PairCoefficients` for the three arrays.
    """
    return PairCoefficients(np.empty(longest), np.empty(longest), np.empty((longest + 1, 2)))


@template
def _add_target(
    pairs: Kernel,
    args: Any,
    log: RowsByItem,
    j: int,
    scratch: PairCoefficients,
    sums: Array,
    seen: Array,
    items: Array,
) -> None:
    """Add the pairs (s, q) of all rows q that hold target item j to `sums`, by the item of s.

    Column 0 of `sums` (items x 2, zero on entry) is row j of M, where M + M' = G; column 1 is
    column j of K. `pairs` writes the coefficients of one row q into `scratch`. The items that have
    a pair are listed in `items`, item j first, unless `items` is empty; seen[i] is j for a listed
    item, and must not be j for any item on entry.
    """
    g, k, _ = scratch
    lists, count = len(items) > 0, 1
    if lists:
        seen[j] = j
        items[0] = j
    for x in range(log.indptr[j], log.indptr[j + 1]):
        q = log.rows[x]
        pairs(args, q, scratch)
        lo = log.begin[q]
        for s in range(lo, log.after[q]):
            i = log.item[s]
            if lists and seen[i] != j:
                seen[i] = j
                items[count] = i
                count += 1
            sums[i, 0] += g[s - lo]
            sums[i, 1] += k[s - lo]


@template
def accumulate_dense(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: DenseSums
) -> None:
    """Write rows a..b of dense M and K' (G = S'S = M + M', K = S'T) into `out`.

    pairs: the kernel that writes the coefficients of one log row; args: what it reads.
    """
    scratch = _new_coefficients(log.longest)
    sums = np.empty((len(log.indptr) - 1, 2))
    nothing = np.empty(0, np.int32)
    for j in range(a, b):
        sums[:] = 0.0
        _add_target(pairs, args, log, j, scratch, sums, nothing, nothing)
        for i in range(out.M.shape[1] if len(out.M) > 0 else 0):
            out.M[j, i] = sums[i, 0]
        for i in range(out.KT.shape[1] if len(out.KT) > 0 else 0):
            out.KT[j, i] = sums[i, 1]


@template
def accumulate_sparse(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: SparseSums
) -> None:
    """Write rows a..b of sparse M and K' (G = S'S = M + M', K = S'T) into `out`.

    pairs: the kernel that writes the coefficients of one log row; args: what it reads. out.indptr
    is given; indices are written too, ascending in each row.
    """
    n = len(log.indptr) - 1
    scratch = _new_coefficients(log.longest)
    sums = np.zeros((n, 2))
    seen = np.full(n, -1, np.int32)
    spare = np.empty(n, np.int32)
    for j in range(a, b):
        lo, hi = out.indptr[j], out.indptr[j + 1]
        _add_target(pairs, args, log, j, scratch, sums, seen, out.indices[lo:hi])
        sort_indices(out.indices[lo:hi], n, spare)
        for x in range(lo, hi):
            i = out.indices[x]
            if len(out.M) > 0:
                out.M[x] = sums[i, 0]
            if len(out.KT) > 0:
                out.KT[x] = sums[i, 1]
            sums[i, 0] = sums[i, 1] = 0.0


@kernel
def _add_dense_transpose(M: Array, a: int, b: int) -> None:
    """Replace M by M + M' in place, for the pairs (i, j) with i in a..b and j <= i.

    Both entries of a pair are written. Works in tiles that fit the cache.
    """
    tile = 64
    for low in range(0, b, tile):
        for top in range(a, b, tile):
            for i in range(max(top, low), min(top + tile, b)):
                for j in range(low, min(low + tile, i + 1)):
                    M[i, j] = M[j, i] = M[i, j] + M[j, i]
