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

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from talerec.errors import TalerecError
from talerec.store.events import (
    SCHEMA_VERSION,
    AppendResult,
    ConflictError,
    Event,
    StoredRow,
    upgrade_tables,
)
from talerec.store.feedback import NO_FEEDBACK, NegativeFeedback
from talerec.store.ids import IdKinds, earliest_id
from talerec.store.items import ItemStore
from talerec.store.session import (
    Session,
    count_equal_events,
    delete_impressions,
    find_deletions,
    insert_events,
    lock_meta,
    lock_seq,
    select_in,
)
from talerec.store.sqlite_file import mark_of

_SEARCHED_FACTOR = 20  # events of a user that are searched, per event that is returned
_BATCH_ROWS = 5000  # rows read, and ids looked up, by one statement
_TABLES_LOCK = 0x7A1E  # PostgreSQL advisory lock, held while tables are created
MAX_CLOCK_SKEW = 86_400_000_000  # microseconds that the time of an event may be ahead: a day
EVENT_COLUMNS = "seq, user_id, item_id, time, event, event_id"


class StoreMeta(NamedTuple):
    """The version of an event store's tables, the store's id, and the number of its last row."""

    version: int
    store: str  # a random id, created with the tables
    seq: int  # rows, events and deletions alike, are numbered in the order of their commits


