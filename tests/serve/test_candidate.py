"""Candidate models: which users they serve, and their online metrics against the library."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from talerec.artifact import read_manifest
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from processes import children_of, fields_of
from service import Local, Remote, history_of
from talerec.serve import Settings
from talerec.serve.online import CANDIDATE, EvaluationProcess, is_in_share
from talerec.serve.online.metrics import MEASURED
from talerec.store import Event, Exclusion, MeasurementStore, Store
from waiting import until

SECOND = 1_000_000


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(3000, users=120, items=80, seed=5)


@pytest.fixture(scope="module")
def models(log: tr.Log) -> dict[str, tr.Model]:
    return {name: tr.MODELS[name]().fit(log) for name in ("tale", "popular", "tempo")}


@pytest.fixture(scope="module")
def paths(models: dict[str, tr.Model], tmp_path_factory: Any) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: model.save(folder / f"{name}.tale") for name, model in models.items()}


def version(path: Path) -> str:
    return str(read_manifest(path)["version"])


# -- assignment of users ---------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, 0.0, 0.4, 1.0])
def test_users_stay_with_their_model(
    paths: dict[str, Path], tmp_path: Path, share: float | None
) -> None:
    settings = {"candidate": paths["popular"], "share": share}
    two = [Local(paths["tale"], tmp_path / str(n), **settings) for n in range(2)]
    current, candidate = version(paths["tale"]), version(paths["popular"])
    chosen = set()
    for local in two:
        local.app.load()
    for user in range(1, 41):
        is_candidate = is_in_share(str(user), 0.1 if share is None else share, CANDIDATE)
        chosen.add(is_candidate)
        for user_id in (user, str(user)):
            for local in two:
                answer = local.post("/v1/recommend", {"user_id": user_id, "k": 3})
                assert answer.status == 200
                assert answer.json["model"] == (candidate if is_candidate else current)
                why = local.post("/v1/explain", {"user_id": user_id, "item_id": 1})
                assert why.json["model"] == answer.json["model"]
    assert chosen == ({True, False} if share in (None, 0.4) else {bool(share)})
    history = two[0].post("/v1/recommend", {"history": [{"item_id": 1}], "k": 3}).json
    assert history["model"] == current
    assert two[0].get("/v1/stats").json["candidate"] == {
        "model": candidate,
        "share": 0.1 if share is None else share,
    }


def test_a_model_requested_by_name_is_not_replaced_by_the_candidate(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"candidate": paths["popular"], "share": 1.0, "beside": (paths["tempo"],)}
    local = Local(paths["tale"], tmp_path / "run", **settings)
    local.app.load()
    answer = local.post("/v1/recommend?beside=tempo", {"user_id": 3, "k": 3}).json
    assert answer["model"] == version(paths["tempo"])


def test_a_candidate_may_vanish_return_and_have_other_items(
    log: tr.Log, paths: dict[str, Path], tmp_path: Path
) -> None:
    frame = pl.DataFrame({"user_id": [1, 1, 2], "item_id": ["x", "y", "x"], "timestamp": [1, 2, 3]})
    other = tr.MODELS["popular"]().fit(tr.Log.from_frame(frame, time_unit="s"))
    place = other.save(tmp_path / "next.tale")
    local = Local(paths["tale"], tmp_path / "run", candidate=place, share=1.0)
    local.app.load()
    request = {"user_id": 1, "k": 2}
    before = local.post("/v1/recommend", request).json
    assert [item["item_id"] for item in before["items"]] == ["x", "y"]
    shutil.rmtree(place)
    assert local.app.api.candidate is not None
    with pytest.raises(TalerecError):
        local.app.api.candidate.refresh()
    assert local.post("/v1/recommend", request).json == before
    shutil.copytree(paths["tempo"], place)
    local.app.api.candidate.refresh()
    assert local.post("/v1/recommend", request).json["model"] == version(paths["tempo"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"measure": 2.0, "store": "sqlite:///x.db"},
            "`measure` is 2; it must be a share of users",
        ),
        ({"measure": -1.0, "store": "sqlite:///x.db"}, "`measure` is -1"),
        ({"measure": float("nan"), "store": "sqlite:///x.db"}, "`measure` is nan"),
        ({"measure": 0.1}, "`measure` evaluates models on arriving events: give `store` too"),
        ({"share": 0.5}, "`share` is the candidate's share of users: give `candidate` too"),
        ({"share": 1.5, "candidate": Path("x")}, "`share` is 1.5"),
        ({"live_days": 0.0}, "`live_days` is 0"),
    ],
)
def test_an_invalid_share_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(TalerecError, match="`") as error:
        Settings(path=Path("shop.tale"), **settings)
    assert said in str(error.value)


def test_a_missing_candidate_prevents_the_start(paths: dict[str, Path], tmp_path: Path) -> None:
    local = Local(paths["tale"], tmp_path / "run", candidate=tmp_path / "nothing.tale")
    with pytest.raises(TalerecError, match=r"nothing\.tale"):
        local.app.load()


# -- online evaluation -----------------------------------------------------------------------------


def events_of(log: tr.Log, now: float) -> list[Event]:
    """Return events of users of the log and of new users."""
    events = []
    items = log.items.ids.to_list()
    for n in range(120):
        user = f"{1 + n % 30}" if n % 4 else f"new-{n % 3}"
        events.append(Event(user, str(items[(n * 7) % 80]), int((now - 200 + n) * SECOND)))
    events.insert(50, Event("5", "unheard of", int((now - 150) * SECOND)))
    return events


@pytest.mark.parametrize(("current", "candidate"), [("tale", "popular"), ("tempo", "tale")])
def test_ranks_equal_those_of_the_library(
    log: tr.Log,
    models: dict[str, tr.Model],
    paths: dict[str, Path],
    tmp_path: Path,
    current: str,
    candidate: str,
) -> None:
    now = time.time()
    store, events = f"sqlite:///{tmp_path}/shop.db", events_of(log, now)
    settings = Settings(
        path=paths[current], candidate=paths[candidate], share=0.3, measure=0.8, store=store
    )
    process = EvaluationProcess(settings, tmp_path)
    measurer = process.open_evaluator()
    assert measurer is not None
    measurer.step(now)
    for holder in process._holders.values():
        holder.start()
    with Store.open(store) as opened:
        opened.append([events])
    while measurer.step(now):
        pass
    with MeasurementStore.open(store) as opened:
        measurements = {(row.seq, row.role): row for row in opened.read_since(0)}
    sampled = [n for n, event in enumerate(events) if is_in_share(event.user, 0.8, MEASURED)]
    assert sorted(measurements) == sorted(
        (n + 1, role) for n in sampled for role in ("current", "candidate")
    )
    for role, name in (("current", current), ("candidate", candidate)):
        for n in sampled:
            row = measurements[n + 1, role]
            assert row.version == version(paths[name])
            expected = wanted_place(models[name], log, events, n)
            assert expected is None or row.rank == expected, (n, events[n])


def wanted_place(model: tr.Model, log: tr.Log, events: list[Event], n: int) -> int | None:
    """Return the rank of event n by the library; None for users without a history."""
    event = events[n]
    users = [str(earlier) for earlier in log.users.ids.to_list()]
    rows: list[tuple[Any, int]] = []
    if event.user in users:
        rows = history_of(log, users.index(event.user))
    before = [
        earlier
        for earlier in events[:n]
        if earlier.user == event.user and earlier.time <= event.time
    ]
    rows += [(earlier.item, earlier.time) for earlier in before]
    if not rows:
        return None
    shown = model.recommend_histories([rows], 10, unknown="skip", as_of=event.time)["item_id"]
    names = [str(item) for item in shown]
    return names.index(event.item) + 1 if event.item in names else 0


def test_events_that_a_model_was_trained_on_are_not_measured(
    log: tr.Log, models: dict[str, tr.Model], tmp_path: Path
) -> None:
    from talerec.models.core import STORE, STORE_SEQ

    store = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(store) as opened:
        meta = opened.meta()
    path = models["tale"].save(tmp_path / "shop.tale")
    trained = tr.load(path)
    trained.fitted.training.update({STORE: meta.store, STORE_SEQ: 3})
    trained.save(path)
    process = EvaluationProcess(Settings(path=path, measure=1.0, store=store), tmp_path)
    measurer, now = process.open_evaluator(), time.time()
    assert measurer is not None
    measurer.step(now)
    with Store.open(store) as opened:
        opened.append([[Event("5", "7", int(now * SECOND) - 9 + n) for n in range(5)]])
    process._holders["current"].start()
    while measurer.step(now):
        pass
    with MeasurementStore.open(store) as opened:
        ranks = {row.seq: row.rank for row in opened.read_since(0)}
    assert [seq for seq, rank in ranks.items() if rank == Exclusion.TRAINED] == [1, 2, 3]
    assert [seq for seq, rank in ranks.items() if rank >= 0] == [4, 5]


def measurers(parent: int) -> list[int]:
    """Return the low-priority processes of a service."""
    priority = os.nice(0)
    every = {pid: fields_of(pid)[16:17] for pid in children_of(parent)}
    nice = {pid: int(text) for pid, some in every.items() for text in some}
    return [
        pid for pid, value in nice.items() if value >= min(priority + 10, 19) and value > priority
    ]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_online_evaluation_restarts_after_it_was_killed(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    options = ["--store", f"sqlite:///{tmp_path}/shop.db", "--measure", "1", "--workers", "2"]
    service = Remote(paths["tale"], *options, "--candidate", str(paths["popular"]))
    try:
        first = until(lambda: measurers(service.process.pid), "online evaluation did not start")
        until(lambda: service.ask("GET", "/v1/stats").json["measured"], "there is no summary")

        def send(count: int) -> None:
            events = [{"user_id": 1 + n % 20, "item_id": 1 + n % 60} for n in range(count)]
            assert service.ask("POST", "/v1/events", {"events": events}).status == 202

        def measured() -> int:
            stats = service.ask("GET", "/v1/stats").json["measured"]
            return sum(model["events"] for model in stats["hour"]["models"]) if stats else 0

        send(50)
        until(lambda: measured() == 100, "the first events are not measured")
        os.kill(first[0], signal.SIGKILL)
        send(30)
        assert service.ask("POST", "/v1/recommend", {"user_id": 3, "k": 2}).status == 200
        until(lambda: measured() == 160, "later events are not measured")
        second = measurers(service.process.pid)
        assert second
        assert second != first
        metric = "talerec_live_events{"  # of an hour, and of a day; each worker looks once a second
        until(lambda: service.metric(metric) == 320, "the metrics do not show it")
        assert service.metric("talerec_measured_share") == 1
    finally:
        assert service.stop() == 0
