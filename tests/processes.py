"""Information about processes, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def fields_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if there is no process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def state_of(pid: int) -> str:
    """Return the state of a process, a letter as `ps` shows it."""
    return next(iter(fields_of(pid)), "")


def is_running(pid: int) -> bool:
    """Is there such a process? A zombie, which waits for its parent, has ended."""
    return state_of(pid) not in ("", "Z")


def children_of(parent: int) -> list[int]:
    """Return the child processes of a process; none where there is no /proc."""
    every = [int(place.name) for place in Path("/proc").glob("[0-9]*")]
    return sorted(pid for pid in every if fields_of(pid)[1:2] == [str(parent)])


def workers_of(parent: int) -> list[int]:
    """Return the worker processes of a service, by the id of its supervisor."""
    workers = []
    for pid in children_of(parent):
        with suppress(OSError):  # it has ended since
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                workers.append(pid)
    return workers


def has_open(pid: int, path: Path) -> bool:
    """Has this process opened the file? A process that has ended has not."""
    with suppress(OSError):
        return any(Path(os.readlink(entry)) == path for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False
