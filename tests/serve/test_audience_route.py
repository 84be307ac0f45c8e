"""POST /v1/audience: users for an item, as the library finds them."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local
from talerec.serve.http import audience_routes

TOKEN = "a-token-for-tests-alone"


def test_the_service_returns_the_audience_of_the_library(service, model):
    item = model.item_ids[4]
    for options in ({"k": 7}, {"hide_seen": True}, {"k": 3, "as_of": "2020-01-01"}):
        answer = service.post("/v1/audience", {"item_id": item, **options})
        assert answer.status == 200
        assert answer.json["item_id"] == item
        assert answer.json["users"] == model.audience(item, **options).to_dicts()


def test_invalid_requests_are_refused(service):
    refused = {
        "unknown_item": {"item_id": "nobody"},
        "k_too_large": {"item_id": 1, "k": 1001},
        "invalid": {"item_id": 1, "as_of": "tomorrow"},
    }
    for code, body in refused.items():
        assert service.post("/v1/audience", body).code == code
    for body in ({}, {"item_id": 1, "k": 0}, {"item_id": 1, "user_id": 1}, {"item_id": [1]}):
        assert service.post("/v1/audience", body).code == "invalid"


def test_a_model_without_histories_has_no_audiences(model, tmp_path):
    local = Local(model.save(tmp_path / "bare.tale", histories=False), tmp_path / "run")
    assert local.post("/v1/audience", {"item_id": 1}).code == "no_histories"


def test_users_are_shown_only_with_a_token(saved, tmp_path):
    local = Local(saved, tmp_path, host="0.0.0.0", open=True)
    assert local.post("/v1/audience", {"item_id": 1}).code == "no_token"
    local = Local(saved, tmp_path, token=TOKEN)
    assert local.post("/v1/audience", {"item_id": 1}).code == "unauthorized"
    body = {"item_id": 1, "k": 2}
    assert (
        local.ask("POST", "/v1/audience", body, {"authorization": f"Bearer {TOKEN}"}).status == 200
    )


def test_an_audience_that_takes_too_long_ends_with_the_request(saved, tmp_path, monkeypatch):
    blocks = []

    def rank_slowly(*arguments):
        *_, before_block = arguments
        for _ in range(1000):
            before_block()
            blocks.append(time.monotonic())
            time.sleep(0.02)

    monkeypatch.setattr(audience_routes, "rank_audience", rank_slowly)
    local = Local(saved, tmp_path, timeout=0.2)
    assert local.post("/v1/audience", {"item_id": 1}).code == "timeout"
    local.app.stop()
    n_blocks = len(blocks)
    time.sleep(0.3)
    assert len(blocks) <= n_blocks + 1  # the thread has ended, too
    assert n_blocks < 100


def test_deleted_users_are_no_audience(saved, model, tmp_path):
    local = Local(saved, tmp_path, store=f"sqlite:///{tmp_path / 'shop.db'}")
    local.app.user_state.start()
    try:
        item = model.item_ids[4]
        first = local.post("/v1/audience", {"item_id": item, "k": 3}).json["users"]
        assert local.ask("DELETE", f"/v1/users/{first[0]['user_id']}").status == 200
        rest = local.post("/v1/audience", {"item_id": item, "k": 2}).json["users"]
    finally:
        local.app.stop()
    assert [user["user_id"] for user in rest] == [user["user_id"] for user in first[1:]]
