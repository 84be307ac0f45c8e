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
from talerec.store.events import AppendResult, Event, RefusedError, StoreDamagedError, StoreError
from talerec.store.items import ItemChange, ItemsWritten
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_QUEUE_EVENTS = 20_000  # events that may wait; beyond that, requests are refused
_COMMIT_EVENTS = 5_000  # events of one commit, at least one request


class QueueFullError(TalerecError):
    """Too many events wait for the store; the client may try again later."""


@dataclass(eq=False)
class WriteRequest:
    """Events or items to store, or a user or an item to delete.

    `result` is set once the request is committed or refused.
    """

    events: Sequence[Event] = ()
    items: Sequence[ItemChange] = ()
    deleted_user: str | None = None  # a user id, for a deletion
    deleted_item: str | None = None  # an item id, for a deletion
    always_record: bool = True  # whether to record a deletion of what the store does not have
    waiter: Any = None  # any object by which the caller finds out who waits for the result
    # For events and items their counts, for a deletion its number in commit order (None for an
    # item that the store does not have), else what went wrong.
    result: AppendResult | ItemsWritten | int | Exception | None = None
    is_done: bool = False  # whether `result` is set

    @property
    def size(self) -> int:
        """The number of events that the request counts as in the queue: at least 1."""
        return max(1, len(self.events), len(self.items))

    @property
    def is_alone(self) -> bool:
        """Whether the request has a commit of its own: it does not store events."""
        return not self.events


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
        """Queue a request (events, items or a deletion) for the next commit; do not wait.

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

        This is the loop of the thread; `waiting` counts the events and items of requests that are
        not delivered yet, a deletion as one event.
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

        Requests that store events are grouped up to 5,000 events; any other request is alone in
        its group. Returns an empty list once `stop` was called and the queue is empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_stopped)
            count = size = 0
            for request in self._queue:
                if count and (request.is_alone or size + request.size > _COMMIT_EVENTS):
                    break
                count, size = count + 1, size + request.size
                if request.is_alone:
                    break
            group, self._queue = self._queue[:count], self._queue[count:]
            return group

    def _commit(self, requests: list[WriteRequest]) -> None:
        """Write requests in one commit and set the `result` of each, an exception if it failed.

        If the database refuses the values of several requests, each is written alone, so that a
        request fails only for its own faults; if the store is unavailable, all fail with that
        error.
        """
        try:
            self._write(requests)
        except Exception as error:
            if not isinstance(error, TalerecError):
                logger.exception("writing to the store failed")
            is_unavailable = isinstance(error, StoreError) and not isinstance(error, RefusedError)
            for request in [request for request in requests if not request.is_done]:
                if is_unavailable or len(requests) == 1:
                    request.result, request.is_done = error, True
                else:
                    self._commit([request])

    def _write(self, requests: list[WriteRequest]) -> None:
        """Write the events of all requests, or the only request of another kind; set the results.

        Everything is one commit. The result of a deletion is its number in commit order, that of
        events an `AppendResult` (how many were accepted, how many are duplicates) or the error of a
        refused request, whose events are not written; that of items an `ItemsWritten`. After the
        commit, `_after_commit` is called; its failure is logged, but a StoreDamagedError is raised:
        a damaged store may have lost the commit.
        """
        results: Sequence[Any]
        if requests[0].is_alone:
            results = [self._write_alone(requests[0])]
        else:
            results = self.store.append([request.events for request in requests])
        try:
            self._after_commit()
        except StoreDamagedError:
            raise
        except TalerecError as error:
            logger.warning("committed rows cannot be read back yet: %s", error)
        for request, result in zip(requests, results, strict=True):
            request.result, request.is_done = result, True

    def _write_alone(self, request: WriteRequest) -> ItemsWritten | int | None:
        """Write items, or delete a user or an item, in one commit; return the request's result."""
        now, record = now_us(), {"always_record": request.always_record}
        if request.deleted_user is not None:
            return self.store.delete_user(request.deleted_user, now, **record)
        if request.deleted_item is not None:
            return self.store.delete_item(request.deleted_item, now, **record)
        return self.store.write_items(request.items, now)
