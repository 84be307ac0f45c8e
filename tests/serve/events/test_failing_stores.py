"""A store that is slow, full, locked, killed or gone: what was acknowledged stays, and answers go on."""

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
from service import GOOD, JSON, Local, ids, living, send
from talerec.serve.http.app import App
from talerec.serve.settings import Settings
from talerec.store.events import StoreError
from talerec.store.store import Store
from talerec.store.tail import Recent
from talerec.store.writer import Ticket, Writer
from waiting import LONG_S, until


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
    monkeypatch.setattr("talerec.store.writer._WAITING", 5)
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
