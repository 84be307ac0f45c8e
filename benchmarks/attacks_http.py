"""Attacks on HTTP, TLS, the processes and the log: what a client or an operator can send or do."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from attacked import HEAD, START, TIMEOUT, TOKEN, Attack, Outcome, Service, Shop, within

FLOOD_S = 8.0  # seconds of a flood
FLOOD_BYTES = 400_000_000  # of all connections together
SILENT = 30  # clients who shake no hands
FORGED = "2026-01-01 00:00:00,000 ERROR the model is gone"
HANG_S = 60.0  # seconds in which a hung worker should be replaced


class LoggedService(Service):
    """`talerec serve` of a checkout whose log goes to a file, and with a limit of open files."""

    def __init__(self, shop: Shop, *options: str, files: int | None = None) -> None:
        program = "" if files is None else f"ulimit -n {files}; "
        command = ["sh", "-c", f'{program}exec "$@"', "sh", sys.executable, "-c", START, "serve"]
        command += [str(shop.path), "--port", "0", *options]
        source = str(shop.checkout / "src")
        self.log, self.said = shop.folder / "log", shop.folder / "said"
        with self.log.open("w") as errors, self.said.open("w") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": source, "TALEREC_TOKEN": TOKEN},
                stdout=output,
                stderr=errors,
            )
        self.port = 0
        shop.running.append(self)

    def wait(self) -> LoggedService:
        """Wait until the service says its port."""
        if not within(lambda: "://127.0.0.1:" in self.said.read_text(), 120):
            raise TimeoutError(f"the service does not start: {self.log.read_text()[-200:]}")
        self.port = int(self.said.read_text().split("://127.0.0.1:")[1].split("/")[0])
        return self

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 5)


def processor_seconds(service: Service) -> float:
    """Return user and system seconds of the workers so far."""
    seconds = 0.0
    for pid in service.workers():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def flood(service: Service, first: bytes, more: bytes, n_clients: int) -> Outcome:
    """Send `first` and then `more` again and again; report memory and processor time."""
    time.sleep(1)
    clients = [socket.create_connection(("127.0.0.1", service.port), 5) for _ in range(n_clients)]
    memory, processor = service.memory(), processor_seconds(service)
    most, sent, end = 0.0, 0, time.monotonic() + FLOOD_S
    for client in clients:
        client.sendall(first)
        client.settimeout(0.5)
    open_clients = set(clients)
    while open_clients and time.monotonic() < end and sent < FLOOD_BYTES:
        for client in list(open_clients):
            try:
                sent += client.send(more)
            except TimeoutError:
                continue
            except OSError:
                open_clients.discard(client)
        most = max(most, service.memory() - memory)
    spent = processor_seconds(service) - processor
    left = len(open_clients)
    for client in clients:
        client.close()
    text = f"{left} of {n_clients} clients still send after {FLOOD_S:.0f} s"
    text = "all clients are disconnected" if not left else text
    what = f"{text}; memory grows by {most:,.0f} MB, {spent:.1f} s of processor time"
    return Outcome(bool(left) or most > 50 or not service.recommend(), what)


def trailers(shop: Shop) -> Outcome:
    """Trailers without end, by clients without a token."""
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    service = shop.ready("--timeout", str(TIMEOUT))
    return flood(service, head + b"0\r\nx: y", b"x: y\r\n" * 9000, 4)


def blank_lines(shop: Shop) -> Outcome:
    """Blank lines without end after a first request."""
    service = shop.ready("--timeout", str(TIMEOUT))
    head = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    return flood(service, head, b"\r\n" * 100, 4)


def merged_trailer(shop: Shop) -> Outcome:
    """A trailer that repeats a header of the request."""
    service = shop.ready()
    body = b'{"history": [], "k": 1}'
    start = f"POST /v1/recommend HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n".encode()
    last = b"%x\r\n%b\r\n0\r\nauthorization: Bearer other\r\n\r\n" % (len(body), body)
    status = status_of(service, start + last)
    return Outcome(status != 400, f"a trailer `authorization`: {status}")


def status_of(service: Service, raw: bytes) -> int:
    with socket.create_connection(("127.0.0.1", service.port), 10) as client:
        client.sendall(raw)
        with suppress(OSError, IndexError):
            return int(client.recv(1000).split()[1])
    return 0


def unread_body(shop: Shop) -> Outcome:
    """Errors that are sent before the body has arrived; the client then sends on, slowly."""
    service = shop.ready("--timeout", str(TIMEOUT))
    head = b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), 10) as client:
        client.sendall(head)
        start = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < start + 15:
                client.sendall(b"x")
                time.sleep(0.2)
        seconds = time.monotonic() - start
    closed = seconds < 14
    return Outcome(not closed, f"closed after {seconds:.1f} s" if closed else "open after 15 s")


def hosts(shop: Shop) -> Outcome:
    """Requests that name their host twice, or not at all."""
    service = shop.ready()
    one, other = "host: 127.0.0.1\r\n", "host: evil.example\r\n"
    statuses = [
        status_of(service, f"GET /health/live HTTP/1.1\r\n{fields}\r\n".encode())
        for fields in ("", one + one, one + other, other + one)
    ]
    return Outcome(statuses != [400] * 4, f"none, twice, two: {statuses}")


def authorizations(shop: Shop) -> Outcome:
    """Two Authorization headers, of which one is right."""
    service = shop.ready()
    right, wrong = f"authorization: Bearer {TOKEN}\r\n", "authorization: Bearer x\r\n"
    statuses = [
        status_of(service, f"GET /v1/model HTTP/1.1\r\nhost: 127.0.0.1\r\n{both}\r\n".encode())
        for both in (right + wrong, wrong + right)
    ]
    return Outcome(statuses != [400, 400], f"{statuses}")


def forged_log(shop: Shop) -> Outcome:
    """A path with a line feed and a line that looks like one of the log."""
    service = LoggedService(shop, "--log-level", "debug").wait()
    path = "/x%0d%0a" + FORGED.replace(" ", "%20")
    status_of(service, f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    if not within(lambda: FORGED in service.log.read_text(), 10):
        return Outcome(True, "the request is not in the log")
    forged = any(line.startswith(FORGED) for line in service.log.read_text().splitlines())
    return Outcome(forged, "the log has the forged line" if forged else "the line is escaped")


def few_files(shop: Shop) -> Outcome:
    """A limit of 64 open files."""
    service = LoggedService(shop, files=64)
    ready = within(
        lambda: service.process.poll() is not None or "://127" in service.said.read_text(), 60
    )
    if not ready:
        return Outcome(True, "neither starts nor ends in 60 s")
    if (code := service.process.poll()) is not None:
        lines = service.log.read_text().splitlines()
        return Outcome(code != 2 or len(lines) != 1, f"ends with {code}, {len(lines)} line")
    answered = bool(service.wait().recommend())
    return Outcome(not answered, "starts and answers" + ("" if answered else " nothing"))


def silent_tls(shop: Shop) -> Outcome:
    """Clients connect and never begin the TLS handshake."""
    key, cert = shop.folder / "key.pem", shop.folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    options = ["--tls-cert", str(cert), "--tls-key", str(key), "--timeout", str(TIMEOUT)]
    service = LoggedService(shop, *options).wait()
    clients = [service.connect() for _ in range(SILENT)]
    for client in clients:
        client.setblocking(False)
    seconds = within(lambda: all(map(is_closed, clients)))
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    with context.wrap_socket(service.connect()) as client:
        client.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        answered = client.recv(100).startswith(b"HTTP/1.1 200")
    for client in clients:
        client.close()
    text = f"disconnected after {seconds:.1f} s" if seconds else "connected for 25 s"
    return Outcome(not seconds or not answered, text)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def stopped_worker(shop: Shop) -> Outcome:
    """The only worker is stopped, and continues never."""
    service = shop.ready()
    (pid,) = service.workers()
    os.kill(pid, signal.SIGSTOP)
    try:
        seconds = within(lambda: service.ask("GET", "/health/live", seconds=1)[0] == 200, HANG_S)
    finally:
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    text = f"answers again after {seconds:.0f} s" if seconds else f"no answer in {HANG_S:.0f} s"
    return Outcome(not seconds, text)


def public_ids(shop: Shop) -> Outcome:
    """`/openapi.json` without a token."""
    service = shop.ready()
    raw = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    got = b""
    with socket.create_connection(("127.0.0.1", service.port), 10) as client:
        client.sendall(raw)
        while part := client.recv(2**16):
            got += part
    document = json.loads(got.partition(b"\r\n\r\n")[2])
    body = document["paths"]["/v1/recommend"]["post"]["requestBody"]["content"]
    ids = [
        row["item_id"] for row in body["application/json"]["examples"]["one"]["value"]["history"]
    ]
    return Outcome(bool(ids), f"shows {len(ids)} item ids")


ATTACKS: dict[str, Attack] = {
    "trailers": ("trailers without end, without a token", trailers),
    "merged": ("a trailer that repeats a header", merged_trailer),
    "blank": ("blank lines without end after a request", blank_lines),
    "body": ("a client sends on, slowly, after an error", unread_body),
    "hosts": ("no Host header, or two", hosts),
    "authorizations": ("two Authorization headers", authorizations),
    "log": ("a log line in a path", forged_log),
    "ulimit": ("a limit of 64 open files", few_files),
    "tls": (f"{SILENT} clients without a TLS handshake", silent_tls),
    "stopped": ("the only worker is stopped (SIGSTOP)", stopped_worker),
    "ids": ("`/openapi.json` without a token", public_ids),
}
