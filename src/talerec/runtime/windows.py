"""What Windows tells of memory, and its locks: other systems have modules of their own for both.

Nothing here is imported from Windows' own libraries before it is called, so that the module loads everywhere.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, BinaryIO

_AGAIN = 0.05  # seconds until a lock is asked for again


def _library(name: str) -> Any:
    return getattr(ctypes, "windll").__getattr__(name)  # noqa: B009 (it is there on Windows alone)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "c", "d", "e", "f", "g")),
    ]


class _MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("peak", "b", "c", "d", "e", "f", "g", "h")),
    ]


def available_bytes() -> int:
    """The bytes of memory that are free."""
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    _library("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.available)


def peak_bytes() -> int:
    """The most memory that this process has held."""
    counters = _MemoryCounters()
    counters.length = ctypes.sizeof(counters)
    kernel = _library("kernel32")
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    here = ctypes.c_void_p(kernel.GetCurrentProcess())
    kernel.K32GetProcessMemoryInfo(here, ctypes.byref(counters), counters.length)
    return int(counters.peak)


def lock(handle: BinaryIO, locking: Any) -> None:
    """Hold the first byte of a file until the process ends; `locking` is the module msvcrt."""
    while True:
        try:
            handle.seek(0)
            locking.locking(handle.fileno(), locking.LK_NBLCK, 1)
            return
        except OSError:
            time.sleep(_AGAIN)
