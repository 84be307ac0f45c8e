"""The route that lists the users who are most likely to take an item next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import numpy as np

from talerec.models.core import RecommendOptions, audience_frame, rank_audience
from talerec.serve import ApiError, Settings, busy, encode, no_histories
from talerec.serve.http.audience_schemas import AudienceRequest, AudienceUser, ItemAudience
from talerec.serve.http.messages import HttpRequest, Response, check_k, read_json
from talerec.serve.http.user_routes import UserRoutes
from talerec.serve.model import ServedModel, parse_time

RunInThread = Callable[..., Awaitable[Any]]


class AudienceRoutes:
    """The route of one worker process that lists users for an item, one request at a time.

    users: knows deleted users, and whether users' histories may be read. run_in_thread: runs a
    function in a thread, within the service's time limit.
    """

    def __init__(self, settings: Settings, users: UserRoutes, run_in_thread: RunInThread) -> None:
        self._settings, self._users, self._run_in_thread = settings, users, run_in_thread
        self._slot = asyncio.Semaphore(1)  # each request reads the histories of all users

    async def find_audience(self, http: HttpRequest) -> Response:
        """Handle POST /v1/audience: return users of the log, those most likely first, as JSON.

        ApiError 404 if the item is unknown or the model was saved without histories, 403 if other
        machines can reach the service and it has no token, 503 if it takes longer than the setting
        `timeout` (seconds). Users deleted since the model's training are left out.
        """
        self._users.check_privacy()
        request = await read_json(http, AudienceRequest, self._settings)
        check_k(request.k, self._settings)
        end = time.monotonic() + self._settings.timeout
        deleted = self._users.deleted_since(http.model)
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._slot.acquire()
        except TimeoutError:
            raise busy("another audience is being computed") from None
        try:
            arguments = (http.model, request, deleted, end)
            return Response(encode(await self._run_in_thread(_find_audience, *arguments)))
        finally:
            self._slot.release()


def _find_audience(
    model: ServedModel, request: AudienceRequest, deleted: Collection[str], end: float
) -> ItemAudience:
    """Return the audience of an item; ApiError 503 once `time.monotonic()` is beyond `end`.

    deleted: ids of users, as text, who are left out.
    """

    def check_time() -> None:
        """Raise ApiError 503 after the end."""
        if time.monotonic() > end:
            message = "the audience takes too long: talerec audience computes it without this limit"
            raise ApiError(503, "timeout", message)

    item, log = model.find_item(request.item_id), model.model.fitted.log
    if log is None:
        raise no_histories()
    if request.as_of is not None:
        parse_time(request.as_of, model.model.fitted.unit)  # TalerecError if it is not a time
    options = RecommendOptions(request.k, request.hide_seen, as_of=request.as_of)
    users = np.arange(len(log.users))
    if deleted:
        users = np.setdiff1d(users, log.users.text_positions([*deleted]))
    item_id, title = model.catalogue.ids[item], model.catalogue.title(item)
    if item >= len(model.items):  # of the store, and unknown to the model
        return ItemAudience(model.version, item_id, [], title)
    audience = rank_audience(model.model, log, users, item, options, check_time)
    rows = audience_frame(log, audience).iter_rows()
    return ItemAudience(model.version, item_id, [AudienceUser(*row) for row in rows], title)
