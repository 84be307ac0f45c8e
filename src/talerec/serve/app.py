"""The ASGI application: routes, limits, who may ask, and errors of one shape."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from talerec.errors import TalerecError
from talerec.serve import openapi, schemas, static
from talerec.serve.errors import Refusal, busy
from talerec.serve.reload import Holder
from talerec.serve.service import Served
from talerec.serve.settings import Settings
from talerec.serve.shared import Board

logger = logging.getLogger("talerec")

Header = tuple[bytes, bytes]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_NO_STORE = (b"cache-control", b"no-store")
_CLOSE = (b"connection", b"close")
_THREADS = 2  # for answers that take long
_LIMITS = ("max_body", "max_history", "max_k", "max_list", "max_batch", "timeout")
_ITEMS = 20  # that a search gives, unless it says
_MOST_ITEMS = 100
_LONGEST_TEXT = 200  # characters of a search

_encode = msgspec.json.Encoder().encode
_decoders: dict[type, Any] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (schemas.Recommend, schemas.Batch, schemas.Similar, schemas.Explain)
}


class Asked(NamedTuple):
    """A request, as far as it has been read."""

    headers: dict[bytes, bytes]
    query: bytes
    receive: Receive


class Reply(NamedTuple):
    body: bytes
    headers: tuple[Header, ...] = (_JSON, _NO_STORE)
    status: int = 200


class Route(NamedTuple):
    method: str
    answer: Callable[[Asked], Awaitable[Reply]]
    guarded: bool = True


class App:
    """One worker's application. `draining`: it is about to stop, and asks connections to close."""

    def __init__(self, settings: Settings, folder: Path, line: int = 0) -> None:
        self.settings = settings
        self.draining = False
        self._token = settings.token.encode() if settings.token else None
        self._origins = {origin.encode() for origin in settings.cors}
        routes = self._routes()
        self._routing = routes
        self.board = Board(folder, settings.workers, line, (*routes, "other"))
        self.holder = Holder(settings.path, folder, self.board)
        self._in_flight = 0
        self._waiting: list[tuple[schemas.Recommend, asyncio.Future[schemas.Recommended]]] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "answer")
        self._watcher: threading.Thread | None = None

    def _routes(self) -> dict[str, Route]:
        pages_at = {path: Route("GET", self._page(path), False) for path in static.FILES}
        return {
            "/v1/recommend": Route("POST", self._recommend),
            "/v1/recommend:batch": Route("POST", self._batch),
            "/v1/similar": Route("POST", self._similar),
            "/v1/explain": Route("POST", self._explain),
            "/v1/items": Route("GET", self._items),
            "/v1/model": Route("GET", self._model),
            "/v1/reload": Route("POST", self._reload),
            "/health/live": Route("GET", self._live, False),
            "/health/ready": Route("GET", self._ready, False),
            "/metrics": Route("GET", self._metrics),
            "/openapi.json": Route("GET", self._openapi, False),
            **pages_at,
        }

    # -- the life of a worker --

    def start(self) -> None:
        """Begin to load and to watch."""
        arguments = (self.settings.watch, self._stop)
        self._watcher = threading.Thread(
            target=self.holder.watch, args=arguments, name="watch", daemon=True
        )
        self._watcher.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(self.settings.timeout)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.board.ready(None)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                while self.holder.current is None:  # who has no model takes no request
                    await asyncio.sleep(0.02)
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
        name = path if path in self._routing else "other"
        asked = Asked(dict(scope["headers"]), scope["query_string"], receive)
        self._in_flight += 1
        self.board.put("in_flight", self._in_flight)
        try:
            reply = await self._reply(scope["method"], path, asked)
        except _Gone:
            return
        finally:
            self._in_flight -= 1
            self.board.put("in_flight", self._in_flight)
        self.board.answered(name, reply.status, time.perf_counter() - started)
        headers = [*reply.headers, _NOSNIFF, (b"content-length", b"%d" % len(reply.body))]
        if self._origins and asked.headers.get(b"origin") in self._origins:
            headers += [
                (b"access-control-allow-origin", asked.headers[b"origin"]),
                (b"vary", b"origin"),
            ]
        if self.draining:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def _reply(self, method: str, path: str, asked: Asked) -> Reply:
        try:
            return await self._answer(method, path, asked)
        except Refusal as refusal:
            return self._refused(refusal)
        except TalerecError as error:
            return self._refused(Refusal(422, "invalid", str(error)))
        except _Gone:
            raise
        except Exception:
            logger.exception("an answer failed: %s %s", method, path)
            return self._refused(Refusal(500, "internal", "the service failed; its log says why"))

    def _refused(self, refusal: Refusal) -> Reply:
        served = self.holder.current
        body = refusal.body(None if served is None else served.version)
        return Reply(body, (_JSON, _NO_STORE, *refusal.headers), refusal.status)

    async def _answer(self, method: str, path: str, asked: Asked) -> Reply:
        route = self._routing.get(path)
        if route is None:
            raise Refusal(404, "not_found", f"there is nothing at {path[:200]}")
        if method == "OPTIONS" and self._origins:
            return self._preflight(route, asked)
        if method != route.method and not (method == "HEAD" and route.method == "GET"):
            allow = ((b"allow", route.method.encode()),)
            raise Refusal(405, "method_not_allowed", f"{path} takes {route.method}", allow)
        if route.guarded:
            self._admit(asked)
        return await route.answer(asked)

    def _admit(self, asked: Asked) -> None:
        if self._token is not None:
            kind, _, given = asked.headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                wanted = ((b"www-authenticate", b"Bearer"),)
                raise Refusal(401, "unauthorized", "send Authorization: Bearer TOKEN", wanted)
        if self._in_flight > self.settings.concurrency:
            raise busy(f"more than {self.settings.concurrency} requests at a time")

    def _preflight(self, route: Route, asked: Asked) -> Reply:
        if asked.headers.get(b"origin") not in self._origins:
            raise Refusal(403, "origin_not_allowed", "pages of this origin may not ask")
        allowed = (
            (b"access-control-allow-methods", route.method.encode()),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"access-control-max-age", b"600"),
        )
        return Reply(b"", allowed, 204)

    # -- reading --

    async def _read(self, asked: Asked, kind: type[T]) -> T:
        """The body as JSON of this shape."""
        mime = asked.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if mime != b"application/json":
            raise Refusal(415, "not_json", "send Content-Type: application/json")
        try:
            async with asyncio.timeout(self.settings.timeout):
                body = await self._body(asked)
        except TimeoutError:
            raise Refusal(408, "too_slow", "the body did not come in time", (_CLOSE,)) from None
        try:
            made: T = _decoders[kind].decode(body)
        except msgspec.ValidationError as error:
            raise Refusal(422, "invalid", str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refusal(400, "malformed_json", str(error)) from None
        except RecursionError:
            raise Refusal(400, "malformed_json", "the JSON is nested too deeply") from None
        return made

    async def _body(self, asked: Asked) -> bytes:
        most = self.settings.max_body
        too_large = Refusal(413, "body_too_large", f"a body has at most {most} bytes", (_CLOSE,))
        if int(asked.headers.get(b"content-length", b"0")) > most:
            raise too_large
        parts: list[bytes] = []
        size = 0
        while True:
            message = await asked.receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large
            if not message.get("more_body", False) and not parts:
                return bytes(part)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _served(self) -> Served:
        served = self.holder.current
        if served is None:
            raise Refusal(
                503, "not_ready", "the model is not loaded yet", ((b"retry-after", b"1"),)
            )
        return served

    async def _long(self, work: Callable[..., T], *arguments: Any) -> T:
        """Work that would hold up others runs beside the loop, for as long as an answer may take."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await loop.run_in_executor(self._pool, work, *arguments)
        except TimeoutError:
            seconds = self.settings.timeout
            raise Refusal(503, "timeout", f"the answer takes more than {seconds:g} s") from None

    def _check(self, asked: schemas.Recommend) -> None:
        limits = self.settings
        self._check_history(asked.history)
        if asked.k > limits.max_k:
            raise Refusal(422, "k_too_large", f"k is {asked.k}; it is at most {limits.max_k}")
        for name in ("allow", "deny"):
            if len(getattr(asked, name) or ()) > limits.max_list:
                message = f"{name} has more than {limits.max_list} ids"
                raise Refusal(422, "list_too_long", message)

    def _check_history(self, rows: list[schemas.Row]) -> None:
        most = self.settings.max_history
        if len(rows) > most:
            message = f"the history has {len(rows)} rows; it has at most {most}"
            raise Refusal(422, "history_too_long", message)

    # -- answers --

    async def _recommend(self, asked: Asked) -> Reply:
        wish = await self._read(asked, schemas.Recommend)
        self._check(wish)
        served = self._served()
        if served.is_long(len(wish.history), wish.k):
            answer = await self._long(served.recommend, wish)
        else:
            answer = await self._soon(wish)
        if answer.fallback:
            self.board.add("fallbacks")
        return Reply(_encode(answer))

    def _soon(self, wish: schemas.Recommend) -> asyncio.Future[schemas.Recommended]:
        """The answer, found with those that others ask for at the same moment.

        Under load several requests are read in one turn of the loop. One after the other they would pass through all
        of HTTP, JSON and the model, and each time find the processor's caches full of something else.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer_waiting)
        answer: asyncio.Future[schemas.Recommended] = loop.create_future()
        self._waiting.append((wish, answer))
        return answer

    def _answer_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        found: Iterable[schemas.Recommended | Exception]
        try:
            found = self._served().recommend_all([wish for wish, _ in waiting])
        except Exception as error:
            found = [error] * len(waiting)
        for (_, answer), one in zip(waiting, found, strict=True):
            if answer.cancelled():  # whoever asked has left
                continue
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)

    async def _batch(self, asked: Asked) -> Reply:
        wish = await self._read(asked, schemas.Batch)
        most = self.settings.max_batch
        if len(wish.requests) > most:
            message = f"there are {len(wish.requests)} requests; there are at most {most}"
            raise Refusal(422, "batch_too_long", message)
        for one in wish.requests:
            self._check(one)
        served = self._served()
        found: list[schemas.Recommended] = []
        for answer in await self._long(served.recommend_all, wish.requests):
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        self.board.add("fallbacks", sum(bool(one.fallback) for one in found))
        return Reply(_encode(schemas.Answers(served.version, found)))

    async def _similar(self, asked: Asked) -> Reply:
        wish = await self._read(asked, schemas.Similar)
        if wish.k > self.settings.max_k:
            message = f"k is {wish.k}; it is at most {self.settings.max_k}"
            raise Refusal(422, "k_too_large", message)
        return Reply(_encode(await self._long(self._served().similar, wish)))

    async def _explain(self, asked: Asked) -> Reply:
        wish = await self._read(asked, schemas.Explain)
        self._check_history(wish.history)
        return Reply(_encode(await self._long(self._served().explain, wish)))

    async def _items(self, asked: Asked) -> Reply:
        text, limit = _search(asked.query)
        return Reply(_encode(await self._long(self._served().search, text, limit)))

    async def _model(self, asked: Asked) -> Reply:
        limits = {name: getattr(self.settings, name) for name in _LIMITS}
        return Reply(_encode(self._served().card(limits)))

    async def _reload(self, asked: Asked) -> Reply:
        if self._token is None:
            raise Refusal(403, "no_token", "reload needs a token, and this service was given none")
        try:
            moved = await self._long(self.holder.refresh)
        except TalerecError as error:
            self.board.add("reloads_refused")
            raise Refusal(409, "artifact_refused", str(error)) from None
        served = self._served()
        if not await self._long(self.holder.all_moved, served.version, self.settings.timeout):
            raise Refusal(503, "timeout", "not every worker serves the new model yet")
        workers = len(self.board.versions())
        return Reply(_encode(schemas.Reloaded(served.version, moved, workers)))

    async def _live(self, asked: Asked) -> Reply:
        return Reply(_encode(schemas.Health("ok")))

    async def _ready(self, asked: Asked) -> Reply:
        if self.draining:
            raise Refusal(503, "stopping", "the service is about to stop")
        return Reply(_encode(schemas.Health("ok", self._served().version)))

    async def _metrics(self, asked: Asked) -> Reply:
        return Reply(self.board.text(), (_TEXT, _NO_STORE))

    async def _openapi(self, asked: Asked) -> Reply:
        return Reply(_encode(openapi.document(self.settings, self.holder.current)))

    def _page(self, path: str) -> Callable[[Asked], Awaitable[Reply]]:
        async def answer(asked: Asked) -> Reply:
            body, headers, tag = static.FILES[path]
            if asked.headers.get(b"if-none-match") == tag:
                return Reply(b"", headers, 304)
            return Reply(body, headers)

        return answer


class _Gone(Exception):
    """Whoever asked has left."""


def _search(query: bytes) -> tuple[str, int]:
    """`q` and `limit` of a search."""
    try:
        given = dict(parse_qsl(query.decode("ascii"), True, True, errors="strict"))
    except ValueError:
        given = dict(parse_qsl(query.decode("latin-1"), True, errors="replace"))
        if any("�" in value for value in given.values()):
            raise Refusal(400, "malformed_query", "the query is not UTF-8") from None
    if unknown := set(given) - {"q", "limit"}:
        raise Refusal(422, "invalid", f"there is no parameter {min(unknown)[:50]!r}")
    text, limit = given.get("q", ""), given.get("limit", str(_ITEMS))
    if len(text) > _LONGEST_TEXT:
        raise Refusal(422, "text_too_long", f"q has at most {_LONGEST_TEXT} characters")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9):
        raise Refusal(422, "invalid", "limit takes a whole number")
    if not 1 <= int(limit) <= _MOST_ITEMS:
        raise Refusal(422, "invalid", f"limit is {limit}; it takes 1 to {_MOST_ITEMS}")
    return text, int(limit)
