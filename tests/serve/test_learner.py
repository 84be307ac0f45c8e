"""Learning from events gives the model of a fit on all rows; failures leave the old one."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from talerec.artifact import read_manifest
from talerec.errors import ReplacedArtifactError, TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from command import PYTHONPATH, RUN, refusal, works
from processes import has_open
from service import Local, Remote
from talerec.serve import Settings, parse_interval
from talerec.serve.model import ServedModel, learnable
from talerec.serve.process import learner as learning
from talerec.serve.process.supervisor import Supervisor
from talerec.serve.users import UserHistories, trained_seq
from talerec.store import Event, EventTail, IdKinds, Store
from waiting import LONG_S, until

DAY = 86_400 * 10**6


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(1500, users=80, items=60, seed=3)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


def rows(log: tr.Log) -> pl.DataFrame:
    return log.to_frame().with_columns(pl.col("timestamp").cast(pl.Int64))


def parts(log: tr.Log) -> tuple[tr.Log, list[Event]]:
    """Return the earlier rows as a log and the later rows, with new users and items, as events."""
    every = rows(log)
    cut = every["timestamp"].sort()[int(0.8 * len(every))]
    old = every.filter(pl.col("timestamp") < cut)
    new = every.filter(pl.col("timestamp") >= cut).sort("timestamp")
    first = tr.Log.from_frame(old, time_unit="us")
    return first, [Event(str(user), str(item), when) for user, item, when in new.iter_rows()]


def test_an_event_with_two_foreign_ids_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    ids = {"user_id": ["7", "a", "b", "8", "9"], "item_id": ["1", "2", "x", "y", "07"]}
    events = pl.DataFrame({**ids, "timestamp": [0, 1, 2, 3, 4]})
    for kinds, selected, text in (
        (IdKinds("integer", "integer"), [0], "4 events are left out: their ids are not integers"),
        (IdKinds("text", "integer"), [0, 1], "3 events"),
        (IdKinds("integer", "text"), [0, 3, 4], "2 events"),
        (IdKinds("text", None), [0, 1, 2, 3, 4], ""),
    ):
        caplog.clear()
        assert learning._drop_non_integer_ids(events, kinds).equals(events[selected])
        messages = [record.getMessage()[: len(text)] for record in caplog.records]
        assert messages == ([text] if text else [])


def same_answers(path: Path, expected: tr.Model, users: list[Any]) -> bool:
    model = tr.load(path, verify=True)
    for user in users:
        actual, expected_list = (m.recommend([user], k=8) for m in (model, expected))
        if actual["item_id"].to_list() != expected_list["item_id"].to_list():
            return False
        if actual["score"].to_list() != pytest.approx(expected_list["score"].to_list(), rel=1e-4):
            return False
    return True


def test_learning_gives_the_model_of_all_rows(log: tr.Log, address: str, tmp_path: Path) -> None:
    first, events = parts(log)
    path = tr.TALE(reg=20).fit(first).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([events[:100], events[100:]])
        said = learning.learn(path, address)
        assert said is not None
        assert (said["how"], said["rows"], said["seq"]) == ("fit", len(events), len(events))
        whole = tr.TALE(reg=20).fit(tr.Log.from_frame(rows(log), time_unit="us"))
        assert same_answers(path, whole, log.users.ids[:20].to_list())
        training = read_manifest(path)["training"]
        assert (training["store"], training["store_seq"]) == (store.meta().store, len(events))
        assert training["rows"] == log.rows
        assert learning.learn(path, address) is None  # nothing is new
        store.append([[Event("1", "5", events[-1].time + 1), events[0]]])
        second = learning.learn(path, address)
        assert second is not None
        assert second["rows"] == 1  # the other is in the histories
    assert not (tmp_path / ".shop.tale.learning" / "new").exists()


def test_an_updatable_model_is_updated(log: tr.Log, address: str, tmp_path: Path) -> None:
    first, events = parts(log)
    path = tr.TALE(reg=20).fit(first).save(tmp_path / "shop.tale", updatable=True)
    with Store.open(address) as store:
        store.append([events])
    said = learning.learn(path, address)
    assert said is not None
    assert said["how"] == "update"
    training = read_manifest(path)["training"]
    assert (training["updatable"], training["updates"]) == (True, 1)
    assert training["rows"] == log.rows
    assert training["store_seq"] == len(events)


def test_a_deleted_user_is_not_learned_from(log: tr.Log, address: str, tmp_path: Path) -> None:
    """Rows of the artifact and events before the deletion are ignored; later events count."""
    first, events = parts(log)
    path = tr.TALE(reg=20).fit(first).save(tmp_path / "shop.tale", updatable=True)
    gone = str(log.users.ids[0])
    late = events[-1].time + DAY
    with Store.open(address) as store:
        store.append([events])
        store.delete_user(gone, late)
        store.append([[Event(gone, "7", late + 1), Event(gone, "9", late + 2)]])
    said = learning.learn(path, address)
    assert said is not None
    assert (said["how"], said["deleted_users"]) == ("fit", 1)
    every = rows(log).filter(pl.col("user_id").cast(pl.String) != gone)
    times = [late + 1, late + 2]
    more = pl.DataFrame({"user_id": [int(gone)] * 2, "item_id": [7, 9], "timestamp": times})
    whole = pl.concat([every, more.cast(dict(every.schema))])
    expected = tr.TALE(reg=20).fit(tr.Log.from_frame(whole, time_unit="us"))
    assert same_answers(path, expected, log.users.ids[:20].to_list())
    folder = tmp_path / "run"
    local = Local(path, folder, store=address)
    history = local.get(f"/v1/users/{gone}").json["history"]
    assert [row["item_id"] for row in history] == [7, 9]
    local.app.stop()


def test_an_update_does_not_bring_a_deleted_user_back(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    """Neither for requests nor for the next fit; events learned before the update count once."""
    first, events = parts(log)
    path = tr.TALE(reg=20).fit(first).save(tmp_path / "shop.tale", updatable=True)
    gone = log.users.ids[0]
    stays = next(int(event.user) for event in events if event.user != str(gone))
    with Store.open(address) as store:
        store.append([events])
        store.delete_user(str(gone), events[-1].time + DAY)
        assert learning.learn(path, address)
        before = len(_history(path, address, tmp_path / "a", stays))
        rows(first).write_parquet(tmp_path / "old.parquet")
        works("update", path, tmp_path / "old.parquet", "--time-unit", "us")
        assert gone in tr.load(path).fitted.log.users.ids.to_list()
        assert _history(path, address, tmp_path / "b", gone) is None
        assert len(_history(path, address, tmp_path / "c", stays)) == before
        store.append([[Event("5", "7", events[-1].time + 1)]])
        assert learning.learn(path, address)
    assert gone not in tr.load(path).fitted.log.users.ids.to_list()
    assert tr.load(path).fitted.training["store_seq"] == len(events) + 2


def test_a_restored_store_is_served_and_learned_from(
    log: tr.Log, address: str, tmp_path: Path, caplog: Any
) -> None:
    """Its new events have seqs that the model has learned from already."""
    first, events = parts(log)
    path = tr.TALE(reg=20).fit(first).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([events[:1]])
        with sqlite3.connect(tmp_path / "copy.db") as copy, store._connected() as connection:
            connection.backup(copy)
        copy.close()
        store.append([events[1:5]])
    assert learning.learn(path, address)
    for ending in ("", "-wal", "-shm"):
        Path(f"{tmp_path}/shop.db{ending}").unlink(missing_ok=True)
    (tmp_path / "copy.db").rename(tmp_path / "shop.db")
    late = events[-1].time
    with Store.open(address) as store:
        store.append([[Event("7001", "5", late)]])
        served = shutil.copytree(path, tmp_path / "served.tale")
        said = learning.learn(path, address)
        assert said is not None
        assert (said["rows"], said["seq"]) == (1, 2)
        assert "the store was restored from a backup" in caplog.text
        tail, model = EventTail(address, 2500), ServedModel(served, verify=False)
        users = UserHistories(tail, 2500)
        assert len(users.load(model, "7001")) == 1
        store.append([[Event("7001", str(n), late + n) for n in range(1, 9)]])  # up to row 10
        tail.poll()
        assert len(users.load(model, "7001")) == 9
        tail.close()


def test_a_lagging_process_does_not_mistake_a_store_for_a_restored_one(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        tail = EventTail(address, 2500)
        store.append([[Event("7001", "5", int(log.time.max()) + n) for n in range(3)]])
        assert learning.learn(path, address)
        assert trained_seq(ServedModel(path, verify=False), tail) == 3
        tail.close()


def _history(path: Path, address: str, folder: Path, user: int) -> Any:
    local = Local(path, folder, store=address)
    try:
        return local.get(f"/v1/users/{user}").json.get("history")
    finally:
        local.app.stop()


def test_a_deletion_alone_triggers_learning(log: tr.Log, address: str, tmp_path: Path) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    gone = log.users.ids[0]
    with Store.open(address) as store:
        store.delete_user(str(gone), 5)
    said = learning.learn(path, address)
    assert said is not None
    assert (said["rows"], said["deleted_users"]) == (0, 1)
    assert gone not in tr.load(path).fitted.log.users.ids.to_list()


def test_new_items_and_ids_of_another_type_are_learned(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    info = pl.DataFrame({"item_id": log.items.ids, "title": [f"t{i}" for i in log.items.ids]})
    path = tr.Markov().fit(log.with_items(info)).save(tmp_path / "shop.tale")
    late = int(log.time.max())
    with Store.open(address) as store:
        store.append([[Event("9001", "777", late + 1), Event("9001", "5", late + 2)]])
        assert learning.learn(path, address)
        model = tr.load(path)
        assert model.recommend_histories([[777]], k=1)["item_id"][0] == 5  # still numbers
        store.append([[Event("ann", "tea", late + 3), Event("ann", "5", late + 4)]])
        assert learning.learn(path, address)
    model = tr.load(path)
    assert model.recommend_histories([["tea"]], k=1)["item_id"][0] == "5"
    assert model.recommend_histories([[777]], k=1)["item_id"][0] == "5"
    titles = dict(model.fitted.info.select("item_id", "title").iter_rows())
    assert (titles["5"], titles["tea"], titles["777"]) == ("t5", None, None)


def test_two_processes_never_learn_at_once(log: tr.Log, address: str, tmp_path: Path) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])
    room = tmp_path / ".shop.tale.learning"
    room.mkdir()
    with (room / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TalerecError, match="another process learns"):
            learning.learn(path, address)
    assert learning.learn(path, address)


def test_a_model_replaced_during_learning_stays(
    log: tr.Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])
    slow = learning._learn_model

    def replace_meanwhile(*arguments: Any, **options: Any) -> Any:
        tr.TALE(reg=500).fit(log).save(path)
        return slow(*arguments, **options)

    monkeypatch.setattr(learning, "_learn_model", replace_meanwhile)
    with pytest.raises(TalerecError, match="replaced by another process"):
        learning.learn(path, address)
    assert read_manifest(path)["params"]["reg"] == 500


def test_a_model_installed_at_the_last_moment_stays(
    log: tr.Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])
    install = learning.install_artifact

    turns: list[tr.Model] = []

    def install_second(*args: Any, **named: Any) -> str:
        """Another process installs a model just before, each time another one."""
        turns.append(tr.TALE(reg=500 + len(turns)).fit(log))
        install(turns[-1].save(tmp_path / f"{len(turns)}.tale"), path, tr.load)
        return install(*args, **named)

    monkeypatch.setattr(learning, "install_artifact", install_second)
    with pytest.raises(ReplacedArtifactError, match="was replaced by another process"):
        learning.learn(path, address)
    assert read_manifest(path)["params"]["reg"] == 500
    state = learning._run_round(path, address, {"rounds": 0, "failures": 0})
    assert state["failures"] == 1
    assert "was replaced by another process" in state["error"]
    assert len(turns) == 4
    assert read_manifest(path)["params"]["reg"] == 503


def test_a_round_that_finds_the_model_replaced_starts_over(
    log: tr.Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])
    install = learning.install_artifact

    def install_after_another(*args: Any, **named: Any) -> str:
        monkeypatch.undo()
        tr.TALE(reg=500).fit(log).save(path)
        return install(*args, **named)

    monkeypatch.setattr(learning, "install_artifact", install_after_another)
    state = learning._run_round(path, address, {"rounds": 0, "failures": 0})
    assert (state["error"], state["learned"]["rows"]) == (None, 1)
    assert read_manifest(path)["params"]["reg"] == 500
    assert tr.load(path).fitted.log.rows == log.rows + 1


def test_an_update_by_hand_waits_for_the_learner(
    log: tr.Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of both are in the model, although the update began while the learner was learning."""
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale", updatable=True)
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])
    rows = tmp_path / "rows.csv"
    rows.write_text("user_id,item_id,timestamp\n2,5,2019-01-01\n")
    learn, updates = learning._learn_model, []

    def update_meanwhile(*arguments: Any, **options: Any) -> Any:
        command = [*RUN, "update", str(path), str(rows)]
        updates.append(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}))
        until(lambda: has_open(updates[0].pid, path / ".talerec.update.lock"))
        return learn(*arguments, **options)

    monkeypatch.setattr(learning, "_learn_model", update_meanwhile)
    assert learning.learn(path, address)
    assert updates[0].wait(LONG_S) == 0
    assert tr.load(path).fitted.log.rows == log.rows + 2


