"""A store keeps acknowledged events, once, in commit order, in SQLite and PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postgres import postgres
from talerec.errors import TalerecError
from talerec.store import (
    AppendResult,
    ConflictError,
    Event,
    EventTail,
    EventWriter,
    Store,
    StoredRow,
    StoreError,
    WriteRequest,
    validate_id,
)
from talerec.store.events import SCHEMA_VERSION, RefusedError
from waiting import LONG_S, until


def ann(item: str, time: int, **more: Any) -> Event:
    return Event("ann", item, time, **more)


# -- writing ---------------------------------------------------------------------------------------


def test_events_are_read_back_in_time_order(address: str, opened: Any) -> None:
    store = opened(address)
    events = [ann("tea", 5, event="buy", event_id="e1"), ann("cup", 2), Event("b\u00f6b", "tea", 3)]
    assert store.append([events]) == [AppendResult(3, 0)]
    assert store.read_user("ann", 10) == [
        StoredRow(2, "ann", "cup", 2),
        StoredRow(1, "ann", "tea", 5, "buy", "e1"),
    ]
    assert store.read_user("ann", 1) == [StoredRow(1, "ann", "tea", 5, "buy", "e1")]
    assert store.read_user("b\u00f6b", 10) == [StoredRow(3, "b\u00f6b", "tea", 3)]
    assert store.read_user("nobody", 10) == []
    assert [row.seq for row in store.read_after(0)] == [1, 2, 3]
    assert store.read_after(1, 1) == [StoredRow(2, "ann", "cup", 2)]
    store.close()
    reopened = opened(address)
    assert reopened.meta() == store.meta()
    assert reopened.meta().seq == 3


def test_repeats_are_duplicates_and_conflicts_are_named_by_index(address: str, opened: Any) -> None:
    store = opened(address)
    first = ann("tea", 5, event_id="e1")
    assert store.append([[first, ann("cup", 6)]]) == [AppendResult(2, 0)]
    assert store.append([[first], [first, ann("jam", 7, event_id="e2")]]) == [
        AppendResult(0, 1),
        AppendResult(1, 1),
    ]
    outcomes = store.append(
        [
            [ann("rye", 8), ann("tea", 9, event_id="e1")],
            [ann("oat", 9), ann("fig", 9, event_id="e3"), ann("fig", 9, event_id="e3")],
            [ann("elm", 9, event_id="e4"), ann("ash", 9, event_id="e4")],
            [ann("elm", 9, event_id="e4")],
        ]
    )
    assert isinstance(outcomes[0], ConflictError)
    assert (outcomes[0].index, outcomes[0].event_id) == (1, "e1")
    assert outcomes[1] == AppendResult(2, 1)
    assert isinstance(outcomes[2], ConflictError)
    assert outcomes[3] == AppendResult(1, 0)  # the ids of a refused request are not stored
    stored = [row.item for row in store.read_user("ann", 100)]
    assert sorted(str(item) for item in stored) == ["cup", "elm", "fig", "jam", "oat", "tea"]
    assert [row.seq for row in store.read_after(0)] == [1, 2, 3, 4, 5, 6]


def test_a_repeat_may_lack_a_time(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[ann("tea", 5, event_id="a", has_time=False), ann("tea", 5, event_id="b")]])
    repeat = [ann("tea", 9, event_id="a"), ann("tea", 9, event_id="b", has_time=False)]
    assert store.append([repeat]) == [AppendResult(0, 2)]
    assert isinstance(store.append([[ann("tea", 9, event_id="b")]])[0], ConflictError)


def test_a_deleted_user_has_no_events_and_may_return(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[ann("tea", 5, event_id="e1"), Event("bob", "tea", 5)]])
    assert store.delete_user("ann", 77) == 3
    assert store.read_user("ann", 10) == []
    assert store.read_after(0) == [StoredRow(2, "bob", "tea", 5), StoredRow(3, "ann", None, 77)]
    store.append([[ann("cup", 78, event_id="e1")]])
    assert store.read_user("ann", 10) == [StoredRow(4, "ann", "cup", 78, None, "e1")]
    assert store.delete_user("ann", 99) == 5
    assert store.read_deletions() == {"ann": StoredRow(5, "ann", None, 99)}
    assert store.read_deletions(5) == {}
    assert store.read_after(2) == [StoredRow(5, "ann", None, 99)]


def test_a_smaller_seq_is_visible_before_a_larger_one(address: str) -> None:
    """Four writers at once: a reader that follows sees every row once, in order."""
    Store.open(address).close()
    each, writers, seen = 40, 4, []
    done = threading.Event()

    def write(number: int) -> None:
        store = Store.open(address)
        for n in range(each):
            outcome = None
            while outcome is None:
                try:
                    outcome = store.append(
                        [[Event(f"u{number}", str(n), n, event_id=f"{number}-{n}")]]
                    )
                except StoreError:
                    continue
        store.close()

    def read() -> None:
        last = 0
        with Store.open(address) as store:
            while not (done.is_set() and last == each * writers):
                for row in store.read_after(last):
                    seen.append(row)
                    last = row.seq

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join(LONG_S)
    assert [row.seq for row in seen] == list(range(1, each * writers + 1))
    for number in range(writers):
        items = [row.item for row in seen if row.user == f"u{number}"]
        assert items == [str(n) for n in range(each)]


# -- stores that cannot be used --------------------------------------------------------------------


def test_a_store_of_a_newer_version_is_refused_in_one_line(address: str, opened: Any) -> None:
    store = opened(address)
    with store._connected() as connection:
        connection.execute(f"update talerec_meta set version = {SCHEMA_VERSION + 1}")
    said = (
        rf"is a store of version {SCHEMA_VERSION + 1}, and this version .* up to {SCHEMA_VERSION}"
    )
    with pytest.raises(TalerecError, match=said):
        Store.open(address)
    store.append([[ann("tea", 1)]])  # a connection opened before still works


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("sqlite:////nowhere/at/all/shop.db", "unable to open"),
        ("postgresql://ann:hushhush@127.0.0.1:1/shop", "refused"),
        ("duckdb:///shop.duckdb", "is not a store"),
        ("shop.csv", "is not a store"),
        ("", "is not a store"),
    ],
)
def test_an_unusable_store_is_refused_in_one_line(place: str, said: str) -> None:
    if place.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    with pytest.raises(TalerecError, match=said) as caught:
        Store.open(place)
    assert "\n" not in str(caught.value)
    assert "hushhush" not in str(caught.value)


def test_a_wrong_password_is_never_shown(server: Any) -> None:
    wrong = server.address.replace("topsecret", "wrong%2Fsecret")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        Store.open(wrong)
    assert not re.search("wrong.*secret", str(caught.value))


def test_a_read_only_database_is_refused(server: Any) -> None:
    with server.connect() as connection:
        connection.execute("create database readonly")
        connection.execute("alter database readonly set default_transaction_read_only = on")
    with pytest.raises(StoreError, match="read-only transaction"):
        Store.open(server.address.replace("/postgres", "/readonly"))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_without_unicode_is_refused(server: Any, encoding: str) -> None:
    name = f"as_{encoding.lower()}"
    with server.connect() as connection:
        connection.execute(f"create database {name} encoding '{encoding}' template template0")
    with pytest.raises(
        TalerecError, match=f"{encoding}.* create the database with encoding 'UTF8'"
    ):
        Store.open(server.address.replace("/postgres", f"/{name}"))


def test_ids_are_stored_whatever_the_client_encoding(
    server: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = opened(server.address)
    store.append([[Event("ż", "tea", 1)]])
    assert [row.user for row in store.read_user("ż", 9)] == ["ż"]


def test_a_request_that_cannot_be_stored_fails_alone(address: str, opened: Any) -> None:
    """Although it was submitted together with others."""
    ready, done = threading.Event(), threading.Event()
    requests = [WriteRequest([ann(f"i{n}", n)]) for n in range(6)]
    bad = "a\0b" if address.startswith("postgresql") else "\ud800"
    requests[3] = WriteRequest([Event(bad, "tea", 1)])
    store = opened(address)

    def deliver(some: list[WriteRequest]) -> None:
        if requests[5] in some:
            done.set()

    writer = EventWriter(store, deliver, lambda: ready.wait(LONG_S) and None)
    for request in requests:
        writer.submit(request)
    ready.set()
    assert done.wait(LONG_S)
    assert [request.result == AppendResult(1, 0) for request in requests] == [True] * 3 + [
        False
    ] + [True] * 2
    assert isinstance(requests[3].result, RefusedError | UnicodeError)
    assert [row.item for row in store.read_after(0)] == ["i0", "i1", "i2", "i4", "i5"]
    writer.stop(LONG_S)


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """Opened by an unprivileged user, since root may write everything."""
    folder = tmp_path / "others"
    folder.mkdir()
    Store.open(f"sqlite:///{folder}/shop.db").close()
    for path in (folder / "shop.db", folder):
        path.chmod(0o555)
    for place in (tmp_path, *tmp_path.parents):
        if "pytest" in str(place):
            place.chmod(0o755)
    code = f"""
