"""Deleted users are unknown to all workers; the cache of users holds no replaced model."""

from __future__ import annotations

import gc
import itertools
import json
import shutil
import threading
from pathlib import Path

import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, send, service_with_store
from talerec.serve import SharedState
from talerec.serve.model import ServedModel
from talerec.serve.users import UserHistories
from talerec.serve.users.saved_deletions import SavedDeletions
from talerec.store import EventTail, Store, StoreError
from waiting import LONG_S, until

# -- deleting --------------------------------------------------------------------------------------


def test_a_deleted_user_is_unknown_in_the_next_answer(service: Local, log: tr.Log) -> None:
    user = log.users.ids[4]
    send(service, {"user_id": user, "item_id": 9})
    assert service.get(f"/v1/users/{user}").status == 200
    gone = service.ask("DELETE", f"/v1/users/{user}")
    assert gone.status == 200
    assert (gone.json["user_id"], gone.json["deleted"]) == (user, True)
    assert "until the next fit" in gone.json["remains"]
    assert service.get(f"/v1/users/{user}").code == "unknown_user"
    answer = service.post("/v1/recommend", {"user_id": user, "k": 3}).json
    assert answer["fallback"] == "trending"
    assert user not in service.get("/v1/users?limit=100").json["users"]
    assert user not in service.get(f"/v1/users?q={user}").json["users"]
    old = send(service, {"user_id": user, "item_id": 10, "timestamp": 1_700_000_000})
    assert (old.status, old.json) == (202, {"accepted": 0, "duplicates": 0, "deleted": 1})
    assert send(service, {"user_id": user, "item_id": 11}).json["accepted"] == 1
    (row,) = service.get(f"/v1/users/{user}").json["history"]
    assert row["item_id"] == 11


def test_a_deletion_survives_a_restart(saved: Path, log: tr.Log, tmp_path: Path) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with service_with_store(saved, tmp_path / "run", address) as local:
        assert local.ask("DELETE", f"/v1/users/{user}").status == 200
    with service_with_store(saved, tmp_path / "run", address) as local:
        assert local.get(f"/v1/users/{user}").status == 404
        assert local.get(f"/v1/users/{log.users.ids[5]}").status == 200


