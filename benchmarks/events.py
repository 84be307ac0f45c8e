"""A service with an event store: durability, speed, freshness, cost of requests by user.

    python benchmarks/events.py kill  --store sqlite   # 200,000 events, 8 clients, 20 times kill -9
    python benchmarks/events.py kill  --store postgresql   # of workers, the parent and the database
    python benchmarks/events.py speed --store sqlite   # events a second, against the bare driver
    python benchmarks/events.py fresh --store sqlite   # 10,000 events: how soon workers know them
    python benchmarks/events.py ask   --store sqlite   # requests by user and by history, and events
    python benchmarks/events.py soak  --seconds 600    # requests, events and --learn: memory

PostgreSQL is started as an unprivileged user in a folder of its own. Servers listen on 127.0.0.1;
only processes that were started here are ended, by their ids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

START = "import sys; from talerec.cli.main import main; sys.argv[0] = 'talerec'; main()"


# -- servers ---------------------------------------------------------------------------------------


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the address of an empty store, and its database server if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/shop.db", None
        return
    from postgres import Postgres

    server = Postgres()
    try:
        yield server.address, server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """`talerec serve` in its own processes; it can be killed and restarted at its port."""

    def __init__(
        self, path: Path, store: str, workers: int = 2, *more: str, source: Path = ROOT / "src"
    ) -> None:
        self.port = free_port()
        self._command = [
            sys.executable, "-c", START, "serve", str(path), "--port", str(self.port),
            "--workers", str(workers), "--ids", "text", *more,
        ]  # fmt: skip
        path_list = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
        self._environment = {**os.environ, "TALEREC_STORE": store, "PYTHONPATH": path_list}
        self.start()

    def start(self) -> None:
        """Start the service; retry while workers of a killed parent hold the port."""
        for _ in range(30):
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert self.process.stdout is not None
            if "model" in self.process.stdout.readline():
                return
            self.process.wait()
            self.process.stdout.close()
            time.sleep(0.5)
        raise RuntimeError("the service does not start")

    def kill(self) -> None:
        """Kill the parent; its workers notice and end too."""
        self.process.send_signal(signal.SIGKILL)
        self._ended()

    def _ended(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def workers(self) -> list[int]:
        """Return the ids of the worker processes."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            n
            for n in map(int, children)
            if b"spawn_main" in Path(f"/proc/{n}/cmdline").read_bytes()
        ]

    def memory(self) -> int:
        """Return the unshared bytes of all its processes."""
        total = 0
        for pid in (self.process.pid, *self.workers()):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(x.split()[1]) for x in lines if x.startswith("Private_")) * 1024
        return total

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._ended()


