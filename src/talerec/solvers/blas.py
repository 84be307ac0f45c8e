"""BLAS and LAPACK on parts of an array, in place.

SciPy's wrappers copy any argument that is not a whole contiguous array. These functions call the
same library through the addresses that SciPy publishes, with leading dimensions, so that a tile of
a large matrix is changed in place. Arguments are float32 or float64 views whose last axis is
contiguous. BLAS takes a C-ordered array for its transpose, and each call below allows for that.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.lazy import cython_blas, cython_lapack
from talerec.solvers.tiles import Operations

_LETTER = {"float32": "s", "float64": "d"}
_REAL = {"float32": ctypes.c_float, "float64": ctypes.c_double}


@cache
def _routine(module: Any, name: str) -> Any:
    capsule = module.__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None)(address)


def _call(module: Any, name: str, out: Array, *arguments: Any) -> None:
    """Call a routine for the type of `out`; arguments go by address, as in Fortran, numbers in that type."""
    kind = out.dtype.name
    addresses: list[Any] = []
    for argument in arguments:
        if isinstance(argument, bytes):
            addresses.append(ctypes.byref(ctypes.c_char(argument)))
        elif isinstance(argument, float):
            addresses.append(ctypes.byref(_REAL[kind](argument)))
        elif isinstance(argument, int):
            addresses.append(ctypes.byref(ctypes.c_int(argument)))
        elif isinstance(argument, np.ndarray):
            addresses.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            addresses.append(argument)
    _routine(module, _LETTER[kind] + name)(*addresses)


def _leading(view: Array) -> int:
    """The leading dimension of a view: entries from one row to the next."""
    return int(view.strides[0]) // view.itemsize


def cholesky(A: Array) -> bool:
    """Factor A = U'U in place, U in the upper triangle; False where A is not positive definite."""
    info = ctypes.c_int(0)
    _call(cython_lapack, "potrf", A, b"L", len(A), A, _leading(A), ctypes.byref(info))
    return info.value == 0


def solve_left_transposed(U: Array, X: Array) -> None:
    """X <- (U')^-1 X, in place, U upper triangular."""
    _call(
        cython_blas, "trsm", X, b"R", b"L", b"T", b"N", X.shape[1], X.shape[0],
        1.0, U, _leading(U), X, _leading(X),
    )  # fmt: skip


def solve_left(U: Array, X: Array) -> None:
    """X <- U^-1 X, in place, U upper triangular."""
    _call(
        cython_blas, "trsm", X, b"R", b"L", b"N", b"N", X.shape[1], X.shape[0],
        1.0, U, _leading(U), X, _leading(X),
    )  # fmt: skip


def subtract_product(C: Array, A: Array, B: Array) -> None:
    """C <- C - A B, in place."""
    _gemm(C, A, B, b"N", A.shape[1])


def subtract_product_transposed(C: Array, A: Array, B: Array) -> None:
    """C <- C - A' B, in place."""
    _gemm(C, A, B, b"T", A.shape[0])


def _gemm(C: Array, A: Array, B: Array, transpose: bytes, inner: int) -> None:
    _call(
        cython_blas, "gemm", C, b"N", transpose, C.shape[1], C.shape[0], inner,
        -1.0, B, _leading(B), A, _leading(A), 1.0, C, _leading(C),
    )  # fmt: skip


OPERATIONS = Operations(
    cholesky,
    solve_left_transposed,
    solve_left,
    subtract_product,
    subtract_product_transposed,
)
