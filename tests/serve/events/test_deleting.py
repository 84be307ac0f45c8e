"""Users who were deleted are known to nobody; and what is remembered of the others."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, living, send
from talerec.serve.model.served import ServedModel
from talerec.serve.shared import SharedState
from talerec.serve.users.histories import Users
from talerec.store.events import StoreError
from talerec.store.tail import Recent
from waiting import LONG_S, until

# -- deleting --------------------------------------------------------------------------------------


def test_a_deleted_user_is_unknown_from_the_next_answer_on(service: Local, log: tr.Log) -> None:
    user = log.users.ids[4]
    send(service, {"user_id": user, "item_id": 9})
    assert service.get(f"/v1/users/{user}").status == 200
    gone = service.ask("DELETE", f"/v1/users/{user}")
    assert gone.status == 200
    assert (gone.json["user_id"], gone.json["deleted"]) == (user, True)
    assert "until the next fit" in gone.json["remains"]
    assert service.get(f"/v1/users/{user}").code == "unknown_user"
    asked = service.post("/v1/recommend", {"user_id": user, "k": 3}).json
    assert asked["fallback"] == "trending"
    assert user not in service.get("/v1/users?limit=100").json["users"]
    assert user not in service.get(f"/v1/users?q={user}").json["users"]
    send(service, {"user_id": user, "item_id": 11, "timestamp": 1_700_000_000})
    (row,) = service.get(f"/v1/users/{user}").json["history"]
    assert row["item_id"] == 11


def test_a_deletion_outlasts_the_service(saved: Path, log: tr.Log, tmp_path: Path) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with living(saved, tmp_path / "run", address) as local:
        assert local.ask("DELETE", f"/v1/users/{user}").status == 200
    with living(saved, tmp_path / "run", address) as local:
        assert local.get(f"/v1/users/{user}").status == 404
        assert local.get(f"/v1/users/{log.users.ids[5]}").status == 200


def test_what_one_worker_writes_the_others_know(saved: Path, log: tr.Log, tmp_path: Path) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with (
        living(saved, tmp_path / "a", address) as one,
        living(saved, tmp_path / "b", address) as other,
    ):
        before = other.post("/v1/recommend", {"user_id": user, "k": 5}).json
        send(one, {"user_id": user, "item_id": 9})
        until(lambda: other.get(f"/v1/users/{user}").json["history"][-1]["item_id"] == 9)
        assert other.post("/v1/recommend", {"user_id": user, "k": 5}).json != before
        one.ask("DELETE", f"/v1/users/{user}")
        until(lambda: other.get(f"/v1/users/{user}").status == 404)


def test_a_deletion_is_answered_when_every_worker_knows_it(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one run; what the other knows is looked at right after the answer, without waiting."""
    monkeypatch.setattr("talerec.serve.users.user_state._KNOWN_S", LONG_S)
    address = f"sqlite:///{tmp_path}/shop.db"
    with (
        living(saved, tmp_path / "run", address, workers=2) as one,
        living(saved, tmp_path / "run", address, workers=2, worker=1) as other,
    ):
        for user in log.users.ids[:5].to_list():
            assert other.get(f"/v1/users/{user}").status == 200
            assert one.ask("DELETE", f"/v1/users/{user}").status == 200
            assert other.get(f"/v1/users/{user}").status == 404


def test_a_worker_that_reads_no_more_does_not_keep_a_deletion_from_its_answer(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    with living(saved, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db", workers=2) as one:
        stuck = SharedState(tmp_path / "run", 2, 1, (*one.app.api.routes, "other"))
        stuck.set_version("1")
        assert one.ask("DELETE", f"/v1/users/{log.users.ids[4]}").status == 200


def test_who_was_deleted_stays_so_for_a_worker_that_begins_without_the_store(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, user = f"sqlite:///{tmp_path}/shop.db", log.users.ids[4]
    with living(saved, tmp_path / "run", address) as local:
        assert local.ask("DELETE", f"/v1/users/{user}").status == 200
    begin = Recent._begin
    down = [True]

    def fail(recent: Recent) -> None:
        if down[0]:
            raise StoreError("down")
        begin(recent)

    monkeypatch.setattr(Recent, "_begin", fail)
    with living(saved, tmp_path / "run", address) as local:
        assert local.get(f"/v1/users/{user}").code == "unknown_user"
        assert local.get(f"/v1/users/{log.users.ids[5]}").status == 200
        down[0] = False
        until(lambda: local.get("/v1/stats").json["store"]["seq"] == 1)
        assert local.get(f"/v1/users/{user}").code == "unknown_user"


# -- what is remembered -----------------------------------------------------------------------------


def test_what_is_remembered_of_users_holds_no_model_that_was_replaced(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    """Users who asked each under another model, and never again: the kernel says which files are mapped."""
    recent = Recent(f"sqlite:///{tmp_path}/shop.db", 100)
    users = Users(recent, 100)
    for n, user in enumerate(log.users.ids[:4].to_list()):
        copy = tmp_path / f"replaced{n}.tale"
        shutil.copytree(saved, copy)
        model = ServedModel.open(copy, verify=False)
        found = users.find(model, str(user))
        assert len(found)
        assert not found.item.flags.writeable
        del model, found
        gc.collect()
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see what is mapped")
    assert "replaced" not in maps.read_text()
    recent.close()


def test_what_was_made_of_rows_counts_and_goes_with_the_models_it_was_made_for(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    recent = Recent(f"sqlite:///{tmp_path}/shop.db", 100, room=60)
    users, model = Users(recent, 100), ServedModel.open(saved, verify=False)
    user = str(log.users.ids[4])
    versions = [f"{n:016x}" for n in range(8)]
    users.served = lambda: versions[:2]
    for version in versions:
        model.version = version
        rows = users.find(model, user)
    made = recent._users[user].made
    assert set(made) == {*versions[:2], versions[-1]}
    assert recent._size == 1 + 3 * (1 + len(rows) // 16)
    for other in log.users.ids.to_list():
        users.find(model, str(other))
    assert recent._size == sum(one.size for one in recent._users.values()) <= 60
    assert len(recent._users) < len(log.users.ids) == 80
    recent.close()
