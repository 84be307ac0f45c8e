"""What each route answers. Short work runs in the event loop, long work in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from talerec.errors import TalerecError
from talerec.serve import page as static
from talerec.serve import schemas
from talerec.serve.errors import ApiError, busy
from talerec.serve.http import openapi, parsing
from talerec.serve.http.batching import RecommendQueue
from talerec.serve.http.parsing import HttpRequest, read_body, read_json
from talerec.serve.http.responses import (
    NO_STORE,
    TEXT,
    Response,
    has_tag,
    tagged,
    unchanged,
    wants_gzip,
)
from talerec.serve.http.user_routes import Living
from talerec.serve.model.reload import ModelHolder
from talerec.serve.online.metrics import prometheus_lines
from talerec.serve.online.sampling import CANDIDATE, is_in_share
from talerec.serve.schemas import encode
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState

T = TypeVar("T")
Handler = Callable[[HttpRequest], Awaitable[Response]]

USER = "/v1/users/{user_id}"
_THREADS = 2  # for answers that take long
_LIMITS = ("max_body", "max_history", "max_k", "max_batch", "max_items", "timeout")
_LARGE_BODY = 65_536  # bytes: decoding more would delay other requests, and what it holds takes many times the room
_POLL_S = 0.01  # seconds between looks at whether all workers have reloaded


class Route(NamedTuple):
    """What answers a path.

    guarded: it needs the token, and counts against the limit of concurrent requests.
    asks: it asks the model, and may ask another one that is served beside it.
    delete: what answers a DELETE of the path, if anything does.
    """

    method: str
    handler: Handler
    guarded: bool = True
    asks: bool = True
    delete: Handler | None = None

    @property
    def methods(self) -> str:
        """What the path takes, as a header says it."""
        return self.method if self.delete is None else f"{self.method}, DELETE"

    def handler_of(self, method: str) -> Handler | None:
        """What answers this method; a HEAD is answered as a GET is."""
        if method == self.method or (method == "HEAD" and self.method == "GET"):
            return self.handler
        return self.delete if method == "DELETE" else None


class Api:
    """The routes of one worker. `unread`: bytes of large answers that wait for their clients."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.draining = False
        self.unread = 0
        self.shared: SharedState
        self.holder: ModelHolder
        self.candidate: ModelHolder | None = None  # answers some users
        self.living = Living(settings, self.in_thread)
        self.routes = self._make_routes()
        self._queue = RecommendQueue()
        self._pool = ThreadPoolExecutor(_THREADS, "answer")
        self._batches = asyncio.Semaphore(_THREADS)
        self._reloads = ThreadPoolExecutor(1, "reload")  # a reload takes no thread from answers

    def _make_routes(self) -> dict[str, Route]:
        pages = {
            path: Route("GET", _page_handler(page), False, False)
            for path, page in static.pages(self.settings.images).items()
        }
        return {
            "/v1/recommend": Route("POST", self._recommend),
            "/v1/recommend:batch": Route("POST", self._batch),
            "/v1/similar": Route("POST", self._similar),
            "/v1/explain": Route("POST", self._explain),
            "/v1/items": Route("GET", self._items),
            "/v1/users": Route("GET", self._users),
            USER: Route("GET", self.living.user, delete=self.living.delete),
            "/v1/events": Route("POST", self.living.events, asks=False),
            "/v1/stats": Route("GET", self.living.stats, asks=False),
            "/v1/model": Route("GET", self._card),
            "/v1/reload": Route("POST", self._reload, asks=False),
            "/health/live": Route("GET", self._live, False, False),
            "/health/ready": Route("GET", self._ready, False, False),
            "/metrics": Route("GET", self._metrics, asks=False),
            "/openapi.json": Route("GET", self._openapi, False, False),
            **pages,
        }

    def stop(self) -> None:
        for pool in (self._pool, self._reloads):
            pool.shutdown(wait=False, cancel_futures=True)
        self.living.stop()

    async def in_thread(
        self, work: Callable[..., T], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> T:
        """Run work that would delay other requests in a thread, for at most `timeout` seconds."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await loop.run_in_executor(pool or self._pool, work, *arguments)
        except TimeoutError:
            message = f"the answer takes more than {self.settings.timeout:g} s"
            raise ApiError(503, "timeout", message) from None

    # -- asking the model --

    async def _recommend(self, http: HttpRequest) -> Response:
        body = await read_body(http, self.settings)
        if len(body) > _LARGE_BODY:
            async with self._large_slot():
                request = await self.in_thread(self._decode_recommend, body)
                answer = await self._answer(http, request)
        else:
            answer = await self._answer(http, self._decode_recommend(body))
        if answer.fallback:
            self.shared.increment("fallbacks")
        return Response(encode(answer))

    def _decode_recommend(self, body: bytearray) -> schemas.RecommendRequest:
        request = schemas.decode(body, schemas.RecommendRequest)
        parsing.check_recommend(request, self.settings)
        return request

    async def _answer(
        self, http: HttpRequest, request: schemas.RecommendRequest
    ) -> schemas.Recommendations:
        self._choose_candidate(http, request.user_id)
        model = http.model
        request = await self.living.with_rows(model, request)
        if model.is_slow(request):
            return await self.in_thread(model.recommend, request)
        return await self._queue.enqueue(model, request)

    def _choose_candidate(self, http: HttpRequest, user: schemas.Id | None) -> None:
        """Some users are answered by the candidate, always the same ones; not where the query names a model."""
        if self.candidate is None or user is None or http.current is not self.holder.current:
            return
        if is_in_share(str(user), self.settings.candidate_share, CANDIDATE):
            http.current = self.candidate.current

    async def _batch(self, http: HttpRequest) -> Response:
        batch = await read_json(http, schemas.BatchRequest, self.settings)
        parsing.check_batch(batch, self.settings)
        async with self._large_slot():
            requests = [await self.living.with_rows(http.model, one) for one in batch.requests]
            body, fallbacks = await self.in_thread(http.model.batch, requests)
        self.shared.increment("fallbacks", fallbacks)
        return Response(body)

    @asynccontextmanager
    async def _large_slot(self) -> AsyncIterator[None]:
        """The right to work on a batch or a large body: few at a time, and none while large answers that nobody reads fill the memory."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._batches.acquire()
        except TimeoutError:
            raise busy("too many batches and long lists wait") from None
        try:
            if self.unread > self.settings.max_unread:
                raise busy("answers that their clients have not read yet take too much room")
            yield
        finally:
            self._batches.release()

    async def _similar(self, http: HttpRequest) -> Response:
        request = await read_json(http, schemas.SimilarRequest, self.settings)
        parsing.check_k(request.k, self.settings)
        return Response(encode(await self.in_thread(http.model.similar, request)))

    async def _explain(self, http: HttpRequest) -> Response:
        body = await read_body(http, self.settings)
        if len(body) <= _LARGE_BODY:
            return await self._explained(http, self._decode_explain(body))
        async with self._large_slot():
            return await self._explained(http, await self.in_thread(self._decode_explain, body))

    def _decode_explain(self, body: bytearray) -> schemas.ExplainRequest:
        request = schemas.decode(body, schemas.ExplainRequest)
        parsing.check_history(request, self.settings)
        return request

    async def _explained(self, http: HttpRequest, request: schemas.ExplainRequest) -> Response:
        self._choose_candidate(http, request.user_id)
        request = await self.living.explained_with_rows(http.model, request)
        return Response(encode(await self.in_thread(http.model.explain, request)))

    async def _items(self, http: HttpRequest) -> Response:
        asked = parsing.item_parameters(http.query)
        if asked.ids:
            return tagged(http, encode(http.model.items_of(asked.ids)))
        found = await self.in_thread(http.model.search, asked.text, asked.limit)
        return tagged(http, encode(found))

    async def _users(self, http: HttpRequest) -> Response:
        self.living.check_privacy()
        asked = parsing.search_parameters(http.query)
        gone = self.living.gone(http.model)
        found = await self.in_thread(http.model.users, asked.text, asked.limit, gone)
        return Response(encode(found))

    # -- the service itself --

    async def _card(self, http: HttpRequest) -> Response:
        limits = {name: getattr(self.settings, name) for name in _LIMITS}
        beside = [path.stem for path in self.settings.beside]
        return tagged(http, encode(http.model.card(limits, beside)))

    async def _reload(self, http: HttpRequest) -> Response:
        if self.settings.token is None:
            message = "a reload needs a token, and this service was started without one"
            raise ApiError(403, "no_token", message)
        try:
            http.current, is_new = await self.in_thread(self.holder.refresh, pool=self._reloads)
        except TalerecError as error:
            self.holder.report_refusal()
            raise ApiError(409, "artifact_refused", str(error)) from None
        await self._until_served(http.model.version)
        workers = len(self.shared.versions())
        return Response(encode(schemas.ReloadResult(http.model.version, is_new, workers)))

    async def _until_served(self, version: str) -> None:
        """Ask every worker to look for a new model, and wait until all serve this version."""
        self.shared.request_reload()
        end = time.monotonic() + self.settings.timeout
        while not self.holder.is_served_everywhere(version):
            if time.monotonic() > end:
                raise ApiError(503, "timeout", "not every worker serves the new model yet")
            await asyncio.sleep(_POLL_S)

    async def _live(self, http: HttpRequest) -> Response:
        return Response(encode(schemas.Health("ok")))

    async def _ready(self, http: HttpRequest) -> Response:
        if self.draining:
            raise ApiError(503, "stopping", "the service is about to stop")
        return Response(encode(schemas.Health("ok", http.model.version)))

    async def _metrics(self, http: HttpRequest) -> Response:
        facts = None if http.current is None else http.current.times()
        measured = prometheus_lines(await self.living.figures())
        text = self.shared.prometheus_text(facts, self.living.learning_metrics(), measured)
        return Response(text, (TEXT, NO_STORE))

    async def _openapi(self, http: HttpRequest) -> Response:
        return tagged(http, encode(openapi.document(self.settings, http.current)))


def _page_handler(page: static.Page) -> Handler:
    whole = Response(page.body, page.headers)
    packed = Response(page.packed, page.packed_headers)

    async def handler(http: HttpRequest) -> Response:
        if has_tag(http, page.tag):
            return unchanged(page.headers)
        return packed if wants_gzip(whole, http) else whole

    return handler
