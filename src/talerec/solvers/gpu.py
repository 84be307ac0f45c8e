"""The exact solver on a GPU, or with the CPU build of torch. Imports NumPy and torch alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from talerec.errors import TalerecError
from talerec.runtime.threads import even
from talerec.solvers.tiles import Operations, factor, substitute

_TILE = 1024  # small enough that triangles cost little and need little room, large enough for full speed
_REFINED = 4096  # columns refined at a time
_TYPES = {"float32": torch.float32, "float64": torch.float64, "refined": torch.float32}


def solve(
    G: Any, K: Any, penalty: Any, *, precision: str = "float32", device: str | None = None
) -> Any:
    """B = (G + diag(penalty))^-1 K as a float32 NumPy array.

    G by row and K by column are dense arrays, or (starts, indices, values) of compressed ones.
    precision: float32, float64, or refined (float32, and a step of refinement with float64 residuals).
    A TalerecError says that the device has too little memory, or that the factorisation fails.
    """
    if precision not in _TYPES:
        raise TalerecError(f"precision is {precision!r}; it takes one of {', '.join(_TYPES)}")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _require_room(len(penalty), _TYPES[precision], place)
    try:
        return _solve(G, K, penalty, precision, place)
    except torch.OutOfMemoryError as error:
        raise TalerecError(str(error).splitlines()[0]) from None


def _solve(G: Any, K: Any, penalty: Any, precision: str, place: torch.device) -> Any:
    dtype, n = _TYPES[precision], len(penalty)
    ridge = torch.as_tensor(np.ascontiguousarray(penalty), dtype=dtype, device=place)
    with torch.no_grad():
        A = _dense(G, n, dtype, place)
        A.diagonal().add_(ridge)
        B = _dense(K, n, dtype, place, columns=True)
        if not solve_in_place(A, B):
            raise TalerecError(f"the factorisation fails in {precision}")
        if precision == "refined":
            _refine(G, K, penalty, A, B)
        return B.to(torch.float32).cpu().numpy()


def solve_in_place(A: torch.Tensor, B: torch.Tensor) -> bool:
    """B <- A^-1 B, and A's upper triangle becomes its factor; False where A is not positive definite."""
    if not factor(OPERATIONS, A, _TILE):
        return False
    substitute(OPERATIONS, A, B, _TILE, lambda share: None)
    return True


def _require_room(n: int, dtype: torch.dtype, place: torch.device) -> None:
    """Refuse the work, before it begins, where two n x n arrays and a row of tiles do not fit the device."""
    needed = (2 * n * n + 2 * n * _TILE) * (torch.finfo(dtype).bits // 8)
    if place.type != "cuda":
        return
    free = torch.cuda.mem_get_info(place)[0] + torch.cuda.memory_reserved(place)
    free -= torch.cuda.memory_allocated(place)
    if needed > free:
        raise TalerecError(
            f"{n:,} items need {needed / 1e9:.1f} GB on the GPU, but {free / 1e9:.1f} GB is free"
        )


def _dense(
    matrix: Any, n: int, dtype: torch.dtype, place: torch.device, columns: bool = False
) -> torch.Tensor:
    """The matrix as a dense one on the device; a compressed one is moved there compressed."""
    if not isinstance(matrix, tuple):
        return torch.tensor(matrix, dtype=dtype, device=place).contiguous()
    out = torch.zeros((n, n), dtype=dtype, device=place)
    indptr, indices, values = (torch.as_tensor(np.asarray(part)) for part in matrix)
    major = torch.repeat_interleave(torch.arange(n), indptr.diff())
    first, second = (indices, major) if columns else (major, indices)
    where = (first.to(place, torch.int64), second.to(place, torch.int64))
    return out.index_put_(where, values.to(place, dtype))


def _refine(G: Any, K: Any, penalty: Any, A: torch.Tensor, B: torch.Tensor) -> None:
    """One step: B += (U'U)^-1 (K - (G + diag(penalty)) B), the residual in float64, a few columns at a time."""
    n, double, place = len(A), torch.float64, A.device
    exact = _dense(G, n, double, place)
    exact.diagonal().add_(torch.as_tensor(np.ascontiguousarray(penalty), device=place))
    goal = _dense(K, n, torch.float32, place, columns=True)
    for a, b in even(n, _REFINED):
        residual = goal[:, a:b].to(double) - exact @ B[:, a:b].to(double)
        step = residual.to(B.dtype)
        substitute(OPERATIONS, A, step, _TILE, lambda share: None)
        B[:, a:b] += step


# -- operations on tiles ---------------------------------------------------------------------------


def _cholesky(A: torch.Tensor) -> bool:
    U, info = torch.linalg.cholesky_ex(A, upper=True)
    A.copy_(U)
    return int(info) == 0


def _solve_left_transposed(U: torch.Tensor, X: torch.Tensor) -> None:
    X.copy_(torch.linalg.solve_triangular(U.triu().mT, X, upper=False))


def _solve_left(U: torch.Tensor, X: torch.Tensor) -> None:
    X.copy_(torch.linalg.solve_triangular(U.triu(), X, upper=True))


def _subtract_product(C: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> None:
    C.addmm_(A, B, alpha=-1)


def _subtract_product_transposed(C: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> None:
    C.addmm_(A.mT, B, alpha=-1)


OPERATIONS = Operations(
    _cholesky, _solve_left_transposed, _solve_left, _subtract_product, _subtract_product_transposed
)
