"""The lower triangle of a symmetric matrix of items, numbered by rank, and its update.

Rank 0 has the most entries in its row of G. Below the diagonal each pair of items is stored in the
row of the item with fewer entries, so no row is long, not even that of the most popular item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from talerec.runtime import (
    CSR,
    Array,
    Matrix,
    as_readonly,
    balanced_chunks,
    csr_rows,
    kernel,
    run_chunks,
    template,
    unsigned_range,
)

_CHUNKS = 64  # of work, whatever the number of threads
_ROUNDING = 1000  # machine epsilons: a smaller share of an entry is rounding, and becomes zero


@dataclass(frozen=True, eq=False)
class LowerTriangle:
    """A symmetric items x items matrix: its diagonal, and its entries below the diagonal.

    Rows and columns are items in another order: their ranks.
    """

    lower: CSR  # the entries of pairs of items, row and column by rank, column < row
    rank: Array  # a new number of each item; as a rule 0 has the most entries: no row is long
    diagonal: Array  # by item

    @property
    def items(self) -> int:
        """The number of items: rows and columns of the symmetric matrix."""
        return len(self.rank)

    @property
    def item(self) -> Array:
        """The item of each rank, ranks being the numbers of rows and columns of `lower`.

        `self.rank` has the rank of each item.
        """
        return _invert(self.rank)


def lower_triangle(G: Matrix, rank: Array | None = None) -> LowerTriangle:
    """Return the nonzeros of a symmetric matrix below its diagonal, items numbered by rank.

    rank: a new number of each item (None: by the number of its nonzeros, most first). An entry is
    stored in the row of the item of higher rank.
    """
    rows = csr_rows(G)
    rank = rank_items(rows) if rank is None else rank
    count = np.empty(len(rank), np.int64)
    chunks = balanced_chunks(rows.indptr, _CHUNKS)
    run_chunks("solve", lambda a, b: _count_lower(rows, rank, a, b, count), chunks)
    indptr = np.concatenate([[0], np.cumsum(count)])
    size = indptr[-1]
    lower = CSR(indptr, np.empty(size, np.int32), np.empty(size, rows.values.dtype))
    run_chunks("solve", lambda a, b: _fill_lower(rows, rank, a, b, lower), chunks)
    return LowerTriangle(lower, rank, np.asarray(G.diagonal()))


def rank_items(G: CSR) -> Array:
    """Return each item's rank, from 0, by the number of nonzeros in its row of G, most first.

    G: items x items, symmetric, compressed by row. Items with equally many keep their order.
    """
    entries = np.empty(len(G.indptr) - 1, np.int64)
    chunks = balanced_chunks(G.indptr, _CHUNKS)
    run_chunks("solve", lambda a, b: _count_nonzeros(G, a, b, entries), chunks)
    return _invert(np.argsort(-entries, kind="stable").astype(np.int32))


def ranked_lengths(triangle: LowerTriangle, order: Array) -> Array:
    """Return how long a triangle's rows would be if items were ranked by their entries now.

    An update adds entries to a triangle and keeps the ranks of items. The result has a number per
    rank of `triangle`: in how many pairs with a nonzero entry the item is the one with fewer
    entries. order: the place of each item among all ids in sorted order, which decides between
    items with equally many entries, as in a fit to all rows.
    """
    item = triangle.item
    entries = (triangle.diagonal[item] != 0.0).astype(np.int64)
    _count_entries(triangle.lower, entries)
    rank = _invert(np.lexsort((order[item], -entries)))
    lengths = np.zeros(len(rank), np.int64)
    _count_shorter(triangle.lower, rank, lengths)
    return lengths


def _invert(permutation: Array) -> Array:
    """Return the inverse of a permutation: inverse[permutation[i]] = i (int32)."""
    inverse = np.empty(len(permutation), np.int32)
    inverse[permutation] = np.arange(len(permutation), dtype=np.int32)
    return inverse


@kernel
def _count_nonzeros(G: CSR, a: int, b: int, out: Array) -> None:
    """Write into out[i] how many stored entries of row i of G are not zero, for i in a..b.

    G: items x items, compressed by row; b is excluded.
    """
    for i in range(a, b):
        count = 0
        for x in unsigned_range(G.indptr[i], G.indptr[i + 1]):
            count += G.values[x] != 0.0
        out[i] = count


@kernel
def _count_entries(lower: CSR, out: Array) -> None:
    """Add to out[r] how many nonzeros are in row r or column r of a lower triangle, for all r.

    lower: below the diagonal, compressed by row; each nonzero counts for its row and its column.
    """
    for r in range(len(out)):
        for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
            if lower.values[x] != 0.0:
                out[r] += 1
                out[np.uint32(lower.indices[x])] += 1


@kernel
def _count_shorter(lower: CSR, rank: Array, out: Array) -> None:
    """Add to out[r] how many nonzeros of a lower triangle have r as the item of higher `rank`.

    A nonzero belongs to two items, its row and its column; rank: another number of each item.
    """
    for r in range(len(out)):
        for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
            if lower.values[x] != 0.0:
                other = np.uint32(lower.indices[x])
                out[r if rank[r] > rank[other] else other] += 1


@kernel
def _count_lower(G: CSR, rank: Array, a: int, b: int, out: Array) -> None:
    """Write into out[rank[i]] how many nonzeros of row i (a..b) have a column of lower rank.

    G: symmetric, items x items. rank: a new number of each item.
    """
    for i in range(a, b):
        count = 0
        for x in unsigned_range(G.indptr[i], G.indptr[i + 1]):
            count += G.values[x] != 0.0 and rank[np.uint32(G.indices[x])] < rank[i]
        out[rank[i]] = count


@kernel
def _fill_lower(G: CSR, rank: Array, a: int, b: int, out: CSR) -> None:
    """Write the nonzeros of rows a..b of G whose column has a lower rank than the row.

    G: symmetric, items x items. rank: a new number of each item; rows and columns of `out` are
    ranks. out.indptr is given.
    """
    for i in range(a, b):
        free = out.indptr[rank[i]]
        for x in range(G.indptr[i], G.indptr[i + 1]):
            if G.values[x] != 0.0 and rank[G.indices[x]] < rank[i]:
                out.indices[free], out.values[free] = rank[G.indices[x]], G.values[x]
                free += 1


# -- update ----------------------------------------------------------------------------------------


class _Addends(NamedTuple):
    """Two sparse matrices to add, row by row: the old one, and a change of it."""

    old: CSR  # by row
    change: CSR  # of the same shape
    tolerance: float  # a sum of at most so many times the old entry is stored as zero


def update_triangle(triangle: LowerTriangle, change: Matrix) -> tuple[LowerTriangle, LowerTriangle]:
    """Return the triangle plus a symmetric change (CSR), and the triangle of the change.

    A triangle is a symmetric matrix below its diagonal, items numbered by rank. New items, which
    are the last rows of `change`, get the last ranks; other ranks stay. Entries that cancel up to
    rounding become zero.
    """
    n, old_items = change.shape[0], triangle.items
    new_ranks = np.arange(old_items, n, dtype=np.int32)
    rank = np.concatenate([triangle.rank, new_ranks]).astype(np.int32)
    added = lower_triangle(change, rank)
    indptr = triangle.lower.indptr
    indptr = np.concatenate([indptr, np.full(n - old_items, indptr[-1])]).astype(np.int64)
    old = CSR(as_readonly(indptr), *(as_readonly(part) for part in triangle.lower[1:]))
    tolerance = _ROUNDING * float(np.finfo(old.values.dtype).eps)
    both = _Addends(old, added.lower, tolerance)
    count = np.empty(n, np.int64)
    chunks = balanced_chunks(indptr + np.arange(n + 1), _CHUNKS)
    run_chunks("gram", lambda a, b: _count_sum(both, a, b, count), chunks)
    ends = np.concatenate([[0], np.cumsum(count)])
    out = CSR(ends, np.empty(ends[-1], np.int32), np.empty(ends[-1], old.values.dtype))
    run_chunks("gram", lambda a, b: _write_sum(both, a, b, out), chunks)
    before = np.concatenate([triangle.diagonal, np.zeros(n - old_items)])
    diagonal = before + added.diagonal
    diagonal[diagonal <= tolerance * before] = 0.0
    return LowerTriangle(out, rank, diagonal), added


@kernel
def _count_sum(both: _Addends, a: int, b: int, out: Array) -> None:
    """Write into out[r] how many entries row r of the sum has, for r in a..b (excluded).

    both: the two sparse matrices to add; entries of one column count once, even if they cancel.
    """
    old, change, _ = both
    mark = np.full(len(out), -1, np.int32)
    for r in range(a, b):
        count = old.indptr[r + 1] - old.indptr[r]
        if change.indptr[r] < change.indptr[r + 1]:
            for x in range(old.indptr[r], old.indptr[r + 1]):
                mark[old.indices[x]] = r
            for y in range(change.indptr[r], change.indptr[r + 1]):
                count += mark[change.indices[y]] != r
        out[r] = count


@kernel
def _write_sum(both: _Addends, a: int, b: int, out: CSR) -> None:
    """Write rows a..b of the sum of two sparse matrices: old entries in order, then new ones.

    both: the old matrix and the change. out.indptr is given. A sum of at most `both.tolerance`
    times the old entry becomes zero.
    """
    old, change, tolerance = both
    position = np.zeros(len(out.indptr) - 1, np.int64)  # of a column in the output, plus 1
    for r in range(a, b):
        first, begin, end = out.indptr[r], old.indptr[r], old.indptr[r + 1]
        for x in range(begin, end):
            out.indices[first + x - begin] = old.indices[x]
            out.values[first + x - begin] = old.values[x]
        if change.indptr[r] == change.indptr[r + 1]:
            continue
        for x in range(begin, end):
            position[old.indices[x]] = first + x - begin + 1
        free = first + end - begin
        for y in range(change.indptr[r], change.indptr[r + 1]):
            at = position[change.indices[y]] - 1
            if at < 0:
                out.indices[free], out.values[free] = change.indices[y], change.values[y]
                free += 1
            else:
                total = out.values[at] + change.values[y]
                out.values[at] = total if total > tolerance * out.values[at] else 0.0
        for x in range(begin, end):
            position[old.indices[x]] = 0


# -- residuals of old weights ----------------------------------------------------------------------


class _Changes(NamedTuple):
    """A change dG, dK of (G + diag(penalty)) B = K, and the weights B that solved it before.

    A rank is the solver's number of an item.
    """

    lower: CSR  # dG below its diagonal, by rank
    rank: Array  # of each item
    diagonal: Array  # of dG plus the change of the penalty, by rank
    dK: CSR  # by target, in items
    weights: CSR  # by target, in items
    step: Array  # 1 / (G_ii + penalty_i), by rank


class _Residuals(NamedTuple):
    """Scratch for one target; zeros between targets, except for `sources`.

    dG and dK are changes of (G + diag(penalty)) b = K for the target, b its old weights. A rank is
    the solver's number of an item.
    """

    residual: Array  # dK - dG b, by rank
    weight: Array  # b, the target's weights, by rank
    seen: Array  # 1 for a source, by rank
    sources: Array  # the ranks of the target's sources


def target_residuals(
    dG: LowerTriangle, diagonal: Array, dK: CSR, weights: CSR, step: Array
) -> Array:
    """Return how far each target's old weights are from the new normal equations.

    For target j this is the maximum over its sources i of |dK_ij - (dG b_j)_i| step_i, divided by
    the target's largest weight (infinite if it has none): the largest change that one step would
    make. Sources of j have a weight for j or an entry of dK. `diagonal` is that of dG plus the
    change of the penalty, `step` is 1 / (G_ii + penalty_i); dK and the weights are by target.
    """
    item = dG.item
    changes = _Changes(dG.lower, dG.rank, diagonal[item], dK, weights, step[item])
    out = np.zeros(len(step))
    lengths = np.diff(dG.lower.indptr)[dG.rank] + 1
    work = sum(
        np.concatenate([[0], np.cumsum(lengths[m.indices])])[m.indptr] for m in (dK, weights)
    )
    chunks = balanced_chunks(work + np.arange(len(step) + 1), _CHUNKS)
    run_chunks("changes", lambda a, b: _write_residuals(changes, a, b, out), chunks)
    return out


@template
def _list_sources(changes: _Changes, j: int, scratch: _Residuals) -> int:
    """Write the sources of target j, their weights and entries of dK; return their number.

    Sources are the ranks (the solver's item numbers) of items with an old weight for j or an entry
    in column j of dK, the change of K. They go to scratch.sources, with scratch.seen 1; old weights
    go to scratch.weight and entries of dK to scratch.residual, by rank. These arrays are 0 on
    entry.
    """
    count = 0
    for x in range(changes.dK.indptr[j], changes.dK.indptr[j + 1]):
        r = changes.rank[changes.dK.indices[x]]
        scratch.residual[r] = changes.dK.values[x]
        scratch.seen[r] = 1
        scratch.sources[count] = r
        count += 1
    for y in range(changes.weights.indptr[j], changes.weights.indptr[j + 1]):
        r = changes.rank[changes.weights.indices[y]]
        scratch.weight[r] = changes.weights.values[y]
        if not scratch.seen[r]:
            scratch.seen[r] = 1
            scratch.sources[count] = r
            count += 1
    return count


@template
def _subtract_product(changes: _Changes, count: int, scratch: _Residuals) -> None:
    """Subtract dG b from scratch.residual, for the first `count` scratch.sources.

    dG is the change of G, stored below its diagonal: each pair of sources is in the row of one of
    the two. b is scratch.weight, the old weights of one target, by rank.
    """
    lower = changes.lower
    for c in range(count):
        r = scratch.sources[c]
        weight, total = scratch.weight[r], changes.diagonal[r] * scratch.weight[r]
        for x in unsigned_range(lower.indptr[r], lower.indptr[r + 1]):
            other = np.uint32(lower.indices[x])
            if scratch.seen[other]:
                total += lower.values[x] * scratch.weight[other]
                scratch.residual[other] -= lower.values[x] * weight
        scratch.residual[r] -= total


@kernel
def _write_residuals(changes: _Changes, a: int, b: int, out: Array) -> None:
    """Write into out[j], for j in a..b, how far old weights b_j are from changed equations.

    The equations are (G + diag(penalty)) b_j = K_j, changed by dG and dK. It is the maximum over
    the target's sources of |dK_ij - (dG b_j)_i| step_i over the largest |b_ij|; infinite if all
    weights are 0, and left as it is (0) if nothing changed. changes: dG, dK, b and step.
    """
    n = len(changes.rank)
    scratch = _Residuals(np.zeros(n), np.zeros(n), np.zeros(n, np.uint8), np.empty(n, np.int32))
    for j in range(a, b):
        count = _list_sources(changes, j, scratch)
        _subtract_product(changes, count, scratch)
        worst = largest = 0.0
        for c in range(count):
            r = scratch.sources[c]
            worst = max(worst, abs(scratch.residual[r]) * changes.step[r])
            largest = max(largest, abs(scratch.weight[r]))
            scratch.residual[r], scratch.weight[r], scratch.seen[r] = 0.0, 0.0, 0
        if worst > 0.0:
            out[j] = worst / largest if largest > 0.0 else np.inf
