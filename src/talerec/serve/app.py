"""The ASGI application: routes, access, and errors of one form."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from talerec.errors import TalerecError
from talerec.serve import openapi, parsing, schemas, static
from talerec.serve.batching import RecommendQueue
from talerec.serve.errors import ApiError, Headers, busy
from talerec.serve.parsing import ClientGone, HttpRequest, Receive, read_json
from talerec.serve.reload import ModelHolder
from talerec.serve.schemas import encode
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState

logger = logging.getLogger("talerec")

Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_NO_STORE = (b"cache-control", b"no-store")
_CLOSE = (b"connection", b"close")
_THREADS = 2  # for answers that take long
_LIMITS = ("max_body", "max_history", "max_k", "max_list", "max_batch", "max_items", "timeout")
_PART = 2**18  # bytes of an answer that are written before the client has taken those before them
_POLL_S = 0.01  # seconds between looks at whether all workers have reloaded


class Response(NamedTuple):
    body: bytes
    headers: Headers = (_JSON, _NO_STORE)
    status: int = 200


Handler = Callable[[HttpRequest], Awaitable[Response]]


class Route(NamedTuple):
    """What answers a path; `guarded`: it needs the token, and counts against the limit of concurrent requests."""

    method: str
    handler: Handler
    guarded: bool = True


class App:
    """The application of one worker. `draining`: it is about to stop, and asks clients to close their connections."""

    def __init__(self, settings: Settings, folder: Path, worker: int = 0) -> None:
        self.settings = settings
        self.draining = False
        self._token = settings.token.encode() if settings.token else None
        self._origins = {origin.encode() for origin in settings.cors}
        self._routes = self._make_routes()
        self.shared = SharedState(folder, settings.workers, worker, (*self._routes, "other"))
        self.holder = ModelHolder(settings.path, folder, self.shared)
        self.max_connections = settings.connections
        self._queue = RecommendQueue()
        self._in_flight = 0
        self._unread = 0  # bytes of large answers that wait for their clients
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "answer")
        self._batches = asyncio.Semaphore(_THREADS)
        self._reloads = ThreadPoolExecutor(1, "reload")  # a reload takes no thread from answers
        self._watcher: threading.Thread | None = None

    def _make_routes(self) -> dict[str, Route]:
        pages = {
            path: Route("GET", _page_handler(page), False) for path, page in static.FILES.items()
        }
        return {
            "/v1/recommend": Route("POST", self._recommend),
            "/v1/recommend:batch": Route("POST", self._batch),
            "/v1/similar": Route("POST", self._similar),
            "/v1/explain": Route("POST", self._explain),
            "/v1/items": Route("GET", self._items),
            "/v1/model": Route("GET", self._card),
            "/v1/reload": Route("POST", self._reload),
            "/health/live": Route("GET", self._live, False),
            "/health/ready": Route("GET", self._ready, False),
            "/metrics": Route("GET", self._metrics),
            "/openapi.json": Route("GET", self._openapi, False),
            **pages,
        }

    # -- start and stop --

    def start(self) -> None:
        """Begin to watch the artifact."""
        arguments = (self.settings.watch, self._stop)
        self._watcher = threading.Thread(
            target=self.holder.watch, args=arguments, name="watch", daemon=True
        )
        self._watcher.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(self.settings.timeout)
        for pool in (self._pool, self._reloads):
            pool.shutdown(wait=False, cancel_futures=True)
        self.shared.set_version(None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:  # without a model, no request is accepted
                    if self.holder.current is None:
                        await asyncio.to_thread(self.holder.start)
                except TalerecError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- one request --

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        started = time.perf_counter()
        path: str = scope["path"]
        current = self.holder.current  # once: see HttpRequest
        http = HttpRequest(dict(scope["headers"]), scope["query_string"], receive, current)
        self._in_flight += 1
        self.shared.set_gauge("in_flight", self._in_flight)
        try:
            response = await self._respond(scope["method"], path, http)
            name = path if path in self._routes else "other"
            self.shared.record(name, response.status, time.perf_counter() - started)
            await self._send(response, self._headers(response, http), send)
        except ClientGone:
            return
        finally:  # only now: an answer that nobody reads takes room
            self._in_flight -= 1
            self.shared.set_gauge("in_flight", self._in_flight)

    async def _send(self, response: Response, headers: Any, send: Send) -> None:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = response.body
        if len(body) <= _PART:
            await send({"type": "http.response.body", "body": body})
            return
        self._unread += len(body)
        try:
            for begin in range(
                0, len(body), _PART
            ):  # each waits until the ones before it are taken
                part = body[begin : begin + _PART]
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._unread -= len(body)

    def _headers(self, response: Response, http: HttpRequest) -> list[tuple[bytes, bytes]]:
        headers = [*response.headers, _NOSNIFF, (b"content-length", b"%d" % len(response.body))]
        if self._origins and self._may_ask(origin := http.headers.get(b"origin", b"")):
            headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if self.draining:
            headers.append(_CLOSE)
        return headers

    async def _respond(self, method: str, path: str, http: HttpRequest) -> Response:
        """The response of the route, or the error in its place."""
        try:
            return await self._dispatch(method, path, http)
        except ApiError as raised:
            error = raised
        except TalerecError as raised:
            error = ApiError(422, "invalid", str(raised))
        except ClientGone:
            raise
        except Exception:
            logger.exception("a request failed: %s %s", method, path)
            error = ApiError(500, "internal", "the service failed; its log has the details")
        headers = (_JSON, _NO_STORE, *error.headers)
        return Response(error.body(http.version), headers, error.status)

    async def _dispatch(self, method: str, path: str, http: HttpRequest) -> Response:
        route = self._routes.get(path)
        if route is None:
            raise ApiError(404, "not_found", f"there is nothing at {path[:200]}")
        if method == "OPTIONS" and self._origins:
            return self._preflight(route, http)
        if method != route.method and not (method == "HEAD" and route.method == "GET"):
            allow = ((b"allow", route.method.encode()),)
            raise ApiError(405, "method_not_allowed", f"{path} takes {route.method}", allow)
        if route.guarded:
            self._admit(http)
        return await route.handler(http)

    def _admit(self, http: HttpRequest) -> None:
        if self._token is not None:
            scheme, _, token = http.headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
                wanted = ((b"www-authenticate", b"Bearer"),)
                message = "the token is missing or wrong: send Authorization: Bearer TOKEN"
                raise ApiError(401, "unauthorized", message, wanted)
        if self._in_flight > self.settings.concurrency:
            raise busy(f"there are more than {self.settings.concurrency} requests at a time")

    def _may_ask(self, origin: bytes) -> bool:
        """May pages of this origin use the API?"""
        return bool(origin) and (origin in self._origins or b"*" in self._origins)

    def _preflight(self, route: Route, http: HttpRequest) -> Response:
        if not self._may_ask(http.headers.get(b"origin", b"")):
            message = "pages of this origin may not use the API: see --cors"
            raise ApiError(403, "origin_not_allowed", message)
        allowed = (
            (b"access-control-allow-methods", route.method.encode()),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"access-control-max-age", b"600"),
        )
        return Response(b"", allowed, 204)

    async def _in_thread(
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

    # -- handlers --

    async def _recommend(self, http: HttpRequest) -> Response:
        request = await read_json(http, schemas.RecommendRequest, self.settings)
        parsing.check_recommend(request, self.settings)
        model = http.model
        if model.is_slow(len(request.history), request.k):
            answer = await self._in_thread(model.recommend, request)
        else:
            answer = await self._queue.enqueue(model, request)
        if answer.fallback:
            self.shared.increment("fallbacks")
        return Response(encode(answer))

    async def _batch(self, http: HttpRequest) -> Response:
        batch = await read_json(http, schemas.BatchRequest, self.settings)
        parsing.check_batch(batch, self.settings)
        async with self._batch_slot():
            body, fallbacks = await self._in_thread(http.model.batch, batch.requests)
        self.shared.increment("fallbacks", fallbacks)
        return Response(body)

    @asynccontextmanager
    async def _batch_slot(self) -> AsyncIterator[None]:
        """The right to compute a batch: few at a time, and none while large answers that nobody reads fill the memory."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._batches.acquire()
        except TimeoutError:
            raise busy("too many batches wait") from None
        try:
            if self._unread > self.settings.max_unread:
                raise busy("answers that their clients have not read yet take too much room")
            yield
        finally:
            self._batches.release()

    async def _similar(self, http: HttpRequest) -> Response:
        request = await read_json(http, schemas.SimilarRequest, self.settings)
        parsing.check_k(request.k, self.settings)
        return Response(encode(await self._in_thread(http.model.similar, request)))

    async def _explain(self, http: HttpRequest) -> Response:
        request = await read_json(http, schemas.ExplainRequest, self.settings)
        parsing.check_history(request.history, self.settings)
        return Response(encode(await self._in_thread(http.model.explain, request)))

    async def _items(self, http: HttpRequest) -> Response:
        text, limit = parsing.search_parameters(http.query)
        return Response(encode(await self._in_thread(http.model.search, text, limit)))

    async def _card(self, http: HttpRequest) -> Response:
        limits = {name: getattr(self.settings, name) for name in _LIMITS}
        return Response(encode(http.model.card(limits)))

    async def _reload(self, http: HttpRequest) -> Response:
        if self._token is None:
            message = "a reload needs a token, and this service was started without one"
            raise ApiError(403, "no_token", message)
        try:
            http.current, is_new = await self._in_thread(self.holder.refresh, pool=self._reloads)
        except TalerecError as error:
            self.shared.increment("reloads_refused")
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
        return Response(self.shared.prometheus_text(), (_TEXT, _NO_STORE))

    async def _openapi(self, http: HttpRequest) -> Response:
        return Response(encode(openapi.document(self.settings, http.current)))


def _page_handler(page: static.Page) -> Handler:
    async def handler(http: HttpRequest) -> Response:
        if http.headers.get(b"if-none-match") == page.tag:
            return Response(b"", page.headers, 304)
        return Response(page.body, page.headers)

    return handler
