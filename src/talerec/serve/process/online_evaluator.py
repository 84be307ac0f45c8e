"""The process that measures: it asks the models that the workers serve, follows them when they are replaced, and ends with its parent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
import uuid
from multiprocessing.connection import wait
from pathlib import Path

from talerec.errors import TalerecError
from talerec.serve.model.reload import ModelHolder
from talerec.serve.model.served import ServedModel
from talerec.serve.online.evaluation import Asked, Measurer
from talerec.serve.online.summary import PLACES
from talerec.serve.process import logs
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState
from talerec.serve.users.histories import Users, seq_of
from talerec.serve.users.user_state import adopt
from talerec.store.events import Kept, StoreError
from talerec.store.tail import Recent

logger = logging.getLogger("talerec")

_NICE = 10  # requests come first
_IDLE_S = 0.2  # seconds between looks for new events
_PAUSE_S = 1.0  # seconds after the store did not answer
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Served:
    """A served model, as it is measured."""

    def __init__(self, model: ServedModel, users: Users, recent: Recent) -> None:
        self.version, self._model, self._users = model.version, model, users
        self._recent = recent

    def place(self, user: str, before: list[Kept], event: Kept) -> int | None:
        """The place of the event's item in the list right before the event; None for an event that the model has learned from."""
        if event.seq <= seq_of(self._model, self._recent):
            return None
        rows = self._users.rows(self._model, user, before)
        shown = self._model.first_items(rows, event.time, PLACES)
        item = int(self._model.items.of_texts([str(event.item)])[0])
        return shown.index(item) + 1 if item >= 0 and item in shown else 0


class Process:
    """The models, the store and the loop of the process that measures."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        assert settings.store is not None
        self._settings = settings
        self.stopping = threading.Event()
        self._recent = Recent(settings.store, settings.max_history, patient=True)
        self._users = Users(self._recent, settings.max_history)
        paths = {"current": (settings.path, folder)}
        if settings.candidate is not None:
            paths["candidate"] = (settings.candidate, folder / "candidate")
        self._holders = {
            role: self._holder(path, place, folder / f"measured-{role}")
            for role, (path, place) in paths.items()
        }
        self._asked: dict[str, Served] = {}
        self._name = _name_of(folder)

    def _holder(self, path: Path, copies: Path, own: Path) -> ModelHolder:
        """Whoever measures maps the copies of the workers, and has numbers of its own."""
        own.mkdir(exist_ok=True)
        copies.mkdir(exist_ok=True)
        shared = SharedState(own, 1, 0, ())
        return ModelHolder(
            path,
            copies,
            shared,
            lambda model: adopt(self._recent, model),
            "the process that measures",
        )

    def run(self) -> None:
        """Measure until told to stop."""
        measurer, told = self._open(), False
        for holder in self._holders.values():
            holder.start()
            watching = (self._settings.watch, self.stopping)
            threading.Thread(target=holder.watch, args=watching, daemon=True).start()
        while measurer is not None and not self.stopping.is_set():
            try:
                read = measurer.step(time.time())
                self._recent.catch_up()
                told = False
            except StoreError as error:
                if not told:
                    logger.warning("nothing is measured while the store does not answer: %s", error)
                told, read = True, 0
                self.stopping.wait(_PAUSE_S)
            if not read:
                self.stopping.wait(_IDLE_S)

    def _open(self) -> Measurer | None:
        """The store, as soon as it answers."""
        settings = self._settings
        while not self.stopping.is_set():
            try:
                return Measurer(
                    str(settings.store), settings.measure, self._models,
                    max_age=86_400 * settings.live_days, history=settings.max_history, holder=self._name,
                )  # fmt: skip
            except StoreError:
                self.stopping.wait(_PAUSE_S)
        return None

    def _models(self) -> dict[str, Asked]:
        """The models that are served now."""
        for role, holder in self._holders.items():
            current, known = holder.current, self._asked.get(role)
            if current is not None and (known is None or known.version != current.version):
                self._asked[role] = Served(current, self._users, self._recent)
        return {**self._asked}


def _name_of(folder: Path) -> str:
    """A name for whoever measures in a run: the same after a restart, and another on every machine."""
    file = folder / "measurer"
    if not file.exists():
        file.write_text(uuid.uuid4().hex)
    return file.read_text()


def run_measurer(settings: Settings, folder: Path) -> None:
    """Measure until told to stop, or until the parent ends."""
    os.nice(_NICE)
    logs.set_up(settings)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        process = Process(settings, folder)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: process.stopping.set())
        process.run()
    except TalerecError as error:
        logger.warning("measuring ends: %s", error)
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
