"""The exact solution in tiles, in place: one algorithm for NumPy (through BLAS) and for torch (on a GPU).

The two differ in five operations on tiles, which each of them brings along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from talerec.runtime.threads import even

_STRIPS = 8  # a tile on the diagonal is updated in as many; 1/8 of its lower half is done in vain


@dataclass(frozen=True)
class Operations:
    """What is done to tiles, always in place; U is upper triangular."""

    #: A = U'U, U in the upper triangle; False where A is not positive definite
    cholesky: Callable[[Any], bool]
    solve_left_transposed: Callable[[Any, Any], None]  # X <- (U')^-1 X
    solve_left: Callable[[Any, Any], None]  # X <- U^-1 X
    subtract_product: Callable[[Any, Any, Any], None]  # C <- C - A B
    subtract_product_transposed: Callable[[Any, Any, Any], None]  # C <- C - A' B


def factor(do: Operations, A: Any, tile: int) -> bool:
    """Factor A = U'U in the upper triangle of A, one row of tiles at a time; False where that fails."""
    n = len(A)
    for a, b in even(n, tile):
        if a:
            # of the tile on the diagonal, the upper half
            for c, d in even(b - a, -(-tile // _STRIPS)):
                strip = slice(a + c, a + d)
                do.subtract_product_transposed(A[strip, a + c : b], A[:a, strip], A[:a, a + c : b])
            if b < n:
                do.subtract_product_transposed(A[a:b, b:], A[:a, a:b], A[:a, b:])
        if not do.cholesky(A[a:b, a:b]):
            return False
        if b < n:
            do.solve_left_transposed(A[a:b, a:b], A[a:b, b:])
    return True


def substitute(do: Operations, A: Any, B: Any, tile: int, tick: Callable[[float], None]) -> None:
    """B <- (U'U)^-1 B with the factor that `factor` left in A; `tick` gets shares of the work that add up to 1."""
    n = len(A)
    for a, b in even(n, tile):  # U' Y = B, from the top
        if a:
            do.subtract_product_transposed(B[a:b], A[:a, a:b], B[:a])
        do.solve_left_transposed(A[a:b, a:b], B[a:b])
        tick((b - a) / n / 2)
    for a, b in reversed(even(n, tile)):  # U X = Y, from the bottom
        if b < n:
            do.subtract_product(B[a:b], A[a:b, b:], B[b:])
        do.solve_left(A[a:b, a:b], B[a:b])
        tick((b - a) / n / 2)
