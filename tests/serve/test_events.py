"""A service that remembers: events in, durable, known to the next answer; users asked for, shown and deleted."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import talerec as tr
from talerec.data.merging import merged
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from postgres import postgres
from service import JSON, Answer, Local
from talerec.models.keeping import STORE, STORE_SEQ
from talerec.serve.app import App
from talerec.serve.service import ServedModel
from talerec.serve.settings import Settings
from talerec.serve.shared import SharedState
from talerec.serve.users import Users
from talerec.store.events import Event, StoreError
from talerec.store.recent import Recent
from talerec.store.store import Store
from talerec.store.writing import Ticket, Writer
from waiting import LONG_S, until

TOKEN = "a-token-for-tests-alone"
SECOND, DAY = 10**6, 86_400 * 10**6


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(1500, users=80, items=60, seed=3)


@pytest.fixture(scope="module")
def saved(log: tr.Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tr.TALE(reg=20).fit(log).save(tmp_path_factory.mktemp("models") / "shop.tale")


@contextmanager
def living(saved: Path, folder: Path, store: str | None, **settings: Any) -> Iterator[Local]:
    """A service with a store, until the block ends."""
    local = Local(saved, folder, store=store, **settings)
    local.app.start()
    try:
        yield local
    finally:
        local.app.stop()


@pytest.fixture
def service(saved: Path, tmp_path: Path) -> Iterator[Local]:
    with living(saved, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db") as local:
        yield local


def send(local: Local, *events: dict[str, Any]) -> Answer:
    return local.post("/v1/events", {"events": list(events)})


def ids(answer: Answer) -> list[Any]:
    assert answer.status == 200, answer.body
    return [item["item_id"] for item in answer.json["items"]]


def history_of(log: tr.Log, user: int) -> list[tuple[Any, int]]:
    rows = slice(log.ptr[user], log.ptr[user + 1])
    names = log.items.ids.gather(log.item[rows]).to_list()
    return list(zip(names, log.time[rows].tolist(), strict=True))


# -- the next answer knows -------------------------------------------------------------------------


def test_the_next_answer_is_the_librarys_for_the_history_with_the_event(
    service: Local, saved: Path, log: tr.Log
) -> None:
    model = tr.load(saved)
    for place in (0, 7, 30):
        user, rows = log.users.ids[place], history_of(log, place)
        for item in (5, 17):
            moment = int(log.time.max()) + 5 * SECOND
            sent = {"user_id": user, "item_id": item, "timestamp": moment}
            assert send(service, sent).json == {"accepted": 1, "duplicates": 0}
            rows.append((item, moment))
            said = service.post("/v1/recommend", {"user_id": user, "k": 9, "hide_seen": True})
            own = model.recommend_histories([rows], k=9, hide_seen=True)
            assert ids(said) == own["item_id"].to_list()
            assert [one["score"] for one in said.json["items"]] == own["score"].to_list()


def test_a_user_is_explained_with_the_events_of_the_store(
    service: Local, saved: Path, log: tr.Log
) -> None:
    model, moment = tr.load(saved), int(log.time.max()) + 5 * SECOND
    user, rows = log.users.ids[7], history_of(log, 7)
    sent = [("never-seen", moment), (5, moment + SECOND)]
    send(service, *({"user_id": user, "item_id": i, "timestamp": t} for i, t in sent))
    rows += sent
    best = service.post("/v1/recommend", {"user_id": user, "k": 1}).json["items"][0]
    said = service.post("/v1/explain", {"user_id": user, "item_id": best["item_id"]}).json
    own = model.explain(rows, best["item_id"], unknown="skip")["contribution"].to_list()
    assert [row["item_id"] for row in said["rows"]] == [item for item, _ in rows]
    assert [row["contribution"] for row in said["rows"]] == pytest.approx(own, abs=1e-12)
    assert said["score"] == pytest.approx(best["score"], abs=1e-9)
    stranger = service.post("/v1/explain", {"user_id": "nobody", "item_id": 5}).json
    assert (stranger["rows"], stranger["score"]) == ([], 0.0)
    for asked in ({}, {"history": [], "user_id": user}):
        assert service.post("/v1/explain", {**asked, "item_id": 5}).code == "invalid"


@pytest.mark.parametrize("kind", ["tempo", "sknn", "markov", "popular"])
def test_every_kind_of_model_answers_for_users_with_events(
    kind: str, log: tr.Log, tmp_path: Path
) -> None:
    path = tr.MODELS[kind]().fit(log).save(tmp_path / "m.tale")
    model = tr.load(path)
    with living(path, tmp_path / "run", f"sqlite:///{tmp_path}/shop.db") as local:
        for place in (0, 7):
            user, rows = log.users.ids[place], history_of(log, place)
            late = int(log.time.max()) + 7200 * SECOND
            rows += [(5, late), (9, late + SECOND)]
            sent = [{"user_id": user, "item_id": i, "timestamp": t} for i, t in rows[-2:]]
            assert send(local, *sent).status == 202
            for hide in (False, True):
                asked = {"user_id": user, "k": 7, "hide_seen": hide}
                own = model.recommend_histories([rows], k=7, hide_seen=hide)
                assert ids(local.post("/v1/recommend", asked)) == own["item_id"].to_list()
                asked["as_of"] = late + DAY
                own = model.recommend_histories([rows], k=7, hide_seen=hide, as_of=late + DAY)
                assert ids(local.post("/v1/recommend", asked)) == own["item_id"].to_list()
        stranger = local.post("/v1/recommend", {"user_id": "nobody", "k": 60}).json
        assert (stranger["fallback"], len(stranger["items"])) == ("trending", 60)


def test_without_events_a_user_is_answered_as_the_library_does(
    service: Local, saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    model, alone = tr.load(saved), Local(saved, tmp_path / "alone")
    for user in log.users.ids[:10].to_list():
        own = model.recommend([user], k=6)["item_id"].to_list()
        for local in (service, alone):
            assert ids(local.post("/v1/recommend", {"user_id": user, "k": 6})) == own
            assert ids(local.post("/v1/recommend", {"user_id": str(user), "k": 6})) == own
        batch = {"requests": [{"user_id": user, "k": 6}, {"history": [], "k": 2}]}
        answers = service.post("/v1/recommend:batch", batch).json["answers"]
        assert [one["item_id"] for one in answers[0]["items"]] == own


def test_users_asked_together_get_their_own_answers(service: Local, log: tr.Log) -> None:
    users = log.users.ids[:20].to_list()
    for n, user in enumerate(users):
        send(service, {"user_id": user, "item_id": n + 1})
    wanted = [ids(service.post("/v1/recommend", {"user_id": u, "k": 8})) for u in users]
    found = service.post_all("/v1/recommend", [{"user_id": u, "k": 8} for u in users])
    assert [ids(one) for one in found] == wanted
    assert len({tuple(one) for one in wanted}) > 5


def test_events_of_a_new_user_are_its_history(service: Local, saved: Path) -> None:
    start = 1_700_000_000
    events = [
        {"user_id": "n\u00f6w", "item_id": 9, "timestamp": start + 60, "event": "buy"},
        {"user_id": "n\u00f6w", "item_id": "never seen", "timestamp": start, "event_id": "e1"},
        {"user_id": "other", "item_id": 3, "timestamp": start},
    ]
    assert send(service, *events).status == 202
    shown = service.get("/v1/users/n\u00f6w").json
    assert shown["user_id"] == "n\u00f6w"
    assert shown["history"] == [
        {"item_id": "never seen", "timestamp": "2023-11-14T22:13:20+00:00", "event_id": "e1"},
        {"item_id": 9, "timestamp": "2023-11-14T22:14:20+00:00", "event": "buy"},
    ]
    asked = service.post("/v1/recommend", {"user_id": "n\u00f6w", "k": 5})
    own = tr.load(saved).recommend_histories([["never seen", 9]], k=5, unknown="skip")
    assert ids(asked) == own["item_id"].to_list()
    assert "fallback" not in asked.json


def test_an_event_without_a_time_is_now(service: Local) -> None:
    before = datetime.now(UTC)
    send(service, {"user_id": "ann", "item_id": 1})
    (row,) = service.get("/v1/users/ann").json["history"]
    assert before <= datetime.fromisoformat(row["timestamp"]) <= datetime.now(UTC)


rows_of = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), max_size=8)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(old=rows_of.filter(bool), new=rows_of, ties=st.sampled_from(["file", "item"]))
def test_events_are_merged_as_an_update_merges_rows(
    old: list[tuple[int, int]], new: list[tuple[int, int]], ties: str, tmp_path_factory: Any
) -> None:
    """Items 1 to 3 are known, 4 is not unless the log has it; times collide often."""
    folder = tmp_path_factory.mktemp("m")

    def frame(rows: list[tuple[int, int]]) -> tr.Log:
        every = [("ann", item, time * SECOND) for item, time in rows]
        made = pl.DataFrame(every, schema=["user_id", "item_id", "timestamp"], orient="row")
        return tr.order_ties(tr.Log.from_frame(made, time_unit="us"), ties)

    first = frame(old)
    path = tr.Popular().fit(first).save(folder / "m.tale")
    model = ServedModel.open(path, verify=False)
    address = f"sqlite:///{folder}/shop.db"
    with Store.open(address) as store:
        store.append([[Event("ann", str(item), time * SECOND) for item, time in new]])
    recent = Recent(address, 100)
    rows = Users(recent, 100).known(model, "ann")
    recent.close()
    assert rows is not None
    wanted = merged(first, frame(new)).log if new else first
    names = wanted.items.ids.gather(wanted.item).to_list()
    known = set(first.items.ids.to_list())
    if ties == "item" and any(name not in known for name in names):
        return  # an item without a position has no place among simultaneous ones
    shown = [
        first.items.ids[item] if item >= 0 else int(str(rows.events[place].item))
        for place, item in enumerate(rows.item.tolist())
    ]
    assert list(zip(shown, rows.time.tolist(), strict=True)) == list(
        zip(names, wanted.time.tolist(), strict=True)
    )


def test_events_that_the_artifact_holds_are_not_added_again(log: tr.Log, tmp_path: Path) -> None:
    """An artifact says which store it learned from, and how far: the seq of another store means nothing."""
    address = f"sqlite:///{tmp_path}/shop.db"
    late = int(log.time.max()) + DAY
    with Store.open(address) as store:
        store.append([[Event("1", "5", late + n) for n in range(3)]])
        name = store.meta().store
    recent = Recent(address, 100)
    for training, added in (
        ({STORE: name, STORE_SEQ: 2}, 1),
        ({STORE: "another", STORE_SEQ: 2}, 3),
        ({}, 3),
    ):
        model = tr.Popular().fit(log)
        model.fitted.training.update(training)
        served = ServedModel.open(model.save(tmp_path / "m.tale"), verify=False)
        rows = Users(recent, 5000).known(served, "1")
        assert rows is not None
        assert len(rows) == len(history_of(log, 0)) + added
    recent.close()


def test_only_the_last_rows_of_a_long_history_are_read(saved: Path, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([[Event("long", str(n % 60 + 1), n * SECOND) for n in range(3000)]])
    with living(saved, tmp_path / "run", address, max_history=50) as local:
        shown = local.get("/v1/users/long").json["history"]
        assert [row["item_id"] for row in shown] == [n % 60 + 1 for n in range(2950, 3000)]
        send(local, {"user_id": "long", "item_id": 7})
        shown = local.get("/v1/users/long").json["history"]
        assert [row["item_id"] for row in shown] == [n % 60 + 1 for n in range(2951, 3000)] + [7]
        assert local.post("/v1/recommend", {"user_id": "long", "k": 3}).status == 200


# -- what is popular now ---------------------------------------------------------------------------


def first_is(answer: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, if this is its first item: what is popular is not counted anew for every request."""
    return answer if wanted.items() <= answer["items"][0].items() else None


