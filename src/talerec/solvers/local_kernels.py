"""The local solver's loops: for each target a few sources, and the small system that they form.

The support N of target j holds the sources with the largest gain K_ij^2 / (G_ii + penalty_i) and
the target itself. Its own weight, which K alone would never suggest, is what keeps an item that
was just seen from being recommended again. The other sources that ever led to j are too many to be
solved together, but not to be left out: they join with one step from there (`_join`).

Items are numbered by rank here: 0 has the most entries in its row of G. Of G only the half below
the diagonal is kept, by rank: each pair stands in the row of the item with fewer entries, so no row
is long, not even that of the most popular item.
"""

from __future__ import annotations

import math

import numpy as np

from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array, Arrays
from talerec.runtime.jit import kernel, reducing, template, unsigned

#: Entries of G that joining sources may look at for one target. Rows of ordinary logs add up to less; a user of thousands
#: of rows makes some that do not.
_WORK = 65_536


@kernel
def count_rows(G: Arrays, a: int, b: int, count: Array) -> None:
    """How many entries the rows a..b of G have; a stored zero is none."""
    indptr, _, values = G
    for i in range(a, b):
        found = 0
        for x in unsigned(indptr[i], indptr[i + 1]):
            found += values[x] != 0.0
        count[i] = found


@kernel
def count_half(G: Arrays, rank: Array, a: int, b: int, count: Array) -> None:
    """How many entries of rows a..b of G lead to an item of lower rank, by rank of the row."""
    indptr, indices, values = G
    for i in range(a, b):
        found = 0
        for x in unsigned(indptr[i], indptr[i + 1]):
            found += values[x] != 0.0 and rank[np.uint32(indices[x])] < rank[i]
        count[rank[i]] = found


@kernel
def fill_half(G: Arrays, rank: Array, a: int, b: int, half: Arrays) -> None:
    """Write those entries: row and column by rank."""
    indptr, indices, values = G
    starts, columns, entries = half
    for i in range(a, b):
        place = starts[rank[i]]
        for x in range(indptr[i], indptr[i + 1]):
            if values[x] != 0.0 and rank[indices[x]] < rank[i]:
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
def _gains(source: Array, count: int, right: Array, diagonal: Array, gain: Array) -> None:
    for c in range(count):
        gain[c] = right[source[c]] ** 2 / diagonal[source[c]]


@template
def _sources(
    K: Arrays,
    j: int,
    rank: Array,
    right: Array,
    diagonal: Array,
    room: int,
    out: Array,
    gain: Array,
) -> int:
    """The sources that led to target j, as ranks, written to out[]: all, or the `room` of largest gain."""
    indptr, indices, values = K
    count = 0
    for x in range(indptr[j], indptr[j + 1]):
        if indices[x] != j and values[x] != 0.0:
            out[count] = rank[indices[x]]
            count += 1
    _gains(out, count, right, diagonal, gain)
    return keep_largest(gain, out, count, room)