class Store(ItemStore):
    """An event store, a SQLite or PostgreSQL database of users' events, over one connection.

    It has the items of a shop's catalogue, too (`ItemStore`).

    `StoreConnection` describes the parameters, and what happens to errors.
    """

    @classmethod
    def open(cls, address: str) -> Self:
        """Return an event store whose tables are created or migrated, and writable.

        `address` is that of a SQLite or PostgreSQL database. TalerecError if the database cannot be
        reached, upgraded or written.
        """
        store = cls(address)
        store._creates = True
        try:
            store._prepare()
        finally:
            store.close()  # which moves the write-ahead log of a new file into it
        store._creates = False
        return store

    def _prepare(self) -> None:
        """Create or migrate the tables, and check that they are writable; else raise TalerecError.

        Tables of a newer version, and PostgreSQL databases not encoded in UTF-8, are refused. A
        SQLite file gets a number by which its header is recognised.
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
            if session.is_sqlite:
                mark = mark_of(session.fetch_value("select store from talerec_meta"))
                if session.fetch_value("pragma user_version") != mark:
                    session.execute(f"pragma user_version = {mark}")
            session.execute("update talerec_meta set seq = seq")  # fails if read-only

    # -- writing --

    def append(
        self,
        requests: Sequence[Sequence[Event]],
        before_commit: Callable[[Session, list[AppendResult | ConflictError]], None] | None = None,
    ) -> list[AppendResult | ConflictError]:
        """Store the events of several requests in one commit and return the result of each.

        A request is a list of events; its result is the number of events stored now and before. An
        event whose `event_id` is stored with the same contents is a duplicate and is not stored
        again. Nor is an event of a deleted user up to the time for which the deletion holds. A
        request with an `event_id` that is stored with other contents is refused as a whole: its
        result is a ConflictError, and the other requests are stored. `before_commit` is called with
        the results in the same transaction; a TalerecError that it raises rolls everything back.
        """
        with self._transaction() as session:
            seq, deleted_until = lock_meta(session)
            old_users = {e.user for request in requests for e in request if e.time <= deleted_until}
            deleted = find_deletions(session, old_users) if old_users else {}
            ids = {e.event_id for request in requests for e in request if e.event_id}
            columns = "user_id, item_id, time, event, event_id, timed, recommendation_id"
            query = f"select {columns} from talerec_events where event_id"
            rows_by_id = select_in(session, query, ids) if ids else ()
            stored = {row[4]: Event._make(row) for row in rows_by_id}
            results: list[AppendResult | ConflictError] = []
            rows: list[Event] = []
            for request in requests:
                result, new = _find_new(request, stored, deleted)
                results.append(result)
                rows += new
            insert_events(session, seq, rows)
            if before_commit is not None:
                before_commit(session, results)
        return results

    def append_missing(self, events: Sequence[Event], now: int) -> tuple[int, int]:
        """Store the events that the store lacks; return how many, and how many were ignored.

        The events have no `event_id`: events with equal user, item and time (`event[:3]`) are the
        same event, and each is stored as often as it occurs in `events`. Ignored are events of a
        deleted user up to the time for which the deletion holds, and those more than a day later
        than `now` (microseconds since 1970). Events that were stored before count in neither
        number.
        """
        latest = now + MAX_CLOCK_SKEW
        with self._transaction() as session:
            seq = lock_seq(session)
            deleted = find_deletions(session, {event.user for event in events})
            valid = [
                event
                for event in events
                if event.user not in deleted or deleted[event.user] < event.time <= latest
            ]
            counts = count_equal_events(session, valid)
            missing = []
            for event in valid:
                if counts[event[:3]] > 0:
                    counts[event[:3]] -= 1
                else:
                    missing.append(event)
            insert_events(session, seq, missing)
        return len(missing), len(events) - len(valid)

    def delete_user(self, user: str, time: int, *, always_record: bool = True) -> int:
        """Delete a user's events, measurements and impressions; return the seq of the deletion.

        Measurements are the events' results of online evaluation. The seq numbers events and
        deletions in the order of their commits. `time` is the time of the deletion in microseconds
        since 1970. Events up to a bound are not stored again: the bound is `time`, or the time of
        the latest deleted event, by at most a day, since a client's clock may be ahead. If
        `always_record` is false, and the store has neither events nor a deletion of the user,
        nothing is recorded; the seq is then that of the last row. Impressions are deleted in any
        case, also anonymous ones that one of the events names.
        """
        with self._transaction() as session:
            seq, deleted_until = lock_meta(session)
            query = "select max(time) from talerec_events where user_id = ?"
            latest = session.execute(query, (user,)).fetchone()[0]
            earlier = find_deletions(session, {user})
            delete_impressions(session, user)
            if latest is None and not earlier and not always_record:
                return seq
            bound = max(time, min(latest or time, time + MAX_CLOCK_SKEW), *earlier.values())
            of_user = "from talerec_events where user_id = ?"
            delete = f"delete from talerec_measured where seq in (select seq {of_user})"
            session.execute(delete, (user,))
            session.execute(f"delete {of_user}", (user,))
            session.execute("delete from talerec_deletions where user_id = ?", (user,))
            values = (user, seq + 1, bound)
            session.execute("insert into talerec_deletions values (?, ?, ?)", values)
            update = "update talerec_meta set seq = ?, deleted_until = ?"
            session.execute(update, (seq + 1, max(bound, deleted_until)))
        return seq + 1

    def prune(self, after: int, before: int) -> int | None:
        """Delete old events among the next 5,000; return the last seq of these, None at the end.

        `after` is the seq (number in commit order) after which to look; events with a time before
        `before`, in microseconds since 1970, go with their measurements. Other writers wait only
        while rows are deleted.
        """
        query = "select max(seq) from (select seq from talerec_events where seq > ? order by seq"
        last = self._read(f"{query} limit {_BATCH_ROWS}) as batch", (after,))[0][0]
        if last is None:
            return None
        old = "from talerec_events where seq > ? and seq <= ? and time < ?"
        parameters = (after, last, before)
        if self._read(f"select 1 {old} limit 1", parameters):
            with self._transaction() as session:
                lock_seq(session)
                measured = f"delete from talerec_measured where seq in (select seq {old})"
                session.execute(measured, parameters)
                session.execute(f"delete {old}", parameters)
        return int(last)

    def prune_impressions(self, before: int) -> int:
        """Delete impressions from before a time (microseconds), at most 5,000; return how many."""
        old = f"select id from talerec_impressions where id < ? order by id limit {_BATCH_ROWS}"
        n_rows = len(self._read(old, (earliest_id(before),)))
        if n_rows:
            with self._transaction() as session:
                lock_seq(session)
                delete = f"delete from talerec_impressions where id in ({old})"
                session.execute(delete, (earliest_id(before),))
        return n_rows

    def empty_log(self) -> None:
        """Copy SQLite's write-ahead log into its file and empty it, so that deleted rows leave it.

        Nothing happens while another connection uses the log; PostgreSQL has no such log.
        """
        if self.kind == "sqlite":
            with self._connected() as connection:
                connection.execute("pragma wal_checkpoint(truncate)").fetchall()

    def settle_id_kinds(self, kinds: IdKinds, *, is_final: bool = False) -> IdKinds:
        """Record whether ids are integers or text, where that is open, and return the kinds.

        Kinds that were recorded before stay, unless `is_final`: then `kinds` replace them.
        """
        recorded = self.id_kinds()
        merged = kinds.or_else(recorded) if is_final else recorded.or_else(kinds)
        if merged == recorded:
            return recorded
        with self._transaction() as session:
            lock_seq(session)
            update = "user_ids = coalesce(user_ids, ?), item_ids = coalesce(item_ids, ?)"
            if is_final:
                update = "user_ids = coalesce(?, user_ids), item_ids = coalesce(?, item_ids)"
            session.execute(f"update talerec_meta set {update}", tuple(kinds))
        return self.id_kinds()

    # -- reading --

    def id_kinds(self) -> IdKinds:
        """Return whether the store's user ids and item ids are integers or text, if recorded."""
        return IdKinds(*self._read("select user_ids, item_ids from talerec_meta", ())[0])

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

    def read_user(
        self, user: str, limit: int, feedback: NegativeFeedback = NO_FEEDBACK
    ) -> list[StoredRow]:
        """Return the latest events of a user, oldest first: `limit`, and as much feedback.

        Events are sorted by time, then by seq, the number of the row in commit order. Negative
        feedback has a limit of its own, so that neither displaces the other; both are searched
        among the latest 20 times `limit` events.
        """
        latest = "order by time desc, seq desc limit ?"
        every = f"select {EVENT_COLUMNS} from talerec_events where user_id = ? {latest}"
        rows = self._read(every, (user, limit))
        if feedback.names and len(rows) == limit:
            names = sorted(feedback.names)
            is_negative = f"event is not null and event in ({', '.join('?' * len(names))})"
            searched = (user, min(_SEARCHED_FACTOR * limit, 2**62))
            rows = []
            for condition in (f"not ({is_negative})", is_negative):
                query = f"select * from ({every}) as latest where {condition} {latest}"
                rows += self._read(query, (*searched, *names, limit))
            rows.sort(key=lambda row: (row[3], row[0]), reverse=True)
        return [StoredRow(*row) for row in reversed(rows)]

    def read_deletions(self, after: int = 0) -> dict[str, StoredRow]:
        """Return, by user id, the last deletion of each user deleted after the seq `after`.

        The seq numbers events and deletions in commit order; a deletion is a row without an item.
        """
        query = "select seq, user_id, null, time from talerec_deletions where seq > ?"
        return {row[1]: StoredRow(*row) for row in self._read(query, (after,))}


def _find_new(
    request: Sequence[Event], stored: dict[str, Event], deleted: dict[str, int]
) -> tuple[AppendResult | ConflictError, list[Event]]:
    """Return the result of one request and those of its events that are not stored yet.

    `request` is a list of events, `stored` maps event ids to events, and `deleted` maps deleted
    users to the time up to which their events are ignored. The new events that have an `event_id`
    are added to `stored` in place. On a conflict (same id, other contents) the result is a
    ConflictError, the list is empty and `stored` is unchanged.
    """
    new: list[Event] = []
    new_by_id: dict[str, Event] = {}
    n_deleted = 0
    for index, event in enumerate(request):
        event_id = event.event_id
        before = None if event_id is None else new_by_id.get(event_id) or stored.get(event_id)
        if before is not None:
            if not event.is_repeat_of(before):
                return ConflictError(index, str(event_id)), []
        elif deleted and event.time <= deleted.get(event.user, -1):
            n_deleted += 1
        else:
            new.append(event)
            if event_id is not None:
                new_by_id[event_id] = event
    stored |= new_by_id
    n_duplicates = len(request) - len(new) - n_deleted
    return AppendResult(len(new), n_duplicates, n_deleted), new
