"""The exact solver with torch, on a GPU or on the CPU. Imports NumPy and torch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from talerec.errors import TalerecError
from talerec.runtime import sized_chunks
from talerec.solvers.tiles import TileOperations, factor_tiles, solve_tiles

_TILE = 1024  # small enough that triangles need little time and room, large enough for full speed
_REFINED = 4096  # columns refined at a time
_TYPES = {"float32": torch.float32, "float64": torch.float64, "refined": torch.float32}


def solve(
    G: Any, K: Any, penalty: Any, *, precision: str = "float32", device: str | None = None
) -> Any:
    """Return B = (G + diag(penalty))^-1 K as a float32 NumPy array.

    G by row and K by column are dense arrays, or (indptr, indices, values) of compressed ones.
    device: a torch device (None: "cuda" if there is one, else "cpu").
    precision: float32, float64, or refined (float32, then one step of iterative refinement with
    float64 residuals). Raises TalerecError if the device has too little memory, or if the
    factorisation fails.

    penalty: one per item. G, K and B are items x items.
    """
    if precision not in _TYPES:
        raise TalerecError(f"precision is {precision!r}; it takes one of {', '.join(_TYPES)}")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _require_memory(len(penalty), _TYPES[precision], target)
    try:
        return _solve(G, K, penalty, precision, target)
    except torch.OutOfMemoryError as error:
        raise TalerecError(str(error).splitlines()[0]) from None


def _solve(G: Any, K: Any, penalty: Any, precision: str, device: torch.device) -> Any:
    """Return B = (G + diag(penalty))^-1 K as a float32 NumPy array, computed on `device`.

    G by row and K by column are dense arrays, or (indptr, indices, values) of compressed ones.
    precision: float32, float64, or refined (float32 with one step of iterative refinement).
    """
    dtype, n = _TYPES[precision], len(penalty)
    ridge = torch.as_tensor(np.ascontiguousarray(penalty), dtype=dtype, device=device)
    with torch.no_grad():
        A = _to_dense(G, n, dtype, device)
        A.diagonal().add_(ridge)
        B = _to_dense(K, n, dtype, device, columns=True)
        if not solve_in_place(A, B):
            raise TalerecError(f"the factorisation fails in {precision}")
        if precision == "refined":
            _refine(G, K, penalty, A, B)
        return B.to(torch.float32).cpu().numpy()


def solve_in_place(A: torch.Tensor, B: torch.Tensor) -> bool:
    """Replace B by A^-1 B, and A's upper triangle by its Cholesky factor U (A = U'U).

    Returns False, with B unchanged, if A is not positive definite. Both are dense; B has the rows
    of A.
    """
    if not factor_tiles(TORCH_OPERATIONS, A, _TILE):
        return False
    solve_tiles(TORCH_OPERATIONS, A, B, _TILE, lambda share: None)
    return True


def _require_memory(n: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise TalerecError if two n x n arrays and a row of tiles exceed a GPU's free memory.

    n: the number of items. Nothing is checked on another device than a GPU (cuda).
    """
    needed = (2 * n * n + 2 * n * _TILE) * (torch.finfo(dtype).bits // 8)
    if device.type != "cuda":
        return
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free -= torch.cuda.memory_allocated(device)
    if needed > free:
        raise TalerecError(
            f"{n:,} items need {needed / 1e9:.1f} GB on the GPU, but {free / 1e9:.1f} GB is free"
        )


def _to_dense(
    matrix: Any, n: int, dtype: torch.dtype, device: torch.device, columns: bool = False
) -> torch.Tensor:
    """Return a dense n x n tensor of a dense array or of compressed (indptr, indices, values).

    columns: the compressed matrix is by column, not by row. It is moved to the device compressed.
    """
    if not isinstance(matrix, tuple):
        return torch.tensor(matrix, dtype=dtype, device=device).contiguous()
    out = torch.zeros((n, n), dtype=dtype, device=device)
    indptr, indices, values = (torch.as_tensor(np.asarray(part)) for part in matrix)
    major = torch.repeat_interleave(torch.arange(n), indptr.diff())
    first, second = (indices, major) if columns else (major, indices)
    where = (first.to(device, torch.int64), second.to(device, torch.int64))
    return out.index_put_(where, values.to(device, dtype))


def _refine(G: Any, K: Any, penalty: Any, A: torch.Tensor, B: torch.Tensor) -> None:
    """Improve B in place by one step of iterative refinement, with residuals in float64.

    B += (U'U)^-1 (K - (G + diag(penalty)) B); A's upper triangle holds the Cholesky factor U. G by
    row and K by column are dense arrays, or (indptr, indices, values) of compressed ones.
    """
    n, double, device = len(A), torch.float64, A.device
    exact = _to_dense(G, n, double, device)
    exact.diagonal().add_(torch.as_tensor(np.ascontiguousarray(penalty), device=device))
    goal = _to_dense(K, n, torch.float32, device, columns=True)
    for a, b in sized_chunks(n, _REFINED):
        residual = goal[:, a:b].to(double) - exact @ B[:, a:b].to(double)
        step = residual.to(B.dtype)
        solve_tiles(TORCH_OPERATIONS, A, step, _TILE, lambda share: None)
        B[:, a:b] += step


# -- operations on tiles ---------------------------------------------------------------------------


def _cholesky(A: torch.Tensor) -> bool:
    """Replace A by its upper Cholesky factor U (A = U'U); return whether A has one."""
    U, info = torch.linalg.cholesky_ex(A, upper=True)
    A.copy_(U)
    return int(info) == 0


TORCH_OPERATIONS = TileOperations(
    _cholesky,
    lambda U, X: X.copy_(torch.linalg.solve_triangular(U.triu().mT, X, upper=False)),
    lambda U, X: X.copy_(torch.linalg.solve_triangular(U.triu(), X, upper=True)),
    lambda C, A, B: C.addmm_(A, B, alpha=-1),
    lambda C, A, B: C.addmm_(A.mT, B, alpha=-1),
)
