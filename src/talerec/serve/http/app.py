"""The ASGI application: from a request to its route, and back with errors of one form. What routes answer is in `api`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from talerec.errors import TalerecError
from talerec.serve.errors import ApiError
from talerec.serve.http import tracing
from talerec.serve.http.access import Access
from talerec.serve.http.parsing import ClientGone, HttpRequest, Receive, beside_name
from talerec.serve.http.responses import JSON, LONG, NO_STORE, Response, compressed, wants_gzip
from talerec.serve.http.routes import USER, Api, Route
from talerec.serve.model.reload import ModelHolder
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState
from talerec.serve.users.user_state import Memory

logger = logging.getLogger("talerec")

Send = Callable[[dict[str, Any]], Awaitable[None]]

_NOSNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")
_PART = 2**18  # bytes of an answer that are written before the client has taken those before them
_USERS = "/v1/users/"
_REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")


class App:
    """The application of one worker."""

    def __init__(self, settings: Settings, folder: Path, worker: int = 0) -> None:
        self.settings = settings
        self.api = Api(settings)
        self._routes, self._access = self.api.routes, Access(settings)
        self.shared = SharedState(folder, settings.workers, worker, (*self._routes, "other"))
        self.memory = Memory(settings, self.shared, folder)
        self.holder = ModelHolder(settings.path, folder, self.shared, self.memory.adopt)
        self.api.shared, self.api.holder = self.shared, self.holder
        living = self.api.living
        living.memory, living.shared, living.folder = self.memory, self.shared, folder
        self.beside = {
            path.stem: self._holder(path, folder / f"beside-{path.stem}")
            for path in settings.beside
        }
        if settings.candidate is not None:
            self.api.candidate = self._holder(settings.candidate, folder / "candidate")
            living.candidate = self.api.candidate
        self.memory.users.served = self._versions
        self.max_connections = settings.connections
        self._in_flight = 0
        self._numbers = itertools.count(1)
        self._id_prefix = b"%s-" % os.urandom(4).hex().encode()
        self._logs_requests = logger.isEnabledFor(logging.DEBUG)
        self._tracer = tracing.tracer()
        self._is_plain = self._tracer is None and not self._access.counts_clients
        self._stop = threading.Event()
        self._watchers: list[threading.Thread] = []

    def _holder(self, path: Path, folder: Path) -> ModelHolder:
        """The holder of a model beside ours, with numbers and copies of its own."""
        folder.mkdir(exist_ok=True)
        own = SharedState(folder, self.settings.workers, self.shared.worker, ())
        return ModelHolder(path, folder, own, self.memory.adopt)

    # -- start and stop --

    def load(self) -> None:
        """Load every model; TalerecError where there is none to serve."""
        for holder in self._holders():
            holder.start()
        self.api.living.live.begin()

    def _holders(self) -> list[ModelHolder]:
        candidate = [] if self.api.candidate is None else [self.api.candidate]
        return [self.holder, *candidate, *self.beside.values()]

    def _versions(self) -> set[str]:
        """The models that are served now."""
        return {one.current.version for one in self._holders() if one.current is not None}

    def start(self) -> None:
        """Begin to watch the artifacts, and the store."""
        self.memory.start()
        arguments = (self.settings.watch, self._stop)
        for holder in self._holders():
            watcher = threading.Thread(
                target=holder.watch, args=arguments, name="watch", daemon=True
            )
            self._watchers.append(watcher)
            watcher.start()

    def drain(self) -> None:
        """Say that the service is about to stop, and ask clients to close their connections."""
        self.api.draining = True

    def stop(self) -> None:
        self._stop.set()
        for watcher in self._watchers:
            watcher.join(self.settings.timeout)
        self.memory.stop()
        self.api.stop()
        self.shared.set_version(None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:  # without a model, no request is accepted
                    if self.holder.current is None:
                        await asyncio.to_thread(self.load)
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
        current = self.holder.current  # once: see HttpRequest
        http = HttpRequest(dict(scope["headers"]), scope["query_string"], receive, current)
        path: str = scope["path"]
        if path.startswith(_USERS):
            http.name, path = path[len(_USERS) :], USER
        self._in_flight += 1
        self.shared.set_gauge("in_flight", self._in_flight)
        try:
            if self._is_plain:
                await self._respond_and_send(scope["method"], path, http, started, send)
            else:
                await self._answer(scope, path, http, started, send)
        except ClientGone:
            return
        finally:  # only now: an answer that nobody reads takes room
            self._in_flight -= 1
            self.shared.set_gauge("in_flight", self._in_flight)

    async def _answer(
        self, scope: dict[str, Any], path: str, http: HttpRequest, started: float, send: Send
    ) -> None:
        """The response of a request, sent; its client is counted, or it is traced."""
        method: str = scope["method"]
        if self._access.counts_clients:
            http.client = (scope.get("client") or ("",))[0]
        with ExitStack() as around:
            if http.client:
                around.enter_context(self._access.counted(http.client))
            if self._tracer is None:
                await self._respond_and_send(method, path, http, started, send)
                return
            name = path if path in self._routes else "other"
            span = around.enter_context(self._tracer.request(method, name, http.headers))
            status = await self._respond_and_send(method, path, http, started, send)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("talerec.model", http.version or "")

    async def _respond_and_send(
        self, method: str, path: str, http: HttpRequest, started: float, send: Send
    ) -> int:
        response = await self._respond(method, path, http)
        seconds = time.perf_counter() - started
        self.shared.record(path if path in self._routes else "other", response.status, seconds)
        if self._logs_requests:
            self._log(method, path, http, response, seconds)
        headers = self._headers(response, http)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if len(response.body) <= _PART:
            await send({"type": "http.response.body", "body": response.body})
        else:
            await self._send_in_parts(response.body, send)
        return response.status

    def _log(
        self, method: str, path: str, http: HttpRequest, response: Response, seconds: float
    ) -> None:
        fields = {
            "method": method, "path": path, "status": response.status, "seconds": round(seconds, 6),
            "bytes": len(response.body), "request_id": self._id(http).decode(), "model": http.version,
        }  # fmt: skip
        line = "%s %s: %d in %.1f ms"
        logger.debug(line, method, path, response.status, 1000 * seconds, extra={"fields": fields})

    async def _send_in_parts(self, body: bytes, send: Send) -> None:
        self._count_unread(len(body))
        try:
            for begin in range(
                0, len(body), _PART
            ):  # each waits until the ones before it are taken
                part = body[begin : begin + _PART]
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._count_unread(-len(body))

    def _count_unread(self, size: int) -> None:
        self.api.unread += size
        self.shared.set_gauge("unread_bytes", self.api.unread)

    def _headers(self, response: Response, http: HttpRequest) -> list[tuple[bytes, bytes]]:
        headers = [
            *response.headers,
            _NOSNIFF,
            (b"x-request-id", http.id or self._id(http)),
            (b"content-length", b"%d" % len(response.body)),
        ]
        if self._access.has_origins and self._access.may_ask(http.headers.get(b"origin", b"")):
            origin = http.headers[b"origin"]
            headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if self.api.draining:
            headers.append(_CLOSE)
        return headers

    def _id(self, http: HttpRequest) -> bytes:
        """The id of a request: the client's, or one of our own."""
        if http.id is None:
            given = http.headers.get(b"x-request-id")
            if given is None or not _REQUEST_ID.fullmatch(given):
                given = b"%b%d" % (self._id_prefix, next(self._numbers))
            http.id = given
        return http.id

    async def _respond(self, method: str, path: str, http: HttpRequest) -> Response:
        """The response of the route, or the error in its place."""
        try:
            response = await self._dispatch(method, path, http)
            return await self._compressed(response) if wants_gzip(response, http) else response
        except ApiError as raised:
            error = raised
        except TalerecError as raised:
            error = ApiError(422, "invalid", str(raised))
        except ClientGone:
            raise
        except Exception:
            fields = {"request_id": self._id(http).decode(), "method": method, "path": path}
            logger.exception("a request failed: %s %s", method, path, extra={"fields": fields})
            error = ApiError(500, "internal", "the service failed; its log has the details")
        headers = (JSON, NO_STORE, *error.headers)
        return Response(error.body(http.version), headers, error.status)

    async def _compressed(self, response: Response) -> Response:
        if len(response.body) > LONG:
            return await self.api.in_thread(compressed, response)
        return compressed(response)

    async def _dispatch(self, method: str, path: str, http: HttpRequest) -> Response:
        host = http.headers.get(b"host")
        if host not in self._access.good_hosts:
            self._access.check_host(host)
        route = self._routes.get(path)
        if route is None:
            raise ApiError(404, "not_found", f"there is nothing at {path[:200]}")
        if method == "OPTIONS" and self._access.has_origins:
            return self._preflight(route, http)
        handler = route.handler_of(method)
        if handler is None:
            allow = ((b"allow", route.methods.encode()),)
            raise ApiError(405, "method_not_allowed", f"{path} takes {route.methods}", allow)
        if route.guarded:
            self._access.admit(http, self._in_flight)
        if http.query and self.beside and route.asks:
            self._choose_model(http)
        return await handler(http)

    def _choose_model(self, http: HttpRequest) -> None:
        """Answer from the model beside ours that the query names, if it names one."""
        name, http.query = beside_name(http.query)
        if name is not None:
            if name not in self.beside:
                known = ", ".join(self.beside)
                raise ApiError(
                    422, "unknown_model", f"there is no model {name[:50]!r} beside: {known}"
                )
            http.current = self.beside[name].current

    def _preflight(self, route: Route, http: HttpRequest) -> Response:
        if not self._access.may_ask(http.headers.get(b"origin", b"")):
            message = "pages of this origin may not use the API: see --cors"
            raise ApiError(403, "origin_not_allowed", message)
        allowed = (
            (b"access-control-allow-methods", route.methods.encode()),
            (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
            (b"access-control-max-age", b"600"),
        )
        return Response(b"", allowed, 204)
