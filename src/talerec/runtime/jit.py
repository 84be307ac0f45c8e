"""Compiled functions: three decorators. Compiled code releases the GIL, so that plain threads use all cores.

A *kernel* is called from Python and kept on disk. A *template* becomes part of the kernels that call it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import types

from talerec.runtime import compiling as compiling  # reports what is compiled from here on
from talerec.runtime.kernel_cache import keep_on_disk

F = TypeVar("F", bound=Callable[..., Any])

# Nothing here is called from C, so that Numba need not make an entry for it.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True}


def kernel(function: F) -> F:
    """Compile `function` when it is first called, and keep it on disk where a folder can be written to."""
    compiled = numba.njit(function, **_OPTIONS)
    keep_on_disk(compiled)
    _widen_arguments(compiled)
    return cast(F, compiled)


def template(function: F) -> F:
    """Compile `function` into the kernel that calls it; it may take other kernels as arguments.

    Inlining is forced: a kernel passed as a real argument would be an address, which no cache can keep.
    """
    return cast(F, _inlined(function, _OPTIONS))


def reducing(function: F) -> F:
    """A template whose sums may be reordered by the compiler, so that it can use the whole width of the machine.

    The order is fixed once compiled: results do not depend on threads, but may differ in the last
    digit between kinds of processor.
    """
    return cast(F, _inlined(function, {**_OPTIONS, "fastmath": {"reassoc", "contract"}}))


def _inlined(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A compiled function without an entry for Python, which would take about a tenth of the time to compile.

    Where Python calls it all the same, as tests do, it is compiled once more with an entry. For that, Numba's
    table of entries stays empty: a call finds nothing there, and asks `_compile_for_args`.
    """
    compiled = numba.njit(function, **options, **_INLINED)
    if not hasattr(compiled, "py_func"):  # NUMBA_DISABLE_JIT leaves functions as they are
        return compiled
    whole: list[Any] = []

    def compile_for_python(*args: Any) -> Any:
        if not whole:
            whole.append(numba.njit(function, **options))
        return whole[0]

    def add_without_entry(result: Any) -> None:
        compiled.overloads[tuple(result.signature.args)] = result

    _widen_arguments(compiled)
    compiled._compile_for_args = compile_for_python
    compiled.add_overload = add_without_entry
    return compiled


def _widen_arguments(compiled: Any) -> None:
    """Compile a function once for all whole numbers that other compiled functions call it with, as int64.

    Numba would compile it again for int32, and for each constant, such as the 0 that a counter begins with.
    """
    if not hasattr(compiled, "get_call_template"):
        return
    template_for = compiled.get_call_template

    def widened(args: Any, kws: Any) -> Any:
        return template_for(
            tuple(map(_wide, args)), {name: _wide(kind) for name, kind in kws.items()}
        )

    compiled.get_call_template = widened


def _wide(kind: Any) -> Any:
    if isinstance(kind, types.IntegerLiteral | types.BooleanLiteral):
        kind = types.unliteral(kind)  # type: ignore[no-untyped-call]
    return types.int64 if kind in (types.int8, types.int16, types.int32) else kind


@template
def unsigned(start: int, stop: int) -> Any:
    """range(start, stop) of entries that are not negative, and are not asked whether they count from the end.

    With the items that they lead to as np.uint32, an innermost loop is up to three times as fast.
    """
    return range(np.uint64(start), np.uint64(stop))
