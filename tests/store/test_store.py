"""The store keeps what it acknowledges, once, in the order of commits; SQLite and PostgreSQL alike."""

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
from talerec.store import schema
from talerec.store.events import (
    Added,
    ConflictError,
    Event,
    Kept,
    RefusedError,
    StoreError,
    checked_id,
)  # fmt: skip
from talerec.store.store import Store
from talerec.store.tail import Recent
from talerec.store.writer import Ticket, Writer
from waiting import LONG_S, until


def ann(item: str, time: int, **more: Any) -> Event:
    return Event("ann", item, time, **more)


# -- keeping ---------------------------------------------------------------------------------------


def test_events_come_back_as_they_were_given_in_time_order(address: str, opened: Any) -> None:
    store = opened(address)
    given = [ann("tea", 5, event="buy", event_id="e1"), ann("cup", 2), Event("b\u00f6b", "tea", 3)]
    assert store.append([given]) == [Added(3, 0)]
    assert store.of_user("ann", 10) == [
        Kept(2, "ann", "cup", 2),
        Kept(1, "ann", "tea", 5, "buy", "e1"),
    ]
    assert store.of_user("ann", 1) == [Kept(1, "ann", "tea", 5, "buy", "e1")]
    assert store.of_user("b\u00f6b", 10) == [Kept(3, "b\u00f6b", "tea", 3)]
    assert store.of_user("nobody", 10) == []
    assert [row.seq for row in store.tail(0)] == [1, 2, 3]
    assert store.tail(1, 1) == [Kept(2, "ann", "cup", 2)]
    store.close()
    again = opened(address)
    assert again.meta() == store.meta()
    assert again.meta().seq == 3


def test_a_repeat_is_a_duplicate_and_other_contents_are_refused_by_their_place(
    address: str, opened: Any
) -> None:
    store = opened(address)
    first = ann("tea", 5, event_id="e1")
    assert store.append([[first, ann("cup", 6)]]) == [Added(2, 0)]
    assert store.append([[first], [first, ann("jam", 7, event_id="e2")]]) == [
        Added(0, 1),
        Added(1, 1),
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
    assert (outcomes[0].place, outcomes[0].event_id) == (1, "e1")
    assert outcomes[1] == Added(2, 1)
    assert isinstance(outcomes[2], ConflictError)
    assert outcomes[3] == Added(1, 0)  # what a refused request brought is not known
    kept = [row.item for row in store.of_user("ann", 100)]
    assert sorted(str(item) for item in kept) == ["cup", "elm", "fig", "jam", "oat", "tea"]
    assert [row.seq for row in store.tail(0)] == [1, 2, 3, 4, 5, 6]


def test_a_repeat_without_a_time_of_its_own_is_a_repeat(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[ann("tea", 5, event_id="a", timed=False), ann("tea", 5, event_id="b")]])
    again = [ann("tea", 9, event_id="a"), ann("tea", 9, event_id="b", timed=False)]
    assert store.append([again]) == [Added(0, 2)]
    assert isinstance(store.append([[ann("tea", 9, event_id="b")]])[0], ConflictError)


def test_a_deleted_user_has_no_rows_and_may_begin_anew(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[ann("tea", 5, event_id="e1"), Event("bob", "tea", 5)]])
    assert store.forget("ann", 77) == 3
    assert store.of_user("ann", 10) == []
    assert store.tail(0) == [Kept(2, "bob", "tea", 5), Kept(3, "ann", None, 77)]
    store.append([[ann("cup", 4, event_id="e1")]])
    assert store.of_user("ann", 10) == [Kept(4, "ann", "cup", 4, None, "e1")]
    assert store.forget("ann", 99) == 5
    assert store.deletions() == {"ann": Kept(5, "ann", None, 99)}
    assert store.deletions(5) == {}
    assert store.tail(2) == [Kept(5, "ann", None, 99)]


def test_a_smaller_seq_is_always_there_before_a_larger_one(address: str) -> None:
    """Four writers at once, and a reader that reads on: it sees every row, once, in order."""
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
                for row in store.tail(last):
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
        mine = [row.item for row in seen if row.user == f"u{number}"]
        assert mine == [str(n) for n in range(each)]


# -- stores that cannot be used --------------------------------------------------------------------


def test_a_store_of_a_newer_version_is_refused_in_one_line(address: str, opened: Any) -> None:
    store = opened(address)
    with store._used() as connection:
        connection.execute(f"update talerec_meta set version = {schema.VERSION + 1}")
    said = (
        rf"is a store of version {schema.VERSION + 1}, and this version .* up to {schema.VERSION}"
    )
    with pytest.raises(TalerecError, match=said):
        Store.open(address)
    store.append([[ann("tea", 1)]])  # the connection that was there before goes on


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
def test_a_store_that_cannot_be_opened_says_why_in_one_line(place: str, said: str) -> None:
    if place.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    with pytest.raises(TalerecError, match=said) as caught:
        Store.open(place)
    assert "\n" not in str(caught.value)
    assert "hushhush" not in str(caught.value)