def test_who_is_unknown_gets_what_is_popular_now_filled_up_to_k(
    service: Local, log: tr.Log
) -> None:
    asked = {"user_id": "nobody", "k": 60}
    first = service.post("/v1/recommend", asked).json
    assert first["fallback"] == "trending"
    assert sorted(item["item_id"] for item in first["items"]) == log.items.ids.to_list()
    late = int(log.time.max()) // SECOND + 60
    rare = [first["items"][-1]["item_id"], first["items"][-2]["item_id"]]
    top = first["items"][0]["score"]
    for n in range(int(top) + 3):
        send(service, {"user_id": f"u{n}", "item_id": rare[0], "timestamp": late})
        send(service, {"user_id": f"u{n}", "item_id": "not known", "timestamp": late})
    send(service, {"user_id": "x", "item_id": rare[1], "timestamp": late})
    best = {"item_id": rare[0], "score": top + 3}
    now = until(lambda: first_is(service.post("/v1/recommend", asked).json, best))
    counts = {item["item_id"]: item["score"] for item in now["items"]}
    week = log.counts(7.0)
    for place, item in enumerate(log.items.ids.to_list()):
        if item not in rare:
            assert counts[item] == pytest.approx(
                week[place], abs=1
            )  # the hour of the window's begin
    assert counts[rare[1]] >= 1
    assert len(now["items"]) == 60
    history = service.post("/v1/recommend", {"history": [], "k": 1}).json
    assert history["items"][0]["item_id"] == rare[0]
    some = service.post("/v1/recommend", {**asked, "k": 5, "deny": [rare[0]]}).json
    assert rare[0] not in [item["item_id"] for item in some["items"]]
    assert len(some["items"]) == 5


