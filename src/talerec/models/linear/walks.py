"""Random walks with restart over two kinds of weights, as weights themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import memory
from talerec.runtime.arrays import Array, Matrix, dense, is_sparse, shrink_indptr
from talerec.runtime.jit import kernel, template
from talerec.runtime.lazy import sparse
from talerec.runtime.progress import stage
from talerec.runtime.threads import even, run_chunks
from talerec.solvers.compressed import Compressed, by_row
from talerec.solvers.sources import keep_largest

_ROWS = 256  # walks that a thread takes at a time


class Walk(NamedTuple):
    """M <- alpha M R + (1 - alpha) T, `steps` times; R and T by row."""

    R: Compressed
    T: Compressed
    alpha: float
    steps: int


class WalkRows(NamedTuple):
    """Rows of M: the first sizes[i] places of row i hold its items, ascending, and their values."""

    items: Array
    values: Array
    sizes: Array


class Scratch(NamedTuple):
    """Where one walk is."""

    share: Array  # of each item after a step; zeros between steps
    reached: Array  # items with a share
    gain: Array  # their shares
    here: Array  # items that the walk keeps
    held: Array  # their shares


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
    out = WalkRows(items, values, np.empty(n, np.int64))
    rules = Walk(by_row(R), by_row(T), alpha, steps)
    run_chunks("walk", lambda a, b: walk_rows(rules, a, b, out), even(n, _ROWS))
    there = np.arange(width) < out.sizes[:, None]
    indptr = np.concatenate([[0], np.cumsum(out.sizes)])
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
def _go(graph: Compressed, source: int, weight: float, walker: Scratch, found: int) -> int:
    """Add `weight` times row `source` of a graph; returns how many items have been reached."""
    for x in range(graph.starts[source], graph.starts[source + 1]):
        i, given = graph.indices[x], weight * graph.values[x]
        if walker.share[i] == 0.0 and given > 0.0:
            walker.reached[found] = i
            found += 1
        walker.share[i] += given
    return found


@template
def _keep_widest(walker: Scratch, found: int, width: int) -> int:
    """Of the items reached, keep the `width` with the largest shares; returns how many are kept."""
    share, reached, gain, here, held = walker
    for x in range(found):
        here[x], gain[x] = reached[x], share[reached[x]]
    size = keep_largest(gain, here, found, width)
    for x in range(size):
        held[x] = share[here[x]]
    for x in range(found):
        share[reached[x]] = 0.0
    return size


@template
def _walk_from(i: int, rules: Walk, width: int, walker: Scratch) -> int:
    """All steps of the walk from item i; returns at how many items it is."""
    walker.here[0], walker.held[0], size = i, 1.0, 1
    for _ in range(rules.steps):
        found = _go(rules.T, i, 1 - rules.alpha, walker, 0)
        for x in range(size):
            weight = rules.alpha * walker.held[x]
            found = _go(rules.R, walker.here[x], weight, walker, found)
        size = _keep_widest(walker, found, width)
    return size


@kernel
def walk_rows(rules: Walk, a: int, b: int, out: WalkRows) -> None:
    """Write rows a..b of the walk."""
    n = len(rules.R.starts) - 1
    walker = Scratch(
        np.zeros(n), np.empty(n, np.int32), np.empty(n), np.empty(n, np.int32), np.empty(n)
    )
    for i in range(a, b):
        size = _walk_from(i, rules, out.items.shape[1], walker)
        order = np.argsort(walker.here[:size])
        for x in range(size):
            out.items[i, x], out.values[i, x] = walker.here[order[x]], walker.held[order[x]]
        out.sizes[i] = size
