"""HTTP messages: requests and their checks, responses with entity tags and gzip."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from talerec.serve import ApiError, Headers, Settings, not_ready, schemas
from talerec.serve.model import ServedModel

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]

JSON = (b"content-type", b"application/json")
NDJSON = b"application/x-ndjson"
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
NO_STORE = (b"cache-control", b"no-store")
LONG_BODY = 2**16  # bytes: compressing a longer body in the event loop would delay other requests
_REVALIDATE = (b"cache-control", b"private, no-cache")
_GZIP = (b"content-encoding", b"gzip")
_VARY = (b"vary", b"accept-encoding")
_MIN_GZIP = 4096  # bytes: compressing a shorter body costs more than it saves
_CLOSE = ((b"connection", b"close"),)
_DEFAULT_ITEMS = 20  # items that a search returns unless it sets a limit
_MAX_ITEMS = 100
_MAX_TEXT = 200  # characters of a search text


# -- requests --------------------------------------------------------------------------------------


class ClientGone(Exception):
    """The client has disconnected, so nobody waits for the response."""


@dataclass(slots=True)
class HttpRequest:
    """An HTTP request whose body has not been read yet.

    The whole response comes from the model `current`, even if a reload replaces the service's model
    in the meantime.
    """

    headers: dict[bytes, bytes]  # names in lower case
    query: bytes  # the query string, without "?"
    receive: Receive  # the ASGI function that returns the next part of the body
    current: ServedModel | None  # the model in use when the request began; None: none is loaded
    id: bytes  # for logs: the header x-request-id, or a generated one
    path_id: str = ""  # the id in the path /v1/users/{user_id} or /v1/items/{item_id}
    client: str = ""  # the client's address, set only if requests per client are limited
    role: str = "current"  # of the model: also "candidate", or "comparison" (`beside=NAME`)

    @property
    def model(self) -> ServedModel:
        """Return the model that answers this request; ApiError 503 while none is loaded."""
        if self.current is None:
            raise not_ready()
        return self.current

    @property
    def version(self) -> str | None:
        """Return the version of the model that answers this request; None while none is loaded."""
        return None if self.current is None else self.current.version


async def read_json(http: HttpRequest, kind: type[T], settings: Settings) -> T:
    """Return the JSON body of a request, decoded into class `kind`; ApiError if that fails."""
    return schemas.decode(await read_body(http, settings), kind)


async def read_body(
    http: HttpRequest, settings: Settings, media_type: bytes = JSON[1]
) -> bytearray:
    """Return the body of a JSON request; ApiError if it is no JSON, too large or too slow.

    The status is 415 for another content type than `media_type`, 413 for more than `max_body`
    bytes, and 408 for more than `timeout` seconds. Raises ClientGone if the client disconnects.
    """
    sent = http.headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if sent != media_type:
        kind = "JSON" if media_type == JSON[1] else "lines of JSON"
        message = f"the body must be {kind}: send Content-Type: {media_type.decode()}"
        raise ApiError(415, "not_json", message)
    try:
        async with asyncio.timeout(settings.timeout):
            return await _read_body(http, settings.max_body)
    except TimeoutError:
        message = f"the body did not arrive within {settings.timeout:g} s"
        raise ApiError(408, "too_slow", message, _CLOSE) from None


async def _read_body(http: HttpRequest, limit: int) -> bytearray:
    """Return the body as it arrives; raise ApiError 413 if it has more than `limit` bytes.

    `http.receive` is the function of ASGI that returns the next part. Raises ClientGone if the
    client disconnects.
    """
    if int(http.headers.get(b"content-length", b"0")) > limit:
        raise _build_too_large_error(limit)
    body = bytearray()
    while True:
        message = await http.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _build_too_large_error(limit)
        if not message.get("more_body", False):
            return body


def _build_too_large_error(limit: int) -> ApiError:
    """Return the 413 error for a body over the limit, in bytes; it closes the connection."""
    return ApiError(413, "body_too_large", f"the body is larger than {limit} bytes", _CLOSE)


# -- limits of requests ----------------------------------------------------------------------------


def check_request(request: schemas.HistoryRequest, settings: Settings) -> None:
    """Raise ApiError 422 unless a request has either history or user_id, within the limits.

    A history that the client did not send is a `NoHistory`. Limits of the settings: the rows of the
    history and, for recommendations, k (the number of items).
    """
    if (request.user_id is None) == isinstance(request.history, schemas.NoHistory):
        raise ApiError(422, "invalid", "send either history or user_id")
    rows = len(request.history)
    if rows > settings.max_history:
        message = f"the history has {rows} rows; the limit is {settings.max_history}"
        raise ApiError(422, "history_too_long", message)
    if isinstance(request, schemas.RecommendRequest):
        check_k(request.k, settings)


def check_k(k: int, settings: Settings) -> None:
    """Raise ApiError 422 if k, the number of items requested, is above the service's limit."""
    if k > settings.max_k:
        raise ApiError(422, "k_too_large", f"k is {k}; the limit is {settings.max_k}")


def check_batch(batch: schemas.BatchRequest, settings: Settings) -> None:
    """Raise ApiError 422 for a batch with too many requests or items, or an invalid request.

    Items are counted as the sum of k over the requests.
    """
    if len(batch.requests) > settings.max_batch:
        message = f"the batch has {len(batch.requests)} requests; the limit is {settings.max_batch}"
        raise ApiError(422, "batch_too_long", message)
    for request in batch.requests:
        check_request(request, settings)
    items = sum(request.k for request in batch.requests)
    if items > settings.max_items:
        message = f"the batch requests {items} items; the limit is {settings.max_items}"
        raise ApiError(422, "batch_too_long", message)