def test_events_make_old_rows_unpopular(service: Local, log: tr.Log) -> None:
    """A week after the log's end its rows no longer count, but fill up."""
    before = service.post("/v1/recommend", {"user_id": "nobody", "k": 5}).json["items"]
    late = int(log.time.max()) // SECOND + 9 * 86_400
    item = before[-1]["item_id"]
    send(service, {"user_id": "u", "item_id": item, "timestamp": late})
    asked, best = {"user_id": "nobody", "k": 5}, {"item_id": item, "score": 1.0}
    now = until(lambda: first_is(service.post("/v1/recommend", asked).json, best))["items"]
    assert [one["score"] for one in now[1:]] == [0.0] * 4
    week = dict(zip(log.items.ids.to_list(), log.counts(7.0).tolist(), strict=True))
    rest = sorted((count for name, count in week.items() if name != item), reverse=True)
    assert [week[one["item_id"]] for one in now[1:]] == rest[:4]


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
    monkeypatch.setattr("talerec.serve.memory._KNOWN_S", LONG_S)
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


# -- what is refused -------------------------------------------------------------------------------

GOOD = {"user_id": "ann", "item_id": 1}
FUTURE = time.time() + 3 * 86_400


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"user_id": "", "item_id": 1}, "events[2]: user_id is empty"),
        ({"user_id": "  ", "item_id": 1}, "events[2]: user_id is empty"),
        ({"user_id": "x" * 10_000, "item_id": 1}, "events[2]: user_id has 10000 characters"),
        ({"user_id": "ann", "item_id": "y" * 10_000}, "events[2]: item_id has 10000 characters"),
        ({**GOOD, "event_id": "z" * 10_000}, "events[2]: event_id has 10000 characters"),
        ({"user_id": "a\0b", "item_id": 1}, "events[2]: user_id has a zero character"),
        ({**GOOD, "event": "\0"}, "events[2]: event has a zero character"),
        ({**GOOD, "timestamp": FUTURE}, "lies in the future"),
        ({**GOOD, "timestamp": "2999-01-01"}, "events[2]: timestamp '2999-01-01' lies in the future"),
        ({**GOOD, "timestamp": -5}, "events[2]: timestamp -5 lies before 1970"),
        ({**GOOD, "timestamp": "yesterday"}, "events[2]: 'yesterday' is not a time"),
        ({**GOOD, "timestamp": 1e300}, "events[2]: timestamp 1e+300 is beyond any date"),
        ({**GOOD, "timestamp": True}, "events[2].timestamp: expected "),
        ({"user_id": "ann"}, "events[2]: item_id is missing"),
        ({**GOOD, "item_id": None}, "events[2].item_id: expected int | str, got null"),
        ({**GOOD, "item_id": 1.5}, "events[2].item_id: expected int | str, got float"),
        ({**GOOD, "item_id": [1]}, "events[2].item_id: expected int | str, got array"),
        ({**GOOD, "event": "x" * 101}, "events[2].event: expected str of length <= 100"),
        ({**GOOD, "price": 5}, "events[2]: there is no field price"),
        (5, "events[2]: expected object, got int"),
    ],
)  # fmt: skip
def test_a_bad_event_is_refused_by_its_place_and_nothing_is_kept(
    service: Local, bad: Any, said: str
) -> None:
    answer = service.post("/v1/events", {"events": [GOOD, GOOD, bad, GOOD]})
    assert answer.status == 422
    assert answer.code == "invalid_event"
    assert said in answer.json["error"]["message"]
    assert service.get("/v1/users/ann").status == 404
    assert service.get("/v1/stats").json["store"]["seq"] == 0


