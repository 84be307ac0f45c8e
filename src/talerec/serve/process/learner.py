"""The learner: a background process that fits the model again with new events.

The new log has the training log without users that were deleted since, and the events after it;
its item table has the items that clients have put in the store.
The new model is saved beside the artifact, read back and verified, and replaces the artifact in
one step; workers reload it like any other. A failure leaves the artifact as it is and is reported
in the log, in /v1/stats and in the metrics.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns, models
from talerec.artifact import hold_for_update, install_artifact, read_artifact
from talerec.data import SKIPPED, TEXT, ContextColumns, Log, Vocabulary, merge_logs, missing_column
from talerec.data.read import remove_secrets
from talerec.errors import ReplacedArtifactError, TalerecError
from talerec.models import merge_item_tables, update
from talerec.models.core import ITEM_COLUMNS, STORE, STORE_ITEM_SEQ, STORE_SEQ, Model, build_model
from talerec.runtime import open_regular
from talerec.serve import Settings
from talerec.serve.model import LiveItems, learnable
from talerec.serve.users import read_trained_seq, warn_if_restored
from talerec.store import NO_FEEDBACK, IdKinds, ItemChanges, ItemTail, NegativeFeedback, Store

logger = logging.getLogger("talerec")

_READ_ROWS = 20_000  # rows read from the store at a time
_ATTEMPTS = 3  # in a round, while other processes replace the model


def run_learner(settings: Settings, folder: Path) -> None:
    """Refit the model with new events at the interval of the settings, until the process ends.

    `settings.learn` is the interval in seconds. The state is written to a file in `folder`, the
    run's folder, for the workers: "state" (waiting or learning), "next" (Unix seconds), "every"
    (seconds), "rounds" and "failures" (counts), and the results of the last round.
    """
    assert settings.learn is not None
    assert settings.store is not None
    state = {"failures": 0, "rounds": 0, **(learnable.read_learning_state(folder) or {})}
    state["every"] = settings.learn
    while True:
        begin = time.time() + settings.learn
        learnable.write_learning_state(folder, {**state, "state": "waiting", "next": begin})
        time.sleep(max(0.0, begin - time.time()))
        learnable.write_learning_state(folder, {**state, "state": "learning", "next": None})
        options = {"refit_every": settings.refit_every, "feedback": settings.feedback}
        state |= _run_round(settings.path, settings.store, state, **options)


def _run_round(path: Path, address: str, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Refit once from the store at `address`; return the changed fields of `state`.

    `path` is the saved model, `options` are those of `learn`. `state` has the counters "rounds" and
    "failures"; a failure is logged and put into "error", with its time (Unix seconds) in "failed".
    Without new rows, "looked" is the time; else "learned" is the report of the fit.
    """
    changes: dict[str, Any] = {"rounds": state["rounds"] + 1, "error": None}
    try:
        report = _learn_latest(path, address, options)
    except (TalerecError, OSError, MemoryError, ValueError) as error:
        message = remove_secrets(address, str(error) or type(error).__name__)
        logger.warning("learning failed, the old model stays: %s", message)
        failures = state["failures"] + 1
        return {**changes, "error": message, "failures": failures, "failed": time.time()}
    if report is None:
        return {**changes, "looked": time.time()}
    logger.info(
        "learned from %d new rows in %.1f s (%s): version %s",
        report["rows"], report["seconds"], report["how"], report["version"]
    )  # fmt: skip
    return {**changes, "learned": {**report, "at": time.time()}}


