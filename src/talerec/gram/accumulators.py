"""Compiled sums of pairs of rows, one target item at a time.

A Gram is built one target item at a time. For every row q of that item, a *pairs* function
gives two coefficients for each row s of the same user:

    half[s]   the share of the unordered pair (s, q), s <= q, in G = M + M'   (s = q: one half)
    cross[s]  the weight of source s for the target q, the entry of K

and the accumulator adds them up per item of s. An item's row belongs to one thread and its
rows are visited in one order, so sums do not depend on the number of threads. Where only one of
the two is wanted, the array for the other has no room. The models' pairs are in `pairs`.
"""

from __future__ import annotations

import numpy as np

from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array, Arrays, Kernel
from talerec.runtime.jit import kernel, template


@kernel
def count_pattern(log: Arrays, a: int, b: int, out: Array) -> None:
    """How many items share a pair with each target item a..b (the item itself always counts)."""
    ptr, rows, item, begin, after = log
    seen = np.full(len(ptr) - 1, -1, np.int32)
    for j in range(a, b):
        seen[j] = j
        found = 1
        for x in range(ptr[j], ptr[j + 1]):
            q = rows[x]
            for s in range(begin[q], after[q]):
                if seen[item[s]] != j:
                    seen[item[s]] = j
                    found += 1
        out[j] = found


@template
def _add_target(
    pairs: Kernel, args: Arrays, log: Arrays, j: int, scratch: Arrays, sums: Array
) -> None:
    """Add every pair whose later row holds item j to `sums[item of s]` = (M, K)."""
    ptr, rows, item, begin, after = log
    half, cross, work = scratch
    for x in range(ptr[j], ptr[j + 1]):
        q = rows[x]
        pairs(args, q, half, cross, work)
        for s in range(begin[q], after[q]):
            i = item[s]
            sums[i, 0] += half[s - begin[q]]
            sums[i, 1] += cross[s - begin[q]]


@template
def _scratch(longest: int) -> Arrays:
    return np.empty(longest), np.empty(longest), np.empty((longest + 1, 2))


@template
def accumulate_dense(
    pairs: Kernel, args: Arrays, log: Arrays, longest: int, a: int, b: int, M: Array, K: Array
) -> None:
    """Rows a..b of dense M and K'."""
    n = max(M.shape[1], K.shape[1])
    scratch = _scratch(longest)
    sums = np.empty((n, 2))
    for j in range(a, b):
        sums[:] = 0.0
        _add_target(pairs, args, log, j, scratch, sums)
        if len(M) > 0:
            M[j] = sums[:, 0]
        if len(K) > 0:
            K[j] = sums[:, 1]


@template
def accumulate_sparse(
    pairs: Kernel,
    args: Arrays,
    log: Arrays,
    longest: int,
    a: int,
    b: int,
    where: Arrays,
    M: Array,
    K: Array,
) -> None:
    """Rows a..b of sparse M and K', both with the pattern that `count_pattern` counted."""
    indptr, indices = where
    ptr, rows, item, begin, after = log
    n = len(ptr) - 1
    half, cross, work = _scratch(longest)
    sums = np.zeros((n, 2))
    seen = np.full(n, -1, np.int32)
    order = np.empty(n, np.int32)
    for j in range(a, b):
        lo, hi = indptr[j], indptr[j + 1]
        seen[j] = j
        indices[lo] = j
        found = lo + 1
        for x in range(ptr[j], ptr[j + 1]):
            q = rows[x]
            pairs(args, q, half, cross, work)
            for s in range(begin[q], after[q]):
                i = item[s]
                if seen[i] != j:
                    seen[i] = j
                    indices[found] = i
                    found += 1
                sums[i, 0] += half[s - begin[q]]
                sums[i, 1] += cross[s - begin[q]]
        sort_positions(indices[lo:hi], n, order)
        for x in range(lo, hi):
            i = indices[x]
            if len(M) > 0:
                M[x] = sums[i, 0]
            if len(K) > 0:
                K[x] = sums[i, 1]
            sums[i, 0] = sums[i, 1] = 0.0


@kernel
def symmetrise(M: Array, a: int, b: int) -> None:
    """M + M', in place: the pairs (i, j), j <= i, of rows a..b, in tiles that fit the cache."""
    tile = 64
    for low in range(0, b, tile):
        for top in range(a, b, tile):
            for i in range(max(top, low), min(top + tile, b)):
                for j in range(low, min(low + tile, i + 1)):
                    M[i, j] = M[j, i] = M[i, j] + M[j, i]