def test_a_wrong_password_is_never_repeated(server: Any) -> None:
    wrong = server.address.replace("topsecret", "wrong%2Fsecret")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        Store.open(wrong)
    assert not re.search("wrong.*secret", str(caught.value))


def test_a_store_that_may_not_be_written_is_refused(server: Any) -> None:
    with server.connect() as connection:
        connection.execute("create database readonly")
        connection.execute("alter database readonly set default_transaction_read_only = on")
    with pytest.raises(StoreError, match="read-only transaction"):
        Store.open(server.address.replace("/postgres", "/readonly"))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_does_not_keep_every_id_is_refused(server: Any, encoding: str) -> None:
    name = f"as_{encoding.lower()}"
    with server.connect() as connection:
        connection.execute(f"create database {name} encoding '{encoding}' template template0")
    with pytest.raises(TalerecError, match=f"{encoding}.* create database ... encoding 'UTF8'"):
        Store.open(server.address.replace("/postgres", f"/{name}"))


def test_ids_are_kept_whatever_encoding_the_client_would_have(
    server: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = opened(server.address)
    store.append([[Event("ż", "tea", 1)]])
    assert [row.user for row in store.of_user("ż", 9)] == ["ż"]


def test_a_request_that_cannot_be_kept_fails_alone(address: str, opened: Any) -> None:
    """Though it was committed together with others."""
    ready, done = threading.Event(), threading.Event()
    tickets = [Ticket([ann(f"i{n}", n)]) for n in range(6)]
    bad = "a\0b" if address.startswith("postgresql") else "\ud800"
    tickets[3] = Ticket([Event(bad, "tea", 1)])
    store = opened(address)

    def deliver(some: list[Ticket]) -> None:
        if tickets[5] in some:
            done.set()

    writer = Writer(store, deliver, lambda: ready.wait(LONG_S) and None)
    for ticket in tickets:
        writer.submit(ticket)
    ready.set()
    assert done.wait(LONG_S)
    assert [ticket.outcome == Added(1, 0) for ticket in tickets] == [True] * 3 + [False] + [
        True
    ] * 2
    assert isinstance(tickets[3].outcome, RefusedError | UnicodeError)
    assert [row.item for row in store.tail(0)] == ["i0", "i1", "i2", "i4", "i5"]
    writer.stop(LONG_S)


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """Asked by somebody without rights, since root has all of them."""
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
    given: dict[str, Any] = {"capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", code], **given)
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("talerec.store.events.StoreError: sqlite:///")
    assert re.search("readonly|unable to open", last)


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/shop.db")


