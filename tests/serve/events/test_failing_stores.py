"""A store that is slow, full, locked or killed: acknowledged events stay, answers go on."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import talerec as tr
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from postgres import postgres
from service import GOOD, JSON, Local, ids, send, service_with_store
from talerec.serve import Settings
from talerec.serve.http import App
from talerec.store import EventTail, EventWriter, Store, StoreError, WriteRequest
from waiting import LONG_S, until


def hold_until_submitted(writer: EventWriter, count: int, patch: pytest.MonkeyPatch) -> None:
    """Block commits until `count` requests have been submitted to the writer, queued or refused."""
    left, every = count, threading.Event()
    submit, append = writer.submit, writer.store.append

    def counted(request: WriteRequest) -> None:
        nonlocal left
        left -= 1
        try:
            submit(request)
        finally:
            if not left:
                every.set()

    patch.setattr(writer, "submit", counted)
    patch.setattr(writer.store, "append", lambda some: every.wait(LONG_S) and append(some))


def test_requests_beyond_the_queue_limit_are_refused_and_none_is_lost(
    service: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store hangs, requests wait up to a limit; beyond it they are refused."""
    monkeypatch.setattr("talerec.store.writer._QUEUE_EVENTS", 5)
    writer = service.app.user_state._writer
    assert writer is not None
    hold_until_submitted(writer, 12, monkeypatch)
    bodies = [{"events": [{"user_id": "ann", "item_id": n}]} for n in range(12)]
    answers = service.post_all("/v1/events", bodies)
    accepted = [n for n, answer in enumerate(answers) if answer.status == 202]
    refused = [answer for answer in answers if answer.status != 202]
    assert len(accepted) == 5
    assert {(answer.status, answer.code) for answer in refused} == {(503, "busy")}
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    stored = [row["item_id"] for row in service.get("/v1/users/ann").json["history"]]
    assert sorted(map(int, stored)) == accepted


def test_waiting_requests_share_a_commit(service: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit for the first requests, one for those that arrived during it."""
    writer = service.app.user_state._writer
    assert writer is not None
    hold_until_submitted(writer, 50, monkeypatch)
    bodies = [{"events": [{"user_id": f"u{n}", "item_id": 1}]} for n in range(50)]
    assert {answer.status for answer in service.post_all("/v1/events", bodies)} == {202}
    stats = service.get("/v1/stats").json
    assert stats["events"]["events_accepted"] == 50
    assert 1 <= stats["events"]["store_commits"] <= 2
    assert stats["store"]["seq"] == 50


def test_a_locked_store_acknowledges_nothing_and_answers_continue(
    service: Local, log: tr.Log, tmp_path: Path
) -> None:
    user = log.users.ids[3]
    before = service.post("/v1/recommend", {"user_id": user, "k": 5}).json
    writer = service.app.user_state._writer
    assert writer is not None
    with writer.store._connected() as connection:
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


def test_answers_continue_without_the_server_and_events_resume(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    with postgres() as server, service_with_store(saved, tmp_path / "run", server.address) as local:
        seen, other = log.users.ids[3], log.users.ids[4]
        assert send(local, {"user_id": seen, "item_id": 9}).status == 202
        cached_answer = local.post("/v1/recommend", {"user_id": seen, "k": 5}).json
        server.kill()
        answer = send(local, {"user_id": seen, "item_id": 10, "event_id": "e"})
        assert (answer.status, answer.code) == (503, "store_unavailable")
        assert "topsecret" not in answer.body.decode()
        assert local.post("/v1/recommend", {"user_id": seen, "k": 5}).json == cached_answer
        expected = tr.load(saved).recommend([other], k=5)["item_id"].to_list()
        assert ids(local.post("/v1/recommend", {"user_id": other, "k": 5})) == expected
        assert local.post("/v1/recommend", {"user_id": "nobody", "k": 5}).json["fallback"]
        server.start()
        until(lambda: send(local, {"user_id": seen, "item_id": 10, "event_id": "e"}).status == 202)
        rows = local.get(f"/v1/users/{seen}").json["history"]
        assert [row["item_id"] for row in rows[-2:]] == [9, 10]
        assert "topsecret" not in local.get("/v1/stats").body.decode()


def test_a_hanging_store_does_not_block_answers(
    saved: Path, log: tr.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that never answers: users are answered from the model's log, all else as ever."""
    address, free, queries = f"sqlite:///{tmp_path}/shop.db", threading.Event(), []

    def hang(*arguments: Any) -> list[Any]:
        queries.append(arguments)
        assert free.wait(LONG_S)
        return []

    with service_with_store(saved, tmp_path / "run", address, measure=1.0, timeout=60) as local:
        tail = local.app.user_state.tail
        assert tail is not None
        monkeypatch.setattr(tail, "kind", "postgresql")  # which is asked in threads
        monkeypatch.setattr(tail._reader, "read_user", hang)
        monkeypatch.setattr(tail._poller, "read_after", hang)
        monkeypatch.setattr(local.app.api.users.online_metrics, "_read_summary", hang)
        until(lambda: queries, "nobody polls")
        users = log.users.ids[:6].to_list()
        expected = [tr.load(saved).recommend([user], k=5)["item_id"].to_list() for user in users]
        questions = [("POST", "/v1/recommend", {"user_id": user, "k": 5}) for user in users]
        others = [("POST", "/v1/similar", {"item_id": int(log.items.ids[0])})]
        others += [("GET", "/v1/items?q=1", None)]
        others += [("GET", "/v1/stats", None), ("GET", "/metrics", None)]
        try:
            answers = local.ask_all([*questions, *others], JSON)
            assert [answer.status for answer in answers] == [200] * 10
            assert [ids(answer) for answer in answers[:6]] == expected
            assert not local.get("/v1/stats").json["store"]["answers"]
            before = len(queries)
            assert ids(local.post("/v1/recommend", {"user_id": users[5], "k": 5})) == expected[5]
            assert len(queries) == before  # only the polling thread queries the store
        finally:
            free.set()
        until(lambda: local.get("/v1/stats").json["store"]["answers"])


def test_only_reading_a_user_has_a_statement_timeout(tmp_path: Path) -> None:
    with postgres() as server:
        Store.open(server.address)
        hasty, patient = Store(server.address, statement_timeout=0.2), Store(server.address)
        with pytest.raises(StoreError, match="statement timeout"):
            hasty._read("select pg_sleep(20)", ())
        assert patient._read("show statement_timeout", ()) == [("0",)]
        tail = EventTail(server.address, 10)
        assert tail._reader._read("show statement_timeout", ()) == [("5s",)]
        assert tail._poller._read("show statement_timeout", ()) == [("0",)]
        for connection in (hasty, patient, tail):
            connection.close()


def test_a_replacement_worker_starts_without_the_store(
    saved: Path, log: tr.Log, tmp_path: Path
) -> None:
    with postgres() as server:
        with service_with_store(saved, tmp_path / "run", server.address) as local:
            assert send(local, {"user_id": "ann", "item_id": 9}).status == 202
        server.kill()
        user = log.users.ids[4]
        with service_with_store(saved, tmp_path / "run", server.address) as local:
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
def test_an_unusable_store_prevents_the_start(saved: Path, tmp_path: Path, store: str) -> None:
    settings = Settings(path=saved, store=store)
    assert "hushhush" not in repr(settings)
    with pytest.raises(TalerecError) as caught:
        App(settings, tmp_path)
    assert "\n" not in str(caught.value)
    assert "hushhush" not in str(caught.value)
