"""What is measured is kept once, by one process at a time, in SQLite and PostgreSQL alike."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from talerec.store.events import Event
from talerec.store.measurements import Measured, Measures, Progress
from talerec.store.store import Store


def row(seq: int, place: int = 1, role: str = "current", moment: int = 100) -> Measured:
    return Measured(seq, role, "v1", moment, 7 * seq, place)


def test_one_measures_at_a_time_and_begins_with_what_comes(address: str, opened: Any) -> None:
    opened(address).append([[Event("ann", "tea", n) for n in range(5)]])
    with Measures.open(address) as one, Measures.open(address) as two:
        assert one.take_lease("one", 1000.0, 15) == Progress(5, 0)
        assert two.take_lease("two", 1001.0, 15) is None
        assert one.take_lease("one", 1010.0, 15) == Progress(5, 0)
        assert one.keep("one", [row(6), row(7, 0)], Progress(7, 3), [])
        assert two.take_lease("two", 1024.0, 15) is None
        assert two.take_lease("two", 1026.0, 15) == Progress(7, 3)
        assert not one.keep("one", [row(8)], Progress(8, 0), [])
        assert one.take_lease("one", 1027.0, 15) is None
        assert two.measured_since(0) == [row(6), row(7, 0)]


def test_measuring_begins_with_the_service_and_not_later(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[Event("ann", "tea", 1)]])
    with Measures.open(address) as one:
        one.begin()
        store.append([[Event("ann", "tea", 2)]])
        one.begin()
        assert one.take_lease("me", 0.0, 15) == Progress(1, 0)
        one.keep("me", [], Progress(2, 0), [])
        one.begin()
        assert one.take_lease("me", 1.0, 15) == Progress(2, 0)


def test_nothing_is_counted_twice_and_deleted_users_go(address: str) -> None:
    with Measures.open(address) as store:
        store.take_lease("me", 0.0, 15)
        store.keep("me", [row(1), row(1, 3, "candidate")], Progress(1, 0), [])
        store.keep("me", [row(1), row(2)], Progress(2, 0), [])
        assert store.measured_since(0) == [row(1, 3, "candidate"), row(1), row(2)]
        store.keep("me", [], Progress(3, 0), [7])
        assert store.measured_since(0) == [row(2)]


def test_a_summary_is_read_by_all_and_old_rows_go(address: str) -> None:
    with Measures.open(address) as store, Measures.open(address) as other:
        assert other.summary() is None
        store.take_lease("me", 0.0, 15)
        store.keep("me", [row(1, moment=10), row(2, moment=20)], Progress(2, 0), [])
        store.publish("me", '{"a": "\u00e9"}', 15)
        assert other.summary() == '{"a": "\u00e9"}'
        assert other.measured_since(0) == [row(2, moment=20)]
        other.publish("who", "no", 0)
        assert other.summary() == '{"a": "\u00e9"}'


def test_many_who_make_a_store_at_once_all_get_it(tmp_path: Path) -> None:
    """SQLite does not wait when a new file is made ready for reading while writing: all but one of those who try are refused."""
    found: list[object] = []
    for turn in range(15):
        address, start = f"sqlite:///{tmp_path}/{turn}.db", threading.Barrier(4)

        def make(address: str = address, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                Store.open(address).close()
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == []


def test_many_who_want_to_measure_take_turns(address: str) -> None:
    """Each tries to keep the next seq after the one that it was given: no seq is kept by two, none is left out."""
    kept: list[int] = []
    Measures.open(address).close()

    def work(name: str) -> None:
        with Measures.open(address) as store:
            for turn in range(8):
                lease = store.take_lease(name, 1.0 + turn, 0.5)
                if lease is not None and store.keep(
                    name, [row(lease.seq + 1)], Progress(lease.seq + 1, 0), []
                ):
                    kept.append(lease.seq + 1)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Measures.open(address) as store:
        assert sorted(kept) == [one.seq for one in store.measured_since(0)]
        assert sorted(kept) == list(range(1, len(kept) + 1))


def test_a_store_of_before_gets_the_new_tables(address: str, monkeypatch: Any) -> None:
    from talerec.store import schema

    with monkeypatch.context() as before:
        before.setattr(schema, "VERSION", 1)
        with Store.open(address) as store:
            store.append([[Event("ann", "tea", 1)]])
    with Measures.open(address) as store:
        assert store.meta().version == schema.VERSION
        assert store.take_lease("me", 0.0, 1) == Progress(1, 0)
