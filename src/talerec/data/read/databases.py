"""Databases: the only module that imports their drivers and parses their addresses.

sqlite:///shop.db           a relative path; sqlite:////var/shop.db: an absolute path
duckdb:///shop.duckdb
postgresql://user@host:5432/shop
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import polars as pl

from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import collect_garbage_at_exit

#: Kinds of databases by the scheme of an address, and by the ending of a file.
_SCHEMES = {
    "sqlite": "sqlite", "duckdb": "duckdb", "postgresql": "postgresql", "postgres": "postgresql"
}  # fmt: skip
_ENDINGS = {
    ".db": "sqlite", ".sqlite": "sqlite", ".sqlite3": "sqlite",
    ".duckdb": "duckdb", ".ddb": "duckdb",
}  # fmt: skip
_DRIVERS = {"sqlite": "sqlite3", "duckdb": "duckdb", "postgresql": "psycopg"}
_BATCH_ROWS = 100_000  # fetched at a time


def database_kind(address: str) -> str | None:
    """Return sqlite, duckdb or postgresql for the address of a database, else None.

    An address begins with sqlite://, duckdb://, postgresql:// or postgres://, or is a file name
    that ends in .db, .sqlite, .sqlite3, .duckdb or .ddb.
    """
    start, marker, _ = address.partition("://")
    scheme = start.lower() if marker else ""
    return _SCHEMES.get(scheme) or (None if scheme else _ENDINGS.get(Path(address).suffix.lower()))


def database_file(address: str) -> Path | None:
    """Return the path of a database's file; None for a server, or if it is not a database.

    `address` is such as sqlite:///shop.db (a relative path), or the path itself.
    """
    kind = database_kind(address)
    if kind in (None, "postgresql"):
        return None
    if "://" not in address:
        return Path(address)
    return Path(unquote(_split_url(address).path[1:]))


def load_driver(kind: str) -> Any:
    """Return the driver module for `kind`: sqlite, duckdb or postgresql.

    TalerecError that names the extra to install if the module is missing. For DuckDB, garbage is
    collected at the end of the process, which its objects need.
    """
    if kind == "duckdb":
        collect_garbage_at_exit()
    try:
        return import_module(_DRIVERS[kind])
    except ImportError as error:
        raise TalerecError(
            f"reading from {kind} needs the extra `databases` ({error.name} is missing): "
            "pip install 'talerec[databases]'"
        ) from None


@contextmanager
def connect_to_read(address: str) -> Iterator[Any]:
    """Yield a read-only connection to the database at an address such as sqlite:///shop.db.

    TalerecError if there is no such file; the driver's errors become InvalidLogErrors, without
    passwords.
    """
    kind, path = database_kind(address), database_file(address)
    if kind is None:
        raise TalerecError(f"{hide_secrets(address)} is not the address of a database")
    if path is not None and not path.is_file():
        raise TalerecError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    module = load_driver(kind)
    try:
        with closing(_connect(module, kind, address, path)) as connection:
            yield connection
    except module.Error as error:
        refusal = InvalidLogError(driver_message(address, error))
        refusal.locate(hide_secrets(address))
        raise refusal from None


def _connect(module: Any, kind: str, address: str, path: Path | None) -> Any:
    """Return a read-only connection to a database of `kind`, made by its driver `module`.

    `path` is the file of an SQLite or DuckDB database; None for PostgreSQL, reached by `address`.
    """
    if path is None:
        return module.connect(re.sub(r"^\w+", kind, address), connect_timeout=10)
    if kind == "duckdb":
        return module.connect(str(path), read_only=True)
    return module.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def driver_message(address: str, error: Exception) -> str:
    """Return the first line of a driver's message, without the address's password."""
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    return remove_secrets(address, message)


# -- writing ---------------------------------------------------------------------------------------

WAIT_SECONDS = 5  # for a server to answer, and for other writers of a file

#: A server that vanished is noticed after about ten seconds.
_KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}


def connect_to_write(
    address: str, wait_seconds: float = WAIT_SECONDS, max_statement_seconds: float | None = None,
    *, create: bool = False,
) -> Any:  # fmt: skip
    """Return a connection that may write; each statement commits outside a transaction.

    `address` is that of an SQLite file, created if it is missing and `create` is true, or of a
    PostgreSQL server; TalerecError for others. Commits wait for the disk. `wait_seconds` is how
    long to wait for other writers of a file, and `max_statement_seconds` how long a statement may
    take on a server. Threads may take turns. Errors of the driver are raised as they are.
    """
    kind, path = database_kind(address), database_file(address)
    if kind not in ("sqlite", "postgresql"):
        raise TalerecError(
            f"{hide_secrets(address)} is not a store: "
            "write sqlite:///shop.db or postgresql://host/shop"
        )
    module = load_driver(kind)
    if path is not None:
        connection = module.connect(
            f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True, timeout=wait_seconds, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        settings = ["pragma synchronous = full", "pragma secure_delete = on"]
    else:
        connection = module.connect(
            re.sub(r"^\w+", kind, address), autocommit=True, client_encoding="utf8",
            connect_timeout=WAIT_SECONDS, tcp_user_timeout=1000 * WAIT_SECONDS, **_KEEPALIVES,
        )  # fmt: skip
        settings = ["set synchronous_commit = on", f"set lock_timeout = '{WAIT_SECONDS}s'"]
        if max_statement_seconds is not None:
            settings.append(f"set statement_timeout = {round(1000 * max_statement_seconds)}")
        settings.append(f"set idle_in_transaction_session_timeout = '{4 * WAIT_SECONDS}s'")
    try:
        if path is not None:
            _enable_write_ahead(connection, module, wait_seconds)
        for statement in settings:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _enable_write_ahead(connection: Any, driver: Any, wait_seconds: float) -> None:
    """Let a SQLite file be read while it is written (journal mode WAL).

    If several connections create a file at once, SQLite fails all but one: they retry for
    `wait_seconds`. `driver` is the module sqlite3.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except driver.OperationalError as error:
            if not _is_locked(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _is_locked(error: Exception) -> bool:
    """Return whether SQLite reports that another connection holds the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED


# -- queries ---------------------------------------------------------------------------------------


def read_query(address: str, query: str) -> pl.DataFrame:
    """Return the rows of an SQL query to the database at `address`, in the query's order.

    InvalidLogError if the query fails, or does not return rows (with DuckDB: an empty frame).
    """
    with connect_to_read(address) as connection:
        if database_kind(address) == "duckdb":
            relation = connection.sql(query)
            return pl.DataFrame() if relation is None else pl.DataFrame(relation.to_arrow_table())
        with closing(_open_cursor(connection, database_kind(address))) as cursor:
            cursor.execute(query)
            names = [column[0] for column in cursor.description or ()]
            if not names:
                raise InvalidLogError("the query returns no rows: write a select")
            return _build_frame(names, iter(lambda: cursor.fetchmany(_BATCH_ROWS), []))


def _open_cursor(connection: Any, kind: str | None) -> Any:
    """Return a cursor of a database connection that fetches rows in batches.

    `kind` is sqlite or postgresql; for PostgreSQL the connection becomes read-only and the cursor
    is a named one, whose rows stay on the server until they are fetched.
    """
    if kind == "postgresql":  # rows stay on the server until they are fetched
        connection.read_only = True
        return connection.cursor(name="talerec")
    return connection.cursor()


def _build_frame(names: list[str], batches: Iterator[list[Any]]) -> pl.DataFrame:
    """Return batches of rows as a frame with columns `names`; InvalidLogError for mixed types.

    Each batch is a list of rows, and each row a tuple with a value per column. Without rows, the
    columns are text.
    """
    batch_columns = (zip(names, zip(*rows, strict=True), strict=True) for rows in batches)
    parts = [
        pl.DataFrame([_build_column(n, list(v)) for n, v in columns]) for columns in batch_columns
    ]
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String()))
    try:
        return pl.concat(parts, how="vertical_relaxed")
    except pl.exceptions.SchemaError:
        message = "a column of the query has values of several types: cast it"
        raise InvalidLogError(message) from None


def _build_column(name: str, values: list[Any]) -> pl.Series:
    """Return a column of a query's result, UUIDs as text; InvalidLogError for mixed types."""
    if values and type(values[0]).__name__ == "UUID":
        values = [None if value is None else str(value) for value in values]
    try:
        return pl.Series(name, values)
    except (TypeError, ValueError, OverflowError):
        message = f"column {name!r} of the query has values of several types: cast it"
        raise InvalidLogError(message) from None


_QUOTED_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)


