"""Named lists: what everybody sees, under the rules of a file."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local
from talerec.errors import TalerecError
from talerec.serve import Settings, read_named_lists
from talerec.store import ImpressionStore
from waiting import until

TEXT = """
[trending]

[spring]
where = "colour = 'red'"
k = 4

[month]
order = "popular"
days = 30
deny = [3]

[new]
order = "new"
by = "added"
per = {colour = 2}
slots = {3 = {where = "price < 20"}, 7 = {where = "price > 1000"}}

[first]
order = "new"
"""


@pytest.fixture(scope="module")
def shop() -> tr.Model:
    rows = tr.synthetic_log(2000, users=60, items=90, seed=4).to_frame()
    ids = rows["item_id"].unique().sort()
    colours = ["red", "green", "blue", None]
    table = pl.DataFrame(
        {
            "item_id": ids,
            "colour": [colours[n % 4] for n in range(len(ids))],
            "price": [float(7 * n % 101) for n in range(len(ids))],
            "added": [None if n == 8 else date(2024, 1, 1) + timedelta(37 * n % 400)
                      for n in range(len(ids))],
        }
    )  # fmt: skip
    return tr.EASE(reg=20).fit(tr.Log.from_frame(rows, items=table))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lists") / "lists.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def saved(shop: tr.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shop.save(tmp_path_factory.mktemp("model") / "shop.tale")


@pytest.fixture(scope="module")
def local(saved: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Local:
    return Local(saved, tmp_path_factory.mktemp("run"), lists=file)


def items_of(local: Local, path: str) -> list[Any]:
    answer = local.get(f"/v1/lists/{path}")
    assert answer.status == 200, answer
    assert answer.json["list"] == path.partition("?")[0]
    assert [item["rank"] for item in answer.json["items"]] == [
        *range(1, len(answer.json["items"]) + 1)
    ]
    return [item["item_id"] for item in answer.json["items"]]


def rows_of(shop: tr.Model) -> dict[Any, dict[str, Any]]:
    return dict(zip(shop.item_ids, shop.fitted.info.rows(named=True), strict=True))


def test_the_names_of_all_lists(local: Local) -> None:
    names = ["first", "month", "new", "spring", "trending"]
    assert local.get("/v1/lists").json["lists"] == names


def test_the_default_order_is_that_of_the_fallback(local: Local, shop: tr.Model) -> None:
    answer = local.post("/v1/recommend", {"user_id": "nobody", "k": 90}).json
    trending = [item["item_id"] for item in answer["items"]]
    assert items_of(local, "trending") == trending[:10]
    red = [item for item in trending if rows_of(shop)[item]["colour"] == "red"]
    assert items_of(local, "spring") == red[:4]
    assert items_of(local, "spring?k=7") == red[:7]


def test_popular_items_of_a_window_equal_a_slow_count(local: Local, shop: tr.Model) -> None:
    rows = shop.fitted.log.to_frame()
    times = rows["timestamp"].cast(pl.Datetime("us", "UTC"))
    since = times.max() - timedelta(days=30)
    counts: Counter[Any] = Counter()
    by_user: Counter[Any] = Counter()
    for user, item, time in zip(rows["user_id"], rows["item_id"], times, strict=True):
        by_user[user, item] += time >= since
        counts[item] += time >= since and by_user[user, item] <= 3
    order = sorted(counts, key=lambda item: (-counts[item], list(shop.item_ids).index(item)))
    expected = [item for item in order if counts[item] and item != 3][:10]
    assert items_of(local, "month") == expected


def test_new_items_follow_the_column_with_limits_and_slots(local: Local, shop: tr.Model) -> None:
    table = rows_of(shop)
    order = [item for item in table if table[item]["added"] is not None]
    order.sort(key=lambda item: -table[item]["added"].toordinal())
    expected: list[Any] = []
    used: Counter[Any] = Counter()
    for place in range(1, 11):
        free = [item for item in order if item not in expected
                and (table[item]["colour"] is None or used[table[item]["colour"]] < 2)]  # fmt: skip
        matching = [item for item in free if place == 3 and table[item]["price"] < 20]
        expected += (matching or free)[:1]
        used[table[expected[-1]]["colour"]] += 1
    answer = local.get("/v1/lists/new").json
    assert [item["item_id"] for item in answer["items"]] == expected
    assert answer["empty_slots"] == [7]
    assert answer["items"][2]["slot"] is True
    assert items_of(local, "new?k=2") == expected[:2]  # slots beyond k are left out


def test_without_a_column_new_items_are_those_with_the_latest_first_row(local, shop):
    rows = shop.fitted.log.to_frame().group_by("item_id").agg(pl.col("timestamp").min())
    first = dict(rows.rows())
    assert items_of(local, "first") == sorted(
        first, key=lambda item: (-first[item].timestamp(), list(shop.item_ids).index(item))
    )[:10]  # fmt: skip


def test_invalid_requests_are_refused(local: Local, saved: Path, tmp_path: Path) -> None:
    assert local.get("/v1/lists/nothing").code == "unknown_list"
    assert local.get("/v1/lists/").code == "unknown_list"
    assert local.get("/v1/lists/..%2Fspring").code == "unknown_list"
    assert local.get("/v1/lists/spring?k=1001").code == "k_too_large"
    for query in ("k=0", "k=x", "k=-1", "k=1e3", "size=5"):
        assert local.get(f"/v1/lists/spring?{query}").code == "invalid"
    assert local.post("/v1/lists/spring", {}).status == 405
    bare = Local(saved, tmp_path)
    assert bare.get("/v1/lists/spring").code == "unknown_list"
    assert bare.get("/v1/lists").json["lists"] == []


def test_a_list_that_the_model_cannot_show_is_refused_when_it_is_asked_for(saved, shop, tmp_path):
    path = tmp_path / "lists.json"
    lists = {"a": {"where": "size < 3"}, "b": {"order": "new", "by": "colour"}, "c": {},
             "d": {"order": "new", "by": "size"}}  # fmt: skip
    path.write_text(json.dumps(lists))
    local = Local(saved, tmp_path / "run", lists=path)
    for name in ("a", "b", "d"):
        assert local.get(f"/v1/lists/{name}").code == "list_refused"
    assert local.get("/v1/lists/c").status == 200
    bare = shop.save(tmp_path / "bare.tale", histories=False)
    path.write_text(json.dumps({"e": {"order": "new"}, "f": {"days": 3}}))
    local = Local(bare, tmp_path / "other", lists=path)
    for name in ("e", "f"):
        assert local.get(f"/v1/lists/{name}").code == "no_histories"


BAD = {
    "a = 5": "list 'a'",
    "": "has no list",
    "a = [": "is not TOML",
    "[a]\norder = 'best'": "order is 'best'; it takes popular or new",
    "[a]\nsize = 5": "there is no field size",
    "[a]\nk = 0": "k: expected `int` >= 1",
    "[a]\ndays = -1": "days",
    "[a]\nby = 'added'": "by is a column for the order new",
    "[a]\norder = 'new'\ndays = 3": "days is a window for the order popular",
    "['a/b']\nk = 3": "is not a name of a list",
    "['']\nk = 3": "is not a name of a list",
    "[a]\nslots = {11 = {where = 'price < 3'}}": "the place 11, but `k` is 10",
    "[a]\nslots = {x = {where = 'price < 3'}}": "'x' is no place",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_ends_the_start_with_one_line(text, saved, tmp_path):
    path = tmp_path / "lists.toml"
    path.write_text(text)
    with pytest.raises(TalerecError) as error:
        Settings(path=saved, lists=path)
    message = str(error.value)
    assert BAD[text].replace("`", "") in message.replace("`", "")
    assert str(path) in message
    assert "\n" not in message


def test_a_missing_file_is_named(saved, tmp_path):
    with pytest.raises(TalerecError, match="No such file"):
        Settings(path=saved, lists=tmp_path / "none.toml")


def test_toml_and_json_are_the_same(file, tmp_path):
    import tomllib

    path = tmp_path / "lists.json"
    path.write_text(json.dumps(tomllib.loads(TEXT)))
    assert read_named_lists(path) == read_named_lists(file)


def test_impressions_have_the_name_of_the_list_and_its_slots(saved, file, tmp_path):
    address = f"sqlite:///{tmp_path / 'shop.db'}"
    local = Local(saved, tmp_path / "run", lists=file, store=address, impressions=1.0)
    local.shows_ids = True
    local.app.start()
    try:
        answer = local.get("/v1/lists/new?user_id=ann").json
        with ImpressionStore(address) as store:
            (row,) = until(lambda: [row for part in store.read_impressions(0) for row in part])
    finally:
        local.app.stop()
    assert (row.id, row.user, row.list) == (answer["recommendation_id"], "ann", "new")
    assert json.loads(row.items) == [str(item["item_id"]) for item in answer["items"]]
    slots = {"3": "price < 20", "7": "price > 1000"}
    assert json.loads(row.rules) == {"per": {"colour": 2}, "slots": slots}


def test_items_that_are_not_available_are_in_no_list(saved, file, tmp_path):
    address = f"sqlite:///{tmp_path / 'shop.db'}"
    local = Local(saved, tmp_path / "run", lists=file, store=address)
    local.app.start()
    try:
        first = items_of(local, "new")[0]
        body = {"available": False}
        assert local.ask("PUT", f"/v1/items/{first}", body).status == 200
        until(lambda: first not in items_of(local, "new"))
        today = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
        other = items_of(local, "new")[5]
        assert local.ask("PUT", f"/v1/items/{other}", {"added": today}).status == 200
        until(lambda: items_of(local, "new")[0] == other)
    finally:
        local.app.stop()


def test_the_document_has_lists_only_where_there_are_lists(local, saved, tmp_path):
    assert "/v1/lists/{list_name}" in local.get("/openapi.json").json["paths"]
    assert "/v1/lists" not in Local(saved, tmp_path).get("/openapi.json").json["paths"]
