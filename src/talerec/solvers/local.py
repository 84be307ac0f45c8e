"""The local solver: each target's column of B from a few sources; B is sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from talerec.gram import Gram
from talerec.runtime import (
    CSR,
    Array,
    Matrix,
    balanced_chunks,
    csr_columns,
    is_sparse,
    kernel,
    memory,
    run_chunks,
    shrink_indptr,
    sparse,
    thread_count,
)
from talerec.solvers.local_kernels import TargetColumns, compress_by_source, solve_targets
from talerec.solvers.sources import (
    NormalEquations,
    SourceLimits,
    choose_sources,
    clear_column,
    new_candidates,
    set_column,
)
from talerec.solvers.triangle import LowerTriangle, lower_triangle, ranked_lengths

_CHUNKS = 64  # of work, whatever the number of threads
_OUTSIDE = 3  # a target has at most this multiple of `neighbors` sources
_FEW = 10_000_000  # while K has no more entries than this; then `neighbors` sources
_NEARBY = 4096  # entries between two rows that cost less to read than to skip


def solve_local(
    gram: Gram,
    penalty: Array,
    neighbors: int,
    *,
    zero_diagonal: bool = False,
    targets: Array | None = None,
) -> tuple[Any, Array]:
    """Return a sparse solution B of (G + diag(penalty)) B = K: few sources per target item.

    A target has about `neighbors` sources. Half of them, those with the largest gain
    K_ij^2 / (G_ii + penalty_i), are solved together; the others get weights by one descent step.
    While K has few entries, twice as many more sources take part in the step.
    With `zero_diagonal` an item is never its own source. With `neighbors` >= items all items are
    solved together, and the weights are exact.

    targets: a flag per item; other targets get no weights. Returns the weights (a CSR array, source
    x target) and, per target j, how much they explain: T_j'T_j minus the penalised squared error
    |T_j - S b_j|^2 + sum of penalty_i b_ij^2. gram: G = S'S and K = S'T, items x items.
    """
    n, K = gram.items, csr_columns(gram.K)
    limits = source_limits(n, neighbors, gram.k_entries, includes_target=not zero_diagonal)
    K = K if targets is None or targets.all() else _select_columns(K, targets)
    entries = int(gram.G.nnz if is_sparse(gram.G) else np.count_nonzero(gram.G))
    _require_memory(K, entries * 6, limits, neighbors)
    triangle = lower_triangle(gram.G)
    return _solve_columns(triangle, np.diff(triangle.lower.indptr), K, penalty, limits)


class StoredProblem(NamedTuple):
    """What the local solver needs of an updated model, besides columns of K = S'T.

    The system is (G + diag(penalty)) B = K, with G = S'S and K = S'T (source x target).
    """

    triangle: LowerTriangle  # of G, with the ranks that items had in the first fit
    penalty: Array  # one per item, added to G's diagonal
    neighbors: int  # about how many sources a target has
    entries: int  # of the K of all targets; while they are few, a target has more sources
    order: Array  # place of each item among all ids in sorted order: its position in a new fit


def solve_stored(problem: StoredProblem, K: Matrix) -> Any:
    """Return the weights that a fit to all rows gives to the targets in K (CSR, by source).

    K = S'T: items x items, with the columns of these targets alone. An updated model has other
    positions and ranks of items than a new fit, but the same sources and weights.
    """
    triangle, columns = problem.triangle, _order_sources(csr_columns(K), problem.order)
    limits = source_limits(triangle.items, problem.neighbors, problem.entries, includes_target=True)
    _require_memory(columns, 0, limits, problem.neighbors)
    lengths = ranked_lengths(triangle, problem.order)
    return _solve_columns(triangle, lengths, columns, problem.penalty, limits)[0]


def _order_sources(K: CSR, order: Array) -> CSR:
    """Return K, compressed by target, with the sources of each target by ascending `order`.

    K: source x target item, items x items. order: a permutation, one number per item. The solver
    prefers the first of equally good sources.
    """
    n = len(order)
    if np.array_equal(order, np.arange(n)):
        return K
    item = np.argsort(order).astype(K.indices.dtype)
    columns = sparse.csc_array((K.values, order[K.indices], K.indptr), shape=(n, n), copy=True)
    columns.sort_indices()
    return CSR(K.indptr, item[columns.indices], columns.data)


def _select_columns(K: CSR, targets: Array) -> CSR:
    """Return K, compressed by column (target), without the entries of targets without a flag.

    targets: a boolean per item. The shape stays; columns without a flag are empty.
    """
    stays = np.repeat(targets, np.diff(K.indptr))
    indptr = np.concatenate([[0], np.cumsum(stays)])[K.indptr]
    return CSR(indptr.astype(K.indptr.dtype), K.indices[stays], K.values[stays])


def _solve_columns(
    triangle: LowerTriangle, lengths: Array, K: CSR, penalty: Array, limits: SourceLimits
) -> tuple[Any, Array]:
    """Return the weights of K's targets (CSR, source x target), and how much they explain.

    They solve (G + diag(penalty)) B = K approximately. triangle: G below its diagonal; lengths: of
    its rows, were items ranked by their present entries; K: compressed by target; limits: how many
    sources a target has. The second result has one number per target j: T_j'T_j minus the
    penalised squared error.
    """
    n, item = triangle.items, triangle.item
    sources = _source_counts(K, limits)
    out = _new_columns(np.minimum(sources, limits.total))
    diagonal = (triangle.diagonal + penalty)[item]
    equations = NormalEquations(triangle.lower, lengths, K, diagonal, triangle.rank, item)
    work = np.minimum(sources, limits.together) ** 2 + sources
    chunks = balanced_chunks(_offsets(work), _CHUNKS)
    run_chunks("solve", lambda a, b: solve_targets(equations, limits, a, b, out), chunks)
    indptr, indices, values = compress_by_source(out)
    weights = sparse.csr_array((values, indices, shrink_indptr(indptr)), shape=(n, n))
    return weights, out.explained


def source_limits(
    items: int, neighbors: int, entries: int, *, includes_target: bool
) -> SourceLimits:
    """Return how many source items a target has: solved together exactly, and in all.

    About `neighbors` in all, half of them solved together; three times as many in all while K = S'T
    has no more than 10 million `entries`. If `neighbors` is at least `items`, all items are solved
    together. includes_target: whether a target may be its own source.
    """
    if neighbors >= items:
        return SourceLimits(items, items, includes_target)
    total = neighbors * (_OUTSIDE if entries <= _FEW else 1)
    return SourceLimits((neighbors + 1) // 2, total, includes_target)


def _source_counts(K: CSR, limits: SourceLimits) -> Array:
    """Return, per target, the entries in its column of K plus 1 for itself: its sources.

    K: S'T, compressed by target. If the limits let all items be solved together, every target has
    all items as sources.
    """
    n = len(K.indptr) - 1
    return np.full(n, n) if limits.together >= n else np.diff(K.indptr) + 1


def _offsets(sizes: Array) -> Array:
    """Return the cumulative sums of `sizes` with a 0 before them, as in an indptr array."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _new_columns(sizes: Array) -> TargetColumns:
    """Return empty arrays for the source items and weights of each target item.

    sizes: the most weights of each target; target j may use the entries from ptr[j] on.
    """
    ptr = _offsets(sizes)
    n, room = len(sizes), ptr[-1]
    weights = np.empty(room, np.int32), np.empty(room, np.float32)
    return TargetColumns(ptr, *weights, np.zeros(n, np.int64), np.zeros(n))


