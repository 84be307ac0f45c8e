"""Learning in the background: a process of its own that fits the model again, with the events, and puts it in its place.

The artifact's histories, without users that were deleted since, and the events after them make the new log. The new model is saved
beside the old one, read back to the last byte, and installed in one step; the workers see it as they see any other. What fails leaves
the old model where it is, and is told: in the log, in /v1/stats and in the metrics.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import columns, models
from talerec.artifact import format as artifact
from talerec.artifact import install as installing
from talerec.data.log import Log
from talerec.data.log_merge import merged
from talerec.data.read.databases import without_password
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.models import updates as updating
from talerec.models.core import params
from talerec.models.core.base import Model
from talerec.models.core.persistence import STORE, STORE_SEQ
from talerec.serve.model.learnable import check_learnable, read_state, room_of, write_state
from talerec.serve.process import logs
from talerec.serve.settings import Settings
from talerec.serve.users.histories import seq_in, warn_if_put_back
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_NICE = 10  # how much others come first
_STEP = 20_000  # rows that are read from the store at a time


def run_learner(settings: Settings, folder: Path) -> None:
    """Learn again and again, until the process is ended."""
    logs.set_up(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.nice(_NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    assert settings.learn is not None
    assert settings.store is not None
    state = {"failures": 0, "rounds": 0, **(read_state(folder) or {}), "every": settings.learn}
    while True:
        begin = time.time() + settings.learn
        write_state(folder, {**state, "state": "waiting", "next": begin})
        time.sleep(max(0.0, begin - time.time()))
        write_state(folder, {**state, "state": "learning", "next": None})
        state |= _round(settings.path, settings.store, state)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _round(path: Path, address: str, state: dict[str, Any]) -> dict[str, Any]:
    """One attempt: what it changes in the state."""
    found: dict[str, Any] = {"rounds": state["rounds"] + 1, "error": None}
    try:
        learned = learn(path, address)
    except (TalerecError, OSError, MemoryError, ValueError) as error:
        said = without_password(address, str(error) or type(error).__name__)
        logger.warning("learning failed, the old model stays: %s", said)
        return {**found, "error": said, "failures": state["failures"] + 1, "failed": time.time()}
    if learned is None:
        return {**found, "looked": time.time()}
    logger.info(
        "learned from %d new rows in %.1f s (%s): version %s",
        learned["rows"], learned["seconds"], learned["how"], learned["version"],
    )  # fmt: skip
    return {**found, "learned": {**learned, "at": time.time()}}


def learn(path: Path, address: str) -> dict[str, Any] | None:
    """Put the model after the events of the store in the place of the one at `path`; None where nothing is new.

    Raises
    ------
    TalerecError
        Where that fails, or where another process learns at the same time; the model stays as it is.
    """
    started = time.monotonic()
    with _alone(path) as room:
        manifest = check_learnable(path)
        with Store(address) as store:
            meta = store.meta()
            training = manifest["training"]
            seq = seq_in(training, meta.store)
            if warn_if_put_back(store.name, meta.seq, seq):
                seq = 0
            if meta.seq <= seq:
                return None
            gone, events = set(store.deletions(seq)), _events(store, seq, meta.seq)
        model = models.load(path)
        how, rows, model = _learned(model, gone, events)
        model.fitted.training.update({STORE: meta.store, STORE_SEQ: meta.seq})
        target = model.save(room / path.name, updatable=bool(training.get("updatable")))
        if artifact.read_manifest(path)["version"] != manifest["version"]:
            raise TalerecError(f"{path} was replaced by somebody else meanwhile")
        version = installing.install(target, path, partial(models.load, verify=True))
    seconds = time.monotonic() - started
    return {"version": version, "rows": rows, "deleted_users": len(gone), "seq": meta.seq, "how": how, "seconds": seconds}  # fmt: skip


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """A folder beside the artifact for the new one; one process at a time has it. What a killed one left there goes."""
    room = room_of(path)
    room.mkdir(exist_ok=True)
    with (room / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TalerecError(f"another process learns for {path}") from None
        new = room / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _events(store: Store, after: int, until: int) -> pl.DataFrame:
    """The events after one seq up to another."""
    schema = {columns.USER: pl.String, columns.ITEM: pl.String, columns.TIME: pl.Int64}
    parts = [pl.DataFrame(schema=schema)]
    while after < until and (rows := store.tail(after, _STEP)):
        some = [(row.user, row.item, row.time) for row in rows if row.item and row.seq <= until]
        parts.append(pl.DataFrame(some, schema=schema, orient="row"))
        after = rows[-1].seq
    return pl.concat(parts)


# -- the new model ---------------------------------------------------------------------------------


def _learned(model: Model, gone: set[str], events: pl.DataFrame) -> tuple[str, int, Model]:
    """How it was learned, from how many new rows, and the model."""
    log = model.fitted.log
    assert log is not None
    kept = _without(log, gone)
    if kept is log and len(events) and _fits(log, events) and _updated(model, events):
        return "update", len(events), model
    whole, new = _joined(kept, events)
    made: Model = params.build(type(model), model.params)
    return "fit", new, made.fit(whole)


def _updated(model: Model, events: pl.DataFrame) -> bool:
    """Was the model brought up to date without a fit? Not every model can be."""
    if not model.fitted.training.get("updatable"):
        return False
    try:
        updating.update(model, _log_of(events))
    except TalerecError as error:
        logger.info("fitting anew: %s", error)
        return False
    return True


def _without(log: Log, gone: set[str]) -> Log:
    """The log without the rows of some users."""
    found = log.users.of_texts(list(gone))
    found = found[found >= 0]
    if not len(found):
        return log
    mine = np.isin(log.user_codes(), found)
    return log.keep(~mine).compact() if mine.any() else log


def _joined(log: Log, events: pl.DataFrame) -> tuple[Log, int]:
    """The log with the events in their places, and how many of them are new."""
    if not len(events):
        return log, 0
    if not _fits(log, events):
        logger.info("ids are text from now on: some that came are not whole numbers")
        log = _with_text(log)
    found = merged(log, _log_of(events))
    whole = replace(found.log, info=updating.described(log.info, found.log))
    return whole, int(found.is_new.sum())


def _log_of(events: pl.DataFrame) -> Log:
    return Log.from_frame(events, time_unit="us", any_time=True)


def _fits(log: Log, events: pl.DataFrame) -> bool:
    """Can the ids of all events be ids of the log's kind?"""
    pairs = ((log.users, columns.USER), (log.items, columns.ITEM))
    return not any(names.own_type(events[column].unique()).null_count() for names, column in pairs)


def _with_text(log: Log) -> Log:
    """The log with ids that are text."""
    users, items = (Vocabulary(names.ids.cast(pl.String)) for names in (log.users, log.items))
    info = None if log.info is None else log.info.with_columns(pl.col(columns.ITEM).cast(pl.String))
    return replace(log, users=users, items=items, info=info)
