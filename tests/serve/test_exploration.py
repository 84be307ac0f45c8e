"""Places for items with few impressions: which items, and with which probabilities."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local, service_with_store
from talerec.serve import schemas
from talerec.serve.model import Explorer, ServedModel
from talerec.serve.model.queries import build_query
from waiting import until

HISTORY = [3, 5, 11]
SHARE = 0.3


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(3000, users=300, items=120, seed=3)


@pytest.fixture(scope="module")
def model(log: tr.Log) -> tr.Model:
    return tr.TALE(reg=20).fit(log)


@pytest.fixture(scope="module")
def served(model: tr.Model, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    folder = tmp_path_factory.mktemp("explore")
    current = Local(model.save(folder / "m.tale"), folder / "run").app.holder.current
    assert current is not None
    return current


def explore(explorer: Explorer, served: ServedModel, **rules: Any) -> list[schemas.RankedItem]:
    """Return the items of an answer to the history, after exploration."""
    rows = [schemas.HistoryRow(item) for item in HISTORY]
    request = schemas.RecommendRequest(history=rows, **{"k": 5, "hide_seen": True, **rules})
    query = build_query(request)
    answer = served.recommend(query)
    explorer.explore(served, query, answer)
    return answer.items


def find_pool(model: tr.Model, counts: dict[str, int], k: int, **rules: Any) -> list[Any]:
    """Return the pool by its definition: eligible items in the model's order, then least shown."""
    ranked = model.recommend_histories([HISTORY], k=120, hide_seen=True, **rules)["item_id"]
    listed = ranked.to_list()
    few = [item for item in model.item_ids if counts.get(str(item), 0) < 100]
    eligible = [item for item in few if item not in HISTORY and item not in listed[:k]]
    eligible = [item for item in eligible if item not in rules.get("deny", [])]
    if "allow" in rules:
        eligible = [item for item in eligible if item in rules["allow"]]
    scored = [item for item in listed if item in eligible]
    rest = sorted(set(eligible) - set(scored), key=lambda item: counts.get(str(item), 0))
    return (scored + rest)[: max(20, min(k - 1, len(eligible)))]


@pytest.mark.parametrize("rules", [{}, {"allow": [*range(1, 41)], "deny": [7, 8, 9]}])
def test_each_item_has_its_place_as_often_as_its_probability_says(
    model: tr.Model, served: ServedModel, rules: dict[str, Any]
) -> None:
    counts = {str(item): 1000 for item in range(60, 100)}
    explorer, n_runs = Explorer(SHARE, 1.0, Random(1)), 3000
    explorer.set_counts(counts)
    top = model.recommend_histories([HISTORY], k=5, hide_seen=True, **rules)["item_id"].to_list()
    pool = find_pool(model, counts, 5, **rules)
    seen, probabilities = Counter[tuple[int, Any]](), dict[tuple[int, Any], float]()
    for _ in range(n_runs):
        items = explore(explorer, served, **rules)
        assert len({item.item_id for item in items}) == 5
        assert [item.rank for item in items] == [1, 2, 3, 4, 5]
        for item in items:
            key = (item.rank, item.item_id)
            seen[key] += 1
            chance = 1.0 if item.probability is schemas.ABSENT else item.probability
            assert probabilities.setdefault(key, chance) == chance
    expected = {(1, top[0]): 1.0}
    for rank in range(2, 6):
        expected[rank, top[rank - 1]] = 1 - SHARE
        expected |= {(rank, item): SHARE / len(pool) for item in pool}
        assert sum(p for (place, _), p in expected.items() if place == rank) == pytest.approx(1)
    assert probabilities == pytest.approx(expected)
    for key, probability in expected.items():
        deviation = math.sqrt(n_runs * probability * (1 - probability))
        assert abs(seen[key] - n_runs * probability) <= 4.5 * deviation


def test_rules_hold_for_explored_items(served: ServedModel) -> None:
    explorer = Explorer(0.5, 1.0, Random(2))
    allowed = [*range(20, 50)]
    for _ in range(100):
        for item in explore(explorer, served, allow=allowed, deny=[21, 22]):
            assert item.item_id in set(allowed) - {21, 22}
    where = f"category = '{served.model.fitted.info['category'][0]}'"
    table = served.model.fitted.info.select("item_id", "category")
    category = dict(table.iter_rows())
    explored = 0
    for _ in range(100):
        items = explore(explorer, served, where=where)
        assert {category[item.item_id] for item in items} == {category[served.model.item_ids[0]]}
        explored += sum(item.explored is True for item in items)
    assert explored > 50


def test_lists_with_limits_and_well_known_items_stay_as_they_are(served: ServedModel) -> None:
    explorer = Explorer(0.5, 0.5, Random(3))
    for item in explore(explorer, served, per={"category": 2}):
        assert item.probability is item.explored is schemas.ABSENT
    explorer.set_counts({str(item): 50 for item in served.model.item_ids})  # 100 in all users
    for item in explore(explorer, served):
        assert item.probability is item.explored is schemas.ABSENT
    explorer.set_counts({str(item): 49 for item in served.model.item_ids})
    assert any(item.explored is True for _ in range(20) for item in explore(explorer, served))


def test_a_new_item_of_the_store_is_explored_until_the_user_hides_it(
    model: tr.Model, tmp_path: Path
) -> None:
    """Nobody else can show it: no model knows it. Hidden items do not come back by exploration."""
    path, address = model.save(tmp_path / "m.tale"), f"sqlite:///{tmp_path}/shop.db"
    settings = {"impressions": 1.0, "explore": 0.5, "ids": "integer"}
    with service_with_store(path, tmp_path / "run", address, **settings) as local:
        few = local.app.api.shown_lists._explorer
        few.set_counts({str(item): 1000 for item in model.item_ids})
        assert local.ask("PUT", "/v1/items/9000", {"title": "new"}).status in (200, 201)

        def ask(user: int) -> list[dict[str, Any]]:
            body = {"user_id": user, "k": 5}
            items: list[dict[str, Any]] = local.post("/v1/recommend", body).json["items"]
            return items

        def is_explored() -> bool:
            few.set_counts({str(item): 1000 for item in model.item_ids})
            return any(item["item_id"] == 9000 for user in range(20) for item in ask(user))

        until(is_explored)
        (entry,) = [i for u in range(100) for i in ask(u % 20) if i["item_id"] == 9000][:1]
        assert entry["explored"] is True
        assert entry["probability"] == 0.5
        assert entry["rank"] == 2  # one place, as one item is eligible
        local.post("/v1/events", {"events": [{"user_id": 5, "item_id": 9000, "event": "hide"}]})
        assert all(item["item_id"] != 9000 for _ in range(60) for item in ask(5))
