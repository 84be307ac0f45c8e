"""Services with a store: durable before the response, killed at any time, hostile ids."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
if not Path("/proc/self/task").exists():
    pytest.skip("needs /proc to find workers", allow_module_level=True)

from postgres import binary, postgres
from processes import state_of, workers_of
from service import Remote, read_answer
from waiting import LONG_S, until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The module of the benchmark, whose parts run here with fewer events."""
    sys.path.insert(0, str(BENCHMARKS))
    import events

    yield events
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tr.synthetic_log(1500, users=80, items=60, seed=3)
    return tr.TALE(reg=20).fit(log).save(tmp_path_factory.mktemp("models") / "shop.tale")


# -- synced ----------------------------------------------------------------------------------------


def post(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = "POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def send(worker: int, connections: list[socket.socket], body: dict[str, Any]) -> list[int]:
    """Send one request over several connections; the worker is paused until all have arrived."""
    os.kill(worker, signal.SIGSTOP)
    until(lambda: state_of(worker) in ("T", "t"))
    for connection in connections:
        connection.sendall(post(body))
    os.kill(worker, signal.SIGCONT)
    return [read_answer(connection).status for connection in connections]


CALLS = "read|recvfrom|write|sendto|writev|fdatasync|fsync"
LINE = re.compile(
    rf"^(?P<thread>\d+) +(?:(?P<call>{CALLS})\((?P<descriptor>\d+)"
    rf"|<\.\.\. (?P<resumed>{CALLS}) resumed)(?P<rest>.*)"
)


def test_every_202_comes_after_a_sync_that_began_after_its_request(
    saved: Path, tmp_path: Path
) -> None:
    """By the system calls of a worker; waiting requests may share a sync."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    service = Remote(saved, "--store", f"sqlite:///{tmp_path}/shop.db")
    out = tmp_path / "calls"
    try:
        (worker,) = workers_of(service.process.pid)
        calls = "trace=" + CALLS.replace("|", ",")
        command = [strace, "-f", "-s", "40", "-e", calls, "-o", str(out), "-p", str(worker)]
        tracing = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracing.stderr is not None
        if "attached" not in (said := tracing.stderr.readline()):
            pytest.skip(f"needs the right to trace a process: {said}")
        connections = [service.connect() for _ in range(12)]
        event = {"user_id": "ann", "item_id": 3}
        for _ in range(10):
            assert send(worker, connections[:1], {"events": [event]}) == [202]
        for _ in range(3):
            assert set(send(worker, connections, {"events": [event]})) == {202}
        for connection in connections:
            connection.close()
        tracing.terminate()
        tracing.wait(LONG_S)
        tracing.stderr.close()
    finally:
        service.stop()
    answers, syncs = follow(out.read_text().splitlines())
    assert answers == 10 + 3 * 12
    assert 10 <= syncs < answers  # ten were alone, the others came together


BROKEN_OFF = [
    '7 recvfrom(40,  <unfinished ...>',
    '9 fdatasync(5 <unfinished ...>',
    '7 <... recvfrom resumed>"POST /v1/events HTTP/1.1\\r\\nhost"..., 262144, 0, NULL, NULL) = 170',
    '9 <... fdatasync resumed>)         = 0',
    '7 sendto(40, "HTTP/1.1 202 Accepted\\r\\ncontent-t"..., 200, 0, NULL, 0) = 200',
]  # fmt: skip


def test_interrupted_lines_of_strace_are_joined() -> None:
    """The sync began before the request was read, so the 202 came too early."""
    with pytest.raises(AssertionError, match="202 Accepted"):
        follow(BROKEN_OFF)
    assert follow([BROKEN_OFF[n] for n in (0, 2, 1, 3, 4)]) == (1, 1)


def follow(lines: list[str]) -> tuple[int, int]:
    """Return the number of 202s and of syncs; check that a sync precedes each 202.

    The sync must have begun after the request of the 202 was read.
    """
    began = dict[str, tuple[int, str]]()  # thread -> where its unfinished call began, of what file
    ended: list[tuple[int, int]] = []
    read_at: dict[str, int] = {}  # descriptor -> where its request was read
    answers = 0
    for n, line in enumerate(lines):
        match = LINE.match(line)
        if match is None:
            continue
        thread, descriptor, rest = match["thread"], match["descriptor"], match["rest"]
        call, start = match["call"] or match["resumed"], n
        if match["resumed"]:
            start, descriptor = began.pop(thread, (-1, ""))  # it began before tracing did
        if "HTTP/1.1 202" in rest:  # what is written is printed where the call begins
            answers += 1
            assert any(begin > read_at[descriptor] for begin, end in ended if end < n), line
        if "<unfinished" in rest:
            began[thread] = n, descriptor
        elif call in ("fdatasync", "fsync"):
            ended.append((start, n))
        elif call in ("read", "recvfrom") and "POST /v1/events" in rest:
            read_at[descriptor] = n
    return answers, len(ended)


def test_postgresql_has_flushed_its_log_before_every_202(saved: Path, tmp_path: Path) -> None:
    """Right after a response, no part of the server's log waits for the disk."""
    flushed = "select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
    with postgres() as server, server.connect() as watching:
        service = Remote(saved, "--store", server.address)
        try:
            for n in range(20):
                sent = {"events": [{"user_id": "ann", "item_id": n}]}
                assert service.ask("POST", "/v1/events", sent).status == 202
                assert watching.execute(flushed).fetchone()[0]
        finally:
            service.stop()


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_acknowledged_events_are_stored_once_despite_kills(
    bench: Any, store: str, tmp_path: Path
) -> None:
    """The benchmark with fewer events compares the stored with the sent events."""
    if store == "postgresql":
        pytest.importorskip("psycopg", reason="needs psycopg (extra databases)")
        if binary("postgres") is None:
            pytest.skip("needs PostgreSQL's initdb and postgres")
    arguments = argparse.Namespace(store=store, events=2400, clients=8, batch=3, kills=2, workers=2)
    facts = bench.kill(arguments, tmp_path)
    assert (facts["kept"], facts["missing"], facts["twice"], facts["unordered"]) == (2400, 0, 0, 0)
    assert sum(facts["killed"].values()) == 2


# -- several workers, many users -------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    store = f"sqlite:///{tmp_path_factory.mktemp('store')}/shop.db"
    service = Remote(saved, "--workers", "2", "--store", store)
    yield service
    assert service.stop() == 0


def test_an_event_is_in_the_next_answer_and_soon_in_every_worker(
    bench: Any, workers: Remote
) -> None:
    result = asyncio.run(bench.freshness(workers.port, 120, 2, 8))
    assert result["not_in_the_next_answer"] == 0
    assert result["max_s"] < LONG_S  # a busy machine; the benchmark looks at one second


def test_many_users_and_hostile_ids_are_answered(bench: Any, workers: Remote) -> None:
    """Random users and hostile ids: no response is an error."""
    rng = np.random.default_rng(3)
    odd = ["\u202e", "'; drop table talerec_events; --", "../../etc/passwd", "%00"]
    odd += ["\U0001f375" * 500, "NaN", "null", "0x10", "1e3", "-0", "007", " x ", "a\nb"]
    odd += ["\ufeff", "{}", "\\", "%"]
    users = [*odd, *map(int, rng.integers(-5, 10**18, 200)), *map(str, rng.integers(0, 99, 200))]

    async def ask() -> list[int]:
        connection = bench.Connection(workers.port)
        statuses = []
        for user in users:
            event = {"user_id": user, "item_id": user, "event": "view"}
            statuses.append((await connection.ask("POST", "/v1/events", {"events": [event]}))[0])
            statuses.append(
                (await connection.ask("POST", "/v1/recommend", {"user_id": user, "k": 3}))[0]
            )
        await connection.close()
        return statuses

    assert set(asyncio.run(ask())) == {200, 202}
    assert workers.metric('talerec_requests_total{route="/v1/events",status="500"}') == 0


def test_a_user_with_very_many_events_is_answered(bench: Any, workers: Remote) -> None:
    some = [{"user_id": "busy", "item_id": n % 60 + 1, "timestamp": 10**9 + n} for n in range(5000)]
    for n in range(0, 20_000, 5000):
        moved = [{**event, "timestamp": event["timestamp"] + n} for event in some]
        assert workers.ask("POST", "/v1/events", {"events": moved}).status == 202
    shown = workers.ask("GET", "/v1/users/busy").json["history"]
    assert len(shown) == 2500
    assert workers.ask("POST", "/v1/recommend", {"user_id": "busy", "k": 5}).status == 200
