"""A store: one connection to a database of events.

    store = Store.open("sqlite:///shop.db")
    store.append([[Event("ann", "tea", 1714560000000000)]])  # [AppendResult(1, 0)], on disk
    store.read_after(0)              # [StoredRow(seq=1, user="ann", item="tea", ...)]
    store.read_user("ann", 2500)     # the user's latest events, oldest first
    store.delete_user("ann", now)    # deletes the events and records the deletion

`seq` numbers events and deletions together, in the order of their commits: a reader that has
seen everything up to a seq misses nothing by asking for the rows after it (`read_after`).
Threads take turns on a connection; for parallel work, open the store more than once.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

from talerec.data.read import (
    WAIT_SECONDS,
    connect_to_write,
    database_kind,
    driver_message,
    hide_secrets,
    load_driver,
)
from talerec.errors import TalerecError
from talerec.store.events import (
    SCHEMA_VERSION,
    AppendResult,
    ConflictError,
    Event,
    RefusedError,
    StoredRow,
    StoreError,
    upgrade_tables,
)

_BATCH_ROWS = 5000  # rows read, and ids looked up, by one statement
_TABLES_LOCK = 0x7A1E  # PostgreSQL advisory lock, held while tables are created
EVENT_COLUMNS = "seq, user_id, item_id, time, event, event_id"


class StoreMeta(NamedTuple):
    """The version of a store's tables, the store's random id, and its last seq.

    The seq numbers all events and deletions in the order of their commits.
    """

    version: int
    store: str
    seq: int


class Session(NamedTuple):
    """An open database connection whose queries mark parameters by `?`.

    For PostgreSQL the marks are rewritten to `%s`.
    """

    connection: Any
    is_sqlite: bool

    def execute(self, query: str, parameters: Any = ()) -> Any:
        """Run a statement, with a value for each `?` in it, and return the database's cursor."""
        return self.connection.execute(self._adapt(query), parameters)

    def execute_many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once for each row of parameters, the values for its `?` marks."""
        self.connection.cursor().executemany(self._adapt(query), rows)

    def fetch_value(self, query: str) -> Any:
        """Return the first column of the first row of a query, which must have a row."""
        return self.execute(query).fetchone()[0]

    def _adapt(self, query: str) -> str:
        """Return a query with the driver's parameter marks: `?` for SQLite, else `%s`."""
        return query if self.is_sqlite else query.replace("?", "%s")


