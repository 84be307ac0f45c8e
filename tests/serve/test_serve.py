"""The answers of the application equal those of the library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import read_manifest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from kinds import maker
from service import Local, rows

DAY = 86_400


def histories(log, count: int, length: int) -> list[list[Any]]:
    ids, rng = log.items.ids.to_list(), np.random.default_rng(5)
    return [
        [ids[i] for i in log.item[a : a + length]]
        for a in rng.integers(0, log.rows - length, count)
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "tempo",
        "tale",
        "slist",
        "ease",
        "swalk",
        "sknn",
        "stan",
        "rules",
        "popular",
        "trending",
        "fpmc",
        "sasrec",
        "hstu",
    ],
)
def test_answers_equal_the_librarys_to_the_last_bit(kind, log, tmp_path):
    fitted = maker(kind)().fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    for history in histories(log, 5, 8):
        for hide in (False, True):
            request = {"history": rows(history), "k": 12, "hide_seen": hide}
            answer = local.post("/v1/recommend", request).json
            frame = tr.load(tmp_path / "m.tale").recommend_histories(
                [history], k=12, hide_seen=hide
            )
            assert [item["item_id"] for item in answer["items"]] == frame["item_id"].to_list()
            assert [item["score"] for item in answer["items"]] == frame["score"].to_list()
            assert [item["rank"] for item in answer["items"]] == frame["rank"].to_list()


@pytest.mark.parametrize("solver", ["exact", "local"])
@pytest.mark.parametrize("hide", [False, True])
def test_reasons_are_the_largest_contributions_and_shares_of_the_score(solver, hide, log, tmp_path):
    fitted = tr.TALE(reg=20, solver=solver).fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    (history,) = histories(log, 1, 12)
    request = {"history": rows(history), "k": 5, "hide_seen": hide}
    for item in local.post("/v1/recommend", request).json["items"]:
        contributions = fitted.explain(history, item["item_id"])
        parts = sorted(contributions.rows(), key=lambda row: -abs(row[1]))[:3]
        shares = [(name, part / item["score"]) for name, part in parts if part]
        assert shares
        assert [(reason["item_id"], reason["share"]) for reason in item["because"]] == [
            (name, pytest.approx(share)) for name, share in shares
        ]


def test_explanations_add_up_and_have_recency_weights(service, model, log):
    (history,) = histories(log, 1, 6)
    target = model.recommend_histories([history], k=1)["item_id"][0]
    explanation = service.post("/v1/explain", {"history": rows(history), "item_id": target}).json
    assert explanation["score"] == pytest.approx(
        sum(row["contribution"] for row in explanation["rows"])
    )
    assert sum(row["share"] for row in explanation["rows"]) == pytest.approx(1)
    assert [row["place"] for row in explanation["rows"]] == [5, 4, 3, 2, 1, 0]
    last = {item: place for place, item in enumerate(history)}
    for place, row in enumerate(explanation["rows"]):
        weight = math.exp(-row["place"] / model.recency) if last[row["item_id"]] == place else 0
        assert row["weight"] == pytest.approx(weight)


def test_a_request_may_set_its_time(log, tmp_path):
    fitted = tr.Tempo().fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    (history,) = histories(log, 1, 6)
    start = int(log.time.min()) // 10**6
    timed = rows(history, start)
    pairs = [(row["item_id"], row["timestamp"] * 10**6) for row in timed]
    answers = []
    for days in (10, 100):
        now = start + days * DAY
        items = local.post("/v1/recommend", {"history": timed, "k": 150, "as_of": now}).json[
            "items"
        ]
        expected = fitted.recommend_histories([pairs], k=150, as_of=now * 10**6)
        assert [item["item_id"] for item in items] == expected["item_id"].to_list()
        assert [item["score"] for item in items] == expected["score"].to_list()
        request = {"history": timed, "item_id": items[0]["item_id"], "as_of": now}
        explanation = local.post("/v1/explain", request).json
        contributions = [row["contribution"] for row in explanation["rows"]]
        assert sum(contributions) + explanation["base"] == pytest.approx(items[0]["score"])
        answers.append(items)
    assert answers[0] != answers[1]
    text = {"history": timed, "k": 150, "as_of": "2024-05-01T12:00:00Z"}
    assert local.post("/v1/recommend", text).status == 200
    text["as_of"] = "yesterday"
    assert local.post("/v1/recommend", text).json["error"]["code"] == "invalid"


def test_a_condition_on_the_item_table_is_an_allow_list(log, tmp_path):
    table = pl.DataFrame({"item_id": log.items.ids, "price": range(len(log.items))})
    fitted = tr.TALE(reg=2.0).fit(log.with_items(table))
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    (history,) = histories(log, 1, 6)
    for cheap in (20, 90):
        items = local.post(
            "/v1/recommend", {"history": rows(history), "k": 9, "where": f"price < {cheap}"}
        ).json["items"]
        expected = fitted.recommend_histories([history], k=9, allow=log.items.ids[:cheap])
        assert [item["item_id"] for item in items] == expected["item_id"].to_list()
    bad = local.post("/v1/recommend", {"history": rows(history), "where": "colour = 'red'"})
    assert (bad.status, bad.code) == (422, "invalid")
    request = {"history": [], "where": "price < 3", "k": 9}
    assert {item["item_id"] for item in local.post("/v1/recommend", request).json["items"]} <= {
        *log.items.ids[:3].to_list()
    }


def test_rows_with_times_are_sorted(service, log):
    (history,) = histories(log, 1, 6)
    straight = service.post("/v1/recommend", {"history": rows(history)}).json
    timed = rows(history, 1_700_000_000)
    mixed = [timed[n] for n in (3, 0, 5, 1, 4, 2)]
    assert service.post("/v1/recommend", {"history": mixed}).json == straight
    texts = [{**row, "timestamp": f"2024-01-0{n + 1}T00:00:00Z"} for n, row in enumerate(timed)]
    assert service.post("/v1/recommend", {"history": texts[::-1]}).json == straight


def test_recency_of_a_request_equals_a_model_with_that_recency(service, log):
    (history,) = histories(log, 1, 10)
    items = service.post("/v1/recommend", {"history": rows(history), "recency": 9}).json["items"]
    other = tr.TALE(reg=20, recency=9).fit(log).recommend_histories([history])
    assert [item["score"] for item in items] == other["score"].to_list()


def test_a_model_without_recency_refuses_it(log, tmp_path):
    local = Local(tr.Popular().fit(log).save(tmp_path / "p.tale"), tmp_path)
    answer = local.post("/v1/recommend", {"history": [], "recency": 2})
    assert answer.status == 422
    assert "recency" in answer.json["error"]["message"]


def test_allow_and_deny_lists_equal_the_librarys(service, model, log):
    (history,) = histories(log, 1, 8)
    ids = model.item_ids.to_list()
    request = {"history": rows(history), "allow": [*ids[:60], "unknown item"], "deny": ids[:10]}
    items = service.post("/v1/recommend", request).json["items"]
    expected = model.recommend_histories([history], allow=ids[:60], deny=ids[:10])
    assert [item["item_id"] for item in items] == expected["item_id"].to_list()


def mixed_requests(log) -> list[dict[str, Any]]:
    """Return requests of which some can be answered together."""
    plain = [
        {"history": rows(items), "k": 3 + n % 2} for n, items in enumerate(histories(log, 6, 5))
    ]
    few, many = histories(log, 2, 3)
    return [
        *plain,
        {"history": rows(few), "k": 3},
        {"history": [], "k": 3},
        {"history": rows(many), "k": 3, "hide_seen": True},
        {"history": rows(["unknown item"]), "k": 3},
        {"history": rows(many, 1_000_000), "k": 3},
        {"history": rows(many), "k": 3, "recency": 9.5},
        {"history": rows(many), "k": 3, "deny": few},
        {"history": rows(many), "k": 4, "as_of": 2_000_000_000},
    ]


@pytest.mark.parametrize("kind", ["tale", "tempo", "slist"])
def test_a_batch_equals_its_requests_one_by_one(kind, log, tmp_path):
    params = {"solver": "local"} if kind == "slist" else {}
    service = Local(tr.MODELS[kind](**params).fit(log).save(tmp_path / "one.tale"), tmp_path)
    requests = mixed_requests(log)
    batch = service.post("/v1/recommend:batch", {"requests": requests}).json
    assert batch["answers"] == [service.post("/v1/recommend", request).json for request in requests]


def test_concurrent_requests_are_answered_as_if_alone(service, log):
    unlike = [{"history": [], "k": 151}, {"history": rows([None]), "k": 3}, {"k": 3}]
    requests = [*mixed_requests(log), *unlike, *mixed_requests(log)]
    together = service.post_all("/v1/recommend", requests)
    alone = [service.post("/v1/recommend", request) for request in requests]
    assert [answer.status for answer in together] == [answer.status for answer in alone]
    assert {answer.status for answer in together} == {200, 422}
    assert [answer.body for answer in together] == [answer.body for answer in alone]


def test_similar_items_equal_the_librarys(service, model):
    item = model.item_ids[7]
    answer = service.post("/v1/similar", {"item_id": str(item), "k": 5}).json
    expected = model.similar_items(item, k=5)
    assert answer["item_id"] == item
    assert [[similar["item_id"], similar["score"]] for similar in answer["items"]] == [
        list(row) for row in expected.select("item_id", "score").rows()
    ]


@pytest.mark.parametrize("history", [[], [{"item_id": "unknown item"}], [{"item_id": -1}]])
def test_unknown_histories_get_trending_items(service, log, history):
    answer = service.post("/v1/recommend", {"history": history, "k": 5}).json
    expected = tr.Trending().fit(log).recommend_histories([[]], k=5)
    assert answer["fallback"] == "trending"
    assert [[item["item_id"], item["score"]] for item in answer["items"]] == [
        list(row) for row in expected.select("item_id", "score").rows()
    ]
    best = answer["items"][0]["item_id"]
    less = service.post("/v1/recommend", {"history": history, "k": 4, "deny": [best]}).json
    assert [item["item_id"] for item in less["items"]] == expected["item_id"].to_list()[1:]


def test_a_known_history_gets_no_fallback(service, model):
    assert (
        "fallback" not in service.post("/v1/recommend", {"history": rows(model.item_ids[:1])}).json
    )


def test_trending_items_are_saved_without_histories(model, log, service, tmp_path):
    local = Local(model.save(tmp_path / "m.tale", histories=False), tmp_path)
    request = {"history": [], "k": 5}
    items, expected = (
        each.post("/v1/recommend", request).json["items"] for each in (local, service)
    )
    assert items == expected


def test_search_finds_titles_with_every_word_and_ids(service, model, log):
    titles = dict(log.info.select("item_id", "title").rows())
    item_id, title = next(iter(titles.items()))
    word = title.split()[0].lower()
    items = service.get(f"/v1/items?q={word}&limit=100").json["items"]
    assert {item["item_id"] for item in items} == {
        item for item, text in titles.items() if word in text.lower()
    } | ({int(word)} if word.isdecimal() else set())
    assert service.get(f"/v1/items?q={item_id}").json["items"][0]["item_id"] == item_id
    assert service.get("/v1/items?q=no+such+thing").json["items"] == []
    counts = log.counts()
    popular = service.get("/v1/items?limit=3").json["items"]
    assert counts[[item["item_id"] - 1 for item in popular]].min() >= np.sort(counts)[-3]


def test_the_model_card_describes_the_model(service, model, saved):
    card = service.get("/v1/model").json
    assert card["model"] == read_manifest(saved)["version"]
    assert card["params"]["reg"] == 20
    assert card["metrics"] == {"HR@10": 0.25}
    assert card["training"]["rows"] == 3000
    assert card["training"]["last_time"].startswith("2024-12-")
