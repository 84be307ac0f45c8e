"""The files of the web page, read once. The page uses only the public API of its service."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from talerec.serve.http.messages import Response, compress

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'{images}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(NamedTuple):
    """A static file as it is sent, plain and compressed by gzip, with its HTTP entity tag."""

    plain: Response
    compressed: Response
    tag: bytes


def _read_files() -> dict[str, tuple[bytes, str]]:
    """Return (body, media type) of each file of the web page, by its URL path."""
    files: dict[str, tuple[bytes, str]] = {}
    for file in resources.files("talerec.serve.page").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            files[path] = file.read_bytes(), media_type
    return files


def load_pages(images: tuple[str, ...] = ()) -> dict[str, Page]:
    """Return every static file of the web page with its headers, by URL path.

    `images` are web origins from which the page may load pictures of items.
    """
    policy = _POLICY.format(images="".join(f" {origin}" for origin in images)).encode()
    return {path: _build_page(*file, policy) for path, file in FILES.items()}


def _build_page(body: bytes, media_type: str, policy: bytes) -> Page:
    """Return a static file with its headers and entity tag, plain and compressed.

    `policy` is the value of the Content-Security-Policy header.
    """
    tag = b'W/"%s"' % hashlib.sha256(body + policy).hexdigest()[:16].encode()
    headers = (
        (b"content-type", f"{media_type}; charset=utf-8".encode()),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
        (b"content-security-policy", policy),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    )
    plain = Response(body, headers)
    return Page(plain, compress(plain, level=9), tag)


FILES = _read_files()
