"""Item tables of all kinds of models: none, odd column types, other columns after a reload."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, ids, rows, service_with_store
from talerec.serve.model.availability import Availability
from talerec.store import StoredItem


def served(model: Any, folder: Path, **options: Any) -> Any:
    path = model.save(folder / "shop.tale", **options)
    return service_with_store(path, folder / "run", f"sqlite:///{folder}/shop.db", ids=None)


def put(local: Local, item: Any, **fields: Any) -> None:
    answer = local.ask("PUT", f"/v1/items/{item}", fields)
    assert answer.status == 200, answer


def test_a_model_without_an_item_table_gets_titles_and_availability(shop, tmp_path):
    log = tr.Log.from_frame(shop.to_frame())
    with served(tr.Markov().fit(log), tmp_path) as local:
        put(local, 4, title="a tent", available=False)
        put(local, 900, title="another tent")
        assert local.ask("PUT", "/v1/items/4", {"price": 1}).code == "invalid_item"
        assert local.get("/v1/items/900").json["fields"] == {"title": "another tent"}
        assert ids(local.get("/v1/items?q=tent")) == [4, 900]
        answer = local.post("/v1/recommend", {"history": rows([0]), "k": 20})
        assert 4 not in ids(answer)
        body = {"history": rows([0]), "where": "title is null", "k": 20}
        assert local.post("/v1/recommend", body).status == 200


def test_columns_of_all_types_are_written_and_read(shop, tmp_path):
    n = len(shop.info)
    table = shop.info.select("item_id").with_columns(
        kind=pl.Series(["a", "b", None] * 8).cast(pl.Categorical),
        cents=pl.Series([Decimal("1.25")] * n).cast(pl.Decimal(10, 2)),
        day=pl.Series([date(2024, 5, 1)] * n),
        moment=pl.Series([datetime(2024, 5, 1, tzinfo=UTC)] * n),
        small=pl.Series([3] * n, dtype=pl.UInt8),
        pair=pl.Series([[1.0, 2.0]] * n, dtype=pl.Array(pl.Float32, 2)),
        blob=pl.Series([b"x"] * n),
    )
    with served(tr.Markov().fit(shop.with_items(table)), tmp_path) as local:
        fields = {
            "kind": "new", "cents": 2.5, "day": "2025-01-02", "moment": "2025-01-02T03:04:05Z",
            "small": 255, "pair": [0.5, 0.25],
        }  # fmt: skip
        put(local, 4, **fields)
        put(local, 900, **fields)
        for item in (4, 900):
            got = local.get(f"/v1/items/{item}").json["fields"]
            got.pop("blob", None)
            assert got == {**fields, "moment": "2025-01-02T03:04:05+00:00"}
        body = {
            "history": rows([0]),
            "k": 20,
            "where": "kind = 'new' and cents > 2 and small = 255",
        }
        assert ids(local.post("/v1/recommend", body)) == [4]
        for name, value in (("small", 256), ("pair", [1.0]), ("blob", "x"), ("day", "soon")):
            answer = local.ask("PUT", "/v1/items/4", {name: value})
            assert f"item '4': {name}: " in answer.json["error"]["message"]


def test_values_that_do_not_fit_a_later_model_are_left_out(shop, tmp_path):
    with served(tr.Markov().fit(shop), tmp_path) as local:
        put(local, 4, price=1.0, brand="x")
        other = shop.info.select("item_id", "title", pl.col("price").cast(pl.String))
        tr.Markov().fit(shop.with_items(other)).save(tmp_path / "shop.tale")
        local.app.holder.refresh()
        assert local.get("/v1/items/4").json["fields"] == {"title": "red tent number 4"}
        tr.Markov().fit(shop).save(tmp_path / "shop.tale")
        local.app.holder.refresh()
        assert local.get("/v1/items/4").json["fields"]["brand"] == "x"


def test_a_table_says_which_items_are_not_available(shop, tmp_path):
    """Columns of the model's own table count, too, and what is put has precedence."""
    soon = pl.when(pl.col("item_id") == 8).then(date(2999, 1, 1))
    table = shop.info.with_columns(available=pl.col("item_id") != 4, available_from=soon)
    with served(tr.Markov().fit(shop.with_items(table)), tmp_path) as local:
        body = {"history": rows([0]), "k": 24, "allow": [4, 8, 12]}
        put(local, 12, price=1.0)
        assert 4 not in ids(local.post("/v1/recommend", body))
        assert local.get("/v1/items/8").json["available"] is False
        put(local, 4, available=True)
        put(local, 8, available_from=None)
        assert local.get("/v1/items/4").json["available"] is True
        assert local.get("/v1/items/8").json["available"] is True


@pytest.mark.parametrize("histories", [True, False])
def test_new_items_need_no_saved_histories(shop, tmp_path, histories):
    pytest.importorskip("sklearn", reason="the extra content is not installed")
    with served(tr.Content().fit(shop), tmp_path, histories=histories) as local:
        put(local, 100, title="red tent", tags=["red"])
        fallback = local.post("/v1/recommend", {"history": [], "k": 24})
        assert fallback.json["fallback"] == "trending"
        assert 100 not in ids(fallback)
        assert 100 in ids(local.post("/v1/recommend", {"history": rows([0]), "k": 24}))


def test_blends_and_further_models_get_the_changes(shop, tmp_path):
    blend = tr.Blend(parts="markov,popular", weights_of_parts="1,1").fit(shop)
    beside = tr.Popular().fit(shop).save(tmp_path / "other.tale")
    path = blend.save(tmp_path / "shop.tale")
    address = f"sqlite:///{tmp_path}/shop.db"
    options = {"ids": None, "beside": (beside,)}
    with service_with_store(path, tmp_path / "run", address, **options) as local:
        local.app.load()
        put(local, 4, available=False)
        put(local, 900, title="new")
        for query in ("", "?beside=other"):
            answer = local.post(f"/v1/recommend{query}", {"history": rows([0]), "k": 24})
            assert 4 not in ids(answer)
            assert 0 < len(ids(answer)) < 24
            assert local.get(f"/v1/items/900{query}").status == 200


def test_availability_follows_the_clock() -> None:
    """Flags at a time equal the rule, item by item."""
    values = [
        "{}", '{"available": false}', '{"hidden": true}', '{"available_from": 100000005}',
        '{"available_until": 100000003}', '{"available_from": null, "hidden": false}',
        '{"available_from": 100000002, "available_until": 100000004}', None,
    ]  # fmt: skip
    items = [StoredItem(str(n), 1, text, False) for n, text in enumerate(values)]
    table = pl.DataFrame({"item_id": range(8)})
    positions = pl.Series(range(8)).to_numpy()
    availability = Availability.read(table).set_items(positions, items)
    for second in (0, 2, 3, 4, 5, 6, 1, 5):
        expected = [True, False, False, second >= 5, second < 3, True, 2 <= second < 4, False]
        flags = availability.flags((100_000_000 + second) * 10**6)
        assert flags.astype(bool).tolist() == expected
    assert Availability.read(table).flags(0) is None
