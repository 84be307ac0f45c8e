"""A service under attack: `talerec serve` of a checkout, and what an attack reports of it.

`attacks.py` runs the attacks; each `attacks_*.py` beside it holds some, in a dict ATTACKS of
name to (one line that describes it, function of a Shop that returns an Outcome).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from talerec.artifact import Bundle, read_artifact, write_artifact

START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"
TOKEN = "only-for-these-attacks"
HEAD = (
    "host: 127.0.0.1\r\nauthorization: Bearer " + TOKEN + "\r\ncontent-type: application/json\r\n"
)
PATIENCE = 25.0  # seconds after which something is said never to happen
TIMEOUT = 5  # seconds that the service gives its clients


class Outcome(NamedTuple):
    hurt: bool
    what: str


def request(method: str, path: str, body: bytes = b"", *, keep: bool = False) -> bytes:
    close = "" if keep else "connection: close\r\n"
    return (
        f"{method} {path} HTTP/1.1\r\n{HEAD}{close}content-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def has_answer(client: socket.socket, seconds: float = 1.0) -> bool:
    """Return whether the connection receives a successful response."""
    client.settimeout(seconds)
    try:
        return client.recv(2**16).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


class Service:
    """`talerec serve` of a checkout, in its own processes."""

    def __init__(
        self, checkout: Path, path: Path, *options: str, errors: Any = None, **environment: str
    ) -> None:
        """Start it; `errors` is an open file for its log (None: the log is dropped)."""
        command = [sys.executable, "-c", START, "serve", str(path), "--port", "0", *options]
        variables = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TALEREC_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            command,
            env=variables | environment,
            stdout=subprocess.PIPE,
            stderr=errors or subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self.port = 0

    def wait(self) -> Service:
        """Wait until the service responds."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.port = int(said.split("://127.0.0.1:")[1].split("/")[0])
        if not within(lambda: self.ask("GET", "/health/ready")[0] == 200, 120):
            raise TimeoutError("the service did not become ready")
        return self

    def send(
        self, method: str, path: str, body: bytes = b"", *, keep: bool = False
    ) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), 20)
        client.sendall(request(method, path, body, keep=keep))
        return client

    def ask(
        self, method: str, path: str, body: Any = None, seconds: float = 20
    ) -> tuple[int, bytes]:
        """Return status and body of a response; (0, b"") without a response."""
        with suppress(OSError, IndexError, ValueError):
            with self.send(
                method, path, b"" if body is None else json.dumps(body).encode()
            ) as client:
                client.settimeout(seconds)
                got = b""
                while part := client.recv(2**20):
                    got += part
            head, _, content = got.partition(b"\r\n\r\n")
            return int(head.split()[1]), content
        return 0, b""

    def recommend(self) -> dict[str, Any]:
        status, body = self.ask("POST", "/v1/recommend", {"history": [{"item_id": 3}], "k": 5})
        return json.loads(body) if status == 200 else {}

    def memory(self) -> float:
        """Return the resident megabytes of all its processes."""
        return sum(resident(pid) for pid in (self.process.pid, *self.workers()))

    def workers(self) -> list[int]:
        with suppress(OSError):
            path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            return [pid for pid in map(int, path.read_text().split()) if is_worker(pid)]
        return []

    def end(self) -> None:
        for pid in self.workers():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)


def resident(pid: int) -> float:
    with suppress(OSError):
        return (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 1e6
        )
    return 0.0


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def is_worker(pid: int) -> bool:
    with suppress(OSError):
        return is_running(pid) and b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def within(fact: Callable[[], Any], seconds: float = PATIENCE) -> float:
    """Return the seconds until a condition holds; 0.0 if it does not in time."""
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        if fact():
            return max(time.monotonic() - start, 0.01)
        time.sleep(0.05)
    return 0.0


class Shop:
    """A checkout under attack, and a folder with the served model and its replacement."""

    def __init__(self, checkout: Path, folder: Path, models: list[Path]) -> None:
        self.checkout, self.folder, self.new = checkout, folder, models[1]
        self.path = shutil.copytree(models[0], folder / "shop.tale")
        self.running: list[Service] = []

    def serve(self, *options: str, **environment: str) -> Service:
        self.running.append(Service(self.checkout, self.path, *options, **environment))
        return self.running[-1]

    def ready(self, *options: str) -> Service:
        return self.serve("--watch", "0.5", *options).wait()

    def tamper(self, name: str, place: Any, value: Any) -> None:
        """Write a model with valid hashes and invalid content."""
        bundle = read_artifact(self.path)
        arrays = {key: np.array(array) for key, array in bundle.arrays.items()}
        arrays[name][place] = value
        write_artifact(self.path, Bundle(bundle.facts, arrays, dict(bundle.tables)))


def version(path: Path) -> str:
    return str(json.loads((path / "manifest.json").read_text())["version"])


def in_use(service: Service, version: str) -> Outcome:
    """Report whether the service switches to this version and stays up."""
    seconds = within(lambda: service.recommend().get("model") == version, 15)
    if service.process.poll() is not None:
        return Outcome(True, f"the service ends ({service.process.returncode})")
    return Outcome(not seconds, f"served after {seconds:.1f} s" if seconds else "never served")


#: What an attack is, in one line, and the attack.
Attack = tuple[str, Callable[[Shop], Outcome]]
