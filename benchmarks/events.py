"""A service that remembers: what it keeps when it is killed, how soon events are known, and what asking by user costs.

    python benchmarks/events.py kill  --store sqlite       # 200,000 events, 8 clients, kill -9 at 20 random moments
    python benchmarks/events.py kill  --store postgresql   # of workers, the parent and the database
    python benchmarks/events.py speed --store sqlite       # events a second, against the bare driver
    python benchmarks/events.py fresh --store sqlite       # 10,000 events: the next answer, and that of every worker
    python benchmarks/events.py ask   --store sqlite       # requests by user against requests by history, events coming in
    python benchmarks/events.py soak  --seconds 600        # asking, events and --learn: failures and memory

PostgreSQL is started as an unprivileged user in a folder of its own. Servers listen on 127.0.0.1; only processes that were started here
are ended, by their ids.
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
    """The address of an empty store, and the server that has it, if it is one."""
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
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Service:
    """`talerec serve` in processes of its own; it can be killed and started again at the same port."""

    def __init__(self, path: Path, store: str, workers: int = 2, *more: str) -> None:
        self.port = free_port()
        self._command = [
            sys.executable, "-c", START, "serve", str(path), "--port", str(self.port),
            "--workers", str(workers), *more,
        ]  # fmt: skip
        source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
        self._environment = {**os.environ, "TALEREC_STORE": store, "PYTHONPATH": source}
        self.start()

    def start(self) -> None:
        """Start it; while workers of a killed parent still have the port, again."""
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
        """End the parent at once; its workers notice, and end too."""
        self.process.send_signal(signal.SIGKILL)
        self._ended()

    def _ended(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def workers(self) -> list[int]:
        """The processes that the parent started."""
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            n for n in map(int, found) if b"spawn_main" in Path(f"/proc/{n}/cmdline").read_bytes()
        ]

    def memory(self) -> int:
        """Bytes of all its processes that no other process shares."""
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
    """One connection; a request is answered before the next one is sent."""

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
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
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
    one = Connection(port)
    _, found = await one.ask("GET", "/v1/stats")
    await one.close()
    return dict(found)


async def one_per_worker(port: int, workers: int) -> list[Connection]:
    """A connection to each worker."""
    found: dict[bytes, Connection] = {}
    for _ in range(200):
        one = Connection(port)
        await one.ask("GET", "/v1/model")
        if found.setdefault(one.worker, one) is not one:
            await one.close()
        if len(found) == workers:
            break
    return list(found.values())


def make_model(folder: Path, rows: int, name: str = "tale", **params: Any) -> Path:
    import talerec as tr

    log = tr.synthetic_log(rows, users=max(50, rows // 20), items=max(50, rows // 100), seed=1)
    return tr.MODELS[name](**params).fit(log).save(folder / "shop.tale")


# -- events ----------------------------------------------------------------------------------------


def make_events(count: int, seed: int) -> list[dict[str, Any]]:
    """Events with ids; the times of one user differ."""
    rng, start = random.Random(seed), 1_700_000_000
    return [
        {
            "user_id": f"u{rng.randrange(5000)}",
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
    """Send events in batches; whatever is not acknowledged is sent again. `acknowledged` grows as it goes."""
    rng, one = random.Random(seed), Connection(port)
    said = {"accepted": 0, "duplicates": 0, "repeats": 0}
    begin = 0
    while begin < len(events):
        size = rng.randrange(1, 2 * batch)
        some = events[begin : begin + size]
        while True:
            try:
                status, body = await asyncio.wait_for(
                    one.ask("POST", "/v1/events", {"events": some}), 30
                )
            except (OSError, asyncio.IncompleteReadError, TimeoutError, KeyError):
                status, body = 0, None
                await one.close()
            if status == 202:
                break
            assert status in (0, 503), (status, body)
            said["repeats"] += 1
            await asyncio.sleep(0.05 + rng.random() / 10)
        said["accepted"] += body["accepted"]
        said["duplicates"] += body["duplicates"]
        begin += size
        acknowledged.append(len(some))
    await one.close()
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
    service: Service, server: Any, given: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    per = given.events // given.clients
    events = [make_events(per, seed) for seed in range(given.clients)]
    acknowledged: list[int] = []
    started = time.perf_counter()
    clients = [
        send_all(service.port, mine, given.batch, seed, acknowledged)
        for seed, mine in enumerate(events)
    ]
    kills = killer(service, server, given.kills, per * given.clients, acknowledged)
    *said, killed = await asyncio.gather(*clients, kills)
    seconds = time.perf_counter() - started
    sums = {name: sum(one[name] for one in said) for name in said[0]}
    facts = {"events": sum(acknowledged), "seconds": seconds, "rate": sum(acknowledged) / seconds}
    kinds = {what: killed.count(what) for what in sorted(set(killed))}
    return [e for mine in events for e in mine], {**facts, **sums, "killed": kinds}


def check_kept(address: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Every acknowledged event is there once, with its contents; every history is in order. All were acknowledged in the end."""
    from talerec.store.store import Store

    wanted = {
        e["event_id"]: (e["user_id"], e["item_id"], e["timestamp"], e["event"]) for e in events
    }
    found: dict[str, Any] = {}
    twice, seqs, last = 0, [], 0
    with Store.open(address) as store:
        while rows := store.tail(last, 50_000):
            for row in rows:
                twice += row.event_id in found
                found[str(row.event_id)] = (row.user, row.item, row.time, row.event)
                seqs.append(row.seq)
            last = rows[-1].seq
        users = sorted({e["user_id"] for e in events})
        unordered = 0
        for user in users[:: max(1, len(users) // 500)]:
            mine = sorted((e["timestamp"], e["item_id"]) for e in events if e["user_id"] == user)
            kept = [(row.time, row.item) for row in store.of_user(user, 10**6)]
            unordered += kept != mine
    missing = sum(found.get(name) != contents for name, contents in wanted.items())
    gaps = seqs != sorted(set(seqs))
    return {"kept": len(found), "missing": missing, "twice": twice, "unknown": len(found.keys() - wanted.keys()), "unordered": unordered + gaps}  # fmt: skip


def kill(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = make_model(folder, 5000)
    with store_of(given.store, folder) as (address, server):
        service = Service(path, address)
        try:
            events, facts = asyncio.run(send_from_clients(service, server, given))
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
    """Events a second by the driver alone: the same rows, the same table, so many with one commit that is synced."""
    from talerec.data.read import databases
    from talerec.store.store import Store

    Store.open(address).close()
    kind, connection = databases.kind_of(address), databases.connect_to_write(address)
    mark = "?" if kind == "sqlite" else "%s"
    insert = f"insert into talerec_events values ({', '.join([mark] * 7)})"
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


def speed(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same rows through the service by 8 clients, and by the driver with the same number of rows a commit."""
    given.kills = 0
    path = make_model(folder, 5000)
    with store_of(given.store, folder) as (address, _):
        service = Service(path, address, given.workers)
        try:
            events, facts = asyncio.run(send_from_clients(service, None, given))
            stats = asyncio.run(stats_of(service.port))["events"]
        finally:
            service.stop()
        check_kept(address, events)
    together = round(stats["events_accepted"] / stats["store_commits"])
    again = folder / "bare"
    again.mkdir()
    with store_of(given.store, again) as (address, _):
        driver = bare(address, events, together)
    return {
        "service": facts["rate"],
        "rows_per_commit": together,
        "driver": driver,
        "ratio": facts["rate"] / driver,
    }


# -- freshness -------------------------------------------------------------------------------------


async def freshness(port: int, trials: int, workers: int, at_once: int) -> dict[str, Any]:
    """An event of a new user: the next answer on the same connection names it, and soon that of the other workers."""
    late, delays, started = 0, [], time.perf_counter()
    left = iter(range(trials))

    async def run(seed: int) -> None:
        nonlocal late
        every = await one_per_worker(port, workers)
        rng = random.Random(seed)
        for n in left:
            first, *others = rng.sample(every, len(every))
            user, item = f"fresh-{n}", rng.randrange(1, 50)
            sent = {"events": [{"user_id": user, "item_id": item}]}
            status, _ = await first.ask("POST", "/v1/events", sent)
            since = time.perf_counter()
            assert status == 202
            late += not await knows(first, user, item)
            for other in others:
                while not await knows(other, user, item):
                    await asyncio.sleep(0.02)
                delays.append(time.perf_counter() - since)
        for one in every:
            await one.close()

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


async def knows(one: Connection, user: str, item: int) -> bool:
    """Is an answer for this user made of this item?"""
    status, body = await one.ask("POST", "/v1/recommend", {"user_id": user, "k": 3})
    assert status == 200, body
    if "fallback" in body:
        return False
    return {str(r["item_id"]) for i in body["items"] for r in i["because"]} <= {str(item)}


def fresh(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = make_model(folder, 5000)
    with store_of(given.store, folder) as (address, _):
        service = Service(path, address, given.workers)
        try:
            return asyncio.run(freshness(service.port, given.trials, given.workers, given.clients))
        finally:
            service.stop()


# -- asking by user --------------------------------------------------------------------------------


def bodies_of(path: Path, count: int) -> tuple[list[bytes], list[bytes]]:
    """The same users as requests by user and as requests by history."""
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
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


FEEDER = """
import asyncio, random, sys, time
sys.path[:0] = [{folder!r}]
from events import Connection
async def feed():
    one, rng, end = Connection({port}), random.Random(1), time.monotonic() + {seconds}
    while time.monotonic() < end:
        began = time.monotonic()
        some = [{{"user_id": rng.randrange(1, {users}), "item_id": rng.randrange(1, {items})}} for _ in range({batch})]
        status, body = await one.ask("POST", "/v1/events", {{"events": some}})
        assert status == 202, body
        await asyncio.sleep(max(0, 0.1 - (time.monotonic() - began)))
asyncio.run(feed())
"""


@contextmanager
def feeding(
    port: int, rate: int, users: int, items: int, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Events coming in, ten requests a second, from another process."""
    program = FEEDER.format(
        folder=str(Path(__file__).parent), port=port, seconds=seconds, users=users, items=items, batch=max(1, rate // 10)
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)


def ask(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Requests a second by user and by history, in turns of short slices A B B A, while events come in."""
    from load import send

    path = make_model(folder, 100_000, given.model)
    by_user, by_history = bodies_of(path, 2000)
    rates: dict[str, list[float]] = {"user": [], "history": []}
    with store_of(given.store, folder) as (address, _):
        service = Service(path, address, given.workers)
        try:
            asyncio.run(send(service.port, by_user[:1000] + by_history[:1000], 8))  # warm
            with feeding(service.port, given.rate, 5000, 1000, 300):
                for turn in range(given.turns):
                    kinds = [("user", by_user), ("history", by_history)]
                    for name, bodies in kinds if turn % 2 else reversed(kinds):
                        asked = [bodies[n % len(bodies)] for n in range(given.slice)]
                        started = time.perf_counter()
                        asyncio.run(send(service.port, asked, 16))
                        rates[name].append(given.slice / (time.perf_counter() - started))
            kept = asyncio.run(stats_of(service.port))["events"]
        finally:
            service.stop()
    medians = {name: statistics.median(some) for name, some in rates.items()}
    ratios = [a / b for a, b in zip(rates["user"], rates["history"], strict=True)]
    return {
        "by_user": medians["user"],
        "by_history": medians["history"],
        "ratio": statistics.median(ratios),
        "events_meanwhile": kept["events_accepted"],
    }


def soak(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Asking by user and events for a while, with --learn: what failed, and the memory in between."""
    path = make_model(folder, 20_000, given.model)
    by_user, _ = bodies_of(path, 1000)
    bodies = [one.partition(b"\r\n\r\n")[2] for one in by_user]
    with store_of(given.store, folder) as (address, _):
        service = Service(path, address, given.workers, "--learn", given.learn)
        try:
            with feeding(service.port, given.rate, 1000, 200, given.seconds) as feeder:
                facts = asyncio.run(_soaked(service, bodies, given.seconds))
                facts["feeder"] = feeder.wait(60)
            stats = asyncio.run(stats_of(service.port))
        finally:
            service.stop()
    learned = stats["learning"]
    return facts | {"events": stats["events"]["events_accepted"], "rounds": learned["rounds"], "learn_failures": learned["failures"]}  # fmt: skip


async def _soaked(service: Service, bodies: list[bytes], seconds: float) -> dict[str, Any]:
    end, asked, failed = time.monotonic() + seconds, 0, 0
    memory: list[float] = []

    async def run(seed: int) -> None:
        nonlocal asked, failed
        one, rng = Connection(service.port), random.Random(seed)
        while time.monotonic() < end:
            status, _ = await one.ask("POST", "/v1/recommend", rng.choice(bodies))
            asked, failed = asked + 1, failed + (status != 200)
            await asyncio.sleep(0.005)
        await one.close()

    async def look() -> None:
        while time.monotonic() < end:
            memory.append(service.memory() / 1e6)
            await asyncio.sleep(max(1.0, seconds / 60))

    await asyncio.gather(*(run(seed) for seed in range(4)), look())
    third = max(1, len(memory) // 3)
    middle, last = statistics.median(memory[third : 2 * third]), statistics.median(memory[-third:])
    return {
        "asked": asked,
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
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="talerec-bench-") as name:
        found = globals()[given.what](given, Path(name))
    print(json.dumps({"what": given.what, "store": given.store, **found}, indent=1))


if __name__ == "__main__":
    main()
