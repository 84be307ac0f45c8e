"""The server of a worker: uvicorn's, which stops in steps.

`DrainingServer` rests on parts of uvicorn that are not documented: startup, shutdown, servers,
started, should_exit, server_state, lifespan and the arguments of protocols. uvicorn has no public
hook that stops listening before it closes connections, or that counts TLS connections before their
handshake.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import ssl
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn

from talerec.serve.process.http_protocol import BoundedHttpProtocol, ConnectionLimits
from talerec.serve.process.tls_listener import TlsListener

_BACKLOG = 2048  # connections that the system holds before they are accepted
_ACCEPT_GRACE_S = 0.25  # seconds in which clients that have just connected are still accepted
_SO_ATTACH_FILTER = 26  # Linux

AsgiApplication = Callable[[Any, Any, Any], Awaitable[None]]


class DrainingServer(uvicorn.Server):
    """A uvicorn server that stops in steps, so that no request is dropped.

    The steps: announce the stop, serve on, refuse new connections, finish open requests.

    Parameters
    ----------
    app : ASGI application
        The application that answers requests.
    limits : ConnectionLimits
        The limits of connections.
    context : ssl.SSLContext or None
        The certificate and its key; None: the server has no TLS.
    on_started : function
        Called once the server listens; returns whether to stop at once.
    on_drain : function
        Called when the server begins to stop.
    drain : float
        Seconds to serve on after that.
    """

    def __init__(
        self, app: AsgiApplication, limits: ConnectionLimits, context: ssl.SSLContext | None,
        on_started: Callable[[], bool], on_drain: Callable[[], None], drain: float,
    ) -> None:  # fmt: skip
        super().__init__(_make_config(app, limits))
        self._limits, self._context = limits, context
        self._on_started, self._on_drain, self._drain = on_started, on_drain, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets and call `on_started`; stop at once if it returns True.

        uvicorn calls this, and stops when `should_exit` is set. With TLS, a `TlsListener` accepts
        connections in place of the event loop's server.
        """
        await super().startup(sockets if self._context is None else [])
        if self._context is not None and self.started:
            self.servers = [self._listen_with_tls(each, self._context) for each in sockets or []]
        if self.started and self._on_started():
            self.should_exit = True

    def _listen_with_tls(self, listener: socket.socket, context: ssl.SSLContext) -> Any:
        """Return a TLS listener on a bound socket, in the form of uvicorn's `servers`.

        Each connection gets a protocol as uvicorn would construct it; `lifespan` is uvicorn's
        object that starts and stops the application.
        """
        make_protocol: Any = partial(
            self.config.http_protocol_class, config=self.config,  # type: ignore[call-arg]
            server_state=self.server_state, app_state=self.lifespan.state,
        )  # fmt: skip
        connections: set[Any] = self.server_state.connections
        return TlsListener(listener, _BACKLOG, context, self._limits, make_protocol, connections)

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
        """Return whether an open connection still waits for a request or for a whole response.

        `cycle` is uvicorn's request and response of a connection; None before the first request. A
        connection without a request counts: its client may be about to send one.
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


def _make_config(app: AsgiApplication, limits: ConnectionLimits) -> uvicorn.Config:
    """Return a uvicorn configuration that serves `app` within `limits`."""
    protocol = cast(type[asyncio.Protocol], partial(BoundedHttpProtocol, limits=limits))
    return uvicorn.Config(
        app, http=protocol, ws="none", loop="uvloop", lifespan="on", interface="asgi3",
        proxy_headers=False, log_config=None, access_log=False, server_header=False,
        backlog=_BACKLOG, timeout_graceful_shutdown=max(1, round(limits.timeout)),
    )  # fmt: skip
