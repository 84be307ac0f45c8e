"""Decorators for compiled functions, and a report of what is being compiled.

A *kernel* is called from Python and cached on disk. A *template* is compiled into the kernels that
call it. Compiled code releases the GIL, so plain threads use all cores.

Each kernel that Numba compiles is a step of the progress stage "compile"; without a listener, one
line is logged. Kernels that are loaded from disk are not reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np

from talerec.runtime.kernel_cache import cache_on_disk
from talerec.runtime.lazy_kernels import LazyFunction, LazyKernel
from talerec.runtime.progress import Tick, has_listener, silent, stage

logger = logging.getLogger("talerec")

F = TypeVar("F", bound=Callable[..., Any])

# Nothing here is called from C, so Numba need not create a C entry point.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True}
_PACKAGE = __name__.partition(".")[0]


def kernel(function: F) -> F:
    """Return a function that Numba compiles on its first call and caches on disk.

    A decorator. The result stands for Numba's dispatcher, which compiles a variant per types of
    arguments; Numba is imported on the first call. Without a writable folder, nothing is cached.
    Compiled callers pass every whole number as int64 (`_widen_arguments`).
    """
    return cast(F, LazyKernel(function, _compile_kernel))


def _compile_kernel(function: Callable[..., Any]) -> Any:
    """Return the Numba dispatcher of a function that Python calls, cached on disk."""
    compiled = load_numba().njit(function, **_OPTIONS)
    cache_on_disk(compiled)
    _widen_arguments(compiled)
    return compiled


def template(function: F) -> F:
    """Return a function that is compiled into each kernel that calls it.

    A decorator. A kernel is a function compiled by Numba and called from Python. A template's
    arguments may be other kernels: inlining is forced, because a kernel passed as a real argument
    would be an address, which cannot be cached.
    """
    return cast(F, LazyFunction(function, _compile_template))


def reduction(function: F) -> F:
    """Return a function inlined into its callers, whose sums the compiler may reorder.

    A decorator, as `template`; reordered sums use vector instructions. The order is fixed once
    compiled: results do not depend on threads, but may differ in the last digit between kinds of
    processor.
    """
    return cast(F, LazyFunction(function, _compile_reduction))


def _compile_template(function: Callable[..., Any]) -> Any:
    """Return the Numba dispatcher of a function that is inlined into kernels."""
    return _compile_inlined(function, _OPTIONS)


def _compile_reduction(function: Callable[..., Any]) -> Any:
    """Return the Numba dispatcher of an inlined function whose sums may be reordered."""
    return _compile_inlined(function, {**_OPTIONS, "fastmath": {"reassoc", "contract"}})


def _compile_inlined(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return a function compiled for use inside kernels, without an entry point for Python.

    That saves a tenth of the time. If Python calls it all the same, as tests do, it is compiled
    once more with an entry point. For that, Numba's table of entry points stays empty, and a call
    reaches `_compile_for_args`. `options` are those of `numba.njit`.
    """
    numba = load_numba()
    compiled = numba.njit(function, **options, **_INLINED)
    if not hasattr(compiled, "py_func"):  # NUMBA_DISABLE_JIT leaves functions as they are
        return compiled
    callable_from_python: list[Any] = []

    def compile_for_python(*args: Any) -> Any:
        """Return the variant with an entry point for Python, compiled on first use."""
        if not callable_from_python:
            callable_from_python.append(numba.njit(function, **options))
        return callable_from_python[0]

    def add_without_entry(result: Any) -> None:
        compiled.overloads[tuple(result.signature.args)] = result

    _widen_arguments(compiled)
    compiled._compile_for_args = compile_for_python
    compiled.add_overload = add_without_entry
    return compiled


def _widen_arguments(compiled: Any) -> None:
    """Let compiled callers pass every whole number as int64, so that one variant is compiled.

    `compiled` is a Numba dispatcher, changed in place. Numba would compile another variant for
    int32 and for each constant, such as a counter's initial 0.
    """
    if not hasattr(compiled, "get_call_template"):
        return
    call_template = compiled.get_call_template

    def widen(args: Any, kws: Any) -> Any:
        named = {name: _widen_type(kind) for name, kind in kws.items()}
        return call_template(tuple(map(_widen_type, args)), named)

    compiled.get_call_template = widen