def test_a_locked_store_keeps_nothing_and_works_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    store = Store.open(f"sqlite:///{path}")
    with store._used() as connection:
        connection.execute("pragma busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(StoreError, match="locked"):
        store.append([[ann("tea", 1)]])
    other.execute("rollback")
    assert store.tail(0) == []
    assert store.append([[ann("tea", 1)]]) == [Added(1, 0)]


def test_a_full_store_keeps_nothing_of_the_group(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/shop.db")
    store.append([[ann("tea", 1)]])
    with store._used() as connection:
        pages = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {pages + 2}")
    many = [ann(f"i{n}" * 50, n, event_id=f"e{n}") for n in range(1000)]
    with pytest.raises(StoreError, match="full"):
        store.append([[ann("cup", 2)], many])
    assert [row.item for row in store.tail(0)] == ["tea"]
    assert store.append([[ann("cup", 2)]]) == [Added(1, 0)]  # a new connection has room


def test_a_server_that_was_killed_is_connected_to_again(opened: Any) -> None:
    with postgres() as running:
        store = opened(running.address)
        assert store.append([[ann("tea", 1, event_id="e")]]) == [Added(1, 0)]
        running.kill()
        with pytest.raises(StoreError) as caught:
            store.append([[ann("cup", 2)]])
        assert "topsecret" not in str(caught.value)
        running.start()
        assert store.append([[ann("tea", 1, event_id="e")]]) == [Added(0, 1)]
        assert [row.item for row in store.tail(0)] == ["tea"]


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is empty"),
        ("  \t", "is empty"),
        ("x" * 10_000, "has 10000 characters; the limit is 500"),
        ("\u00f6" * 501, "has 501 characters"),
        ("a\0b", "zero character"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_ids_that_no_database_keeps_are_refused(value: str, said: str) -> None:
    with pytest.raises(TalerecError, match=f"user_id .*{said}"):
        checked_id(value, "user_id")


def test_an_id_of_the_greatest_length_is_kept(address: str, opened: Any) -> None:
    long = "\U0001f375" * 500
    store = opened(address)
    store.append([[Event(long, long, 1, "buy", long)]])
    assert store.of_user(checked_id(long, "user_id"), 1) == [Kept(1, long, long, 1, "buy", long)]
    assert checked_id(-5, "user_id") == "-5"


# -- what is remembered ----------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("ask"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("read on"), st.just(""), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, limit=st.integers(1, 4), room=st.sampled_from([2, 6, 1000]))
def test_what_is_remembered_is_what_a_dictionary_would_have(
    steps: list[tuple[str, str, int]], limit: int, room: int, tmp_path_factory: Any
) -> None:
    """Whatever is asked and forgotten in between, after reading on every user has its last rows by time."""
    address = f"sqlite:///{tmp_path_factory.mktemp('s')}/shop.db"
    recent, store = Recent(address, limit, room), Store(address)
    heard: list[Kept] = []
    recent.attach(heard.extend)
    wanted: dict[str, list[tuple[int, int]]] = {user: [] for user in "abc"}
    for n, (what, user, time) in enumerate(steps):
        if what == "event":
            store.append([[Event(user, f"i{n}", time)]])
            wanted[user].append((time, n))
        elif what == "forget":
            store.forget(user, n)
            wanted[user] = []
        elif what == "ask":
            recent.get(user) or recent.load(user)
        else:
            recent.catch_up()
    recent.catch_up()
    for user in "abc":
        found = recent.get(user) or recent.load(user)
        assert [row.item for row in found.rows] == [
            f"i{n}" for _, n in sorted(wanted[user])[-limit:]
        ]
    gone = {row.user for row in heard if row.item is None}
    assert set(recent.deleted) == gone == {user for what, user, _ in steps if what == "forget"}
    assert recent._size == sum(one.size for one in recent._users.values())
    recent.close()
    store.close()


def test_rows_that_come_while_a_user_is_read_are_not_lost(tmp_path: Path) -> None:
    """The store is read, then another process writes, then we read on, and only then the rows read first are remembered."""
    address = f"sqlite:///{tmp_path}/shop.db"
    recent, store = Recent(address, 10), Store(address)
    store.append([[ann("tea", 1)]])
    recent.catch_up()
    slow = recent._reader.of_user

    def of_user(user: str, limit: int) -> list[Kept]:
        found = slow(user, limit)
        store.append([[ann("cup", 2)]])
        recent.catch_up()
        return found

    recent._reader.of_user = of_user  # type: ignore[method-assign]
    assert [row.item for row in recent.load("ann").rows] == ["tea", "cup"]


def test_who_joins_late_is_told_of_every_row_once_and_forgotten_when_it_is_gone(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([[ann(f"i{n}", n) for n in range(5)]])
        recent = Recent(address, 10)

        class Heard:
            def __init__(self) -> None:
                self.seqs: list[int] = []

            def add(self, rows: list[Kept]) -> None:
                self.seqs += [row.seq for row in rows]

        store.append([[ann("later", 9)]])  # not read yet
        from_start, from_two, from_now = Heard(), Heard(), Heard()
        recent.attach(from_start.add, 0)
        recent.attach(from_two.add, 2)
        recent.attach(from_now.add)
        store.append([[ann("last", 10)]])
        recent.catch_up()
        assert from_start.seqs == [1, 2, 3, 4, 5, 6, 7]
        assert from_two.seqs == [3, 4, 5, 6, 7]
        assert from_now.seqs == [6, 7]
        del from_two
        recent.catch_up()
        store.append([[ann("end", 11)]])
        recent.catch_up()
        assert len(recent._listeners) == 2
        recent.close()


def test_a_listener_that_fails_keeps_nobody_from_knowing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    recent, heard = Recent(address, 10), list[Kept]()

    def fail(rows: list[Kept]) -> None:
        raise KeyError("oh")

    recent.attach(fail)
    recent.attach(heard.extend)
    assert recent.load("ann").rows == []
    with Store.open(address) as store:
        store.append([[ann("tea", 1)]])
    recent.catch_up()
    assert [row.item for row in recent.load("ann").rows] == ["tea"]
    assert len(heard) == 1
    assert "a listener failed" in caplog.text
    recent.close()


def test_reading_on_outlasts_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setattr("talerec.store.tail._POLL_S", 0.01)
    monkeypatch.setattr("talerec.store.tail._PAUSE_S", 0.01)
    recent, stop, failed = Recent(address, 10), threading.Event(), threading.Event()
    read = recent._tail.tail

    def tail(after: int, limit: int) -> list[Kept]:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("nobody thought of this")
        return read(after, limit)

    monkeypatch.setattr(recent._tail, "tail", tail)
    with Store(address) as store:
        store.append([[ann("tea", 1)]])
    watching = threading.Thread(target=recent.watch, args=(stop,), daemon=True)
    watching.start()
    until(lambda: recent.seq == 1 or not watching.is_alive())
    stop.set()
    watching.join(LONG_S)
    assert (recent.seq, recent.answers) == (1, True)
    recent.close()


def test_far_behind_users_are_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talerec.store.tail.BEGIN", 20)
    monkeypatch.setattr("talerec.store.tail._STEP", 5)
    address = f"sqlite:///{tmp_path}/shop.db"
    recent, store = Recent(address, 10), Store(address)
    heard: list[Kept] = []
    recent.attach(heard.extend)
    assert recent.load("ann").rows == []
    store.append([[ann(f"i{n}", n) for n in range(100)]])
    store.forget("bob", 5)
    recent.catch_up()
    assert len(heard) < 40
    assert recent.get("ann") is None
    assert [row.item for row in recent.load("ann").rows] == [f"i{n}" for n in range(90, 100)]
    assert recent.deleted == {"bob": 101}
    assert recent.seq == 101
