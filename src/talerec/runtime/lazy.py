"""Libraries that are loaded when they are first used: fitting needs SciPy, recommending does not.

from talerec.runtime.lazy import sparse     # instead of: from scipy import sparse
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module, and imports it when one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)
        return value

    def __repr__(self) -> str:
        return f"<lazy module {self._module}>"


if TYPE_CHECKING:
    from scipy import sparse as sparse
    from scipy.linalg import cython_blas as cython_blas
    from scipy.linalg import cython_lapack as cython_lapack
else:
    sparse = LazyModule("scipy.sparse")
    cython_blas = LazyModule("scipy.linalg.cython_blas")
    cython_lapack = LazyModule("scipy.linalg.cython_lapack")