def _widen_type(kind: Any) -> Any:
    """Return int64 for Numba's types of smaller integers and for integer literals.

    Boolean literals become booleans; other types are returned as they are.
    """
    types: Any = import_module("numba.core.types")
    if isinstance(kind, types.IntegerLiteral | types.BooleanLiteral):
        kind = types.unliteral(kind)
    return types.int64 if kind in (types.int8, types.int16, types.int32) else kind


@template
def unsigned_range(start: int, stop: int) -> Any:
    """Return range(start, stop) for indices that are never negative.

    Compiled code then skips the check for indices that count from the end. With item positions as
    np.uint32, an innermost loop is up to three times as fast.
    """
    return range(np.uint64(start), np.uint64(stop))


# -- what is being compiled ------------------------------------------------------------------------


@dataclass
class CompilationStats:
    """The number of kernels that this process has compiled, and the seconds that it took.

    A kernel is a function of this package that Numba compiles.
    """

    kernels: int = 0
    seconds: float = 0.0  # of wall-clock time


class _CompilationListener:
    """Counts the kernels of this package that Numba compiles, and their seconds, in `total`.

    A kernel is a function of this package that is compiled on its own; functions compiled inside a
    kernel are part of it. Numba compiles one function at a time, whatever the number of threads,
    and calls `notify`.
    """

    def __init__(self) -> None:
        self.total = CompilationStats()
        self._open: list[str] = []  # modules of functions being compiled, outermost first
        self._start = 0.0  # when the compilation of the current kernel began
        self._is_logged = False  # whether the line about compilation was logged
        self._tick: Tick = silent("compile", 1.0)  # reports progress of the current kernel

    def notify(self, event: Any) -> None:
        """Begin or end a function's compilation. Numba calls this with its event of either."""
        if event.is_start:
            self.on_start(event)
        elif event.is_end:
            self.on_end(event)

    def on_start(self, event: Any) -> None:
        """Begin the progress stage of a kernel; without a progress listener, log one line, once.

        Numba calls this before it compiles a function; `event.data["dispatcher"]` is that function.
        Only the outermost functions of this package (kernels) count. `self._open` has the modules
        of the functions being compiled, outermost first; the last entry is added here.
        `self._start` is when the kernel's compilation began, `self._tick` reports its progress.
        """
        self._open.append(event.data["dispatcher"].py_func.__module__)
        if self._is_kernel():
            if not self._is_logged and not has_listener():
                self._is_logged = True
                logger.info("compiling kernels, once")
            self._start, self._tick = time.perf_counter(), stage("compile", 1.0)

    def on_end(self, event: Any) -> None:
        """Count the kernel and its seconds, and end its progress stage.

        Numba calls this after it has compiled the function that `on_start` got last. `self._open`
        has the modules of the functions being compiled, outermost first. `self._start` is when the
        kernel's compilation began, `self._tick` reports its progress, and `self.total` has the
        sums.
        """
        if self._is_kernel():
            self.total.kernels += 1
            self.total.seconds += time.perf_counter() - self._start
            self._tick(1.0)
        self._open.pop()

    def _is_kernel(self) -> bool:
        """Return whether the function being compiled is an outermost one of this package.

        `self._open` has the modules of the functions being compiled, outermost first.
        """
        return len(self._open) == 1 and self._open[0].partition(".")[0] == _PACKAGE


_listener = _CompilationListener()


@cache
def load_numba() -> Any:
    """Return the module numba, imported on the first call, which starts to count compilations."""
    numba = import_module("numba")
    event = import_module("numba.core.event")
    event.Listener.register(_CompilationListener)
    event.register("numba:compile", _listener)
    return numba


def compilation_stats() -> CompilationStats:
    """Return how many kernels this process has compiled so far, and in how many seconds."""
    return replace(_listener.total)


def time_without_compilation() -> float:
    """Return `time.perf_counter()` less the seconds in which this process compiled kernels."""
    return time.perf_counter() - _listener.total.seconds
