"""The files of the web page, read once. The page talks only to the public API of its own service."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

_MEDIA_TYPES = {
    "html": b"text/html",
    "css": b"text/css",
    "js": b"text/javascript",
    "svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(NamedTuple):
    """A file as it is sent, and the entity tag by which browsers ask whether it has changed."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    tag: bytes


def _read_pages() -> dict[str, Page]:
    pages: dict[str, Page] = {}
    for file in resources.files("talerec.serve.static").iterdir():
        media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            pages[path] = _page(file.read_bytes(), media_type)
    return pages


def _page(body: bytes, media_type: bytes) -> Page:
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers = (
        (b"content-type", media_type + b"; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
        (b"content-security-policy", _POLICY),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    )
    return Page(body, headers, tag)


FILES = _read_pages()
