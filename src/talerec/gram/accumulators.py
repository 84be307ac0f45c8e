"""Compiled sums of pairs of rows, one target item at a time.

For every row q of the target item, a *pairs* function gives two coefficients for each row s of the
same user:

    half[s]   the share of the unordered pair (s, q), s <= q, in G = M + M'   (s = q: one half)
    cross[s]  the weight of source s for the target q, the entry of K

and the accumulator adds them up per item of s. An item's row belongs to one thread and its rows
are visited in one order, so sums do not depend on the number of threads. Where only one of M and K
is wanted, the array for the other has length zero. The models' pairs are in `pairs`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array, Kernel
from talerec.runtime.jit import kernel, template


class RowsByItem(NamedTuple):
    """Rows of a log by item, and the rows that each forms pairs with."""

    ptr: Array  # item j has rows[ptr[j]..ptr[j + 1]]
    rows: Array
    item: Array  # of every row
    begin: Array  # row q forms pairs with the rows begin[q]..after[q]
    after: Array
    longest: int  # rows of the user who has most


class Scratch(NamedTuple):
    """The coefficients of one row's pairs, and room for the pairs function to work in."""

    half: Array
    cross: Array
    sums: Array


class DenseSums(NamedTuple):
    """M and K' as square arrays."""

    M: Array
    K: Array


class SparseSums(NamedTuple):
    """M and K' as compressed rows of one pattern, which `count_pattern` counted."""

    indptr: Array
    indices: Array
    M: Array
    K: Array


@kernel
def count_pattern(log: RowsByItem, a: int, b: int, out: Array) -> None:
    """Count the items that share a pair with each target item a..b (the item itself always counts)."""
    seen = np.full(len(log.ptr) - 1, -1, np.int32)
    for j in range(a, b):
        seen[j] = j
        found = 1
        for x in range(log.ptr[j], log.ptr[j + 1]):
            q = log.rows[x]
            for s in range(log.begin[q], log.after[q]):
                if seen[log.item[s]] != j:
                    seen[log.item[s]] = j
                    found += 1
        out[j] = found


@template
def _scratch(longest: int) -> Scratch:
    return Scratch(np.empty(longest), np.empty(longest), np.empty((longest + 1, 2)))


@template
def _add_target(
    pairs: Kernel, args: Any, log: RowsByItem, j: int, scratch: Scratch, sums: Array
) -> None:
    """Add every pair whose later row holds item j to `sums[item of s]` = (M, K)."""
    half, cross, _ = scratch
    for x in range(log.ptr[j], log.ptr[j + 1]):
        q = log.rows[x]
        pairs(args, q, scratch)
        lo = log.begin[q]
        for s in range(lo, log.after[q]):
            i = log.item[s]
            sums[i, 0] += half[s - lo]
            sums[i, 1] += cross[s - lo]


@template
def accumulate_dense(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: DenseSums
) -> None:
    """Write rows a..b of dense M and K'."""
    scratch = _scratch(log.longest)
    sums = np.empty((len(log.ptr) - 1, 2))
    for j in range(a, b):
        sums[:] = 0.0
        _add_target(pairs, args, log, j, scratch, sums)
        for i in range(out.M.shape[1] if len(out.M) > 0 else 0):
            out.M[j, i] = sums[i, 0]
        for i in range(out.K.shape[1] if len(out.K) > 0 else 0):
            out.K[j, i] = sums[i, 1]


@template
def _add_found(
    pairs: Kernel,
    args: Any,
    log: RowsByItem,
    j: int,
    scratch: Scratch,
    sums: Array,
    seen: Array,
    items: Array,
) -> None:
    """Add the pairs of target j as `_add_target` does, and list the items that have any in `items`."""
    half, cross, _ = scratch
    seen[j] = j
    items[0] = j
    found = 1
    for x in range(log.ptr[j], log.ptr[j + 1]):
        q = log.rows[x]
        pairs(args, q, scratch)
        lo = log.begin[q]
        for s in range(lo, log.after[q]):
            i = log.item[s]
            if seen[i] != j:
                seen[i] = j
                items[found] = i
                found += 1
            sums[i, 0] += half[s - lo]
            sums[i, 1] += cross[s - lo]


@template
def accumulate_sparse(
    pairs: Kernel, args: Any, log: RowsByItem, a: int, b: int, out: SparseSums
) -> None:
    """Write rows a..b of sparse M and K', each row in the order of its items."""
    n = len(log.ptr) - 1
    scratch = _scratch(log.longest)
    sums = np.zeros((n, 2))
    seen = np.full(n, -1, np.int32)
    spare = np.empty(n, np.int32)
    for j in range(a, b):
        lo, hi = out.indptr[j], out.indptr[j + 1]
        _add_found(pairs, args, log, j, scratch, sums, seen, out.indices[lo:hi])
        sort_positions(out.indices[lo:hi], n, spare)
        for x in range(lo, hi):
            i = out.indices[x]
            if len(out.M) > 0:
                out.M[x] = sums[i, 0]
            if len(out.K) > 0:
                out.K[x] = sums[i, 1]
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
