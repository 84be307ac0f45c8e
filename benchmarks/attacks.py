"""Attacks that could stop, block or fill a service.

Each attack goes against a fresh `talerec serve` on this machine.

    python benchmarks/attacks.py                       # this checkout
    python benchmarks/attacks.py --other CHECKOUT      # and another one (before), in a table
    python benchmarks/attacks.py --only unread,cp      # some of them

Every attack is bounded in time and size and reports the state of the service in a few words; the
exit code is 1 if an attack harms this checkout. Attacks on HTTP itself (slow headers, bodies
of any length, malformed requests) are tests: `tests/serve/test_service.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import talerec as tr
from talerec.artifact import Bundle, read_artifact, write_artifact

START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"
TOKEN = "only-for-these-attacks"
HEAD = (
    "host: 127.0.0.1\r\nauthorization: Bearer " + TOKEN + "\r\ncontent-type: application/json\r\n"
)
PATIENCE = 25.0  # seconds after which something is said never to happen
CLIENTS = 40  # who do not read
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

    def __init__(self, checkout: Path, path: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-c", START, "serve", str(path), "--port", "0", *options]
        variables = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TALEREC_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            command,
            env=variables | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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


# -- models ----------------------------------------------------------------------------------------


def copied_file_by_file(shop: Shop) -> Outcome:
    service = shop.ready()
    for file in sorted(shop.new.iterdir(), key=lambda file: file.name != "manifest.json"):
        shutil.copyfile(file, shop.path / file.name)
        time.sleep(0.7)
    return in_use(service, version(shop.new))


def copied_over_the_live_one(shop: Shop) -> Outcome:
    """Copy over the live files, each truncated first, as `cp` does."""
    service = shop.ready()
    for file in shop.path.iterdir():
        file.open("r+b").truncate(0)
    answers = [service.recommend() for _ in range(5)]
    if service.process.poll() is not None or not all(answers):
        return Outcome(True, f"the service ends ({service.process.poll()})")
    return Outcome(False, "serves on")


def cannot_answer(shop: Shop) -> Outcome:
    """Serve a tempo model without an array: it loads, and fails at its first request."""
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    bundle = read_artifact(tr.Tempo().fit(log).save(shop.path.with_name("t.tale")))
    del bundle.arrays["aside_decay"]
    shop.path = write_artifact(shop.path.with_name("bad.tale"), bundle)
    service = shop.serve()
    seconds = within(lambda: service.process.poll() is not None)
    if seconds:
        return Outcome(service.process.returncode != 2, f"ends with {service.process.returncode}")
    service.process.terminate()
    heard = within(lambda: service.process.poll() is not None, 5)
    return Outcome(True, "never listens" + ("" if heard else ", does not hear SIGTERM"))


def leads_outside(shop: Shop) -> Outcome:
    """The served model is replaced by one with valid hashes and indices out of range."""
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    shop.path = tr.TALE(solver="local").fit(log).save(
        shop.path.with_name("local.tale")
    )  # fmt: skip
    service = shop.ready("--workers", "2")
    shop.tamper("indices", slice(None), 2**30)
    time.sleep(4)
    answers = [service.recommend() for _ in range(10)]
    gone = answers.count({})
    return Outcome(
        bool(gone), "refused, serves on" if not gone else f"{gone} of 10 requests fail: workers die"
    )


def long_title(shop: Shop) -> Outcome:
    log = tr.synthetic_log(3000, users=300, items=150, seed=3)
    named = log.info.with_columns(
        title=pl.when(pl.int_range(pl.len()) == 2).then(pl.lit("x" * 10_000_000)).otherwise("title")
    )
    shop.path = tr.TALE().fit(log.with_items(named)).save(shop.path.with_name("long.tale"))
    _, body = shop.ready().ask("GET", "/v1/items?q=3")
    return Outcome(len(body) > 10**6, f"an answer of {len(body):,} bytes")


def parquet_bomb(shop: Shop) -> Outcome:
    """Serve an item table of a few kilobytes that unpacks to 800 MB."""
    bundle = read_artifact(shop.path)
    titles = pl.Series("title", [str(n % 10) * 5_400_000 for n in range(150)]).cast(pl.String)
    table = bundle.tables["items"].with_columns(titles)
    service = shop.ready()
    before = service.memory()
    write_artifact(
        shop.path, Bundle(bundle.facts, dict(bundle.arrays), {**bundle.tables, "items": table})
    )
    most = 0.0
    for _ in range(40):
        most = max(most, service.memory() - before)
        time.sleep(0.1)
    return Outcome(most > 200, f"memory grows by {most:,.0f} MB")


# -- clients ---------------------------------------------------------------------------------------


def clients_that_do_not_read(shop: Shop) -> Outcome:
    """Clients request the largest allowed batch and read nothing."""
    log = tr.synthetic_log(30_000, items=1500, seed=3)
    shop.path = tr.TALE(solver="exact").fit(log).save(shop.path.with_name("large.tale"))
    service = shop.ready("--timeout", str(TIMEOUT))
    card = json.loads(service.ask("GET", "/v1/model")[1])["limits"]
    requests = min(card["max_batch"], card.get("max_items", 10**9) // 1000)
    body = json.dumps(
        {"requests": [{"history": [{"item_id": 3}], "k": 1000}] * int(requests)}
    ).encode()
    service.ask("POST", "/v1/recommend:batch", json.loads(body))
    before = service.memory()
    clients = [service.send("POST", "/v1/recommend:batch", body) for _ in range(CLIENTS)]
    most, start = 0.0, time.monotonic()
    while time.monotonic() < start + 3 * TIMEOUT:
        most = max(most, service.memory() - before)
        time.sleep(0.1)
    left = service.memory() - before
    for client in clients:
        client.close()
    fine = most < 200 and left < 60 and bool(service.recommend())
    return Outcome(
        not fine, f"memory grows by {most:,.0f} MB, {left:,.0f} MB after {3 * TIMEOUT} s"
    )


def two_reloads(shop: Shop) -> Outcome:
    """Reload requests wait for a worker that is stopped and cannot follow."""
    service = shop.ready("--workers", "2", "--timeout", "20")
    time.sleep(2)  # until both are ready
    stopped, *_ = service.workers()[-1:]
    os.kill(stopped, signal.SIGSTOP)
    try:
        shutil.rmtree(shop.path)
        shutil.copytree(shop.new, shop.path)
        free = [
            client
            for client in (service.send("GET", "/health/live", keep=True) for _ in range(24))
            if has_answer(client, 0.1)
        ]
        for client in free[:3]:
            client.sendall(request("POST", "/v1/reload", keep=True))
        time.sleep(1.5)
        for client in free[3:7]:
            client.sendall(request("POST", "/v1/similar", b'{"item_id": 3}', keep=True))
        good = sum(has_answer(client, 2) for client in free[3:7])
    finally:
        os.kill(stopped, signal.SIGCONT)
    return Outcome(
        good < 4, f"{good} of 4 requests for similar items to the other worker are answered"
    )


def large_headers(shop: Shop) -> Outcome:
    service = shop.ready()
    with socket.create_connection(("127.0.0.1", service.port), 20) as client:
        client.sendall(
            b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 60_000 + b"\r\n\r\n"
        )
        status = int(client.recv(1000).split()[1])
    return Outcome(status != 431, f"60 kB of headers in one piece: {status}")


def long_echo(shop: Shop) -> Outcome:
    status, body = shop.ready().ask("POST", "/v1/similar", {"item_id": "x" * 900_000})
    return Outcome(len(body) > 2000, f"{status} with {len(body):,} bytes")


# -- processes -------------------------------------------------------------------------------------


def killed_parent(shop: Shop) -> Outcome:
    service = shop.ready("--workers", "2")
    pids = service.workers()
    service.process.kill()
    seconds = within(lambda: not any(map(is_running, pids)), 15)
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return Outcome(
        not seconds, f"workers end after {seconds:.1f} s" if seconds else "workers serve on"
    )


def signal_while_compiling(shop: Shop) -> Outcome:
    """SIGTERM arrives during the first start, which compiles kernels for half a minute."""
    service = shop.serve(NUMBA_CACHE_DIR=str(shop.folder / "kernels"))
    time.sleep(6)
    service.process.terminate()
    seconds = within(lambda: service.process.poll() is not None, 60)
    slow = seconds > 5 or not seconds
    return Outcome(
        slow, f"ends {seconds:.1f} s after SIGTERM" if seconds else "does not end in 60 s"
    )


ATTACKS: dict[str, tuple[str, Callable[[Shop], Outcome]]] = {
    "files": ("a model copied file by file, manifest first", copied_file_by_file),
    "cp": ("the live files cut short, as `cp` does", copied_over_the_live_one),
    "start": ("a model that loads and cannot answer, at the start", cannot_answer),
    "unread": (
        f"{CLIENTS} clients request the largest batch and read nothing",
        clients_that_do_not_read,
    ),
    "outside": ("hashes right, indices outside", leads_outside),
    "title": ("a title of 10 MB", long_title),
    "bomb": ("an item table that unpacks to 800 MB", parquet_bomb),
    "parent": ("the parent is killed", killed_parent),
    "reloads": ("three reloads wait for a worker that hangs", two_reloads),
    "compile": ("SIGTERM while kernels are compiled", signal_while_compiling),
    "headers": ("headers above the limit in one piece", large_headers),
    "echo": ("an id of 900 kB", long_echo),
}  # fmt: skip


def attack(checkout: Path, name: str, models: list[Path]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        shop = Shop(checkout.resolve(), Path(folder), models)
        try:
            return ATTACKS[name][1](shop)
        except Exception as error:
            return Outcome(True, f"{type(error).__name__}: {error}")
        finally:
            for service in shop.running:
                service.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="a checkout to attack too")
    parser.add_argument("--only", default=",".join(ATTACKS), help="names of attacks, with commas")
    args = parser.parse_args()
    checkouts = (
        [args.other, Path(__file__).parents[1]] if args.other else [Path(__file__).parents[1]]
    )
    print(
        "| attack |"
        + " before |" * (len(checkouts) - 1)
        + " after |\n|"
        + "---|" * (1 + len(checkouts))
    )
    hurt = False
    with tempfile.TemporaryDirectory() as folder:
        log = tr.synthetic_log(3000, users=300, items=150, seed=3)
        models = [tr.TALE(reg=reg).fit(log).save(Path(folder) / f"{reg}.tale") for reg in (20, 500)]
        for name in args.only.split(","):
            outcomes = [attack(checkout, name, models) for checkout in checkouts]
            hurt |= outcomes[-1].hurt
            print(
                f"| {ATTACKS[name][0]} | "
                + " | ".join(outcome.what for outcome in outcomes)
                + " |",
                flush=True,
            )
    sys.exit(int(hurt))


if __name__ == "__main__":
    main()
