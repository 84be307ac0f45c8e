"""Changes of the store's items, applied to the models of a process by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from talerec.models.core import STORE, STORE_ITEM_SEQ
from talerec.serve import SharedState
from talerec.serve.model.served import ServedModel
from talerec.store import ItemChanges, ItemTail, StoredItem

logger = logging.getLogger("talerec")

_CHECK_S = 0.2  # seconds between checks for models that lack changes
_MAX_PAUSE_S = 0.5  # seconds between two applications of changes, at most


class HoldsModel(Protocol):
    """An object that has the model in use, None while none is loaded."""

    current: ServedModel | None


class ItemUpdates:
    """Applies changes of the store's items to the models that a process serves.

    A changed model replaces the served one between two requests. While changes are applied, which
    takes milliseconds to seconds, responses come from the previous one, and further changes wait:
    they are applied together, during at most half of the time.

    Parameters
    ----------
    shared : SharedState, optional
        Gets the last change that this process has applied; without it, nothing is reported.
    """

    def __init__(self, shared: SharedState | None = None) -> None:
        self._shared = shared
        self._tail: ItemTail | None = None
        self._store = ""
        self._changed = threading.Event()
        self.lock = threading.Lock()  # held while the model of a holder changes
        if shared is not None:
            shared.set_item_seq(0)

    def follow(self, tail: ItemTail, store: str) -> None:
        """Apply the items that `tail` reads from now on; `store` is the id of the store."""
        self._tail, self._store = tail, store

    def wake(self) -> None:
        """Apply new changes soon; the tail has read some."""
        self._changed.set()

    def warm(self, served: ServedModel) -> None:
        """Load what applying changes needs, so that the first real change is not slow.

        An empty change of the model's first item is applied to a copy, which is discarded. Nothing
        happens without a store.
        """
        if self._tail is not None:
            row = StoredItem(str(served.catalogue.ids[0]), 1, "{}", True)
            served.with_changes(ItemChanges([row], 1, 0))

    def apply_to(self, served: ServedModel) -> ServedModel:
        """Return a model with all changes that were read; the same object if it has them."""
        if self._tail is None:
            return served
        resets, seq = served.item_changes
        changes = self._tail.changes(seq)
        if changes.resets != resets:
            changes = self._tail.changes(0)
        if (changes.resets, changes.seq) == (resets, seq):
            return served
        training = served.facts["training"]
        is_learned = training.get(STORE) == self._store
        return served.with_changes(changes, int(training.get(STORE_ITEM_SEQ, 0)) * is_learned)

    def run(self, holders: Sequence[HoldsModel], stop: threading.Event) -> None:
        """Apply changes to the models of some holders until `stop` is set; body of a thread.

        After each application, it pauses for as long as that took, at most half a second, so that
        a stream of changes takes no more than half of a processor. An error is logged once and
        tried again.
        """
        logged = ""
        while not stop.is_set():
            started = time.monotonic()
            try:
                self._apply(holders)
                logged = ""
            except Exception as error:  # whatever it is: without this thread no change arrives
                if str(error) != logged:
                    logger.exception("changes of items cannot be applied")
                logged = str(error)
            seconds = time.monotonic() - started
            stop.wait(min(seconds if not logged else _MAX_PAUSE_S, _MAX_PAUSE_S))
            self._changed.wait(_CHECK_S)

    def _apply(self, holders: Sequence[HoldsModel]) -> None:
        """Apply all changes that were read to the models of `holders`; report the last change."""
        if self._tail is None:
            return
        self._changed.clear()
        seqs = [self._tail.facts.seq]
        for holder in holders:
            with self.lock:
                if holder.current is not None:
                    holder.current = self.apply_to(holder.current)
                    seqs.append(holder.current.item_changes[1])
        if self._shared is not None:
            self._shared.set_item_seq(min(seqs))
