"""Compiled kernels on disk, valid while everything they were compiled from is unchanged.

Numba checks the file that defines a kernel. But a kernel also contains the templates, kernels and
constants of other files that it uses. `fingerprint` hashes all of them, and a kernel whose
fingerprint has changed is compiled again, whichever folder the cache is in and whatever the
modification times of the files are.

Numba has no public interface for this. Only this module uses its private parts; if a version of
Numba lacks them, kernels are compiled in memory and not cached.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np

logger = logging.getLogger("talerec")

_LIBRARIES = ("numba", "numpy", "math", "typing")  # their functions count by name alone
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


# -- what a kernel is compiled from ----------------------------------------------------------------


def fingerprint(kernel: Any) -> str:
    """Return a SHA-256 of a compiled function: its code, all functions it reaches, constants.

    It changes if any of them changes, whichever file it is in.
    """
    digest = hashlib.sha256()
    for part in _fingerprint_value(kernel, {}):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _fingerprint_value(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Yield lines of text that identify a value from which a kernel is compiled.

    The lines change if the compiled code may change: they have the code, options, arrays and
    constants that a function reads. Functions of `_LIBRARIES` count by name alone, and values of
    other types by their text without memory addresses. `seen` maps the id() of functions met so far
    to their number, and is extended: a function is written once.
    """
    value = getattr(value, "numba_object", value)
    if hasattr(value, "py_func"):  # a compiled function: its options and its Python code
        for name, option in sorted(value.targetoptions.items()):
            yield name
            yield from _fingerprint_value(option, seen)
        value = value.py_func
    elif hasattr(value, "_defn"):  # a function that generates code: Numba's `intrinsic`
        value = value._defn
    if id(value) in seen:
        yield f"repeats {seen[id(value)]}"
    elif isinstance(value, FunctionType):
        seen[id(value)] = len(seen)
        yield f"{value.__module__}.{value.__qualname__}"
        if (value.__module__ or "").partition(".")[0] not in _LIBRARIES:
            yield from _fingerprint_function(value, seen)
    elif isinstance(value, CodeType):
        yield from _fingerprint_code(value, seen)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__qualname__} of {len(value)}"
        for part in value:
            yield from _fingerprint_value(part, seen)
    elif isinstance(value, set | frozenset):  # their order differs between processes
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', '')}"
    else:
        yield _ADDRESS.sub("", repr(value))


def _fingerprint_function(function: FunctionType, seen: dict[int, int]) -> Iterator[str]:
    """Yield lines that change with a function's code, defaults, closure and globals it uses.

    `seen` maps the id() of functions described so far to their number, and is extended.
    """
    yield from _fingerprint_code(function.__code__, seen)
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    yield from _fingerprint_value([function.__defaults__, closure], seen)
    names = sorted(_used_names(function.__code__))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name
        if isinstance(value, ModuleType):
            members = vars(value)
            for part in names:
                if part in members and not isinstance(members[part], ModuleType):
                    yield from _fingerprint_value(members[part], seen)
        else:
            yield from _fingerprint_value(value, seen)


def _fingerprint_code(code: CodeType, seen: dict[int, int]) -> Iterator[str]:
    """Yield lines that change with a code object: its instructions, names and constants.

    `seen` maps the id() of functions described so far to their number, and is extended.
    """
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield from _fingerprint_value(code.co_consts, seen)


def _used_names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that a code object and inner functions use."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_used_names, inner))


# -- the cache -------------------------------------------------------------------------------------


