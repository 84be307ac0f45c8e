"""Databases: the only place that imports their drivers, and the one home of their addresses.

sqlite:///shop.db           a file beside you; sqlite:////var/shop.db: an absolute path
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
from talerec.runtime import process

#: Kinds of databases by the scheme of an address.
SCHEMES = {
    "sqlite": "sqlite",
    "duckdb": "duckdb",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
#: Kinds of databases by the ending of a file.
ENDINGS = {
    ".db": "sqlite",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".duckdb": "duckdb",
    ".ddb": "duckdb",
}
_DRIVERS = {"sqlite": "sqlite3", "duckdb": "duckdb", "postgresql": "psycopg"}
_ROWS = 100_000  # fetched at a time


def kind_of(address: str) -> str | None:
    """The kind of database that an address names: sqlite, duckdb, postgresql; None for anything else."""
    before, mark, _ = address.partition("://")
    scheme = before.lower() if mark else ""
    return SCHEMES.get(scheme) or (None if scheme else ENDINGS.get(Path(address).suffix.lower()))


def file_of(address: str) -> Path | None:
    """The file that a database is in; None for a server."""
    kind = kind_of(address)
    if kind in (None, "postgresql"):
        return None
    if "://" not in address:
        return Path(address)
    return Path(unquote(_split(address).path[1:]))


def driver(kind: str) -> Any:
    """The module that speaks to a kind of database; where it is missing, an error says which extra has it."""
    if kind == "duckdb":
        process.collect_at_the_end()
    try:
        return import_module(_DRIVERS[kind])
    except ImportError as error:
        raise TalerecError(
            f"reading from {kind} needs the extra `databases` ({error.name} is missing): "
            "pip install 'talerec[databases]'"
        ) from None


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A connection to a database that is only read; whatever its driver refuses is one line without a password."""
    kind, path = kind_of(address), file_of(address)
    if kind is None:
        raise TalerecError(f"{shown(address)} is not the address of a database")
    if path is not None and not path.is_file():
        raise TalerecError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    module = driver(kind)
    try:
        with closing(_connect(module, kind, address, path)) as connection:
            yield connection
    except module.Error as error:
        raise InvalidLogError(f"{shown(address)}: {reason(address, error)}") from None


