"""The exact solution of B = (G + diag(penalty))^-1 K: by Cholesky on the CPU, or with torch on a GPU."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import numpy as np

from talerec.errors import TalerecError
from talerec.gram import sparse_kernels
from talerec.gram.gram import Gram
from talerec.runtime import memory
from talerec.runtime.arrays import Array, Matrix, is_sparse
from talerec.runtime.progress import stage
from talerec.runtime.threads import even, run_chunks
from talerec.solvers import blas
from talerec.solvers.compressed import by_column, by_row
from talerec.solvers.tiles import factor, substitute

logger = logging.getLogger("talerec")

_FILL = 256  # rows that a thread clears at a time
_TILE = 8192  # one threaded factorisation of a large matrix crashes in current OpenBLAS
_RESIDUAL = 1e-4  # of the right-hand side: beyond it float32 has lost the answer
_PROBES = 32  # columns on which the residual is measured


def exact(gram: Gram, penalty: Array) -> Array:
    """Solve Eq. 6 by Cholesky, in place, in two n x n float32 arrays; in float64 where float32 is not enough."""
    for dtype in (np.float32, np.float64):
        _require_room(gram.items, dtype)
        B = _solve_in(dtype, gram, penalty)
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


def _solve_in(dtype: type, gram: Gram, penalty: Array) -> Array | None:
    """B in `dtype`, or None when the factor fails or the normal equations are not met."""
    A = filled(gram.G, dtype)
    A.flat[:: len(A) + 1] += penalty.astype(dtype)
    B = filled(gram.K, dtype)
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


def filled(matrix: Matrix, dtype: type) -> Array:
    """A C-ordered dense copy in `dtype`, made without a second copy on the way.

    All threads clear it: what takes time is that the system hands out the memory.
    """
    if not is_sparse(matrix):
        return np.array(matrix, dtype, order="C")
    out: Array = np.empty(matrix.shape, dtype)
    run_chunks("fill", lambda a, b: out[a:b].fill(0), even(len(out), _FILL))
    target = out if matrix.format == "csr" else out.T
    sparse_kernels.fill_rows(matrix.indptr, matrix.indices, matrix.data, target)
    return out


def require_torch() -> None:
    """An error where torch is asked for, and is not there."""
    if find_spec("torch") is None:
        raise TalerecError("solver=torch needs the extra `torch`: pip install 'talerec[torch]'")


def with_torch(gram: Gram, penalty: Array) -> Array | None:
    """Solve Eq. 6 on the GPU (or with torch's CPU build); None, with the reason in the log, where that fails."""
    require_torch()
    from talerec.solvers import gpu

    G = by_row(gram.G) if gram.is_sparse else gram.G
    K = by_column(gram.K) if gram.is_sparse else gram.K
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
