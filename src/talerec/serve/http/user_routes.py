"""The routes about users and their events: what they did, what comes, who is deleted, and how the service does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from talerec.serve import schemas
from talerec.serve.errors import ApiError
from talerec.serve.http.parsing import HttpRequest, read_json
from talerec.serve.http.responses import Response
from talerec.serve.model.learnable import read_state
from talerec.serve.model.reload import ModelHolder
from talerec.serve.model.served import ServedModel
from talerec.serve.model.user_rows import UserRows
from talerec.serve.online.metrics import Live
from talerec.serve.schemas import ABSENT, encode
from talerec.serve.settings import Settings, is_local
from talerec.serve.shared import SharedState
from talerec.serve.users.intake import checked_events, checked_user
from talerec.serve.users.user_state import Memory

T = TypeVar("T")
InThread = Callable[..., Awaitable[Any]]

_REMAINS = (
    "the weights of the model hold what was learned from this user until the next fit;"
    " fits, updates and imports leave these rows out"
)
_MANY = 1000  # events: checking more would delay other requests
_THREADS = 2  # that ask the store
_SOON_S = 1.0  # seconds to wait for the store
_COUNTED = ("events_accepted", "events_duplicate", "events_waiting", "store_failures", "store_commits")  # fmt: skip


class Living:
    """The routes of one worker that know users. `memory`, `shared` and `folder` (of the run) are set before the first request."""

    def __init__(self, settings: Settings, in_thread: InThread) -> None:
        self._settings, self._in_thread = settings, in_thread
        self._asking = ThreadPoolExecutor(_THREADS, "ask the store")
        self.live = Live(settings)
        self.candidate: ModelHolder | None = None
        self.memory: Memory
        self.shared: SharedState
        self.folder: Path

    # -- asking --

    async def with_rows(
        self, model: ServedModel, request: schemas.RecommendRequest
    ) -> schemas.RecommendRequest:
        """A request by user with the user's rows; any other as it is."""
        if request.user_id is None:
            return request
        return schemas.UserRequest(**await self._filled(model, request, request.user_id))

    async def explained_with_rows(
        self, model: ServedModel, request: schemas.ExplainRequest
    ) -> schemas.ExplainRequest:
        """The same for a request that asks why."""
        if request.user_id is None:
            return request
        return schemas.UserExplainRequest(**await self._filled(model, request, request.user_id))

    async def _filled(self, model: ServedModel, request: Any, user: schemas.Id) -> dict[str, Any]:
        """The fields of a request, with the rows of its user as the history."""
        self.check_privacy()
        given = {name: getattr(request, name) for name in request.__struct_fields__}
        return {**given, "history": await self._rows(model, checked_user(user))}

    async def _rows(self, model: ServedModel, user: str) -> UserRows:
        users = self.memory.users
        if users.recent is None and model.model.fitted.log is None:
            raise ApiError(404, "no_histories", "this model was saved without users' histories")
        rows = users.known(model, user)
        if rows is None:
            instead = partial(users.rows, model, user, [])
            rows = await self._of_store(instead, users.find, model, user)
        return rows

    async def _of_store(self, instead: Callable[[], T], work: Callable[..., T], *given: Any) -> T:
        """What work that asks the store finds, in threads of its own: a store that hangs takes none from other answers.

        Where it does not answer soon, `instead`; so it is until whoever reads on in the store hears of it again.
        """
        recent, loop = self.memory.recent, asyncio.get_running_loop()
        if recent is None or not recent.answers:
            return instead()
        try:
            async with asyncio.timeout(_SOON_S):
                return await loop.run_in_executor(self._asking, work, *given)
        except TimeoutError:
            recent.note_failure()
            return instead()

    def stop(self) -> None:
        self._asking.shutdown(wait=False, cancel_futures=True)

    def check_privacy(self) -> None:
        """Histories of users are not for everybody: beyond this machine they need the token."""
        if self._settings.token is None and not is_local(self._settings):
            message = "histories of users need a token, and this service was started without one"
            raise ApiError(403, "no_token", message)

    # -- users --

    async def user(self, http: HttpRequest) -> Response:
        """The rows of a user."""
        self.check_privacy()
        model, user = http.model, checked_user(http.name)
        rows = await self._rows(model, user)
        if not len(rows):
            raise ApiError(404, "unknown_user", f"user {user!r} is not known")
        history = _shown(model, rows)
        return Response(encode(schemas.UserHistory(model.version, _name(model, user), history)))

    async def delete(self, http: HttpRequest) -> Response:
        """Make a user unknown; once this is answered, that is on disk."""
        self.check_privacy()
        user = checked_user(http.name)
        await self.memory.forget(user)
        return Response(encode(schemas.UserDeleted(_name(http.model, user), True, _REMAINS)))

    def gone(self, model: ServedModel) -> list[str]:
        """Users of the artifact who were deleted since."""
        recent = self.memory.recent
        every = [] if recent is None else list(recent.deleted)
        return [user for user in every if self.memory.users.is_deleted(model, user)]

    # -- events --

    async def events(self, http: HttpRequest) -> Response:
        """Keep events: 202 once they are on disk."""
        self.check_privacy()
        request = await read_json(http, schemas.EventsRequest, self._settings)
        given = (request, http.model.model.fitted.unit, self._settings.max_events)
        if len(request.events) > _MANY:
            events = await self._in_thread(checked_events, *given)
        else:
            events = checked_events(*given)
        added = await self.memory.keep(events)
        return Response(encode(schemas.EventsAdded(added.accepted, added.duplicates)), status=202)

    # -- how it goes --

    async def stats(self, http: HttpRequest) -> Response:
        """What the service knows of itself. A new figure is a field of `schemas.Stats`, and is filled here."""
        counted = {name: self.shared.total(name) for name in _COUNTED}
        facts = schemas.Stats(
            http.model.version,
            self.memory.facts(),
            counted,
            read_state(self.folder),
            await self.figures(),
            self._candidate(),
        )
        return Response(encode(facts))

    async def figures(self) -> dict[str, Any] | None:
        """What was measured; where the store does not answer soon, what was read before."""
        if not self._settings.measure:
            return None
        return await self._of_store(lambda: self.live.last, self.live.figures)

    def _candidate(self) -> schemas.CandidateFacts | None:
        served = None if self.candidate is None else self.candidate.current
        share = self._settings.candidate_share
        return None if served is None else schemas.CandidateFacts(served.version, share)

    def learning_metrics(self) -> dict[str, float]:
        """How learning goes, in numbers; none where nothing is learned."""
        state = read_state(self.folder)
        if state is None:
            return {}
        learned = state.get("learned") or {}
        return {
            "talerec_learned_timestamp_seconds": learned.get("at", 0.0),
            "talerec_learned_rows": learned.get("rows", 0),
            "talerec_learn_seconds": learned.get("seconds", 0.0),
            "talerec_learn_failures_total": state.get("failures", 0),
        }


def _name(model: ServedModel, user: str) -> schemas.Id:
    """The id of a user as the log has it, or as it came."""
    log = model.model.fitted.log
    place = -1 if log is None else int(log.users.of_texts([user])[0])
    name: schemas.Id = user if log is None or place < 0 else log.users.ids[place]
    return name


def _shown(model: ServedModel, rows: UserRows) -> list[schemas.TimedRow]:
    """Rows with external ids; an item that the model does not know is shown as it came."""
    shown, names = [], rows.names(model.catalogue.ids)
    for place, (name, time) in enumerate(zip(names, rows.time.tolist(), strict=True)):
        row = rows.events.get(place)
        event = ABSENT if row is None or row.event is None else row.event
        event_id = ABSENT if row is None or row.event_id is None else row.event_id
        shown.append(schemas.TimedRow(name, _date(time), event, event_id))
    return shown


def _date(moment: int) -> str:
    """A moment in ISO 8601, to the microsecond where it has any."""
    try:
        seconds, micro = divmod(moment, 10**6)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{moment} us"