@pytest.mark.parametrize("body", [{"events": []}, {}, {"events": GOOD}, [GOOD], {"event": [GOOD]}])
def test_a_body_without_events_is_refused(service: Local, body: Any) -> None:
    assert service.post("/v1/events", body).status == 422


def test_too_many_events_and_bodies_that_are_not_json_are_refused(
    saved: Path, tmp_path: Path
) -> None:
    with living(saved, tmp_path / "run", f"sqlite:///{tmp_path}/s.db", max_events=3) as local:
        assert local.post("/v1/events", {"events": [GOOD] * 4}).code == "too_many_events"
        assert local.post("/v1/events", b'{"events').code == "malformed_json"
        assert (
            local.post("/v1/events", b'{"events": [{"user_id": "\xff"}]}').code == "malformed_json"
        )
        lone = b'{"events": [{"user_id": "\\ud800", "item_id": 1}]}'
        assert local.post("/v1/events", lone).status in (400, 422)
        assert local.ask("GET", "/v1/events").status == 405
        assert local.post("/v1/events", {"events": [GOOD] * 3}).status == 202


def test_a_repeated_event_is_harmless_and_one_with_other_contents_is_refused(
    service: Local,
) -> None:
    event = {"user_id": "ann", "item_id": 1, "timestamp": 1_700_000_000, "event_id": "e1"}
    assert send(service, event, event).json == {"accepted": 1, "duplicates": 1}
    assert send(service, event).json == {"accepted": 0, "duplicates": 1}
    untimed = {name: value for name, value in event.items() if name != "timestamp"}
    assert send(service, untimed).json == {"accepted": 0, "duplicates": 1}
    for other in ({"item_id": 2}, {"user_id": "bob"}, {"timestamp": 5}, {"event": "buy"}):
        answer = send(service, GOOD, {**event, **other})
        assert (answer.status, answer.code) == (409, "conflict")
        assert "events[1]: event_id 'e1'" in answer.json["error"]["message"]
    assert len(service.get("/v1/users/ann").json["history"]) == 1
    text = service.get("/metrics").body.decode()
    assert "talerec_events_accepted_total 1\n" in text
    assert "talerec_events_duplicate_total 3\n" in text


