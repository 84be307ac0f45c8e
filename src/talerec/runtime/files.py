"""Files that are complete or absent (written under another name, then renamed), and locks."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from talerec.errors import TalerecError

logger = logging.getLogger("talerec")

_RETRY_SECONDS = 0.05  # until a lock on Windows is requested again
_MAX_BYTES = 2**24  # of a file that is read whole


@contextmanager
def atomic_replace(path: Path, mark: str = "new") -> Iterator[Path]:
    """Yield a temporary path to write to, renamed to `path` at the end or removed on an error.

    The temporary name is that of `path` plus `.` and `mark`; processes that may write one file at
    once need different marks.
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
    """Yield a temporary path to write to, renamed to `path` at the end or removed on an error.

    As `atomic_replace`, but OSErrors become TalerecErrors that name the file. `mark` ends the
    temporary name.
    """
    output = Path(path)
    if output.is_dir():
        raise TalerecError(f"{output} cannot be written: it is a folder", source=str(output))
    try:
        with atomic_replace(output, mark) as unfinished:
            yield unfinished
    except OSError as error:
        message = f"{output} cannot be written: {error.strerror or error}"
        raise TalerecError(message, source=str(output)) from None


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file as UTF-8 with Unix line ends, and return its path.

    An existing file is replaced in one step. TalerecError if it cannot be written.
    """
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def check_writable(path: Path) -> Path:
    """Return the path of a file to be written later; TalerecError if it cannot be.

    That is the case if the path is a folder, or its folder does not exist. Called before long work.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be written: its folder does not exist"
        raise TalerecError(f"{path} {problem}", source=str(path))
    return path


# -- files that must be regular --------------------------------------------------------------------


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file and return it, without ever waiting; OSError for anything else.

    A FIFO would wait for its other end, a device may never end. `flags` as in `os.open`; with
    O_RDWR the file can be written, with O_CREAT it is created if there is none. It is not
    truncated.
    """
    with suppress(FileNotFoundError):
        _require_regular(path, os.stat(path))
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        _require_regular(path, os.fstat(number))  # it may have been replaced since
        return os.fdopen(number, "r+b" if flags & os.O_RDWR else "rb")
    except BaseException:
        os.close(number)
        raise


def _require_regular(path: Path, status: os.stat_result) -> None:
    """Raise OSError unless `status`, what the system says of `path`, is of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"{path} is not a regular file")


def read_regular(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Return the bytes of a small regular file; OSError for anything else, or for more bytes."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"{path} has more than {max_bytes:,} bytes")
    return content


# -- disk and locks --------------------------------------------------------------------------------


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file from its consecutive pieces of bytes, and force it to disk (fsync)."""
    with path.open("wb") as file:
        for part in parts:
            _write_part(file, part)
        file.flush()
        os.fsync(file.fileno())


def _write_part(file: BinaryIO, part: bytes | memoryview) -> None:
    """Write a piece of bytes to an open file; tests replace this to simulate a full disk."""
    file.write(part)


def sync_file(path: Path) -> None:
    """Force a file that was just written to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force the file names in a folder to disk, where the system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` during the block, after waiting for others.

    The file and its folder are created if needed; the lock ends with the process. OSError if the
    path is not that of a regular file.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_regular(path, os.O_RDWR | os.O_CREAT) as handle:
            _acquire(handle, path.parent)
            if _is_at(handle, path):  # the previous holder may have removed the file
                yield
                return


def _acquire(handle: BinaryIO, folder: Path) -> None:
    """Lock an open file exclusively, and wait if another process holds the lock.

    `folder` is what the lock protects, for the log message about waiting.
    """
    try:
        import fcntl
    except ImportError:
        _acquire_on_windows(handle)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process that is writing %s", folder)
        fcntl.flock(handle, fcntl.LOCK_EX)


def _acquire_on_windows(handle: BinaryIO) -> None:
    """Lock the first byte of an open file, and wait if another process holds the lock.

    On a system without any locks nothing is done: it must not have two writers.
    """
    try:
        import msvcrt as module
    except ImportError:
        return
    msvcrt: Any = module  # whose functions are declared on Windows only
    while True:
        try:
            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
            return
        except OSError:
            time.sleep(_RETRY_SECONDS)


def _is_at(handle: BinaryIO, path: Path) -> bool:
    """Return whether the open file is still the file at `path`, not removed or replaced.

    `handle` is the open file, such as a lock file.
    """
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
