"""The tables of a store, and how an older store becomes one of today."""

from __future__ import annotations

import uuid
from typing import Any

#: The version of the tables below. A change adds a step to `_STEPS`; steps that were released stay as they are.
VERSION = 2

#: What brings a store of the version before to each version. `meta` has one row: its `seq` is the last that was given to an
#: event or a deletion; whoever writes holds that row, so that a smaller seq is always committed before a larger one.
_STEPS: dict[int, tuple[str, ...]] = {
    1: (
        "create table talerec_meta (version integer not null, store text not null, seq bigint not null)",
        "insert into talerec_meta values (0, '{store}', 0)",
        "create table talerec_events (seq {key} primary key, user_id text not null, item_id text not null,"
        " time bigint not null, event text, event_id text, timed integer not null)",
        "create index talerec_events_of_user on talerec_events (user_id, time, seq)",
        "create unique index talerec_event_ids on talerec_events (event_id) where event_id is not null",
        "create table talerec_deletions (user_id text not null primary key, seq bigint not null, time bigint not null)",
        "create index talerec_deletions_by_seq on talerec_deletions (seq)",
    ),
    2: (
        "create table talerec_measuring (holder text not null, until double precision not null, seq bigint not null,"
        " left_out bigint not null, summary text)",
        "insert into talerec_measuring values ('', 0, -1, 0, null)",
        "create table talerec_measured (seq bigint not null, role text not null, version text not null,"
        " moment bigint not null, user_hash bigint not null, place integer not null, primary key (seq, role))",
        "create index talerec_measured_by_moment on talerec_measured (moment)",
    ),
}  # fmt: skip
_KEY = {"sqlite": "integer", "postgresql": "bigint"}


def upgrade(execute: Any, kind: str, version: int) -> None:
    """Bring a store of `version` (0: there is none) to today's, inside of a transaction that the caller began."""
    for step in range(version + 1, VERSION + 1):
        for statement in _STEPS[step]:
            execute(statement.format(key=_KEY[kind], store=uuid.uuid4().hex))
        execute(f"update talerec_meta set version = {step}")