@pytest.mark.parametrize(
    "body",
    [
        {"k": 5},
        {"user_id": 1, "history": []},
        {"user_id": ""},
        {"user_id": "x" * 10_000},
        {"user_id": None},
        {"user_id": [1]},
        {"user_id": "a\0b"},
    ],
)
def test_a_question_has_a_user_or_a_history(service: Local, body: Any) -> None:
    answer = service.post("/v1/recommend", body)
    assert (answer.status, answer.code) == (422, "invalid")
    assert service.post("/v1/recommend:batch", {"requests": [body]}).status == 422


def test_without_a_store_no_event_is_taken(saved: Path, tmp_path: Path) -> None:
    local = Local(saved, tmp_path / "run")
    for answer in (send(local, GOOD), local.ask("DELETE", "/v1/users/1")):
        assert (answer.status, answer.code) == (409, "no_store")
        assert "--store" in answer.json["error"]["message"]
    assert local.get("/v1/stats").json["store"] is None
    assert local.post("/v1/recommend", {"user_id": "nobody", "k": 4}).json["fallback"] == "trending"


def test_users_and_events_beyond_this_machine_need_a_token(saved: Path, tmp_path: Path) -> None:
    place = {"host": "0.0.0.0", "store": f"sqlite:///{tmp_path}/shop.db"}
    with living(saved, tmp_path / "a", **place, open=True) as local:
        for answer in (
            send(local, GOOD),
            local.post("/v1/recommend", {"user_id": 1}),
            local.get("/v1/users/1"),
            local.ask("DELETE", "/v1/users/1"),
        ):
            assert (answer.status, answer.code) == (403, "no_token")
        assert local.post("/v1/recommend", {"history": []}).status == 200
    with living(saved, tmp_path / "b", **place, token=TOKEN) as local:
        assert send(local, GOOD).status == 401
        assert local.ask("DELETE", "/v1/users/1").status == 401
        mine = {"authorization": f"Bearer {TOKEN}"}
        assert local.post("/v1/events", {"events": [GOOD]}, **mine).status == 202


