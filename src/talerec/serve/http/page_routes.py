"""The handlers of the static files of the web page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from talerec.serve import page as static
from talerec.serve.http import messages
from talerec.serve.http.messages import HttpRequest, Response

Handler = Callable[[HttpRequest], Awaitable[Response]]


def build_page_handler(page: static.Page) -> Handler:
    """Return the handler of a static file of the web page.

    The handler answers 304 if the client has the file; else it sends the plain or the gzip form, as
    the client accepts.
    """

    async def handler(http: HttpRequest) -> Response:
        """Return the static file, or 304 without a body."""
        if messages.has_tag(http, page.tag):
            return Response(b"", page.plain.headers, 304)
        return page.compressed if messages.needs_gzip(page.plain, http) else page.plain

    return handler
