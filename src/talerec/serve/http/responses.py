"""What the service sends: bodies with their headers, entity tags, and compression for those who ask for it."""

from __future__ import annotations

import hashlib
import zlib
from functools import lru_cache
from typing import NamedTuple

from talerec.serve.errors import Headers
from talerec.serve.http.parsing import HttpRequest

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
NO_STORE = (b"cache-control", b"no-store")
_ASK_FIRST = (b"cache-control", b"private, no-cache")
_GZIP = (b"content-encoding", b"gzip")
_VARY = (b"vary", b"accept-encoding")
_MIN_GZIP = 4096  # bytes: below, compressing costs more than it saves
LONG = 2**16  # bytes: compressing more than that would delay other requests


class Response(NamedTuple):
    body: bytes
    headers: Headers = (JSON, NO_STORE)
    status: int = 200


def tagged(http: HttpRequest, body: bytes) -> Response:
    """An answer that stays the same while the model does: who has it already is told so (304)."""
    tag = b'W/"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers = (JSON, _ASK_FIRST, (b"etag", tag))
    return unchanged(headers) if has_tag(http, tag) else Response(body, headers)


def has_tag(http: HttpRequest, tag: bytes) -> bool:
    """Does the client say that it has the version with this tag?"""
    given = http.headers.get(b"if-none-match")
    return given is not None and tag in (part.strip() for part in given.split(b","))


def unchanged(headers: Headers) -> Response:
    return Response(b"", headers, 304)


def wants_gzip(response: Response, http: HttpRequest) -> bool:
    """Is the body large enough, and does the client take it compressed?"""
    if len(response.body) < _MIN_GZIP or _GZIP in response.headers:
        return False
    return _takes_gzip(http.headers.get(b"accept-encoding", b""))


@lru_cache(256)
def _takes_gzip(accepted: bytes) -> bool:
    for part in accepted.split(b","):
        name, _, quality = part.strip().partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def compressed(response: Response, level: int = 1) -> Response:
    """The response with its body in the gzip format."""
    packer = zlib.compressobj(level, wbits=31)
    body = packer.compress(response.body) + packer.flush()
    return Response(body, (*response.headers, _GZIP, _VARY), response.status)
