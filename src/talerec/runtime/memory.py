"""How much memory is free and how much was used, and an error before memory runs out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from talerec.errors import TalerecError
from talerec.runtime import windows

#: Where a container (cgroup v2, v1) says its limit, what it uses, and how much of that is cached files.
_CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def available_bytes() -> int:
    """Return the bytes that this process may still take: of the machine, or of its container where that is less."""
    free = _machine_bytes()
    for folder, limit, used, cached in _CONTAINERS:
        with suppress(OSError, ValueError):  # ValueError: the limit "max" means none
            free = min(free, _container_bytes(Path(folder), limit, used, cached))
    return max(free, 0)


def _container_bytes(folder: Path, limit: str, used: str, cached: str) -> int:
    """Cached files count as used, but the system drops them when memory is needed."""
    spare = 0
    with suppress(OSError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, size = line.partition(" ")
            spare = int(size) if name == cached else spare
    return int((folder / limit).read_text()) - int((folder / used).read_text()) + spare


def _machine_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return windows.available_bytes()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_rss_mb() -> float | None:
    """Return the most memory that this process has held, in MB (2**20 bytes); None where the system does not tell."""
    if sys.platform == "win32":
        return windows.peak_bytes() / 2**20
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def human(size: float) -> str:
    """Write a number of bytes for people: 1.2 GB."""
    for unit in ("bytes", "KB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} GB"


def require(size: int, what: str, advice: str, budget: int | None = None) -> None:
    """Raise an error when `size` bytes for `what` do not fit into free memory, or into the budget where there is one."""
    room = available_bytes() if budget is None else budget
    if size > room:
        is_there = "is free" if budget is None else "is allowed"
        raise TalerecError(f"{what} needs {human(size)}, but {human(room)} {is_there}; {advice}")
