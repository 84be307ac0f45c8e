"""Running the service: uvicorn with limits of its own, a supervisor of workers, and an end that drops nobody."""

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
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from talerec import artifact
from talerec.errors import TalerecError
from talerec.serve.app import App
from talerec.serve.errors import Refusal
from talerec.serve.settings import Settings, is_loopback

logger = logging.getLogger("talerec")

_HEADERS = 32_768  # bytes
_BACKLOG = 2048
_LAST_CALL = 0.1  # seconds for those who have just connected
_ATTACH_FILTER = 26  # Linux
_SPAWN = multiprocessing.get_context("spawn")


class Whole:
    """A transport that sends the head of an answer together with its body: one call, one wake-up of who waits."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._held = transport, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        head = data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100")
        if head and not self._held and data.endswith(b"\r\n\r\n"):
            self._held = data
        else:
            whole, self._held = self._held + data, b""
            self._transport.write(whole)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._held:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that does not wait for ever: headers have to come in time, and within a size."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._service: App = self.config.loaded_app
        self._deadline: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Whole(transport))  # type: ignore[arg-type]
        if len(self.connections) > self._service.settings.connections:
            self._refuse(503, "busy", "too many connections")
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is not None:
            self._unread += len(data)
        super().data_received(data)
        if self._deadline is not None and self._unread > _HEADERS:
            self._refuse(431, "headers_too_large", f"headers have at most {_HEADERS} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._wait()

    def on_headers_complete(self) -> None:
        self._come()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "malformed_http", msg)

    def _wait(self) -> None:
        self._unread = 0
        self._deadline = self.loop.call_later(self._service.settings.timeout, self._late)

    def _come(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._refuse(408, "too_slow", "the headers did not come in time")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say what is wrong where no application can, and hang up."""
        self._come()
        if self.transport.is_closing():
            return
        self._service.board.add("dropped_connections")
        body = Refusal(status, code, message).body()
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Stops in steps: says so, goes on serving for a while, lets nobody else in, finishes what is under way."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        service: App = self.config.loaded_app
        service.draining = True
        await asyncio.sleep(service.settings.drain)
        for sock in sockets or []:
            _let_nobody_in(sock)
        await asyncio.sleep(_LAST_CALL)
        for server in self.servers:
            server.close()
        end = time.monotonic() + service.settings.drain
        while self._unanswered() and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _unanswered(self) -> bool:
        """Is somebody connected who has not had an answer yet?"""
        found: set[Any] = self.server_state.connections
        return any(one.cycle is None or not one.cycle.response_complete for one in found)


def _let_nobody_in(listener: socket.socket) -> None:
    """From now on the system connects nobody, while those who are connected can still be accepted.

    Closing at once would cut off whoever is in between. On Linux, a filter that takes no packet at all.
    """
    with suppress(OSError):
        listener.listen(0)
        nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        if sys.platform == "linux":
            program = struct.pack("HP", 1, ctypes.addressof(nothing))
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def run(settings: Settings, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT."""
    facts = artifact.read(settings.path, verify=True).facts
    with tempfile.TemporaryDirectory(prefix="talerec-") as name, _reserve(settings) as held:
        folder = Path(name)
        (folder / "verified").write_text(facts["version"])
        host, port = held.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        tell(f"model {facts['version']} at http://{place}:{port}/ ({settings.workers} workers)")
        if not is_loopback(settings.host) and settings.token is None:
            tell("anybody who reaches this machine may ask: there is no token")
        if settings.workers == 1:
            work(settings, folder, port, 0)
        else:
            _supervise(settings, folder, port)


def _reserve(settings: Settings) -> socket.socket:
    """Hold the address. Nobody listens on this socket: each worker has one of its own, once it has a model."""
    try:
        with _bound(settings.host, settings.port, shared=False):
            pass  # a port that somebody else shares would be shared with them, and silently
        return _bound(settings.host, settings.port, shared=True)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise TalerecError(f"cannot listen on {where}: {error.strerror or error}") from None


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    """A socket at this address; where it is shared, the system spreads connections over those who listen."""
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


def work(settings: Settings, folder: Path, port: int, line: int) -> None:
    """One worker, until it is told to stop."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form)
    logger.setLevel(logging.INFO)
    for one in (signal.SIGTERM, signal.SIGINT):  # once it has stopped, uvicorn raises them again
        signal.signal(one, lambda *_: None)
    gc.set_threshold(100_000, 50, 1000)  # answers leave no cycles behind
    app = App(settings, folder, line)
    config = uvicorn.Config(
        app,
        http=Protocol,
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
    Server(config).run([_bound(settings.host, port, shared=True)])


def _supervise(settings: Settings, folder: Path, port: int) -> None:
    """Keep so many workers alive; pass the word when it is time to stop."""
    stopping: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, _: stopping.append(number))
    workers = {line: _start(settings, folder, port, line) for line in range(settings.workers)}
    while not stopping:
        wait([worker.sentinel for worker in workers.values()], timeout=0.2)
        for line, worker in workers.items():
            if not worker.is_alive() and not stopping:
                logger.warning(
                    "worker %d ended (%s); another takes its place", line, worker.exitcode
                )
                time.sleep(0.5)  # one that cannot live is not started a thousand times a second
                workers[line] = _start(settings, folder, port, line)
    for worker in workers.values():
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, signal.SIGTERM)
    end = time.monotonic() + settings.timeout + 2 * settings.drain + 5
    for worker in workers.values():
        worker.join(max(0.1, end - time.monotonic()))
        if worker.is_alive():
            worker.kill()


def _start(
    settings: Settings, folder: Path, port: int, line: int
) -> multiprocessing.process.BaseProcess:
    worker = _SPAWN.Process(target=work, args=(settings, folder, port, line), daemon=True)
    worker.start()
    return worker