def test_workers_see_events_and_deletions_of_other_workers(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with (
        service_with_store(saved, tmp_path / "a", address) as first,
        service_with_store(saved, tmp_path / "b", address) as other,
    ):
        before = other.post("/v1/recommend", {"user_id": user, "k": 5}).json
        send(first, {"user_id": user, "item_id": 9})
        until(lambda: other.get(f"/v1/users/{user}").json["history"][-1]["item_id"] == 9)
        assert other.post("/v1/recommend", {"user_id": user, "k": 5}).json != before
        first.ask("DELETE", f"/v1/users/{user}")
        until(lambda: other.get(f"/v1/users/{user}").status == 404)


def test_a_deletion_responds_after_every_worker_has_read_it(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one run: the other worker is asked right after the response."""
    monkeypatch.setattr("talerec.serve.users.user_state._DELETION_WAIT_S", LONG_S)
    address = f"sqlite:///{tmp_path}/shop.db"
    with (
        service_with_store(saved, tmp_path / "run", address, workers=2) as first,
        service_with_store(saved, tmp_path / "run", address, workers=2, worker=1) as other,
    ):
        for user in log.users.ids[:5].to_list():
            assert other.get(f"/v1/users/{user}").status == 200
            assert first.ask("DELETE", f"/v1/users/{user}").status == 200
            assert other.get(f"/v1/users/{user}").status == 404


def test_a_stuck_worker_does_not_block_a_deletion(saved: Path, log: tr.Log, tmp_path: Path) -> None:
    with service_with_store(
        saved, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db", workers=2
    ) as first:
        stuck = SharedState(tmp_path / "run", 2, 1, (*first.app.api.routes, "other"))
        stuck.set_version("1")
        assert first.ask("DELETE", f"/v1/users/{log.users.ids[4]}").status == 200


def test_a_worker_started_without_the_store_hides_deleted_users(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with service_with_store(saved, tmp_path / "run", address) as local:
        assert local.ask("DELETE", f"/v1/users/{user}").status == 200
    begin = EventTail._begin
    down = [True]

    def fail(tail: EventTail) -> None:
        if down[0]:
            raise StoreError("down")
        begin(tail)

    monkeypatch.setattr(EventTail, "_begin", fail)
    with service_with_store(saved, tmp_path / "run", address) as local:
        assert local.get(f"/v1/users/{user}").code == "unknown_user"
        assert local.get(f"/v1/users/{log.users.ids[5]}").status == 200
        down[0] = False
        until(lambda: local.get("/v1/stats").json["store"]["seq"] == 1)
        assert local.get(f"/v1/users/{user}").code == "unknown_user"


def test_a_deletion_of_a_user_whom_nobody_knows_is_not_recorded(
    service: Local, log: tr.Log, tmp_path: Path
) -> None:
    """Neither in the store nor in the files of the run; users of the store or the model are."""
    known = ["stored", str(log.users.ids[4])]
    send(service, {"user_id": "stored", "item_id": 9})
    for n in range(20):
        assert service.ask("DELETE", f"/v1/users/nobody{n}").json["deleted"]
    for user in (*known, *known):
        assert service.ask("DELETE", f"/v1/users/{user}").status == 200
    with Store(f"sqlite:///{tmp_path}/shop.db") as store:
        assert set(store.read_deletions()) == set(known)
        assert store.meta().seq == 5
    lines = (tmp_path / "run" / "deletions-0").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines[1:]] == [*known, *known]


def test_saved_deletions_are_appended_and_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is written anew when most lines are outdated; an unfinished line is left out."""
    monkeypatch.setattr("talerec.serve.users.saved_deletions._MIN_LINES", 5)
    address = f"sqlite:///{tmp_path}/shop.db"
    tail, store, saved = EventTail(address, 10), Store(address), SavedDeletions(tmp_path, 0)
    tail.subscribe(saved.collect)
    sizes = []
    for n in range(40):
        store.delete_user(f"u{n % 3}", n)
        tail.poll()
        saved.save(tail)
        sizes.append(len((tmp_path / "deletions-0").read_text().splitlines()))
    assert max(sizes) <= 5 + 2 * 3 + 1
    assert sorted({b - a for a, b in itertools.pairwise(sizes)})[1:] == [1]
    with (tmp_path / "deletions-0").open("a") as file:
        file.write('["u9", 4')
    other = EventTail.__new__(EventTail)
    other._poll_lock, other.seq, other.deleted = threading.Lock(), -1, {}
    SavedDeletions(tmp_path, 1).restore(other)
    assert other.deleted == tail.deleted
    assert other.store == tail.store
    tail.close()
    store.close()


# -- the cache of users ----------------------------------------------------------------------------


def test_cached_histories_do_not_keep_replaced_models_mapped(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    """Each user asks once, under another model; /proc shows which files are mapped."""
    tail = EventTail(f"sqlite:///{tmp_path}/shop.db", 100)
    users = UserHistories(tail, 100)
    for n, user in enumerate(log.users.ids[:4].to_list()):
        copy = tmp_path / f"replaced{n}.tale"
        shutil.copytree(saved, copy)
        model = ServedModel(copy, verify=False)
        rows = users.load(model, str(user))
        assert len(rows)
        assert not rows.item.flags.writeable
        del model, rows
        gc.collect()
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see what is mapped")
    assert "replaced" not in maps.read_text()
    tail.close()


def test_cached_histories_count_as_memory_and_go_with_their_models(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    tail = EventTail(f"sqlite:///{tmp_path}/shop.db", 100, max_events=60)
    versions = [f"{n:016x}" for n in range(8)]
    users = UserHistories(tail, 100, lambda: versions[:2])
    model, user = ServedModel(saved, verify=False), str(log.users.ids[4])
    for version in versions:
        model.version = version
        rows = users.load(model, user)
    derived = tail._users[user].derived
    assert set(derived) == {*versions[:2], versions[-1]}
    assert tail._size == 1 + 3 * (1 + len(rows) // 16)
    for other in log.users.ids.to_list():
        users.load(model, str(other))
    assert tail._size == sum(cached.size for cached in tail._users.values()) <= 60
    assert len(tail._users) < len(log.users.ids) == 80
    tail.close()
