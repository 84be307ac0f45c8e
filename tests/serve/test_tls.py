"""HTTPS: its certificate, and clients that connect and do not shake hands."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import START, read_answer
from talerec.serve import Settings
from waiting import LONG_S, until

LIVE = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return cert, key


class Https:
    """`talerec serve` with TLS, in its own processes."""

    def __init__(self, process: subprocess.Popen[str], port: int, cert: Path) -> None:
        self.process, self.port = process, port
        self.context = ssl.create_default_context(cafile=str(cert))

    def ask(self, path: str) -> bytes:
        url = f"https://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=LONG_S, context=self.context) as answer:
            return answer.read()

    def metric(self, name: str) -> float:
        lines = self.ask("/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LONG_S)

    def shake_hands(self) -> ssl.SSLSocket:
        return self.context.wrap_socket(self.connect(), server_hostname="127.0.0.1")


@contextmanager
def serve_https(saved: Path, pair: tuple[Path, Path], *options: str) -> Iterator[Https]:
    cert, key = pair
    arguments = [str(saved), "--port", "0", "--tls-cert", str(cert), "--tls-key", str(key)]
    command = [sys.executable, "-c", START, "serve", *arguments, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split(" at ")[1].split()[0]
            assert address.startswith("https://127.0.0.1:")
            yield Https(process, int(address.rstrip("/").rsplit(":", 1)[1]), cert)
        finally:
            process.terminate()
            assert process.wait(LONG_S) == 0


def test_it_serves_https(saved, pair):
    with serve_https(saved, pair) as service:
        assert json.loads(service.ask("/v1/model"))["name"] == "tale"
        with service.shake_hands() as client:
            for _ in range(3):
                client.sendall(LIVE * 2)
                assert read_answer(client).status == 200


def test_a_certificate_and_its_key_are_checked_at_the_start(saved, pair):
    cert, key = pair
    arguments = [str(saved), "--tls-cert", str(key), "--tls-key", str(key)]
    ran = subprocess.run(
        [sys.executable, "-c", START, "serve", *arguments],
        capture_output=True, text=True, timeout=LONG_S,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "not a certificate and its key" in ran.stderr
    with pytest.raises(TalerecError, match="go together"):
        Settings(path=saved, tls_cert=cert)


def is_closed(client: socket.socket) -> bool:
    client.settimeout(LONG_S)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"])
def test_a_client_without_a_handshake_is_disconnected_in_time(saved, pair, first):
    """Not after the minute that the event loop waits by default."""
    with serve_https(saved, pair, "--timeout", "1") as service:
        with service.connect() as client:
            client.sendall(first)
            with suppress(OSError):
                client.settimeout(40)
                while client.recv(100):
                    pass
        until(lambda: service.metric("talerec_dropped_connections_total") >= 1)
        assert json.loads(service.ask("/v1/model"))["name"] == "tale"


def test_connections_without_a_handshake_count_towards_the_limit(saved, pair):
    """Of 30 silent clients, those beyond the limit are disconnected at once; others wait."""
    with serve_https_limited(saved, pair, 20) as service, ExitStack() as stack:
        silent = [stack.enter_context(service.connect()) for _ in range(30)]
        until(lambda: count_closed(silent) == 10)
        for client in silent:
            client.close()
        until(lambda: answers(service.ask))
        assert service.metric("talerec_dropped_connections_total") >= 10


def count_closed(clients: list[socket.socket]) -> int:
    closed = 0
    for client in clients:
        client.setblocking(False)
        try:
            closed += client.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            pass
        except ConnectionError:
            closed += 1
    return closed


def answers(ask: Callable[[str], Any]) -> bool:
    with suppress(OSError):
        return bool(ask("/health/live"))
    return False


@contextmanager
def serve_https_limited(saved: Path, pair: tuple[Path, Path], limit: int) -> Iterator[Https]:
    """A service in this process, which accepts so many connections per worker."""
    import asyncio

    from service import Local
    from talerec.serve.process.draining_server import DrainingServer
    from talerec.serve.process.http_protocol import ConnectionLimits
    from talerec.serve.process.sockets import load_tls

    cert, key = pair
    local = Local(saved, saved.parent / "run-tls", tls_cert=cert, tls_key=key)
    limits = ConnectionLimits(
        limit, 60.0, lambda: local.app.shared.increment("dropped_connections")
    )
    started, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def on_started() -> bool:
        started.set()
        return False

    context = load_tls(local.app.settings)
    server = DrainingServer(local.app, limits, context, on_started, local.app.drain, 0.0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        assert started.wait(LONG_S)
        yield Https(None, listener.getsockname()[1], cert)  # type: ignore[arg-type]
    finally:
        server.should_exit = True
        thread.join(LONG_S)
