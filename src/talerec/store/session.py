"""SQL statements of an event store, for SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from talerec.store.events import Event


class Session(NamedTuple):
    """An open connection to SQLite or PostgreSQL whose queries mark parameters by `?`.

    `connection` is the driver's connection. For PostgreSQL the marks are rewritten to `%s`.
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


def lock_meta(session: Session) -> tuple[int, int]:
    """Return the last row's number (seq) and `deleted_until`; keep other writers out.

    Rows, events and deletions alike, are numbered in the order of their commits. `deleted_until` is
    the latest time, in microseconds since 1970, up to which a deletion of a user holds. Until the
    end of the transaction of `session`, no other connection can write: PostgreSQL locks the row of
    `talerec_meta`, and a SQLite file is locked by the transaction itself.
    """
    lock = "" if session.is_sqlite else " for update"
    row = session.execute(f"select seq, deleted_until from talerec_meta{lock}").fetchone()
    return int(row[0]), int(row[1])


def lock_seq(session: Session) -> int:
    """Return the number (seq) of the last stored row, and keep other writers out.

    They wait until the end of the transaction of `session` (see `lock_meta`).
    """
    return lock_meta(session)[0]


def find_deletions(session: Session, users: set[str]) -> dict[str, int]:
    """Return, for those of `users` who were deleted, the time up to which the deletion holds.

    Ids are text, times microseconds since 1970.
    """
    query = "select user_id, time from talerec_deletions where user_id"
    return dict(select_in(session, query, users).fetchall())


def select_in(session: Session, query: str, values: set[str]) -> Any:
    """Run a query restricted to rows where a column is one of `values`; return the cursor.

    `query` is a select statement that ends with "where" and the name of the column.
    """
    if session.is_sqlite:
        query += " in (select value from json_each(?))"
        return session.execute(query, (json.dumps([*values]),))
    return session.execute(f"{query} = any(?)", ([*values],))


def count_equal_events(session: Session, events: Sequence[Event]) -> Counter[tuple[str, str, int]]:
    """Count the stored events that equal one of `events`, by (user, item, time).

    The keys are ids as text and the time in microseconds. Keys that are not stored are missing from
    the Counter, which reports them as 0. SQLite gets the keys as JSON, PostgreSQL as three arrays.
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


def insert_events(session: Session, seq: int, events: list[Event]) -> None:
    """Insert events with the numbers `seq` + 1, `seq` + 2, ... and store the last number.

    `seq` is that of the last stored row, which the caller has locked with `lock_seq`. Nothing is
    written if `events` is empty.
    """
    if not events:
        return
    rows = [
        (seq + n, *event[:5], int(event.has_time), event.recommendation_id)
        for n, event in enumerate(events, 1)
    ]
    if session.is_sqlite:
        session.execute_many("insert into talerec_events values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    else:  # one statement is faster on a server
        types = ("bigint", "text", "text", "bigint", "text", "text", "integer", "text")
        arrays = ", ".join(f"?::{name}[]" for name in types)
        columns = [list(column) for column in zip(*rows, strict=True)]
        session.execute(f"insert into talerec_events select * from unnest({arrays})", columns)
    session.execute(f"update talerec_meta set seq = {seq + len(rows)}")


def delete_impressions(session: Session, user: str) -> None:
    """Delete a user's impressions, and anonymous ones that an event of the user names."""
    session.execute("delete from talerec_impressions where user_id = ?", (user,))
    named = "select recommendation_id from talerec_events where user_id = ?"
    anonymous = "delete from talerec_impressions where user_id is null and id in"
    session.execute(f"{anonymous} ({named} and recommendation_id is not null)", (user,))
