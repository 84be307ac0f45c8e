"""One worker: uvicorn with limits of its own, a start that can be stopped, and a stop that drops no request."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talerec.errors import TalerecError
from talerec.serve.errors import ApiError
from talerec.serve.http.app import App
from talerec.serve.process import logs
from talerec.serve.process.sockets import bind
from talerec.serve.settings import Settings

_MAX_HEADERS = 32_768  # bytes
_BACKLOG = 2048
_ACCEPT_GRACE_S = 0.25  # seconds in which clients that have just connected are still accepted
_OTHER_FILES = 128  # open files of a worker that are not connections
_SO_ATTACH_FILTER = 26  # Linux
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SingleWriteTransport:
    """A transport that sends the head of a response together with its body: one system call, one wake-up of the client."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._head = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        is_head = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
        if is_head and not self._head and data.endswith(b"\r\n\r\n"):
            self._head = data
        else:
            data, self._head = self._head + data, b""
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class _Refused(Exception):
    """The request was refused while its headers were read; the parser is not to go on."""


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a deadline and a size limit for headers, a deadline for reading the answer, and a limit of connections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._service: App = self.config.loaded_app
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._header_bytes = self._piece = 0  # bytes since the headers began, and that came last

    def connection_made(self, transport: Any) -> None:
        super().connection_made(SingleWriteTransport(transport))  # type: ignore[arg-type]
        if self.scheme == "http":  # with TLS, what waits below may be of the handshake
            transport.set_write_buffer_limits(0)  # so that we are told of every answer that waits
        if len(self.connections) > self._service.max_connections:
            self._refuse(503, "busy", "there are too many connections")
        else:
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_unread()
        super().connection_lost(exc)

    # -- reading --

    def data_received(self, data: bytes) -> None:
        self._piece = len(data)
        if self._deadline is not None:
            self._header_bytes += self._piece
        super().data_received(data)
        if self._deadline is not None and self._header_bytes > _MAX_HEADERS:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        most = (
            self._header_bytes + self._piece
        )  # or fewer: a piece may hold a body, or another request
        if most > _MAX_HEADERS and self._size_of_headers() > _MAX_HEADERS:
            self._refuse_headers()
            raise _Refused
        self._cancel_deadline()
        super().on_headers_complete()

    def _size_of_headers(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _start_deadline(self) -> None:
        self._header_bytes = 0
        self._deadline = self.loop.call_later(self._service.settings.timeout, self._on_deadline)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        seconds = self._service.settings.timeout
        self._refuse(408, "too_slow", f"the headers did not arrive within {seconds:g} s")

    # -- writing --

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not take the answer as fast as we write it: it has `timeout` seconds for all of it."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._service.settings.timeout, self._on_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is None or self.cycle.response_complete:
            self._cancel_unread()

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _on_unread(self) -> None:
        self._service.shared.increment("dropped_connections")
        self.transport.abort()

    # -- refusing --

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_http", msg)

    def _refuse_headers(self) -> None:
        message = f"the headers are larger than {_MAX_HEADERS} bytes"
        self._refuse(431, "headers_too_large", message)

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error before the application is reached, and close the connection."""
        self._cancel_deadline()
        if self.transport.is_closing():
            return
        self._service.shared.increment("dropped_connections")
        body = ApiError(status, code, message).body()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Stops in steps: report it, serve on for a while, accept no new connections, finish the requests in progress."""

    def __init__(self, config: uvicorn.Config, ready: Path, stopping: threading.Event) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        service: App = self.config.loaded_app
        if self.started and service.holder.current is not None:
            self._ready.write_text(service.holder.current.version)
        self.should_exit |= (
            self._stopping.is_set()
        )  # a signal that came before uvicorn listened to them

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service: App = self.config.loaded_app
        service.drain()
        await asyncio.sleep(service.settings.drain)
        for sock in sockets or []:
            _stop_accepting(sock)
        await asyncio.sleep(_ACCEPT_GRACE_S)
        for server in self.servers:
            server.close()
        end = time.monotonic() + service.settings.drain
        while self._has_unanswered() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _has_unanswered(self) -> bool:
        """Is there a connection that has not had an answer yet?"""
        connections: set[Any] = self.server_state.connections
        return any(one.cycle is None or not one.cycle.response_complete for one in connections)


def _stop_accepting(listener: socket.socket) -> None:
    """Make the system refuse new connections, while those already made can still be accepted.

    Closing the socket would cut off clients that are connected but not yet accepted. On Linux, a filter that drops every packet
    keeps new clients out.
    """
    if listener.family == socket.AF_UNIX:  # other workers listen on the same one
        return
    with suppress(OSError):
        listener.listen(0)
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        if sys.platform == "linux":
            program = struct.pack("HP", 1, ctypes.addressof(drop_all))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


# -- a worker's life -------------------------------------------------------------------------------


def run_worker(settings: Settings, folder: Path, address: Any, worker: int) -> None:
    """Run one worker until it is told to stop. What keeps it from starting is left in the file `error` of `folder`."""
    logs.set_up(settings)
    stopping = threading.Event()
    for (
        number
    ) in _STOP_SIGNALS:  # uvicorn has its own later, and raises them again after it has stopped
        signal.signal(number, lambda *_: stopping.set())
    threading.Thread(target=_end_with_parent, args=(settings, folder), daemon=True).start()
    try:
        app = App(settings, folder, worker)
        app.max_connections = min(settings.connections, _open_files() - _OTHER_FILES)
        if not _load_first_model(app, stopping):
            _end_at_once(folder)
    except TalerecError as error:
        (folder / "error").write_text(str(error))
        sys.exit(2)
    gc.set_threshold(100_000, 50, 1000)  # answers leave no reference cycles behind
    Server(_config(app), folder / f"ready-{worker}", stopping).run([bind(settings, address)])
    if not _has_parent():
        shutil.rmtree(folder, ignore_errors=True)


def _load_first_model(app: App, stopping: threading.Event) -> bool:
    """Load in a thread, so that signals are heard while kernels are compiled; False if one told us to stop."""
    found: list[Exception] = []

    def load() -> None:
        try:
            app.load()
        except Exception as error:
            found.append(error)

    loading = threading.Thread(target=load, name="load", daemon=True)
    loading.start()
    while loading.is_alive():
        if stopping.wait(0.02):
            return False
    if found:
        raise found[0]
    return True


def _end_at_once(folder: Path) -> None:
    """End without waiting for the compiler, which cannot be interrupted and may be in the middle of its work."""
    if not _has_parent():
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.flush()
    os._exit(0)


def _config(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        interface="asgi3",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(app.settings.timeout)),
        ssl_certfile=app.settings.tls_cert,
        ssl_keyfile=app.settings.tls_key,
    )


def _open_files() -> int:
    """How many files this process may have open; as many as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 2**20


def _has_parent() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and parent.is_alive()


def _end_with_parent(settings: Settings, folder: Path) -> None:
    """A worker whose supervisor was killed stops as if it had been told to, and in any case soon."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(settings.timeout + 2 * settings.drain + 5)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