def _require_memory(K: CSR, triangle_bytes: int, limits: SourceLimits, neighbors: int) -> None:
    """Raise TalerecError if the local solver's arrays exceed the free memory.

    The arrays are the weights, the lower triangle of G and one small system per thread. K: S'T,
    compressed by target. triangle_bytes: the size of the triangle, 0 if it is in memory already.
    limits: how many sources a target has. neighbors: named in the message.
    """
    n = len(K.indptr) - 1
    together = min(limits.together, n)
    weights = int(np.minimum(_source_counts(K, limits), limits.total).sum())
    memory.require_memory(
        weights * 8 + triangle_bytes + 16 * together * together * thread_count(),
        f"the local solver for {n:,} items with {neighbors:,} neighbors",
        "use fewer neighbors, or a k-core to drop rare items",
    )


# -- ranges of targets, on a cluster ---------------------------------------------------------------


class RangeProblem(NamedTuple):
    """What the local solver needs for a range of targets, besides the lower triangle of G.

    The system is (G + diag(penalty)) B = K, with G = S'S and K = S'T (source x target items). Items
    are numbered as in the triangle.
    """

    lengths: Array  # of the triangle's rows, if items were ranked by entries as `solve_local` does
    K: CSR  # by target; sources in the order in which equal gains are preferred
    diagonal: Array  # of G plus the penalty
    neighbors: int  # about how many sources a target gets
    entries: int  # the number of entries of K for all targets

    def equations(self, lower: CSR) -> NormalEquations:
        """Return the normal equations (G + diag(penalty)) B = K; an item's rank is its number.

        lower: G below the diagonal, maybe without rows that the targets do not need. The fields of
        `self` are K, the diagonal of G plus the penalty, and the lengths of the triangle's rows.
        """
        same = np.arange(len(self.diagonal), dtype=np.int32)
        return NormalEquations(lower, self.lengths, self.K, self.diagonal, same, same)

    def limits(self) -> SourceLimits:
        """Return how many source items a target has: solved together exactly, and in all.

        They follow from `neighbors` (about how many sources a target gets), the number of items,
        and the number of entries of K.
        """
        n = len(self.diagonal)
        return source_limits(n, self.neighbors, self.entries, includes_target=True)


