"""Kernels that import Numba on first use, and that Python runs where that is cheaper.

Importing Numba and loading a compiled kernel take a third of a second and 100 MB; compiling takes
seconds. A process that answers a few queries and ends needs none of it: `interpret_small` lets
Python run a kernel for them. The results have the same bits, because a kernel's code is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Any

#: Queries that Python may run in a process before it loads the compiled kernel.
_INTERPRETED_QUERIES = 16


class _Mode(threading.local):
    """Whether this thread runs a kernel by Python, with the functions that it calls."""

    is_interpreting = False


_mode = _Mode()
_making = threading.RLock()  # two threads that call a kernel first share one object
_is_allowed = [True]  # whether kernels may be interpreted in this process


class LazyNumbaObject:
    """An object of Numba's that is made on first use, by Numba itself as a rule.

    Kernels refer to it by a global name. `make` returns the object; Numba asks for the type.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._objects: list[Any] = []  # the object, once it is made

    @property
    def numba_object(self) -> Any:
        """The object, made on first use."""
        if self._objects:
            return self._objects[0]
        with _making:
            if not self._objects:
                try:
                    self._objects.append(self._make())
                except AttributeError as error:  # which `__getattr__` would report as missing
                    raise RuntimeError(f"Numba cannot be used: {error}") from error
        return self._objects[0]

    @property
    def _numba_type_(self) -> Any:
        """The type that Numba gives the object in a kernel."""
        from numba.core.registry import cpu_target

        return cpu_target.typing_context.resolve_value_type(self.numba_object)


class LazyFunction(LazyNumbaObject):
    """A function that Numba compiles into kernels; `dispatch` returns its dispatcher.

    A dispatcher is Numba's object for a compiled function; its attributes are available here.
    """

    def __init__(
        self, function: Callable[..., Any], dispatch: Callable[[Callable[..., Any]], Any]
    ) -> None:
        super().__init__(lambda: dispatch(function))
        self.py_func = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _mode.is_interpreting:
            return self.py_func(*args, **kwargs)
        return self.numba_object(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "numba_object":
            raise AttributeError(name)
        return getattr(self.numba_object, name)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name: str = self.py_func.__qualname__
        return (_identity, (self.numba_object,)) if "<locals>" in name else name


def _identity(value: Any) -> Any:
    return value


class LazyKernel(LazyFunction):
    """A function that Numba compiles and Python calls; see `LazyFunction`."""

    interpreted_queries = 0  # how many queries Python has run in this process

    @property
    def is_loaded(self) -> bool:
        """Whether this process uses the compiled kernel."""
        return bool(self._objects)

    def interpret(self, *args: Any) -> Any:
        """Return the kernel's result, computed by Python.

        The kernel must not read arrays by address; the functions that it calls are interpreted too.
        """
        previous, _mode.is_interpreting = _mode.is_interpreting, True
        try:
            return self.py_func(*args)
        finally:
            _mode.is_interpreting = previous


def interprets_small(kernel: Any, n_queries: int) -> bool:
    """Return whether Python should answer so many queries, in place of a kernel.

    That is so for the first few of a process, unless it uses the compiled kernel already. They are
    counted.
    """
    if not _is_allowed[0] or kernel.is_loaded:
        return False
    kernel.interpreted_queries += n_queries
    return bool(kernel.interpreted_queries <= _INTERPRETED_QUERIES)


def compiled(kernel: Any) -> Callable[..., Any]:
    """Return the compiled form of a kernel, which is quicker to call than the kernel itself."""
    run: Callable[..., Any] = kernel.numba_object
    return run


def interpret_small(kernel: Any, n_queries: int) -> Callable[..., Any]:
    """Return what computes a kernel's result for so many queries: Python or compiled code."""
    return kernel.interpret if interprets_small(kernel, n_queries) else compiled(kernel)


def always_compile() -> None:
    """Let this process use compiled kernels from the first query on, as services do."""
    _is_allowed[0] = False
