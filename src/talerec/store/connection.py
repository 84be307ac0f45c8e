"""A connection to the database of a store: errors, transactions, and checks of its file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from talerec.data.read import (
    WAIT_SECONDS,
    connect_to_write,
    database_file,
    database_kind,
    driver_message,
    hide_secrets,
    load_driver,
)
from talerec.errors import TalerecError
from talerec.store.events import RefusedError, StoreDamagedError, StoreError
from talerec.store.session import Session
from talerec.store.sqlite_file import OpenFiles, StoreIdentity, find_file

_DAMAGE_CODES = {11, 26}  # SQLITE_CORRUPT, SQLITE_NOTADB
_LOSS_CODES = {1, 8, 10, 14}  # SQLITE_ERROR (no table), READONLY (moved), IOERR, CANTOPEN


class StoreConnection:
    """One connection to an event store, a SQLite or PostgreSQL database of users' events.

    Database errors become StoreErrors: one line without a password. The connection is then
    closed, and the next call opens a new one. Threads take turns. A missing SQLite file is created
    by `open` alone. Each commit checks before and afterwards that the SQLite files at the address
    are the opened ones; else StoreDamagedError. A new connection must lead to the same store.

    Parameters
    ----------
    address : str
        The address of the database; it may contain a password.
    lock_timeout : float
        Seconds to wait for another writer of a SQLite file.
    statement_timeout : float, optional
        Seconds after which a database server ends a statement.

    Attributes
    ----------
    name : str
        The address without the password, for messages.
    kind : str or None
        "sqlite" or "postgresql", by the address; None if it is not the address of a database.
    n_connects : int
        How often a connection was opened.
    """

    def __init__(
        self, address: str, lock_timeout: float = WAIT_SECONDS,
        statement_timeout: float | None = None,
    ) -> None:  # fmt: skip
        self._timeouts = lock_timeout, statement_timeout
        self.address, self.name = address, hide_secrets(address)
        self.kind = database_kind(address)
        self._connection: Any = None
        self._files: OpenFiles | None = None  # of the connection to a SQLite file
        self._identity = StoreIdentity()
        self._creates = False  # whether a missing file or missing tables are created
        self.n_connects = 0  # how often a connection was opened
        self._lock = threading.RLock()

    def sibling(
        self, lock_timeout: float = WAIT_SECONDS, statement_timeout: float | None = None
    ) -> Self:
        """Return another connection to this store, which refuses another store at the address.

        `lock_timeout` and `statement_timeout` are as for the constructor, in seconds.
        """
        store = type(self)(self.address, lock_timeout, statement_timeout)
        store._identity = self._identity
        return store

    def expect(self, store: str) -> None:
        """Refuse every store at the address that does not have the id `store`."""
        self._identity.store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction; the next call reconnects."""
        with self._lock:
            if self._connection is not None:
                with suppress(Exception):
                    self._connection.close()
            if self._files is not None:
                self._files.close()
            self._connection = self._files = None

    # -- the connection --

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Lend the driver's connection to one thread at a time, connecting first if needed.

        A context manager. A database error closes the connection, which rolls back, and becomes
        RefusedError (the database rejects the values), StoreDamagedError (the file is damaged or
        gone) or StoreError (all other failures), with the address without its password
        (`self.name`) in the message. Other exceptions are raised again.
        """
        with self._lock:
            try:
                if self._connection is None:
                    self._connect()
                yield self._connection
            except TalerecError:
                raise
            except BaseException as error:
                self.close()
                module = None if self.kind is None else load_driver(self.kind)
                if module is None or not isinstance(error, module.Error):
                    raise
                raise self._translate(error, module) from None

    def _connect(self) -> None:
        """Open the connection; StoreDamagedError if it leads to another store or file than before.

        `_identity` is what this process's earlier connections to the store found.
        """
        self._identity.require_undamaged(self.name)
        path = database_file(self.address) if self.kind == "sqlite" else None
        before = None if path is None else find_file(path)
        if path is not None and before is None and not self._creates:
            raise StoreDamagedError(f"{self.name}: there is no such file")
        connection = connect_to_write(self.address, *self._timeouts, create=self._creates)
        self._connection = connection
        self.n_connects += 1
        try:
            if path is not None:
                self._files = OpenFiles(self.name, path, connection, before, self._identity)
            if not self._creates:
                self._check_id(connection)
        except BaseException:
            self.close()
            raise

    def _check_id(self, connection: Any) -> None:
        """Raise StoreDamagedError if the connection leads to another store than an earlier one."""
        store = connection.execute("select store from talerec_meta").fetchone()[0]
        self._identity.store = self._identity.store or store
        if store != self._identity.store:
            raise StoreDamagedError(f"{self.name}: another store is there now; restart the service")

    def _translate(self, error: Any, module: Any) -> StoreError:
        """Return the StoreError for an error of the driver `module`, sqlite3 or psycopg.

        RefusedError if the database refuses the values. StoreDamagedError if SQLite finds the file
        damaged (this process then uses the store no more), or if a store that was in use is gone: a
        ProgrammingError says that its tables are missing. Otherwise a plain StoreError.
        """
        message = driver_message(self.address, error)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGE_CODES:
            return self._identity.report_damage(self.name, message)
        if isinstance(error, module.DataError | module.IntegrityError):
            return RefusedError(f"{self.name}: {message}")
        is_lost = code in _LOSS_CODES or isinstance(error, module.ProgrammingError)
        is_lost = is_lost and bool(self._identity.store)
        return (StoreDamagedError if is_lost else StoreError)(f"{self.name}: {message}")

    def check(self) -> None:
        """Raise StoreDamagedError unless the SQLite files at the address are those opened.

        Of a file that was moved away, the rows in its write-ahead log are moved into it. Does
        nothing for a PostgreSQL server.
        """
        if self.kind == "sqlite":
            with self._connected():
                self._check_files()

    def _check_files(self) -> None:
        """Check the open SQLite files as `check` does, if there are any."""
        if self._files is None:
            return
        try:
            self._files.check()
        except StoreDamagedError:
            if self._identity.damage is None:
                with suppress(Exception):  # a transaction is open, or another reader delays it
                    self._files.move_log_into_file()
            raise

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """Lend the connection inside a transaction, committed to disk as a whole or not at all.

        A context manager whose value, a `Session`, runs statements. An exception rolls back. A
        SQLite file is locked for other writers from the beginning; if the files at the address are
        no longer those opened, before or right after the commit, StoreDamagedError is raised.
        """
        is_sqlite = self.kind == "sqlite"
        with self._connected() as connection:
            connection.execute("begin immediate" if is_sqlite else "begin")
            try:
                yield Session(connection, is_sqlite)
                if self._files is not None:
                    self._files.check_place()
            except TalerecError:
                connection.execute("rollback")
                raise
            connection.execute("commit")
            self._check_files()

    def _read(self, query: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a query as tuples; it marks its parameters by `?`."""
        with self._connected() as connection:
            session = Session(connection, self.kind == "sqlite")
            rows: list[Any] = session.execute(query, parameters).fetchall()
        return rows
