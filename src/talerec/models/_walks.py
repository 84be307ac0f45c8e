"""Random walks with restart over two kinds of weights, as weights themselves."""

from __future__ import annotations

import numpy as np

from talerec.runtime import memory
from talerec.runtime.arrays import Array, Arrays, Matrix, dense, is_sparse, shrink_indptr
from talerec.runtime.jit import kernel, template
from talerec.runtime.lazy import sparse
from talerec.runtime.progress import stage
from talerec.runtime.threads import even, run_chunks
from talerec.solvers.local_kernels import keep_largest

_ROWS = 256  # a chunk of walks


def stochastic(B: Matrix) -> Matrix:
    """B without its negative weights, every row with a sum of 1 (or 0, where nothing is left)."""
    if not is_sparse(B):
        positive = np.maximum(B, 0)
        scale = _one_over(positive.sum(axis=1, dtype=np.float64))
        return np.multiply(positive, scale[:, None], out=positive, casting="same_kind")
    positive = B.maximum(0)
    scale = _one_over(np.asarray(positive.sum(axis=1, dtype=np.float64)).ravel())
    scaled = positive.data * np.repeat(scale, np.diff(positive.indptr))
    positive.data = scaled.astype(B.dtype)
    positive.eliminate_zeros()
    return positive


def _one_over(sums: Array) -> Array:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)


def walk(R: Matrix, T: Matrix, alpha: float, steps: int, width: int) -> Matrix:
    """M after `steps` times M <- alpha M R + (1 - alpha) T, from M = I.

    R is where a walk goes on, T where it starts again. With sparse R and T, each row of M keeps its
    `width` largest entries after every step.
    """
    n = R.shape[0]
    if not (is_sparse(R) and is_sparse(T)):
        return _walk_dense(dense(R), dense(T), alpha, steps)
    width = min(width, n)
    items, values = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
    counts = np.empty(n, np.int64)
    on, again = ((G.indptr, G.indices, G.data) for G in (R, T))
    run_chunks(
        "walk",
        lambda a, b: walk_rows(on, again, alpha, steps, a, b, items, values, counts),
        even(n, _ROWS),
    )
    there = np.arange(width) < counts[:, None]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_array((values[there], items[there], shrink_indptr(indptr)), shape=(n, n))


def _walk_dense(R: Array, T: Array, alpha: float, steps: int) -> Array:
    n = len(R)
    memory.require(3 * 4 * n * n, f"a walk over {n:,} items", "use solver=local")
    M = (alpha * R + (1 - alpha) * T).astype(np.float32)
    spare = np.empty_like(M)
    tick = stage("walk", float(steps))
    tick(1.0)
    for _ in range(steps - 1):
        np.matmul(M, R, out=spare)
        spare *= np.float32(alpha)
        spare += np.float32(1 - alpha) * T
        M, spare = spare, M
        tick(1.0)
    return M


@template
def _go(graph: Arrays, source: int, weight: float, share: Array, reached: Array, found: int) -> int:
    """Add `weight` times row `source` of a graph; how many items have been reached."""
    indptr, indices, data = graph
    for e in range(indptr[source], indptr[source + 1]):
        given = weight * data[e]
        if share[indices[e]] == 0.0 and given > 0.0:
            reached[found] = indices[e]
            found += 1
        share[indices[e]] += given
    return found


@kernel
def walk_rows(
    R: Arrays,
    T: Arrays,
    alpha: float,
    steps: int,
    a: int,
    b: int,
    items: Array,
    values: Array,
    counts: Array,
) -> None:
    """Rows a..b of the walk, by item; counts says how many entries each has."""
    n = len(R[0]) - 1
    width = items.shape[1]
    share, held, gain = np.zeros(n), np.empty(n), np.empty(n)
    here, reached = np.empty(n, np.int32), np.empty(n, np.int32)
    for i in range(a, b):
        here[0], held[0], size = i, 1.0, 1
        for _ in range(steps):
            found = _go(T, i, 1 - alpha, share, reached, 0)
            for x in range(size):
                found = _go(R, here[x], alpha * held[x], share, reached, found)
            for x in range(found):
                here[x], gain[x] = reached[x], share[reached[x]]
            size = keep_largest(gain, here, found, width)
            for x in range(size):
                held[x] = share[here[x]]
            for x in range(found):
                share[reached[x]] = 0.0
        order = np.argsort(here[:size])
        for x in range(size):
            items[i, x], values[i, x] = here[order[x]], held[order[x]]
        counts[i] = size
