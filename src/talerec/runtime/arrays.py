"""Names for the types of arrays, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = tuple[Any, ...]  # what a kernel takes together
Kernel = Callable[..., Any]
Matrix = Any  # items x items: a NumPy array, or a SciPy sparse array


def shrink_indptr(indptr: Array) -> Array:
    """Bounds of compressed rows as int32 while that is enough: SciPy would copy int32 indices otherwise."""
    return indptr.astype(np.int32) if indptr[-1] < 2**31 else indptr


def is_sparse(matrix: Matrix) -> bool:
    """Is it a compressed sparse array?"""
    return hasattr(matrix, "indptr")


def dense(matrix: Matrix) -> Array:
    """The same as a NumPy array."""
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
