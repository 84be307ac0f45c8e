"""The local solver's loops: for each target a few sources, and the small system that they form.

The support N of target j holds the sources with the largest gain K_ij^2 / (G_ii + penalty_i) and
the target itself. Its own weight, which K alone would never suggest, is what keeps an item that
was just seen from being recommended again; with it one solve is as good as the exact solution.

Items are numbered by rank here: 0 has the most entries in its row of G. Of G only the half below
the diagonal is kept, by rank: each pair stands in the row of the item with fewer entries, so no row
is long, not even that of the most popular item.
"""

from __future__ import annotations

import math

import numpy as np

from talerec.arrays import Array, Arrays
from talerec.jit import kernel, reducing, template
from talerec.kernels import sort_positions


@kernel
def count_half(G: Arrays, rank: Array, a: int, b: int, count: Array) -> None:
    """How many entries of rows a..b of G lead to an item of lower rank, by rank of the row."""
    indptr, indices, _ = G
    for i in range(a, b):
        found = 0
        for x in range(indptr[i], indptr[i + 1]):
            found += rank[indices[x]] < rank[i]
        count[rank[i]] = found


@kernel
def fill_half(G: Arrays, rank: Array, a: int, b: int, half: Arrays) -> None:
    """Write those entries: row and column by rank."""
    indptr, indices, values = G
    starts, columns, entries = half
    for i in range(a, b):
        place = starts[rank[i]]
        for x in range(indptr[i], indptr[i + 1]):
            if rank[indices[x]] < rank[i]:
                columns[place], entries[place] = rank[indices[x]], values[x]
                place += 1


@kernel
def keep_largest(gain: Array, item: Array, count: int, room: int) -> int:
    """Move the `room` items of largest gain to the front, in the order they stand; how many that is."""
    if count <= room:
        return count
    threshold = np.partition(gain[:count], count - room)[count - room]
    above = 0
    for c in range(count):
        above += gain[c] > threshold
    kept, equal = 0, room - above
    for c in range(count):
        if gain[c] > threshold or (gain[c] == threshold and equal > 0):
            equal -= gain[c] == threshold
            item[kept] = item[c]
            kept += 1
    return kept


@template
def _support(
    K: Arrays,
    rank: Array,
    diagonal: Array,
    j: int,
    own: bool,
    room: int,
    source: Array,
    gain: Array,
) -> int:
    """The sources of target j, as ranks, written to source[]; none where nothing ever led to j."""
    indptr, indices, values = K
    count = 0
    for x in range(indptr[j], indptr[j + 1]):
        r = rank[indices[x]]
        if indices[x] != j and values[x] != 0.0:
            source[count] = r
            gain[count] = values[x] * values[x] / diagonal[r]
            count += 1
    size = keep_largest(gain, source, count, room - 1 if own and room > 1 else room)
    if own and size < room and indptr[j] < indptr[j + 1]:
        source[size] = rank[j]
        size += 1
    return size


@template
def _gather(half: Arrays, source: Array, size: int, place: Array, A: Array) -> None:
    """A[p, q + 1] = G[source[p], source[q]] for q < p; source[] ascends.

    A row of the half holds lower ranks only, so every pair is found in one row, the shorter of its
    two, and lands below the diagonal. It is scanned without a branch: what is not in the support
    lands in column 0.
    """
    starts, columns, entries = half
    for p in range(size):
        place[source[p]] = p + 1
    for p in range(size):
        A[p, : p + 1] = 0.0
        for x in range(starts[source[p]], starts[source[p] + 1]):
            A[p, place[columns[x]]] = entries[x]
    for p in range(size):
        place[source[p]] = 0


@reducing
def _factor(A: Array, L: Array, diagonal: Array, size: int) -> None:
    """The Cholesky factor of A (see `_gather`) with `diagonal`; L holds 1 / L_pp on its diagonal."""
    for p in range(size):
        left = diagonal[p]
        for q in range(p):
            total = 0.0
            for k in range(q):
                total += L[p, k] * L[q, k]
            value = (A[p, q + 1] - total) * L[q, q]
            L[p, q] = value
            left -= value * value
        # a source that rounding makes a copy of others gets no weight
        L[p, p] = 1.0 / math.sqrt(left) if left > 1e-14 * diagonal[p] else 0.0


@reducing
def _back(L: Array, right: Array, size: int, b: Array) -> None:
    """b = (L L')^-1 right."""
    for p in range(size):
        total = 0.0
        for k in range(p):
            total += L[p, k] * b[k]
        b[p] = (right[p] - total) * L[p, p]
    for p in range(size - 1, -1, -1):
        b[p] *= L[p, p]
        for k in range(p):
            b[k] -= L[p, k] * b[p]


@kernel
def solve_targets(
    half: Arrays,
    K: Arrays,
    names: Arrays,
    diagonal: Array,
    neighbors: int,
    own: bool,
    a: int,
    b: int,
    ptr: Array,
    out_item: Array,
    out_weight: Array,
    out_count: Array,
) -> None:
    """Weights into targets a..b, each from ptr[j] on; `diagonal` is that of G plus the penalty.

    K is by target, in items; `half` and `diagonal` are by rank; `names` holds each item's rank and
    each rank's item. `own`: may a target be its own source? Not for a zero diagonal.
    """
    rank, item = names
    n = len(diagonal)
    widest = min(neighbors, n)
    source, gain, right = np.empty(n + 1, np.int32), np.empty(n), np.zeros(n)
    place, spare = np.zeros(n, np.int32), np.empty(n, np.int32)
    A, L = np.zeros((widest, widest + 1)), np.zeros((widest, widest))
    ridge, goal, weight = np.empty(widest), np.empty(widest), np.empty(widest)
    indptr, indices, values = K
    for j in range(a, b):
        size = 0
        if neighbors >= n:
            for r in range(n):
                if own or r != rank[j]:
                    source[size] = r
                    size += 1
        else:
            size = _support(K, rank, diagonal, j, own, widest, source, gain)
            sort_positions(source[:size], n, spare)
        for x in range(indptr[j], indptr[j + 1]):
            right[rank[indices[x]]] = values[x]
        for p in range(size):
            ridge[p], goal[p] = diagonal[source[p]], right[source[p]]
        for x in range(indptr[j], indptr[j + 1]):
            right[rank[indices[x]]] = 0.0
        _gather(half, source, size, place, A)
        _factor(A, L, ridge, size)
        _back(L, goal, size, weight)
        for p in range(size):
            out_item[ptr[j] + p], out_weight[ptr[j] + p] = item[source[p]], weight[p]
        out_count[j] = size


@kernel
def by_source(ptr: Array, item: Array, weight: Array, count: Array) -> tuple[Array, Array, Array]:
    """Weights written target by target, with gaps, as CSR by source; zeros are not kept."""
    n = len(count)
    indptr = np.zeros(n + 1, np.int64)
    for j in range(n):
        for x in range(ptr[j], ptr[j] + count[j]):
            indptr[item[x] + 1] += weight[x] != 0.0
    for i in range(n):
        indptr[i + 1] += indptr[i]
    indices, values = np.empty(indptr[n], np.int32), np.empty(indptr[n], np.float32)
    place = indptr[:-1].copy()
    for j in range(n):
        for x in range(ptr[j], ptr[j] + count[j]):
            if weight[x] != 0.0:
                i = item[x]
                indices[place[i]], values[place[i]] = j, weight[x]
                place[i] += 1
    return indptr, indices, values