def solve_range(lower: CSR, problem: RangeProblem, a: int, b: int) -> tuple[Array, Array, Array]:
    """Return (source, target, weight) that `solve_local` gives to targets a..b, without zeros.

    The three arrays have one entry per weight, by target. lower: G below the diagonal; problem: K
    and the rest of (G + diag(penalty)) B = K. Target b is excluded.
    """
    limits = problem.limits()
    sources = _source_counts(problem.K, limits)
    sources[:a] = sources[b:] = 0
    out = _new_columns(np.minimum(sources, limits.total))
    solve_targets(problem.equations(lower), limits, a, b, out)
    sizes = out.sizes[a:b]
    target = np.repeat(np.arange(a, b, dtype=np.int32), sizes)
    first = np.cumsum(sizes) - sizes
    at = np.repeat(out.ptr[a:b] - first, sizes) + np.arange(len(target))
    nonzero = out.weight[at] != 0
    return out.item[at][nonzero], target[nonzero], out.weight[at][nonzero]


#: Reads rows first..last of the triangle: their columns and values, one row after the other.
RowReader = Callable[[int, int], tuple[Array, Array]]


def solve_range_in_pieces(
    indptr: Array, read: RowReader, room: int, problem: RangeProblem, a: int, b: int
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield (source, target, weight) arrays of targets a..b, for a G larger than memory.

    They solve (G + diag(penalty)) B = K with few sources per target item. A target reads the rows
    of its sources only, so targets are grouped until these rows have about `room` entries. The rows
    are read once per group, limited to columns that are sources too.

    indptr: where the rows of G below the diagonal begin
    read: read(first, last) returns the columns and values of rows first..last
    problem: K, the diagonal and the number of sources per target
    """
    n, K = len(problem.diagonal), problem.K
    empty = CSR(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0))
    equations, limits = problem.equations(empty), problem.limits()
    marks = np.zeros(n, np.uint8)
    first = a
    while first < b:
        last, sources = _mark_sources(equations, limits, indptr, first, b, room, marks)
        lower = _read_rows(indptr, read, room, np.sort(sources), marks)
        columns = np.clip(K.indptr, K.indptr[first], K.indptr[last])
        group = problem._replace(K=K._replace(indptr=columns))
        yield solve_range(lower, group, first, int(last))
        marks[sources] = 0
        first = int(last)


@kernel
def _mark_sources(
    equations: NormalEquations,
    limits: SourceLimits,
    indptr: Array,
    a: int,
    b: int,
    room: int,
    marks: Array,
) -> tuple[int, Array]:
    """Group targets from a on (before b) while the rows of their sources fit `room` entries.

    equations, limits: (G + diag(penalty)) B = K, and how many sources a target has. Row r of the
    lower triangle of G has indptr[r + 1] - indptr[r] entries; a group has at least one target.
    Returns the end of the group and its sources, as ranks (the solver's item numbers); marks[r], 0
    for every rank r on entry, becomes 1 for every source r.
    """
    n = len(equations.diagonal)
    candidates = new_candidates(n)
    sources, size, entries = np.empty(n, np.int32), 0, 0
    for j in range(a, b):
        set_column(equations, j, candidates.right)
        count, support = choose_sources(equations, limits, j, candidates)
        clear_column(equations, j, candidates.right)
        before = size
        for c in range(count + support):
            r = candidates.sources[c] if c < count else candidates.support[c - count]
            if not marks[r]:
                marks[r] = 1
                sources[size] = r
                size += 1
                entries += indptr[r + 1] - indptr[r]
        if entries > room and j > a:
            for x in range(before, size):
                marks[sources[x]] = 0
            return j, sources[:before].copy()
    return b, sources[:size].copy()


def _read_rows(indptr: Array, read: RowReader, room: int, sources: Array, marks: Array) -> CSR:
    """Return the lower triangle of G with only the rows and columns of `sources` (ascending).

    indptr: where the rows of the whole triangle begin; `read` reads a range of them, of about
    `room` entries at a time. marks: 1 for every source, 0 for other items.
    """
    lengths = np.zeros(len(indptr) - 1, np.int64)
    columns, values = [np.empty(0, np.int32)], [np.empty(0)]
    for a, b in _read_ranges(indptr, sources, room):
        column, value = read(a, b)
        row = np.repeat(np.arange(a, b), np.diff(indptr[a : b + 1]))
        stays = (marks[column] > 0) & (marks[row] > 0)
        lengths[a:b] = np.bincount(row[stays] - a, minlength=b - a)
        columns.append(column[stays])
        values.append(value[stays])
    return CSR(_offsets(lengths), np.concatenate(columns), np.concatenate(values))


def _read_ranges(indptr: Array, sources: Array, room: int) -> list[tuple[int, int]]:
    """Return ranges (first, end) of rows to read at once: nearby sources together.

    indptr: where each row begins. sources: the rows needed, ascending. A range has up to `room`
    entries, unless it is one row.
    """
    ranges: list[tuple[int, int]] = []
    for r in sources.tolist():
        a, b = ranges[-1] if ranges else (r, r)
        if ranges and indptr[r] - indptr[b] <= _NEARBY and indptr[r + 1] - indptr[a] <= room:
            ranges[-1] = (a, r + 1)
        else:
            ranges.append((r, r + 1))
    return ranges
