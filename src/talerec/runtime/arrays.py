"""Types of arrays, small conversions between them, and SciPy modules loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = tuple[Any, ...]  # the arrays that a kernel takes together
Kernel = Callable[..., Any]
Matrix = Any  # items x items: a NumPy array, or a SciPy sparse array


def shrink_indptr(indptr: Array) -> Array:
    """Return a compressed matrix's `indptr` as int32 where its values fit, else as it is.

    `indptr` has the bounds of the rows in `indices`. With int64 bounds, SciPy would copy int32
    indices.
    """
    return indptr.astype(np.int32) if indptr[-1] < 2**31 else indptr


def is_sparse(matrix: Matrix) -> bool:
    """Return whether the matrix is a compressed sparse array."""
    return hasattr(matrix, "indptr")


def dense(matrix: Matrix) -> Array:
    """Return the matrix as a NumPy array."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)


def as_readonly(array: Array) -> Array:
    """Return a view of the array that cannot be written to.

    Memory-mapped arrays are read-only: if all arrays are, each kernel is compiled for one type.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


class LazyModule:
    """A stand-in for a module that imports it when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"<lazy module {self._module}>"


# Fitting needs SciPy, recommending does not: it is imported when first used.
if TYPE_CHECKING:
    from scipy import sparse as sparse
    from scipy.linalg import cython_blas as cython_blas
    from scipy.linalg import cython_lapack as cython_lapack
else:
    sparse = LazyModule("scipy.sparse")
    cython_blas = LazyModule("scipy.linalg.cython_blas")
    cython_lapack = LazyModule("scipy.linalg.cython_lapack")
