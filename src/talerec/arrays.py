"""Names for the types of arrays, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = tuple[Any, ...]  # what a kernel takes together
Kernel = Callable[..., Any]
Matrix = Any  # items x items: a NumPy array, or a SciPy sparse array


def is_sparse(matrix: Matrix) -> bool:
    """Is it a compressed sparse array?"""
    return hasattr(matrix, "indptr")
