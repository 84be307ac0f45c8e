"""Free and used memory, an error before memory runs out, and garbage collection."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError

#: Folder of a container (cgroup v2, v1), and its files: limit, usage, and cached files in memory.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        "total_inactive_file"),
)  # fmt: skip


def available_bytes() -> int:
    """Return the bytes of memory that this process may still use.

    The smaller of what is free on the machine and in its container (cgroup); at least 0.
    """
    free = _machine_bytes()
    for folder, limit, used, cached in _CONTAINERS:
        with suppress(OSError, ValueError):  # ValueError: the limit "max" means none
            free = min(free, _container_bytes(Path(folder), limit, used, cached))
    return max(free, 0)


def _container_bytes(folder: Path, limit: str, used: str, cached: str) -> int:
    """Return a container's free bytes: its limit less its use, plus cached files.

    `limit` and `used` are names of files in the cgroup's folder, and `cached` is a line of its file
    memory.stat: the system drops cached files when memory is needed. OSError or ValueError if there
    is no limit.
    """
    cached_bytes = 0
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, size = line.partition(" ")
            cached_bytes = int(size) if name == cached else cached_bytes
    return int((folder / limit).read_text()) - int((folder / used).read_text()) + cached_bytes


def _machine_bytes() -> int:
    """Return the machine's available bytes; all of its memory where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return _windows_available_bytes()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_rss_mb() -> float | None:
    """Return this process's peak memory in MB (2**20 bytes), or None if it is unknown."""
    if sys.platform == "win32":
        return _windows_peak_bytes() / 2**20
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def reset_high_water() -> bool:
    """Set this process's high-water mark of memory to its present use; False if it cannot.

    Linux alone lets a process do this, through /proc/self/clear_refs.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def high_water_mb() -> float | None:
    """Return the most memory in MB (2**20 bytes) since `reset_high_water`; None if unknown."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    return None


def format_bytes(size: float) -> str:
    """Return a number of bytes as text such as 1.2 GB."""
    for unit in ("bytes", "KB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def require_memory(size: int, what: str, advice: str, budget: int | None = None) -> None:
    """Raise TalerecError if `size` bytes exceed the free memory, or `budget` bytes if given.

    The message says that `what`, such as "the Gram matrix", needs that much, and ends with
    `advice`.
    """
    limit = available_bytes() if budget is None else budget
    if size > limit:
        status = "is free" if budget is None else "is allowed"
        message = f"{what} needs {format_bytes(size)}, but {format_bytes(limit)} {status}; {advice}"
        raise TalerecError(message)


# -- Windows ---------------------------------------------------------------------------------------


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API; `available` is the free physical memory in bytes.

    `length` must be set to the structure's size; the other fields are not used.
    """

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "c", "d", "e", "f", "g")),
    ]


class _MemoryCounters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of the Windows API; `peak` is the largest memory use in bytes.

    `length` must be set to the structure's size; the other fields are not used.
    """

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        *((name, ctypes.c_size_t) for name in ("peak", "b", "c", "d", "e", "f", "g", "h")),
    ]


def _windows_available_bytes() -> int:
    """Return the free physical memory in bytes, by GlobalMemoryStatusEx."""
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    _kernel32().GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.available)


def _windows_peak_bytes() -> int:
    """Return this process's peak memory in bytes, by K32GetProcessMemoryInfo."""
    counters = _MemoryCounters()
    counters.length = ctypes.sizeof(counters)
    library = _kernel32()
    library.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(library.GetCurrentProcess())
    library.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.length)
    return int(counters.peak)


def _kernel32() -> Any:
    return getattr(ctypes, "windll").kernel32  # noqa: B009 (it exists on Windows only)


# -- garbage collection ----------------------------------------------------------------------------

_skips_final_collection = True
_COLLECTION_THRESHOLD = 10_000  # objects created before Python looks for garbage; 700 by default


def reduce_garbage_collection() -> None:
    """Make Python collect garbage less frequently, and not at the end of the process.

    The libraries create several hundred thousand objects that stay: scanning them takes a third of
    a second. After `collect_garbage_at_exit`, the final collection stays.
    """
    gc.set_threshold(_COLLECTION_THRESHOLD, *gc.get_threshold()[1:])
    if _skips_final_collection:
        atexit.register(gc.freeze)


def collect_garbage_at_exit() -> None:
    """Make Python collect garbage at the end, despite `reduce_garbage_collection`.

    Called before DuckDB is used, which warns about objects that are left at the end of the process.
    """
    global _skips_final_collection
    _skips_final_collection = False
    atexit.unregister(gc.freeze)
