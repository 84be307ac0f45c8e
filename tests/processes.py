"""Processes that tests have started, as the system shows them in /proc."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def fields_of(pid: int) -> list[str]:
    """What the system says of a process, from its state on; nothing where there is no such process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def state_of(pid: int) -> str:
    """The letter of a process, as `ps` shows it."""
    return next(iter(fields_of(pid)), "")


def is_running(pid: int) -> bool:
    """Is there such a process that has not ended? One that waits for its parent to hear of its end has."""
    return state_of(pid) not in ("", "Z")


def children_of(parent: int) -> list[int]:
    """The processes that a process has started, by whichever of its threads; none where there is no /proc."""
    every = [int(place.name) for place in Path("/proc").glob("[0-9]*")]
    return sorted(pid for pid in every if fields_of(pid)[1:2] == [str(parent)])


def workers_of(parent: int) -> list[int]:
    """The workers of the service whose first process this is."""
    found = []
    for pid in children_of(parent):
        with suppress(OSError):  # it has ended since
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
