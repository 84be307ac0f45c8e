"""Names for the types of arrays, and small conversions between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = tuple[Any, ...]  # what a kernel takes together
Kernel = Callable[..., Any]
Matrix = Any  # items x items: a NumPy array, or a SciPy sparse array


def shrink_indptr(indptr: Array) -> Array:
    """Return the bounds of compressed rows as int32 where that is enough; with int64, SciPy copies int32 indices."""
    return indptr.astype(np.int32) if indptr[-1] < 2**31 else indptr


def is_sparse(matrix: Matrix) -> bool:
    """Is the matrix a compressed sparse array?"""
    return hasattr(matrix, "indptr")


def dense(matrix: Matrix) -> Array:
    """Return the matrix as a NumPy array."""
    return np.asarray(matrix.toarray() if is_sparse(matrix) else matrix)


def readonly(array: Array) -> Array:
    """The array as one that cannot be written to.

    Memory-mapped arrays cannot either: with all of them alike, a kernel is compiled once and not twice.
    """
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
