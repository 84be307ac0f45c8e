"""A store: one connection to a database of events. Threads take turns; for work side by side, open it more than once.

    store = Store.open("sqlite:///shop.db")
    store.append([[Event("ann", "tea", 1714560000000000)]])     # [Added(accepted=1, duplicates=0)], on disk
    store.tail(0)                                               # [Kept(seq=1, user="ann", item="tea", ...)]
    store.of_user("ann", 2500)                                  # the user's last rows, oldest first
    store.forget("ann", now)                                    # the rows are gone, a deletion stays

`seq` counts events and deletions together, in the order of their commits: who has seen everything up to a seq misses nothing by
asking for what comes after it (`tail`).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self, TypeVar

from talerec.data.read import databases
from talerec.errors import TalerecError
from talerec.store import schema
from talerec.store.events import Added, ConflictError, Event, Kept, RefusedError, StoreError

T = TypeVar("T")
Outcome = Added | ConflictError

_AT_A_TIME = 5000  # rows that are read, and ids that are looked up, in one statement
_LOCK = 0x7A1E  # of PostgreSQL: who makes the tables


class Meta(NamedTuple):
    """What a store says of itself: the version of its tables, an id of its own, and the last seq."""

    version: int
    store: str
    seq: int


class Store:
    """One connection to a store. Errors of the database are StoreErrors, one line without a password; the next call connects anew.

    `patience`: seconds to wait for whoever else writes to a file. `longest`: seconds after which a server ends a statement.
    """

    def __init__(
        self,
        address: str,
        patience: float = databases.PATIENCE_S,
        longest: float | None = None,
    ) -> None:
        self._patience, self._longest = patience, longest
        self.address, self.name = address, databases.shown(address)
        self.kind = databases.kind_of(address)
        self._connection: Any = None
        self._lock = threading.RLock()
        self._mark = "?" if self.kind == "sqlite" else "%s"

    @classmethod
    def open(cls, address: str) -> Self:
        """Connect, make or upgrade the tables, and see that they can be written; TalerecError where that fails."""
        opened = cls(address)
        try:
            with opened._used() as connection:
                opened._prepare(connection)
        except TalerecError:
            opened.close()
            raise
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                with suppress(Exception):
                    self._connection.close()
            self._connection = None

    # -- the connection --

    @contextmanager
    def _used(self) -> Iterator[Any]:
        """The connection, for one thread at a time. After an error it is closed, which undoes what was not committed."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = databases.connect_to_write(
                        self.address, self._patience, self._longest
                    )
                yield self._connection
            except TalerecError:
                raise
            except BaseException as error:
                self.close()
                module = None if self.kind is None else databases.driver(self.kind)
                if module is None or not isinstance(error, module.Error):
                    raise
                said = databases.reason(self.address, error)
                is_refused = isinstance(error, module.DataError | module.IntegrityError)
                kind = RefusedError if is_refused else StoreError
                raise kind(f"{self.name}: {said}") from None

    @contextmanager
    def _transaction(self, connection: Any) -> Iterator[None]:
        """What is done in the block is kept as a whole, on disk, or not at all. Writers take turns from its beginning."""
        connection.execute("begin immediate" if self.kind == "sqlite" else "begin")
        try:
            yield
        except TalerecError:
            connection.execute("rollback")
            raise
        connection.execute("commit")

    def _prepare(self, connection: Any) -> None:
        with self._transaction(connection):
            if self.kind == "postgresql":
                self._check_encoding(connection)
                connection.execute(f"select pg_advisory_xact_lock({_LOCK})")
            found = self._version(connection)
            if found > schema.VERSION:
                raise TalerecError(
                    f"{self.name} is a store of version {found}, and this version of talerec knows up to {schema.VERSION}"
                )
            schema.upgrade(connection.execute, str(self.kind), found)
            connection.execute(
                "update talerec_meta set seq = seq"
            )  # refused where nothing can be written

    def _check_encoding(self, connection: Any) -> None:
        found = connection.execute("show server_encoding").fetchone()[0]
        if found != "UTF8":
            raise TalerecError(
                f"{self.name} is encoded as {found}, which does not keep every id: create database ... encoding 'UTF8' template template0"
            )

    def _version(self, connection: Any) -> int:
        there = (
            "select count(*) from sqlite_master where name = 'talerec_meta'"
            if self.kind == "sqlite"
            else "select count(to_regclass('talerec_meta'))"
        )
        if not connection.execute(there).fetchone()[0]:
            return 0
        return int(connection.execute("select version from talerec_meta").fetchone()[0])

    # -- writing --

    def append(self, requests: Sequence[Sequence[Event]]) -> list[Outcome]:
        """Keep the events of several requests with one commit: what became of each, once all is on disk.

        An event whose `event_id` is known with the same contents is a duplicate, and is not kept again. A request with an
        `event_id` that is known with other contents is refused as a whole; the others go on.
        """
        with self._used() as connection, self._transaction(connection):
            seq = self._hold(connection)
            known = self._known(connection, {e.event_id for r in requests for e in r if e.event_id})
            outcomes: list[Outcome] = []
            rows: list[Event] = []
            for request in requests:
                outcome, fresh = _sifted(request, known)
                outcomes.append(outcome)
                rows += fresh
            self._insert(connection, seq, rows)
        return outcomes

    def add_missing(self, events: Sequence[Event]) -> tuple[int, int]:
        """Keep events, without an `event_id`, that are not there with the same user, item and time: how many were kept, and how many are of deleted users.

        Where some are there less often than among these, those that lack are kept. Events of a deleted user are kept where
        they are later than the deletion.
        """
        with self._used() as connection, self._transaction(connection):
            seq = self._hold(connection)
            gone = self._gone(connection, {event.user for event in events})
            alive = [event for event in events if event.time > gone.get(event.user, event.time - 1)]
            there = self._counts(connection, alive)
            fresh = []
            for event in alive:
                if there[event[:3]] > 0:
                    there[event[:3]] -= 1
                else:
                    fresh.append(event)
            self._insert(connection, seq, fresh)
        return len(fresh), len(events) - len(alive)

    def _gone(self, connection: Any, users: set[str]) -> dict[str, int]:
        """When those of these users who were deleted were."""
        what = "select user_id, time from talerec_deletions where user_id"
        rows = (
            connection.execute(
                f"{what} in (select value from json_each(?))", (json.dumps([*users]),)
            )
            if self.kind == "sqlite"
            else connection.execute(f"{what} = any(%s)", ([*users],))
        )
        return dict(rows)

    def _counts(self, connection: Any, events: Sequence[Event]) -> Counter[tuple[str, str, int]]:
        """How often each user, item and time of these is there."""
        keys = list(dict.fromkeys(event[:3] for event in events))
        same = "e.user_id = k.user_id and e.time = k.time and e.item_id = k.item_id"
        if self.kind == "sqlite":
            of = "json_extract(value, '$[0]') user_id, json_extract(value, '$[1]') item_id, json_extract(value, '$[2]') time"
            given: Any = (json.dumps(keys),)
            asked = f"(select {of} from json_each(?)) k"
        else:
            given = [list(column) for column in zip(*keys, strict=True)] or [[], [], []]
            asked = "unnest(%s::text[], %s::text[], %s::bigint[]) as k (user_id, item_id, time)"
        query = f"select k.user_id, k.item_id, k.time, count(*) from {asked} cross join talerec_events e where {same} group by 1, 2, 3"
        return Counter({tuple(row[:3]): row[3] for row in connection.execute(query, given)})

    def forget(self, user: str, time: int) -> int:
        """Delete the rows of a user, and keep that it was deleted at this time; the seq of the deletion."""
        m = self._mark
        with self._used() as connection, self._transaction(connection):
            seq = self._hold(connection) + 1
            connection.execute(f"delete from talerec_events where user_id = {m}", (user,))
            connection.execute(f"delete from talerec_deletions where user_id = {m}", (user,))
            connection.execute(
                f"insert into talerec_deletions values ({m}, {m}, {m})", (user, seq, time)
            )
            connection.execute(f"update talerec_meta set seq = {seq}")
        return seq

    def _hold(self, connection: Any) -> int:
        """The last seq. From here to the commit nobody else writes."""
        held = "" if self.kind == "sqlite" else " for update"
        return int(connection.execute(f"select seq from talerec_meta{held}").fetchone()[0])

    def _known(self, connection: Any, ids: set[str]) -> dict[str, Event]:
        """The kept events with these ids."""
        found: dict[str, Event] = {}
        every = list(ids)
        for a in range(0, len(every), _AT_A_TIME):
            some = every[a : a + _AT_A_TIME]
            what = "select user_id, item_id, time, event, event_id, timed from talerec_events where event_id"
            rows = (
                connection.execute(f"{what} in ({','.join('?' * len(some))})", some)
                if self.kind == "sqlite"
                else connection.execute(f"{what} = any(%s)", (some,))
            )
            found |= {row[4]: Event._make(row) for row in rows}
        return found

    def _insert(self, connection: Any, seq: int, events: list[Event]) -> None:
        if not events:
            return
        rows = [(seq + n, *event[:5], int(event.timed)) for n, event in enumerate(events, 1)]
        if self.kind == "sqlite":
            connection.executemany("insert into talerec_events values (?, ?, ?, ?, ?, ?, ?)", rows)
        else:
            kinds = ("bigint", "text", "text", "bigint", "text", "text", "integer")
            given = ", ".join(f"%s::{kind}[]" for kind in kinds)
            columns = [list(column) for column in zip(*rows, strict=True)]
            connection.execute(f"insert into talerec_events select * from unnest({given})", columns)
        connection.execute(f"update talerec_meta set seq = {seq + len(rows)}")

    # -- reading --

    def meta(self) -> Meta:
        """What the store says of itself."""
        found = self._read("select version, store, seq from talerec_meta", ())
        return Meta(*found[0])

    def tail(self, after: int, limit: int = _AT_A_TIME) -> list[Kept]:
        """The rows after a seq, in the order of commits: events, and deletions of users (their `item` is None)."""
        m = self._mark
        query = (
            f"select seq, user_id, item_id, time, event, event_id from talerec_events where seq > {m}"
            f" union all select seq, user_id, null, time, null, null from talerec_deletions where seq > {m}"
            f" order by seq limit {m}"
        )
        return [Kept(*row) for row in self._read(query, (after, after, limit))]

    def of_user(self, user: str, limit: int) -> list[Kept]:
        """The last events of a user by time (and seq), oldest first."""
        query = (
            "select seq, user_id, item_id, time, event, event_id from talerec_events"
            f" where user_id = {self._mark} order by time desc, seq desc limit {self._mark}"
        )
        return [Kept(*row) for row in reversed(self._read(query, (user, limit)))]

    def deletions(self, after: int = 0) -> dict[str, Kept]:
        """The last deletion of every user that was deleted after a seq."""
        query = f"select seq, user_id, null, time from talerec_deletions where seq > {self._mark}"
        return {row[1]: Kept(*row) for row in self._read(query, (after,))}

    def _read(self, query: str, given: tuple[Any, ...]) -> list[Any]:
        with self._used() as connection:
            found: list[Any] = connection.execute(query, given).fetchall()
        return found


def _sifted(request: Sequence[Event], known: dict[str, Event]) -> tuple[Outcome, list[Event]]:
    """What becomes of a request, and its events that are new; those with an id are known from now on."""
    fresh: list[Event] = []
    mine: dict[str, Event] = {}
    for place, event in enumerate(request):
        before = (
            None
            if event.event_id is None
            else mine.get(event.event_id) or known.get(event.event_id)
        )
        if before is None:
            fresh.append(event)
            if event.event_id is not None:
                mine[event.event_id] = event
        elif not event.repeats(before):
            return ConflictError(place, str(event.event_id)), []
    known |= mine
    return Added(len(fresh), len(request) - len(fresh)), fresh
