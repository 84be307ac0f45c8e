"""The files of a SQLite store: are they still the ones that were opened, and undamaged?

SQLite goes on writing to a file that was removed or moved, and reports no error. So a connection
compares the files at its path with those it opened, before and after each commit.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from talerec.store.events import StoreDamagedError

_HEADER_BYTES = 100  # of a SQLite file
_CHANGES, _MARK = slice(24, 28), slice(60, 64)  # change counter and `user_version` in the header
_WAL_BEGINS = (b"", b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")  # of a write-ahead log
_WAY_OUT = "put the file back, or restart the service"

FileId = tuple[int, int]  # device and inode


def mark_of(store: str) -> int:
    """Return the number that marks a store's file in its header: 31 bits of the store's id.

    `store` is the hexadecimal id of the store. The number is SQLite's `user_version`.
    """
    return int(store[:8], 16) & 0x7FFF_FFFF


@dataclass(eq=False)
class StoreIdentity:
    """The identity that all connections to a store must find: its id, its undamaged file.

    Connections that share an object of this class refuse another store or file at the same address.
    """

    store: str = ""  # the id of the store; "" until it is known
    file: FileId | None = None  # of a SQLite file; None until it is opened
    size: int = 0  # bytes of the file, the most that were seen: it never shrinks
    changes: int = 0  # SQLite's change counter in the header, the most that was seen
    damage: str | None = None  # what is wrong with the contents, until the process ends

    def require_undamaged(self, name: str) -> None:
        """Raise StoreDamagedError if damage of the store was found before.

        `name` is the store's address in the message.
        """
        if self.damage is not None:
            raise StoreDamagedError(f"{name}: {self.damage}")

    def report_damage(self, name: str, damage: str) -> StoreDamagedError:
        """Remember damage of the contents, and return the error to raise.

        `damage` says what is wrong; all later uses of the store in this process are refused.
        """
        self.damage = f"{damage}; nothing is stored until the service is restarted"
        return StoreDamagedError(f"{name}: {self.damage}")


#: By file, a descriptor and the number of connections that use it. Closing any descriptor of a
#: file ends SQLite's locks of this process on it, so it is closed after the last connection.
_descriptors: dict[FileId, list[int]] = {}
_descriptors_lock = threading.Lock()


def _borrow_descriptor(path: Path) -> tuple[int, FileId]:
    """Return a descriptor of the file at `path`, and the file's device and inode.

    Connections of this process share it; each gives it back with `_return_descriptor`.
    """
    with _descriptors_lock:
        stat = os.stat(path)
        file = (stat.st_dev, stat.st_ino)
        if file not in _descriptors:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stat = os.fstat(descriptor)
            file = (stat.st_dev, stat.st_ino)
            _descriptors.setdefault(file, [descriptor, 0])
        _descriptors[file][1] += 1
        return _descriptors[file][0], file


def _return_descriptor(file: FileId) -> None:
    """Close the descriptor of a file if no other connection of this process uses it."""
    with _descriptors_lock:
        _descriptors[file][1] -= 1
        if not _descriptors[file][1]:
            os.close(_descriptors.pop(file)[0])


def find_file(path: Path) -> FileId | None:
    """Return the device and inode of the file at `path`; None if there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


class OpenFiles:
    """The files of an open SQLite connection: database, write-ahead log, index of the log.

    Parameters
    ----------
    name : str
        The address of the store, for messages.
    path : Path
        The database file; the two other files lie beside it (-wal, -shm).
    connection : sqlite3.Connection
        The connection to it.
    before : (int, int) or None
        Device and inode at `path` before the connection was opened; None if there was no file.
    identity : StoreIdentity
        What the process's earlier connections to the store found.

    Raises
    ------
    StoreDamagedError
        If the file is not the one of `identity`, or was replaced while it was opened.
    """

    def __init__(
        self, name: str, path: Path, connection: Any, before: FileId | None, identity: StoreIdentity
    ) -> None:
        self._name, self._place, self._identity = name, str(path), identity
        self._connection = connection
        connection.execute("select count(*) from sqlite_master").fetchone()  # creates -wal, -shm
        self._descriptor, file = _borrow_descriptor(path)
        self._file, self._wal_descriptor = file, -1
        try:
            if file != (before or file) or file != (identity.file or file):
                raise self._replaced(path)
            identity.file = file
            real = os.path.realpath(path)
            names = (f"{real}-wal", f"{real}-shm")
            self._log_files = [(name, find_file(Path(name))) for name in names]
            self._wal_descriptor = os.open(f"{real}-wal", os.O_RDONLY | os.O_CLOEXEC)
            header = os.pread(self._descriptor, _HEADER_BYTES, 0)
            mark = connection.execute("pragma user_version").fetchone()[0].to_bytes(4, "big")
            self._start, self._marks = header[:18], (header[_MARK], mark)
            self.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptors of the files; the caller has closed SQLite's connection before.

        The descriptor of the database may be shared by several objects; the last one closes it. The
        order matters: closing a descriptor first would end the locks of SQLite.
        """
        _return_descriptor(self._file)
        if self._wal_descriptor >= 0:
            os.close(self._wal_descriptor)

    def _replaced(self, path: Path | str) -> StoreDamagedError:
        """Return the error that the file at `path` is missing, or is not the one opened."""
        state = "is another file now" if os.path.exists(path) else "was removed or moved"
        return StoreDamagedError(f"{self._name}: {path} {state}; {_WAY_OUT}")

    def check_place(self) -> None:
        """Raise StoreDamagedError unless the database file at the path is the one opened.

        Quick, for the moment before a commit; `check` sees more.
        """
        self._identity.require_undamaged(self._name)
        self._find_size(self._place, self._file)

    def check(self) -> None:
        """Raise StoreDamagedError unless the files at the path are those opened, and whole.

        A removed, moved or replaced file is refused as long as it is not put back. A database file
        that became smaller or has the header of another one, and an overwritten write-ahead log,
        are damage that lasts until the process ends.
        """
        identity = self._identity
        identity.require_undamaged(self._name)
        size = self._find_size(self._place, self._file)
        for path, file in self._log_files:
            self._find_size(path, file)
        if size < identity.size:
            sizes = f"shrank from {identity.size} to {size} bytes"
            raise identity.report_damage(self._name, f"the file {sizes}")
        identity.size = size
        header = os.pread(self._descriptor, _HEADER_BYTES, 0)
        changes = int.from_bytes(header[_CHANGES], "big")
        is_same = header[:18] == self._start and header[_MARK] in self._marks
        if not is_same or changes < identity.changes:
            raise identity.report_damage(self._name, "the file was overwritten with another one")
        identity.changes = changes
        if os.pread(self._wal_descriptor, 4, 0) not in _WAL_BEGINS:
            raise identity.report_damage(self._name, "the write-ahead log was overwritten")

    def _find_size(self, path: str, file: FileId | None) -> int:
        """Return the bytes of the file at `path`; StoreDamagedError if it is not `file`.

        `file` has the device and inode of the file that was opened.
        """
        try:
            stat = os.stat(path)
        except OSError:
            raise self._replaced(path) from None
        if (stat.st_dev, stat.st_ino) != file:
            raise self._replaced(path)
        return stat.st_size

    def move_log_into_file(self) -> None:
        """Copy the write-ahead log into the opened database file, wherever that file is now.

        For a file that was moved without its log: it then holds all committed rows by itself.
        Nothing is done while another database has its own log at the path.
        """
        for path, file in self._log_files:
            if find_file(Path(path)) not in (file, None):
                return
        self._connection.execute("pragma wal_checkpoint(truncate)")
