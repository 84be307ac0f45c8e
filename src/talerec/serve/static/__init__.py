"""The page: a few files that are read once. It talks to the public API and to nobody else."""

from __future__ import annotations

import hashlib
from importlib import resources

_KINDS = {
    "html": b"text/html",
    "css": b"text/css",
    "js": b"text/javascript",
    "svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

Page = tuple[bytes, tuple[tuple[bytes, bytes], ...], bytes]


def _pages() -> dict[str, Page]:
    found: dict[str, Page] = {}
    for file in resources.files("talerec.serve.static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = _page(file.read_bytes(), kind)
    return found


def _page(body: bytes, kind: bytes) -> Page:
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers = (
        (b"content-type", kind + b"; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"etag", tag),
        (b"content-security-policy", _POLICY),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    )
    return body, headers, tag


FILES = _pages()
