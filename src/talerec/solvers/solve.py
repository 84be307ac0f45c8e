"""From a Gram to weights: B = (G + diag(penalty))^-1 K."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data import kernels
from talerec.errors import TalerecError
from talerec.gram.gram import Gram
from talerec.runtime import memory
from talerec.runtime.arrays import Array, Arrays, is_sparse, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.runtime.progress import stage
from talerec.runtime.threads import equal_work, even, run_chunks, thread_count
from talerec.solvers import blas, local_kernels
from talerec.solvers.tiles import factor, substitute

logger = logging.getLogger("talerec")


SOLVERS = ("auto", "exact", "local", "torch")

# exact
_FILL = 256  # rows that a thread clears at a time
_TILE = 8192  # one threaded factorisation of a large matrix crashes in current OpenBLAS
_RESIDUAL = 1e-4  # of the right-hand side: beyond it float32 has lost the answer
_PROBES = 32  # columns that the residual is measured on

# local
_CHUNKS = 64
_JOIN = 3  # times `neighbors` sources may join a target
_FEW = 10_000_000  # while there are no more pairs in K; then as many as `neighbors`

# auto
_EXACT_UP_TO = 4_000  # items
_FAINT = 1e-3  # of the mean diagonal of G: below it a penalty hardly holds the weights,
_FAINT_UP_TO = 25_000  # and up to so many items that is worth minutes
_DENSE = 0.25  # a Gram fuller than this has no small neighbourhoods


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights (source x target, float32) and the solver that made them."""

    weights: Any
    solver: str


def solve(
    gram: Gram, penalty: float | Array, *, solver: str = "auto", neighbors: int = 100
) -> Solution:
    """Weights by the solver asked for; `penalty` is what is added to the diagonal of G."""
    if solver not in SOLVERS:
        raise TalerecError(f"solver is {solver!r}; it takes one of {', '.join(SOLVERS)}")
    diagonal = np.broadcast_to(np.float64(penalty), gram.items)
    chosen = choose(gram, diagonal) if solver == "auto" else solver
    if chosen == "local":
        return Solution(local(gram, diagonal, neighbors), "local")
    if chosen == "torch" and (weights := by_torch(gram, diagonal)) is not None:
        return Solution(weights, "torch")
    return Solution(exact(gram, diagonal), "exact")


def solve_bounded(
    gram: Gram, penalty: float | Array, most: float, *, solver: str = "auto", neighbors: int = 100
) -> Solution:
    """B = I - P diag(g), P = (G + diag(penalty))^-1: items predict each other, none itself by more than `most`.

    g_j is the penalty where that leaves 1 - penalty_j P_jj <= most on the diagonal, else (1 - most) / P_jj.
    With `most` 0 this is EASE.
    """
    diagonal = np.broadcast_to(np.float64(penalty), gram.items)
    chosen = choose(gram, diagonal) if solver == "auto" else solver
    if chosen != "local":
        identity = sparse.eye_array(gram.items, format="csc")
        found = solve(Gram(gram.G, identity), diagonal, solver=chosen)
        inverse = found.weights
        at = np.arange(gram.items)
        share = _bounded_share(1 / inverse[at, at].astype(np.float64), diagonal, most)
        own = 1 - share  # the weight of an item for itself
        inverse *= (-share / inverse[at, at]).astype(np.float32)
        inverse[at, at] = own
        return Solution(inverse, found.solver)
    others, explained = _local(gram, diagonal, neighbors, zero_diagonal=True)
    share = _bounded_share(gram.G.diagonal() + diagonal - explained, diagonal, most)
    others.data *= share.astype(np.float32)[others.indices]
    if (share != 1).any():
        others = (others + sparse.diags_array(1 - share, format="csr")).astype(np.float32)
    return Solution(others, "local")


def _bounded_share(unexplained: Array, penalty: Array, most: float) -> Array:
    """g_j P_jj, given 1 / P_jj: what remains of the weights of EASE when an item may predict itself."""
    free = np.minimum(penalty / unexplained, 1)  # rounding aside, it is never more
    return np.where(1 - free <= most, free, 1 - most)


def choose(gram: Gram, penalty: Array) -> str:
    """What `auto` takes, and why, in one line of the log."""
    n = gram.items
    room = memory.available_bytes()
    needed = 2 * n * n * 4
    fits = needed < 0.9 * room
    faint = penalty.mean() < _FAINT * gram.G.diagonal().mean()
    if n <= _EXACT_UP_TO:
        chosen, why = "exact", f"up to {_EXACT_UP_TO:,} items it takes seconds"
    elif faint and n <= _FAINT_UP_TO and 2 * needed < 0.9 * room:
        chosen, why = "exact", "so small a penalty asks for every source"
    elif gram.density < _DENSE:
        chosen, why = "local", f"{gram.density:.1%} of the Gram is filled"
    elif fits:
        chosen, why = "exact", f"{gram.density:.1%} of the Gram is filled, and it fits"
    else:
        chosen, why = "local", f"exact needs {memory.human(needed)} of {memory.human(room)}"
    logger.info("solver auto: %s for %s items (%s)", chosen, f"{n:,}", why)
    return chosen