def test_a_user_who_is_not_there_and_ids_that_nobody_has(service: Local) -> None:
    assert service.get("/v1/users/nobody").code == "unknown_user"
    assert service.get(f"/v1/users/{'x' * 10_000}").status == 422
    assert service.get("/v1/users/").status == 422
    odd = "a/b c%&#'\"; drop table talerec_events --"
    assert send(service, {"user_id": odd, "item_id": odd}).status == 202
    (row,) = service.get(f"/v1/users/{odd}").json["history"]
    assert row["item_id"] == odd
    assert service.post("/v1/recommend", {"user_id": odd, "k": 2}).status == 200
    assert service.get("/v1/stats").json["store"]["seq"] == 1


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


# -- a store that fails ----------------------------------------------------------------------------


def hold_until_submitted(writer: Writer, count: int, patch: pytest.MonkeyPatch) -> None:
    """Let the store commit nothing until so many requests have come to the writer, taken or refused."""
    left, every = count, threading.Event()
    submit, append = writer.submit, writer.store.append

    def counted(ticket: Ticket) -> None:
        nonlocal left
        left -= 1
        try:
            submit(ticket)
        finally:
            if not left:
                every.set()

    patch.setattr(writer, "submit", counted)
    patch.setattr(writer.store, "append", lambda some: every.wait(LONG_S) and append(some))