def test_something_else_in_the_place_of_the_lock_is_refused(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    room = tmp_path / ".shop.tale.learning"
    room.mkdir()
    os.mkfifo(room / "lock")
    with pytest.raises(TalerecError, match="lock is not a regular file: remove it"):
        learnable.check_learnable(path)
    learnable.remove_unfinished(path)
    state = learning._run_round(path, address, {"rounds": 0, "failures": 0})
    assert "lock is not a regular file" in state["error"]


def test_a_failure_is_reported_and_the_old_model_stays(
    log: tr.Log, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    before = read_manifest(path)["version"]
    with Store.open(address) as store:
        store.append([[Event("1", "5", 1)]])

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(learning, "_learn_model", fail)
    state = learning._run_round(path, address, {"rounds": 0, "failures": 2})
    assert (state["failures"], state["error"]) == (3, "MemoryError")
    assert "learning failed, the old model stays" in caplog.text
    assert read_manifest(path)["version"] == before
    monkeypatch.undo()
    state = learning._run_round(path, address, {"rounds": 1, "failures": 3})
    assert state["error"] is None
    assert state["learned"]["version"] == read_manifest(path)["version"] != before


def test_leftovers_of_a_stopped_learner_are_removed(tmp_path: Path) -> None:
    """But not while another process learns for the same artifact."""
    path = tmp_path / "shop.tale"
    unfinished = learnable.work_folder(path) / "new"
    (unfinished / "half").mkdir(parents=True)
    supervisor = Supervisor(Settings(path=path), tmp_path, None)
    spawn = multiprocessing.get_context("spawn")
    supervisor._learner = spawn.Process(target=time.sleep, args=(99,))
    supervisor._learner.start()
    with (learnable.work_folder(path) / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        learnable.remove_unfinished(path)
        assert unfinished.exists()
    supervisor._stop()
    assert not supervisor._learner.is_alive()
    assert not unfinished.exists()


# -- the service -----------------------------------------------------------------------------------


def test_a_service_learns_and_serves_the_new_model(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "shop.tale")
    before = read_manifest(path)["version"]
    service = Remote(path, "--store", address, "--learn", "every=1s", "--watch", "0.2")
    try:
        events = [{"user_id": "5000", "item_id": item} for item in ("brand new", 3, "brand new", 3)]
        for event in events:
            assert service.ask("POST", "/v1/events", {"events": [event]}).status == 202
        service.until("talerec_learned_timestamp_seconds", 1)
        service.until("talerec_reloads_done_total", 1)
        request = {"history": [{"item_id": "brand new"}], "k": 1}

        def answer_after_learning() -> Any:
            """Return the answer once the model has learned all events, not only the first."""
            answer = service.ask("POST", "/v1/recommend", request).json
            first = [item["item_id"] for item in answer["items"]]
            return answer if "fallback" not in answer and first == ["3"] else None

        said, stats = until(answer_after_learning), service.ask("GET", "/v1/stats").json
        assert stats["learning"]["learned"]
        assert said["model"] != before
        history = service.ask("GET", "/v1/users/5000").json["history"]
        assert [row["item_id"] for row in history] == ["brand new", "3", "brand new", "3"]
        assert stats["learning"]["failures"] == 0
        assert stats["learning"]["every"] == 1.0
    finally:
        assert service.stop() == 0


def test_models_that_cannot_learn_are_refused_at_the_start(
    log: tr.Log, address: str, tmp_path: Path
) -> None:
    model, untimed = tr.Markov().fit(log), tr.Log.from_frame(log.to_frame(), time=None)
    bare = model.save(tmp_path / "bare.tale", histories=False)
    timeless = tr.EASE().fit(untimed).save(tmp_path / "timeless.tale")
    shuffled = tr.Markov().fit(tr.order_ties(log, "random:1")).save(tmp_path / "random.tale")
    weighed = log.to_frame().with_columns(pl.int_range(1, pl.len() + 1).alias("w"))
    heavy = tr.Markov().fit(tr.Log.from_frame(weighed, weight="w")).save(tmp_path / "heavy.tale")
    even = tr.Log.from_frame(log.to_frame().with_columns(w=pl.lit(2.0)), weight="w")
    steady = tr.Markov().fit(even).save(tmp_path / "steady.tale")
    good = model.save(tmp_path / "good.tale")
    learn = ("--store", address, "--learn", "every=1m")
    assert "saved without histories" in refusal("serve", bare, *learn)
    assert "without times" in refusal("serve", timeless, *learn)
    assert "ties random:1" in refusal("serve", shuffled, *learn)
    assert "weights of rows" in refusal("serve", heavy, *learn)
    assert "weights of rows" in refusal("serve", steady, *learn)
    assert "give --store too" in refusal("serve", good, "--learn", "every=1m")


def test_an_unreachable_database_is_named_without_its_password(log: tr.Log, tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg: EXTRAS=all make test")
    good = tr.Markov().fit(log).save(tmp_path / "good.tale")
    said = refusal("serve", good, "--store", "postgresql://a:hushhush@127.0.0.1:1/x", "--port", "0")
    assert "refused" in said
    assert "hushhush" not in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("every=10m", 600), ("30s", 30), ("every=1.5h", 5400), ("1d", 86_400)]
)
def test_intervals_are_parsed(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "every=0s", "every=-5m", "10 m", "ten", "every=5w"])
def test_invalid_intervals_are_refused(text: str) -> None:
    with pytest.raises(TalerecError, match="`learn`"):
        parse_interval(text)
