"""The users and events of one worker: histories, writer thread, deletions, kinds of ids.

Threads: "poll" reads new rows of the store, "write" commits new events. The event loop uses the
cache; only a SQLite file is read in the loop itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError
from talerec.serve import ApiError, Settings, SharedState, busy, store_unavailable
from talerec.serve.model import ItemUpdates, ModelHolder, ServedModel
from talerec.serve.users.histories import UserHistories, trained_seq
from talerec.serve.users.maintenance import StoreMaintenance
from talerec.serve.users.saved_deletions import SavedDeletions
from talerec.serve.users.validation import find_id_kinds
from talerec.store import (
    AppendResult,
    CatalogueFacts,
    CatalogueFullError,
    ConflictError,
    Event,
    EventTail,
    EventWriter,
    IdKinds,
    ItemTail,
    NegativeFeedback,
    QueueFullError,
    StoreDamagedError,
    StoreError,
    WriteRequest,
)

logger = logging.getLogger("talerec")

_DELETION_WAIT_S = 1.0  # seconds to wait until all workers have read a deletion
_DELETION_POLL_S = 0.01
_STORE_FILE = "store"  # in the folder of a run: the id of the store that answered at the start


class UserState:
    """The users and events of one worker: histories, and the threads that write and poll.

    Without a store, users are those of the training log, and no events are accepted. `tail` is the
    cache of the event store, None without one; `histories` merges it with training logs.

    Parameters
    ----------
    settings : Settings
        The settings of the service.
    shared : SharedState
        The counters of the workers, in the folder of the run.
    models : function
        Returns the models that this worker serves.
    """

    def __init__(
        self, settings: Settings, shared: SharedState,
        models: Callable[[], Collection[ServedModel]],
    ) -> None:  # fmt: skip
        self._settings, self._shared = settings, shared
        self._saved_deletions = SavedDeletions(shared.folder, shared.worker)
        self._models = models
        self.item_updates = ItemUpdates(shared)
        self.item_tail: ItemTail | None = None
        self.tail: EventTail | None = None
        if (store := settings.store) is not None:
            options: dict[str, Any] = {"known_store": read_store_id(shared.folder)}
            options |= {"on_poll": self._on_poll, "feedback": settings.feedback}
            self.tail = EventTail(store, settings.max_history, **options)
            (shared.folder / _STORE_FILE).write_text(self.tail.store)
            self.tail.subscribe(self._saved_deletions.collect)
            self._saved_deletions.restore(self.tail)
            self.item_tail = ItemTail(self.tail.open_writer())
            self.item_updates.follow(self.item_tail, self.tail.store)
            self._on_poll(self.tail)

        def keys() -> set[str]:
            return {model.vocabulary_key for model in models()}

        self.histories = UserHistories(self.tail, settings.max_history, keys, settings.feedback)
        self._writer: EventWriter | None = None
        self._stop = threading.Event()
        self._poll_thread: threading.Thread | None = None
        self._id_kinds: dict[str, IdKinds] = {}  # of events, by the version of the served model
        self._counted_commits = (0, 0.0)  # commits of the writer, and their seconds, in the metrics

    def prepare_model(self, model: ServedModel) -> None:
        """Count the store's events after a model's training for its popular items.

        Called with each loaded model; later events are counted as they arrive. Nothing is counted
        without an event store (`tail`, its cache, is None).
        """
        if self.tail is not None:
            follow_events(self.tail, model, self._settings.feedback)

    def _on_poll(self, tail: EventTail) -> None:
        """Save new deletions of users, read changed items, and publish how far this worker is.

        Called after each poll of the store by `tail`, the cache of recent events that polls it. The
        number of that row (`tail.seq`, negative until the store first answers) goes to the state
        that all worker processes share, so that the worker that deletes a user can wait until all
        have read the deletion.
        """
        if tail.seq >= 0:
            self._saved_deletions.save(tail)
            if self.item_tail is not None and self.item_tail.poll():
                self.item_updates.wake()
        self._shared.set_seq(tail.seq)

    def start(self) -> None:
        """Start the threads that write to the store and poll it; nothing without a store.

        The writer commits queued events; the poller reads new rows of all worker processes into
        `self.tail`, the cache of recent events. A second call does nothing.
        """
        if self.tail is not None and self._writer is None:
            store = self.tail.open_writer()
            poll = partial(self.tail.poll, checks_files=False)
            self._writer = EventWriter(store, _deliver_results, poll)
            run, stop = self.tail.run, (self._stop,)
            self._poll_thread = threading.Thread(target=run, args=stop, name="poll", daemon=True)
            self._poll_thread.start()
            keep = self._settings.keep_events
            work = StoreMaintenance(self.tail, keep, self._shared.worker == 0)
            threading.Thread(target=work.run, args=stop, name="maintain", daemon=True).start()

    def follow_items(self, holders: Sequence[ModelHolder]) -> None:
        """Start the thread that applies changes of items to the models; nothing without a store."""
        if self.item_tail is not None:
            run, arguments = self.item_updates.run, (holders, self._stop)
            threading.Thread(target=run, args=arguments, name="items", daemon=True).start()

    def stop(self) -> None:
        """Commit the waiting events, stop both threads, and close the connections to the store.

        The threads write to the store and poll it into the cache `tail`. Each is waited for at most
        `timeout` seconds of the settings. Does nothing without a store.
        """
        self._stop.set()
        if self._writer is not None:
            self._writer.stop(self._settings.timeout)
        if self._poll_thread is not None:
            self._poll_thread.join(self._settings.timeout)
        if self.tail is not None and self.item_tail is not None:
            self.tail.close()
            self.item_tail.close()

    # -- kinds of ids --

    def get_id_kinds(self, model: ServedModel) -> IdKinds | None:
        """Return whether events have integer or text ids; None if `settle_id_kinds` has to say."""
        return IdKinds("text", "text") if self.tail is None else self._id_kinds.get(model.version)

    def settle_id_kinds(self, model: ServedModel, first: IdKinds) -> IdKinds:
        """Return whether events have integer or text ids; record it in the store if it is open.

        The setting `ids` decides; else ids are text if those of the model or those recorded in the
        store are. Where a vocabulary is empty and nothing is recorded, the ids that were sent
        `first` decide. ApiError 503 if the store does not answer.
        """
        assert self.tail is not None
        kinds, ids = find_id_kinds(self._settings, model), self._settings.ids
        try:
            with self.tail.open_writer() as store:
                recorded = store.settle_id_kinds(kinds.or_else(first), is_final=ids is not None)
        except StoreError as error:
            raise self._note_failure(error) from None
        if ids is None:
            pairs = zip(kinds, recorded, strict=True)
            kinds = IdKinds(*("text" if "text" in pair else "integer" for pair in pairs))
        self._id_kinds = {model.version: kinds}
        logger.info("events have %s user ids and %s item ids", *kinds)
        return kinds

    # -- writing --

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """Store events; return how many were stored now, and how many before. Both are counted.

        On return they are on disk and in this worker process's histories. Failures are raised as
        ApiErrors: 409 for an event id that is stored with other contents, 503 if the store is busy
        or fails.
        """
        result: AppendResult = await self.write(WriteRequest(events))
        self._shared.increment("events_accepted", result.accepted)
        self._shared.increment("events_duplicate", result.duplicates)
        return result

    async def delete(self, user: str) -> int:
        """Delete a user and return the seq of the deletion, its row number in the event store.

        On return the deletion is on disk, and all worker processes have read it, or a second has
        passed. Nothing is recorded of a user whom neither the store nor a model in use knows,
        unless impressions are kept, some of which may wait to be written. ApiError if the store
        fails.
        """
        is_recorded = self._settings.impressions > 0 or self._is_in_a_model(user)
        request = WriteRequest(deleted_user=user, always_record=is_recorded)
        seq: int = await self.write(request)
        end = time.monotonic() + _DELETION_WAIT_S
        while not self._shared.is_read_by_all(seq) and time.monotonic() < end:
            await asyncio.sleep(_DELETION_POLL_S)
        return seq

    def _is_in_a_model(self, user: str) -> bool:
        """May a model in use have rows of this user in its training log?

        True for a model saved without its log, because nobody can say.
        """
        logs = [model.model.fitted.log for model in self._models()]
        return any(log is None or log.users.text_positions([user])[0] >= 0 for log in logs)

    async def write(self, request: WriteRequest) -> Any:
        """Queue a write request, wait for its commit and return its result.

        Its result is what the store returns: counts, or the number of a deletion. Failures are
        raised as ApiErrors: 409 without a store, for a conflict of event ids or for too many items,
        503 if the store is busy, slow or failing. `waiter` is a future that the writer's thread
        resolves.
        """
        writer = self._writer
        if writer is None:
            message = "this service has no store and stores nothing: start it with a store"
            raise ApiError(409, "no_store", message)
        request.waiter = asyncio.get_running_loop().create_future()
        try:
            writer.submit(request)
            async with asyncio.timeout(self._settings.timeout):
                return await request.waiter
        except QueueFullError as error:
            raise busy(str(error)) from None
        except ConflictError as error:
            raise ApiError(409, "conflict", str(error)) from None
        except CatalogueFullError as error:
            raise ApiError(409, "catalogue_full", str(error)) from None
        except StoreError as error:
            raise self._note_failure(error) from None
        except TimeoutError:
            message = "the store is slow: it may still store this later; send it again"
            raise store_unavailable(message) from None
        finally:
            self._count_commits(writer)

    def _note_failure(self, error: StoreError) -> ApiError:
        """Count a failure of the store, report damage of its file, and return the error 503."""
        self._shared.increment("store_failures")
        if self.tail is not None and isinstance(error, StoreDamagedError):
            self.tail.note_failure(error)
        return store_unavailable(str(error))

    def _count_commits(self, writer: EventWriter) -> None:
        """Add the writer's commits and their seconds since the last call to the shared metrics.

        The writer is the thread that commits events. The metrics are counters of all worker
        processes in shared memory: "store_commits", "store_commit_seconds", and the gauge
        "events_waiting". `_counted_commits` has the writer's totals at the last call.
        """
        before, self._counted_commits = self._counted_commits, (writer.commits, writer.seconds)
        self._shared.increment("store_commits", self._counted_commits[0] - before[0])
        self._shared.increment("store_commit_seconds", self._counted_commits[1] - before[1])
        self._shared.set_gauge("events_waiting", writer.waiting)

    # -- status --

    @property
    def store_fault(self) -> str | None:
        """Damage that an operator must repair: the store's file is gone or replaced; else None.

        None too without a store, and for a server that does not answer for now.
        """
        return None if self.tail is None else self.tail.fault

    def describe_store(self) -> dict[str, Any] | None:
        """Return the store as /v1/stats shows it, None without one; its address has no password.

        `tail` is this worker's cache of the event store. Keys: address, answers (is it available?),
        seq (number of the last row read here, in commit order), deleted_users (a count), items (a
        count) and items_changed (Unix seconds, None before the first change).
        """
        tail = self.tail
        if tail is None:
            return None
        state = {"address": tail.name, "answers": tail.is_available, "seq": tail.seq}
        facts = self.catalogue_facts
        items = {"items": facts.items, "items_changed": facts.changed / 1e6 or None}
        return {**state, "deleted_users": len(tail.deleted), **items}

    @property
    def catalogue_facts(self) -> CatalogueFacts:
        """The store's number of items and the time of their last change, as read here."""
        return CatalogueFacts(0, 0, 0) if self.item_tail is None else self.item_tail.facts


