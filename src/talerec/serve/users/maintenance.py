"""A thread that removes old events from the store, and deleted rows from SQLite's log."""

from __future__ import annotations

import logging
import threading
import time

from talerec.errors import TalerecError
from talerec.store import EventTail, now_us

logger = logging.getLogger("talerec")

_PASS_S = 60.0  # seconds between two passes
_PRUNE_S = 3600.0  # seconds, at most, between two searches for old events
_PAUSE_S = 0.05  # seconds between two batches, for other writers


class StoreMaintenance:
    """Removes events that are too old, and empties SQLite's write-ahead log after deletions.

    Every worker removes old events from its cache; only one worker changes the store.

    Parameters
    ----------
    tail : EventTail
        The cache of the store in this worker.
    keep_events : float or None
        Seconds after which an event is removed, by its time; None: never.
    changes_store : bool
        Whether this worker changes the store, too.
    """

    def __init__(self, tail: EventTail, keep_events: float | None, changes_store: bool) -> None:
        self._tail, self._changes_store = tail, changes_store
        self._keep = None if keep_events is None else round(1e6 * keep_events)
        self._pause = _PASS_S
        if keep_events is not None:
            self._pause = min(_PASS_S, max(1.0, keep_events / 100))
        self._start = now_us(), time.monotonic()
        self._emptied_for = tail.last_deletion  # the deletion after which the log was emptied

    def run(self, stop: threading.Event) -> None:
        """Do the work from time to time until `stop` is set; failures are logged and repeated."""
        n_passes = 0
        while not stop.is_set():
            try:
                self._run_pass(stop, n_passes % max(1, round(_PRUNE_S / self._pause)) == 0)
                n_passes += 1
            except TalerecError as error:
                logger.warning("old events could not be removed: %s", error)
            stop.wait(self._pause)

    def _run_pass(self, stop: threading.Event, prunes: bool) -> None:
        """Remove old events from the cache and, if `prunes`, from the store; empty the log."""
        if self._keep is not None:
            before = self._earliest_now() - self._keep
            self._tail.drop_before(before)
            if prunes and self._changes_store:
                self.prune(before, stop)
        if self._changes_store and self._tail.last_deletion != self._emptied_for:
            self._emptied_for = self._tail.last_deletion
            with self._tail.open_writer() as store:
                store.empty_log()

    def _earliest_now(self) -> int:
        """Return the time now in microseconds, without jumps of the clock since the start.

        If the clock was set back, the time is that of the clock: a wrong clock removes no events.
        """
        start, monotonic = self._start
        return min(now_us(), start + round(1e6 * (time.monotonic() - monotonic)))

    def prune(self, before: int, stop: threading.Event) -> None:
        """Delete events and impressions from before a time (microseconds), in batches."""
        seq: int | None = 0
        with self._tail.open_writer() as store:
            while seq is not None and not stop.wait(_PAUSE_S):
                seq = store.prune(seq, before)
            while store.prune_impressions(before) and not stop.wait(_PAUSE_S):
                pass
            store.empty_log()