@template
def _affordable(
    length: Array,
    sources: Array,
    count: int,
    least: int,
    right: Array,
    diagonal: Array,
    gain: Array,
) -> int:
    """Fewer sources, those of largest gain, where their rows are so long that joining all would take too long."""
    work = 0
    for c in range(count):
        work += length[sources[c]]
    if work <= _WORK:
        return count
    _gains(sources, count, right, diagonal, gain)
    return keep_largest(gain, sources, count, max(least, count * _WORK // work))


@template
def _support(
    sources: Array,
    count: int,
    own: int,
    right: Array,
    diagonal: Array,
    room: int,
    out: Array,
    gain: Array,
) -> int:
    """Those that are solved together, written to out[]: the largest gains, and the target itself (rank `own`, or -1)."""
    out[:count] = sources[:count]
    _gains(out, count, right, diagonal, gain)
    size = keep_largest(gain, out, count, room - 1 if own >= 0 and room > 1 else room)
    if own >= 0 and size < room:
        out[size] = own
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
        row = A[p]
        row[: p + 1] = 0.0
        for x in unsigned(starts[source[p]], starts[source[p] + 1]):
            row[np.uint32(place[np.uint32(columns[x])])] = entries[x]
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


@reducing
def _along(half: Arrays, r: int, by_rank: Array) -> float:
    """Row r of the half times a vector."""
    starts, columns, entries = half
    total = 0.0
    for x in unsigned(starts[r], starts[r + 1]):
        total += entries[x] * by_rank[np.uint32(columns[x])]
    return total


@template
def _join(
    half: Arrays,
    right: Array,
    diagonal: Array,
    sources: Array,
    count: int,
    support: Array,
    weight: Array,
    size: int,
    scratch: Arrays,
) -> tuple[float, float]:
    """What the sources outside the support get: one step of steepest descent from the support's solution.

    Each such i is asked for what its own normal equation lacks, d_i = (K_ij - sum over the support of
    G_ik b_k) / diagonal_i, left by rank in the first array of `scratch`; the support has 0 there. All get
    d times the one factor that is best for them together, since they explain in part the same:
    d'Dd / d'(G + diag(penalty))d, which is returned with what the step explains.
    """
    starts, columns, entries = half
    lacks, held, outside = scratch  # by rank; all zero, and held and outside left so
    for c in range(count):
        outside[sources[c]] = 1
    for p in range(size):
        held[support[p]] = weight[p]
        outside[support[p]] = 0
    for p in range(size):
        for x in unsigned(starts[support[p]], starts[support[p] + 1]):
            if outside[np.uint32(columns[x])]:
                lacks[np.uint32(columns[x])] -= entries[x] * weight[p]
    alone, together = 0.0, 0.0
    for c in range(count):
        r = sources[c]
        if outside[r]:
            total = right[r] + lacks[r] - _along(half, r, held)
            lacks[r] = total / diagonal[r]
            alone += lacks[r] * total
    for c in range(count):
        r = sources[c]
        if outside[r]:
            together += lacks[r] * _along(half, r, lacks)
    for c in range(count):
        outside[sources[c]] = 0
    for p in range(size):
        held[support[p]] = 0.0
    share = alone / (alone + 2 * together) if alone > 0.0 else 0.0
    return share, share * alone


@kernel
def solve_targets(
    half: Arrays,
    length: Array,
    K: Arrays,
    names: Arrays,
    diagonal: Array,
    together: int,
    room: int,
    own: bool,
    a: int,
    b: int,
    ptr: Array,
    out_item: Array,
    out_weight: Array,
    out_count: Array,
    out_explained: Array,
) -> None:
    """Weights into targets a..b, each from ptr[j] on; `diagonal` is that of G plus the penalty.

    K is by target, in items; `half`, `length` and `diagonal` are by rank; `length` is that of the rows of a half
    whose items are ranked by their entries in G, as these are here, but not on a cluster. `names` holds each item's rank and
    each rank's item. A target has up to `room` sources, of which `together` are solved together; where
    that is all items, they are. `own`: may a target be its own source? Not for a zero diagonal.
    Explained: by how much a target's weights make the penalised squared error less than T'T.
    """
    rank, item = names
    n = len(diagonal)
    widest = min(together, n)
    sources, support, spare = (
        np.empty(n + 1, np.int32),
        np.empty(n + 1, np.int32),
        np.empty(n, np.int32),
    )
    gain, right, place = np.empty(n), np.zeros(n), np.zeros(n, np.int32)
    A, L = np.zeros((widest, widest + 1)), np.zeros((widest, widest))
    ridge, goal, weight = np.empty(widest), np.empty(widest), np.empty(widest)
    scratch = (np.zeros(n), np.zeros(n), np.zeros(n, np.uint8))
    indptr, indices, values = K
    for j in range(a, b):
        for x in range(indptr[j], indptr[j + 1]):
            right[rank[indices[x]]] = values[x]
        size = count = 0
        if together >= n:
            for r in range(n):
                if own or r != rank[j]:
                    support[size] = r
                    size += 1
        elif indptr[j] < indptr[j + 1]:
            itself = rank[j] if own else -1
            count = _sources(K, j, rank, right, diagonal, room, sources, gain)
            count = _affordable(length, sources, count, widest, right, diagonal, gain)
            size = _support(sources, count, itself, right, diagonal, widest, support, gain)
            sort_positions(support[:size], n, spare)
        for p in range(size):
            ridge[p], goal[p] = diagonal[support[p]], right[support[p]]
        _gather(half, support, size, place, A)
        _factor(A, L, ridge, size)
        _back(L, goal, size, weight)
        for p in range(size):
            out_item[ptr[j] + p], out_weight[ptr[j] + p] = item[support[p]], weight[p]
        found, explained = size, 0.0
        for p in range(size):
            explained += weight[p] * goal[p]
        if count >= widest:  # else all of them are in the support
            share, step = _join(
                half, right, diagonal, sources, count, support, weight, size, scratch
            )
            for c in range(count):
                d = scratch[0][sources[c]]
                if d != 0.0:
                    out_item[ptr[j] + found] = item[sources[c]]
                    out_weight[ptr[j] + found] = share * d
                    found += 1
                    scratch[0][sources[c]] = 0.0
            explained += step
        out_count[j], out_explained[j] = found, explained
        for x in range(indptr[j], indptr[j + 1]):
            right[rank[indices[x]]] = 0.0


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
