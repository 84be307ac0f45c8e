"""Cholesky factorisation and solution of A X = B in tiles, in place.

One algorithm serves NumPy (through BLAS) and torch (on a GPU, see `gpu`): the two differ in five
operations on tiles (`TileOperations`).

SciPy's wrappers copy any argument that is not a whole contiguous array. The functions here call
the same library through the addresses that SciPy publishes, with leading dimensions, so that a
tile of a large matrix is changed in place. Arguments are float32 or float64 views whose last axis
is contiguous. BLAS reads a C-ordered array as its transpose, and each call allows for that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from talerec.runtime import Array, cython_blas, cython_lapack, sized_chunks

_STRIPS = 8  # a tile on the diagonal is updated in as many; 1/8 of its lower half is wasted work
_LETTER = {"float32": "s", "float64": "d"}
_REAL = {"float32": ctypes.c_float, "float64": ctypes.c_double}


@dataclass(frozen=True)
class TileOperations:
    """The operations on tiles (submatrices) of NumPy arrays or torch tensors, all in place.

    U is upper triangular, X, A, B and C are rectangular.
    """

    #: A = U'U, U in the upper triangle; False if A is not positive definite
    cholesky: Callable[[Any], bool]
    solve_left_transposed: Callable[[Any, Any], None]  # X <- (U')^-1 X
    solve_left: Callable[[Any, Any], None]  # X <- U^-1 X
    subtract_product: Callable[[Any, Any, Any], None]  # C <- C - A B
    subtract_product_transposed: Callable[[Any, Any, Any], None]  # C <- C - A' B


def factor_tiles(operations: TileOperations, A: Any, tile: int) -> bool:
    """Replace the upper triangle of A by its Cholesky factor U (A = U'U), by rows of tiles.

    A: a square NumPy array or torch tensor; operations: the functions on its tiles (submatrices).
    tile: rows of a tile. Returns False if A is not positive definite.
    """
    n = len(A)
    for a, b in sized_chunks(n, tile):
        if a:
            # of the tile on the diagonal, the upper triangle
            for c, d in sized_chunks(b - a, -(-tile // _STRIPS)):
                strip = slice(a + c, a + d)
                operations.subtract_product_transposed(
                    A[strip, a + c : b], A[:a, strip], A[:a, a + c : b]
                )
            if b < n:
                operations.subtract_product_transposed(A[a:b, b:], A[:a, a:b], A[:a, b:])
        if not operations.cholesky(A[a:b, a:b]):
            return False
        if b < n:
            operations.solve_left_transposed(A[a:b, a:b], A[a:b, b:])
    return True


def solve_tiles(
    operations: TileOperations, A: Any, B: Any, tile: int, tick: Callable[[float], None]
) -> None:
    """Replace B by (U'U)^-1 B, U being the Cholesky factor that `factor_tiles` left in A.

    A, B: NumPy arrays or torch tensors; operations: the functions on their tiles (submatrices).
    tile: rows of B and of A that are solved at a time.
    tick: called with shares of the work done, which add up to 1.
    """
    n = len(A)
    for a, b in sized_chunks(n, tile):  # U' Y = B, from the top
        if a:
            operations.subtract_product_transposed(B[a:b], A[:a, a:b], B[:a])
        operations.solve_left_transposed(A[a:b, a:b], B[a:b])
        tick((b - a) / n / 2)
    for a, b in reversed(sized_chunks(n, tile)):  # U X = Y, from the bottom
        if b < n:
            operations.subtract_product(B[a:b], A[a:b, b:], B[b:])
        operations.solve_left(A[a:b, a:b], B[a:b])
        tick((b - a) / n / 2)


# -- BLAS and LAPACK -------------------------------------------------------------------------------


@cache
def _routine(module: Any, name: str) -> Any:
    """Return a BLAS or LAPACK routine as a ctypes function, which changes arrays in place.

    module: SciPy's cython_blas or cython_lapack, which publish the addresses of their routines;
    name: such as "dgemm".
    """
    capsule = module.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None)(address)


def _call(module: Any, name: str, out: Array, *arguments: Any) -> None:
    """Call a BLAS or LAPACK routine in the precision of `out`, which only gives the dtype.

    name: of the routine without its first letter. Arguments are passed by address, as in Fortran.
    """
    dtype = out.dtype.name
    addresses: list[Any] = []
    for argument in arguments:
        if isinstance(argument, bytes):
            addresses.append(ctypes.byref(ctypes.c_char(argument)))
        elif isinstance(argument, float):
            addresses.append(ctypes.byref(_REAL[dtype](argument)))
        elif isinstance(argument, int):
            addresses.append(ctypes.byref(ctypes.c_int(argument)))
        elif isinstance(argument, np.ndarray):
            addresses.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            addresses.append(argument)
    _routine(module, _LETTER[dtype] + name)(*addresses)


def _leading(view: Array) -> int:
    """Return the leading dimension of a view: entries from one row to the next."""
    return int(view.strides[0]) // view.itemsize


def _cholesky(A: Array) -> bool:
    """Replace A's upper triangle by its Cholesky factor U (A = U'U); return whether A has one.

    A: a square view, float32 or float64, changed in place by LAPACK's potrf.
    """
    info = ctypes.c_int(0)
    _call(cython_lapack, "potrf", A, b"L", len(A), A, _leading(A), ctypes.byref(info))
    return info.value == 0


def _solve_triangular(U: Array, X: Array, transpose: bytes) -> None:
    """Replace X by U^-1 X (transpose b"N") or (U')^-1 X (b"T"); U is upper triangular.

    U and X are views of float32 or float64, passed to the BLAS routine trsm.
    """
    _call(
        cython_blas, "trsm", X, b"R", b"L", transpose, b"N", X.shape[1], X.shape[0],
        1.0, U, _leading(U), X, _leading(X),
    )  # fmt: skip


def _subtract_product(C: Array, A: Array, B: Array, transpose: bytes, inner: int) -> None:
    """Replace C by C - A B (transpose b"N") or C - A' B (b"T"); inner: length of the sums.

    A, B and C are views of float32 or float64, passed to the BLAS routine gemm.
    """
    _call(
        cython_blas, "gemm", C, b"N", transpose, C.shape[1], C.shape[0], inner,
        -1.0, B, _leading(B), A, _leading(A), 1.0, C, _leading(C),
    )  # fmt: skip


BLAS_OPERATIONS = TileOperations(
    _cholesky,
    lambda U, X: _solve_triangular(U, X, b"T"),
    lambda U, X: _solve_triangular(U, X, b"N"),
    lambda C, A, B: _subtract_product(C, A, B, b"N", A.shape[1]),
    lambda C, A, B: _subtract_product(C, A, B, b"T", A.shape[0]),
)
