"""Everything that rests on parts of uvicorn that are not documented.

`BoundedHttpProtocol` extends uvicorn's httptools protocol; `DrainingServer` its server. Of the
protocol they use: transport, connections, scheme, loop, url, headers and cycle; the parser's
callbacks; `send_400_response` and `on_response_complete`. Of the server: startup, shutdown,
servers, started, should_exit and server_state. uvicorn has no public hook that bounds headers,
that closes connections which do not read, or that stops listening before it closes connections.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talerec.serve import ApiError

_MAX_HEADERS = 32_768  # bytes
_BACKLOG = 2048  # connections that the system holds before they are accepted
_ACCEPT_GRACE_S = 0.25  # seconds in which clients that have just connected are still accepted
_SO_ATTACH_FILTER = 26  # Linux

AsgiApplication = Callable[[Any, Any, Any], Awaitable[None]]


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
        go to the wrapped transport in one call.
        """
        is_head = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
        if is_head and not self._head and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            data, self._head = self._head + data, b""
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
    """Stops the parser: the request was refused while its headers were read."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits of connections, header size and time.

    Limits: open connections, the bytes and seconds of a request's headers, the seconds in which a
    client reads a response. A request beyond a limit gets an error response without reaching the
    application; a client that does not read its response in time is disconnected.
    """

    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0  # received since the headers began
        self._last_bytes = 0  # received by the last call of `data_received`

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
        arriving: all bytes count, up to 32 KiB.
        """
        self._last_bytes = len(data)
        if self._header_timer is not None:
            self._header_bytes += self._last_bytes
        super().data_received(data)
        if self._header_timer is not None and self._header_bytes > _MAX_HEADERS:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        """Start the header timer of the next request of a connection, unless it runs already.

        The parser calls this. The timer limits the seconds in which the headers must arrive.
        """
        super().on_message_begin()
        if self._header_timer is None:
            self._start_header_timer()

    def on_headers_complete(self) -> None:
        """Pass the request to the application; refuse it with 431 if its headers are too large.

        The parser calls this once all headers have arrived; their timer is cancelled. If the
        received bytes, which may include a body, exceed 32 KiB, the size of the headers alone is
        computed. Raises `_RefusedRequest`, which stops the parser, for a refused request.
        """
        upper_bound = self._header_bytes + self._last_bytes  # the data may hold more than headers
        if upper_bound > _MAX_HEADERS:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > _MAX_HEADERS:
                self._refuse_headers()
                raise _RefusedRequest
        self._header_timer = _cancel(self._header_timer)
        super().on_headers_complete()

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

    def _refuse_headers(self) -> None:
        """Refuse with 431 a request whose headers are larger than 32 KiB."""
        message = f"the headers are larger than {_MAX_HEADERS} bytes"
        self._refuse(431, "headers_too_large", message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error response without calling the application, and close the connection.

        `status` is the HTTP status, `code` a name of the error for programs. Counted as a dropped
        connection. Does nothing if the connection is closing already.
        """
        self._header_timer = _cancel(self._header_timer)
        if self.transport.is_closing():
            return
        self._limits.on_drop()
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


class DrainingServer(uvicorn.Server):
    """A uvicorn server that stops in steps, so that no request is dropped.

    The steps: announce the stop, serve on, refuse new connections, finish open requests.

    Parameters
    ----------
    config : uvicorn.Config
        The configuration of uvicorn.
    on_started : function
        Called once the server listens; returns whether to stop at once.
    on_drain : function
        Called when the server begins to stop.
    drain : float
        Seconds to serve on after that.
    """

    def __init__(
        self, config: uvicorn.Config, on_started: Callable[[], bool],
        on_drain: Callable[[], None], drain: float,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self._on_started, self._on_drain, self._drain = on_started, on_drain, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets and call `on_started`; stop at once if it returns True.

        uvicorn calls this, and stops when `should_exit` is set.
        """
        await super().startup(sockets)
        if self.started and self._on_started():
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop in steps, so that no request is dropped.

        uvicorn calls this. Announce the stop (`_on_drain`) and serve on for `_drain` seconds,
        refuse new connections, stop listening, and wait (again at most `_drain` seconds) for open
        requests.
        """
        self._on_drain()
        await asyncio.sleep(self._drain)
        for listener in sockets or []:
            _stop_accepting(listener)
        await asyncio.sleep(_ACCEPT_GRACE_S)
        for server in self.servers:
            server.close()
        end = time.monotonic() + self._drain
        while self._has_unanswered() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _has_unanswered(self) -> bool:
        """Is there an open connection whose request has no complete response yet?

        `cycle` is uvicorn's request and response of a connection; None before the first request.
        """
        connections: set[Any] = self.server_state.connections
        return any(c.cycle is None or not c.cycle.response_complete for c in connections)


def _stop_accepting(listener: socket.socket) -> None:
    """Make the system refuse new connections; those already made can still be accepted.

    Closing the socket would cut off clients that are connected but not yet accepted. On Linux, a
    filter that drops every packet keeps new clients out. A Unix socket stays as it is, since other
    worker processes listen on it.
    """
    if listener.family == socket.AF_UNIX:  # other workers listen on the same one
        return
    with suppress(OSError):
        listener.listen(0)
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        if sys.platform == "linux":
            program = struct.pack("HP", 1, ctypes.addressof(drop_all))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def make_config(app: AsgiApplication, limits: ConnectionLimits, **options: Any) -> uvicorn.Config:
    """Return a uvicorn configuration that serves `app` within `limits`.

    `options` are further arguments of `uvicorn.Config`, such as the TLS files.
    """
    protocol = cast(type[asyncio.Protocol], partial(BoundedHttpProtocol, limits=limits))
    return uvicorn.Config(
        app, http=protocol, ws="none", loop="uvloop", lifespan="on", interface="asgi3",
        proxy_headers=False, log_config=None, access_log=False, server_header=False,
        backlog=_BACKLOG, timeout_graceful_shutdown=max(1, round(limits.timeout)), **options,
    )  # fmt: skip
