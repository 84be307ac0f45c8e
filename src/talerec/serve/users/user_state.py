"""What a worker remembers: the store's events as they come, and one thread that writes new ones.

Threads: `watch` reads on in the store, `write` commits. The event loop asks what is remembered; only a SQLite file is read in it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError
from talerec.serve.errors import ApiError, busy, store_unavailable
from talerec.serve.model.served import ServedModel
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState
from talerec.serve.users.deletions import Deletions
from talerec.serve.users.histories import Users, seq_of
from talerec.store.events import Added, ConflictError, Event, StoreError
from talerec.store.store import Store
from talerec.store.tail import Recent
from talerec.store.writer import FullError, Ticket, Writer

logger = logging.getLogger("talerec")

_KNOWN_S = 1.0  # seconds to wait until all workers know of a deletion
_POLL_S = 0.01  # seconds between looks at that


class Memory:
    """The users and events of one worker. Without a store it knows the users of the artifact alone, and takes no events."""

    def __init__(self, settings: Settings, shared: SharedState, folder: Path) -> None:
        self._settings, self._shared = settings, shared
        self.recent = _opened(settings, folder / "store")
        self._deletions = Deletions(folder, shared.worker)
        if self.recent is not None:
            self._deletions.recall(self.recent)
            self._publish()
            self.recent.caught_up = self._publish
        self.users = Users(self.recent, settings.max_history)
        self._writer: Writer | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counted = (0, 0.0)

    def adopt(self, model: ServedModel) -> None:
        """Let a model that is about to be served know which events came after it."""
        if self.recent is not None:
            adopt(self.recent, model)

    def _publish(self) -> None:
        """Let others know up to where this worker has read, after what it read of deletions is kept."""
        assert self.recent is not None
        self._deletions.keep(self.recent)
        self._shared.set_seq(self.recent.seq)

    def start(self) -> None:
        """Begin to write, and to read on."""
        if self.recent is not None and self._writer is None:
            assert self._settings.store is not None
            store = Store(self._settings.store)
            self._writer = Writer(store, _deliver, self.recent.catch_up)
            watching = threading.Thread(
                target=self.recent.watch, args=(self._stop,), name="read on", daemon=True
            )
            watching.start()
            self._threads.append(watching)

    def stop(self) -> None:
        """Write what waits, and end."""
        self._stop.set()
        if self._writer is not None:
            self._writer.stop(self._settings.timeout)
        for thread in self._threads:
            thread.join(self._settings.timeout)
        if self.recent is not None:
            self.recent.close()

    # -- writing --

    async def keep(self, events: Sequence[Event]) -> Added:
        """Keep events; once this returns they are on disk, and this worker knows them."""
        added: Added = await self._written(Ticket(events))
        self._shared.increment("events_accepted", added.accepted)
        self._shared.increment("events_duplicate", added.duplicates)
        return added

    async def forget(self, user: str) -> int:
        """Delete a user; once this returns that is on disk, and all workers that read on know it. The seq of the deletion."""
        seq: int = await self._written(Ticket(forget=user))
        end = time.monotonic() + _KNOWN_S
        while not self._shared.is_known_everywhere(seq) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        return seq

    async def _written(self, ticket: Ticket) -> Any:
        writer = self._writing()
        loop = asyncio.get_running_loop()
        ticket.owner = loop, loop.create_future()
        try:
            writer.submit(ticket)
            async with asyncio.timeout(self._settings.timeout):
                return await ticket.owner[1]
        except FullError as error:
            raise busy(str(error)) from None
        except ConflictError as error:
            raise ApiError(409, "conflict", str(error)) from None
        except StoreError as error:
            self._shared.increment("store_failures")
            raise store_unavailable(str(error)) from None
        except TimeoutError:
            message = "the store takes long: what was sent may be kept later, or not; send it again"
            raise store_unavailable(message) from None
        finally:
            self._note(writer)

    def _writing(self) -> Writer:
        if self._writer is None:
            message = "this service has no store, and keeps no events: start it with --store"
            raise ApiError(409, "no_store", message)
        return self._writer

    def _note(self, writer: Writer) -> None:
        """Write down what the writer did since the last time."""
        before, self._counted = self._counted, (writer.commits, writer.seconds)
        self._shared.increment("store_commits", self._counted[0] - before[0])
        self._shared.increment("store_commit_seconds", self._counted[1] - before[1])
        self._shared.set_gauge("events_waiting", writer.waiting)

    # -- what is known of the store --

    def facts(self) -> dict[str, Any] | None:
        """The store as /v1/stats shows it; its address has no password."""
        if self.recent is None:
            return None
        return {
            "address": self.recent.name,
            "answers": self.recent.answers,
            "seq": self.recent.seq,
            "deleted_users": len(self.recent.deleted),
        }


def adopt(recent: Recent, model: ServedModel) -> None:
    """Let a model know which events came after it, and of those that come: they count for what is popular."""
    add = model.popular.events.add
    try:
        recent.attach(add, seq_of(model, recent))
    except StoreError as error:
        logger.warning("what is popular is counted from now on: %s", error)
        recent.listen(add)


def _opened(settings: Settings, was_there: Path) -> Recent | None:
    """The store. At the start of a service it has to answer; a worker that takes the place of another goes on without it."""
    if settings.store is None:
        return None
    found = Recent(settings.store, settings.max_history, patient=was_there.exists())
    was_there.touch()
    return found


def _deliver(tickets: list[Ticket]) -> None:
    """Hand outcomes back to the event loops that wait for them, with one wake-up each."""
    for loop, some in groupby(tickets, key=lambda ticket: ticket.owner[0]):
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_resolve, list(some))


def _resolve(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        future, outcome = ticket.owner[1], ticket.outcome
        if future.done():  # its client has gone, or waited too long
            continue
        if isinstance(outcome, Exception):
            known = isinstance(outcome, TalerecError)
            future.set_exception(outcome if known else StoreError("the store failed; see the log"))
        else:
            future.set_result(outcome)
