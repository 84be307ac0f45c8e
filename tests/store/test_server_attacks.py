"""PostgreSQL under attack: lost connections, failover, read-only, timeouts, jumping clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, send, service_with_store
from talerec.store import AppendResult, Event, EventTail, Store, StoreError
from waiting import until

YEAR_NS = 365 * 86_400 * 10**9
DAY_NS = 86_400 * 10**9


class Broken:
    """A driver's connection whose server process is ended before, or after, the n-th statement."""

    def __init__(self, connection: Any, server: Any, step: int, after: bool) -> None:
        self._connection, self._server, self._left, self._after = connection, server, step, after
        self.statements: list[str] = []

    def execute(self, query: str, *parameters: Any) -> Any:
        import psycopg

        self._left -= 1
        self.statements.append(query)
        if self._left == 0 and not self._after:
            self._end()
        result = self._connection.execute(query, *parameters)
        if self._left == 0 and self._after:  # it was done, but the answer does not arrive
            self._end()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return result

    def _end(self) -> None:
        pid = self._connection.info.backend_pid
        with self._server.connect() as other:
            other.execute("select pg_terminate_backend(%s)", (pid,))
            gone = "select count(*) = 0 from pg_stat_activity where pid = %s"
            until(lambda: other.execute(gone, (pid,)).fetchone()[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("what", ["append", "delete", "import", "prune"])
def test_a_connection_lost_in_any_statement_loses_and_doubles_nothing(
    server: Any, opened: Any, what: str, after: bool
) -> None:
    """Each statement in turn; the call fails, and repeating it gives what one call gives."""
    with server.connect() as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    store = opened(server.address)
    rows = [Event(f"u{n % 3}", f"i{n}", n, "buy", f"e{n}") for n in range(9)]
    step, n_failures = 0, 0
    while True:
        step += 1
        with store._connected() as connection:
            for table in ("talerec_events", "talerec_deletions"):
                connection.execute(f"delete from {table}")
            connection.execute("update talerec_meta set deleted_until = 0")
        store.append([rows[:6]])
        with store._connected() as connection:
            store._connection = broken = Broken(connection, server, step, after)

        def call() -> Any:
            if what == "append":
                return store.append([rows[3:]])
            if what == "delete":
                return store.delete_user("u1", 100)
            if what == "prune":
                return store.prune(0, 3)
            untagged = [event._replace(event_id=None) for event in rows]
            return store.append_missing(untagged, 10**9)

        try:
            call()
        except StoreError:
            n_failures += 1
            call()
        else:
            assert broken._left > 0, "a lost connection was not reported"
        n_left = broken._left
        store.close()
        stored = sorted(row.item for row in store.read_after(0) if row.item is not None)
        expected = {
            "append": [f"i{n}" for n in range(9)],
            "import": [f"i{n}" for n in range(9)],
            "delete": ["i0", "i2", "i3", "i5"],
            "prune": ["i3", "i4", "i5"],
        }
        assert stored == expected[what]
        if n_left > 0:
            break
    assert n_failures == step - 1 >= 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tr.synthetic_log(1500, users=80, items=60, seed=3)
    return tr.TALE(reg=20).fit(log).save(tmp_path_factory.mktemp("models") / "shop.tale")


@pytest.fixture
def local(saved: Path, tmp_path: Path, server: Any) -> Iterator[Local]:
    with server.connect() as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    with service_with_store(saved, tmp_path / "run", server.address) as service:
        yield service


def send_until_stored(local: Local, event: dict[str, Any], seconds: float = 10.0) -> None:
    """Send an event again until it is acknowledged, for some seconds after the last attack."""
    end = time.monotonic() + seconds
    while (answer := send(local, event)).status != 202:
        assert answer.status == 503, answer.body
        assert local.post("/v1/recommend", {"user_id": 1, "k": 2}).status == 200
        assert time.monotonic() < end, "no answer within 10 s"
        time.sleep(0.05)


def stored_ids(address: str) -> list[str]:
    with Store(address) as store:
        return sorted(str(row.event_id) for row in store.read_after(0) if row.item is not None)


def end_sessions(server: Any) -> None:
    with server.connect() as connection:
        connection.execute("set statement_timeout = 0")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where pid <> pg_backend_pid() and datname is not null"
        )


def test_sessions_that_are_ended_again_and_again_lose_nothing(local: Local, server: Any) -> None:
    for n in range(40):
        if n % 4 == 0:
            end_sessions(server)
        send_until_stored(local, {"user_id": n % 5, "item_id": 1, "event_id": f"e{n:02}"})
    assert stored_ids(server.address) == [f"e{n:02}" for n in range(40)]


@pytest.mark.parametrize("name", ["default_transaction_read_only", "statement_timeout"])
def test_a_server_that_refuses_to_write_gets_no_event_acknowledged(
    local: Local, server: Any, name: str
) -> None:
    value = {"default_transaction_read_only": "on", "statement_timeout": "'1ms'"}[name]
    send_until_stored(local, {"user_id": 1, "item_id": 1, "event_id": "a"})
    with server.connect() as connection:
        connection.execute(f"alter role shop set {name} = {value}")
    try:
        end_sessions(server)
        with suppress(AssertionError):
            until_failed = time.monotonic() + 10
            while send(local, {"user_id": 1, "item_id": 2}).status == 202:
                assert time.monotonic() < until_failed
        if name != "statement_timeout":  # a quick server may be in time
            assert send(local, {"user_id": 1, "item_id": 2, "event_id": "b"}).status == 503
        assert local.get("/health/ready").status == 200
    finally:
        with server.connect() as connection:
            connection.execute("set default_transaction_read_only = off")
            connection.execute("set statement_timeout = 0")
            connection.execute(f"alter role shop reset {name}")
        end_sessions(server)
    send_until_stored(local, {"user_id": 1, "item_id": 2, "event_id": "b"})
    assert stored_ids(server.address).count("b") == 1


def test_dropped_tables_are_not_made_anew_and_fail_the_probe(local: Local, server: Any) -> None:
    send_until_stored(local, {"user_id": 1, "item_id": 1, "event_id": "a"})
    with server.connect() as connection:
        connection.execute("alter schema public rename to away")
        connection.execute("create schema public")
    try:
        end_sessions(server)
        until(lambda: send(local, {"user_id": 1, "item_id": 2}).status == 503)
        until(lambda: local.get("/health/ready").status == 503)
        with server.connect() as connection:
            assert connection.execute("select to_regclass('talerec_meta')").fetchone()[0] is None
    finally:
        with server.connect() as connection:
            connection.execute("drop schema public")
            connection.execute("alter schema away rename to public")
    until(lambda: local.get("/health/ready").status == 200)
    send_until_stored(local, {"user_id": 1, "item_id": 2, "event_id": "b"})
    assert stored_ids(server.address) == ["a", "b"]


def test_a_standby_that_lacks_the_last_commits_is_followed(
    server: Any, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    store = opened(server.address)
    store.append([[Event("ann", f"i{n}", n) for n in range(5)]])
    tail = EventTail(server.address, 10)
    assert len(tail.load("ann").events) == 5
    with server.connect() as connection:
        connection.execute("delete from talerec_events where seq > 3")
        connection.execute("update talerec_meta set seq = 3")
    end_sessions(server)
    with suppress(StoreError):
        tail.poll()
    store.close()
    store.append([[Event("ann", "new", 9)]])
    tail.poll()
    assert "has lost rows" in caplog.text
    with suppress(StoreError):  # the connection for users was ended, too
        tail.load("bob")
    tail.poll()
    cached = tail.get("ann") or tail.load("ann")
    assert [row.item for row in cached.events] == ["i0", "i1", "i2", "new"]
    tail.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_clock_that_jumps_loses_and_doubles_nothing(
    saved: Path, tmp_path: Path, kind: str, request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day back, a year ahead, and back: events without times, retries, deletions."""
    address = f"sqlite:///{tmp_path}/shop.db"
    if kind == "postgresql":
        server = request.getfixturevalue("server")
        with server.connect() as connection:
            connection.execute("drop schema public cascade")
            connection.execute("create schema public")
        address = server.address
    jump = [0]
    monkeypatch.setattr("talerec.store.clock.time_ns", lambda: time.time_ns() + jump[0])
    sent = []
    settings: dict[str, Any] = {"keep_events": 86_400.0 * 90, "measure": 1.0}
    with service_with_store(saved, tmp_path / "run", address, **settings) as local:
        for n, offset in enumerate((0, -DAY_NS, YEAR_NS, 0, YEAR_NS, 0)):
            jump[0] = offset
            for m in range(5):
                event = {"user_id": 100 + m, "item_id": n + 1, "event_id": f"{n}-{m}"}
                sent.append(event)
                started = time.monotonic()
                assert send(local, event).json == {"accepted": 1, "duplicates": 0}
                assert send(local, event).json == {"accepted": 0, "duplicates": 1}
                assert time.monotonic() - started < 10
            history = local.get("/v1/users/100").json["history"]
            assert len(history) == n + 1
            assert local.post("/v1/recommend", {"user_id": "nobody", "k": 5}).status == 200
        late = {"user_id": 100, "item_id": 9, "timestamp": time.time() + 3 * 86_400}
        assert send(local, late).status == 422
        assert local.ask("DELETE", "/v1/users/101").status == 200
        assert local.get("/v1/users/101").status == 404
    expected = sorted(e["event_id"] for e in sent if e["user_id"] != 101)
    assert stored_ids(address) == expected
    with Store(address) as store:
        assert store.append([[Event("101", "1", 5)]]) == [AppendResult(0, 0, 1)]