def has_order_by(query: str) -> bool:
    """Return whether a query has an `order by` outside of brackets, quotes and comments."""
    text, previous = _QUOTED_OR_COMMENT.sub(" ", query), ""
    while text != previous:
        text, previous = re.sub(r"\([^()]*\)", " ", text), text
    return bool(re.search(r"\border\s+by\b", text, re.IGNORECASE))


# -- addresses for people --------------------------------------------------------------------------


def hide_secrets(address: str) -> str:
    """Return an address without its password and its query string, which may hold keys.

    Paths without "://" are returned as they are; *** and ?... stand for what is left out.
    """
    if "://" not in address:
        return address
    parts = _split_address(address)
    return f"{parts.scheme}://{parts.place}" + ("?..." if parts.query else "")


def remove_secrets(address: str, message: str) -> str:
    """Return an error message with the passwords and keys of an address replaced by ***.

    `address` is that of a database, a web page or a cloud store, which the message may quote.
    """
    if "://" not in address:
        return message
    message = message.replace(address, hide_secrets(address))
    parts = _split_address(address)
    passwords = [value for key, value in parse_qsl(parts.query) if "password" in key.lower()]
    secrets = {parts.query, parts.password, unquote(parts.password), *passwords}
    if database_kind(address) == "postgresql":  # its driver splits passwords at delimiters
        pieces = {
            piece for secret in secrets - {parts.query} for piece in _DELIMITERS.split(secret)
        }
        secrets |= {piece for piece in pieces if len(piece) > 1}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        message = message.replace(secret, "***")
    return message