def _connect(module: Any, kind: str, address: str, path: Path | None) -> Any:
    if path is None:
        return module.connect(re.sub(r"^\w+", kind, address), connect_timeout=10)
    if kind == "duckdb":
        return module.connect(str(path), read_only=True)
    return module.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def reason(address: str, error: Exception) -> str:
    """The first line of a driver's message, without the password of the address."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return without_password(address, said)


# -- writing ---------------------------------------------------------------------------------------

PATIENCE_S = 5  # seconds: for a server to answer, and for whoever else writes to a file


#: A server that is gone without a word is noticed after about ten seconds.
_KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}


def connect_to_write(
    address: str, patience: float = PATIENCE_S, longest: float | None = None
) -> Any:
    """A connection that may write, each statement a transaction of its own unless one is begun.

    Commits wait for the disk. `patience` is how long it waits for whoever else writes to a file, `longest` how long a statement may take on a server. A SQLite file is made where there is none; threads may take turns. Driver errors are the caller's.
    """
    kind, path = kind_of(address), file_of(address)
    if kind not in ("sqlite", "postgresql"):
        raise TalerecError(
            f"{shown(address)} is not a store: write sqlite:///shop.db or postgresql://host/shop"
        )
    module = driver(kind)
    if path is not None:
        made = module.connect(
            f"{path.absolute().as_uri()}?mode=rwc",
            uri=True, timeout=patience, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        _write_ahead(made, module, patience)
        made.execute("pragma synchronous = full")
        return made
    made = module.connect(
        re.sub(r"^\w+", kind, address),
        autocommit=True,
        client_encoding="utf8",
        connect_timeout=PATIENCE_S,
        tcp_user_timeout=1000 * PATIENCE_S,
        **_KEEPALIVES,
    )
    made.execute("set synchronous_commit = on")
    made.execute(f"set lock_timeout = '{PATIENCE_S}s'")
    if longest is not None:
        made.execute(f"set statement_timeout = {round(1000 * longest)}")
    made.execute(f"set idle_in_transaction_session_timeout = '{4 * PATIENCE_S}s'")
    return made


def _write_ahead(connection: Any, module: Any, patience: float) -> None:
    """Let a SQLite file be read while it is written. Of several who make a new file, SQLite lets all but one fail at once: they try again."""
    end = time.monotonic() + patience
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except module.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


# -- queries ---------------------------------------------------------------------------------------


def read_query(address: str, query: str) -> pl.DataFrame:
    """The rows that a query gives, in its order."""
    with connected(address) as connection:
        if kind_of(address) == "duckdb":
            found = connection.sql(query)
            return pl.DataFrame() if found is None else pl.DataFrame(found.to_arrow_table())
        with closing(_cursor(connection, kind_of(address))) as cursor:
            cursor.execute(query)
            names = [column[0] for column in cursor.description or ()]
            if not names:
                raise InvalidLogError(f"{shown(address)}: the query gives no rows: write a select")
            return _table(names, iter(lambda: cursor.fetchmany(_ROWS), []))


def _cursor(connection: Any, kind: str | None) -> Any:
    if kind == "postgresql":  # rows stay on the server until they are fetched
        connection.read_only = True
        return connection.cursor(name="talerec")
    return connection.cursor()


def _table(names: list[str], batches: Iterator[list[Any]]) -> pl.DataFrame:
    parts = [_frame(names, rows) for rows in batches]
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String()))
    try:
        return pl.concat(parts, how="vertical_relaxed")
    except pl.exceptions.SchemaError:
        raise InvalidLogError("a column of the query is not of one kind: cast it") from None


def _frame(names: list[str], rows: list[Any]) -> pl.DataFrame:
    columns = zip(*rows, strict=True)
    return pl.DataFrame(
        [_column(name, list(values)) for name, values in zip(names, columns, strict=True)]
    )


def _column(name: str, values: list[Any]) -> pl.Series:
    if values and type(values[0]).__name__ == "UUID":
        values = [None if value is None else str(value) for value in values]
    try:
        return pl.Series(name, values)
    except (TypeError, ValueError, OverflowError):
        raise InvalidLogError(f"column {name!r} of the query is not of one kind: cast it") from None


_NOISE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)


def is_ordered(query: str) -> bool:
    """Has a query an `order by` of its own, not one inside of brackets, quotes or comments?"""
    text, before = _NOISE.sub(" ", query), ""
    while text != before:
        text, before = re.sub(r"\([^()]*\)", " ", text), text
    return bool(re.search(r"\border\s+by\b", text, re.IGNORECASE))


# -- addresses for people --------------------------------------------------------------------------


def shown(address: str) -> str:
    """An address as people may see it: without its password, and without a query string, which may hold keys."""
    if "://" not in address:
        return address
    parts = _parts(address)
    return f"{parts.scheme}://{parts.place}" + ("?..." if parts.query else "")


def without_password(address: str, text: str) -> str:
    """A text without the secrets of an address that it may quote, whole or in pieces."""
    if "://" not in address:
        return text
    text = text.replace(address, shown(address))
    parts = _parts(address)
    named = [value for key, value in parse_qsl(parts.query) if "password" in key.lower()]
    secrets = {parts.query, parts.password, unquote(parts.password), *named}
    if kind_of(address) == "postgresql":  # its driver takes unquoted signs for ends of parts
        pieces = {piece for secret in secrets - {parts.query} for piece in _ENDS.split(secret)}
        secrets |= {piece for piece in pieces if len(piece) > 1}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


_ENDS = re.compile(r"[@/?#&=:,\[\]\s]")


class _Parts(NamedTuple):
    """Of an address: `place` is what people may see of it, the query apart."""

    scheme: str
    place: str
    password: str
    query: str


def _parts(address: str) -> _Parts:
    if kind_of(address) == "postgresql":
        return _postgresql_parts(address)
    parts = _split(address)
    login, at, host = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    place = f"{user}{':***' if colon else ''}{at}{host}{parts.path}"
    return _Parts(parts.scheme, place, password, parts.query)


def _postgresql_parts(address: str) -> _Parts:
    """People paste passwords as they are: up to the last @ everything after the user is one, whatever signs it has."""
    scheme, _, rest = address.partition("://")
    login, at, after = rest.rpartition("@")
    user, colon, password = login.partition(":")
    if not at or re.search(r"[/?#]", user):  # an @ of the query
        user = colon = password = at = ""
        after = rest
    place, _, query = after.partition("?")
    if re.search(
        r"\?.*=", password, re.DOTALL
    ):  # or of a query: what comes after it may be secret too
        query = rest.partition("?")[2]
        return _Parts(scheme.lower(), f"{user}:***", password, query)
    return _Parts(scheme.lower(), f"{user}{':***' if colon else ''}{at}{place}", password, query)


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        scheme = address.partition("://")[0]
        raise TalerecError(f"an address of {scheme} cannot be read: {error}") from None
