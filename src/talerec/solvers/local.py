"""The local solver: each target's column of B from a few sources, B as a sparse array."""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.gram.gram import Gram
from talerec.runtime import memory
from talerec.runtime.arrays import Array, Arrays, Matrix, is_sparse, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.runtime.threads import equal_work, run_chunks, thread_count
from talerec.solvers import local_kernels
from talerec.solvers.compressed import Compressed, by_column
from talerec.solvers.local_kernels import Columns
from talerec.solvers.sources import Equations, Limits
from talerec.solvers.triangle import Half, halved

_CHUNKS = 64  # of work, whatever the number of threads
_JOIN = 3  # times `neighbors` sources may join a target
_FEW = 10_000_000  # while there are no more pairs in K; then as many as `neighbors`


def local(gram: Gram, penalty: Array, neighbors: int, *, zero_diagonal: bool = False) -> Any:
    """Solve Eq. 6 with `neighbors` sources per target; the weights are a CSR array.

    Half of the sources are solved together, those with the largest gain; the others join with one step.
    While there are few pairs in all, twice as many more join too.
    With `zero_diagonal` an item is never its own source. With `neighbors` >= items all items are solved
    together, and the weights are the exact ones.
    """
    return local_explained(gram, penalty, neighbors, zero_diagonal=zero_diagonal)[0]


def local_some(gram: Gram, penalty: Array, neighbors: int, wanted: Array) -> Any:
    """What `local` gives to some targets (a flag per item); the others have no weights."""
    return local_explained(gram, penalty, neighbors, zero_diagonal=False, wanted=wanted)[0]


def _columns_of(K: Compressed, wanted: Array) -> Compressed:
    """K without the columns of other targets."""
    kept = np.repeat(wanted, np.diff(K.starts))
    starts = np.concatenate([[0], np.cumsum(kept)])[K.starts]
    return Compressed(starts.astype(K.starts.dtype), K.indices[kept], K.values[kept])


def local_explained(
    gram: Gram,
    penalty: Array,
    neighbors: int,
    *,
    zero_diagonal: bool,
    wanted: Array | None = None,
) -> tuple[Any, Array]:
    """The weights that `local` gives, to all targets or to the wanted ones, and how much of each they explain."""
    n, K = gram.items, by_column(gram.K)
    limits = limits_of(n, neighbors, len(K.indices), own=not zero_diagonal)
    K = K if wanted is None or wanted.all() else _columns_of(K, wanted)
    _require_room(K, _entries(gram.G) * 6, limits, neighbors)
    return _solved(halved(gram.G), K, penalty, limits)


def _entries(G: Matrix) -> int:
    return int(G.nnz if is_sparse(G) else np.count_nonzero(G))


def local_kept(half: Half, K: Matrix, penalty: Array, neighbors: int, entries: int) -> Any:
    """What `local` gives to the targets that K has columns of, from a half that was kept; `entries`: those of the whole K."""
    columns = by_column(K)
    limits = limits_of(half.items, neighbors, entries, own=True)
    _require_room(columns, 0, limits, neighbors)
    return _solved(half, columns, penalty, limits)[0]


def _solved(half: Half, K: Compressed, penalty: Array, limits: Limits) -> tuple[Any, Array]:
    """The weights of K's targets, and how much of each they explain."""
    n, item = half.items, half.item
    sources = _most_sources(K, limits)
    out = _columns(_starts(np.minimum(sources, limits.most)))
    diagonal = (half.diagonal + penalty)[item]
    lengths = np.diff(half.lower.starts)
    equations = Equations(half.lower, lengths, K, diagonal, half.rank, item)
    work = np.minimum(sources, limits.together) ** 2 + sources
    run_chunks(
        "solve",
        lambda a, b: local_kernels.solve_targets(equations, limits, a, b, out),
        equal_work(_starts(work), _CHUNKS),
    )
    indptr, indices, values = local_kernels.by_source(out)
    weights = sparse.csr_array((values, indices, shrink_indptr(indptr)), shape=(n, n))
    return weights, out.explained


def local_columns(
    half: Arrays,
    lengths: Array,
    K: Arrays,
    diagonal: Array,
    neighbors: int,
    entries: int,
    a: int,
    b: int,
) -> tuple[Array, Array, Array]:
    """What `local` gives to the targets a..b alone: (source, target, weight), without zeros.

    Items are numbered as in `half`, which holds G below the diagonal; `lengths`: of its rows, were items
    numbered as `local` does; `diagonal` is that of G plus the penalty. K is by target and holds the columns
    of a..b, sources in the order in which equals are preferred; `entries` counts those of all targets.
    """
    n = len(diagonal)
    limits = limits_of(n, neighbors, entries, own=True)
    columns = Compressed(*K)
    sources = _most_sources(columns, limits)
    sources[:a] = sources[b:] = 0
    out = _columns(_starts(np.minimum(sources, limits.most)))
    same = np.arange(n, dtype=np.int32)
    equations = Equations(Compressed(*half), lengths, columns, diagonal, same, same)
    local_kernels.solve_targets(equations, limits, a, b, out)
    sizes = out.sizes[a:b]
    target = np.repeat(same[a:b], sizes)
    first = np.cumsum(sizes) - sizes
    place = np.repeat(out.ptr[a:b] - first, sizes) + np.arange(len(target))
    kept = out.weight[place] != 0
    return out.item[place][kept], target[kept], out.weight[place][kept]


def limits_of(items: int, neighbors: int, entries: int, *, own: bool) -> Limits:
    """How many sources of a target are solved together, and how many it may have; `entries`: those of K."""
    if neighbors >= items:
        return Limits(items, items, own)
    return Limits((neighbors + 1) // 2, neighbors * (_JOIN if entries <= _FEW else 1), own)


def _most_sources(K: Compressed, limits: Limits) -> Array:
    """How many sources each target has, itself included, before any limit."""
    n = len(K.starts) - 1
    return np.full(n, n) if limits.together >= n else np.diff(K.starts) + 1


def _starts(sizes: Array) -> Array:
    """Where each of several runs of these sizes begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _columns(ptr: Array) -> Columns:
    """Room for the weights of every target."""
    n, room = len(ptr) - 1, ptr[-1]
    sizes, explained = np.zeros(n, np.int64), np.zeros(n)
    return Columns(ptr, np.empty(room, np.int32), np.empty(room, np.float32), sizes, explained)


def _require_room(K: Compressed, half: int, limits: Limits, neighbors: int) -> None:
    """Refuse work whose weights, half of G (so many bytes) and small systems do not fit into memory."""
    n = len(K.starts) - 1
    together = min(limits.together, n)
    weights = int(np.minimum(_most_sources(K, limits), limits.most).sum())
    memory.require(
        weights * 8 + half + 16 * together * together * thread_count(),
        f"the local solver for {n:,} items with {neighbors:,} neighbors",
        "use fewer neighbors, or a k-core to drop rare items",
    )