# -- exact -----------------------------------------------------------------------------------------


def exact(gram: Gram, penalty: Array) -> Array:
    """Eq. 6 by Cholesky, in place: two n x n float32 arrays, no more; float64 where float32 is not enough."""
    for dtype in (np.float32, np.float64):
        _require_room(gram.items, dtype)
        B = _exact_in(gram, penalty, dtype)
        if B is not None:
            return B.astype(np.float32, copy=False)
        if dtype is np.float32:
            logger.warning("float32 is not accurate enough for this penalty: solving in float64")
    raise TalerecError("the system cannot be solved: raise reg (or give the log more rows)")


def _require_room(n: int, dtype: type) -> None:
    size = np.dtype(dtype).itemsize
    memory.require(
        2 * n * n * size,
        f"the exact solver for {n:,} items (two {n:,} x {n:,} float{8 * size} arrays)",
        "use solver=local, or a k-core to drop rare items",
    )


def _exact_in(gram: Gram, penalty: Array, dtype: type) -> Array | None:
    """B in `dtype`, or None when the factor fails or the normal equations are not met."""
    A = _filled(gram.G, dtype)
    A.flat[:: len(A) + 1] += penalty.astype(dtype)
    B = _filled(gram.K, dtype)
    tick = stage("solve", 1.0)
    if not factor(blas.OPERATIONS, A, _TILE):
        return None
    tick(1 / 7)  # n^3/3 for the factor, n^3 for each of two triangles
    substitute(blas.OPERATIONS, A, B, _TILE, lambda share: tick(6 / 7 * share))
    return B if residual(gram, penalty, B) < _RESIDUAL else None


def residual(gram: Gram, penalty: Array, B: Array) -> float:
    """|(G + diag(penalty)) B - K| / |K| over a few columns spread over the items."""
    columns = np.unique(np.linspace(0, gram.items - 1, min(_PROBES, gram.items)).astype(int))
    K = gram.K[:, columns]
    K = K.toarray() if is_sparse(K) else K
    X = B[:, columns].astype(np.float64)
    error = gram.G @ X + penalty[:, None] * X - K
    size = float(np.linalg.norm(K))
    missed = float(np.linalg.norm(error))
    return missed / size if size else missed


# -- torch -----------------------------------------------------------------------------------------


def by_torch(gram: Gram, penalty: Array) -> Array | None:
    """Eq. 6 on the GPU (or torch's CPU build); None, with the reason in the log, where that cannot be done."""
    try:
        from talerec.solvers import gpu
    except ImportError:
        logger.warning("torch is not installed (pip install 'talerec[torch]'): using exact")
        return None
    G = _compressed(gram.G, "csr") if gram.is_sparse else gram.G
    K = _compressed(gram.K, "csc") if gram.is_sparse else gram.K
    why = ""
    for precision in ("float32", "float64"):
        try:
            B: Array = gpu.solve(G, K, penalty, precision=precision)
        except TalerecError as error:
            why = str(error)
            continue
        if residual(gram, penalty, B) < _RESIDUAL:
            return B
        why = f"{precision} is not accurate enough"
        logger.warning("torch: %s", why)
    logger.warning("torch cannot solve this (%s): using exact", why)
    return None


# -- local -----------------------------------------------------------------------------------------


def local(gram: Gram, penalty: Array, neighbors: int, *, zero_diagonal: bool = False) -> Any:
    """Eq. 6 with `neighbors` sources per target; CSR weights.

    Half of them are solved together, those with the largest gain; the others join with one step. While
    there are few pairs in all, so do twice as many more.
    With `zero_diagonal` an item is never its own source. With `neighbors` >= items all items are solved
    together, and the weights are the exact ones.
    """
    return _local(gram, penalty, neighbors, zero_diagonal=zero_diagonal)[0]


