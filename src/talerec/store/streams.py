"""Events from a stream of lines: where each stream stands, and what a commit of lines did.

A stream is a sequence of lines that are numbered from 1. The number of the last stored line, the
cursor, is written in the commit that stores the lines: whatever ends the process, every line up to
the cursor is on disk, none is there twice, and none beyond it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from talerec.errors import TalerecError
from talerec.store.events import AppendResult, ConflictError, Event
from talerec.store.session import Session
from talerec.store.store import Store


class StreamCursor(NamedTuple):
    """The position of a stream: its last stored line, and fingerprints of two of its lines."""

    line: int = 0  # 0: no line is stored
    first: str | None = None  # fingerprint of line 1; None if the stream began later
    last: str | None = None  # fingerprint of line `line`


class LineConflictError(TalerecError):
    """The event of a line has the id of a stored event with other contents.

    `index` is the position of the event among those of the commit, which is rolled back.
    """

    def __init__(self, index: int, event_id: str | None) -> None:
        self.index = index
        super().__init__(f"event_id {event_id!r} exists with other contents")


class StreamStore(Store):
    """An event store that remembers streams, by name, in a table of its own."""

    def open_stream(self, name: str) -> StreamCursor:
        """Return where a stream stands; the table of streams is created if there is none."""
        with self._transaction() as session:
            session.execute(
                "create table if not exists talerec_streams (name text not null primary key,"
                " line bigint not null, first_line text, last_line text)"
            )
            return _read_cursor(session, name)

    def append_lines(
        self, name: str, before: StreamCursor, after: StreamCursor, events: Sequence[Event], *,
        skips_conflicts: bool,
    ) -> list[AppendResult | ConflictError]:  # fmt: skip
        """Store events of a stream's next lines and move its cursor, in one commit.

        Returns the result of each event. TalerecError, and nothing is stored, if the stream does
        not stand at `before`; LineConflictError, and nothing is stored, for an `event_id` that is
        stored with other contents, unless `skips_conflicts`.
        """

        def move_cursor(session: Session, results: list[AppendResult | ConflictError]) -> None:
            """Write the cursor into the transaction that stores the events."""
            if not skips_conflicts:
                for index, result in enumerate(results):
                    if isinstance(result, ConflictError):
                        raise LineConflictError(index, events[index].event_id)
            if _read_cursor(session, name) != before:
                raise TalerecError(f"another process follows the stream {name!r}")
            session.execute("delete from talerec_streams where name = ?", (name,))
            session.execute("insert into talerec_streams values (?, ?, ?, ?)", (name, *after))

        return self.append([[event] for event in events], move_cursor)


def fingerprint(line: bytes) -> str:
    """Return a short hash of a line, by which another stream of the same name is recognised."""
    return hashlib.sha256(line.rstrip(b"\r\n")).hexdigest()[:16]


def _read_cursor(session: Session, name: str) -> StreamCursor:
    """Return where a stream stands, read in the transaction of `session`."""
    query = "select line, first_line, last_line from talerec_streams where name = ?"
    row = session.execute(query, (name,)).fetchone()
    return StreamCursor() if row is None else StreamCursor(*row)