def _learn_latest(path: Path, address: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return `learn` of these arguments; start over if the saved model is replaced meanwhile.

    A fit or an install can replace it at any time; the next round may be a day away. The last of
    three attempts raises ReplacedArtifactError.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(ReplacedArtifactError):
            return learn(path, address, **options)
        logger.info("the model was replaced meanwhile: learning starts over")
    return learn(path, address, **options)


def learn(
    path: Path,
    address: str,
    refit_every: int | None = None,
    feedback: NegativeFeedback = NO_FEEDBACK,
) -> dict[str, Any] | None:
    """Replace the saved model at `path` by one that has learned from new events of the store.

    `address` is that of the event store. The new model is built in a folder beside `path` and read
    back with all checks before it replaces the old one. An updatable model is updated; after
    `refit_every` - 1 updates (0: never; None: as its class says) it is fitted anew. Events that
    are negative feedback are left out.

    Returns
    -------
    dict or None
        version, rows (new ones), deleted_users (a count), seq (number of the store's last row), how
        ("fit" or "update") and seconds; None if the store has no new rows, and no changes of items
        that the model scores by their content.

    Raises
    ------
    TalerecError
        If that fails, or if another process learns for this model; the saved model stays. Also if
        a fit or an install replaced it meanwhile. Updates of the model wait for each other.
    """
    started = time.monotonic()
    with _lock_work_folder(path) as folder, hold_for_update(path):
        manifest = learnable.check_learnable(path)
        training = manifest["training"]
        with Store(address) as store:
            meta = store.meta()
            seq = read_trained_seq(training, meta.store)
            if warn_if_restored(store.name, meta.seq, seq):
                seq = 0
            items = _read_items(store)
            is_learned = training.get(STORE) == meta.store
            if meta.seq <= seq and items.seq <= (training.get(STORE_ITEM_SEQ, 0) * is_learned):
                return None
            deleted_users = set(store.read_deletions(seq))
            events = _read_events(store, seq, meta.seq, feedback)
            events = _drop_non_integer_ids(events, store.id_kinds())
        bundle = read_artifact(path)
        if bundle.facts["version"] != manifest["version"]:
            raise ReplacedArtifactError("was replaced by another process meanwhile", path)
        old_model = models.restore_bundle(bundle, path)
        if meta.seq <= seq and not old_model.scores_catalogue:
            return None  # a model of ids learns nothing from items alone
        due = _is_refit_due(old_model, refit_every)
        model, how, n_new = _learn_model(old_model, deleted_users, events, items, refit=due)
        facts = {STORE: meta.store, STORE_SEQ: meta.seq, STORE_ITEM_SEQ: items.seq}
        model.fitted.training.update(facts)
        target = model.save(folder / path.name, updatable=bool(training.get("updatable")))
        check = partial(models.load, verify=True)
        version = install_artifact(target, path, check, replaces=manifest["version"])
    report = {"version": version, "rows": n_new, "deleted_users": len(deleted_users)}
    return {**report, "seq": meta.seq, "how": how, "seconds": time.monotonic() - started}


@contextmanager
def _lock_work_folder(path: Path) -> Iterator[Path]:
    """Lend an empty folder beside the saved model, locked for one process; then remove it.

    A context manager; the next version of the model at `path` is built in the folder. TalerecError
    if another process holds the lock.
    """
    parent = learnable.work_folder(path)
    parent.mkdir(exist_ok=True)
    with open_regular(parent / learnable.LOCK, os.O_RDWR | os.O_CREAT) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TalerecError(f"another process learns for {path}") from None
        folder = parent / "new"
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _read_events(store: Store, after: int, until: int, feedback: NegativeFeedback) -> pl.DataFrame:
    """Return user, item and time (microseconds) of the events with `after` < seq <= `until`.

    A frame with ids as text. The seq numbers the rows of the event store in commit order; deletions
    of users, rows without an item, and negative feedback are left out.
    """
    schema = {columns.USER: pl.String, columns.ITEM: pl.String, columns.TIME: pl.Int64}
    frames = [pl.DataFrame(schema=schema)]
    while after < until and (rows := store.read_after(after, _READ_ROWS)):
        history = feedback.select_history(rows)
        events = [
            (row.user, row.item, row.time) for row in history if row.item and row.seq <= until
        ]
        frames.append(pl.DataFrame(events, schema=schema, orient="row"))
        after = rows[-1].seq
    return pl.concat(frames)


def _read_items(store: Store) -> ItemChanges:
    """Return all items of a store, also deleted ones, and the number of their last change."""
    tail = ItemTail(store)
    tail.poll()
    return tail.changes(0)


def _drop_non_integer_ids(events: pl.DataFrame, kinds: IdKinds) -> pl.DataFrame:
    """Return the events without ids that are not integers, where the store records integers.

    `events` has ids as text in the columns user_id and item_id; `kinds` are those of the event
    store. An older version of the service accepted every id. Logs the number of dropped events.
    """
    is_integer = [
        pl.col(name).cast(pl.Int64, strict=False).cast(pl.String) == pl.col(name)
        for name, kind in zip((columns.USER, columns.ITEM), kinds, strict=True)
        if kind == "integer"
    ]
    selected = events.filter(*is_integer) if is_integer else events
    if n_dropped := len(events) - len(selected):
        logger.warning("%d events are left out: their ids are not integers", n_dropped)
    return selected


# -- the new model ---------------------------------------------------------------------------------


def _is_refit_due(model: Model, refit_every: int | None) -> bool:
    """Is a refit due, after the model was updated a number of times?

    refit_every: every nth round is a fit, the others are updates; 0: no round is. None: the number
    that the model's class sets. False if a library that a fit needs is missing: updates go on.
    """
    rounds = model.refit_after if refit_every is None else refit_every
    if not rounds or int(model.fitted.training.get("updates", 0)) + 1 < rounds:
        return False
    try:
        model.check_ready()
    except TalerecError as error:
        logger.warning("the model is due for a refit, and is updated instead: %s", error)
        return False
    return True


def _learn_model(
    model: Model, deleted: set[str], events: pl.DataFrame, items: ItemChanges, *, refit: bool
) -> tuple[Model, str, int]:
    """Return the model with the events, "update" or "fit", and the number of new rows.

    `events` has columns user_id, item_id, timestamp (microseconds); `deleted` are ids of users
    whose rows of the training log go; `items` are those of the store. The model is updated in place
    if it was saved for updates, no rows are removed and the types of ids agree; else, or with
    `refit`, a new one is fitted to the merged log.
    """
    log = model.fitted.log
    assert log is not None
    table = _merge_item_rows(model, items)
    remaining = _drop_users(log, deleted)
    can_update = remaining is log and len(events) and _has_same_id_types(log, events) and not refit
    if can_update and _try_update(model, events, table):
        return model, "update", len(events)
    whole, n_new = _merge_events(remaining, events)
    if table is not None:
        types = model.fitted.training.get(ITEM_COLUMNS, ())
        text, skip = ([c["name"] for c in types if c["kind"] == kind] for kind in (TEXT, SKIPPED))
        whole = whole.compact().with_items(table, text=text, skip=skip)
    new_model: Model = build_model(type(model), model.params)
    return new_model.fit(whole), "fit", n_new


def _merge_item_rows(model: Model, items: ItemChanges) -> pl.DataFrame | None:
    """Return the model's item table with the items of the store; None if it stays as it is.

    Deleted items are left out. The table of a model that scores items by their content has items
    without rows, too, which are not in the log.
    """
    if not items.rows and not model.scores_catalogue:
        return None
    _, live = LiveItems.read(model.fitted).apply(model, items)
    return live.info.filter(pl.Series(~live.availability.is_deleted))


def _try_update(model: Model, events: pl.DataFrame, table: pl.DataFrame | None) -> bool:
    """Update the model in place with new events; return False if it has to be fitted again.

    `events` has columns user_id, item_id, timestamp (microseconds), and `table` is the new item
    table, None if it stays. Only a model saved with its update data can be updated; it may still
    refuse the events.
    """
    if not model.fitted.training.get("updatable"):
        return False
    try:
        log = model.fitted.log
        update(model, _build_events_log(events, log.context if log else ()), items=table)
    except TalerecError as error:
        logger.info("the model is fitted again: %s", error)
        return False
    return True


def _drop_users(log: Log, users: set[str]) -> Log:
    """Return the log without the rows of these users; the same object if it has no such rows.

    `users` are ids as text; users and items that have no rows left leave the vocabularies too.
    """
    codes = log.users.text_positions(list(users))
    codes = codes[codes >= 0]
    if not len(codes):
        return log
    is_dropped = np.isin(log.user_codes(), codes)
    return log.keep(~is_dropped).compact() if is_dropped.any() else log


def _merge_events(log: Log, events: pl.DataFrame) -> tuple[Log, int]:
    """Return the log with the events added, and how many events are new to it.

    `events` has the columns user_id, item_id (text) and timestamp (microseconds). Their items are
    added to the vocabulary and the item table. If the log has integer ids and an event has not, all
    ids become text.
    """
    if not len(events):
        return log, 0
    if not _has_same_id_types(log, events):
        logger.info("ids become text: some ids of new events are not integers")
        log = _with_text_ids(log)
    result = merge_logs(log, _build_events_log(events, log.context))
    whole = replace(result.log, info=merge_item_tables(log.info, result.log))
    return whole, int(result.is_new.sum())


def _build_events_log(events: pl.DataFrame, context: ContextColumns) -> Log:
    """Return events (columns user_id, item_id, timestamp in microseconds) as a log.

    context: the columns of the model's log, which events of a store do not have: all are missing.
    """
    log = Log.from_frame(events, time_unit="us", any_time=True)
    return replace(log, context=tuple(missing_column(column, log.rows) for column in context))


def _has_same_id_types(log: Log, events: pl.DataFrame) -> bool:
    """Can the ids of all events be converted to the types of the log's ids?

    `events` has ids as text, in the columns user_id and item_id; "x1" is not an integer id.
    """
    users = log.users.cast_ids(events[columns.USER].unique())
    items = log.items.cast_ids(events[columns.ITEM].unique())
    return users.null_count() + items.null_count() == 0


def _with_text_ids(log: Log) -> Log:
    """Return the log with user and item ids as text, in its item table too."""
    users, items = (Vocabulary(names.ids.cast(pl.String)) for names in (log.users, log.items))
    info = None if log.info is None else log.info.with_columns(pl.col(columns.ITEM).cast(pl.String))
    return replace(log, users=users, items=items, info=info)