def _local(gram: Gram, penalty: Array, neighbors: int, *, zero_diagonal: bool) -> tuple[Any, Array]:
    """The weights, and how much of each target they explain."""
    n = gram.items
    G = _compressed(gram.G, "csr")
    entries = np.empty(n, np.int64)
    chunks = equal_work(G[0], _CHUNKS)
    run_chunks("solve", lambda a, b: local_kernels.count_rows(G, a, b, entries), chunks)
    item = np.argsort(-entries, kind="stable").astype(np.int32)
    rank = np.empty(n, np.int32)
    rank[item] = np.arange(n, dtype=np.int32)
    K = _compressed(gram.K, "csc")
    count = np.diff(K[0]) + 1
    together, most = _room(n, neighbors, len(K[1]))
    if together >= n:
        count = np.full(n, n)
    ptr = np.concatenate([[0], np.cumsum(np.minimum(count, most))])
    widest = min(together, n)
    memory.require(
        int(ptr[-1]) * 8 + len(G[1]) * 6 + 16 * widest * widest * thread_count(),
        f"the local solver for {n:,} items with {neighbors:,} neighbors",
        "use fewer neighbors, or a k-core to drop rare items",
    )
    out = (ptr, np.empty(ptr[-1], np.int32), np.empty(ptr[-1], np.float32), np.zeros(n, np.int64))
    explained = np.zeros(n)
    diagonal = (gram.G.diagonal() + penalty)[item]
    sources = max(most - (not zero_diagonal), 1)  # besides the target itself
    half = _half(G, rank)
    lengths = np.diff(half[0])
    rules = (half, lengths, K, (rank, item), diagonal, together, sources, not zero_diagonal)
    run_chunks(
        "solve",
        lambda a, b: local_kernels.solve_targets(*rules, a, b, *out, explained),
        equal_work(
            np.cumsum(np.concatenate([[0], np.minimum(count, together) ** 2 + count])), _CHUNKS
        ),
    )
    indptr, indices, values = local_kernels.by_source(*out)
    return sparse.csr_array((values, indices, shrink_indptr(indptr)), shape=(n, n)), explained


def _room(items: int, neighbors: int, entries: int) -> tuple[int, int]:
    """How many sources of a target are solved together, and how many it may have; `entries`: those of K."""
    if neighbors >= items:
        return items, items
    return (neighbors + 1) // 2, neighbors * (_JOIN if entries <= _FEW else 1)


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
    numbered as `local` does; `diagonal` is that of G plus the penalty. K is by target and holds those of a..b, sources in the order in which equals are preferred;
    `entries` counts those of all targets.
    """
    n = len(diagonal)
    together, most = _room(n, neighbors, entries)
    count = np.full(n, n) if together >= n else np.diff(K[0]) + 1
    count[:a] = count[b:] = 0
    ptr = np.concatenate([[0], np.cumsum(np.minimum(count, most))])
    found = np.zeros(n, np.int64)
    out = (ptr, np.empty(ptr[-1], np.int32), np.empty(ptr[-1], np.float32), found)
    same = np.arange(n, dtype=np.int32)
    rules = (half, lengths, K, (same, same), diagonal, together, max(most - 1, 1), True)
    local_kernels.solve_targets(*rules, a, b, *out, np.zeros(n))
    target = np.repeat(same[a:b], found[a:b])
    first = np.cumsum(found[a:b]) - found[a:b]
    place = np.repeat(ptr[a:b] - first, found[a:b]) + np.arange(len(target))
    kept = out[2][place] != 0
    return out[1][place][kept], target[kept], out[2][place][kept]


def _half(G: Arrays, rank: Array) -> Arrays:
    """The entries of G below the diagonal, rows and columns by rank."""
    n = len(rank)
    count = np.empty(n, np.int64)
    chunks = equal_work(G[0], _CHUNKS)
    run_chunks("solve", lambda a, b: local_kernels.count_half(G, rank, a, b, count), chunks)
    starts = np.concatenate([[0], np.cumsum(count)])
    half = (starts, np.empty(starts[-1], np.int32), np.empty(starts[-1], G[2].dtype))
    run_chunks("solve", lambda a, b: local_kernels.fill_half(G, rank, a, b, half), chunks)
    return half


def _compressed(matrix: Any, form: str) -> tuple[Array, Array, Array]:
    """(indptr, indices, values) by row (csr) or by column (csc)."""
    if not is_sparse(matrix):
        matrix = sparse.csr_array(matrix) if form == "csr" else sparse.csc_array(matrix)
    return matrix.indptr, matrix.indices, matrix.data


def _filled(matrix: Any, dtype: type) -> Array:
    """A C-ordered dense copy in `dtype`, without a second one on the way.

    All threads clear it: what takes time is that the system hands out the memory.
    """
    if not is_sparse(matrix):
        return np.array(matrix, dtype, order="C")
    out: Array = np.empty(matrix.shape, dtype)
    run_chunks("fill", lambda a, b: out[a:b].fill(0), even(len(out), _FILL))
    target = out if matrix.format == "csr" else out.T
    kernels.fill_rows(matrix.indptr, matrix.indices, matrix.data, target)
    return out