import os, pwd, sqlite3, polars
from talerec.store.store import Store
if os.geteuid() == 0:
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
Store.open("sqlite:///{folder}/shop.db")
"""
    arguments: dict[str, Any] = {"capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", code], **arguments)
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("talerec.store.events.StoreError: sqlite:///")
    assert re.search("readonly|unable to open", last)


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/shop.db")


def test_a_locked_store_stores_nothing_and_works_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    store = Store.open(f"sqlite:///{path}")
    with store._connected() as connection:
        connection.execute("pragma busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreError, match="locked"):
        store.append([[ann("tea", 1)]])
    other.execute("rollback")
    assert store.read_after(0) == []
    assert store.append([[ann("tea", 1)]]) == [AppendResult(1, 0)]


def test_a_full_store_stores_nothing_of_the_group(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/shop.db")
    store.append([[ann("tea", 1)]])
    with store._connected() as connection:
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages + 2}")
    many = [ann(f"i{n}" * 50, n, event_id=f"e{n}") for n in range(1000)]
    with pytest.raises(StoreError, match="full"):
        store.append([[ann("cup", 2)], many])
    assert [row.item for row in store.read_after(0)] == ["tea"]
    assert store.append([[ann("cup", 2)]]) == [AppendResult(1, 0)]  # a new connection has room


def test_a_killed_server_is_reconnected(opened: Any) -> None:
    with postgres() as running:
        store = opened(running.address)
        assert store.append([[ann("tea", 1, event_id="e")]]) == [AppendResult(1, 0)]
        running.kill()
        with pytest.raises(StoreError) as caught:
            store.append([[ann("cup", 2)]])
        assert "topsecret" not in str(caught.value)
        running.start()
        assert store.append([[ann("tea", 1, event_id="e")]]) == [AppendResult(0, 1)]
        assert [row.item for row in store.read_after(0)] == ["tea"]


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is empty"),
        ("  \t", "is empty"),
        ("x" * 10_000, "has 10000 characters; the limit is 500"),
        ("\u00f6" * 501, "has 501 characters"),
        ("a\0b", "null character"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_invalid_ids_are_refused(value: str, said: str) -> None:
    with pytest.raises(TalerecError, match=f"user_id .*{said}"):
        validate_id(value, "user_id")


def test_an_id_of_maximal_length_is_stored(address: str, opened: Any) -> None:
    long = "\U0001f375" * 500
    store = opened(address)
    store.append([[Event(long, long, 1, "buy", long)]])
    assert store.read_user(validate_id(long, "user_id"), 1) == [
        StoredRow(1, long, long, 1, "buy", long)
    ]
    assert validate_id(-5, "user_id") == "-5"


# -- following a store -----------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("delete"), st.sampled_from("abc"), st.integers(0, 5)),
        st.tuples(st.just("load"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("poll"), st.just(""), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, limit=st.integers(1, 4), max_events=st.sampled_from([2, 6, 1000]))
def test_the_cache_equals_a_dictionary(
    steps: list[tuple[str, str, int]], limit: int, max_events: int, tmp_path_factory: Any
) -> None:
    """After any steps and a poll, the cache has the last events of every user by time."""
    address = f"sqlite:///{tmp_path_factory.mktemp('s')}/shop.db"
    tail, store = EventTail(address, limit, max_events), Store(address)
    heard: list[StoredRow] = []
    tail.subscribe(heard.extend)
    expected: dict[str, list[tuple[int, int]]] = {user: [] for user in "abc"}
    until = dict.fromkeys("abc", -1)  # up to which time events of a deleted user are ignored
    for n, (what, user, time) in enumerate(steps):
        if what == "event":
            store.append([[Event(user, f"i{n}", time)]])
            if time > until[user]:
                expected[user].append((time, n))
        elif what == "delete":
            store.delete_user(user, time)
            until[user] = max(until[user], time, *(when for when, _ in expected[user]))
            expected[user] = []
        elif what == "load":
            tail.get(user) or tail.load(user)
        else:
            tail.poll()
    tail.poll()
    for user in "abc":
        cached = tail.get(user) or tail.load(user)
        assert [row.item for row in cached.events] == [
            f"i{n}" for _, n in sorted(expected[user])[-limit:]
        ]
    gone = {row.user for row in heard if row.item is None}
    assert set(tail.deleted) == gone == {user for what, user, _ in steps if what == "delete"}
    assert tail._size == sum(cached.size for cached in tail._users.values())
    tail.close()
    store.close()


def test_events_polled_while_a_user_is_read_are_not_lost(tmp_path: Path) -> None:
    """Another process writes, and we poll, between reading a user and caching the rows."""
    address = f"sqlite:///{tmp_path}/shop.db"
    tail, store = EventTail(address, 10), Store(address)
    store.append([[ann("tea", 1)]])
    tail.poll()
    slow = tail._reader.read_user

    def of_user(*arguments: Any) -> list[StoredRow]:
        rows = slow(*arguments)
        store.append([[ann("cup", 2)]])
        tail.poll()
        return rows

    tail._reader.read_user = of_user  # type: ignore[method-assign]
    assert [row.item for row in tail.load("ann").events] == ["tea", "cup"]


def test_listeners_get_every_row_once_and_are_dropped_with_their_object(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([[ann(f"i{n}", n) for n in range(5)]])
        tail = EventTail(address, 10)

        class Heard:
            def __init__(self) -> None:
                self.seqs: list[int] = []

            def add(self, rows: list[StoredRow]) -> None:
                self.seqs += [row.seq for row in rows]

        store.append([[ann("later", 9)]])  # not read yet
        from_start, from_two, from_now = Heard(), Heard(), Heard()
        tail.replay(from_start.add, 0)
        tail.replay(from_two.add, 2)
        tail.subscribe(from_now.add)
        store.append([[ann("last", 10)]])
        tail.poll()
        assert from_start.seqs == [1, 2, 3, 4, 5, 6, 7]
        assert from_two.seqs == [3, 4, 5, 6, 7]
        assert from_now.seqs == [6, 7]
        del from_two
        tail.poll()
        store.append([[ann("end", 11)]])
        tail.poll()
        assert len(tail._listeners) == 2
        tail.close()


def test_a_failing_listener_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    tail, heard = EventTail(address, 10), list[StoredRow]()

    def fail(rows: list[StoredRow]) -> None:
        raise KeyError("oh")

    tail.subscribe(fail)
    tail.subscribe(heard.extend)
    assert tail.load("ann").events == []
    with Store.open(address) as store:
        store.append([[ann("tea", 1)]])
    tail.poll()
    assert [row.item for row in tail.load("ann").events] == ["tea"]
    assert len(heard) == 1
    assert "a listener failed" in caplog.text
    tail.close()


def test_polling_survives_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setattr("talerec.store.tail._POLL_S", 0.01)
    monkeypatch.setattr("talerec.store.tail._RETRY_S", 0.01)
    follower, stop, failed = EventTail(address, 10), threading.Event(), threading.Event()
    read = follower._poller.read_after

    def fail_once(after: int, limit: int) -> list[StoredRow]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody thought of this")
        return read(after, limit)

    monkeypatch.setattr(follower._poller, "read_after", fail_once)
    with Store(address) as store:
        store.append([[ann("tea", 1)]])
    watching = threading.Thread(target=follower.run, args=(stop,), daemon=True)
    watching.start()
    until(lambda: follower.seq == 1 or not watching.is_alive())
    stop.set()
    watching.join(LONG_S)
    assert (follower.seq, follower.is_available) == (1, True)
    follower.close()


def test_a_large_backlog_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talerec.store.tail.MAX_BACKLOG", 20)
    monkeypatch.setattr("talerec.store.tail._POLL_ROWS", 5)
    address = f"sqlite:///{tmp_path}/shop.db"
    tail, store = EventTail(address, 10), Store(address)
    heard: list[StoredRow] = []
    tail.subscribe(heard.extend)
    assert tail.load("ann").events == []
    store.append([[ann(f"i{n}", n) for n in range(100)]])
    store.delete_user("bob", 5)
    tail.poll()
    assert len(heard) < 40
    assert tail.get("ann") is None
    assert [row.item for row in tail.load("ann").events] == [f"i{n}" for n in range(90, 100)]
    assert tail.deleted == {"bob": 101}
    assert tail.seq == 101
