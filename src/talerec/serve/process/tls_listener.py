"""A listener of TLS connections, which it counts and limits before their handshake.

The servers of asyncio and uvloop report a connection to its protocol only after the handshake, for
which they wait a minute: clients that connect and say nothing would not be counted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Set

from talerec.serve.process.http_protocol import ConnectionLimits

_ACCEPTS = 100  # connections that are accepted in one turn of the event loop
_RETRY_S = 0.5  # seconds until connections are accepted again after an error, as of open files


class TlsListener:
    """Accepts the connections of a socket, in the event loop that constructs it.

    A connection beyond the limit, or without a handshake within the limit `timeout`, is closed and
    counted as dropped. uvicorn closes the listener like an asyncio server.

    Parameters
    ----------
    listener : socket
        The bound socket, on which the listener begins to listen.
    backlog : int
        Connections that the system holds before they are accepted.
    context : ssl.SSLContext
        The certificate and its key.
    limits : ConnectionLimits
        The limits of the worker's connections.
    make_protocol : function
        Returns the protocol of a connection whose handshake has ended.
    connections : set
        The connections whose handshake has ended; the protocols maintain it.
    """

    def __init__(
        self, listener: socket.socket, backlog: int, context: ssl.SSLContext,
        limits: ConnectionLimits, make_protocol: Callable[[], asyncio.Protocol],
        connections: Set[object],
    ) -> None:  # fmt: skip
        self._listener, self._context, self._limits = listener, context, limits
        self._make_protocol, self._connections = make_protocol, connections
        self._handshakes: set[asyncio.Task[None]] = set()  # in progress
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False
        listener.setblocking(False)
        listener.listen(backlog)
        self._loop.add_reader(listener, self._accept)

    def _accept(self) -> None:
        """Accept the waiting connections, and begin their handshakes or close them.

        The event loop calls this when connections wait. After an error, such as too many open
        files, it stops listening for half a second, as the connection would wait on.
        """
        for _ in range(_ACCEPTS):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(_RETRY_S, self._resume)
                return
            if len(self._connections) + len(self._handshakes) >= self._limits.max_connections:
                self._limits.on_drop()
                connection.close()
                continue
            task = self._loop.create_task(self._shake_hands(connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _resume(self) -> None:
        """Accept connections again after an error, unless the listener was closed meanwhile."""
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    async def _shake_hands(self, connection: socket.socket) -> None:
        """Wait for the TLS handshake of an accepted connection; close it if there is none in time.

        After the handshake, the event loop passes the connection to its protocol.
        """
        timeout = self._limits.timeout
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._context,
                ssl_handshake_timeout=timeout, ssl_shutdown_timeout=timeout,
            )  # fmt: skip
        except OSError:  # of the network or of TLS, or the timeout
            self._limits.on_drop()
            connection.close()

    def close(self) -> None:
        """Accept no more connections, and end the handshakes in progress."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until no handshake is in progress."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)
