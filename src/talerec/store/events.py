"""Rows, errors and tables of an event store."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from talerec.errors import TalerecError

STORE_VARIABLE = "TALEREC_STORE"  # environment variable with the address of the store
INTEGER, TEXT = ID_KINDS = "integer", "text"  # what ids of users and of items can be
MAX_NAME = 100  # characters of the name of an event


class StoreError(TalerecError):
    """The database cannot be reached, or refuses; nothing was stored."""


class StoreDamagedError(StoreError):
    """The store's file was removed, moved, replaced or damaged, or is another store's.

    Nothing may be acknowledged until an operator has put it right.
    """


class RefusedError(StoreError):
    """The database refuses these values; other values may be accepted."""


class ConflictError(TalerecError):
    """An `event_id` that is stored already with another user, item, name or time.

    The request, a list of events, is then refused as a whole. `index` is the position of the event
    in that list, from 0.
    """

    def __init__(self, index: int, event_id: str) -> None:
        self.index, self.event_id = index, event_id
        super().__init__(f"events[{index}]: event_id {event_id!r} exists with other contents")


class Event(NamedTuple):
    """A user's interaction with an item, to be written to the event store.

    Ids are text, as vocabularies match them (5 is "5").
    """

    user: str
    item: str
    time: int  # microseconds since 1970
    event: str | None = None  # the name of the event, such as "view"
    event_id: str | None = None  # chosen by the client; a retry with the same id is stored once
    has_time: bool = True  # False if the server set the time: a retry's time may then differ
    recommendation_id: str | None = None  # of the response that showed the item, if known

    def is_repeat_of(self, stored: Event) -> bool:
        """Has this event the same user, item, name and time as `stored`?

        `stored` is a stored event with the same `event_id`. Times are compared only if the client
        sent both (`has_time`), because the server sets a new time for each retry without one.
        """
        if self.has_time and stored.has_time and self.time != stored.time:
            return False
        return (*self[:2], self.event) == (*stored[:2], stored.event)


class StoredRow(NamedTuple):
    """One row of the event store: an event, or the deletion of a user (`item` is None)."""

    seq: int  # numbers events and deletions together, in the order of their commits
    user: str
    item: str | None
    time: int  # of the event, in microseconds since 1970; of a deletion: until when it holds
    event: str | None = None  # the name of the event, such as "view"
    event_id: str | None = None  # the client's id, by which retries are recognised


class AppendResult(NamedTuple):
    """The numbers of a request's events that were stored now, before, and never."""

    accepted: int  # stored by this request
    duplicates: int  # not stored again: events with the same `event_id` and contents exist
    deleted: int = 0  # not stored: their user was deleted, and they are not later than that


# -- tables ----------------------------------------------------------------------------------------

#: Version of the tables. A change adds a migration to `_MIGRATIONS`; released ones never change.
SCHEMA_VERSION = 5

#: Statements that bring a store of the previous version to each version. `talerec_meta` has one
#: row: its `seq` is the last one given to an event or a deletion. A writer locks that row, so a
#: smaller seq is always committed before a larger one. `user_ids` and `item_ids` are the kinds of
#: ids, "integer" or "text"; `deleted_until` is the latest time up to which a deletion holds.
#: `item_seq` numbers the commits that change items of the catalogue, `items` counts the items that
#: are not deleted, and `items_changed` is the time of the last change. `secret` signs the ids of
#: recommendations, by which events name the list that they came from.
_MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        "create table talerec_meta"
        " (version integer not null, store text not null, seq bigint not null)",
        "insert into talerec_meta values (0, '{store}', 0)",
        "create table talerec_events (seq {key} primary key, user_id text not null,"
        " item_id text not null, time bigint not null, event text, event_id text,"
        " timed integer not null)",
        "create index talerec_events_of_user on talerec_events (user_id, time, seq)",
        "create unique index talerec_event_ids on talerec_events (event_id)"
        " where event_id is not null",
        "create table talerec_deletions"
        " (user_id text not null primary key, seq bigint not null, time bigint not null)",
        "create index talerec_deletions_by_seq on talerec_deletions (seq)",
    ),
    2: (
        "create table talerec_measuring (holder text not null, until double precision not null,"
        " seq bigint not null, left_out bigint not null, summary text)",
        "insert into talerec_measuring values ('', 0, -1, 0, null)",
        "create table talerec_measured (seq bigint not null, role text not null,"
        " version text not null, moment bigint not null, user_hash bigint not null,"
        " place integer not null, primary key (seq, role))",
        "create index talerec_measured_by_moment on talerec_measured (moment)",
    ),
    3: (
        "alter table talerec_meta add column user_ids text",
        "alter table talerec_meta add column item_ids text",
        "alter table talerec_meta add column deleted_until bigint not null default 0",
    ),
    4: (
        "create table talerec_items (item_id text not null primary key, seq bigint not null,"
        " fields text, is_whole integer not null)",
        "create index talerec_items_by_seq on talerec_items (seq, item_id)",
        "alter table talerec_meta add column item_seq bigint not null default 0",
        "alter table talerec_meta add column items bigint not null default 0",
        "alter table talerec_meta add column items_changed bigint not null default 0",
    ),
    5: (
        "alter table talerec_meta add column secret text",
        "update talerec_meta set secret = '{secret}'",
        "alter table talerec_events add column recommendation_id text",
        "create index talerec_events_of_list on talerec_events (recommendation_id)"
        " where recommendation_id is not null",
        "create table talerec_impressions (id text{binary} not null primary key, user_id text,"
        " time bigint not null, model text not null, role text not null, list text, rules text,"
        " items text not null, probabilities text, explored text)",
        "create index talerec_impressions_of_user on talerec_impressions (user_id)",
    ),
}
_KEY_TYPES = {"sqlite": "integer", "postgresql": "bigint"}
_BINARY_ORDER = {"sqlite": "", "postgresql": ' collate "C"'}  # ids sort by their digits


def upgrade_tables(execute: Callable[[str], Any], kind: str, version: int) -> None:
    """Create or migrate the tables of a database from `version` to `SCHEMA_VERSION`.

    `version` is that of the present tables, 0 if there are none. `execute` runs one SQL statement
    inside a transaction of the caller; `kind` is "sqlite" or "postgresql". `_MIGRATIONS` has the
    statements of each version, with placeholders for the type of an integer key and for the random
    id of a new store. The new version is written to the table `talerec_meta`.
    """
    for step in range(version + 1, SCHEMA_VERSION + 1):
        for statement in _MIGRATIONS[step]:
            values = {"store": uuid.uuid4().hex, "secret": secrets.token_hex(16)}
            types = {"key": _KEY_TYPES[kind], "binary": _BINARY_ORDER[kind]}
            execute(statement.format(**values, **types))
        execute(f"update talerec_meta set version = {step}")
