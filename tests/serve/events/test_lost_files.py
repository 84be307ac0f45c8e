"""A SQLite store whose file is removed, moved, replaced or damaged while events are sent."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, send, service_with_store
from talerec.errors import TalerecError
from talerec.store import Event, Store, StoreDamagedError
from waiting import until

SENT = 40  # events before and after the attack, at least


def item_ids(path: Path) -> set[str]:
    """Return the event ids of the store in the file at `path`."""
    with Store.open(f"sqlite:///{path}") as store:
        return {str(row.event_id) for row in store.read_after(0)}


def send_during(local: Local, attack: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Send events while a thread attacks; return the event ids acknowledged, during and after."""
    acknowledged: list[str] = []
    late: list[str] = []  # sent after the end of the attack
    begin, done = threading.Event(), threading.Event()

    def run() -> None:
        begin.wait()
        attack()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    n = n_after = 0
    while n_after < SENT:
        is_late = done.is_set()
        n_after += is_late
        name = f"e{n}"
        event = {"user_id": f"u{n % 7}", "item_id": n % 50 + 1, "event_id": name}
        answer = send(local, event)
        assert answer.status in (202, 503), answer.body
        if answer.status == 202:
            (late if is_late else acknowledged).append(name)
        if n == SENT:
            begin.set()
        n += 1
    thread.join()
    assert len(acknowledged) >= SENT
    return acknowledged, late


def assert_not_ready(local: Local, caplog: pytest.LogCaptureFixture) -> None:
    answer = local.get("/health/ready")
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert "shop.db" in answer.json["error"]["message"]
    assert local.get("/health/live").status == 200
    assert local.post("/v1/recommend", {"history": [{"item_id": 3}], "k": 2}).status == 200
    until(lambda: "store unavailable: sqlite:///" in caplog.text)


def other_store(path: Path) -> Path:
    with Store.open(f"sqlite:///{path}") as store:
        store.append([[Event("zoe", f"i{n}" * 50, n) for n in range(4000)]])
    return path


@pytest.mark.parametrize("names", [("",), ("", "-wal", "-shm")])
def test_a_file_moved_away_has_all_acknowledged_events_there_and_after_its_return(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    path, away = tmp_path / "shop.db", tmp_path / "away.db"

    def move() -> None:
        for name in names:
            os.rename(f"{path}{name}", f"{away}{name}")

    with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as local:
        acknowledged, late = send_during(local, move)
        assert late == []
        assert not path.exists()
        assert_not_ready(local, caplog)
        shutil.copyfile(away, tmp_path / "copy.db")  # without a log: the file alone has everything
        assert set(acknowledged) <= item_ids(tmp_path / "copy.db")
        for name in names:
            os.rename(f"{away}{name}", f"{path}{name}")
        until(lambda: local.get("/health/ready").status == 200)
        back = {"user_id": "u1", "item_id": 1, "event_id": "back"}
        assert send(local, back).status == 202
    assert {*acknowledged, "back"} <= item_ids(path)


@pytest.mark.parametrize("names", [("",), ("-wal",), ("-shm",), ("", "-wal", "-shm")])
def test_nothing_is_acknowledged_after_files_are_removed(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, names: tuple[str, ...]
) -> None:
    path = tmp_path / "shop.db"

    def remove() -> None:
        for name in names:
            Path(f"{path}{name}").unlink()

    with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as local:
        acknowledged, late = send_during(local, remove)
        assert late == []
        assert_not_ready(local, caplog)
        assert path.exists() is ("" not in names)  # no new file is made
        with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as restarted:
            if "" in names:  # a worker of the same service that starts again
                assert send(restarted, {"user_id": "u1", "item_id": 1}).status == 503
                assert restarted.get("/health/ready").status == 503
                assert not path.exists()
    if "" not in names:
        assert set(acknowledged) <= item_ids(path)


@pytest.mark.parametrize("how", [os.replace, shutil.copyfile])
def test_nothing_is_acknowledged_after_another_file_takes_the_place(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: Callable[..., None]
) -> None:
    path, other = tmp_path / "shop.db", other_store(tmp_path / "other.db")
    with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as local:
        _, late = send_during(local, lambda: how(other, path))
        assert late == []
        assert_not_ready(local, caplog)


@pytest.mark.parametrize(("name", "share"), [("", 0.0), ("", 0.5), ("-wal", 0.0)])
def test_nothing_is_acknowledged_after_a_file_is_truncated(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, share: float
) -> None:
    path = other_store(tmp_path / "shop.db")

    def truncate() -> None:
        file = f"{path}{name}"
        os.truncate(file, int(share * os.path.getsize(file)))

    with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as local:
        _, late = send_during(local, truncate)
        assert late == []
        assert_not_ready(local, caplog)


def test_damage_that_sqlite_finds_stops_the_acknowledgement(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All pages but the first are overwritten with noise, by which SQLite finds the damage."""
    path = other_store(tmp_path / "shop.db")
    with service_with_store(saved, tmp_path / "run", f"sqlite:///{path}") as local:

        def spoil() -> None:
            with path.open("r+b") as file:
                file.seek(4096)
                file.write(os.urandom(path.stat().st_size - 4096))

        spoil()
        answers = [send(local, {"user_id": f"u{n}", "item_id": 1}) for n in range(5)]
        assert {answer.status for answer in answers} == {503}
        assert "malformed" in answers[-1].json["error"]["message"]
        assert_not_ready(local, caplog)


def test_a_store_that_was_never_opened_is_not_created_by_a_later_connection(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/shop.db") as store, pytest.raises(TalerecError):
        store.append([[Event("ann", "tea", 1)]])
    assert list(tmp_path.iterdir()) == []


def test_connections_of_one_process_keep_their_locks_when_another_is_closed(tmp_path: Path) -> None:
    """Closing any descriptor of a file ends the locks of the process: SQLite would lose its log."""
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([[Event("ann", "tea", 1)]])
        with Store(address) as other:
            assert len(other.read_after(0)) == 1
        code = (
            f"import sqlite3; c = sqlite3.connect({str(tmp_path / 'shop.db')!r});"
            " c.execute('select count(*) from talerec_events').fetchone(); c.close()"
        )
        import subprocess
        import sys

        subprocess.run([sys.executable, "-c", code], check=True)
        assert (tmp_path / "shop.db-wal").exists()  # the other process was not the last one
        store.append([[Event("ann", "cup", 2)]])
        store.check()


def test_siblings_refuse_another_store_at_the_address(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with Store.open(f"sqlite:///{path}") as store:
        store.append([[Event("ann", "tea", 1)]])
        sibling = store.sibling()
        os.replace(other_store(tmp_path / "other.db"), path)
        with pytest.raises(StoreDamagedError):
            sibling.append([[Event("ann", "cup", 2)]])
