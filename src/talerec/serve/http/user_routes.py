"""The routes of users: histories, events, deletions, and the statistics of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from talerec.serve import (
    ApiError,
    Settings,
    SharedState,
    encode,
    is_local,
    no_histories,
    schemas,
    store_unavailable,
)
from talerec.serve.http.messages import HttpRequest, Response, read_json
from talerec.serve.http.shown import ShownLists
from talerec.serve.model import (
    ModelHolder,
    ModelQuery,
    ServedModel,
    UserRows,
    build_query,
    format_time,
    parse_time,
    read_learning_state,
)
from talerec.serve.online import OnlineMetrics
from talerec.serve.users import UserState, validate_events, validate_user_id
from talerec.store import Event, IdKinds, StoredRow, now_us

T = TypeVar("T")
RunInThread = Callable[..., Awaitable[Any]]

_REMAINS = (
    "the model's weights include this user's rows until the next fit;"
    " fits, updates and imports leave the rows out"
)
_MANY_EVENTS = 1000  # checking more events in the event loop would delay other requests
_THREADS = 2  # that query the store
_STORE_TIMEOUT_S = 1.0  # seconds to wait for the store
_EVENT_COUNTERS = ("events_accepted", "events_duplicate", "events_waiting")
_STORE_COUNTERS = ("store_failures", "store_commits")


class UserRoutes:
    """The routes of one worker process that read or write users and their events.

    user_state: the users' events and histories, and the event store. shared: metrics of all
    workers. candidate: the holder of the model that answers a share of the users, None without one.
    run_in_thread: runs a function in a thread, within the service's time limit. shown: the
    responses that are kept.
    """

    def __init__(
        self, settings: Settings, shared: SharedState, user_state: UserState,
        candidate: ModelHolder | None, run_in_thread: RunInThread, shown_lists: ShownLists,
    ) -> None:  # fmt: skip
        self._settings, self._shared, self._user_state = settings, shared, user_state
        self._candidate, self._run_in_thread = candidate, run_in_thread
        self._shown_lists = shown_lists
        self._store_pool = ThreadPoolExecutor(_THREADS, "query store")
        self._count_pool = ThreadPoolExecutor(_THREADS, "count impressions")
        self.online_metrics = OnlineMetrics(settings)

    def stop(self) -> None:
        """Cancel queries that wait for the event store, and end the threads that run them."""
        for pool in (self._store_pool, self._count_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- requests by user --

    async def build_query(self, model: ServedModel, request: schemas.HistoryRequest) -> ModelQuery:
        """Return a request as options and a history, with the history of the user it names.

        `model` is the model that will answer. The user's history has the rows before the request's
        `as_of`, if it has one. ApiError 403 if the request names a user, and the service can be
        reached from other machines without a token.
        """
        if request.user_id is None:
            return build_query(request)
        self.check_privacy()
        rows, now = await self._user_rows(model, validate_user_id(request.user_id)), now_us()
        if request.as_of is not None:
            now = parse_time(request.as_of, model.model.fitted.unit)
            rows = rows.before(now)
        hidden = rows.hidden_items(self._user_state.histories.feedback, now)
        return build_query(request, rows, hidden)

    async def _user_rows(self, model: ServedModel, user: str) -> UserRows:
        """Return the history of a user: rows of the training log and the events since.

        Rows are in time order, with item positions of the model; without the store, only those of
        the log. They come from this worker process's cache, else from the store. ApiError 404 if
        there is neither a store nor a training log in the saved model. An item's position is its
        number in the vocabulary.
        """
        histories = self._user_state.histories
        if histories.tail is None and model.model.fitted.log is None:
            raise no_histories()
        rows = histories.get(model, user)
        if rows is None:
            fallback = partial(histories.merge, model, user, [])
            rows = await self._query_store(fallback, histories.load, model, user)
        return rows

    async def _query_store(
        self, fallback: Callable[[], T], query: Callable[..., T], *arguments: Any
    ) -> T:
        """Return `query(*arguments)`, or `fallback()` while the event store does not respond.

        Queries of the store have their own threads, so a store that hangs delays no other
        responses. After a timeout of a second (or a TimeoutError of `query` itself), no query is
        tried until the thread that polls the store gets an answer. `tail` is this worker's cache of
        the store, None for a service without a store; other exceptions of `query` are raised here.
        """
        tail, loop = self._user_state.tail, asyncio.get_running_loop()
        if tail is None or not tail.is_available:
            return fallback()
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                return await loop.run_in_executor(self._store_pool, query, *arguments)
        except TimeoutError:
            tail.note_failure()
            return fallback()

    def check_privacy(self) -> None:
        """Raise ApiError 403 if other machines can reach the service and it has no token.

        Called before users' histories are read or written.
        """
        if not self._settings.needs_token and not is_local(self._settings):
            message = "users' histories need a token, and this service was started without one"
            raise ApiError(403, "no_token", message)

    def check_store(self) -> None:
        """Raise ApiError 503 if the file of the event store is missing, replaced or damaged."""
        fault = self._user_state.store_fault
        if fault is not None:
            raise store_unavailable(fault)

    # -- users --

    async def get_user(self, http: HttpRequest) -> Response:
        """Handle GET /v1/users/{user_id}: return the user's history; 404 if it is empty.

        The history has rows of the training log and later events, oldest first.
        """
        self.check_privacy()
        model, user = http.model, validate_user_id(http.path_id)
        rows = await self._user_rows(model, user)
        if not len(rows) and not rows.hidden:
            raise ApiError(404, "unknown_user", f"user {user!r} is unknown")
        history = _format_history(model, rows)
        return Response(
            encode(schemas.UserHistory(model.version, _cast_user_id(model, user), history))
        )

    async def delete_user(self, http: HttpRequest) -> Response:
        """Handle DELETE /v1/users/{user_id}: respond once the deletion is on disk.

        The user's events are deleted; the response says what remains in the model until the next
        fit.
        """
        self.check_privacy()
        user = validate_user_id(http.path_id)
        await self._user_state.delete(user)
        return Response(
            encode(schemas.UserDeleted(_cast_user_id(http.model, user), True, _REMAINS))
        )

    def deleted_since(self, model: ServedModel) -> list[str]:
        """Return the ids of users deleted after the last event that this model was trained on.

        Empty without an event store (`tail` is None). `tail` is this worker process's cache of the
        store.
        """
        tail, histories = self._user_state.tail, self._user_state.histories
        deleted = [] if tail is None else list(tail.deleted)
        return [user for user in deleted if histories.is_deleted(model, user)]

    # -- events --

    async def add_events(self, http: HttpRequest) -> Response:
        """Handle POST /v1/events: store events; respond with 202 once they are on disk.

        The response counts the events stored now, the duplicates, and, if there are any, events
        from before the deletion of their user, which are ignored. More than 1,000 events are
        validated in a thread, fewer in the event loop. `unit` is the time unit of the training log.
        """
        self.check_privacy()
        request = await read_json(http, schemas.EventsRequest, self._settings)
        kinds = self._user_state.get_id_kinds(http.model)
        if kinds is None:  # the first events for this model
            settle, event = self._user_state.settle_id_kinds, request.events[0]
            sent = (event.user_id, event.item_id)
            first = IdKinds(*("integer" if isinstance(value, int) else "text" for value in sent))
            kinds = await self._run_in_thread(settle, http.model, first)
        arguments = (request, http.model.model.fitted.unit, self._settings.max_events, kinds)
        if len(request.events) > _MANY_EVENTS:
            events, n_unknown = await self._run_in_thread(self._check_events, *arguments)
        else:
            events, n_unknown = self._check_events(*arguments)
        added = await self._user_state.append(events)
        counts = schemas.EventsAdded(
            added.accepted, added.duplicates, added.deleted or schemas.ABSENT,
            n_unknown or schemas.ABSENT,
        )  # fmt: skip
        return Response(encode(counts), status=202)

    def _check_events(self, *arguments: Any) -> tuple[list[Event], int]:
        """Return the valid events of a request, and how many name a response of another service."""
        return self._shown_lists.check_ids(validate_events(*arguments))

    # -- statistics --

    async def get_stats(self, http: HttpRequest) -> Response:
        """Handle GET /v1/stats: return the store, event counts, learning and online metrics.

        Learning: the state of the process that refits the model; online: the metrics of the served
        models on new events; candidate: the version and user share of the model under test, None
        without one; impressions: counts and rates of shown items, None without them.
        """
        candidate = None if self._candidate is None else self._candidate.current
        share = self._settings.candidate_share
        stats = schemas.Stats(
            http.model.version, self._user_state.describe_store(),
            {name: self._shared.total(name) for name in (*_EVENT_COUNTERS, *_STORE_COUNTERS)},
            read_learning_state(self._shared.folder), await self.online_summary(),
            None if candidate is None else schemas.CandidateFacts(candidate.version, share),
            self._shown_lists.describe_impressions(await self.impression_summary()),
        )  # fmt: skip
        return Response(encode(stats))

    async def online_summary(self) -> dict[str, Any] | None:
        """Return the metrics of the served models on arriving events; None if not measured.

        Keys: hour and day (metrics of these windows), share (of users that are measured), at (when,
        Unix seconds), behind (events not measured yet) and left_out (events skipped). If the store
        is slow, the metrics are those that were read last.
        """
        if not self._settings.measure:
            return None
        metrics = self.online_metrics
        return await self._query_store(lambda: metrics.latest, metrics.read)

    async def impression_summary(self) -> dict[str, Any] | None:
        """Return what was shown and clicked; None if no impressions are kept.

        If counting takes more than a second, the figures are those that were counted last.
        """
        if not self._settings.impressions:
            return None
        counts, loop = self._shown_lists.counts, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                return await loop.run_in_executor(self._count_pool, counts.read)
        except TimeoutError:
            return counts.latest

    def store_metrics(self) -> dict[str, float]:
        """Return Prometheus values of the store's items and of background fits, by metric name.

        Empty without a store. The number of items, and when one last changed (Unix seconds), are
        those that this worker has read.
        """
        if self._user_state.tail is None:
            return {}
        facts = self._user_state.catalogue_facts
        values = {
            "talerec_catalogue_items": float(facts.items),
            "talerec_catalogue_changed_timestamp_seconds": facts.changed / 1e6,
        }
        return values | self._learning_metrics()

    def _learning_metrics(self) -> dict[str, float]:
        """Return Prometheus values of the background fits by metric name; empty without fits.

        A background process refits the model with new events, and writes its state to the folder
        that all workers share. Values: the time of the last fit (Unix seconds), its rows and
        seconds, and the number of failed fits.
        """
        state = read_learning_state(self._shared.folder)
        if state is None:
            return {}
        last_fit = state.get("learned") or {}
        return {
            "talerec_learned_timestamp_seconds": last_fit.get("at", 0.0),
            "talerec_learned_rows": last_fit.get("rows", 0),
            "talerec_learn_seconds": last_fit.get("seconds", 0.0),
            "talerec_learn_failures_total": state.get("failures", 0),
        }


def _cast_user_id(model: ServedModel, user: str) -> schemas.Id:
    """Return the user's id in the type of the training log's ids (integer or text).

    `user` is the id as text. If the log lacks the user, or the saved model has no log, it stays
    text.
    """
    log = model.model.fitted.log
    position = -1 if log is None else int(log.users.text_positions([user])[0])
    user_id: schemas.Id = user if log is None or position < 0 else log.users.ids[position]
    return user_id


def _format_history(model: ServedModel, rows: UserRows) -> list[schemas.TimedRow]:
    """Return a user's rows with external item ids and ISO times, as the API shows them.

    Rows that come from the store (`rows.events`, by row number) also show the event's name and
    `event_id`, if set; the other rows come from the training log. Negative feedback is shown among
    them, by its time.
    """
    names, times = rows.names(model.catalogue.ids), rows.time.tolist()
    shown = [
        (time, _format_row(name, time, rows.events.get(row)))
        for row, (name, time) in enumerate(zip(names, times, strict=True))
    ]
    for item, event in rows.hidden:
        name = str(event.item) if item < 0 else model.catalogue.ids[item]
        shown.append((event.time, _format_row(name, event.time, event)))
    shown.sort(key=lambda pair: pair[0])
    return [row for _, row in shown]


def _format_row(name: schemas.Id, time: int, stored: StoredRow | None) -> schemas.TimedRow:
    """Return an item id and a time (microseconds) as a row of a history.

    `stored` is its event in the store, None for a row of the training log.
    """
    values = (None, None) if stored is None else (stored.event, stored.event_id)
    event, event_id = (schemas.ABSENT if value is None else value for value in values)
    return schemas.TimedRow(name, format_time(time), event, event_id)