_DELIMITERS = re.compile(r"[@/?#&=:,\[\]\s]")


class _AddressParts(NamedTuple):
    """The parts of an address such as postgresql://ann:secret@host:5432/shop?sslmode=require."""

    scheme: str  # postgresql
    place: str  # the public part: ann:***@host:5432/shop
    password: str  # "" if there is none
    query: str  # sslmode=require; it may hold keys


def _split_address(address: str) -> _AddressParts:
    """Return the parts of an address of a database, a web page or a cloud store.

    The parts are its scheme, its public part (*** for the password), password and query string.
    """
    if database_kind(address) == "postgresql":
        return _split_postgresql(address)
    parts = _split_url(address)
    login, at, host = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    place = f"{user}{':***' if colon else ''}{at}{host}{parts.path}"
    return _AddressParts(parts.scheme, place, password, parts.query)


def _split_postgresql(address: str) -> _AddressParts:
    """Return scheme, public part, password and query string of a PostgreSQL address.

    Passwords may be pasted unquoted: everything between the user and the last @ is the password.
    The public part has *** instead of it.
    """
    scheme, _, rest = address.partition("://")
    login, at, after = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not at or re.search(r"[/?#]", user):  # an @ in the query
        user = colon = password = at = ""
        after = rest
    place, _, query = after.partition("?")
    if re.search(r"\?.*=", password, re.DOTALL):  # an @ in a query: its rest may be secret too
        query = rest.partition("?")[2]
        return _AddressParts(scheme.lower(), f"{user}:***", password, query)
    public = f"{user}{':***' if colon else ''}{at}{place}"
    return _AddressParts(scheme.lower(), public, password, query)


def _split_url(address: str) -> SplitResult:
    """Return the parts of a URL; TalerecError, without the URL's secrets, if it is malformed."""
    try:
        return urlsplit(address)
    except ValueError as error:
        scheme = address.partition("://")[0]
        raise TalerecError(f"an address of {scheme} cannot be read: {error}") from None
