"""Compiled loops that add up a model's pairs of rows, and the arrays that they use.

Module `accumulate` explains the sums M and K' and runs these kernels on all cores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.runtime import Array, Kernel, borrow, kernel, sort_indices, template, unsigned_range


class RowsByItem(NamedTuple):
    """Log rows grouped by item, and the range of rows that each row forms pairs with.

    A pair has a target row q and a source row s of one user. Pairs are summed into G = S'S and K =
    S'T, where a row of S has the source items of a training example, and T its target items. Rows
    are numbers of log rows, sorted by user and time.
    """

    indptr: Array  # item j is in the log rows rows[indptr[j]:indptr[j + 1]]
    rows: Array
    item: Array  # the item of every log row
    begin: Array  # row q forms pairs with rows begin[q] up to (without) after[q] of its user
    after: Array
    longest: int  # number of rows of the longest history


class PairCoefficients(NamedTuple):
    """What a model's pairs function writes for one log row q, the target of its pairs.

    Entry s - begin[q] stands for the pair with the source row s of the same user; begin[q] is the
    first row that q forms a pair with. G = S'S and K = S'T: a row of S has the source items of a
    training example, and T its target items. A function returns the first row whose entry it has
    written: it adds the pairs with earlier rows to `totals` itself.
    """

    g: Array  # what the pair adds to M, where G = M + M'
    k: Array  # the weight of source s for target q, which K adds up
    sums: Array  # (longest + 1) x 2, scratch space of the function
    item: Array  # the item of every log row
    totals: Array  # items x 2: row j of M, and column j of K, for the item j of row q


class DenseSums(NamedTuple):
    """The matrices that pairs of rows are summed into, as dense arrays, items x items.

    M gives G = S'S = M + M'; KT is K = S'T transposed. A row of S has the source items of a
    training example, and T its target items. A matrix that is not needed has no rows.
    """

    M: Array
    KT: Array


class SparseSums(NamedTuple):
    """The matrices that pairs of rows are summed into, as compressed rows, items x items.

    M gives G = S'S = M + M'; KT is K = S'T transposed. A row of S has the source items of a
    training example, and T its target items. Row j of both has the indices
    indices[indptr[j]:indptr[j + 1]].
    """

    indptr: Array
    indices: Array
    M: Array  # values, parallel to `indices`; of length zero if not needed
    KT: Array


@kernel
def count_row_entries(log: RowsByItem, a: int, b: int, out: Array) -> None:
    """Write into out[j] how many items form a pair with target item j, for j in a..b.

    log: the log rows of each item, and the rows of the same user (begin[q]..after[q]) that each row
    q forms pairs with. The target itself is counted; out[j] is the number of entries in row j of a
    sparse M, where G = S'S = M + M', and of K = S'T transposed.
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
def _new_coefficients(log: RowsByItem, totals: Array) -> PairCoefficients:
    """Return uninitialized arrays for the pairs of one log row with rows of its user.

    log: has the item of every row, and the most rows of a user. The arrays are g and k, with an
    entry per pair, and scratch space. totals: items x 2, what all pairs of a target item add up to.
    """
    n = log.longest
    return PairCoefficients(np.empty(n), np.empty(n), np.empty((n + 1, 2)), log.item, totals)


@template
def _add_target(
    pairs: Kernel,
    args: Any,
    log: RowsByItem,
    j: int,
    scratch: PairCoefficients,
    seen: Array,
    items: Array,
) -> None:
    """Add the pairs (s, q) of all rows q of target item j to scratch.totals, by the item of s.

    pairs, args: the kernel that writes the coefficients g and k of one row q into `scratch`, and
    what it reads of every log row.
    log: the log rows of each item; row q forms pairs with rows begin[q]..after[q] of its user.
    scratch.totals: items x 2, zero on entry. Column 0 gets row j of M, where M + M' = G = S'S;
    column 1 gets column j of K = S'T.
    items: gets the items that have a pair, item j first, unless `items` is empty.
    seen: one entry per item; j for a listed item, and another value for every item on entry.
    """
    g, k, item, totals = scratch.g, scratch.k, borrow(log.item), borrow(scratch.totals)
    lists, count = len(items) > 0, 1
    if lists:
        seen[j] = j
        items[0] = j
    for x in range(log.indptr[j], log.indptr[j + 1]):
        q = log.rows[x]
        lo, after = log.begin[q], log.after[q]
        for s in unsigned_range(lo, after if lists else lo):
            i = np.uint32(item[s])
            if seen[i] != j:
                seen[i] = j
                items[count] = i
                count += 1
        for s in unsigned_range(pairs(args, q, scratch), after):
            i = np.uint32(item[s])
            totals[i, 0] += g[s - np.uint64(lo)]
            totals[i, 1] += k[s - np.uint64(lo)]


@template
def accumulate_dense(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: DenseSums
) -> None:
    """Write rows a..b of dense M and K' (G = S'S = M + M', K = S'T) into `out`.

    Row j is that of target item j. pairs: the kernel that writes the coefficients of one log row;
    args: what it reads of every log row. log: the log rows of each item. out: M and K', items x
    items; one that is not needed has no rows.
    """
    sums = np.empty((len(log.indptr) - 1, 2))
    scratch = _new_coefficients(log, sums)
    nothing = np.empty(0, np.int32)
    for j in range(a, b):
        sums[:] = 0.0
        _add_target(pairs, args, log, j, scratch, nothing, nothing)
        for i in range(out.M.shape[1] if len(out.M) > 0 else 0):
            out.M[j, i] = sums[i, 0]
        for i in range(out.KT.shape[1] if len(out.KT) > 0 else 0):
            out.KT[j, i] = sums[i, 1]


@template
def accumulate_sparse(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: SparseSums
) -> None:
    """Write rows a..b of sparse M and K' (G = S'S = M + M', K = S'T) into `out`.

    Row j is that of target item j. pairs: the kernel that writes the coefficients of one log row;
    args: what it reads of every log row. log: the log rows of each item. out.indptr is given;
    indices, ascending in each row, and the values of M and K' are written (those of length zero are
    not needed).
    """
    n = len(log.indptr) - 1
    sums = np.zeros((n, 2))
    scratch = _new_coefficients(log, sums)
    seen = np.full(n, -1, np.int32)
    spare = np.empty(n, np.int32)
    for j in range(a, b):
        lo, hi = out.indptr[j], out.indptr[j + 1]
        _add_target(pairs, args, log, j, scratch, seen, out.indices[lo:hi])
        sort_indices(out.indices[lo:hi], n, spare)
        for x in range(lo, hi):
            i = out.indices[x]
            if len(out.M) > 0:
                out.M[x] = sums[i, 0]
            if len(out.KT) > 0:
                out.KT[x] = sums[i, 1]
            sums[i, 0] = sums[i, 1] = 0.0


@kernel
def add_dense_transpose(M: Array, a: int, b: int) -> None:
    """Replace M by M + M' in place, for the pairs (i, j) with i in a..b and j <= i.

    M: square. Both entries of a pair are written. Works in tiles that fit the cache.
    """
    tile = 64
    for low in range(0, b, tile):
        for top in range(a, b, tile):
            for i in range(max(top, low), min(top + tile, b)):
                for j in range(low, min(low + tile, i + 1)):
                    M[i, j] = M[j, i] = M[i, j] + M[j, i]