class Store:
    """One connection to an event store.

    Database errors become StoreErrors: one line without a password. The connection is then
    closed, and the next call opens a new one.

    Parameters
    ----------
    address : str
        The address of the database; it may contain a password.
    lock_timeout : float
        Seconds to wait for another writer of a SQLite file.
    statement_timeout : float, optional
        Seconds after which a server ends a statement.
    """

    def __init__(
        self, address: str, lock_timeout: float = WAIT_SECONDS,
        statement_timeout: float | None = None,
    ) -> None:  # fmt: skip
        self._timeouts = lock_timeout, statement_timeout
        self.address, self.name = address, hide_secrets(address)
        self.kind = database_kind(address)
        self._connection: Any = None
        self._lock = threading.RLock()

    @classmethod
    def open(cls, address: str) -> Self:
        """Return a connected store whose tables are created or migrated, and writable.

        Raises
        ------
        TalerecError
            If the database cannot be reached, upgraded or written.
        """
        store = cls(address)
        try:
            store._prepare()
        except TalerecError:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        with self._lock:
            if self._connection is not None:
                with suppress(Exception):
                    self._connection.close()
            self._connection = None

    # -- the connection --

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Lend the database connection to one thread at a time, connecting first if needed.

        A database error closes the connection, which rolls back, and becomes RefusedError (the
        database rejects the values) or StoreError (all other failures).
        """
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = connect_to_write(self.address, *self._timeouts)
                yield self._connection
            except TalerecError:
                raise
            except BaseException as error:
                self.close()
                module = None if self.kind is None else load_driver(self.kind)
                if module is None or not isinstance(error, module.Error):
                    raise
                message = f"{self.name}: {driver_message(self.address, error)}"
                is_refused = isinstance(error, module.DataError | module.IntegrityError)
                raise (RefusedError if is_refused else StoreError)(message) from None

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """Lend the connection inside a transaction, committed to disk as a whole or not at all.

        An exception rolls it back. A SQLite file is locked for other writers from the beginning.
        """
        is_sqlite = self.kind == "sqlite"
        with self._connected() as connection:
            connection.execute("begin immediate" if is_sqlite else "begin")
            try:
                yield Session(connection, is_sqlite)
            except TalerecError:
                connection.execute("rollback")
                raise
            connection.execute("commit")

    def _prepare(self) -> None:
        """Create or migrate the tables, and check that they are writable; else raise TalerecError.

        Tables of a newer version, and PostgreSQL databases not encoded in UTF-8, are refused.
        """
        with self._transaction() as session:
            exists = "select count(*) from sqlite_master where name = 'talerec_meta'"
            if not session.is_sqlite:
                encoding = session.fetch_value("show server_encoding")
                if encoding != "UTF8":
                    raise TalerecError(
                        f"{self.name} has the encoding {encoding}, which cannot store every id:"
                        " create the database with encoding 'UTF8' template template0"
                    )
                session.execute(f"select pg_advisory_xact_lock({_TABLES_LOCK})")
                exists = "select count(to_regclass('talerec_meta'))"
            version = 0
            if session.fetch_value(exists):
                version = int(session.fetch_value("select version from talerec_meta"))
            if version > SCHEMA_VERSION:
                raise TalerecError(
                    f"{self.name} is a store of version {version},"
                    f" and this version of talerec supports up to {SCHEMA_VERSION}"
                )
            upgrade_tables(session.execute, str(self.kind), version)
            session.execute("update talerec_meta set seq = seq")  # fails if read-only

    # -- writing --

    def append(self, requests: Sequence[Sequence[Event]]) -> list[AppendResult | ConflictError]:
        """Store the events of several requests in one commit and return the result of each.

        An event whose `event_id` is stored with the same contents is a duplicate and is not stored
        again. A request with an `event_id` that is stored with other contents is refused as a
        whole: its result is a ConflictError, and the other requests are stored.
        """
        with self._transaction() as session:
            seq = lock_seq(session)
            ids = {e.event_id for request in requests for e in request if e.event_id}
            columns = "user_id, item_id, time, event, event_id, timed"
            query = f"select {columns} from talerec_events where event_id"
            rows_by_id = _select_in(session, query, ids) if ids else ()
            stored = {row[4]: Event._make(row) for row in rows_by_id}
            results: list[AppendResult | ConflictError] = []
            rows: list[Event] = []
            for request in requests:
                result, new = _find_new(request, stored)
                results.append(result)
                rows += new
            _insert(session, seq, rows)
        return results

    def append_missing(self, events: Sequence[Event]) -> tuple[int, int]:
        """Store the events that the store lacks; return how many, and how many were ignored.

        The events have no `event_id`: events with equal user, item and time are the same event, and
        each is stored as often as it occurs in `events`. Ignored are events of a deleted user that
        are not later than the deletion; events that were stored before count in neither number.
        """
        with self._transaction() as session:
            seq = lock_seq(session)
            query = "select user_id, time from talerec_deletions where user_id"
            deleted = dict(_select_in(session, query, {event.user for event in events}))
            valid = [e for e in events if e.time > deleted.get(e.user, e.time - 1)]
            counts = _count_equal(session, valid)
            missing = []
            for event in valid:
                if counts[event[:3]] > 0:
                    counts[event[:3]] -= 1
                else:
                    missing.append(event)
            _insert(session, seq, missing)
        return len(missing), len(events) - len(valid)

    def delete_user(self, user: str, time: int) -> int:
        """Delete the events of a user, record the deletion, and return the deletion's seq.

        `time` is the time of the deletion in microseconds since 1970; it replaces an earlier
        deletion.
        """
        with self._transaction() as session:
            seq = lock_seq(session) + 1
            session.execute("delete from talerec_events where user_id = ?", (user,))
            session.execute("delete from talerec_deletions where user_id = ?", (user,))
            session.execute("insert into talerec_deletions values (?, ?, ?)", (user, seq, time))
            session.execute(f"update talerec_meta set seq = {seq}")
        return seq

    # -- reading --

    def meta(self) -> StoreMeta:
        """Return the version of the tables, the id of the store and the seq of its last row."""
        return StoreMeta(*self._read("select version, store, seq from talerec_meta", ())[0])

    def read_after(self, seq: int, limit: int = _BATCH_ROWS) -> list[StoredRow]:
        """Return the first `limit` rows with a seq above `seq`, in commit order.

        Rows are events and deletions of users (`item` is None), numbered together by their seq.
        """
        query = (
            f"select {EVENT_COLUMNS} from talerec_events where seq > ?"
            " union all select seq, user_id, null, time, null, null"
            " from talerec_deletions where seq > ? order by seq limit ?"
        )
        return [StoredRow(*row) for row in self._read(query, (seq, seq, limit))]

    def read_user(self, user: str, limit: int) -> list[StoredRow]:
        """Return the latest `limit` events of a user, oldest first.

        Events are sorted by time, then by seq, the number of the row in commit order.
        """
        query = (
            f"select {EVENT_COLUMNS} from talerec_events"
            " where user_id = ? order by time desc, seq desc limit ?"
        )
        return [StoredRow(*row) for row in reversed(self._read(query, (user, limit)))]

    def read_deletions(self, after: int = 0) -> dict[str, StoredRow]:
        """Return, by user id, the last deletion of each user deleted after the seq `after`.

        The seq numbers events and deletions in commit order; a deletion is a row without an item.
        """
        query = "select seq, user_id, null, time from talerec_deletions where seq > ?"
        return {row[1]: StoredRow(*row) for row in self._read(query, (after,))}

    def _read(self, query: str, parameters: tuple[Any, ...]) -> list[Any]:
        """Return all rows of a query as tuples; it marks its parameters by `?`."""
        with self._connected() as connection:
            session = Session(connection, self.kind == "sqlite")
            rows: list[Any] = session.execute(query, parameters).fetchall()
        return rows


def lock_seq(session: Session) -> int:
    """Return the seq (commit-order number) of the last stored row, and keep other writers out.

    Until the commit, no other connection can write. SQLite is locked by the transaction itself.
    """
    lock = "" if session.is_sqlite else " for update"
    return int(session.fetch_value(f"select seq from talerec_meta{lock}"))


def _select_in(session: Session, query: str, values: set[str]) -> Any:
    """Run a query restricted to rows where a column is one of `values`; return the cursor.

    `query` is a select statement that ends with "where" and the name of the column.
    """
    if session.is_sqlite:
        query += " in (select value from json_each(?))"
        return session.execute(query, (json.dumps([*values]),))
    return session.execute(f"{query} = any(?)", ([*values],))


def _count_equal(session: Session, events: Sequence[Event]) -> Counter[tuple[str, str, int]]:
    """Count the stored events that equal one of `events`, by (user, item, time).

    Keys that are not stored are missing from the Counter, which reports them as 0.
    """
    keys = list(dict.fromkeys(event[:3] for event in events))
    if session.is_sqlite:
        names = ("user_id", "item_id", "time")
        fields = ", ".join(f"json_extract(value, '$[{n}]') {name}" for n, name in enumerate(names))
        parameters: Any = (json.dumps(keys),)
        table = f"(select {fields} from json_each(?)) k"
    else:
        parameters = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
        table = "unnest(?::text[], ?::text[], ?::bigint[]) as k (user_id, item_id, time)"
    query = (
        f"select k.user_id, k.item_id, k.time, count(*) from {table} cross join talerec_events e"
        " where e.user_id = k.user_id and e.time = k.time and e.item_id = k.item_id"
        " group by 1, 2, 3"
    )
    return Counter({tuple(row[:3]): row[3] for row in session.execute(query, parameters)})


def _insert(session: Session, seq: int, events: list[Event]) -> None:
    """Insert events with the numbers `seq` + 1, `seq` + 2, ... and store the last number.

    `seq` is that of the last stored row, which the caller has locked.
    """
    if not events:
        return
    rows = [(seq + n, *event[:5], int(event.has_time)) for n, event in enumerate(events, 1)]
    if session.is_sqlite:
        session.execute_many("insert into talerec_events values (?, ?, ?, ?, ?, ?, ?)", rows)
    else:  # one statement is faster on a server
        types = ("bigint", "text", "text", "bigint", "text", "text", "integer")
        arrays = ", ".join(f"?::{name}[]" for name in types)
        columns = [list(column) for column in zip(*rows, strict=True)]
        session.execute(f"insert into talerec_events select * from unnest({arrays})", columns)
    session.execute(f"update talerec_meta set seq = {seq + len(rows)}")


def _find_new(
    request: Sequence[Event], stored: dict[str, Event]
) -> tuple[AppendResult | ConflictError, list[Event]]:
    """Return the result of one request and those of its events that are not stored yet.

    `stored` maps event ids to events. The new events that have an `event_id` are added to it in
    place. On a conflict (same id, other contents) the list is empty and `stored` is unchanged.
    """
    new: list[Event] = []
    new_by_id: dict[str, Event] = {}
    for index, event in enumerate(request):
        event_id = event.event_id
        before = None if event_id is None else new_by_id.get(event_id) or stored.get(event_id)
        if before is None:
            new.append(event)
            if event_id is not None:
                new_by_id[event_id] = event
        elif not event.is_repeat_of(before):
            return ConflictError(index, str(event_id)), []
    stored |= new_by_id
    return AppendResult(len(new), len(request) - len(new)), new
