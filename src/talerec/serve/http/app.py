"""The ASGI application: finds the route of a request, and gives all errors the same form."""

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
from talerec.serve import ApiError, Settings, SharedState, Tokens, TokenWatch
from talerec.serve.http import messages
from talerec.serve.http.access import Access
from talerec.serve.http.messages import ClientGone, HttpRequest, Receive, Response
from talerec.serve.http.routes import COUNTED_PATHS, ITEM, LIST, OTHER, USER, Api, Route
from talerec.serve.http.tracing import build_tracer
from talerec.serve.model import ModelHolder, ServedModel
from talerec.serve.users import UserState

logger = logging.getLogger("talerec")

Send = Callable[[dict[str, Any]], Awaitable[None]]

_NOSNIFF = (b"x-content-type-options", b"nosniff")
_CLOSE = (b"connection", b"close")
_CHUNK = 2**18  # bytes of a response that are written before the client has read the last ones
_ID_PATHS = {
    "/v1/users/": USER,
    "/v1/items/": ITEM,
    "/v1/lists/": LIST,
}  # beginnings of paths, and their routes
_REQUEST_ID = re.compile(rb"[\w.:-]{1,64}")


class App:
    """The ASGI application of one worker process of the recommendation service.

    folder: the folder of this run of the service, with files that all workers share. worker: the
    index of this worker among the workers, from 0. tokens: those that are accepted at first; None
    for those of the settings.
    """

    def __init__(
        self, settings: Settings, folder: Path, worker: int = 0, tokens: Tokens | None = None
    ) -> None:
        self.settings = settings
        self.shared = SharedState(folder, settings.workers, worker, COUNTED_PATHS)
        self.user_state = UserState(settings, self.shared, self._served_models)
        self.holder = self._hold(settings.path, folder, self.shared)
        self._comparison_models = {
            p.stem: self._hold_other(p, f"beside-{p.stem}") for p in settings.beside
        }
        self._holders = [self.holder, *self._comparison_models.values()]  # of all models in use
        candidate = None
        if settings.candidate is not None:
            candidate = self._hold_other(settings.candidate, "candidate")
            self._holders.append(candidate)
        self.tokens = TokenWatch(tokens or settings.load_tokens(), settings.token_file)
        self._access = Access(settings, self.tokens)
        self.api = Api(settings, self.shared, self.user_state, self.holder, candidate, self._access)
        self._routes = self.api.routes
        self._in_flight, self._request_numbers = 0, itertools.count(1)
        self._id_prefix = b"%s-" % os.urandom(4).hex().encode()  # of generated request ids
        self._logs_requests = logger.isEnabledFor(logging.DEBUG)
        self._tracer = build_tracer()
        self._needs_no_context = self._tracer is None and not self._access.counts_clients
        self._stop = threading.Event()
        self._watch_threads: list[threading.Thread] = []

    def _hold_other(self, path: Path, name: str) -> ModelHolder:
        """Return the holder of a further model, which loads and reloads the saved model at `path`.

        A further model is a candidate or one to compare with. Its counters and copies are in the
        subfolder `name` of the run's folder, which all worker processes share; it counts no
        requests. `prepare_model` of the user state gets each loaded model ready for the users'
        stored histories.
        """
        folder = self.shared.folder / name
        folder.mkdir(exist_ok=True)
        shared = SharedState(folder, self.settings.workers, self.shared.worker, ())
        return self._hold(path, folder, shared)

    def _hold(self, path: Path, folder: Path, shared: SharedState) -> ModelHolder:
        """Return the holder of the saved model at `path`, whose copies are in `folder`.

        Each loaded model gets the users' events and the changes of items that the store has.
        """
        state = self.user_state
        return ModelHolder(path, folder, shared, state.prepare_model, updates=state.item_updates)

    # -- start and stop --

    def load(self) -> None:
        """Load every model; raise TalerecError if one cannot be served. Begin online evaluation.

        `_holders` has an object for each model (main, comparison, candidate) that loads and reloads
        it. Online evaluation is prequential: each new event is ranked in the list that a model
        would have shown before it. Another process measures; this call sets the time from which
        events count.
        """
        for holder in self._holders:
            holder.start()
        self.api.users.online_metrics.start_measuring()

    def _served_models(self) -> list[ServedModel]:
        """Return all models in use: main, comparison and candidate models, if they are loaded."""
        return [each.current for each in self._holders if each.current is not None]

    def start(self) -> None:
        """Start the daemon threads that poll the store and watch for new models and tokens.

        One thread per model (main, candidate, comparison) checks the model's folder every
        `settings.watch` seconds, until `stop`.
        """
        self.user_state.start()
        self.api.shown_lists.start()
        self.user_state.follow_items(self._holders)
        self.tokens.start(self.settings.watch, self._stop)
        options: dict[str, Any] = {"args": (self.settings.watch, self._stop), "daemon": True}
        for holder in self._holders:
            self._watch_threads.append(
                threading.Thread(target=holder.watch, name="watch", **options)
            )
            self._watch_threads[-1].start()

    def drain(self) -> None:
        """Report that the service is about to stop, and ask clients to close their connections."""
        self.api.is_draining = True

    def stop(self) -> None:
        """Stop watching for new models, commit waiting events, and end all threads.

        Each thread is waited for at most `timeout` seconds of the settings; then the worker process
        no longer counts as ready.
        """
        self._stop.set()
        for thread in self._watch_threads:
            thread.join(self.settings.timeout)
        self.user_state.stop()
        self.api.stop()
        self.shared.set_version(None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI lifespan: load models and start threads, and stop them at the end.

        `receive` and `send` are the functions of ASGI for messages from and to the server. If a
        model cannot be served, the startup is reported as failed.
        """
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
        """Handle one HTTP request or the lifespan of the server, as ASGI defines it."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        started = time.perf_counter()
        headers = dict(scope["headers"])
        path: str = scope["path"]
        path_id = ""
        for prefix, route in _ID_PATHS.items():
            if path.startswith(prefix):
                path_id, path = path[len(prefix) :], route
                break
        client = (scope.get("client") or ("",))[0] if self._access.counts_clients else ""
        current = self.holder.current  # read once: see HttpRequest
        request_id = headers.get(b"x-request-id")
        if request_id is None or not _REQUEST_ID.fullmatch(request_id):
            request_id = b"%b%d" % (self._id_prefix, next(self._request_numbers))
        query: bytes = scope["query_string"]
        http = HttpRequest(headers, query, receive, current, request_id, path_id, client)
        self._in_flight += 1
        self.shared.set_gauge("in_flight", self._in_flight)
        try:
            if self._needs_no_context:
                await self._respond_and_send(scope["method"], path, http, started, send)
            else:
                await self._count_and_trace(scope["method"], path, http, started, send)
        except ClientGone:
            return
        finally:  # only after sending: a response that the client does not read takes memory
            self._in_flight -= 1
            self.shared.set_gauge("in_flight", self._in_flight)

    async def _count_and_trace(
        self, method: str, path: str, http: HttpRequest, started: float, send: Send
    ) -> None:
        """Send the response to a request whose client is counted, or which is traced.

        A client is counted, by address, if requests per client are limited; else `http.client` is
        empty. Traced means that an OpenTelemetry span records the request (`_tracer` is not None).
        `started` is the value of `time.perf_counter` when the request arrived, `send` the function
        of ASGI for messages to the client.
        """
        with ExitStack() as contexts:
            if http.client:
                contexts.enter_context(self._access.count_client(http.client))
            if self._tracer is None:
                await self._respond_and_send(method, path, http, started, send)
                return
            name = path if path in self._routes else OTHER
            span = contexts.enter_context(self._tracer.trace_request(method, name, http.headers))
            status = await self._respond_and_send(method, path, http, started, send)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("talerec.model", http.version or "")

    async def _respond_and_send(
        self, method: str, path: str, http: HttpRequest, started: float, send: Send
    ) -> int:
        """Compute, count, log and send the response to a request; return its HTTP status.

        `started` is the value of `time.perf_counter` when the request arrived, `send` the function
        of ASGI for messages to the client. Paths without a route are counted together. Bodies of
        more than 256 KiB are sent in chunks.
        """
        response = await self._respond(method, path, http)
        seconds = time.perf_counter() - started
        self.shared.record(path if path in self._routes else OTHER, response.status, seconds)
        if self._logs_requests:
            self._log_response(method, path, http, response, seconds)
        headers = self._complete_headers(response, http)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if len(response.body) <= _CHUNK:
            await send({"type": "http.response.body", "body": response.body})
        else:
            await self._send_in_chunks(response.body, send)
        return response.status

    def _log_response(
        self, method: str, path: str, http: HttpRequest, response: Response, seconds: float
    ) -> None:
        """Log a response at debug level; JSON logs get its fields, text logs a line.

        `seconds` is the time from the request's headers to the response.
        """
        fields = {
            "method": method, "path": path, "status": response.status, "seconds": round(seconds, 6),
            "bytes": len(response.body), "request_id": http.id.decode(), "model": http.version,
        }  # fmt: skip
        line = "%s %s: %d in %.1f ms"
        logger.debug(line, method, path, response.status, 1000 * seconds, extra={"fields": fields})

    async def _send_in_chunks(self, body: bytes, send: Send) -> None:
        """Send a long body in chunks of 256 KiB, each once the client has read the previous ones.

        Until the end, the whole body counts among the bytes that clients have not read, which the
        service limits. `send` is the function of ASGI for messages to the client.
        """
        self.api.count_unread(len(body))
        try:
            for begin in range(0, len(body), _CHUNK):
                chunk = body[begin : begin + _CHUNK]
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.api.count_unread(-len(body))

    def _complete_headers(self, response: Response, http: HttpRequest) -> list[tuple[bytes, bytes]]:
        """Return the response's headers with those that every response has.

        Added: x-content-type-options, x-request-id, content-length, CORS headers for an allowed
        origin, and "connection: close" while the service drains, that is, is about to stop.
        """
        length = (b"content-length", b"%d" % len(response.body))
        headers = [*response.headers, _NOSNIFF, (b"x-request-id", http.id), length]
        origin = http.headers.get(b"origin", b"")
        if origin and self._access.allows_origin(origin):
            headers += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if self.api.is_draining:
            headers.append(_CLOSE)
        return headers

    async def _respond(self, method: str, path: str, http: HttpRequest) -> Response:
        """Return the route's response, compressed if the client accepts it, or an error response.

        An ApiError has its own HTTP status, another TalerecError gives 422, any other exception 500
        and a line in the log. Only ClientGone, for a client that has disconnected, is not turned
        into a response. Long bodies are compressed in a thread.
        """
        try:
            response = await self._call_handler(method, path, http)
            if not messages.needs_gzip(response, http):
                return response
            if len(response.body) > messages.LONG_BODY:
                return await self.api.run_in_thread(messages.compress, response)
            return messages.compress(response)
        except ApiError as raised:
            error = raised
        except TalerecError as raised:
            error = ApiError(422, "invalid", str(raised))
        except ClientGone:
            raise
        except Exception:
            fields = {"request_id": http.id.decode(), "method": method, "path": path}
            logger.exception("a request failed: %s %s", method, path, extra={"fields": fields})
            error = ApiError(500, "internal", "the service failed; its log has the details")
        headers = (messages.JSON, messages.NO_STORE, *error.headers)
        return Response(error.body(http.version), headers, error.status)

    async def _call_handler(self, method: str, path: str, http: HttpRequest) -> Response:
        """Check access, and return the response of the route's handler; ApiError if refused.

        `path` is the URL path that names the route. Refusals: wrong Host header, unknown path,
        method that the route lacks, and, for guarded routes, a missing token or too many requests.
        """
        host = http.headers.get(b"host")
        if host not in self._access.accepted_hosts:
            self._access.check_host(host)
        route = self._routes.get(path)
        if route is None:
            raise ApiError(404, "not_found", f"there is nothing at {path[:200]}")
        if method == "OPTIONS" and self._access.has_origins:
            return self._answer_preflight(route, http)
        handler = route.find_handler(method)
        if handler is None:
            allow = ((b"allow", route.methods.encode()),)
            raise ApiError(405, "method_not_allowed", f"{path} accepts {route.methods}", allow)
        if route.is_guarded:
            writes = route.writes or method in route.writers
            self._access.admit(http, self._in_flight, writes=writes)
        if http.query and route.uses_model:
            self._choose_model(http)
        return await handler(http)

    def _choose_model(self, http: HttpRequest) -> None:
        """Let the model that the query string names (`beside=NAME`) answer, if it names one.

        NAME is one of the comparison models served besides the main model. Sets `http.current`, the
        model that answers, and removes `beside` from `http.query`; ApiError 422 for an unknown
        name.
        """
        name, http.query = messages.split_model_name(http.query)
        if name is not None:
            if name not in self._comparison_models:
                names = ", ".join(self._comparison_models) or "none: this service has one model"
                message = f"there is no model {name[:50]!r}; beside can be {names}"
                raise ApiError(422, "unknown_model", message)
            http.current, http.role = self._comparison_models[name].current, "comparison"

    def _answer_preflight(self, route: Route, http: HttpRequest) -> Response:
        """Return 204 for a CORS preflight request if its origin may use the route, else raise 403.

        By such a request, browsers ask whether a page of another origin may call the API. The
        headers say which methods and headers a call may use, for 600 seconds.
        """
        if not self._access.allows_origin(http.headers.get(b"origin", b"")):
            message = "pages of this origin may not use the API: the setting cors lists who may"
            raise ApiError(403, "origin_not_allowed", message)
        headers = (
            (b"access-control-allow-methods", route.methods.encode()),
            (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
            (b"access-control-max-age", b"600"),
        )
        return Response(b"", headers, 204)
