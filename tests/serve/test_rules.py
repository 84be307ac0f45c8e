"""Filters and boosts over HTTP equal those of the library, for models and the fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import talerec as tr
from talerec.errors import TalerecError
from talerec.models.core import RecommendOptions, matching_items

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local
from talerec.serve.model import queries

HISTORY = [1, 5, 9]
ROWS = [{"item_id": item} for item in HISTORY]


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(6000, users=400, items=300, seed=3)


@pytest.fixture(scope="module", params=["tale", "tempo", "sknn"])
def model(request: Any, log: tr.Log) -> tr.Model:
    return tr.MODELS[request.param]().fit(log)


@pytest.fixture(scope="module")
def service(model: tr.Model, tmp_path_factory: Any) -> Local:
    folder = tmp_path_factory.mktemp("rules")
    return Local(model.save(folder / "shop.tale"), folder / "run")


def categories(log: tr.Log) -> list[str]:
    return log.info["category"].to_list()


RULES = [
    {"boost": {"category": {"{0}": 0.5, "{1}": -0.25}}},
    {"boost": {"category": {"{0}": 40.0}, "item_id": {"7": -3.5}}},
    {"per": {"category": 2}},
    {"per": {"category": 1}, "boost": {"category": {"{1}": 2.0}}},
    {"where": "category <> '{0}'", "per": {"category": 3}, "boost": {"category": {"{2}": 1.0}}},
    {"deny": [2, 3, 4], "boost": {"category": {"{2}": 0.1, "nothing has it": 9.0}}},
]


def fill_in(rule: Any, names: list[str]) -> Any:
    """Return a rule with categories of the log."""
    if isinstance(rule, dict):
        return {fill_in(key, names): fill_in(value, names) for key, value in rule.items()}
    return rule.format(*names) if isinstance(rule, str) else rule


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("hide_seen", [False, True])
def test_filters_over_http_equal_those_of_the_library(
    service: Local, model: tr.Model, log: tr.Log, rule: Any, hide_seen: bool
) -> None:
    rule = fill_in(rule, sorted(set(categories(log))))
    request = {"history": ROWS, "k": 12, "hide_seen": hide_seen, **rule}
    answer = service.post("/v1/recommend", request).json
    expected = model.recommend_histories([HISTORY], 12, hide_seen=hide_seen, **rule)
    assert [item["item_id"] for item in answer["items"]] == expected["item_id"].to_list()
    assert [item["score"] for item in answer["items"]] == expected["score"].to_list()
    batch = service.post("/v1/recommend:batch", {"requests": [request]}).json
    assert batch["answers"][0] == answer
    masks = {name: rule[name] for name in ("where", "deny", "boost") if name in rule}
    for item in answer["items"][:5]:
        why = {"history": ROWS, "item_id": item["item_id"], "hide_seen": hide_seen, **masks}
        why = service.post("/v1/explain", why).json
        assert why["score"] == pytest.approx(item["score"], abs=1e-9)
        rows = sum(row["contribution"] for row in why["rows"]) + why.get("base", 0.0)
        added = sum(boost["contribution"] for boost in why.get("boosts", []))
        assert rows + added == pytest.approx(why["score"], abs=1e-9)
        assert added == pytest.approx(item.get("boost", 0.0), abs=1e-9)
        for reason in item["because"]:
            contribution = sum(
                row["contribution"] for row in why["rows"] if row["item_id"] == reason["item_id"]
            )
            assert reason["share"] * item["score"] == pytest.approx(contribution, abs=1e-9)


def trending(log: tr.Log, boost: dict[str, float], k: int, per: int, deny: list[int]) -> list[Any]:
    """Return the fallback: items by counts of the last week, then of the log, with boosts."""
    kinds, counts, every = categories(log), log.counts(7), log.counts()
    ids = log.items.ids.to_list()
    full = [i for i in range(len(ids)) if ids[i] not in deny]
    full.sort(key=lambda i: (-counts[i], 0 if counts[i] else -every[i], i))
    spread = counts[full[0]] - counts[full[min(100, len(full)) - 1]]
    raised = [(i, counts[i] + boost.get(kinds[i], 0.0) * spread) for i in full]
    raised.sort(key=lambda pair: -pair[1])  # stable: equal items keep their order
    chosen: list[Any] = []
    for i, score in raised:
        if len(chosen) < k and sum(kinds[j] == kinds[i] for j, _ in chosen) < per:
            chosen.append((i, score))
    return [(ids[i], score) for i, score in chosen]


@pytest.mark.parametrize("lift", [0.0, 0.3, -1.0, 10.0])
@pytest.mark.parametrize("per", [1, 3, 99])
def test_the_fallback_applies_the_same_filters(
    service: Local, log: tr.Log, lift: float, per: int, model: tr.Model
) -> None:
    name = categories(log)[0]
    rule = {"boost": {"category": {name: lift}}, "per": {"category": per}, "deny": [1, 2]}
    answer = service.post("/v1/recommend", {"history": [{"item_id": "?"}], "k": 7, **rule}).json
    pairs = [(entry["item_id"], entry["score"]) for entry in answer["items"]]
    if model.name == "tempo":  # popularity is a part of the model
        rows = model.recommend_histories([["?"]], 7, unknown="skip", **rule)
        expected = list(zip(rows["item_id"], rows["score"], strict=True))
        assert pairs == expected or answer["fallback"] == "trending"
    if answer.get("fallback"):
        expected = trending(log, {name: lift}, 7, per, [1, 2])
        assert [item for item, _ in pairs] == [item for item, _ in expected]
        assert [score for _, score in pairs] == pytest.approx([score for _, score in expected])
    else:
        assert model.name == "tempo"


def test_an_allow_list_may_be_as_long_as_the_body(service: Local, model: tr.Model) -> None:
    """A hundred thousand unknown ids in the list do not change the answer."""
    short = service.post("/v1/recommend", {"history": ROWS, "allow": list(range(10, 200))})
    long = [*range(1_000_000, 1_100_000), *range(10, 200)]
    answer = service.post("/v1/recommend", {"history": ROWS, "allow": long})
    assert answer.status == 200
    assert answer.body == short.body
    text = service.post("/v1/recommend", {"history": ROWS, "allow": [str(item) for item in long]})
    assert (text.status, text.code) == (413, "body_too_large")  # 1.1 MB: --max-body is the limit
    deny = service.post("/v1/recommend", {"history": ROWS, "deny": [*range(1, 301), *long]}).json
    assert deny["items"] == []
    why = {"history": ROWS, "item_id": 20, "allow": long, "boost": {"category": {"x": 1}}}
    assert service.post("/v1/explain", why).status == 200


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"boost": {"colour": {"X": 1}}}, "no column 'colour'"),
        ({"boost": {"category": {"X": 1e308}}}, "<= 1000"),
        ({"boost": {"category": {"X": "a"}}}, "boost[...][...]: expected float"),
        ({"boost": {"category": 1}}, "boost[...]: expected object"),
        ({"boost": {"category": {str(n): 0.1 for n in range(10_001)}}}, "more than 10,000"),
        ({"per": {"colour": 1}}, "no column 'colour'"),
        ({"per": {"category": 0}}, ">= 1"),
        ({"per": {"category": 1.5}}, "per[...]: expected int"),
    ],
)
def test_a_bad_filter_is_refused_by_name(service: Local, rule: Any, message: str) -> None:
    answer = service.post("/v1/recommend", {"history": ROWS, **rule})
    assert (answer.status, answer.code) == (422, "invalid")
    assert message in answer.json["error"]["message"]
    batch = service.post("/v1/recommend:batch", {"requests": [{"history": ROWS, **rule}]})
    assert batch.status == 422


def test_the_largest_numbers_and_the_oddest_values_are_answered(service: Local) -> None:
    plain = service.post("/v1/recommend", {"history": ROWS, "k": 9}).body
    for rule in (
        {"per": {"category": 10**30}},
        {"per": {"item_id": 2**63}},
        {"per": {}, "boost": {}},
        {"boost": {"category": {"": 1000, "\0": -1000}}},
        {"boost": {"item_id": {"9" * 5000: 1, "1e400": 1, "inf": 1, "nan": 1, "x": 1}}},
    ):
        assert service.post("/v1/recommend", {"history": ROWS, "k": 9, **rule}).body == plain
    every = {"boost": {"item_id": {str(item): 1000 for item in range(1, 301)}}}
    items = service.post("/v1/recommend", {"history": ROWS, "k": 9, **every}).json["items"]
    assert [item["item_id"] for item in items] == [
        item["item_id"]
        for item in service.post("/v1/recommend", {"history": ROWS, "k": 9}).json["items"]
    ]


def test_the_openapi_document_names_the_columns_that_filters_may_use(service: Local) -> None:
    schemas = service.get("/openapi.json").json["components"]["schemas"]
    for name, rule in (("RecommendRequest", "per"), ("ExplainRequest", "boost")):
        form = schemas[name]["properties"][rule]["anyOf"][0]
        assert "category" in form["propertyNames"]["enum"]


def test_the_latest_conditions_are_cached(model: tr.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []

    def match(model: tr.Model, where: str) -> Any:
        evaluated.append(where)
        return matching_items(model, where)

    monkeypatch.setattr(queries, "matching_items", match)
    monkeypatch.setattr(queries, "_MAX_CACHED", 2)
    cache = queries.FilterCache(model)
    for where in ("item_id = 1", "item_id = 2", "item_id = 1", "item_id = 3", "item_id = 1"):
        filters = cache.build_filter(RecommendOptions(where=where))
        assert np.array_equal(filters.allowed, matching_items(model, where))
    assert evaluated == ["item_id = 1", "item_id = 2", "item_id = 3"]
    with pytest.raises(TalerecError):
        cache.build_filter(RecommendOptions(where="item_id ="))
    cache.build_filter(RecommendOptions(where="item_id = 2"))
    assert evaluated[-2:] == ["item_id =", "item_id = 2"]


def test_a_long_condition_leaves_the_event_loop_until_it_is_cached(
    model: tr.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = queries.FilterCache(model)
    options = RecommendOptions(where="item_id = 1 or item_id = 2")
    assert not cache.is_slow(options)
    monkeypatch.setattr(queries, "_LONG_CONDITION", 20 * len(model.fitted.items))
    assert cache.is_slow(options)
    cache.build_filter(options)
    assert not cache.is_slow(options)
    assert cache.is_slow(RecommendOptions(where=options.where, per={"category": 1}))
    assert not cache.is_slow(RecommendOptions(where="item_id = 1"))


@pytest.mark.parametrize(
    "where", ["case when title = 1 then " * 30, "title = lpad(title, 2000000000, 'x')"]
)
def test_a_hostile_condition_is_refused_over_http(service: Local, where: str) -> None:
    answer = service.post("/v1/recommend", {"history": ROWS, "where": where})
    assert (answer.status, answer.code) == (422, "invalid")
    assert "`where` is not valid at character " in answer.json["error"]["message"]
