"""Items that are refused: values, columns, ids, bodies, tokens, and stores that fail."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import JSON, Answer, Local, service_with_store
from talerec.store import Store
from waiting import until

NDJSON = {"content-type": "application/x-ndjson"}
TOKEN, READER = "a-token-that-may-write-all", "a-token-that-may-only-read"


def put(local: Local, fields: Any, item: Any = 1) -> Answer:
    return local.ask("PUT", f"/v1/items/{item}", fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prise": 1}, "there is no column 'prise'; there are title, brand"),
        ({"item_id": 1}, "there is no column 'item_id'"),
        ({"price": "cheap"}, "price: 'cheap' is not a number"),
        ({"price": True}, "price: True is not a number"),
        ({"price": [1.0]}, "price: [1.0] is not a number"),
        ({"price": 10**400}, "price: inf is not a finite number"),
        ({"stock": 1.5}, "stock: 1.5 is not a whole number"),
        ({"stock": 2**63}, "stock: 9223372036854775808 is not from"),
        ({"title": 5}, "title: 5 is not text"),
        ({"title": "x" * 100_001}, "title: it has 100,001 characters; the limit is 100,000"),
        ({"title": "a\0b"}, "title: it contains a null character"),
        ({"tags": "red"}, "tags: 'red' is not a list"),
        ({"tags": ["red", None]}, "tags: [1]: a list has no null"),
        ({"tags": ["red", 5]}, "tags: [1]: 5 is not text"),
        ({"tags": ["x"] * 10_001}, "tags: it has 10,001 entries"),
        ({"vector": [1.0, 2.0]}, "vector: it has 2 numbers; the vectors of the column have 4"),
        ({"vector": [1, 2, 3, "4"]}, "vector: [3]: '4' is not a number"),
        ({"since": "yesterday"}, "since: 'yesterday' is not a date"),
        ({"available": "no"}, "available: 'no' is not true or false"),
        ({"hidden": 1}, "hidden: 1 is not true or false"),
        ({"available_from": "soon"}, "available_from: 'soon' is not a time"),
        ({"available_until": 1e30}, "available_until: 1e+30 is not a time"),
    ],
)
def test_an_invalid_value_is_refused_with_item_and_field(shared_service, fields, message):
    answer = put(shared_service, fields)
    assert (answer.status, answer.code) == (422, "invalid_item")
    assert f"item '1': {message}" in answer.json["error"]["message"]
    assert len(answer.body) < 700
    assert shared_service.app.user_state.item_tail.facts.seq == 0


@pytest.fixture(scope="module")
def shared_service(content: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("refusing")
    address = f"sqlite:///{folder}/shop.db"
    with service_with_store(content, folder / "run", address, ids="integer") as local:
        yield local


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_json"),
        (b"[1]", 422, "invalid"),
        (b'{"price": NaN}', 400, "malformed_json"),
        (b'{"price": 1e999}', 422, "invalid"),
        (b'{"title": "\\ud800"}', 400, "malformed_json"),
        (b'{"title": "\xff"}', 400, "malformed_json"),
        (b'{"a": ' * 5000, 400, "malformed_json"),
        (json.dumps({f"c{n}": 1 for n in range(50_000)}).encode(), 422, "invalid_item"),
        (json.dumps({"title": "x" * 10_000_000}).encode(), 413, "body_too_large"),
    ],
)
def test_a_hostile_body_is_refused(shared_service, body, status, code):
    answer = shared_service.ask("PUT", "/v1/items/1", body, JSON)
    assert (answer.status, answer.code) == (status, code)
    assert len(answer.body) < 700


@pytest.mark.parametrize("item", ["x", "1.5", "007", "", " ", "9" * 30, "a/b", "..%2f", "\x00"])
def test_an_id_of_another_kind_is_refused(shared_service, item):
    for method in ("PUT", "DELETE"):
        answer = shared_service.ask(method, f"/v1/items/{item}", {})
        assert (answer.status, answer.code) == (422, "invalid_item")


def test_text_ids_may_have_odd_characters(content, tmp_path):
    address = f"sqlite:///{tmp_path}/shop.db"
    items = ["a/b", "..", "ä ö", "1.5", "{item_id}", "x" * 500, "<b>"]
    with service_with_store(content, tmp_path / "run", address, ids="text") as local:
        for item in items:
            assert put(local, {"title": "odd"}, item).json["accepted"] == 1
            # the ids of the model are integers: such an item is known after the next fit
            assert local.get(f"/v1/items/{item}").status == 404
        assert put(local, {"title": "odd"}, "x" * 501).status == 422
        with Store(address) as store:
            assert [row.item for row in store.read_items()] == items


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\n\n", "the body has no items"),
        (b'{"title": "a"}', "line 1: item_id is missing"),
        (b'{"item_id": 1}\n{"item_id": true}', "line 2: item_id is missing"),
        (b'{"item_id": 1}\n{"item_id": "x"}', "line 2: item_id 'x' is not an integer"),
        (b'{"item_id": 1}\n\n[]', "line 3: "),
        (b'{"item_id": 1}\n{"item_id"', "line 2: "),
        (b'{"item_id": 1}\n' * 10_001, "there are 10001 items; the limit is 10000"),
    ],
)
def test_a_bad_line_is_named(shared_service, body, message):
    answer = shared_service.ask("POST", "/v1/items", body, NDJSON)
    assert answer.status in (400, 422)
    assert answer.json["error"]["message"].startswith(message)
    assert shared_service.ask("POST", "/v1/items", body, JSON).code == "not_json"
    assert shared_service.app.user_state.item_tail.facts.seq == 0


def test_only_a_token_that_may_write_changes_items(content, tmp_path):
    settings = {"token": TOKEN, "read_token": READER, "host": "0.0.0.0"}
    address = f"sqlite:///{tmp_path}/shop.db"
    with service_with_store(content, tmp_path / "run", address, **settings) as local:
        for method in ("PUT", "DELETE", "POST"):
            path = "/v1/items" if method == "POST" else "/v1/items/1"
            none = local.ask(method, path, {})
            reader = local.ask(method, path, {}, {"authorization": f"Bearer {READER}"})
            assert (none.code, reader.code) == ("unauthorized", "read_only")
        assert local.get("/v1/items/1", authorization=f"Bearer {READER}").status == 200
        writer = {"authorization": f"Bearer {TOKEN}"}
        assert local.ask("PUT", "/v1/items/1", {"price": 1}, writer).status == 200
    everybody = {"host": "0.0.0.0", "open": True}
    with service_with_store(content, tmp_path / "open", address, **everybody) as local:
        assert put(local, {"price": 1}).code == "no_token"
    without = Local(content, tmp_path / "without")
    assert put(without, {"price": 1}).code == "no_store"
    assert without.ask("DELETE", "/v1/items/1").code == "no_store"
    assert without.get("/v1/items/1").status == 200


def test_a_full_catalogue_refuses_new_items_and_takes_changes(service, monkeypatch):
    write = Store.write_items
    monkeypatch.setattr(Store, "write_items", lambda *arguments: write(*arguments, max_items=2))
    lines = b'{"item_id": 1}\n{"item_id": 2}\n{"item_id": 3}'
    assert service.ask("POST", "/v1/items", lines, NDJSON).code == "catalogue_full"
    assert service.ask("POST", "/v1/items", lines[:30], NDJSON).status == 200
    assert put(service, {"price": 2}, 2).status == 200
    assert put(service, {"price": 2}, 3).status == 409
    service.ask("DELETE", "/v1/items/1")
    assert put(service, {"price": 2}, 3).status == 200


def test_two_writers_lose_nothing(service):
    """Each writes other fields of the same items; nobody's values are overwritten."""
    other = Store(service.app.settings.store)
    from talerec.store import ItemChange

    def write_stock() -> None:
        for n in range(30):
            other.write_items([ItemChange(str(n), {"stock": n})], 1)

    thread = threading.Thread(target=write_stock)
    thread.start()
    for n in range(30):
        assert put(service, {"price": float(n)}, n).status == 200
    thread.join()
    until(lambda: service.get("/v1/items/29").json["fields"].get("stock") == 29)
    for n in range(30):
        fields = service.get(f"/v1/items/{n}").json["fields"]
        assert (fields["price"], fields["stock"]) == (float(n), n)


def test_without_its_store_a_service_refuses_changes_and_is_not_ready(content, tmp_path):
    file = tmp_path / "shop.db"
    address = f"sqlite:///{file}"
    with service_with_store(content, tmp_path / "run", address, ids="integer") as local:
        assert put(local, {"available": False}, 4).status == 200
        moved = tmp_path / "moved"
        moved.mkdir()
        for each in tmp_path.glob("shop.db*"):
            each.rename(moved / each.name)
        assert put(local, {"available": True}, 4).code == "store_unavailable"
        assert local.ask("DELETE", "/v1/items/5").code == "store_unavailable"
        assert local.get("/health/ready").status == 503
        assert local.get("/v1/items/4").json["available"] is False  # what was read stays
        for each in moved.iterdir():
            each.rename(tmp_path / each.name)
        until(lambda: local.get("/health/ready").status == 200)
        assert put(local, {"available": True}, 4).status == 200
