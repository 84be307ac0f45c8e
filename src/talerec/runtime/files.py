"""Files that are complete or absent: written under another name first, then renamed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from talerec.errors import TalerecError
from talerec.runtime import windows

logger = logging.getLogger("talerec")


@contextmanager
def replacing(path: Path, mark: str = "new") -> Iterator[Path]:
    """Yield a name to write to; it is renamed to `path` at the end of the block, or removed after an error.

    `mark` ends the temporary name. Where several may write one file at once, each needs its own.
    """
    unfinished = path.with_name(f"{path.name}.{mark}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: str | Path, mark: str = "new") -> Iterator[Path]:
    """Yield a name to write to, as `replacing` does; an OSError becomes a TalerecError that names `path`."""
    output = Path(path)
    if output.is_dir():
        raise TalerecError(f"{output} cannot be written: it is a folder")
    try:
        with replacing(output, mark) as unfinished:
            yield unfinished
    except OSError as error:
        raise TalerecError(f"{output} cannot be written: {error.strerror or error}") from None


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, as UTF-8 with plain line ends on every system."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def check_writable(path: Path) -> Path:
    """Refuse a file that could not be written, before the work whose result it is to hold."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be written: its folder is not there"
        raise TalerecError(f"{path} {problem}")
    return path


# -- disk and locks --------------------------------------------------------------------------------


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write the parts of a file one after the other, and force them to disk."""
    with path.open("wb") as file:
        for part in parts:
            _write_part(file, part)
        file.flush()
        os.fsync(file.fileno())


def _write_part(file: BinaryIO, part: bytes | memoryview) -> None:
    file.write(part)


def sync_file(path: Path) -> None:
    """Force a file that was just written to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk, where the system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold the lock file `lock`, made with its folder where needed; the lock ends with the process."""
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("wb") as handle:
            _wait_for(handle, lock.parent)
            if _is_at(handle, lock):  # whoever held it before may have removed it
                yield
                return


def _wait_for(handle: BinaryIO, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:
        _wait_on_windows(handle)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process that is writing %s", folder)
        fcntl.flock(handle, fcntl.LOCK_EX)


def _wait_on_windows(handle: BinaryIO) -> None:
    """Windows has locks of its own; where there are neither, writers must not overlap."""
    try:
        import msvcrt
    except ImportError:
        return
    windows.lock(handle, msvcrt)


def _is_at(handle: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
