"""A thread that writes to the store for a whole process: waiting requests share a commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.errors import TalerecError
from talerec.store.clock import now_us
from talerec.store.events import (
    AppendResult,
    ConflictError,
    Event,
    RefusedError,
    StoreDamagedError,
    StoreError,
)
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_QUEUE_EVENTS = 20_000  # events that may wait; beyond that, requests are refused
_COMMIT_EVENTS = 5_000  # events of one commit, at least one request


class QueueFullError(TalerecError):
    """Too many events wait for the store; the client may try again later."""


@dataclass(eq=False)
class WriteRequest:
    """Events to store, or a user to delete; `result` is set once it is committed or refused."""

    events: Sequence[Event] = ()
    deleted_user: str | None = None  # a user id, for a deletion
    always_record: bool = True  # whether to record a deletion although the store has no such user
    waiter: Any = None  # any object by which the caller finds out who waits for the result
    # For events their counts, for a deletion its number in commit order, else what went wrong.
    result: AppendResult | int | Exception | None = None

    @property
    def size(self) -> int:
        """How many events the request counts as in the queue: at least 1, also for a deletion."""
        return max(1, len(self.events))


class EventWriter:
    """Writes to an event store in a thread of its own: waiting requests share a commit.

    Parameters
    ----------
    store : Store
        A connection that nobody else uses; `stop` closes it.
    deliver : function
        Called in the writer's thread with the requests of one commit, whose `result` is set.
    after_commit : function
        Called after each commit, before `deliver`.

    Attributes
    ----------
    commits, seconds
        The number of commits so far, and the time they took.
    waiting : int
        The events that wait in the queue or are being committed.
    """

    def __init__(
        self, store: Store, deliver: Callable[[list[WriteRequest]], None],
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.store, self._deliver, self._after_commit = store, deliver, after_commit
        self.commits, self.seconds = 0, 0.0  # of commits so far
        self._queue: list[WriteRequest] = []
        self.waiting = 0  # events that wait or are being committed
        self._changed = threading.Condition()  # of the queue or of `_is_stopped`
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    def submit(self, request: WriteRequest) -> None:
        """Queue a request (events, or the deletion of a user) for the next commit; do not wait.

        Raises
        ------
        QueueFullError
            If more than 20,000 events would wait. While none waits, every request is accepted.
        StoreError
            After `stop`.
        """
        with self._changed:
            if self._is_stopped:
                raise StoreError("the service is stopping")
            if self.waiting and self.waiting + request.size > _QUEUE_EVENTS:
                raise QueueFullError(f"{self.waiting} events wait for the store")
            self._queue.append(request)
            self.waiting += request.size
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Commit the waiting requests, for at most `seconds`, end the thread, close the store.

        Later calls of `submit` fail.
        """
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join(seconds)
        self.store.close()

    def _run(self) -> None:
        """Commit queued requests in groups and pass their results to `deliver`, until `stop`.

        A request is a list of events, or the deletion of a user. This is the loop of the thread;
        `waiting` counts the events of requests that are not delivered yet, a deletion as one event.
        """
        while requests := self._next_group():
            started = time.perf_counter()
            self._commit(requests)
            self.commits += 1
            self.seconds += time.perf_counter() - started
            with self._changed:
                self.waiting -= sum(request.size for request in requests)
            self._deliver(requests)

    def _next_group(self) -> list[WriteRequest]:
        """Wait for requests; remove those of the next commit from the queue and return them.

        A request stores events or deletes a user. A deletion is alone in its group; requests are
        grouped up to 5,000 events. Returns an empty list once `stop` was called and the queue is
        empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_stopped)
            count = size = 0
            for request in self._queue:
                is_deletion = request.deleted_user is not None
                if count and (is_deletion or size + request.size > _COMMIT_EVENTS):
                    break
                count, size = count + 1, size + request.size
                if is_deletion:
                    break
            group, self._queue = self._queue[:count], self._queue[count:]
            return group

    def _commit(self, requests: list[WriteRequest]) -> None:
        """Write requests in one commit and set the `result` of each, an exception if it failed.

        A request is a list of events, or the deletion of a user. If the database refuses the values
        of several requests, each is written alone, so that a request fails only for its own faults;
        if the store is unavailable, all fail with that error.
        """
        try:
            self._write(requests)
        except Exception as error:
            if not isinstance(error, TalerecError):
                logger.exception("writing to the store failed")
            is_unavailable = isinstance(error, StoreError) and not isinstance(error, RefusedError)
            for request in [request for request in requests if request.result is None]:
                if is_unavailable or len(requests) == 1:
                    request.result = error
                else:
                    self._commit([request])

    def _write(self, requests: list[WriteRequest]) -> None:
        """Write one deletion, or the events of all requests, in one commit; set their results.

        The result of a deletion is its number in commit order, that of events an `AppendResult`
        (how many were accepted, how many are duplicates), or the error of a refused request, whose
        events are not written. If the first request is a deletion, it is the only one. After the
        commit, `_after_commit` is called; its failure is logged, but a StoreDamagedError is raised:
        a damaged store may have lost the commit.
        """
        user = requests[0].deleted_user
        results: Sequence[AppendResult | ConflictError | int]
        if user is not None:
            record = {"always_record": requests[0].always_record}
            results = [self.store.delete_user(user, now_us(), **record)]
        else:
            results = self.store.append([request.events for request in requests])
        try:
            self._after_commit()
        except StoreDamagedError:
            raise
        except TalerecError as error:
            logger.warning("committed rows cannot be read back yet: %s", error)
        for request, result in zip(requests, results, strict=True):
            request.result = result
