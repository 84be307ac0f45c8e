"""The local solver's loops: for each target a few sources, and the small system that they form.

The support N of target j holds the sources with the largest gain K_ij^2 / (G_ii + penalty_i) and
the target itself. Its own weight, which K alone would never suggest, is what keeps an item that
was just seen from being recommended again; with it one solve is as good as the exact solution.
"""

from __future__ import annotations

import math

import numpy as np

from talerec.arrays import Array, Arrays
from talerec.jit import kernel, reducing, template


@kernel
def dense_head(G: Arrays, order: Array, size: int) -> tuple[Array, Array]:
    """G among the items order[:size], dense, and each item's place there (-1: not among them)."""
    indptr, indices, values = G
    place = np.full(len(indptr) - 1, -1, np.int32)
    for h in range(size):
        place[order[h]] = h
    H = np.zeros((size, size))
    for h in range(size):
        for x in range(indptr[order[h]], indptr[order[h] + 1]):
            if place[indices[x]] >= 0:
                H[h, place[indices[x]]] = values[x]
    return place, H


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
    K: Arrays, diagonal: Array, j: int, own: bool, room: int, item: Array, gain: Array
) -> int:
    """The sources of target j, written to item[]; none where nothing ever led to j."""
    indptr, indices, values = K
    count = 0
    for x in range(indptr[j], indptr[j + 1]):
        if indices[x] != j and values[x] != 0.0:
            item[count] = indices[x]
            gain[count] = values[x] * values[x] / diagonal[indices[x]]
            count += 1
    size = keep_largest(gain, item, count, room - 1 if own and room > 1 else room)
    if own and size < room and indptr[j] < indptr[j + 1]:
        item[size] = j
        size += 1
    return size


@template
def _gather(G: Arrays, head: Arrays, item: Array, size: int, place: Array, A: Array) -> None:
    """A[p, q + 1] = G[item[p], item[q]] for q < p.

    Rows of G are short but for a head of items, whose pairs stand in a dense array. A short row is
    scanned without a branch: what is not in the support lands in column 0.
    """
    indptr, indices, values = G
    in_head, H = head
    for p in range(size):
        place[item[p]] = p + 1
    for p in range(size):
        i = item[p]
        if in_head[i] < 0:
            A[p, : size + 1] = 0.0
            for x in range(indptr[i], indptr[i + 1]):
                A[p, place[indices[x]]] = values[x]
    for p in range(size):
        place[item[p]] = 0
    for p in range(size):
        h = in_head[item[p]]
        if h >= 0:
            for q in range(p):
                k = in_head[item[q]]
                A[p, q + 1] = H[h, k] if k >= 0 else A[q, p + 1]


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
    G: Arrays,
    head: Arrays,
    K: Arrays,
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

    G by row, K by target. `own`: may a target be its own source? Not for a zero diagonal.
    """
    n = len(diagonal)
    widest = min(neighbors, n)
    item, gain, right = np.empty(n + 1, np.int32), np.empty(n), np.zeros(n)
    place = np.zeros(n, np.int32)
    A, L = np.zeros((widest, widest + 1)), np.zeros((widest, widest))
    ridge, goal, weight = np.empty(widest), np.empty(widest), np.empty(widest)
    for j in range(a, b):
        size = 0
        if neighbors >= n:
            for i in range(n):
                if own or i != j:
                    item[size] = i
                    size += 1
        else:
            size = _support(K, diagonal, j, own, widest, item, gain)
        for x in range(K[0][j], K[0][j + 1]):
            right[K[1][x]] = K[2][x]
        for p in range(size):
            ridge[p], goal[p] = diagonal[item[p]], right[item[p]]
        for x in range(K[0][j], K[0][j + 1]):
            right[K[1][x]] = 0.0
        _gather(G, head, item, size, place, A)
        _factor(A, L, ridge, size)
        _back(L, goal, size, weight)
        for p in range(size):
            out_item[ptr[j] + p], out_weight[ptr[j] + p] = item[p], weight[p]
        out_count[j] = size
