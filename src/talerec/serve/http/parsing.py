"""From an HTTP request to checked values: the body, the limits of this service, the parameters of a search."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from talerec.serve import schemas
from talerec.serve.errors import ApiError, not_ready
from talerec.serve.model.served import ServedModel
from talerec.serve.settings import Settings

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]

_CLOSE = ((b"connection", b"close"),)
_DEFAULT_ITEMS = 20  # items that a search returns unless it sets a limit
_MAX_ITEMS = 100
_MAX_TEXT = 200  # characters of a search text


class ClientGone(Exception):
    """The client has disconnected, and nobody waits for the answer."""


@dataclass(slots=True)
class HttpRequest:
    """An HTTP request whose body is not read yet.

    current: the model in use when the request began. Everything in the answer comes from this model, also if another
    one takes its place meanwhile.
    """

    headers: dict[bytes, bytes]
    query: bytes
    receive: Receive
    current: ServedModel | None
    name: str = ""  # the last part of a path that names something
    client: str = ""  # the address of the client, where clients are counted
    id: bytes | None = None

    @property
    def model(self) -> ServedModel:
        if self.current is None:
            raise not_ready()
        return self.current

    @property
    def version(self) -> str | None:
        return None if self.current is None else self.current.version


async def read_json(http: HttpRequest, kind: type[T], settings: Settings) -> T:
    """The JSON body of a request as an object of class `kind`."""
    return schemas.decode(await read_body(http, settings), kind)


async def read_body(http: HttpRequest, settings: Settings) -> bytearray:
    """The body of a request, which says that it is JSON."""
    media_type = http.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if media_type != b"application/json":
        raise ApiError(
            415, "not_json", "the body must be JSON: send Content-Type: application/json"
        )
    try:
        async with asyncio.timeout(settings.timeout):
            return await _read_body(http, settings.max_body)
    except TimeoutError:
        message = f"the body did not arrive within {settings.timeout:g} s"
        raise ApiError(408, "too_slow", message, _CLOSE) from None


async def _read_body(http: HttpRequest, limit: int) -> bytearray:
    if int(http.headers.get(b"content-length", b"0")) > limit:
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await http.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return body


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {limit} bytes", _CLOSE)


def check_recommend(request: schemas.RecommendRequest, settings: Settings) -> None:
    check_history(request, settings)
    check_k(request.k, settings)


def check_history(
    request: schemas.RecommendRequest | schemas.ExplainRequest, settings: Settings
) -> None:
    if (request.user_id is None) == isinstance(request.history, schemas.NoHistory):
        raise ApiError(422, "invalid", "give history or user_id, one of the two")
    rows = len(request.history)
    if rows > settings.max_history:
        message = f"the history has {rows} rows; the limit is {settings.max_history}"
        raise ApiError(422, "history_too_long", message)


def check_k(k: int, settings: Settings) -> None:
    if k > settings.max_k:
        raise ApiError(422, "k_too_large", f"k is {k}; the limit is {settings.max_k}")


def check_batch(batch: schemas.BatchRequest, settings: Settings) -> None:
    if len(batch.requests) > settings.max_batch:
        message = f"the batch has {len(batch.requests)} requests; the limit is {settings.max_batch}"
        raise ApiError(422, "batch_too_long", message)
    for request in batch.requests:
        check_recommend(request, settings)
    items = sum(request.k for request in batch.requests)
    if items > settings.max_items:
        message = f"the batch asks for {items} items; the limit is {settings.max_items}"
        raise ApiError(422, "batch_too_long", message)


class Search(NamedTuple):
    """What a search asks for: words, at most so many of what is found; or the items with these ids."""

    text: str
    limit: int
    ids: tuple[str, ...] = ()


def search_parameters(query: bytes) -> Search:
    """The text `q` and the number `limit` of a search."""
    return _search(_query_values(query), ("q", "limit"))


def item_parameters(query: bytes) -> Search:
    """The parameters of a search for items, or the `id`s of those that are wanted (`id` may be repeated)."""
    values = _query_values(query)
    found = _search(values, ("q", "limit", "id"))
    ids = tuple(value for name, value in values if name == "id")
    if len(ids) > _MAX_ITEMS:
        raise ApiError(422, "list_too_long", f"there are {len(ids)} ids; the limit is {_MAX_ITEMS}")
    return found._replace(ids=ids)


def _search(pairs: list[tuple[str, str]], known: tuple[str, ...]) -> Search:
    values = dict(pairs)
    if unknown := set(values) - set(known):
        message = f"there is no parameter {min(unknown)[:50]!r}; there are {', '.join(known)}"
        raise ApiError(422, "invalid", message)
    text, limit = values.get("q", ""), values.get("limit", str(_DEFAULT_ITEMS))
    if len(text) > _MAX_TEXT:
        message = f"q has {len(text)} characters; the limit is {_MAX_TEXT}"
        raise ApiError(422, "text_too_long", message)
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9):
        raise ApiError(422, "invalid", f"limit is {limit[:50]!r}; it must be a whole number")
    if not 1 <= int(limit) <= _MAX_ITEMS:
        raise ApiError(422, "invalid", f"limit is {limit}; it must be from 1 to {_MAX_ITEMS}")
    return Search(text, int(limit))


def beside_name(query: bytes) -> tuple[str | None, bytes]:
    """The model that a query asks (`beside=NAME`), if it names one, and the query without that."""
    values = _query_values(query)
    name = dict(values).get("beside")
    return name, urlencode([pair for pair in values if pair[0] != "beside"]).encode()


def _query_values(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("ascii"), True, True, errors="strict")
    except ValueError:
        values = parse_qsl(query.decode("latin-1"), True, errors="replace")
        if any("\N{REPLACEMENT CHARACTER}" in value for _, value in values):
            raise ApiError(400, "malformed_query", "the query string is not UTF-8") from None
        return values
