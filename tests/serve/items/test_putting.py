"""Items that clients put, change and delete: what the next answer knows of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Answer, Local, ids, rows, service_with_store

RED = {"title": "red tent", "brand": "brand red", "tags": ["red", "size 1"], "price": 12.5}
NDJSON = {"content-type": "application/x-ndjson"}


def put(local: Local, item: Any, fields: Any) -> Answer:
    return local.ask("PUT", f"/v1/items/{item}", fields)


def put_lines(local: Local, *items: Any) -> Answer:
    body = "\n".join(json.dumps(item) for item in items).encode()
    return local.ask("POST", "/v1/items", body, NDJSON)


def next_items(local: Local, history: list[Any], **options: Any) -> list[Any]:
    return ids(local.post("/v1/recommend", {"history": rows(history), "k": 24, **options}))


def test_a_new_item_is_recommended_by_its_content_at_once(service):
    assert put(service, 100, RED).json == {"accepted": 1, "unchanged": 0}
    red, green = next_items(service, [0, 4]), next_items(service, [1, 5])
    assert 100 in red[:7]
    assert green.index(100) >= 6  # after all green ones
    assert next_items(service, [100])[0] % 4 == 0
    similar = service.post("/v1/similar", {"item_id": 100, "k": 3}).json
    assert similar["title"] == "red tent"
    assert {item["item_id"] % 4 for item in similar["items"]} == {0}
    answer = service.get("/v1/items/100").json
    assert answer["fields"] == RED
    assert answer["available"] is True
    assert ids(service.get("/v1/items?q=red+tent&limit=100")).count(100) == 1
    assert put(service, 100, RED).json == {"accepted": 0, "unchanged": 1}


def test_fields_that_are_not_sent_keep_their_values_and_null_empties_one(service):
    before = service.get("/v1/items/3").json["fields"]
    assert put(service, 3, {"price": 1.5}).status == 200
    assert service.get("/v1/items/3").json["fields"] == before | {"price": 1.5}
    assert next_items(service, [7], where="price < 2") == [3]
    put(service, 3, {"brand": None})
    left = {name: value for name, value in before.items() if name != "brand"}
    assert service.get("/v1/items/3").json["fields"] == left | {"price": 1.5}


@pytest.mark.parametrize(
    "fields",
    [
        {"available": False},
        {"hidden": True},
        {"available_from": "2999-01-01"},
        {"available_until": "2000-01-01T00:00:00Z"},
        {"available_until": 1_000_000_000},
    ],
)
def test_an_unavailable_item_is_in_no_list(service, fields):
    everything = {"k": 24, "allow": [0, 4, 8]}
    assert 4 in next_items(service, [0], **everything)
    put(service, 4, fields)
    assert set(next_items(service, [0], **everything)) == {0, 8}
    assert 4 not in next_items(service, [0])
    assert 4 not in next_items(service, [])  # the fallback
    assert 4 not in next_items(service, [0], where="price < 100", boost={"brand": {"x": 1}})
    assert 4 not in ids(service.post("/v1/similar", {"item_id": 0, "k": 23}))
    shown = service.get("/v1/items/4").json
    assert shown["available"] is False
    assert fields.keys() <= shown["fields"].keys()
    batch = service.post(
        "/v1/recommend:batch", {"requests": [{"history": rows([0]), "k": 24}]}
    ).json
    assert 4 not in [item["item_id"] for item in batch["answers"][0]["items"]]
    put(service, 4, dict.fromkeys(fields))
    assert 4 in next_items(service, [0], **everything)
    assert service.get("/v1/items/4").json["available"] is True


def test_a_deleted_item_is_unknown_until_it_is_put_again(service):
    assert service.ask("DELETE", "/v1/items/8").json == {"item_id": 8, "deleted": True}
    assert 8 not in next_items(service, [0])
    assert 8 not in next_items(service, [0], allow=[0, 8])
    assert service.get("/v1/items/8").code == "unknown_item"
    assert service.post("/v1/similar", {"item_id": 8}).code == "unknown_item"
    assert service.post("/v1/explain", {"history": rows([0]), "item_id": 8}).code == "unknown_item"
    assert ids(service.get("/v1/items?id=8&id=9")) == [9]
    assert 8 not in ids(service.get("/v1/items?q=tent&limit=100"))
    assert service.ask("DELETE", "/v1/items/8").status == 200  # as before
    assert service.ask("DELETE", "/v1/items/999").code == "unknown_item"
    put(service, 8, {"title": "a new thing"})
    assert service.get("/v1/items/8").json["fields"] == {"title": "a new thing"}
    assert 8 not in next_items(service, [0])  # nothing of it is known but rare words


def test_many_items_are_stored_in_one_request_or_none(service):
    new = [{"item_id": 200 + n, **RED, "price": float(n)} for n in range(50)]
    assert put_lines(service, *new).json == {"accepted": 50, "unchanged": 0}
    assert set(next_items(service, [0], where="price < 3", k=24)) == {200, 201, 202}
    bad = put_lines(service, {"item_id": 300, **RED}, {"item_id": 301, "price": "cheap"})
    assert (bad.status, bad.code) == (422, "invalid_item")
    assert bad.json["error"]["message"] == "line 2: item '301': price: 'cheap' is not a number"
    assert service.get("/v1/items/300").status == 404
    twice = put_lines(service, {"item_id": 300, "price": 1}, {"item_id": 300, "title": "a"})
    assert twice.json["accepted"] == 1
    assert service.get("/v1/items/300").json["fields"] == {"price": 1.0, "title": "a"}


def test_a_model_of_ids_knows_new_items_but_does_not_rank_them(markov, tmp_path):
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(markov, tmp_path / "run", address, ids="integer") as local:
        before = next_items(local, [0])
        put_lines(local, {"item_id": 100, **RED}, {"item_id": 4, "price": 1.0})
        assert next_items(local, [0]) == before
        assert local.get("/v1/items/100").json["fields"] == RED
        assert ids(local.get("/v1/items?q=red+tent")).count(100) == 1
        assert local.post("/v1/similar", {"item_id": 100}).json["items"] == []
        assert next_items(local, [0], where="price < 2") == [4]
        event = {"user_id": 1, "item_id": 100}
        assert local.post("/v1/events", {"events": [event]}).status == 202
        assert local.post("/v1/recommend", {"user_id": 1}).status == 200
        put(local, 4, {"available": False})
        assert 4 not in next_items(local, [0])
        local.ask("DELETE", "/v1/items/100")
        assert local.get("/v1/items/100").status == 404


def test_an_event_of_an_item_that_is_put_later_counts(service):
    for n in range(9):  # three of each user: more than the log's latest rows have of any item
        event = {"user_id": 900 + n % 3, "item_id": 500, "event_id": n}
        service.post("/v1/events", {"events": [event]})
    first = service.post("/v1/recommend", {"user_id": 900, "k": 4}).json
    assert first["fallback"] == "trending"
    put(service, 500, RED)
    answer = service.post("/v1/recommend", {"user_id": 900, "k": 4, "hide_seen": True})
    assert {item % 4 for item in ids(answer)} == {0}
    trending = service.post("/v1/recommend", {"history": [], "k": 4})
    assert 500 in ids(trending)


def test_changes_survive_a_restart_and_a_new_model(service, content: Path, shop, tmp_path: Path):
    import talerec as tr

    put(service, 100, RED)
    service.ask("DELETE", "/v1/items/8")
    put(service, 4, {"available": False, "price": 3.0})
    model = tr.Content(reg=5).fit(shop)
    address = service.app.settings.store
    path = model.save(tmp_path / "next.tale")
    with service_with_store(path, tmp_path / "second", address, ids="integer") as other:
        for local in (service, other):
            items = next_items(local, [0])
            assert {100, 8, 4} & set(items) == {100}
            assert local.get("/v1/items/8").status == 404
            assert local.get("/v1/items/4").json["fields"]["price"] == 3.0
        tr.Content(reg=7).fit(shop).save(path)
        other.app.holder.refresh()
        assert {100, 8, 4} & set(next_items(other, [0])) == {100}
