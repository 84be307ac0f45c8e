"""Measurements are stored once, by one process at a time, in SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from talerec.store import (
    AppendResult,
    Event,
    IdKinds,
    Measurement,
    MeasurementProgress,
    MeasurementStore,
    Store,
)


def row(seq: int, place: int = 1, role: str = "current", moment: int = 100) -> Measurement:
    return Measurement(seq, role, "v1", moment, 7 * seq, place)


def test_one_process_measures_at_a_time_from_now_on(address: str, opened: Any) -> None:
    opened(address).append([[Event("ann", "tea", n) for n in range(5)]])
    with MeasurementStore.open(address) as first, MeasurementStore.open(address) as second:
        assert first.take_lease("one", 1000.0, 15) == MeasurementProgress(5, 0)
        first.append([[Event("ann", "tea", n) for n in range(5)]])
        assert second.take_lease("two", 1001.0, 15) is None
        assert first.take_lease("one", 1010.0, 15) == MeasurementProgress(5, 0)
        assert first.save("one", [row(6), row(7, 0)], MeasurementProgress(7, 3))
        assert second.take_lease("two", 1024.0, 15) is None
        assert second.take_lease("two", 1026.0, 15) == MeasurementProgress(7, 3)
        assert not first.save("one", [row(8)], MeasurementProgress(8, 0))
        assert first.take_lease("one", 1027.0, 15) is None
        assert second.read_since(0) == [row(6), row(7, 0)]


def test_measuring_starts_with_the_service(address: str, opened: Any) -> None:
    store = opened(address)
    store.append([[Event("ann", "tea", 1)]])
    with MeasurementStore.open(address) as first:
        first.start_measuring()
        store.append([[Event("ann", "tea", 2)]])
        first.start_measuring()
        assert first.take_lease("me", 0.0, 15) == MeasurementProgress(1, 0)
        first.save("me", [], MeasurementProgress(2, 0))
        first.start_measuring()
        assert first.take_lease("me", 1.0, 15) == MeasurementProgress(2, 0)


def test_nothing_is_counted_twice_and_deleted_users_are_removed(address: str) -> None:
    with MeasurementStore.open(address) as store:
        store.take_lease("me", 0.0, 15)
        store.append([[Event("ann", "tea", 1), Event("bob", "tea", 1)]])
        store.save("me", [row(1), row(1, 3, "candidate")], MeasurementProgress(1, 0))
        store.save("me", [row(1), row(2)], MeasurementProgress(2, 0))
        assert store.read_since(0) == [row(1, 3, "candidate"), row(1), row(2)]
        store.delete_user("ann", 5)
        assert store.read_since(0) == [row(2)]


def test_a_summary_is_read_by_all_and_old_measurements_are_removed(address: str) -> None:
    with MeasurementStore.open(address) as store, MeasurementStore.open(address) as other:
        assert other.read_summary() is None
        store.append([[Event("ann", "tea", 1), Event("bob", "tea", 1)]])
        store.take_lease("me", 0.0, 15)
        store.save("me", [row(1, moment=10), row(2, moment=20)], MeasurementProgress(2, 0))
        store.publish("me", '{"a": "\u00e9"}', 15)
        assert other.read_summary() == '{"a": "\u00e9"}'
        assert other.read_since(0) == [row(2, moment=20)]
        other.publish("who", "no", 0)
        assert other.read_summary() == '{"a": "\u00e9"}'


def test_earlier_events_have_a_smaller_seq_and_time_and_repeats_have_none(
    address: str, opened: Any
) -> None:
    items = [("tea", 10), ("cup", 30), ("pot", 20), ("cup", 30), ("pan", 30), ("tea", 20)]
    opened(address).append([[Event("ann", item, when) for item, when in items]])
    opened(address).append([[Event("bob", "cup", 30), Event("ann", "cup", 20)]])
    with MeasurementStore.open(address) as store:
        rows = store.read_after(0)
        earlier = [store.read_earlier(row, 100) for row in rows]
        seqs = [None if found is None else [row.seq for row in found] for found in earlier]
        assert seqs == [[], [1], [1], None, [1, 3], [1], [], [1]]
        assert store.read_earlier(rows[4], 1) == [rows[2]]


def test_concurrent_creation_of_a_store_succeeds(tmp_path: Path) -> None:
    """SQLite refuses all but one of the processes that switch a new file to WAL mode."""
    errors: list[object] = []
    for turn in range(15):
        address, start = f"sqlite:///{tmp_path}/{turn}.db", threading.Barrier(4)

        def make(address: str = address, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                Store.open(address).close()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


def test_concurrent_evaluators_take_turns(address: str) -> None:
    """Each saves the seq after its lease: no seq is saved twice, and none is skipped."""
    saved: list[int] = []
    with MeasurementStore.open(address) as store:
        store.start_measuring()
        store.append([[Event("ann", "tea", n) for n in range(40)]])

    def work(name: str) -> None:
        with MeasurementStore.open(address) as store:
            for turn in range(8):
                lease = store.take_lease(name, 1.0 + turn, 0.5)
                if lease is not None and store.save(
                    name, [row(lease.seq + 1)], MeasurementProgress(lease.seq + 1, 0)
                ):
                    saved.append(lease.seq + 1)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with MeasurementStore.open(address) as store:
        assert sorted(saved) == [measurement.seq for measurement in store.read_since(0)]
        assert sorted(saved) == list(range(1, len(saved) + 1))


def test_an_old_store_gets_the_new_tables(address: str, monkeypatch: Any) -> None:
    from talerec.store import events

    with monkeypatch.context() as before:
        before.setattr(events, "SCHEMA_VERSION", 1)
        with Store.open(address) as store, store._connected() as connection:
            connection.execute("insert into talerec_events values (1, 'ann', 'tea', 1, '', 'e', 1)")
            connection.execute("update talerec_meta set seq = 1")
    with MeasurementStore.open(address) as store:
        assert store.meta().version == events.SCHEMA_VERSION
        assert store.take_lease("me", 0.0, 1) == MeasurementProgress(1, 0)
        assert store.append([[Event("ann", "cup", 2)]]) == [AppendResult(1, 0)]
        assert store.id_kinds() == IdKinds(None, None)
