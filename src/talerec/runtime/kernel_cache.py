"""Compiled kernels on disk, used again while everything that they were compiled from is unchanged.

Numba checks the file that a kernel is written in. But a kernel also contains the templates, kernels
and constants of other files that it uses. `fingerprint` hashes all of them, and a kernel whose
fingerprint has changed is compiled again, whichever folder the cache is in and whatever the times
of the files are.

Numba has no public interface for this. The private parts that are used are named here alone; where
a version of Numba does not have them, kernels are compiled in memory and not kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any, ClassVar

import numpy as np

logger = logging.getLogger("talerec")

_LIBRARIES = (
    "numba",
    "numpy",
    "math",
    "typing",
)  # a name says enough: they do not change from run to run
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


# -- what a kernel is compiled from ----------------------------------------------------------------


def fingerprint(kernel: Any) -> str:
    """A hash of the code of a kernel, of all functions that it reaches, and of the constants they use."""
    digest = hashlib.sha256()
    for part in _described(kernel, {}):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _described(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """Lines that change whenever `value` changes in a way that compiled code could see."""
    if hasattr(value, "py_func"):  # a compiled function: what is compiled, and how
        for name, option in sorted(value.targetoptions.items()):
            yield name
            yield from _described(option, seen)
        value = value.py_func
    elif hasattr(
        value, "_defn"
    ):  # a function that writes compiled code itself: Numba's `intrinsic`
        value = value._defn
    if id(value) in seen:
        yield f"again {seen[id(value)]}"
    elif isinstance(value, FunctionType):
        seen[id(value)] = len(seen)
        yield f"{value.__module__}.{value.__qualname__}"
        if (value.__module__ or "").partition(".")[0] not in _LIBRARIES:
            yield from _described_function(value, seen)
    elif isinstance(value, CodeType):
        yield from _described_code(value, seen)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__qualname__} of {len(value)}"
        for part in value:
            yield from _described(part, seen)
    elif isinstance(value, set | frozenset):  # whose order differs from process to process
        yield repr(sorted(map(repr, value)))
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', '')}"
    else:
        yield _ADDRESS.sub("", repr(value))


def _described_function(function: FunctionType, seen: dict[int, int]) -> Iterator[str]:
    yield from _described_code(function.__code__, seen)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    yield from _described([function.__defaults__, cells], seen)
    names = sorted(_names(function.__code__))
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name
        if isinstance(value, ModuleType):
            held = vars(value)
            for part in names:
                if part in held and not isinstance(held[part], ModuleType):
                    yield from _described(held[part], seen)
        else:
            yield from _described(value, seen)


def _described_code(code: CodeType, seen: dict[int, int]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield from _described(code.co_consts, seen)


def _names(code: CodeType) -> set[str]:
    """Names of globals and attributes in a function and in the functions inside it."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(_names, inner))


# -- the cache -------------------------------------------------------------------------------------


class KernelCache:
    """One kernel's compiled variants on disk; Numba asks it before it compiles, and tells it afterwards.

    The folder is looked for when the kernel is first called, so that importing a hundred kernels is fast.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._opened = kernel, False
        self._files: Any = None  # Numba's own cache, or None where nothing can be kept

    def _open(self) -> Any:
        if not self._opened:
            self._files, self._opened = _numba_cache(self._kernel), True
        return self._files

    @property
    def cache_path(self) -> str | None:
        """The folder of the cache."""
        files = self._open()
        return None if files is None else str(files.cache_path)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled variant for these types of arguments, or None."""
        files = self._open()
        if files is None:
            return None
        try:
            return _load(files, signature, target)
        except Exception as error:  # a damaged file: the kernel is compiled and written again
            logger.debug("%s: a compiled kernel cannot be read: %r", self.cache_path, error)
            with suppress(OSError):
                files.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled variant; a full or read-only disk is no reason to stop."""
        files = self._open()
        if files is not None:
            with suppress(OSError):
                files.save_overload(signature, compiled)

    def flush(self) -> None:
        """Forget what is on disk."""
        files = self._open()
        if files is not None:
            files.flush()


def _numba_cache(kernel: Any) -> Any:
    """Numba's cache of a kernel, with the kernel's fingerprint beside Numba's own stamp of its file."""
    try:
        files: Any = _cache_class()(kernel.py_func)
        own = files._cache_file._source_stamp
        files._cache_file._source_stamp = (own, fingerprint(kernel))
    except RuntimeError:  # no folder that may be written to
        return None
    except (ImportError, AttributeError):
        logger.warning("this version of Numba is not known: compiled kernels are not kept on disk")
        return None
    return files


def _cache_class() -> Any:
    """Numba's cache, which also takes a folder NUMBA_CACHE_DIR that can be read and not written to, as in an image."""
    caching: Any = import_module("numba.core.caching")
    private = not hasattr(caching, "UserProvidedCacheLocator")  # its name in Numba 0.61
    locator: Any = (
        caching._UserProvidedCacheLocator if private else caching.UserProvidedCacheLocator
    )

    class ReadableFolder(locator):  # type: ignore[misc]
        def ensure_cache_path(self) -> None:
            if not os.access(self.get_cache_path(), os.R_OK | os.X_OK):
                raise OSError

    class Files(caching.FunctionCache._impl_class):  # type: ignore[misc]
        _locator_classes: ClassVar[list[Any]] = [
            ReadableFolder,
            *caching.FunctionCache._impl_class._locator_classes,
        ]

    class Cache(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Files

    return Cache


def _load(files: Any, signature: Any, target: Any) -> Any:
    """Numba's `load_overload` without its first step, which loads all that is needed to compile (0.2 s)."""
    import_module("numba.core.runtime").rtsys.initialize(target)
    return files._load_overload(signature, target)


def keep_on_disk(kernel: Any) -> None:
    """Let Numba look for a compiled kernel on disk before it compiles it, and keep what it compiled."""
    if hasattr(kernel, "_cache"):  # not where NUMBA_DISABLE_JIT leaves functions as they are
        kernel._cache = KernelCache(kernel)