class KernelCache:
    """One kernel's compiled variants on disk, with the methods that Numba calls on a cache.

    A variant is the kernel compiled for one tuple of argument types. The folder is located when the
    kernel is first called, so that importing many kernels is fast.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    @cached_property
    def _files(self) -> Any:
        """Numba's cache of the kernel on disk, or None if no folder can be used.

        `self._kernel` is the Numba dispatcher; the cache is created on first use.
        """
        return _numba_cache(self._kernel)

    @property
    def cache_path(self) -> str | None:
        """The folder of the kernel's compiled variants, or None if nothing can be cached."""
        return None if self._files is None else str(self._files.cache_path)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the variant compiled for the argument types `signature`; None if not cached.

        `target` is Numba's target context. A damaged cache is removed. `self._files` is Numba's
        cache on disk, None without a usable folder.
        """
        if self._files is None:
            return None
        try:  # Numba's `load_overload` without its first step, which loads the compiler (0.2 s)
            import_module("numba.core.runtime").rtsys.initialize(target)
            _import_array_functions()
            return self._files._load_overload(signature, target)
        except Exception as error:  # a damaged file: the kernel is compiled and written again
            logger.debug("%s: a compiled kernel cannot be read: %r", self.cache_path, error)
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store the variant compiled for the types `signature`; errors of the disk are ignored.

        `compiled` is Numba's result of the compilation. Nothing is stored without a usable folder.
        `self._files` is Numba's cache on disk, None without a usable folder.
        """
        if self._files is not None:
            with suppress(OSError):
                self._files.save_overload(signature, compiled)

    def flush(self) -> None:
        """Remove the kernel's compiled variants from disk, if there is a folder for them."""
        if self._files is not None:
            self._files.flush()


@cache
def _import_array_functions() -> None:
    """Import Numba's array functions, which kernels need, without scipy.linalg.

    Numba imports it to check that SciPy has BLAS, and again before it compiles a function that
    calls BLAS. The check takes a tenth of the time in which a new process answers its first
    request. Without the names replaced here, it is not skipped.
    """
    name = "numba.np.arraymath"
    if name in sys.modules:
        return
    linalg = import_module("numba.np.linalg")
    check = getattr(linalg, "ensure_blas", None)
    if check is None:
        return
    linalg.ensure_blas = lambda: None  # type: ignore[attr-defined]
    try:
        import_module(name).ensure_blas = check  # type: ignore[attr-defined]
    finally:
        linalg.ensure_blas = check  # type: ignore[attr-defined]


def _numba_cache(kernel: Any) -> Any:
    """Return Numba's cache of a kernel; None if no folder is writable, or Numba lacks one.

    A variant is valid while Numba's stamp of the source file and our `fingerprint` are unchanged.
    """
    try:
        files: Any = _cache_class()(kernel.py_func)
        stamp = files._cache_file._source_stamp
        files._cache_file._source_stamp = (stamp, fingerprint(kernel))
    except RuntimeError:  # no writable folder
        return None
    except (ImportError, AttributeError):
        message = "this version of Numba is not supported: compiled kernels are not cached on disk"
        logger.warning(message)
        return None
    return files


def _cache_class() -> Any:
    """Return Numba's cache class, extended to accept a read-only NUMBA_CACHE_DIR.

    Numba asks a list of locators for a cache folder and takes the first that can be written to;
    here a locator for NUMBA_CACHE_DIR, which need only be readable, precedes them.
    """
    caching: Any = import_module("numba.core.caching")
    is_private = not hasattr(caching, "UserProvidedCacheLocator")  # as in Numba 0.61
    name = "_UserProvidedCacheLocator" if is_private else "UserProvidedCacheLocator"
    locator: Any = getattr(caching, name)

    class ReadableFolder(locator):  # type: ignore[misc]
        """The folder NUMBA_CACHE_DIR, which must be readable but need not be writable."""

        def ensure_cache_path(self) -> None:
            if not os.access(self.get_cache_path(), os.R_OK | os.X_OK):
                raise OSError

    implementation: Any = caching.FunctionCache._impl_class

    class Files(implementation):  # type: ignore[misc]
        _locator_classes: ClassVar[list[Any]] = [ReadableFolder, *implementation._locator_classes]

    class Cache(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Files

    return Cache


def cache_on_disk(kernel: Any) -> None:
    """Make Numba load a kernel's compiled variants from disk, and store new ones there.

    `kernel` is a Numba dispatcher, changed in place; a variant is the code for one tuple of
    argument types.
    """
    if hasattr(kernel, "_cache"):  # NUMBA_DISABLE_JIT leaves functions as they are
        kernel._cache = KernelCache(kernel)
