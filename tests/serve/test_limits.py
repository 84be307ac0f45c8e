"""The service's limits and refusals, and access control."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, rows
from talerec.serve import Settings
from waiting import LONG_S

TOKEN = "a-token-for-tests-alone"

# -- limits and refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b"", 400, "malformed_json"),
        (b'{"history": [{"item_id": "\xff\xfe"}]}', 400, "malformed_json"),
        (b'{"history": [{"item_id": NaN}]}', 400, "malformed_json"),
        (b'{"history": [], "recency": Infinity}', 400, "malformed_json"),
        (b"[" * 100_000, 422, "invalid"),
        (b'{"history": ' + b"[" * 100_000, 422, "invalid"),
        (b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "invalid"),
        (b'{"history": [], "k": 1e999}', 422, "invalid"),
        (b'{"history": [{"item_id": 1e308}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": 1e300}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": "1e305"}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": "yesterday"}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": 5}, {"item_id": 2}]}', 422, "invalid"),
        (b'{"history": [{"item_id": true}]}', 422, "invalid"),
        (b'{"history": [{"item_id": null}]}', 422, "invalid"),
        (b'{"history": [], "k": 0}', 422, "invalid"),
        (b'{"history": [], "k": 151}', 422, "invalid"),
        (b'{"history": [{"item_id": 1}], "k": 151}', 422, "invalid"),
        (b'{"history": [], "k": 100000000000000000000000}', 422, "k_too_large"),
        (b'{"history": [], "k": 1001}', 422, "k_too_large"),
        (b'{"history": [], "recency": 0}', 422, "invalid"),
        (b'{"history": [], "as_of": 1e300}', 422, "invalid"),
        (b'{"history": [], "as_of": [1]}', 422, "invalid"),
        (b'{"history": [], "recency": -1}', 422, "invalid"),
        (b'{"history": [], "hide_seen": "yes"}', 422, "invalid"),
        (b'{"history": [], "surprise": 1}', 422, "invalid"),
        (b'{"k": 3}', 422, "invalid"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_with_its_own_code(service, body, status, code):
    answer = service.post("/v1/recommend", body)
    assert (answer.status, answer.code) == (status, code)


def test_the_largest_allowed_numbers_are_answered(service):
    row = b'{"item_id": 99999999999999999999999999, "timestamp": -1e12}'
    huge = b'{"history": [%b], "recency": 1e308}' % row
    assert service.post("/v1/recommend", huge).status == 200
    small = b'{"history": [{"item_id": 1}, {"item_id": 2}], "recency": 1e-308}'
    assert service.post("/v1/recommend", small).status == 200


def test_each_limit_has_its_own_code(saved, tmp_path):
    limits = {"max_history": 3, "max_batch": 2, "max_body": 300, "max_k": 5}
    local = Local(saved, tmp_path, **limits)
    answers = [
        local.post("/v1/recommend", {"history": rows(range(4))}),
        local.post("/v1/explain", {"history": rows(range(4)), "item_id": 1}),
        local.post("/v1/recommend", {"history": [], "k": 6}),
        local.post("/v1/similar", {"item_id": 1, "k": 6}),
        local.post("/v1/recommend:batch", {"requests": [{"history": []}] * 3}),
        local.post("/v1/recommend", b" " * 301),
        local.ask("POST", "/v1/recommend", parts=[b" " * 200, b" " * 200]),
        local.ask("POST", "/v1/recommend", b"{}", {"content-length": "100000000"}),
    ]
    assert [(answer.status, answer.code) for answer in answers] == [
        (422, "history_too_long"),
        (422, "history_too_long"),
        (422, "k_too_large"),
        (422, "k_too_large"),
        (422, "batch_too_long"),
        (413, "body_too_large"),
        (413, "body_too_large"),
        (413, "body_too_large"),
    ]


def test_too_many_concurrent_requests_get_retry_after(saved, tmp_path):
    local = Local(saved, tmp_path, concurrency=1)
    local.app._in_flight = 1
    answer = local.post("/v1/recommend", {"history": []})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "busy", "1")
    assert local.get("/health/live").status == 200


def test_an_answer_that_takes_too_long_times_out(saved, tmp_path, monkeypatch):
    local = Local(saved, tmp_path, timeout=0.01)
    given_up = threading.Event()
    monkeypatch.setattr(local.app.holder.current, "recommend_all", lambda _: given_up.wait(LONG_S))
    try:
        answer = local.post(
            "/v1/recommend:batch", {"requests": [{"history": rows(range(100))}] * 100}
        )
    finally:
        given_up.set()
    assert (answer.status, answer.code) == (503, "timeout")


def test_unknown_paths_methods_items_and_parameters_are_refused(service):
    assert service.get("/nowhere").code == "not_found"
    assert service.get("/v1/recommend").code == "method_not_allowed"
    assert service.get("/v1/recommend").headers["allow"] == "POST"
    assert service.ask("DELETE", "/v1/model").status == 405
    plain = service.ask("POST", "/v1/recommend", b"{}", {"content-type": "text/plain"})
    assert (plain.status, plain.code) == (415, "not_json")
    assert service.post("/v1/similar", {"item_id": "nobody"}).code == "unknown_item"
    assert service.post("/v1/explain", {"history": [], "item_id": 10**30}).code == "unknown_item"
    assert service.get("/v1/items?limit=0").status == 422
    assert service.get("/v1/items?limit=x").status == 422
    assert service.get("/v1/items?z=1").status == 422
    assert service.get("/v1/items?q=%ff").status == 400
    assert service.get("/v1/items?q=" + "x" * 201).status == 422


def test_an_internal_error_does_not_reveal_its_cause(saved, tmp_path, monkeypatch, caplog):
    local = Local(saved, tmp_path)
    secret = "the secret of line 42"

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError(secret)

    for part in ("_recommend_histories", "recommend_all"):
        caplog.clear()
        monkeypatch.setattr(local.app.holder.current, part, fail)
        for answer in local.post_all("/v1/recommend", [{"history": []}] * 3):
            assert (answer.status, answer.code) == (500, "internal")
            assert secret.encode() not in answer.body
        assert secret in caplog.text


# -- access control --------------------------------------------------------------------------------


def test_a_token_guards_the_api_but_not_health_and_page(saved, tmp_path):
    local = Local(saved, tmp_path, token=TOKEN)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        for method, path in (("GET", "/v1/model"), ("POST", "/v1/recommend"), ("GET", "/metrics")):
            answer = local.ask(method, path, None, headers)
            assert (answer.status, answer.code) == (401, "unauthorized")
    assert local.get("/v1/model", authorization=f"Bearer {TOKEN}").status == 200
    assert local.get("/v1/model", authorization=f"bearer {TOKEN}").status == 200
    for path in ("/", "/health/live", "/health/ready", "/openapi.json"):
        assert local.get(path).status == 200


def test_a_reload_needs_a_token(service):
    answer = service.ask("POST", "/v1/reload")
    assert (answer.status, answer.code) == (403, "no_token")


def test_listening_on_other_addresses_needs_a_token_or_open(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(TalerecError, match="can be reached from other machines"):
            Settings(path=tmp_path, host=host)
        Settings(path=tmp_path, host=host, open=True)
        Settings(path=tmp_path, host=host, token=TOKEN)
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        Settings(path=tmp_path, host=host)
    with pytest.raises(TalerecError, match="shorter than 16"):
        Settings(path=tmp_path, token="short")
    assert TOKEN not in repr(Settings(path=tmp_path, token=TOKEN))


def test_pages_of_other_origins_need_cors(saved, service, tmp_path):
    shop, other = "https://shop.example", "https://other.example"
    assert "access-control-allow-origin" not in service.get("/v1/model", origin=shop).headers
    assert service.ask("OPTIONS", "/v1/recommend", None, {"origin": shop}).status == 405
    local = Local(saved, tmp_path, cors=(shop,))
    assert local.get("/v1/model", origin=shop).headers["access-control-allow-origin"] == shop
    assert "access-control-allow-origin" not in local.get("/v1/model", origin=other).headers
    preflight = local.ask("OPTIONS", "/v1/recommend", None, {"origin": shop})
    assert (preflight.status, preflight.headers["access-control-allow-methods"]) == (204, "POST")
    assert local.ask("OPTIONS", "/v1/recommend", None, {"origin": other}).status == 403
