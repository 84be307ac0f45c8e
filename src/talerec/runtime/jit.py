"""How kernels are compiled: once, without the GIL, kept on disk where that is possible."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


_COMPILED = re.compile(rb"^@(kernel|template|reducing)", re.MULTILINE)


def _drop_stale(folder: Path) -> None:
    """Remove cached kernels that are older than the code they were compiled from.

    Numba looks at the file that a kernel stands in, and not at templates from other files.
    """
    with suppress(OSError):
        sources = [path for path in folder.rglob("*.py") if _COMPILED.search(path.read_bytes())]
        newest = max(path.stat().st_mtime for path in sources)
        for path in folder.rglob("__pycache__/*.nb[ic]"):
            if path.stat().st_mtime < newest:
                path.unlink(missing_ok=True)


_drop_stale(Path(__file__).parents[1])


def kernel(function: F) -> F:
    """Compile `function` on first use and cache it on disk; in memory alone where nothing can be written."""
    try:
        return cast(F, numba.njit(function, cache=True, **_OPTIONS))
    except RuntimeError:  # Numba found no folder that it may write its cache to
        return cast(F, numba.njit(function, **_OPTIONS))


def reducing(function: F) -> F:
    """A template whose sums may be reordered by the compiler, so that it can use the whole width of the machine.

    The order is fixed once compiled: results do not depend on threads, but may differ in the last
    digit between kinds of processor.
    """
    options = {"fastmath": {"reassoc", "contract"}, "forceinline": True, **_OPTIONS}
    return cast(F, numba.njit(function, **options))


def template(function: F) -> F:
    """Compile `function` into the kernel that calls it; it may take other kernels as arguments.

    Inlining is forced: a kernel passed as a real argument would be an address, which no cache can keep.
    """
    return cast(F, numba.njit(function, forceinline=True, **_OPTIONS))


@template
def unsigned(start: int, stop: int) -> Any:
    """range(start, stop) of entries that are not negative, and are not asked whether they count from the end.

    With the items that they lead to as np.uint32, an innermost loop is up to three times as fast.
    """
    return range(np.uint64(start), np.uint64(stop))
