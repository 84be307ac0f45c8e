"""Events and requests that are refused, and access without a token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import GOOD, Local, send, service_with_store

TOKEN = "a-token-for-tests-alone"
FUTURE = time.time() + 3 * 86_400


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"user_id": "", "item_id": 1}, "events[2]: user_id is empty"),
        ({"user_id": "  ", "item_id": 1}, "events[2]: user_id is empty"),
        ({"user_id": "x" * 10_000, "item_id": 1}, "events[2]: user_id has 10000 characters"),
        ({"user_id": "ann", "item_id": "y" * 10_000}, "events[2]: item_id has 10000 characters"),
        ({**GOOD, "event_id": "z" * 10_000}, "events[2]: event_id has 10000 characters"),
        ({"user_id": "a\0b", "item_id": 1}, "events[2]: user_id contains a null character"),
        ({**GOOD, "event": "\0"}, "events[2]: event contains a null character"),
        ({**GOOD, "timestamp": FUTURE}, "is in the future"),
        ({**GOOD, "timestamp": "2999-01-01"}, "events[2]: timestamp '2999-01-01' is in the future"),
        ({**GOOD, "timestamp": -5}, "events[2]: timestamp -5 is before 1970"),
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
def test_an_invalid_event_is_named_by_its_index_and_nothing_is_stored(
    service: Local, bad: Any, said: str
) -> None:
    answer = service.post("/v1/events", {"events": [GOOD, GOOD, bad, GOOD]})
    assert answer.status == 422
    assert answer.code == "invalid_event"
    assert said in answer.json["error"]["message"]
    assert service.get("/v1/users/ann").status == 404
    assert service.get("/v1/stats").json["store"]["seq"] == 0


def test_one_event_instead_of_a_list_is_refused_with_the_field(service: Local) -> None:
    message = service.post("/v1/events", GOOD).json["error"]["message"]
    assert message == "there is no field user_id; the fields are events"


@pytest.mark.parametrize("body", [{"events": []}, {}, {"events": GOOD}, [GOOD], {"event": [GOOD]}])
def test_a_body_without_events_is_refused(service: Local, body: Any) -> None:
    assert service.post("/v1/events", body).status == 422


def test_too_many_events_and_bodies_that_are_not_json_are_refused(
    saved: Path, tmp_path: Path
) -> None:
    with service_with_store(
        saved, tmp_path / "run", f"sqlite:///{tmp_path}/s.db", max_events=3
    ) as local:
        assert local.post("/v1/events", {"events": [GOOD] * 4}).code == "too_many_events"
        assert local.post("/v1/events", b'{"events').code == "malformed_json"
        assert (
            local.post("/v1/events", b'{"events": [{"user_id": "\xff"}]}').code == "malformed_json"
        )
        lone = b'{"events": [{"user_id": "\\ud800", "item_id": 1}]}'
        assert local.post("/v1/events", lone).status in (400, 422)
        assert local.ask("GET", "/v1/events").status == 405
        assert local.post("/v1/events", {"events": [GOOD] * 3}).status == 202


def test_repeated_events_are_ignored_and_conflicting_ones_refused(service: Local) -> None:
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
def test_a_request_has_a_user_or_a_history(service: Local, body: Any) -> None:
    answer = service.post("/v1/recommend", body)
    assert (answer.status, answer.code) == (422, "invalid")
    assert service.post("/v1/recommend:batch", {"requests": [body]}).status == 422


def test_without_a_store_events_are_refused(saved: Path, tmp_path: Path) -> None:
    local = Local(saved, tmp_path / "run")
    for answer in (send(local, GOOD), local.ask("DELETE", "/v1/users/1")):
        assert (answer.status, answer.code) == (409, "no_store")
        assert "start it with a store" in answer.json["error"]["message"]
    assert local.get("/v1/stats").json["store"] is None
    assert local.post("/v1/recommend", {"user_id": "nobody", "k": 4}).json["fallback"] == "trending"


def test_users_and_events_beyond_this_machine_need_a_token(saved: Path, tmp_path: Path) -> None:
    place = {"host": "0.0.0.0", "store": f"sqlite:///{tmp_path}/shop.db"}
    with service_with_store(saved, tmp_path / "a", **place, open=True) as local:
        for answer in (
            send(local, GOOD),
            local.post("/v1/recommend", {"user_id": 1}),
            local.get("/v1/users/1"),
            local.ask("DELETE", "/v1/users/1"),
        ):
            assert (answer.status, answer.code) == (403, "no_token")
        assert local.post("/v1/recommend", {"history": []}).status == 200
    with service_with_store(saved, tmp_path / "b", **place, token=TOKEN) as local:
        assert send(local, GOOD).status == 401
        assert local.ask("DELETE", "/v1/users/1").status == 401
        headers = {"authorization": f"Bearer {TOKEN}"}
        assert local.post("/v1/events", {"events": [GOOD]}, **headers).status == 202


def test_unknown_users_and_unusual_ids(service: Local) -> None:
    assert service.get("/v1/users/nobody").code == "unknown_user"
    assert service.get(f"/v1/users/{'x' * 10_000}").status == 422
    assert service.get("/v1/users/").status == 422
    odd = "a/b c%&#'\"; drop table talerec_events --"
    assert send(service, {"user_id": odd, "item_id": odd}).status == 202
    (row,) = service.get(f"/v1/users/{odd}").json["history"]
    assert row["item_id"] == odd
    assert service.post("/v1/recommend", {"user_id": odd, "k": 2}).status == 200
    assert service.get("/v1/stats").json["store"]["seq"] == 1
