"""One thread that writes to the store for a whole process: requests that wait are committed together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from talerec.errors import TalerecError
from talerec.store.events import Added, Event, RefusedError, StoreError
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_WAITING = 20_000  # events that may wait; beyond that, requests are refused
_TOGETHER = 5_000  # events of one commit, at least one request

Deliver = Callable[[list["Ticket"]], None]


class FullError(TalerecError):
    """More events wait than the store can take soon; the sender may try again."""


@dataclass(eq=False)
class Ticket:
    """A request that waits for the disk: events to keep, or a user to forget. `outcome` is there once it is delivered.

    `owner` is whatever whoever delivers needs to find the asker.
    """

    events: Sequence[Event] = ()
    forget: str | None = None
    owner: Any = None
    outcome: Added | int | Exception | None = None  # an int: the seq of a deletion

    @property
    def size(self) -> int:
        return max(1, len(self.events))


class Writer:
    """Takes tickets, commits them in groups, and hands them back when they are on disk (or refused).

    Parameters
    ----------
    store : Store
        Its own connection: nobody else may use it.
    deliver : function
        Called in the writer's thread with the tickets of one commit, whose outcomes are set.
    after_commit : function
        Called before that: what makes this process know what it has just written.
    """

    def __init__(
        self, store: Store, deliver: Deliver, after_commit: Callable[[], None] = lambda: None
    ) -> None:
        self.store, self._deliver, self._after = store, deliver, after_commit
        self.commits, self.seconds = 0, 0.0  # of commits so far
        self._waiting: list[Ticket] = []
        self._size = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Events that wait, or are being committed."""
        return self._size

    def submit(self, ticket: Ticket) -> None:
        """Let a request wait for the next commit; FullError if too many do, StoreError after `stop`."""
        with self._changed:
            if self._stopped:
                raise StoreError("the service is about to stop")
            if self._size and self._size + ticket.size > _WAITING:
                raise FullError(f"{self._size} events wait for the store")
            self._waiting.append(ticket)
            self._size += ticket.size
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Commit what waits, and end."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(seconds)
        self.store.close()

    def _run(self) -> None:
        while tickets := self._next():
            started = time.perf_counter()
            self._settle(tickets)
            self.commits, self.seconds = (
                self.commits + 1,
                self.seconds + time.perf_counter() - started,
            )
            with self._changed:
                self._size -= sum(ticket.size for ticket in tickets)
            self._deliver(tickets)

    def _settle(self, tickets: list[Ticket]) -> None:
        """Commit tickets, so that all have outcomes. Where the store refuses them together, each is tried alone, so that it fails for its own faults only."""
        try:
            self._commit(tickets)
        except Exception as error:
            if not isinstance(error, TalerecError):
                logger.exception("writing to the store failed")
            is_away = isinstance(error, StoreError) and not isinstance(error, RefusedError)
            left = [ticket for ticket in tickets if ticket.outcome is None]
            for ticket in left:
                if is_away or len(tickets) == 1:
                    ticket.outcome = error
                else:
                    self._settle([ticket])

    def _next(self) -> list[Ticket]:
        """The tickets of the next commit: events together, a deletion alone; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            count = size = 0
            for ticket in self._waiting:
                alone = ticket.forget is not None
                if count and (alone or size + ticket.size > _TOGETHER):
                    break
                count, size = count + 1, size + ticket.size
                if alone:
                    break
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _commit(self, tickets: list[Ticket]) -> None:
        first = tickets[0]
        if first.forget is not None:
            first.outcome = self.store.forget(first.forget, time.time_ns() // 1000)
        else:
            outcomes = self.store.append([ticket.events for ticket in tickets])
            for ticket, outcome in zip(tickets, outcomes, strict=True):
                ticket.outcome = outcome
        self._catch_up()

    def _catch_up(self) -> None:
        """What was committed stays so, also where reading it back fails."""
        try:
            self._after()
        except TalerecError as error:
            logger.warning("what was written cannot be read back yet: %s", error)
