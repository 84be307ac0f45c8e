"""The service's answers, limits and refusals, asked of the application itself."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec import artifact
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from kinds import maker
from service import Local
from talerec.serve import static
from talerec.serve.settings import Settings, read_token
from talerec.serve.shared import SharedState
from waiting import LONG_S

TOKEN = "a-token-for-tests-alone"
DAY = 86_400


@pytest.fixture(scope="module")
def log():
    return tr.synthetic_log(3000, users=300, items=150, seed=3)


@pytest.fixture(scope="module")
def model(log):
    return tr.TALE(reg=20).fit(log)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return model.save(tmp_path_factory.mktemp("models") / "shop.tale", metrics={"HR@10": 0.25})


@pytest.fixture(scope="module")
def service(saved, tmp_path_factory):
    return Local(saved, tmp_path_factory.mktemp("run"))


def rows(items, start: int | None = None) -> list[dict[str, Any]]:
    if start is None:
        return [{"item_id": item} for item in items]
    return [{"item_id": item, "timestamp": start + DAY * n} for n, item in enumerate(items)]


def histories(log, count: int, length: int) -> list[list[Any]]:
    ids, rng = log.items.ids.to_list(), np.random.default_rng(5)
    return [
        [ids[i] for i in log.item[a : a + length]]
        for a in rng.integers(0, log.rows - length, count)
    ]


# -- answers are the library's ---------------------------------------------------------------------


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


# -- limits and refusals ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_json"),
        (b"", 400, "malformed_json"),
        (b'{"history": [{"item_id": "\xff\xfe"}]}', 400, "malformed_json"),
        (b'{"history": [{"item_id": NaN}]}', 400, "malformed_json"),
        (b'{"history": [], "recency": Infinity}', 400, "malformed_json"),
        (b"[" * 100_000, 422, "invalid"),
        (b'{"history": ' + b"[" * 100_000, 422, "invalid"),
        (b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "invalid"),
        (b'{"history": [], "k": 1e999}', 422, "invalid"),
        (b'{"history": [{"item_id": 1e308}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": 1e300}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": "1e305"}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": "yesterday"}]}', 422, "invalid"),
        (b'{"history": [{"item_id": 1, "timestamp": 5}, {"item_id": 2}]}', 422, "invalid"),
        (b'{"history": [{"item_id": true}]}', 422, "invalid"),
        (b'{"history": [{"item_id": null}]}', 422, "invalid"),
        (b'{"history": [], "k": 0}', 422, "invalid"),
        (b'{"history": [], "k": 151}', 422, "invalid"),
        (b'{"history": [{"item_id": 1}], "k": 151}', 422, "invalid"),
        (b'{"history": [], "k": 100000000000000000000000}', 422, "k_too_large"),
        (b'{"history": [], "k": 1001}', 422, "k_too_large"),
        (b'{"history": [], "recency": 0}', 422, "invalid"),
        (b'{"history": [], "as_of": 1e300}', 422, "invalid"),
        (b'{"history": [], "as_of": [1]}', 422, "invalid"),
        (b'{"history": [], "recency": -1}', 422, "invalid"),
        (b'{"history": [], "hide_seen": "yes"}', 422, "invalid"),
        (b'{"history": [], "surprise": 1}', 422, "invalid"),
        (b'{"k": 3}', 422, "invalid"),
    ],
)  # fmt: skip
def test_a_bad_question_is_refused_in_its_own_way(service, body, status, code):
    answer = service.post("/v1/recommend", body)
    assert (answer.status, answer.code) == (status, code)


def test_the_largest_numbers_that_are_allowed_are_answered(service):
    huge = b'{"history": [{"item_id": 99999999999999999999999999, "timestamp": -1e12}], "recency": 1e308}'
    assert service.post("/v1/recommend", huge).status == 200
    small = b'{"history": [{"item_id": 1}, {"item_id": 2}], "recency": 1e-308}'
    assert service.post("/v1/recommend", small).status == 200


def test_limits_are_told_apart(saved, tmp_path):
    limits = {"max_history": 3, "max_batch": 2, "max_body": 300, "max_k": 5}
    local = Local(saved, tmp_path, **limits)
    found = [
        local.post("/v1/recommend", {"history": rows(range(4))}),
        local.post("/v1/explain", {"history": rows(range(4)), "item_id": 1}),
        local.post("/v1/recommend", {"history": [], "k": 6}),
        local.post("/v1/similar", {"item_id": 1, "k": 6}),
        local.post("/v1/recommend:batch", {"requests": [{"history": []}] * 3}),
        local.post("/v1/recommend", b" " * 301),
        local.ask("POST", "/v1/recommend", parts=[b" " * 200, b" " * 200]),
        local.ask("POST", "/v1/recommend", b"{}", {"content-length": "100000000"}),
    ]
    assert [(one.status, one.code) for one in found] == [
        (422, "history_too_long"),
        (422, "history_too_long"),
        (422, "k_too_large"),
        (422, "k_too_large"),
        (422, "batch_too_long"),
        (413, "body_too_large"),
        (413, "body_too_large"),
        (413, "body_too_large"),
    ]


def test_too_many_at_a_time_are_asked_to_come_again(saved, tmp_path):
    local = Local(saved, tmp_path, concurrency=1)
    local.app._in_flight = 1
    answer = local.post("/v1/recommend", {"history": []})
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "busy", "1")
    assert local.get("/health/live").status == 200


def test_an_answer_that_takes_too_long_is_given_up(saved, tmp_path, monkeypatch):
    local = Local(saved, tmp_path, timeout=0.01)
    given_up = threading.Event()
    monkeypatch.setattr(local.app.holder.current, "recommend_all", lambda _: given_up.wait(LONG_S))
    try:
        answer = local.post(
            "/v1/recommend:batch", {"requests": [{"history": rows(range(100))}] * 100}
        )
    finally:
        given_up.set()
    assert (answer.status, answer.code) == (503, "timeout")


def test_what_is_nowhere_or_asked_the_wrong_way_is_refused(service):
    assert service.get("/nowhere").code == "not_found"
    assert service.get("/v1/recommend").code == "method_not_allowed"
    assert service.get("/v1/recommend").headers["allow"] == "POST"
    assert service.ask("DELETE", "/v1/model").status == 405
    plain = service.ask("POST", "/v1/recommend", b"{}", {"content-type": "text/plain"})
    assert (plain.status, plain.code) == (415, "not_json")
    assert service.post("/v1/similar", {"item_id": "nobody"}).code == "unknown_item"
    assert service.post("/v1/explain", {"history": [], "item_id": 10**30}).code == "unknown_item"
    assert service.get("/v1/items?limit=0").status == 422
    assert service.get("/v1/items?limit=x").status == 422
    assert service.get("/v1/items?z=1").status == 422
    assert service.get("/v1/items?q=%ff").status == 400
    assert service.get("/v1/items?q=" + "x" * 201).status == 422


def test_a_failure_inside_says_nothing_of_its_insides(saved, tmp_path, monkeypatch, caplog):
    local = Local(saved, tmp_path)
    secret = "the secret of line 42"

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError(secret)

    for part in ("_recommend", "recommend_all"):
        caplog.clear()
        monkeypatch.setattr(local.app.holder.current, part, fail)
        for answer in local.post_all("/v1/recommend", [{"history": []}] * 3):
            assert (answer.status, answer.code) == (500, "internal")
            assert secret.encode() not in answer.body
        assert secret in caplog.text


# -- who may ask -----------------------------------------------------------------------------------


def test_a_token_guards_the_api_but_not_health_and_page(saved, tmp_path):
    local = Local(saved, tmp_path, token=TOKEN)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        for method, path in (("GET", "/v1/model"), ("POST", "/v1/recommend"), ("GET", "/metrics")):
            answer = local.ask(method, path, None, headers)
            assert (answer.status, answer.code) == (401, "unauthorized")
    assert local.get("/v1/model", authorization=f"Bearer {TOKEN}").status == 200
    assert local.get("/v1/model", authorization=f"bearer {TOKEN}").status == 200
    for path in ("/", "/health/live", "/health/ready", "/openapi.json"):
        assert local.get(path).status == 200


def test_reload_is_for_those_with_a_token(service):
    answer = service.ask("POST", "/v1/reload")
    assert (answer.status, answer.code) == (403, "no_token")


def test_the_world_is_not_let_in_by_accident(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(TalerecError, match="can be reached from other machines"):
            Settings(path=tmp_path, host=host)
        Settings(path=tmp_path, host=host, open=True)
        Settings(path=tmp_path, host=host, token=TOKEN)
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        Settings(path=tmp_path, host=host)
    with pytest.raises(TalerecError, match="shorter than 16"):
        Settings(path=tmp_path, token="short")
    assert TOKEN not in repr(Settings(path=tmp_path, token=TOKEN))


def test_tokens_come_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    with pytest.raises(TalerecError, match="can be read by everybody"):
        read_token(file, {})
    file.chmod(0o600)
    assert read_token(file, {"TALEREC_TOKEN": "another"}) == TOKEN
    assert read_token(None, {"TALEREC_TOKEN": "another"}) == "another"
    assert read_token(None, {}) is None
    with pytest.raises(TalerecError, match="is empty"):
        read_token(None, {"TALEREC_TOKEN": " "})
    file.write_text("")
    with pytest.raises(TalerecError, match="is empty"):
        read_token(file, {})
    with pytest.raises(TalerecError, match="cannot be read"):
        read_token(tmp_path / "nowhere", {})


def test_pages_of_other_origins_may_ask_only_where_that_was_said(saved, service, tmp_path):
    mine, other = "https://shop.example", "https://other.example"
    assert "access-control-allow-origin" not in service.get("/v1/model", origin=mine).headers
    assert service.ask("OPTIONS", "/v1/recommend", None, {"origin": mine}).status == 405
    local = Local(saved, tmp_path, cors=(mine,))
    assert local.get("/v1/model", origin=mine).headers["access-control-allow-origin"] == mine
    assert "access-control-allow-origin" not in local.get("/v1/model", origin=other).headers
    early = local.ask("OPTIONS", "/v1/recommend", None, {"origin": mine})
    assert (early.status, early.headers["access-control-allow-methods"]) == (204, "POST")
    assert local.ask("OPTIONS", "/v1/recommend", None, {"origin": other}).status == 403


# -- the page, the document, the metrics -----------------------------------------------------------


def test_the_page_is_strict_and_knows_no_other_host(service):
    page = service.get("/")
    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert service.ask("GET", "/", None, {"if-none-match": page.headers["etag"]}).status == 304
    assert {"/", "/page.js", "/style.css"} <= set(static.FILES)
    for path, (body, _) in static.FILES.items():
        hosts = re.findall(rb"https?://[^\"' ]+", body)
        assert set(hosts) <= {b"http://www.w3.org/2000/svg"}, path
        assert b"innerHTML" not in body


def test_every_example_of_the_document_is_answered(service):
    said = service.get("/openapi.json").json
    asked = 0
    for path, methods in said["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            for example in content.get("application/json", {}).get("examples", {}).values():
                answer = service.post(path, example["value"])
                assert answer.status == 200, (path, answer)
                asked += 1
            if method == "get":
                assert service.get(path.replace("{user_id}", "1")).status == 200
    assert asked == 4


def test_the_document_names_this_services_limits(saved, tmp_path):
    local = Local(saved, tmp_path, max_history=7, token=TOKEN)
    said = local.get("/openapi.json").json
    schema = said["components"]["schemas"]["RecommendRequest"]["properties"]
    assert [form["maxItems"] for form in schema["history"]["anyOf"]] == [7, 7]
    assert schema["k"]["maximum"] == 150
    assert said["paths"]["/v1/model"]["get"]["security"] == [{"token": []}]
    assert "401" in said["paths"]["/v1/model"]["get"]["responses"]


def test_metrics_are_the_sum_of_all_workers(tmp_path):
    states = [SharedState(tmp_path, 2, worker, ("/a", "/b")) for worker in range(2)]
    states[0].record("/a", 200, 0.002)
    states[1].record("/a", 200, 0.2)
    states[1].record("/b", 503, 99.0)
    states[1].increment("fallbacks", 3)
    states[0].set_version("00000000000000ab")
    texts = [state.prometheus_text().decode() for state in states]
    for text in texts:
        assert 'talerec_requests_total{route="/a",status="200"} 2\n' in text
        assert 'talerec_requests_total{route="/b",status="503"} 1\n' in text
        assert 'talerec_request_seconds_bucket{route="/a",le="0.0025"} 1\n' in text
        assert 'talerec_request_seconds_bucket{route="/a",le="+Inf"} 2\n' in text
        assert 'talerec_request_seconds_sum{route="/a"} 0.202\n' in text
        assert "talerec_fallbacks_total 3\n" in text
        assert 'talerec_model_workers{version="00000000000000ab"} 1\n' in text
    again = SharedState(tmp_path, 2, 1, ("/a", "/b"))
    assert "talerec_fallbacks_total 3\n" in again.prometheus_text().decode()


def test_metrics_are_as_prometheus_reads_them(service):
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    service.post("/v1/recommend", {"history": []})
    text = service.get("/metrics").body.decode()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["talerec_requests"].type == "counter"
    counts = {
        sample.labels["route"]: sample.value
        for sample in families["talerec_request_seconds"].samples
        if sample.name.endswith("_count")
    }
    asked = [
        s for s in families["talerec_requests"].samples if s.labels["route"] == "/v1/recommend"
    ]
    assert counts["/v1/recommend"] == sum(sample.value for sample in asked)


# -- reloading -------------------------------------------------------------------------------------


@pytest.fixture
def changing(model, tmp_path):
    return Local(model.save(tmp_path / "m.tale"), tmp_path, token=TOKEN)


def reload(local: Local) -> Any:
    return local.ask("POST", "/v1/reload", None, {"authorization": f"Bearer {TOKEN}"})


def ask(local: Local, model: tr.Model) -> Any:
    wish = {"history": rows(model.item_ids[:3]), "k": 5}
    return local.post("/v1/recommend", wish, authorization=f"Bearer {TOKEN}").json


def test_a_new_model_takes_over_and_is_named(changing, log, tmp_path):
    before = reload(changing).json
    assert before["reloaded"] is False
    other = tr.TALE(reg=500).fit(log)
    other.save(tmp_path / "m.tale")
    after = reload(changing).json
    assert after["reloaded"] is True
    assert (
        after["model"] == artifact.read_manifest(tmp_path / "m.tale")["version"] != before["model"]
    )
    said = ask(changing, other)
    own = other.recommend_histories([other.item_ids[:3].to_list()], k=5)
    assert said["model"] == after["model"]
    assert [item["score"] for item in said["items"]] == own["score"].to_list()


def test_a_replaced_model_is_freed_at_once(changing, log, tmp_path):
    """Its memory must not wait for the garbage collector, which is told to leave models alone."""
    ask(changing, changing.app.holder.current.model)
    before = weakref.ref(changing.app.holder.current)
    tr.TALE(reg=500).fit(log).save(tmp_path / "m.tale")
    assert reload(changing).json["reloaded"] is True
    assert before() is None


def spoil(target: Path, log: Any, tmp_path: Path, part: str) -> None:
    """Put a model in place of which one byte of `part` is wrong."""
    other = tr.TALE(reg=500).fit(log).save(tmp_path / "other.tale")
    manifest = json.loads((other / "manifest.json").read_text())
    file = other / manifest["files"][part]["file"]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for one in sorted(other.iterdir()):
        if one.suffix in (".npy", ".parquet"):
            shutil.copy(one, target)
    shutil.copy(other / "manifest.json", target)


@pytest.mark.parametrize("part", ["weights", "items", "time"])
def test_a_damaged_model_is_refused_and_the_old_one_serves_on(changing, model, log, tmp_path, part):
    before = ask(changing, model)
    spoil(tmp_path / "m.tale", log, tmp_path, part)
    answer = reload(changing)
    assert (answer.status, answer.code) == (409, "artifact_refused")
    assert "hash does not match" in answer.json["error"]["message"]
    assert ask(changing, model) == before
    assert changing.get("/health/ready").status == 200


def test_a_model_that_is_gone_does_not_stop_the_one_in_use(changing, model, tmp_path):
    before = ask(changing, model)
    shutil.rmtree(tmp_path / "m.tale")
    assert reload(changing).status == 409
    assert ask(changing, model) == before
