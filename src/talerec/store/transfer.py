"""Import of whole logs into a store, and export of whole stores."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Log
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array, stage
from talerec.store.clock import now_us
from talerec.store.events import INTEGER, TEXT, Event
from talerec.store.feedback import NegativeFeedback
from talerec.store.ids import IdKinds, validate_id
from talerec.store.impressions import LATEST_TIME, Impression, ImpressionStore
from talerec.store.store import Store

_COMMIT_ROWS = 5000  # rows of one commit
_READ_ROWS = 50_000  # rows read by one statement

_NAMES = (columns.USER, columns.ITEM, columns.TIME, "event", "event_id")
_SCHEMA: dict[str, Any] = dict.fromkeys(_NAMES, pl.String)
_SCHEMA[columns.TIME] = pl.Datetime("us", "UTC")


class ImportResult(NamedTuple):
    """The counts of an import: rows of the log, and what became of them."""

    rows: int  # of the log
    added: int  # stored now
    there: int  # stored before
    deleted: int  # skipped: rows of deleted users from before their deletion


def import_log(store: Store, log: Log, ids: str | None = None) -> ImportResult:
    """Write the rows of a log that an event store lacks, in time order; return their counts.

    Rows with equal user, item and time are the same event, stored as often as the log has it. Rows
    of a deleted user are skipped unless they are later than the deletion, and at most a day ahead
    of this machine's clock. Each commit has about 5,000 rows, after which progress is reported.
    InvalidLogError, and nothing is written, if an id cannot be stored or is not an integer in a
    store of integer ids. `ids` ("integer" or "text") settles the kind of the store's ids; by
    default it stays, and an empty store takes that of the log.
    """
    kinds = IdKinds(ids or find_kind(log.users.ids), ids or find_kind(log.items.ids))
    if ids is None:
        kinds = store.id_kinds().or_else(kinds)
    users = _validate_ids(log.users.ids, columns.USER, kinds.user)
    items = _validate_ids(log.items.ids, columns.ITEM, kinds.item)
    store.settle_id_kinds(kinds, is_final=ids is not None)
    user_codes = log.user_codes()
    order = np.lexsort((user_codes, log.time))
    added = deleted = 0
    tick = stage("import", float(log.rows))
    for rows in _split_commits(order, user_codes, log.time):
        names: list[str | None] = [None] * len(rows)
        if log.event is not None:
            names = [log.event_names[code] for code in log.event[rows].tolist()]
        arrays = (user_codes[rows].tolist(), log.item[rows].tolist(), log.time[rows].tolist())
        events = [
            Event(users[user], items[item], time, name)
            for user, item, time, name in zip(*arrays, names, strict=True)
        ]
        n_added, n_deleted = store.append_missing(events, now_us())
        added, deleted = added + n_added, deleted + n_deleted
        tick(len(rows))
    return ImportResult(log.rows, added, log.rows - added - deleted, deleted)


def find_kind(ids: pl.Series) -> str | None:
    """Return "integer" or "text", the kind of a column of ids; None if it is empty."""
    if not len(ids):
        return None
    return TEXT if ids.dtype == pl.String else INTEGER


def _validate_ids(ids: pl.Series, name: str, kind: str | None) -> list[str]:
    """Return user or item ids as text; InvalidLogError names the first that cannot be stored.

    `name` is "user_id" or "item_id", for the message; `kind` is "integer" or "text".
    """
    texts: list[str] = ids.cast(pl.String).to_list()
    for text in texts:
        try:
            validate_id(text, name if kind == INTEGER else f"{name} {text[:40]!r}", kind)
        except TalerecError as error:
            way_out = "; `ids` text makes all of them text" if kind == INTEGER else ""
            raise InvalidLogError(f"{error}{way_out}", "ids") from None
    return texts


def _split_commits(order: Array, user: Array, time: Array) -> Iterator[Array]:
    """Yield slices of `order`, one for each commit of about 5,000 rows.

    `order` has row numbers of a log sorted by time, then user; `user` and `time` are the columns of
    the log. Rows with equal user and time are never split, because they may be equal events.
    """
    begin = 0
    while begin < len(order):
        end = min(begin + _COMMIT_ROWS, len(order))
        while end < len(order):
            a, b = order[end - 1], order[end]
            if user[a] != user[b] or time[a] != time[b]:
                break
            end += 1
        yield order[begin:end]
        begin = end


def export_events(store: Store, without: Collection[str] = ()) -> Iterator[pl.DataFrame]:
    """Yield the events that are in the store now, in commit order, as one or more frames.

    The first frame is empty and shows the columns: user, item, time (UTC), event (its name) and
    event_id. Deletions of users are left out, and events with a name in `without`; rows are
    numbered by `seq`, events and deletions together.
    """
    excluded = NegativeFeedback(frozenset(without))
    seq, last_seq = 0, store.meta().seq
    tick = stage("export", float(last_seq))
    stored_schema = {**_SCHEMA, columns.TIME: pl.Int64}
    yield pl.DataFrame(schema=_SCHEMA)
    while seq < last_seq and (rows := store.read_after(seq, _READ_ROWS)):
        history = excluded.select_history(rows)
        events = [row[1:] for row in history if row.item is not None and row.seq <= last_seq]
        frame = pl.DataFrame(events, schema=stored_schema, orient="row")
        yield frame.with_columns(pl.col(columns.TIME).cast(_SCHEMA[columns.TIME]))
        tick(min(rows[-1].seq, last_seq) - seq)
        seq = rows[-1].seq


_USER_SCHEMA: dict[str, Any] = {
    "record": pl.String, **_SCHEMA, "model": pl.String, "rank": pl.Int64,
    "recommendation_id": pl.String, "rules": pl.String,
}  # fmt: skip


def export_user(store: ImpressionStore, user: str) -> pl.DataFrame:
    """Return everything that an event store has of a user, as a frame with a row per record.

    `record` is "event", "measurement" (the `rank` that the event's item had in the list of a
    `model`, at the time of the measurement), "impression" (an item that was shown at a `rank` of a
    list of a `model`, under the `rules` of the request) or "deletion" (up to the time for which it
    holds). The other columns are user_id, item_id, timestamp (UTC), event, event_id and
    recommendation_id; null where a record has no such value. A measurement below 0 is the reason
    why there is no rank.
    """
    events = store.read_user(user, 2**62)
    named = store.read_recommendation_ids(user)
    rows: list[tuple[Any, ...]] = [
        ("event", *event[1:], None, None, named.get(event.seq), None) for event in events
    ]
    for item, measured in store.read_measurements(user):
        time = 1_000_000 * measured.measured_at
        values: tuple[Any, ...] = (None, None, measured.version, measured.rank, None, None)
        rows.append(("measurement", user, item, time, *values))
    for shown in store.read_user_impressions(user):
        for rank, item in enumerate(json.loads(shown.items), 1):
            values = (None, None, shown.model, rank, shown.id, shown.rules)
            rows.append(("impression", user, item, shown.time, *values))
    deletion = store.read_deletions().get(user)
    if deletion is not None:
        rows.append(("deletion", user, None, deletion.time, *[None] * 6))
    return _build_user_frame(rows)


def export_history(log: Log | None, user: str, model: str) -> pl.DataFrame:
    """Return a user's rows of the log of a saved model, as records "training row".

    The columns are those of `export_user`; `model` is the version of the saved model. No rows
    without a saved log or without the user.
    """
    position = -1 if log is None else int(log.users.text_positions([user])[0])
    if log is None or position < 0:
        return _build_user_frame([])
    rows = slice(log.ptr[position], log.ptr[position + 1])
    items = log.items.ids.gather(log.item[rows]).cast(pl.String).to_list()
    times = log.time[rows].tolist()
    return _build_user_frame(
        [
            ("training row", user, item, time, None, None, model, None, None, None)
            for item, time in zip(items, times, strict=True)
        ]
    )


def _build_user_frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    """Return records of a user as a frame, with times (microseconds) as UTC.

    Each row has the columns of `export_user`.
    """
    frame = pl.DataFrame(rows, {**_USER_SCHEMA, columns.TIME: pl.Int64}, orient="row")
    return frame.with_columns(pl.col(columns.TIME).cast(_SCHEMA[columns.TIME]))


_IMPRESSION_SCHEMA: dict[str, Any] = {
    "recommendation_id": pl.String, columns.USER: pl.String,
    columns.TIME: _SCHEMA[columns.TIME], "model": pl.String, "role": pl.String,
    "list": pl.String, "rules": pl.String, columns.ITEM: pl.String, "rank": pl.Int64,
    "probability": pl.Float64, "explored": pl.Boolean,
}  # fmt: skip


def export_impressions(store: ImpressionStore, since: int = 0) -> Iterator[pl.DataFrame]:
    """Yield what was shown since a time (microseconds), as frames with a row per shown item.

    The first frame is empty and shows the columns. `probability` is that with which the item was
    put at its `rank`; `explored` marks items with few impressions that got their rank by chance.
    """
    yield pl.DataFrame(schema=_IMPRESSION_SCHEMA)
    for group in store.read_impressions(since):
        yield expand_impressions(group)


_CLICK_SCHEMA: dict[str, Any] = {
    columns.USER: pl.String, columns.ITEM: pl.String, "time": pl.Int64, "event": pl.String,
    "recommendation_id": pl.String,
}  # fmt: skip


def load_possible_clicks(
    store: ImpressionStore, since: int, until: int = LATEST_TIME
) -> pl.DataFrame:
    """Return events that may be clicks on what was shown from `since` to before `until`.

    Both are in microseconds. Columns: user_id, item_id, time (microseconds), event and
    recommendation_id.
    """
    groups = store.read_possible_clicks(since, until)
    frames = [pl.DataFrame(rows, _CLICK_SCHEMA, orient="row") for rows in groups]
    return pl.concat([pl.DataFrame(schema=_CLICK_SCHEMA), *frames])


def expand_impressions(impressions: Sequence[Impression]) -> pl.DataFrame:
    """Return impressions as a frame with a row per shown item, from rank 1 on.

    The columns are those of `export_impressions`.
    """
    schema = dict.fromkeys(Impression._fields, pl.String) | {"time": pl.Int64}
    frame = pl.DataFrame(impressions, schema, orient="row")
    items = pl.col("items").str.json_decode(pl.List(pl.String))
    return (
        frame.with_columns(items.alias("items"))
        .with_columns(pl.int_ranges(1, pl.col("items").list.len() + 1).alias("rank"))
        .with_columns(
            pl.col("probabilities").str.json_decode(pl.List(pl.Float64)),
            pl.col("explored").str.json_decode(pl.List(pl.Int64)),
        )
        .with_columns(
            pl.when(pl.col("probabilities").is_null())
            .then(pl.lit(1.0).repeat_by(pl.col("items").list.len()))
            .otherwise(pl.col("probabilities"))
            .alias("probabilities")
        )
        .explode("items", "rank", "probabilities")
        .filter(pl.col("items").is_not_null())
        .select(
            pl.col("id").alias("recommendation_id"), pl.col("user").alias(columns.USER),
            pl.col("time").cast(_SCHEMA[columns.TIME]).alias(columns.TIME),
            "model", "role", "list", "rules", pl.col("items").alias(columns.ITEM), "rank",
            pl.col("probabilities").alias("probability"),
            pl.col("rank").is_in(pl.col("explored")).fill_null(False).alias("explored"),
        )
    )  # fmt: skip
