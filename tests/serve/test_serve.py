"""The service's answers are the library's, asked of the application itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.artifact import format as artifact

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
def test_answers_are_the_librarys_to_the_last_bit(kind, log, tmp_path):
    fitted = maker(kind)().fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    for history in histories(log, 5, 8):
        for hide in (False, True):
            asked = {"history": rows(history), "k": 12, "hide_seen": hide}
            found = local.post("/v1/recommend", asked).json
            frame = tr.load(tmp_path / "m.tale").recommend_histories(
                [history], k=12, hide_seen=hide
            )
            assert [item["item_id"] for item in found["items"]] == frame["item_id"].to_list()
            assert [item["score"] for item in found["items"]] == frame["score"].to_list()
            assert [item["rank"] for item in found["items"]] == frame["rank"].to_list()


@pytest.mark.parametrize("solver", ["exact", "local"])
@pytest.mark.parametrize("hide", [False, True])
def test_reasons_are_the_largest_contributions_and_shares_of_the_score(solver, hide, log, tmp_path):
    fitted = tr.TALE(reg=20, solver=solver).fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    (history,) = histories(log, 1, 12)
    asked = {"history": rows(history), "k": 5, "hide_seen": hide}
    for item in local.post("/v1/recommend", asked).json["items"]:
        given = fitted.explain(history, item["item_id"])
        parts = sorted(given.rows(), key=lambda row: -abs(row[1]))[:3]
        shares = [(name, part / item["score"]) for name, part in parts if part]
        assert shares
        assert [(one["item_id"], one["share"]) for one in item["because"]] == [
            (name, pytest.approx(share)) for name, share in shares
        ]


def test_explanations_add_up_and_say_what_a_place_leaves(service, model, log):
    (history,) = histories(log, 1, 6)
    target = model.recommend_histories([history], k=1)["item_id"][0]
    said = service.post("/v1/explain", {"history": rows(history), "item_id": target}).json
    assert said["score"] == pytest.approx(sum(row["contribution"] for row in said["rows"]))
    assert sum(row["share"] for row in said["rows"]) == pytest.approx(1)
    assert [row["place"] for row in said["rows"]] == [5, 4, 3, 2, 1, 0]
    last = {item: place for place, item in enumerate(history)}
    for place, row in enumerate(said["rows"]):
        weight = math.exp(-row["place"] / model.recency) if last[row["item_id"]] == place else 0
        assert row["weight"] == pytest.approx(weight)


def test_a_question_may_say_when_it_is_asked(log, tmp_path):
    fitted = tr.Tempo().fit(log)
    local = Local(fitted.save(tmp_path / "m.tale"), tmp_path)
    (history,) = histories(log, 1, 6)
    start = int(log.time.min()) // 10**6
    timed = rows(history, start)
    pairs = [(row["item_id"], row["timestamp"] * 10**6) for row in timed]
    answers = []
    for days in (10, 100):
        now = start + days * DAY
        found = local.post("/v1/recommend", {"history": timed, "k": 150, "as_of": now}).json[
            "items"
        ]
        own = fitted.recommend_histories([pairs], k=150, as_of=now * 10**6)
        assert [item["item_id"] for item in found] == own["item_id"].to_list()
        assert [item["score"] for item in found] == own["score"].to_list()
        asked = {"history": timed, "item_id": found[0]["item_id"], "as_of": now}
        said = local.post("/v1/explain", asked).json
        given = [row["contribution"] for row in said["rows"]]
        assert sum(given) + said["base"] == pytest.approx(found[0]["score"])
        answers.append(found)
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
        found = local.post(
            "/v1/recommend", {"history": rows(history), "k": 9, "where": f"price < {cheap}"}
        ).json["items"]
        own = fitted.recommend_histories([history], k=9, allow=log.items.ids[:cheap])
        assert [item["item_id"] for item in found] == own["item_id"].to_list()
    bad = local.post("/v1/recommend", {"history": rows(history), "where": "colour = 'red'"})
    assert (bad.status, bad.code) == (422, "invalid")
    nobody = {"history": [], "where": "price < 3", "k": 9}
    assert {item["item_id"] for item in local.post("/v1/recommend", nobody).json["items"]} <= {
        *log.items.ids[:3].to_list()
    }


def test_rows_with_times_are_put_into_their_order(service, log):
    (history,) = histories(log, 1, 6)
    straight = service.post("/v1/recommend", {"history": rows(history)}).json
    timed = rows(history, 1_700_000_000)
    mixed = [timed[n] for n in (3, 0, 5, 1, 4, 2)]
    assert service.post("/v1/recommend", {"history": mixed}).json == straight
    texts = [{**row, "timestamp": f"2024-01-0{n + 1}T00:00:00Z"} for n, row in enumerate(timed)]
    assert service.post("/v1/recommend", {"history": texts[::-1]}).json == straight


def test_recency_of_a_request_is_that_of_the_model_so_built(service, log):
    (history,) = histories(log, 1, 10)
    found = service.post("/v1/recommend", {"history": rows(history), "recency": 9}).json["items"]
    other = tr.TALE(reg=20, recency=9).fit(log).recommend_histories([history])
    assert [item["score"] for item in found] == other["score"].to_list()


def test_a_model_without_recency_refuses_it(log, tmp_path):
    local = Local(tr.Popular().fit(log).save(tmp_path / "p.tale"), tmp_path)
    answer = local.post("/v1/recommend", {"history": [], "recency": 2})
    assert answer.status == 422
    assert "recency" in answer.json["error"]["message"]


def test_allow_and_deny_lists_are_the_librarys(service, model, log):
    (history,) = histories(log, 1, 8)
    ids = model.item_ids.to_list()
    asked = {"history": rows(history), "allow": [*ids[:60], "nobody knows me"], "deny": ids[:10]}
    found = service.post("/v1/recommend", asked).json["items"]
    own = model.recommend_histories([history], allow=ids[:60], deny=ids[:10])
    assert [item["item_id"] for item in found] == own["item_id"].to_list()


def of_many_kinds(log) -> list[dict[str, Any]]:
    """Questions of which some can be answered together."""
    plain = [{"history": rows(one), "k": 3 + n % 2} for n, one in enumerate(histories(log, 6, 5))]
    few, many = histories(log, 2, 3)
    return [
        *plain,
        {"history": rows(few), "k": 3},
        {"history": [], "k": 3},
        {"history": rows(many), "k": 3, "hide_seen": True},
        {"history": rows(["nobody knows this"]), "k": 3},
        {"history": rows(many, 1_000_000), "k": 3},
        {"history": rows(many), "k": 3, "recency": 9.5},
        {"history": rows(many), "k": 3, "deny": few},
        {"history": rows(many), "k": 4, "as_of": 2_000_000_000},
    ]


@pytest.mark.parametrize("kind", ["tale", "tempo", "slist"])
def test_a_batch_is_its_questions_one_by_one(kind, log, tmp_path):
    params = {"solver": "local"} if kind == "slist" else {}
    service = Local(tr.MODELS[kind](**params).fit(log).save(tmp_path / "one.tale"), tmp_path)
    wishes = of_many_kinds(log)
    said = service.post("/v1/recommend:batch", {"requests": wishes}).json
    assert said["answers"] == [service.post("/v1/recommend", wish).json for wish in wishes]


def test_questions_at_one_moment_are_answered_as_if_they_were_alone(service, log):
    unlike = [{"history": [], "k": 151}, {"history": rows([None]), "k": 3}, {"k": 3}]
    wishes = [*of_many_kinds(log), *unlike, *of_many_kinds(log)]
    together = service.post_all("/v1/recommend", wishes)
    alone = [service.post("/v1/recommend", wish) for wish in wishes]
    assert [one.status for one in together] == [one.status for one in alone]
    assert {one.status for one in together} == {200, 422}
    assert [one.body for one in together] == [one.body for one in alone]


def test_similar_items_are_the_librarys(service, model):
    item = model.item_ids[7]
    said = service.post("/v1/similar", {"item_id": str(item), "k": 5}).json
    own = model.similar_items(item, k=5)
    assert said["item_id"] == item
    assert [[one["item_id"], one["score"]] for one in said["items"]] == [
        list(row) for row in own.select("item_id", "score").rows()
    ]


@pytest.mark.parametrize("history", [[], [{"item_id": "nobody knows me"}], [{"item_id": -1}]])
def test_who_is_unknown_gets_what_is_trending(service, log, history):
    said = service.post("/v1/recommend", {"history": history, "k": 5}).json
    own = tr.Trending().fit(log).recommend_histories([[]], k=5)
    assert said["fallback"] == "trending"
    assert [[one["item_id"], one["score"]] for one in said["items"]] == [
        list(row) for row in own.select("item_id", "score").rows()
    ]
    best = said["items"][0]["item_id"]
    less = service.post("/v1/recommend", {"history": history, "k": 4, "deny": [best]}).json
    assert [one["item_id"] for one in less["items"]] == own["item_id"].to_list()[1:]


def test_a_known_history_is_no_fallback(service, model):
    assert (
        "fallback" not in service.post("/v1/recommend", {"history": rows(model.item_ids[:1])}).json
    )


def test_trending_is_kept_where_histories_are_not(model, log, service, tmp_path):
    local = Local(model.save(tmp_path / "m.tale", histories=False), tmp_path)
    ask = {"history": [], "k": 5}
    said, own = (one.post("/v1/recommend", ask).json["items"] for one in (local, service))
    assert said == own


def test_search_finds_titles_with_every_word_and_ids(service, model, log):
    titles = dict(log.info.select("item_id", "title").rows())
    one, title = next(iter(titles.items()))
    word = title.split()[0].lower()
    found = service.get(f"/v1/items?q={word}&limit=100").json["items"]
    assert {item["item_id"] for item in found} == {
        item for item, text in titles.items() if word in text.lower()
    } | ({int(word)} if word.isdecimal() else set())
    assert service.get(f"/v1/items?q={one}").json["items"][0]["item_id"] == one
    assert service.get("/v1/items?q=no+such+thing").json["items"] == []
    counts = log.counts()
    popular = service.get("/v1/items?limit=3").json["items"]
    assert counts[[item["item_id"] - 1 for item in popular]].min() >= np.sort(counts)[-3]


def test_the_card_says_what_the_model_is(service, model, saved):
    card = service.get("/v1/model").json
    assert card["model"] == artifact.read_manifest(saved)["version"]
    assert card["params"]["reg"] == 20
    assert card["metrics"] == {"HR@10": 0.25}
    assert card["training"]["rows"] == 3000
    assert card["training"]["last_time"].startswith("2024-12-")
