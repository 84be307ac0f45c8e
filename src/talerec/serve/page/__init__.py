"""The files of the web page, read once. The page talks only to the public API of its own service."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from talerec.serve.errors import Headers
from talerec.serve.http.responses import Response, compressed

_MEDIA_TYPES = {
    "html": b"text/html",
    "css": b"text/css",
    "js": b"text/javascript",
    "svg": b"image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'{images}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(NamedTuple):
    """A file as it is sent, also compressed, and the entity tag by which browsers ask whether it has changed."""

    body: bytes
    headers: Headers
    tag: bytes
    packed: bytes
    packed_headers: Headers


def _read_files() -> dict[str, tuple[bytes, bytes]]:
    """Bodies and media types of the files, by path."""
    found: dict[str, tuple[bytes, bytes]] = {}
    for file in resources.files("talerec.serve.page").iterdir():
        media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = file.read_bytes(), media_type
    return found


def pages(images: tuple[str, ...] = ()) -> dict[str, Page]:
    """Every file by its path; pictures of items may come from the origins `images`."""
    policy = _POLICY.format(images="".join(f" {origin}" for origin in images)).encode()
    return {path: _page(*file, policy) for path, file in FILES.items()}


def _page(body: bytes, media_type: bytes, policy: bytes) -> Page:
    tag = b'W/"%s"' % hashlib.sha256(body + policy).hexdigest()[:16].encode()
    headers = (
        (b"content-type", media_type + b"; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
        (b"content-security-policy", policy),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    )
    packed = compressed(Response(body, headers), level=9)
    return Page(body, headers, tag, packed.body, packed.headers)


FILES = _read_files()
