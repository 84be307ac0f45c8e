"""Running the service: uvicorn with limits of its own, a supervisor of workers, and a stop that drops no request."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talerec import artifact
from talerec.errors import TalerecError
from talerec.serve.app import App
from talerec.serve.errors import ApiError
from talerec.serve.settings import Settings, is_loopback

logger = logging.getLogger("talerec")

_MAX_HEADERS = 32_768  # bytes
_BACKLOG = 2048
_ACCEPT_GRACE_S = 0.1  # seconds in which clients that have just connected are still accepted
_RESTART_DELAY_S = 0.5  # seconds: a worker that cannot run is not restarted in a tight loop
_SO_ATTACH_FILTER = 26  # Linux
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SPAWN = multiprocessing.get_context("spawn")


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


class HttpProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a deadline and a size limit for headers, and a limit of connections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._service: App = self.config.loaded_app
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(SingleWriteTransport(transport))  # type: ignore[arg-type]
        if len(self.connections) > self._service.settings.connections:
            self._refuse(503, "busy", "there are too many connections")
        else:
            self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._deadline is not None and self._header_bytes > _MAX_HEADERS:
            message = f"the headers are larger than {_MAX_HEADERS} bytes"
            self._refuse(431, "headers_too_large", message)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_http", msg)

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service: App = self.config.loaded_app
        service.draining = True
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
    with suppress(OSError):
        listener.listen(0)
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        if sys.platform == "linux":
            program = struct.pack("HP", 1, ctypes.addressof(drop_all))
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `say` is called with the lines that tell where the service listens."""
    facts = artifact.read(settings.path, verify=True).facts
    with tempfile.TemporaryDirectory(prefix="talerec-") as name, _reserve(settings) as reserved:
        folder = Path(name)
        (folder / "verified").write_text(facts["version"])
        host, port = reserved.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        say(f"model {facts['version']} at http://{address}:{port}/ ({settings.workers} workers)")
        if not is_loopback(settings.host) and settings.token is None:
            say("there is no token: everybody who can reach this machine can use the service")
        if settings.workers == 1:
            run_worker(settings, folder, port, 0)
        else:
            _supervise(settings, folder, port)


def _reserve(settings: Settings) -> socket.socket:
    """Hold the address. This socket does not listen: each worker has its own, once it has loaded the model."""
    try:
        with _bind(settings.host, settings.port, shared=False):
            pass  # fails if another program already shares this port: it would get some of the requests
        return _bind(settings.host, settings.port, shared=True)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise TalerecError(f"cannot listen on {where}: {error.strerror or error}") from None


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket at this address; if it is shared, the system spreads connections over all that listen."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def run_worker(settings: Settings, folder: Path, port: int, worker: int) -> None:
    """Run one worker until it is told to stop."""
    line_format = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=line_format)
    logger.setLevel(logging.INFO)
    for number in _STOP_SIGNALS:  # uvicorn raises them again after it has stopped
        signal.signal(number, lambda *_: None)
    gc.set_threshold(100_000, 50, 1000)  # answers leave no reference cycles behind
    config = uvicorn.Config(
        App(settings, folder, worker),
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
        timeout_graceful_shutdown=max(1, round(settings.timeout)),
    )
    Server(config).run([_bind(settings.host, port, shared=True)])


def _supervise(settings: Settings, folder: Path, port: int) -> None:
    """Keep all workers alive until a signal to stop, then stop them."""
    signals: list[int] = []
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda received, _: signals.append(received))
    start = partial(_start_worker, settings, folder, port)
    workers = [start(n) for n in range(settings.workers)]
    while not signals:
        wait([worker.sentinel for worker in workers], timeout=0.2)
        ended = [n for n, worker in enumerate(workers) if not worker.is_alive()]
        if ended and not signals:
            _restart(workers, ended[0], start)
    _stop_workers(workers, settings.timeout + 2 * settings.drain + 5)


def _start_worker(settings: Settings, folder: Path, port: int, worker: int) -> BaseProcess:
    started = _SPAWN.Process(target=run_worker, args=(settings, folder, port, worker), daemon=True)
    started.start()
    return started


def _restart(workers: list[BaseProcess], n: int, start: Callable[[int], BaseProcess]) -> None:
    logger.warning("worker %d ended with exit code %s: restarting it", n, workers[n].exitcode)
    time.sleep(_RESTART_DELAY_S)
    workers[n] = start(n)


def _stop_workers(workers: list[BaseProcess], seconds: float) -> None:
    """Tell all workers to stop, and end those that still run after so many seconds."""
    for worker in workers:
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.1, end - time.monotonic()))
        if worker.is_alive():
            worker.kill()
