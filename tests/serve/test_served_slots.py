"""Slots in requests: the service lists what the library lists, and says which slots are empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local

SLOTS = {"3": {"where": "colour = 'red'"}, "1": {"where": "price < 20"}}


@pytest.fixture(scope="module")
def shop() -> tr.Model:
    rows = tr.synthetic_log(2000, users=60, items=90, seed=4).to_frame()
    ids = rows["item_id"].unique().sort()
    colours = ["red", "green", "green", "green", "green", None]
    table = pl.DataFrame(
        {
            "item_id": ids,
            "colour": [colours[n % 6] for n in range(len(ids))],
            "price": [float(7 * n % 101) for n in range(len(ids))],
        }
    )
    return tr.EASE(reg=20).fit(tr.Log.from_frame(rows, items=table))


@pytest.fixture(scope="module")
def local(shop: tr.Model, tmp_path_factory: pytest.TempPathFactory) -> Local:
    folder = tmp_path_factory.mktemp("slots")
    return Local(shop.save(folder / "shop.tale"), folder / "run")


def listed(answer: Any) -> list[tuple[Any, float, bool]]:
    return [(item["item_id"], item["score"], item.get("slot", False)) for item in answer["items"]]


@pytest.mark.parametrize(
    "rules",
    [{}, {"hide_seen": True}, {"per": {"colour": 2}}, {"boost": {"colour": {"green": 0.4}}}],
)
def test_lists_with_slots_equal_those_of_the_library(shop, local, rules):
    for user in shop.fitted.log.users.ids[:5].to_list():
        body = {"user_id": user, "k": 6, "slots": SLOTS, **rules}
        answer = local.post("/v1/recommend", body)
        assert answer.status == 200
        frame = shop.recommend([user], k=6, slots=SLOTS, **rules)
        rows = list(zip(frame["item_id"], frame["score"], frame["slot"], strict=True))
        assert listed(answer.json) == rows
        batch = local.post("/v1/recommend:batch", {"requests": [body]}).json["answers"][0]
        assert listed(batch) == listed(answer.json)
        empty = [place for place in (1, 3) if not rows[place - 1][2]]
        assert answer.json["empty_slots"] == empty


def test_a_slot_with_nothing_to_show_is_named_and_filled(local):
    slots = {"2": {"where": "price > 1000"}, **SLOTS}
    answer = local.post("/v1/recommend", {"user_id": 1, "k": 5, "slots": slots}).json
    assert answer["empty_slots"] == [2]
    assert len(answer["items"]) == 5
    assert "slot" not in answer["items"][1]
    plain = local.post("/v1/recommend", {"user_id": 1, "k": 5}).json
    assert "empty_slots" not in plain
    assert all("slot" not in item for item in plain["items"])


def test_the_fallback_has_slots_too(local, shop):
    body = {"user_id": "nobody", "k": 8, "slots": SLOTS, "per": {"colour": 3}}
    answer = local.post("/v1/recommend", body).json
    assert answer["fallback"] == "trending"
    ids = [item["item_id"] for item in answer["items"]]
    assert len(set(ids)) == 8
    table = dict(zip(shop.item_ids, shop.fitted.info.rows(named=True), strict=True))
    assert table[ids[0]]["price"] < 20
    assert table[ids[2]]["colour"] == "red"
    colours = [table[item]["colour"] for item in ids if table[item]["colour"]]
    assert max(colours.count(colour) for colour in colours) <= 3
    trending = local.post("/v1/recommend", {"user_id": "nobody", "k": 90}).json["items"]
    order = [item["item_id"] for item in trending]
    cheap = [item for item in order if table[item]["price"] < 20]
    assert ids[0] == cheap[0]


BAD = {
    "has the place 9, but `k` is 5": {"9": {"where": "price < 5"}},
    "is no place": {"two": {"where": "price < 5"}},
    "'0' is no place": {"0": {"where": "price < 5"}},
    "size": {"2": {"where": "size < 5"}},
    "expected `object`, got `str`": {"2": "price < 5"},
    "there is no field allow": {"2": {"where": "price < 5", "allow": [1]}},
    "the limit is 20": {str(n): {"where": "price < 5"} for n in range(1, 25)},
}


@pytest.mark.parametrize("message", BAD)
def test_invalid_slots_are_refused(local, message):
    answer = local.post("/v1/recommend", {"user_id": 1, "k": 5, "slots": BAD[message]})
    assert answer.status == 422
    assert message.replace("`", "") in answer.json["error"]["message"].replace("`", "")


def test_slots_are_kept_with_the_impression(shop: tr.Model, tmp_path: Path) -> None:
    from talerec.serve.http.shown import _describe_rules
    from talerec.serve.schemas import RecommendRequest, decode

    body = b'{"user_id": 1, "slots": {"3": {"where": "price < 5"}}}'
    assert _describe_rules(decode(body, RecommendRequest)) == '{"slots": {"3": "price < 5"}}'
