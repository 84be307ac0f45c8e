"""What is kept of a person can be exported, deleted, and expires."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import send, service_with_store
from talerec.serve import Settings, parse_interval
from talerec.serve.process import learner
from talerec.serve.users.maintenance import StoreMaintenance
from talerec.store import (
    Event,
    EventTail,
    IdSigner,
    Impression,
    ImpressionStore,
    Measurement,
    MeasurementProgress,
    MeasurementStore,
    Store,
    now_us,
)
from waiting import until

DAY = 86_400_000_000


def records(path: Path) -> list[tuple[str, str | None]]:
    return list(pl.read_ndjson(path).select("record", "item_id").rows())


def test_everything_that_is_kept_of_a_user_is_exported_and_goes_with_the_user(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    address, out = f"sqlite:///{tmp_path}/shop.db", tmp_path / "user.ndjson"
    path, user = tr.load(saved).save(tmp_path / "shop.tale"), str(log.users.ids[4])
    now = now_us()
    with MeasurementStore.open(address) as store:
        store.append([[Event(user, "7", now, "buy", "e1"), Event("99", "8", now)]])
        store.take_lease("me", 0.0, 10.0)
        measured = [Measurement(seq, "current", "v1", now // 10**6, 5, 2) for seq in (1, 2)]
        store.save("me", measured, MeasurementProgress(2, 0))
    command = ("events", "export", "--user", user, "--store", address, "-o", out)
    assert talerec(*command, "--artifact", path).code == 0
    n_rows = int(log.ptr[5] - log.ptr[4])
    assert records(out)[:2] == [("event", "7"), ("measurement", "7")]
    assert [record for record, _ in records(out)[2:]] == ["training row"] * n_rows
    exported = pl.read_ndjson(out).to_dicts()
    assert (exported[0]["event"], exported[0]["event_id"]) == ("buy", "e1")
    assert (exported[1]["model"], exported[1]["rank"]) == ("v1", 2)
    assert {row["user_id"] for row in exported} == {user}
    assert talerec("events", "delete-user", user, "--store", address).code == 0
    assert learner.learn(path, address) is not None
    assert talerec(*command, "--artifact", path).code == 0
    assert records(out) == [("deletion", None)]
    assert talerec("events", "export", "--artifact", path, "--store", address, "-o", out).code == 2


def test_a_user_whom_the_store_does_not_know_has_no_records(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    Store.open(address)
    out = tmp_path / "nobody.csv"
    assert talerec("events", "export", "--user", "x", "--store", address, "-o", out).code == 0
    assert out.read_text().splitlines() == [
        "record,user_id,item_id,timestamp,event,event_id,model,rank,recommendation_id,rules"
    ]


def test_old_events_are_removed_from_the_store_and_from_answers(
    saved: Path, tmp_path: Path
) -> None:
    address, now = f"sqlite:///{tmp_path}/shop.db", now_us()
    old = [Event("ann", str(n % 50 + 1), now - 500 * DAY + n) for n in range(12_000)]
    with ImpressionStore.open(address) as store:
        store.append([[*old, Event("ann", "7", now)]])
        store.delete_user("bob", now)
        signer = IdSigner(store.read_secret())
        shown = [
            Impression(signer.make_id(now - age * DAY), user, now - age * DAY, "v", "current",
                       None, None, '["7"]', None, None)
            for age, user in ((401, "ann"), (399, "ann"), (500, None))
        ]  # fmt: skip
        store.write_impressions(shown)
    with service_with_store(saved, tmp_path / "run", address, keep_events=400 * 86_400.0) as local:

        def history() -> list[int]:
            return [row["item_id"] for row in local.get("/v1/users/ann").json["history"]]

        until(lambda: history() == [7])
        with Store(address) as store:
            until(lambda: [row.item for row in store.read_after(0)] == ["7", None])
        with ImpressionStore(address) as store:
            until(lambda: [*store.read_impressions(0)] == [[shown[1]]])
        assert send(local, {"user_id": "ann", "item_id": 9}).status == 202
        assert history() == [7, 9]


@pytest.mark.parametrize("jump", [-1, 1, 365])
def test_a_clock_that_jumps_removes_no_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    address, now = f"sqlite:///{tmp_path}/shop.db", now_us()
    with Store.open(address) as store:
        store.append([[Event("ann", "tea", now - 80 * DAY)]])
        tail = EventTail(address, 10)
        work = StoreMaintenance(tail, 86_400.0 * 81, True)
        shifted = 1000 * (now + jump * DAY)
        monkeypatch.setattr("talerec.store.clock.time_ns", lambda: shifted)
        work._run_pass(threading.Event(), True)
        assert len(store.read_after(0)) == 1
        tail.close()


def test_a_deletion_leaves_the_log_of_a_running_service(saved: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(saved, tmp_path / "run", address) as local:
        tail = local.app.user_state.tail
        assert tail is not None
        work = StoreMaintenance(tail, None, True)
        send(local, {"user_id": "secret-user", "item_id": 1, "event": "secret-event"})
        assert local.ask("DELETE", "/v1/users/secret-user").status == 200
        assert b"secret-event" in (tmp_path / "shop.db-wal").read_bytes()
        work._run_pass(threading.Event(), False)
        for name in ("shop.db", "shop.db-wal"):
            assert b"secret-event" not in (tmp_path / name).read_bytes()


@pytest.mark.parametrize("text", ["400", "0d", "d", "-1d", "1y", "every day"])
def test_an_invalid_time_to_keep_events_is_refused(text: str) -> None:
    with pytest.raises(TalerecError, match=r"`keep_events` is .* it takes 30s, 10m, 2h or 1d"):
        parse_interval(text, "keep_events")


def test_keeping_events_needs_a_store(saved: Path) -> None:
    with pytest.raises(TalerecError, match="`keep_events` removes events from a store"):
        Settings(path=saved, keep_events=5.0)