def read_store_id(folder: Path) -> str:
    """Return the id of the store that this run of the service uses; "" before the first use.

    `folder` is the folder of the run, which all processes of the service share.
    """
    with suppress(FileNotFoundError):
        return (folder / _STORE_FILE).read_text()
    return ""


def follow_events(tail: EventTail, model: ServedModel, feedback: NegativeFeedback) -> None:
    """Count the store's events after a model's training for its popular items, now and later.

    `tail` is this worker process's cache of the store: it passes every new row to
    `model.popular.events`, the counts per item, which leave out `feedback`. If the store does not
    answer, only events from now on are counted, and a warning is logged.
    """
    model.popular.events.feedback = feedback
    add = model.popular.events.add
    try:
        tail.replay(add, trained_seq(model, tail))
    except StoreError as error:
        logger.warning("popular items are counted from now on only: %s", error)
        tail.subscribe(add)


def _deliver_results(requests: list[WriteRequest]) -> None:
    """Pass results of write requests to the event loops that wait, with one wake-up per loop.

    Called in the writer's thread after a commit; `waiter` of each request is an asyncio future.
    """
    for loop, group in groupby(requests, key=lambda request: request.waiter.get_loop()):
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_set_results, list(group))


def _set_results(requests: list[WriteRequest]) -> None:
    """Set the result or exception of each write request in the future of its client.

    Called in the event loop; the future is `waiter`. Futures that are done are skipped; unexpected
    exceptions become a StoreError.
    """
    for request in requests:
        future, result = request.waiter, request.result
        if future.done():  # its client has gone, or waited too long
            continue
        if isinstance(result, TalerecError):
            future.set_exception(result)
        elif isinstance(result, Exception):
            future.set_exception(StoreError("the store failed; see the log"))
        else:
            future.set_result(result)
