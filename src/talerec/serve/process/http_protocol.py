"""The HTTP/1.1 protocol of workers: uvicorn's, with limits and refusals of its own.

`BoundedHttpProtocol` rests on parts of uvicorn that are not documented. It uses transport,
connections, scheme, loop, url, headers, parser, pipeline and cycle (with keep_alive,
response_started and response_complete); the parser's callbacks; `send_400_response` and
`on_response_complete`. uvicorn has no public hook that bounds headers, that refuses trailers, or
that closes connections which do not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talerec.serve import ApiError

_MAX_HEADERS = 32_768  # bytes


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of the HTTP connections of a worker process."""

    max_connections: int  # open at the same time
    timeout: float  # seconds for the headers of a request, and for reading a response
    on_drop: Callable[[], None]  # called for each connection that is refused or closed early


class SingleWriteTransport:
    """A transport that writes the head and the body of a response in one system call.

    The head is the status line and headers; `_head` has one that is held back, else it is empty.
    All other calls go to the wrapped asyncio transport.
    """

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write data; the head of a response is held back until its body is written.

        The head is the status line and headers, of a status other than 100; `_head` holds it. Both
        go to the wrapped transport in one call. On a connection that is closing, as after a
        malformed request behind the one that is answered, nothing is written.
        """
        is_head = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
        if is_head and not self._head and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            data, self._head = self._head + data, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def flush(self) -> None:
        """Write a response's head that no body follows; else do nothing.

        The head is the status line and headers; `_head` has one that is held back, else it is
        empty.
        """
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write a response's head (status and headers) that is held back; close the connection."""
        self.flush()
        self._transport.close()


class _RefusedRequest(Exception):
    """Stops the parser: the request was refused while its headers or trailers were read."""


