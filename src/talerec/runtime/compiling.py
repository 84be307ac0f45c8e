"""What is being compiled: the first run after an installation takes longer, and says why.

Each kernel that Numba compiles is a step of the stage "compile" (see `progress`); where nobody listens, one
line is logged. Kernels that are found on disk are not reported.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from numba.core import event

from talerec.runtime.progress import Tick, is_heard, silent, stage

logger = logging.getLogger("talerec")

_PACKAGE = __name__.partition(".")[0]


@dataclass
class Compiled:
    """Kernels that this process has compiled, and the seconds that it took."""

    kernels: int = 0
    seconds: float = 0.0


class _Compilations(event.Listener):
    """Hears of every function that Numba compiles; those inside a kernel are part of it.

    Numba compiles one function at a time, whatever the number of threads.
    """

    def __init__(self) -> None:
        self.total = Compiled()
        self._open: list[
            str
        ] = []  # names of the functions that are being compiled, outermost first
        self._start, self._said = 0.0, False
        self._tick: Tick = silent("compile", 1.0)

    def on_start(self, event: Any) -> None:
        self._open.append(event.data["dispatcher"].py_func.__module__)
        if self._is_kernel():
            if not self._said and not is_heard():
                self._said = True
                logger.info("compiling kernels, once")
            self._start, self._tick = time.perf_counter(), stage("compile", 1.0)

    def on_end(self, event: Any) -> None:
        if self._is_kernel():
            self.total.kernels += 1
            self.total.seconds += time.perf_counter() - self._start
            self._tick(1.0)
        self._open.pop()

    def _is_kernel(self) -> bool:
        return len(self._open) == 1 and self._open[0].partition(".")[0] == _PACKAGE


_compilations = _Compilations()
event.register("numba:compile", _compilations)  # type: ignore[no-untyped-call]


def compiled() -> Compiled:
    """Kernels compiled by this process so far."""
    return Compiled(_compilations.total.kernels, _compilations.total.seconds)
