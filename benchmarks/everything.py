"""Everything at once against one service on this machine: load, events, changes and attacks.

    python benchmarks/everything.py                      # ten minutes, a SQLite store
    python benchmarks/everything.py --minutes 1 --without conditions,stop
    python benchmarks/everything.py --store postgresql://HOST/NAME --json everything.json

At the same time: requests for recommendations, events, deletions of users, `talerec update`,
`talerec install`, `--learn`, hostile conditions (`where`), silent clients, bytes that are not HTTP,
SIGKILL of workers and learner, and one worker that is stopped (SIGSTOP) for a while.

The exit code is 1 if an acknowledged event is not in the store (unless its user was deleted after
it was sent), if an event that was acknowledged before its user was deleted is still there, if an
answer is not the library's for the model version that it names, if a list has an unknown or a
hidden item, if a command fails in another way than by a message, if not every worker answers within
10 s of the last attack, or if memory grows by more than `--growth`. Everything is bounded: threads,
rates, connections, and the address space of the service (`--memory`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import talerec as tr
from attacked import HEAD, START, TOKEN, Service, request, within
from talerec.store import Store

USERS, ITEMS, K = 300, 150, 10
NEW_USERS = range(10_001, 10_201)  # who are only in the store; every second may be deleted
NEW_ITEMS = range(20_001, 20_021)
RECOVERY_S = 10.0  # until every worker answers
SAMPLE = 20_000  # answers that are compared with the library
CAPACITY = 48  # open connections of silent clients, at most

CONDITIONS = [
    "category = 'Camping'",
    "title like '%a%' and category != 'Camping'",
    "case when " * 30 + "1",
    "lpad(title, 2000000000, 'x') = 'y'",
    " + ".join(["1"] * 999) + " > 1",
    "(" * 5000 + "1" + ")" * 5000,
    "not " * 3000 + "true",
    "repeat(title, 100000000) = ''",
    "category in (" + ",".join(f"'{n}'" for n in range(20_000)) + ")",
    "title like '" + "%a" * 3000 + "%'",
    "category = 'x' or " * 2000 + "false",
    "item_id = (select max(item_id) from self)",
    "category = ''; drop table self",
    "title ~ '(a+)+$'",
    "1e400 > item_id",
    "item_id = 99999999999999999999999999999",
    "\x00",
    "nothing = 1",
    "'" * 999,
    "",
]

GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # a TLS handshake
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n" * 10_000,
    b"\x00" * 100_000,
    b"GET " + b"/" * 200_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/recommend HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    f"POST /v1/recommend HTTP/1.1\r\n{HEAD}content-length: 99999999999\r\n\r\n".encode() + b"{",
    f"POST /v1/recommend HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\n".encode()
    + b"2\r\n{}\r\n0\r\n" + b"trailer: value\r\n" * 60_000,
    f"POST /v1/events HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n\r\nzz\r\n".encode(),
    request("POST", "/v1/recommend", b"[" * 100_000),
    request("POST", "/v1/events", b'{"events": [{"user_id": 1, "item_id": {}}]}'),
    request("GET", "/health/live", keep=True) * 200,
]  # fmt: skip


class Sent(NamedTuple):
    """An acknowledged event: its user, and when it was sent and acknowledged."""

    user: int
    sent: float
    acknowledged: float


class Query(NamedTuple):
    """A request for recommendations after a history, as the service and the library read it."""

    history: list[int]
    options: dict[str, Any]

    def body(self) -> dict[str, Any]:
        return {"history": [{"item_id": item} for item in self.history], "k": K, **self.options}


def build_queries(categories: list[str], count: int = 60) -> list[Query]:
    rng = np.random.default_rng(0)
    kinds: list[Callable[[list[int]], dict[str, Any]]] = [
        lambda _: {},
        lambda _: {"hide_seen": True},
        lambda history: {"deny": [*history, *range(1, 40)]},
        lambda _: {"where": f"category = '{categories[0]}'"},
    ]
    histories = [rng.integers(1, ITEMS + 1, rng.integers(1, 12)).tolist() for _ in range(count)]
    return [Query(history, kinds[n % 4](history)) for n, history in enumerate(histories)]


class Run:
    """One run: the service, what was sent to it and what it answered, until a deadline."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self.log = tr.synthetic_log(3000, users=USERS, items=ITEMS, seed=3)
        assert self.log.info is not None
        self.category = dict(self.log.info.select("item_id", "category").iter_rows())
        self.queries = build_queries(sorted({*self.category.values()}))
        self.path, self.versions = folder / "shop.tale", folder / "versions"
        self.versions.mkdir()
        self.store = args.store or f"sqlite:///{folder}/shop.db"
        self.models = [
            tr.TALE(solver="local", reg=reg).fit(self.log).save(folder / f"{reg}.tale",
                                                                updatable=True)
            for reg in (20, 100, 500)
        ]  # fmt: skip
        tr.load(self.models[0]).save(self.path, updatable=True)
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.answers: list[tuple[str, int, list[list[Any]]]] = []
        self.acknowledged: dict[str, Sent] = {}
        self.deletions: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self.memory: list[float] = []
        self.name = uuid.uuid4().hex[:8]
        self.begun = self.deadline = self.last_attack = 0.0
        self.service: Service

    # -- what all threads use --

    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    def pause(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.deadline - time.monotonic())))

    def attack(self, name: str) -> None:
        """Count an attack that begins now."""
        self.count[name] += 1
        self.last_attack = time.monotonic()

    def violate(self, text: str) -> None:
        self.count["violations"] += 1
        if len(self.wrong) < 30:
            self.wrong.append(text[:300])

    def command(self, kind: str, *args: object) -> None:
        """Run a command of talerec; an error must be a message (exit code 2), not a traceback."""
        try:
            result = subprocess.run(
                [sys.executable, "-c", START, *map(str, args)],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.violate(f"{kind}: no end after 120 s")
            return
        self.count[f"{kind}: exit code {result.returncode}"] += 1
        is_message = result.returncode == 2 and result.stderr.count("\n") == 1
        if result.returncode and not is_message:
            self.violate(f"{kind}: {result.returncode}, {result.stderr[-200:]}")

    # -- normal work --

    def load(self, seed: int) -> None:
        """Ask for recommendations over one connection after the other; check every list."""
        rng = random.Random(seed)
        while not self.is_over():
            connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=10)
            try:
                for _ in range(50):
                    if self.is_over():
                        break
                    self.recommend(connection, rng)
                    self.pause(self.args.every)
            except (OSError, http.client.HTTPException) as error:
                self.count[f"recommend: {type(error).__name__}"] += 1
                self.pause(0.2)
            connection.close()

    def recommend(self, connection: http.client.HTTPConnection, rng: random.Random) -> None:
        number = rng.randrange(len(self.queries))
        is_user = rng.random() < 0.2
        user = rng.choice([*range(1, USERS), *NEW_USERS])
        body = {"user_id": user, "k": K} if is_user else self.queries[number].body()
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        self.count["recommend: sent"] += 1
        connection.request("POST", "/v1/recommend", json.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
        self.count[f"recommend: {response.status}"] += 1
        if response.status == 200:
            self.check_list(json.loads(content), None if is_user else number)

    def check_list(self, answer: dict[str, Any], number: int | None) -> None:
        ranked = [[row["item_id"], row["score"]] for row in answer["items"]]
        items = [item for item, _ in ranked]
        if unknown := {*items} - {*range(1, ITEMS + 1)} - {*NEW_ITEMS}:
            self.violate(f"unknown items {sorted(unknown)}")
        if number is None:
            return
        history, options = self.queries[number]
        hidden = {*options.get("deny", [])} | ({*history} if "hide_seen" in options else set())
        if "where" in options:
            allowed = options["where"].split("'")[1]
            hidden |= {item for item in items if self.category.get(item) != allowed}
        if hidden & {*items}:
            self.violate(f"hidden items {sorted(hidden & {*items})} for {options}")
        if len(self.answers) < SAMPLE and "fallback" not in answer:
            self.answers.append((answer["model"], number, ranked))

    def send_events(self, seed: int) -> None:
        """Send events, each with an id; those that were not acknowledged are sent once more."""
        rng, number = random.Random(seed), 0
        while not self.is_over():
            number += 1
            events = [
                {
                    "user_id": rng.choice([*range(1, USERS), *NEW_USERS]),
                    "item_id": rng.choice([*range(1, ITEMS + 1), *NEW_ITEMS]),
                    "event_id": f"{self.name}-{seed}-{number}-{n}",
                }
                for n in range(rng.randrange(1, 6))
            ]
            if not self.post_events(events) and not self.post_events(events):
                self.count["events: not acknowledged"] += len(events)
            self.pause(0.05)

    def post_events(self, events: list[dict[str, Any]]) -> bool:
        sent = time.monotonic()
        status, _ = self.service.ask("POST", "/v1/events", {"events": events}, 15)
        now = time.monotonic()
        self.count[f"events: {status}"] += 1
        if status == 202:
            for event in events:
                self.acknowledged[event["event_id"]] = Sent(event["user_id"], sent, now)
        return status == 202

    def delete_users(self) -> None:
        rng = random.Random(7)
        users = [*NEW_USERS[::2], *range(USERS - 50, USERS)]
        while not self.is_over():
            user, sent = rng.choice(users), time.monotonic()
            status, _ = self.service.ask("DELETE", f"/v1/users/{user}", None, 15)
            self.count[f"deletions: {status}"] += 1
            # without an answer the user may have been deleted at any time until now, or not at all
            self.deletions[user].append((sent if status == 200 else -1.0, time.monotonic()))
            self.pause(1.0)

    def update(self) -> None:
        number = 0
        while not self.is_over():
            number += 1
            rows = self.folder / f"rows-{number}.csv"
            now = time.strftime("%Y-%m-%dT%H:%M:%S")
            users = [int(user) for user in np.random.default_rng(number).integers(1, USERS, 5)]
            lines = [f"{user},{number % ITEMS + 1},{now}" for user in users]
            rows.write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")
            self.command("update", "update", self.path, rows)
            self.pause(4.0)

    def install(self) -> None:
        number = 0
        while not self.is_over():
            number += 1
            self.pause(9.0)
            self.command("install", "install", self.models[number % 3], self.path)

    # -- attacks --

    def send_conditions(self) -> None:
        number = 0
        while not self.is_over():
            text = CONDITIONS[number % len(CONDITIONS)]
            number += 1
            body = {"history": [{"item_id": 3}], "where": text}
            self.attack("conditions: sent")
            status, _ = self.service.ask("POST", "/v1/recommend", body, 10)
            name = {0: "no answer", 200: "accepted"}.get(status, f"{status}")
            self.count[f"conditions: {name}"] += 1
            if status >= 500 and status != 503:
                self.violate(f"condition {text[:60]!r}: {status}")
            self.pause(0.5)

    def keep_silent(self) -> None:
        """Open connections that send nothing, or the beginning of a request, and never read."""
        starts, clients = [b"", b"POST /v1/reco", request("GET", "/v1/model")], []
        while not self.is_over():
            with suppress(OSError):
                client = socket.create_connection(("127.0.0.1", self.service.port), 5)
                clients.append(client)
                client.sendall(starts[self.count["silent clients"] % 3])
                self.attack("silent clients")
            if len(clients) > CAPACITY:
                clients.pop(0).close()
            self.pause(0.1)
        for client in clients:
            client.close()

    def send_garbage(self) -> None:
        number = 0
        while not self.is_over():
            with suppress(OSError):
                address = ("127.0.0.1", self.service.port)
                with socket.create_connection(address, 5) as client:
                    client.settimeout(3)
                    self.attack("garbage")
                    client.sendall(GARBAGE[number % len(GARBAGE)])
                    client.recv(2**16)
            number += 1
            self.pause(0.3)

    def kill(self) -> None:
        rng = random.Random(3)
        while not self.is_over():
            self.pause(self.args.kill_every)
            pids = self.service.workers()
            if pids and not self.is_over():
                with suppress(OSError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    self.attack("killed processes")

    def stop(self) -> None:
        """Stop one worker for up to 8 s, once, in the middle of the run."""
        self.pause(0.4 * (self.deadline - self.begun))
        pids = list(http_workers(self.service))
        if not pids or self.is_over():
            return
        os.kill(pids[0], signal.SIGSTOP)
        self.attack("stopped workers")
        self.pause(8.0)
        with suppress(OSError):  # it may have been replaced
            os.kill(pids[0], signal.SIGCONT)

    # -- watching --

    def watch_versions(self) -> None:
        """Link the files of every version that the artifact has, by version."""
        while not self.is_over():
            self.link_version()
            time.sleep(0.02)
        self.link_version()

    def link_version(self) -> None:
        with suppress(OSError, ValueError, KeyError):
            text = (self.path / "manifest.json").read_bytes()
            manifest = json.loads(text)
            target = self.versions / manifest["version"]
            if target.exists():
                return
            unfinished = self.versions / f".{time.monotonic_ns()}"
            unfinished.mkdir()
            (unfinished / "manifest.json").write_bytes(text)
            for entry in manifest["files"].values():
                os.link(self.path / entry["file"], unfinished / entry["file"])
            unfinished.rename(target)

    def watch_memory(self) -> None:
        while not self.is_over():
            self.memory.append(self.service.memory())
            self.pause(1.0)


def http_workers(service: Service) -> dict[int, set[str]]:
    """Return the sockets (inodes) of each child process that listens on the service's port."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{service.port:04X}"
    listening = {row[9] for row in table if row[1].endswith(port) and row[3] == "0A"}
    workers = {}
    for pid in service.workers():
        sockets = set()
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    link = os.readlink(entry)
                    if link.startswith("socket:["):
                        sockets.add(link[8:-1])
        if sockets & listening:
            workers[pid] = sockets
    return workers


def answering_worker(service: Service) -> int | None:
    """Return the process that answers a request on a new connection; None without an answer."""
    body = json.dumps({"history": [{"item_id": 3}], "k": 5}).encode()
    with suppress(OSError), service.send("POST", "/v1/recommend", body, keep=True) as client:
        client.settimeout(3)
        if not client.recv(2**16).startswith(b"HTTP/1.1 200"):
            return None
        ends = f":{service.port:04X}", f":{client.getsockname()[1]:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            row = line.split()
            if row[1].endswith(ends[0]) and row[2].endswith(ends[1]):
                for pid, sockets in http_workers(service).items():
                    if row[9] in sockets:
                        return pid
    return None


def has_all_answers(service: Service, workers: int, seen: set[int | None]) -> bool:
    """Ask once more, add the process that answers to `seen`; return whether it has all workers."""
    seen.add(answering_worker(service))
    return len({*http_workers(service)} & seen) >= workers


# -- checks after the run --------------------------------------------------------------------------


def check_events(run: Run) -> dict[str, int]:
    """Compare the store with what was acknowledged and deleted."""
    stored: set[str] = set()
    with Store.open(run.store) as store:
        seq = 0
        while rows := store.read_after(seq):
            seq = rows[-1].seq
            stored |= {row.event_id for row in rows if row.item and row.event_id}
    lost = undeleted = 0
    for event_id, event in run.acknowledged.items():
        deletions = run.deletions.get(event.user, [])
        may_be_gone = any(answered >= event.sent for _, answered in deletions)
        must_be_gone = any(sent > event.acknowledged for sent, _ in deletions)
        lost += event_id not in stored and not may_be_gone
        undeleted += event_id in stored and must_be_gone
    if lost or undeleted:
        run.violate(f"{lost} acknowledged events lost, {undeleted} of deleted users still there")
    acknowledged = len(run.acknowledged)
    return {"acknowledged": acknowledged, "lost": lost, "of_deleted_users": undeleted}


def check_answers(run: Run) -> dict[str, int]:
    """Compare answers with what the library gives for the version that they name."""
    by_version = defaultdict(list)
    for version, number, ranked in run.answers:
        by_version[version].append((number, ranked))
    checked = wrong = unchecked = 0
    for version, answers in by_version.items():
        if not (run.versions / version).is_dir():
            unchecked += len(answers)
            continue
        model = tr.load(run.versions / version)
        numbers = sorted({number for number, _ in answers})
        expected = {number: recommend(model, run.queries[number]) for number in numbers}
        for number, ranked in answers:
            checked += 1
            if ranked != expected[number]:
                wrong += 1
                run.violate(f"{version}, query {number}: {ranked[:2]}, not {expected[number][:2]}")
    counts = {"checked": checked, "wrong": wrong, "unchecked": unchecked}
    return counts | {"versions": len(by_version)}


def recommend(model: tr.Model, query: Query) -> list[list[Any]]:
    table = model.recommend_histories([query.history], K, unknown="skip", **query.options)
    return [list(row) for row in table.select("item_id", "score").rows()]


@contextmanager
def limited_memory(megabytes: int) -> Any:
    """Limit the address space of processes that are started in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def measure(run: Run, args: argparse.Namespace) -> dict[str, Any]:
    """Run everything until the deadline, and return the figures."""
    without = set(filter(None, args.without.split(",")))
    work: dict[str, list[Callable[[], None]]] = {
        "load": [lambda n=n: run.load(n) for n in range(args.clients)],
        "events": [lambda: run.send_events(1), lambda: run.send_events(2)],
        "deletions": [run.delete_users],
        "updates": [run.update],
        "installs": [run.install],
        "conditions": [run.send_conditions],
        "silent": [run.keep_silent],
        "garbage": [run.send_garbage],
        "kills": [run.kill],
        "stop": [run.stop],
    }
    if unknown := without - {*work, "learn"}:
        sys.exit(f"--without: {', '.join(sorted(unknown))} is none of {', '.join(work)}, learn")
    options = ["--workers", str(args.workers), "--watch", "0.5", "--timeout", "5",
               "--store", run.store]  # fmt: skip
    options += [] if "learn" in without else ["--learn", args.learn]
    log = args.log or run.folder / "service.log"
    with limited_memory(args.memory), log.open("wb") as file:
        run.service = Service(Path(tr.__file__).parents[2], run.path, *options, errors=file)
    seen: set[int | None] = set()
    try:
        run.service.wait()
        run.begun = time.monotonic()
        run.deadline = run.begun + 60 * args.minutes
        tasks = [task for name, each in work.items() if name not in without for task in each]
        threads = [
            threading.Thread(target=task, daemon=True)
            for task in (*tasks, run.watch_versions, run.watch_memory)
        ]
        for thread in threads:
            thread.start()
        run.pause(60 * args.minutes)
        answered = within(lambda: has_all_answers(run.service, args.workers, seen), 60)
        waited = time.monotonic() - run.last_attack if answered else 0.0
        for thread in threads:
            thread.join(130)
        run.link_version()
        stats = run.service.ask("GET", "/v1/stats")[1]
        is_up = run.service.process.poll() is None
        run.service.process.terminate()
        ended = within(lambda: run.service.process.poll() is not None, 60)
    finally:
        run.service.end()
    if not waited or waited > RECOVERY_S:
        run.violate(f"not every worker answers within {RECOVERY_S:.0f} s: {waited:.1f} s")
    if not is_up or not ended:
        run.violate("the service ended by itself" if ended else "SIGTERM does not end the service")
    text = log.read_text(errors="replace")
    run.count["log: workers without a sign of life"] = text.count("no sign of life")
    if "Traceback" in text:
        run.violate("the service's log has a traceback: " + text[text.index("Traceback") :])
    size = max(1, len(run.memory) // 10)
    first, last = np.median(run.memory[size : 3 * size]), np.median(run.memory[-2 * size :])
    if last - first > args.growth:
        run.violate(f"memory grows from {first:.0f} to {last:.0f} MB")
    learning = json.loads(stats or b"{}").get("learning") or {}
    return {
        "minutes": args.minutes,
        "without": sorted(without),
        "events": check_events(run),
        "answers": check_answers(run),
        "all_workers_answer_s": round(waited, 2),
        "load_of_machine": [round(load, 1) for load in os.getloadavg()],
        "memory_mb": {"first": round(float(first)), "last": round(float(last)),
                      "most": round(max(run.memory))},
        "learning": {key: learning.get(key) for key in ("rounds", "failures", "error")},
        "counts": dict(sorted(run.count.items())),
        "violations": run.wrong,
    }  # fmt: skip


def print_table(figures: dict[str, Any]) -> None:
    counts, events, answers = figures["counts"], figures["events"], figures["answers"]
    memory = figures["memory_mb"]
    rows = {
        "events acknowledged / lost": f"{events['acknowledged']:,} / {events['lost']}",
        "events of deleted users still there": events["of_deleted_users"],
        "answers checked / wrong": f"{answers['checked']:,} / {answers['wrong']}",
        "versions of the model that answered": answers["versions"],
        "recommendations sent / 200": (
            f"{counts.get('recommend: sent', 0):,} / {counts.get('recommend: 200', 0):,}"
        ),
        "processes killed": counts.get("killed processes", 0),
        "every worker answers after, s": figures["all_workers_answer_s"],
        "memory first / last / most, MB": " / ".join(str(value) for value in memory.values()),
        "violations": counts.get("violations", 0),
    }
    print("| figure | value |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=3, help="connections of the load")
    parser.add_argument("--every", type=float, default=0.02, help="seconds between its requests")
    parser.add_argument("--store", help="address of an event store (default: a SQLite file)")
    parser.add_argument("--learn", default="every=5s")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kills")
    parser.add_argument("--without", default="", help="parts to leave out, with commas")
    parser.add_argument("--growth", type=float, default=300.0, help="MB that memory may grow by")
    parser.add_argument("--memory", type=int, default=8192, help="MB of address space a process")
    parser.add_argument("--log", type=Path, help="file for the service's log (default: removed)")
    parser.add_argument("--json", type=Path, help="file for the figures, besides the output")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everything-") as folder:
        run = Run(Path(folder), args)
        figures = measure(run, args)
        figures["counts"] = dict(sorted(run.count.items()))
    text = json.dumps(figures, indent=2)
    print(text)
    print_table(figures)
    if args.json:
        args.json.write_text(text + "\n")
    return int(bool(figures["violations"]))


if __name__ == "__main__":
    sys.exit(main())
