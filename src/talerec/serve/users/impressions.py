"""A bounded queue of responses to record, and the thread that writes it to the store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import NamedTuple

from talerec.errors import TalerecError
from talerec.serve import SharedState, schemas
from talerec.store import (
    IdSigner,
    Impression,
    ImpressionStore,
    RefusedError,
    StoreError,
    encode_list,
)

logger = logging.getLogger("talerec")

_QUEUE_RESPONSES = 20_000  # responses that may wait; beyond that they are lost, and counted
_QUEUE_BYTES = 20_000_000  # bytes of these responses, about
_ITEM_BYTES = 100  # an item of a response, about
_COMMIT_RESPONSES = 5_000  # responses of one commit
_PAUSE_S = 0.25  # seconds between two commits: a killed worker loses no more than a second
_RETRY_S = 1.0  # seconds after the store failed


class ShownResponse(NamedTuple):
    """The response and the request that an impression is made of, before it is encoded."""

    id: str  # the recommendation id
    user: str | None  # None for an anonymous visitor
    time: int  # microseconds since 1970
    model: str  # the version of the model
    role: str  # of the model: "current" or "candidate"
    list_name: str | None  # of a named list
    rules: str | None  # JSON of the request's rules for items; None without any
    items: list[schemas.Id]  # by rank
    probabilities: list[float] | None = None  # of each item at its rank; None: all 1
    explored: list[int] | None = None  # ranks of explored items

    @property
    def size(self) -> int:
        """Return about how many bytes the response takes while it waits."""
        return _ITEM_BYTES * len(self.items) + len(self.rules or "")

    def to_impression(self) -> Impression:
        """Return the row of the table of impressions."""
        items = encode_list([str(item_id) for item_id in self.items]) or "[]"
        chances = encode_list(self.probabilities), encode_list(self.explored)
        return Impression(*self[:7], items, *chances)


class ImpressionQueue:
    """Writes responses to the store in a thread of its own, so that no request waits for it.

    Counters of `shared`: responses queued, written and lost, and the thread's processor time. What
    a killed worker had in its queue counts as lost when the worker that replaces it starts.

    Parameters
    ----------
    store : ImpressionStore
        A connection that nobody else uses; `stop` closes it.
    shared : SharedState
        The counters of the workers.
    """

    def __init__(self, store: ImpressionStore, shared: SharedState) -> None:
        self._store, self._shared = store, shared
        self._waiting: deque[ShownResponse] = deque()
        self._bytes_added = self._bytes_removed = 0  # each is counted by one thread
        self._loss_lock = threading.Lock()  # two threads count losses
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        queued, written, lost = (
            shared.value(f"impressions_{name}") for name in ("queued", "written", "lost")
        )
        shared.increment("impressions_lost", queued - written - lost)

    def start(self) -> None:
        """Start the thread that writes; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="impressions", daemon=True)
            self._thread.start()

    def add(self, shown: ShownResponse) -> None:
        """Queue a response to be written, or drop it and count it as lost if too many wait.

        At most 20,000 responses of 20 MB wait. The call never waits.
        """
        self._shared.increment("impressions_queued")
        n_bytes = self._bytes_added - self._bytes_removed
        if n_bytes >= _QUEUE_BYTES or len(self._waiting) >= _QUEUE_RESPONSES:
            self._count_lost(1)
        else:
            self._bytes_added += shown.size
            self._waiting.append(shown)

    def stop(self, seconds: float) -> None:
        """Write what waits, for at most `seconds`, and close the connection."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds)
        self._store.close()

    def _run(self) -> None:
        """Write the queue several times a second until `stop`; then once more."""
        is_last = False
        while not is_last:
            is_last = self._stop.wait(_PAUSE_S)
            started = time.thread_time()
            is_written = self._write_waiting()
            self._shared.increment("impression_writer_seconds", time.thread_time() - started)
            if not is_written and not is_last:
                self._stop.wait(_RETRY_S)

    def _write_waiting(self) -> bool:
        """Write all that waits, in commits of 5,000; return False if the store fails.

        The responses of a failed commit stay in the queue; they are lost only if the database
        refuses their values.
        """
        while self._waiting:
            group = [self._waiting[n] for n in range(min(len(self._waiting), _COMMIT_RESPONSES))]
            try:
                self._store.write_impressions([shown.to_impression() for shown in group])
                self._shared.increment("impressions_written", len(group))
            except Exception as error:
                if isinstance(error, StoreError) and not isinstance(error, RefusedError):
                    logger.warning("impressions wait for the store: %s", error)
                    return False
                if not isinstance(error, TalerecError):
                    logger.exception("impressions could not be written")
                logger.warning("%d impressions are lost: %s", len(group), error)
                self._count_lost(len(group))
            for shown in group:
                self._waiting.popleft()
                self._bytes_removed += shown.size
        return True

    def _count_lost(self, n_responses: int) -> None:
        """Count responses that are not stored: the queue is full, or the database refuses them."""
        with self._loss_lock:
            self._shared.increment("impressions_lost", n_responses)


class StoreSigner:
    """Signs recommendation ids with the secret of the store, as soon as it is known.

    Without a store, or before it answers, ids are signed with a key of this process, and no id of
    an event is recognised.

    Parameters
    ----------
    store : ImpressionStore, optional
        A connection from which the secret is read.
    """

    def __init__(self, store: ImpressionStore | None) -> None:
        self._store, self._is_keyed = store, False
        self._signer = IdSigner(os.urandom(16))
        self.make_id = self._signer.make_id
        self.read_key()

    def read_key(self) -> bool:
        """Read the secret of the store; return whether that is done, or will never be possible."""
        if self._store is None or self._is_keyed:
            return True
        try:
            self._signer = IdSigner(self._store.read_secret())
        except StoreError as error:
            logger.warning("recommendation ids cannot be recognised yet: %s", error)
            return False
        self.make_id, self._is_keyed = self._signer.make_id, True
        self._store.close()
        return True

    def read_key_later(self, stop: threading.Event) -> None:
        """If the secret is not known yet, try to read it once a second, in a thread of its own.

        The thread ends when the store has answered, or `stop` is set.
        """

        def retry() -> None:
            while not stop.wait(_RETRY_S) and not self.read_key():
                pass

        if not self._is_keyed and self._store is not None:
            threading.Thread(target=retry, name="recommendation ids", daemon=True).start()

    def is_genuine(self, text: str) -> bool:
        """Was this id made by a service of the same store?"""
        return self._is_keyed and self._signer.is_genuine(text)