# -- query strings ---------------------------------------------------------------------------------


class Search(NamedTuple):
    """A search for items or users by a text, or for the items with certain ids."""

    text: str  # ignored if there are ids
    limit: int  # the most results
    ids: tuple[str, ...] = ()


def parse_search(query: bytes, *, has_ids: bool = False) -> Search:
    """Return the search in a query string: `q`, `limit` and, with `has_ids`, repeated `id`s.

    `q` is the text to search for. ApiError 422 for an unknown parameter or a value out of range.
    Without `limit`, at most 20 results are returned; at most 100 with it.
    """
    pairs = _parse_query(query)
    names = ("q", "limit", "id") if has_ids else ("q", "limit")
    values = dict(pairs)
    if unknown := set(values) - set(names):
        message = f"there is no parameter {min(unknown)[:50]!r}; there are {', '.join(names)}"
        raise ApiError(422, "invalid", message)
    text, limit = values.get("q", ""), values.get("limit", str(_DEFAULT_ITEMS))
    if len(text) > _MAX_TEXT:
        message = f"q has {len(text)} characters; the limit is {_MAX_TEXT}"
        raise ApiError(422, "text_too_long", message)
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9):
        raise ApiError(422, "invalid", f"limit is {limit[:50]!r}; it must be a whole number")
    if not 1 <= int(limit) <= _MAX_ITEMS:
        raise ApiError(422, "invalid", f"limit is {limit}; it must be from 1 to {_MAX_ITEMS}")
    ids = tuple(value for name, value in pairs if name == "id")
    if len(ids) > _MAX_ITEMS:
        raise ApiError(422, "list_too_long", f"there are {len(ids)} ids; the limit is {_MAX_ITEMS}")
    return Search(text, int(limit), ids)


def parse_list_query(query: bytes) -> tuple[int | None, str | None]:
    """Return `k` and `user_id` of a query string, None where absent; ApiError 422 if wrong.

    `k` is the number of items of a named list, `user_id` the user who sees it.
    """
    values = dict(_parse_query(query))
    if unknown := set(values) - {"k", "user_id"}:
        message = f"there is no parameter {min(unknown)[:50]!r}; there are k, user_id"
        raise ApiError(422, "invalid", message)
    k = values.get("k")
    if k is None:
        return None, values.get("user_id")
    if not (k.isascii() and k.isdecimal() and len(k) < 9 and int(k) >= 1):
        raise ApiError(422, "invalid", f"k is {k[:50]!r}; it must be a whole number from 1")
    return int(k), values.get("user_id")


def split_model_name(query: bytes) -> tuple[str | None, bytes]:
    """Return the model that a query string names (`beside=NAME`), and the rest of the string.

    The name is that of a further model of the service; it is None if the string has no `beside`.
    """
    pairs = _parse_query(query)
    name = dict(pairs).get("beside")
    return name, urlencode([pair for pair in pairs if pair[0] != "beside"]).encode()


def _parse_query(query: bytes) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a query string; ApiError 400 if it is not UTF-8.

    Both the bytes and the percent-encoded bytes of names and values must be UTF-8. Names may be
    repeated; values may be blank, and a name without "=" has a blank value.
    """
    try:
        return parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise ApiError(400, "malformed_query", "the query string is not UTF-8") from None


# -- responses -------------------------------------------------------------------------------------


class Response(NamedTuple):
    """An HTTP response; by default JSON that clients do not cache."""

    body: bytes
    headers: Headers = (JSON, NO_STORE)  # (name, value) pairs
    status: int = 200  # of HTTP


def tag_response(http: HttpRequest, body: bytes) -> Response:
    """Return a JSON response with an entity tag; 304 without a body if the client has it.

    The tag is a hash of the body, compared with the request's If-None-Match header. The client may
    store the response but must ask again before it uses it.
    """
    tag = b'W/"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers = (JSON, _REVALIDATE, (b"etag", tag))
    return Response(b"", headers, 304) if has_tag(http, tag) else Response(body, headers)


def has_tag(http: HttpRequest, tag: bytes) -> bool:
    """Does the request's If-None-Match header contain this entity tag?"""
    tags = http.headers.get(b"if-none-match")
    return tags is not None and tag in (part.strip() for part in tags.split(b","))


def needs_gzip(response: Response, http: HttpRequest) -> bool:
    """Is the body long enough to compress (4 KiB), and does the client accept gzip?

    A response that is compressed already needs none.
    """
    if len(response.body) < _MIN_GZIP or _GZIP in response.headers:
        return False
    return _accepts_gzip(http.headers.get(b"accept-encoding", b""))


@lru_cache(256)
def _accepts_gzip(accept_encoding: bytes) -> bool:
    """Does the value of an Accept-Encoding header accept gzip?

    It does if it lists gzip or *, and not with the quality 0.
    """
    for part in accept_encoding.split(b","):
        name, _, quality = part.strip().partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def compress(response: Response, level: int = 1) -> Response:
    """Return the response with its body compressed by gzip at `level` (1 to 9).

    The headers content-encoding and vary are added.
    """
    compressor = zlib.compressobj(level, wbits=31)
    body = compressor.compress(response.body) + compressor.flush()
    return Response(body, (*response.headers, _GZIP, _VARY), response.status)