def test_more_than_the_store_can_take_is_refused_and_nothing_is_lost(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store hangs, requests wait up to a limit; beyond it they are told to come back."""
    monkeypatch.setattr("talerec.store.writing._WAITING", 5)
    writer = service.app.memory._writer
    assert writer is not None
    hold_until_submitted(writer, 12, monkeypatch)
    bodies = [{"events": [{"user_id": "ann", "item_id": n}]} for n in range(12)]
    answers = service.post_all("/v1/events", bodies)
    taken = [n for n, answer in enumerate(answers) if answer.status == 202]
    refused = [answer for answer in answers if answer.status != 202]
    assert len(taken) == 5
    assert {(answer.status, answer.code) for answer in refused} == {(503, "busy")}
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    kept = [row["item_id"] for row in service.get("/v1/users/ann").json["history"]]
    assert sorted(map(int, kept)) == taken


def test_requests_that_wait_are_committed_together(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came before the thread that writes began, and all the others while it was busy."""
    writer = service.app.memory._writer
    assert writer is not None
    hold_until_submitted(writer, 50, monkeypatch)
    bodies = [{"events": [{"user_id": f"u{n}", "item_id": 1}]} for n in range(50)]
    assert {answer.status for answer in service.post_all("/v1/events", bodies)} == {202}
    stats = service.get("/v1/stats").json
    assert stats["events"]["events_accepted"] == 50
    assert 1 <= stats["events"]["store_commits"] <= 2
    assert stats["store"]["seq"] == 50


def test_a_locked_store_acknowledges_nothing_and_answers_go_on(
    service: Local, log: tr.Log, tmp_path: Path
) -> None:
    user = log.users.ids[3]
    before = service.post("/v1/recommend", {"user_id": user, "k": 5}).json
    writer = service.app.memory._writer
    assert writer is not None
    with writer.store._used() as connection:
        connection.execute("pragma busy_timeout = 20")
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("begin immediate")
    answer = send(service, {"user_id": user, "item_id": 9})
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert "locked" in answer.json["error"]["message"]
    assert service.post("/v1/recommend", {"user_id": user, "k": 5}).json == before
    other.execute("rollback")
    other.close()
    assert send(service, {"user_id": user, "item_id": 9}).status == 202
    assert "talerec_store_failures_total 1\n" in service.get("/metrics").body.decode()


def test_answers_go_on_without_the_server_and_events_do_when_it_is_back(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    with postgres() as server, living(saved, tmp_path / "run", server.address) as local:
        seen, other = log.users.ids[3], log.users.ids[4]
        assert send(local, {"user_id": seen, "item_id": 9}).status == 202
        known = local.post("/v1/recommend", {"user_id": seen, "k": 5}).json
        server.kill()
        answer = send(local, {"user_id": seen, "item_id": 10, "event_id": "e"})
        assert (answer.status, answer.code) == (503, "store_unavailable")
        assert "topsecret" not in answer.body.decode()
        assert local.post("/v1/recommend", {"user_id": seen, "k": 5}).json == known
        own = tr.load(saved).recommend([other], k=5)["item_id"].to_list()
        assert ids(local.post("/v1/recommend", {"user_id": other, "k": 5})) == own
        assert local.post("/v1/recommend", {"user_id": "nobody", "k": 5}).json["fallback"]
        server.start()
        until(lambda: send(local, {"user_id": seen, "item_id": 10, "event_id": "e"}).status == 202)
        rows = local.get(f"/v1/users/{seen}").json["history"]
        assert [row["item_id"] for row in rows[-2:]] == [9, 10]
        assert "topsecret" not in local.get("/v1/stats").body.decode()


def test_a_store_that_hangs_takes_nothing_from_answers(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes questions and says nothing: users are answered from the model's log, and all else as ever."""
    address, free, asked = f"sqlite:///{tmp_path}/shop.db", threading.Event(), []

    def hang(*given: Any) -> list[Any]:
        asked.append(given)
        assert free.wait(LONG_S)
        return []

    with living(saved, tmp_path / "run", address, measure=1.0, timeout=60) as local:
        recent = local.app.memory.recent
        assert recent is not None
        monkeypatch.setattr(recent, "kind", "postgresql")  # which is asked in threads
        monkeypatch.setattr(recent._reader, "of_user", hang)
        monkeypatch.setattr(recent._tail, "tail", hang)
        monkeypatch.setattr(local.app.api.living.live, "_look", hang)
        until(lambda: asked, "nobody reads on")
        users = log.users.ids[:6].to_list()
        own = [tr.load(saved).recommend([user], k=5)["item_id"].to_list() for user in users]
        questions = [("POST", "/v1/recommend", {"user_id": user, "k": 5}) for user in users]
        others = [("POST", "/v1/similar", {"item_id": int(log.items.ids[0])}), ("GET", "/v1/items?q=1", None)]  # fmt: skip
        others += [("GET", "/v1/stats", None), ("GET", "/metrics", None)]
        try:
            answers = local.ask_all([*questions, *others], JSON)
            assert [one.status for one in answers] == [200] * 10
            assert [ids(one) for one in answers[:6]] == own
            assert not local.get("/v1/stats").json["store"]["answers"]
            before = len(asked)
            assert ids(local.post("/v1/recommend", {"user_id": users[5], "k": 5})) == own[5]
            assert len(asked) == before  # nobody asks but whoever reads on
        finally:
            free.set()
        until(lambda: local.get("/v1/stats").json["store"]["answers"])


def test_reading_a_user_is_ended_by_the_server_and_other_work_is_not(tmp_path: Path) -> None:
    with postgres() as server:
        hasty, patient = Store(server.address, longest=0.2), Store(server.address)
        with pytest.raises(StoreError, match="statement timeout"):
            hasty._read("select pg_sleep(20)", ())
        assert patient._read("show statement_timeout", ()) == [("0",)]
        recent = Recent(server.address, 10)
        assert recent._reader._read("show statement_timeout", ()) == [("5s",)]
        assert recent._tail._read("show statement_timeout", ()) == [("0",)]
        for one in (hasty, patient, recent):
            one.close()


def test_a_worker_that_takes_the_place_of_another_goes_on_without_the_store(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    with postgres() as server:
        with living(saved, tmp_path / "run", server.address) as local:
            assert send(local, {"user_id": "ann", "item_id": 9}).status == 202
        server.kill()
        user = log.users.ids[4]
        with living(saved, tmp_path / "run", server.address) as local:
            assert ids(local.post("/v1/recommend", {"user_id": user, "k": 3}))
            assert send(local, GOOD).code == "store_unavailable"
            assert local.get("/v1/users/ann").status == 404
            server.start()
            until(lambda: local.get("/v1/users/ann").status == 200)
            until(lambda: send(local, GOOD).status == 202)
            assert local.get("/v1/users/ann").json["history"][0]["item_id"] == 9


@pytest.mark.parametrize(
    "store", ["sqlite:////nowhere/at/all/shop.db", "postgresql://a:hushhush@127.0.0.1:1/x", "x.csv"]
)
def test_a_store_that_cannot_be_used_keeps_the_service_from_starting(
    saved: Path, tmp_path: Path, store: str
) -> None:
    given = Settings(path=saved, store=store)
    assert "hushhush" not in repr(given)
    with pytest.raises(TalerecError) as caught:
        App(given, tmp_path)
    assert "\n" not in str(caught.value)
    assert "hushhush" not in str(caught.value)


def test_nobody_gets_the_events_of_another(service: Local, log: tr.Log) -> None:
    """Many users with items of their own alone: each answer's reasons are among the user's items."""
    rng, own = np.random.default_rng(1), dict[str, set[int]]()
    for n in range(60):
        items = rng.choice(np.arange(1, 61), 3, replace=False).tolist()
        own[f"new{n}"] = set(items)
        send(service, *({"user_id": f"new{n}", "item_id": item} for item in items))
    users = rng.choice(list(own), 100).tolist()
    found = service.post_all("/v1/recommend", [{"user_id": user, "k": 5} for user in users])
    for user, answer in zip(users, found, strict=True):
        reasons = {one["item_id"] for item in answer.json["items"] for one in item["because"]}
        assert reasons <= own[user]
        assert reasons
