"""The exact solution B = (G + diag(penalty))^-1 K: Cholesky on the CPU, torch on a GPU."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import numpy as np

from talerec.errors import TalerecError
from talerec.gram import Gram
from talerec.runtime import (
    CSR,
    Array,
    Matrix,
    csr_columns,
    csr_rows,
    fill_dense,
    is_sparse,
    memory,
    run_chunks,
    sized_chunks,
    stage,
)
from talerec.solvers.tiles import BLAS_OPERATIONS, factor_tiles, solve_tiles

logger = logging.getLogger("talerec")

_FILL = 256  # rows that a thread clears at a time
_TILE = 8192  # one threaded factorisation of a large matrix crashes in current OpenBLAS
_MAX_RESIDUAL = 1e-4  # relative: beyond it float32 has lost the solution
_PROBES = 32  # columns on which the residual is measured


def solve_exact(gram: Gram, penalty: Array) -> Array:
    """Return B = (G + diag(penalty))^-1 K as float32 weights, source x target, by Cholesky.

    G = S'S and K = S'T of `gram`, items x items, are the normal equations of S B = T: sources
    predict targets. penalty: one per item. Takes two n x n float32 arrays; if float32 is not
    accurate enough, the system is solved in float64. TalerecError if neither works, or if memory is
    short.
    """
    for dtype in (np.float32, np.float64):
        _require_memory(gram.items, dtype)
        B = _solve_in(dtype, gram, penalty)
        if B is not None:
            return B.astype(np.float32, copy=False)
        if dtype is np.float32:
            logger.warning("float32 is not accurate enough for this penalty: solving in float64")
    raise TalerecError("the system cannot be solved: raise reg (or give the log more rows)")


def _require_memory(n: int, dtype: type) -> None:
    """Raise TalerecError if two n x n arrays of `dtype` exceed the free memory; n: items."""
    size = np.dtype(dtype).itemsize
    memory.require_memory(
        2 * n * n * size,
        f"the exact solver for {n:,} items (two {n:,} x {n:,} float{8 * size} arrays)",
        "use solver=local, or a k-core to drop rare items",
    )


def _solve_in(dtype: type, gram: Gram, penalty: Array) -> Array | None:
    """Return B = (G + diag(penalty))^-1 K in `dtype`; None if that fails or is inaccurate.

    gram: G = S'S and K = S'T, items x items, of the normal equations of S B = T. penalty: one per
    item. B is source x target. Progress is reported as the stage "solve".
    """
    A = to_dense(gram.G, dtype)
    A.flat[:: len(A) + 1] += penalty.astype(dtype)
    B = to_dense(gram.K, dtype)
    tick = stage("solve", 1.0)
    if not factor_tiles(BLAS_OPERATIONS, A, _TILE):
        return None
    tick(1 / 7)  # n^3/3 for the factor, n^3 for each of two triangles
    solve_tiles(BLAS_OPERATIONS, A, B, _TILE, lambda share: tick(6 / 7 * share))
    return B if relative_residual(gram, penalty, B) < _MAX_RESIDUAL else None


def relative_residual(gram: Gram, penalty: Array, B: Array) -> float:
    """Return |(G + diag(penalty)) B - K| / |K|, Frobenius norms over up to 32 columns.

    gram: G and K, items x items, dense or sparse; penalty: one per item; B: the weights (source x
    target) to check.
    """
    columns = np.unique(np.linspace(0, gram.items - 1, min(_PROBES, gram.items)).astype(int))
    K = gram.K[:, columns]
    K = K.toarray() if is_sparse(K) else K
    X = B[:, columns].astype(np.float64)
    error = float(np.linalg.norm(gram.G @ X + penalty[:, None] * X - K))
    size = float(np.linalg.norm(K))
    return error / size if size else error


def to_dense(matrix: Matrix, dtype: type) -> Array:
    """Return a C-ordered dense copy of a dense, CSR or CSC matrix in `dtype`.

    The copy is the only one made. All threads clear it, since the first write to fresh memory is
    what takes time.
    """
    if not is_sparse(matrix):
        return np.array(matrix, dtype, order="C")
    out: Array = np.empty(matrix.shape, dtype)
    run_chunks("fill", lambda a, b: out[a:b].fill(0), sized_chunks(len(out), _FILL))
    view = out if matrix.format == "csr" else out.T
    fill_dense(CSR(matrix.indptr, matrix.indices, matrix.data), view)
    return out


def require_torch() -> None:
    """Raise TalerecError, with the command that installs it, if torch is not installed."""
    if find_spec("torch") is None:
        raise TalerecError("solver=torch needs the extra `torch`: pip install 'talerec[torch]'")


def solve_with_torch(gram: Gram, penalty: Array) -> Array | None:
    """Return B = (G + diag(penalty))^-1 K (float32, source x target), solved by torch.

    gram: G and K, items x items; penalty: one per item. Tries float32, then float64; None, with a
    logged reason, if neither works. TalerecError if torch is not installed.
    """
    require_torch()
    from talerec.solvers import gpu

    G = csr_rows(gram.G) if gram.is_sparse else gram.G
    K = csr_columns(gram.K) if gram.is_sparse else gram.K
    reason = ""
    for precision in ("float32", "float64"):
        try:
            B: Array = gpu.solve(G, K, penalty, precision=precision)
        except TalerecError as error:
            reason = str(error)
            continue
        if relative_residual(gram, penalty, B) < _MAX_RESIDUAL:
            return B
        reason = f"{precision} is not accurate enough"
        logger.warning("torch: %s", reason)
    logger.warning("torch cannot solve this (%s): using exact", reason)
    return None
