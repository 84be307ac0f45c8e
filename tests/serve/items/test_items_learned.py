"""The learner takes the items of the store into the model's item table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")

from service import Local
from talerec.serve.process.learner import learn
from talerec.store import Event, ItemChange, Store, now_us

RED = {"title": "red tent", "brand": "brand red", "tags": ["red"], "price": 12.5, "available": True}


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(f"sqlite:///{tmp_path}/shop.db") as opened:
        yield opened


def test_content_learns_new_items_and_forgets_deleted_ones(content, store, tmp_path):
    path = Path(shutil.copytree(content, tmp_path / "shop.tale"))
    assert learn(path, store.address) is None
    store.write_items([ItemChange("100", RED), ItemChange("4", {"price": 1.0})], 1)
    store.delete_item("8", 2)
    report = learn(path, store.address)
    assert (report["rows"], report["how"]) == (0, "fit")
    model = tr.load(path)
    info = model.fitted.info
    assert model.item_ids.to_list() == [*range(24), 100]
    assert model.fitted.training["unseen_items"] == 1
    assert model.fitted.training["store_item_seq"] == 2
    assert info.filter(item_id=100)["title"].to_list() == ["red tent"]
    assert info.filter(item_id=4)["price"].to_list() == [1.0]
    assert info.filter(item_id=4)["title"].to_list() == ["red tent number 4"]
    assert info.filter(item_id=8)["title"].to_list() == [None]  # its rows stay
    assert "available" not in info.columns
    assert learn(path, store.address) is None
    store.append([[Event("u", "100", now_us()), Event("u", "0", now_us() + 1)]])
    assert learn(path, store.address)["rows"] == 2
    assert "unseen_items" not in tr.load(path).fitted.training
    local = Local(path, tmp_path / "run", store=store.address, ids="text")
    assert local.get("/v1/items/8").status == 404
    assert local.get("/v1/items/100").json["fields"]["price"] == 12.5


def test_a_model_of_ids_gets_the_table_with_the_next_events(markov, store, tmp_path):
    path = Path(shutil.copytree(markov, tmp_path / "shop.tale"))
    store.write_items([ItemChange("100", RED), ItemChange("4", {"price": 1.0})], 1)
    assert learn(path, store.address) is None
    store.append([[Event("1", "100", now_us())]])
    assert learn(path, store.address)["rows"] == 1
    info = tr.load(path).fitted.info
    assert info.filter(item_id=100)["title"].to_list() == ["red tent"]
    assert info.filter(item_id=4)["price"].to_list() == [1.0]


def test_an_update_takes_changed_rows_of_the_table(shop, store, tmp_path):
    path = tr.TALE(reg=5).fit(shop).save(tmp_path / "shop.tale", updatable=True)
    store.write_items([ItemChange("100", RED), ItemChange("4", {"price": 1.0})], 1)
    store.append([[Event("1", "100", now_us())]])
    assert learn(path, store.address)["how"] == "update"
    info = tr.load(path).fitted.info
    assert info.filter(item_id=100)["title"].to_list() == ["red tent"]
    assert info.filter(item_id=4)["price"].to_list() == [1.0]