class _ClosedHeaders(list[tuple[bytes, bytes]]):
    """The headers of a request whose body has begun: a trailer that is added is refused.

    Trailers are header fields after a chunked body. The parser reports them as headers, and uvicorn
    would add them to the request that is being answered. refuse: sends the error response.
    """

    def __init__(self, headers: list[tuple[bytes, bytes]], refuse: Callable[[], None]) -> None:
        super().__init__(headers)
        self._refuse = refuse

    def append(self, header: tuple[bytes, bytes], /) -> None:
        """Refuse the request, and raise `_RefusedRequest`, which stops the parser."""
        self._refuse()
        raise _RefusedRequest


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits of connections, header size and time.

    Limits: open connections, the bytes and seconds of a request's headers, the seconds in which a
    client reads a response. A request beyond a limit, with trailers, or without a clear Host gets
    an error response without reaching the application; a client that does not read its response in
    time is disconnected. A response before the end of the request's body ends the connection.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0  # received since the headers began
        self._last_bytes = 0  # received by the last call of `data_received`
        self._keep_alive = False  # whether the client lets the connection stay open
        #: Bytes received since the header of a chunk; None unless its data, or the end of the body,
        #: are still to come.
        self._trailer_bytes: int | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the header timer; refuse the connection with 503 if there are too many.

        asyncio calls this for a new connection. The header timer limits the seconds until the
        headers of the next request have arrived. `transport` is asyncio's; responses are written
        through a wrapper that sends head and body at once.
        """
        super().connection_made(SingleWriteTransport(transport))  # type: ignore[arg-type]
        if self.scheme == "http":  # with TLS, bytes of the handshake may be unsent
            transport.set_write_buffer_limits(0)  # pause_writing is called for any unsent byte
        if len(self.connections) > self._limits.max_connections:
            self._refuse(503, "busy", "there are too many connections")
        else:
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of a closed connection: for its headers, and for reading a response.

        asyncio calls this; `exc` is the error that ended the connection, if any.
        """
        self._header_timer = _cancel(self._header_timer)
        self._read_timer = _cancel(self._read_timer)
        super().connection_lost(exc)

    # -- reading --

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse the request with 431 if its headers are too large.

        asyncio calls this. While the header timer runs, the headers of a request are still
        arriving: all bytes count, up to 32 KiB. Blank lines before a request count too: the parser
        ignores them. Of a trailer, the parser reports nothing before its end: a second byte that is
        neither data of a chunk nor the end of the body belongs to one.
        """
        self._last_bytes = len(data)
        if self._header_timer is not None:
            self._header_bytes += self._last_bytes
        elif self.cycle is not None and self.cycle.response_complete:
            self._start_header_timer()
            self._header_bytes = self._last_bytes
        super().data_received(data)
        if self._header_timer is not None and self._header_bytes > _MAX_HEADERS:
            self._refuse_headers()
        if self._trailer_bytes is not None:
            self._trailer_bytes += self._last_bytes
            if self._trailer_bytes > 1:
                self._refuse_trailers()

    def on_message_begin(self) -> None:
        """Start the header timer of the next request of a connection, unless it runs already.

        The parser calls this. The timer limits the seconds in which the headers must arrive.
        """
        super().on_message_begin()
        if self._header_timer is None:
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        """Pass the request to the application, unless its headers are refused.

        The parser calls this once all headers have arrived; their timer is cancelled. Refused are
        headers of more than 32 KiB (431), two Host or Authorization headers, and HTTP/1.1 without a
        Host header (400). If the received bytes, which may include a body, exceed 32 KiB, the size
        of the headers alone is computed. Raises `_RefusedRequest`, which stops the parser, for a
        refused request. Until the body has arrived, a response closes the connection.
        """
        upper_bound = self._header_bytes + self._last_bytes  # the data may hold more than headers
        if upper_bound > _MAX_HEADERS:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > _MAX_HEADERS:
                self._refuse_headers()
                raise _RefusedRequest
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 or names.count(b"authorization") > 1:
            self._check_unique(names)
        self._header_timer = _cancel(self._header_timer)
        super().on_headers_complete()
        self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_chunk_header(self) -> None:
        """Expect the data of a chunk, or the end of a chunked body; refuse any trailer.

        The parser calls this for the line with the size of a chunk, which is 0 before the end.
        """
        if not isinstance(self.headers, _ClosedHeaders):
            self.headers = _ClosedHeaders(self.headers, self._refuse_trailers)
        self._trailer_bytes = -self._last_bytes  # `data_received` adds those of the current call

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the application: not a trailer. The parser calls this."""
        self._trailer_bytes = None
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        """Note the end of a chunk, which had no trailer. The parser calls this."""
        self._trailer_bytes = None

    def on_message_complete(self) -> None:
        """Note the end of a request: from now on a response may leave the connection open.

        The parser calls this. A response that has begun has announced the connection's end.
        """
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keep_alive
        super().on_message_complete()

    def _start_header_timer(self) -> None:
        """Limit the time, by `timeout`, in which the headers of the next request must arrive."""
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(self._limits.timeout, self._on_slow_headers)

    def _on_slow_headers(self) -> None:
        """Refuse with 408 a request whose headers did not arrive within the limit `timeout`.

        The header timer calls this.
        """
        message = f"the headers did not arrive within {self._limits.timeout:g} s"
        self._refuse(408, "too_slow", message)

    # -- writing --

    def on_response_complete(self) -> None:
        """Write the head (status and headers) of a response without a body; end the response.

        uvicorn calls this. The transport holds a head back until a body or this call.
        """
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer within which the client has to read the whole response.

        asyncio calls this when bytes of the response are unsent, as the client does not read them.
        """
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self._limits.timeout, self._on_slow_reader)

    def resume_writing(self) -> None:
        """Cancel the timer once the client has read the whole response.

        asyncio calls this when all bytes that were written have been sent. `cycle` is uvicorn's
        request and response of the connection.
        """
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._read_timer = _cancel(self._read_timer)

    def _on_slow_reader(self) -> None:
        """Disconnect a client that did not read its response in time, and count it as dropped.

        The timer that `pause_writing` starts calls this.
        """
        self._limits.on_drop()
        self.transport.abort()

    # -- refusing --

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP with 400 and the parser's message `msg`."""
        self._refuse(400, "malformed_http", msg)

    def _refuse_trailers(self) -> None:
        """Refuse with 400 a request that has trailers, header fields after its chunked body."""
        self._trailer_bytes = None
        self._refuse(400, "trailers_refused", "send header fields before the body, not after it")

    def _check_unique(self, names: list[bytes]) -> None:
        """Refuse with 400 two Host or Authorization headers, and HTTP/1.1 without a Host header.

        `names` are the names of all headers, in lower case. Two programs that read such a request,
        as a proxy and this service, may disagree about its meaning. Raises `_RefusedRequest`, which
        stops the parser, for a refused request.
        """
        for name in (b"host", b"authorization"):
            if names.count(name) > 1:
                message = f"the request has more than one {name.decode()} header"
                break
        else:
            if b"host" in names or self.parser.get_http_version() == "1.0":
                return
            message = "the request has no host header"
        self._refuse(400, "malformed_http", message)
        raise _RefusedRequest

    def _refuse_headers(self) -> None:
        """Refuse with 431 a request whose headers are larger than 32 KiB."""
        message = f"the headers are larger than {_MAX_HEADERS} bytes"
        self._refuse(431, "headers_too_large", message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error response without calling the application, and close the connection.

        `status` is the HTTP status, `code` a name of the error for programs. Counted as a dropped
        connection. Does nothing if the connection is closing already. While other responses of the
        connection are being sent or are due first, it is closed without an error response.
        """
        self._header_timer = _cancel(self._header_timer)
        if self.transport.is_closing():
            return
        self._limits.on_drop()
        cycle = self.cycle
        if self.pipeline or (cycle and cycle.response_started and not cycle.response_complete):
            self.transport.abort()
            return
        body = ApiError(status, code, message).body()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer if there is one; always return None, for the caller to store instead."""
    if timer is not None:
        timer.cancel()
    return None