class Connection:
    """A connection that sends one request at a time."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None
        self.worker = b""

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        raw = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\n\r\n"
        )
        writer.write(head.encode() + raw)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:] if line)
        self.worker = fields[b"x-request-id"].partition(b"-")[0]
        content = await reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            await self.close()
        return int(lines[0].split()[1]), json.loads(content)

    async def close(self) -> None:
        if self._streams is not None:
            streams, self._streams = self._streams, None
            streams[1].close()
            with suppress(OSError):
                await streams[1].wait_closed()


async def stats_of(port: int) -> dict[str, Any]:
    connection = Connection(port)
    _, stats = await connection.ask("GET", "/v1/stats")
    await connection.close()
    return dict(stats)


async def one_per_worker(port: int, workers: int) -> list[Connection]:
    """Return one connection per worker."""
    by_worker: dict[bytes, Connection] = {}
    for _ in range(200):
        connection = Connection(port)
        await connection.ask("GET", "/v1/model")
        if by_worker.setdefault(connection.worker, connection) is not connection:
            await connection.close()
        if len(by_worker) == workers:
            break
    return list(by_worker.values())


def make_model(folder: Path, rows: int, name: str = "tale", **params: Any) -> Path:
    import talerec as tr

    log = tr.synthetic_log(rows, users=max(50, rows // 20), items=max(50, rows // 100), seed=1)
    return tr.MODELS[name](**params).fit(log).save(folder / "shop.tale")


# -- events ----------------------------------------------------------------------------------------


def make_events(count: int, seed: int) -> list[dict[str, Any]]:
    """Return events with ids; events of one user have different times."""
    rng, start = random.Random(seed), 1_700_000_000
    return [
        {
            "user_id": str(10**6 + rng.randrange(5000)),
            "item_id": str(rng.randrange(1, 500)),
            "timestamp": start * 10**6 + n * 1000 + seed,
            "event": rng.choice(["view", "buy"]),
            "event_id": f"{seed}-{n}-{rng.getrandbits(64):016x}",
        }
        for n in range(count)
    ]


async def send_all(
    port: int, events: list[dict[str, Any]], batch: int, seed: int, acknowledged: list[int]
) -> dict[str, int]:
    """Send events in batches, and unacknowledged ones again; `acknowledged` grows."""
    rng, connection = random.Random(seed), Connection(port)
    said = {"accepted": 0, "duplicates": 0, "repeats": 0}
    begin = 0
    while begin < len(events):
        size = rng.randrange(1, 2 * batch)
        some = events[begin : begin + size]
        while True:
            try:
                status, body = await asyncio.wait_for(
                    connection.ask("POST", "/v1/events", {"events": some}), 30
                )
            except (OSError, asyncio.IncompleteReadError, TimeoutError, KeyError):
                status, body = 0, None
                await connection.close()
            if status == 202:
                break
            assert status in (0, 503), (status, body)
            said["repeats"] += 1
            await asyncio.sleep(0.05 + rng.random() / 10)
        said["accepted"] += body["accepted"]
        said["duplicates"] += body["duplicates"]
        begin += size
        acknowledged.append(len(some))
    await connection.close()
    return said


async def killer(
    service: Service, server: Any, kills: int, total: int, acknowledged: list[int]
) -> list[str]:
    """Kill something whenever a random share of all events is acknowledged."""
    rng, killed = random.Random(), []
    for share in sorted(rng.random() for _ in range(kills)):
        while sum(acknowledged) < share * total:
            await asyncio.sleep(0.02)
        what = rng.choice(["worker", "worker", "parent", *(["database"] * 2 if server else [])])
        if what == "worker":
            with suppress(OSError, IndexError):
                os.kill(rng.choice(service.workers()), signal.SIGKILL)
        elif what == "parent":
            service.kill()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(service.start)
        else:
            server.kill()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
        killed.append(what)
    return killed


async def send_from_clients(
    service: Service, server: Any, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    per = args.events // args.clients
    events = [make_events(per, seed) for seed in range(args.clients)]
    acknowledged: list[int] = []
    started = time.perf_counter()
    clients = [
        send_all(service.port, client_events, args.batch, seed, acknowledged)
        for seed, client_events in enumerate(events)
    ]
    kills = killer(service, server, args.kills, per * args.clients, acknowledged)
    *said, killed = await asyncio.gather(*clients, kills)
    seconds = time.perf_counter() - started
    sums = {name: sum(counts[name] for counts in said) for name in said[0]}
    facts = {"events": sum(acknowledged), "seconds": seconds, "rate": sum(acknowledged) / seconds}
    kinds = {what: killed.count(what) for what in sorted(set(killed))}
    return [e for client_events in events for e in client_events], {
        **facts,
        **sums,
        "killed": kinds,
    }


def check_kept(address: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Count acknowledged events that are missing or stored twice, and unordered histories."""
    from talerec.store import Store

    expected = {
        e["event_id"]: (e["user_id"], e["item_id"], e["timestamp"], e["event"]) for e in events
    }
    stored: dict[str, Any] = {}
    twice, seqs, last = 0, [], 0
    with Store.open(address) as store:
        while rows := store.read_after(last, 50_000):
            for row in rows:
                twice += row.event_id in stored
                stored[str(row.event_id)] = (row.user, row.item, row.time, row.event)
                seqs.append(row.seq)
            last = rows[-1].seq
        users = sorted({e["user_id"] for e in events})
        unordered = 0
        for user in users[:: max(1, len(users) // 500)]:
            sent = sorted((e["timestamp"], e["item_id"]) for e in events if e["user_id"] == user)
            history = [(row.time, row.item) for row in store.read_user(user, 10**6)]
            unordered += history != sent
    missing = sum(stored.get(name) != contents for name, contents in expected.items())
    gaps = seqs != sorted(set(seqs))
    return {
        "kept": len(stored),
        "missing": missing,
        "twice": twice,
        "unknown": len(stored.keys() - expected.keys()),
        "unordered": unordered + gaps,
    }


def kill(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = make_model(folder, 5000)
    with store_of(args.store, folder) as (address, server):
        service = Service(path, address)
        try:
            events, facts = asyncio.run(send_from_clients(service, server, args))
        finally:
            service.stop()
        checked = check_kept(address, events)
    assert checked == {
        "kept": len(events),
        "missing": 0,
        "twice": 0,
        "unknown": 0,
        "unordered": 0,
    }, checked
    return facts | checked


# -- speed -----------------------------------------------------------------------------------------


def bare(address: str, events: list[dict[str, Any]], batch: int) -> float:
    """Measure events a second by the driver alone: same rows and table, synced commits."""
    from talerec.data.read import connect_to_write, database_kind
    from talerec.store import Store

    Store.open(address).close()
    kind, connection = database_kind(address), connect_to_write(address)
    mark = "?" if kind == "sqlite" else "%s"
    insert = f"insert into talerec_events values ({', '.join([mark] * 7)}, null)"
    rows = [
        (n, e["user_id"], e["item_id"], e["timestamp"], e["event"], e["event_id"], 1)
        for n, e in enumerate(events, 1)
    ]
    cursor = connection.cursor()
    started = time.perf_counter()
    for a in range(0, len(rows), batch):
        cursor.execute("begin immediate" if kind == "sqlite" else "begin")
        cursor.executemany(insert, rows[a : a + batch])
        cursor.execute("commit")
    seconds = time.perf_counter() - started
    connection.close()
    return len(rows) / seconds


def speed(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send the same rows by 8 clients, and by the driver with as many rows a commit."""
    args.kills = 0
    path = make_model(folder, 5000)
    with store_of(args.store, folder) as (address, _):
        service = Service(path, address, args.workers)
        try:
            events, facts = asyncio.run(send_from_clients(service, None, args))
            stats = asyncio.run(stats_of(service.port))["events"]
        finally:
            service.stop()
        check_kept(address, events)
    together = round(stats["events_accepted"] / stats["store_commits"])
    bare_folder = folder / "bare"
    bare_folder.mkdir()
    with store_of(args.store, bare_folder) as (address, _):
        driver = bare(address, events, together)
    return {
        "service": facts["rate"],
        "rows_per_commit": together,
        "driver": driver,
        "ratio": facts["rate"] / driver,
    }


# -- freshness -------------------------------------------------------------------------------------


async def freshness(port: int, trials: int, workers: int, at_once: int) -> dict[str, Any]:
    """Measure how soon a new user's event is in responses: of its connection, of all workers."""
    late, delays, started = 0, [], time.perf_counter()
    left = iter(range(trials))

    async def run(seed: int) -> None:
        nonlocal late
        every = await one_per_worker(port, workers)
        rng = random.Random(seed)
        for n in left:
            first, *others = rng.sample(every, len(every))
            user, item = str(10**7 + n), rng.randrange(1, 50)
            sent = {"events": [{"user_id": user, "item_id": item}]}
            status, _ = await first.ask("POST", "/v1/events", sent)
            since = time.perf_counter()
            assert status == 202
            late += not await knows(first, user, item)
            for other in others:
                while not await knows(other, user, item):
                    await asyncio.sleep(0.02)
                delays.append(time.perf_counter() - since)
        for connection in every:
            await connection.close()

    await asyncio.gather(*(run(seed) for seed in range(at_once)))
    delays.sort()
    return {
        "trials": trials,
        "not_in_the_next_answer": late,
        "later_than_a_second": sum(delay > 1 for delay in delays),
        "median_s": statistics.median(delays),
        "p99_s": delays[int(0.99 * len(delays))],
        "max_s": delays[-1],
        "seconds": time.perf_counter() - started,
    }


async def knows(connection: Connection, user: str, item: int) -> bool:
    """Return whether this item explains a recommendation to this user."""
    status, body = await connection.ask("POST", "/v1/recommend", {"user_id": user, "k": 3})
    assert status == 200, body
    if "fallback" in body:
        return False
    return {str(r["item_id"]) for i in body["items"] for r in i["because"]} <= {str(item)}


def fresh(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = make_model(folder, 5000)
    with store_of(args.store, folder) as (address, _):
        service = Service(path, address, args.workers)
        try:
            return asyncio.run(freshness(service.port, args.trials, args.workers, args.clients))
        finally:
            service.stop()


# -- asking by user --------------------------------------------------------------------------------


def bodies_of(path: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    """Return requests by user, and requests by the histories of the same users."""
    import numpy as np

    import talerec as tr

    model = tr.load(path)
    log = model.fitted.log
    chosen = np.random.default_rng(0).choice(len(log.users), min(count, len(log.users)), False)
    by_user, by_history = [], []
    for user in chosen.tolist():
        rows = log.item[log.ptr[user] : log.ptr[user + 1]]
        ids = log.items.ids.gather(rows).to_list()
        by_user.append({"user_id": log.users.ids[user], "k": 10})
        by_history.append({"history": [{"item_id": item} for item in ids], "k": 10})
    return [_http(body) for body in by_user], [_http(body) for body in by_history]


def _http(body: dict[str, Any], path: str = "/v1/recommend") -> bytes:
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


FEEDER = """
import asyncio, random, sys, time
sys.path[:0] = [{folder!r}]
from events import Connection
async def feed():
    one, rng, end = Connection({port}), random.Random(1), time.monotonic() + {seconds}
    while time.monotonic() < end:
        began = time.monotonic()
        some = [
            {{"user_id": rng.randrange(1, {users}), "item_id": rng.randrange(1, {items})}}
            for _ in range({batch})
        ]
        status, body = await one.ask("POST", "/v1/events", {{"events": some}})
        assert status == 202, body
        await asyncio.sleep(max(0, 0.1 - (time.monotonic() - began)))
asyncio.run(feed())
"""


@contextmanager
def feeding(
    port: int, rate: int, users: int, items: int, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Send events from another process, ten requests a second, during the block."""
    program = FEEDER.format(
        folder=str(Path(__file__).parent),
        port=port,
        seconds=seconds,
        users=users,
        items=items,
        batch=max(1, rate // 10),
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)


def ask(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure requests a second by user and by history, in slices A B B A, during events."""
    from load import send

    path = make_model(folder, 100_000, args.model)
    by_user, by_history = bodies_of(path, 2000)
    rates: dict[str, list[float]] = {"user": [], "history": []}
    with store_of(args.store, folder) as (address, _):
        service = Service(path, address, args.workers)
        try:
            asyncio.run(send(service.port, by_user[:1000] + by_history[:1000], 8))  # warm
            with feeding(service.port, args.rate, 5000, 1000, 300):
                for turn in range(args.turns):
                    kinds = [("user", by_user), ("history", by_history)]
                    for name, bodies in kinds if turn % 2 else reversed(kinds):
                        requests = [bodies[n % len(bodies)] for n in range(args.slice)]
                        started = time.perf_counter()
                        asyncio.run(send(service.port, requests, 16))
                        rates[name].append(args.slice / (time.perf_counter() - started))
            event_stats = asyncio.run(stats_of(service.port))["events"]
        finally:
            service.stop()
    medians = {name: statistics.median(some) for name, some in rates.items()}
    ratios = [a / b for a, b in zip(rates["user"], rates["history"], strict=True)]
    return {
        "by_user": medians["user"],
        "by_history": medians["history"],
        "ratio": statistics.median(ratios),
        "events_meanwhile": event_stats["events_accepted"],
    }


def soak(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Send requests by user and events for a while, with --learn; count failures and memory."""
    path = make_model(folder, 20_000, args.model)
    by_user, _ = bodies_of(path, 1000)
    bodies = [request.partition(b"\r\n\r\n")[2] for request in by_user]
    with store_of(args.store, folder) as (address, _):
        service = Service(path, address, args.workers, "--learn", args.learn)
        try:
            with feeding(service.port, args.rate, 1000, 200, args.seconds) as feeder:
                facts = asyncio.run(_soaked(service, bodies, args.seconds))
                facts["feeder"] = feeder.wait(60)
            stats = asyncio.run(stats_of(service.port))
        finally:
            service.stop()
    learning = stats["learning"]
    return facts | {
        "events": stats["events"]["events_accepted"],
        "rounds": learning["rounds"],
        "learn_failures": learning["failures"],
    }


async def _soaked(service: Service, bodies: list[bytes], seconds: float) -> dict[str, Any]:
    end, n_requests, failed = time.monotonic() + seconds, 0, 0
    memory: list[float] = []

    async def run(seed: int) -> None:
        nonlocal n_requests, failed
        connection, rng = Connection(service.port), random.Random(seed)
        while time.monotonic() < end:
            status, _ = await connection.ask("POST", "/v1/recommend", rng.choice(bodies))
            n_requests, failed = n_requests + 1, failed + (status != 200)
            await asyncio.sleep(0.005)
        await connection.close()

    async def look() -> None:
        while time.monotonic() < end:
            memory.append(service.memory() / 1e6)
            await asyncio.sleep(max(1.0, seconds / 60))

    await asyncio.gather(*(run(seed) for seed in range(4)), look())
    third = max(1, len(memory) // 3)
    middle, last = statistics.median(memory[third : 2 * third]), statistics.median(memory[-third:])
    return {
        "asked": n_requests,
        "failed": failed,
        "mb_middle": middle,
        "mb_end": last,
        "mb_max": max(memory),
    }


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["kill", "speed", "fresh", "ask", "soak"])
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batch", type=int, default=100, help="events in a request, on average")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--model", default="tale")
    parser.add_argument(
        "--rate", type=int, default=500, help="events a second that come in meanwhile"
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--slice", type=int, default=3000, help="requests of one slice")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--learn", default="every=20s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="talerec-bench-") as name:
        facts = globals()[args.what](args, Path(name))
    print(json.dumps({"what": args.what, "store": args.store, **facts}, indent=1))


if __name__ == "__main__":
    main()
