"""A ranker is served as any other model: lists, reasons, filters, explanations, similar items."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("lightgbm", reason="needs the extra rank")

from logs import device_frame, hour_log
from service import Local, Remote
from talerec.artifact import read_manifest
from talerec.errors import TalerecError
from talerec.features import FAMILIES
from talerec.serve import Settings
from talerec.serve.process import learner as learning
from talerec.store import Event, Store
from waiting import until

DAY = 86_400.0


@pytest.fixture(scope="module")
def model() -> tr.Ranker:
    model = tr.Ranker(parts="markov,popular", candidates=20).fit(hour_log())
    assert model._state.find_second(0, hide_seen=False) is not None
    return model


@pytest.fixture(scope="module")
def local(model, tmp_path_factory) -> Local:
    folder = tmp_path_factory.mktemp("models")
    return Local(model.save(folder / "m.tale"), folder)


def answer(local: Local, path: str, body: dict[str, Any]) -> Any:
    reply = local.ask("POST", path, body)
    assert reply.status == 200, reply
    return reply.json


def test_lists_are_those_of_the_library(local, model):
    for history in ([1, 2, 1], [7], [3, 3, 4, 9]):
        body = {"history": [{"item_id": item} for item in history], "k": 15}
        items = answer(local, "/v1/recommend", body)["items"]
        frame = model.recommend_histories([history], k=15)
        assert [item["item_id"] for item in items] == frame["item_id"].to_list()
        assert [item["score"] for item in items] == pytest.approx(frame["score"].to_list())


def test_answers_and_explanations_have_families_that_add_up(local):
    body = {"history": [{"item_id": item} for item in (1, 2, 1)], "k": 5}
    for extra in ({}, {"boost": {"color": {"red": 0.5}}}):
        for item in answer(local, "/v1/recommend", {**body, **extra})["items"]:
            families = item["families"]
            names = [each["family"] for each in families]
            assert names == [family.name for family in FAMILIES if family.name != "context"]
            total = sum(each["contribution"] for each in families) + item.get("boost", 0)
            assert total == pytest.approx(item["score"], abs=1e-6)
            assert sum(abs(each["share"]) for each in families) == pytest.approx(1)
            assert all(abs(reason["share"]) <= 1 for reason in item["because"])
    explained = answer(local, "/v1/explain", {"history": body["history"], "item_id": 1})
    total = sum(each["contribution"] for each in explained["families"])
    assert total == pytest.approx(explained["score"], abs=1e-6)
    rows = sum(row["contribution"] for row in explained["rows"])
    assert rows + explained["base"] == pytest.approx(explained["score"], abs=1e-6)


def test_filters_explanations_and_similar_items_work(local, model):
    history = [{"item_id": 1}, {"item_id": 2}]
    red = answer(local, "/v1/recommend", {"history": history, "k": 8, "where": "color = 'red'"})
    assert all(item["item_id"] % 2 == 0 for item in red["items"])
    assert answer(local, "/v1/explain", {"history": history, "item_id": 1})
    similar = answer(local, "/v1/similar", {"item_id": 3, "k": 3})["items"]
    frame = model.similar_items(3, k=3)
    assert [item["item_id"] for item in similar] == frame["item_id"].to_list()


# -- learning and online evaluation ----------------------------------------------------------------


def new_events(model: tr.Ranker, count: int, days: float) -> list[Event]:
    """Return events of known users and items, `days` after the end of the model's log."""
    first = model.fitted.training["last_time"] + int(days * DAY * 1e6)
    return [Event(str(n % 30), str(n % 40), first + n) for n in range(count)]


def test_learning_updates_the_parts_and_fits_the_trees_anew_every_nth_round(
    model, tmp_path, monkeypatch
):
    path = model.save(tmp_path / "m.tale", updatable=True)
    address = f"sqlite:///{tmp_path}/shop.db"
    reports, texts = [], []
    with Store.open(address) as store:
        for days in (0.1, 0.2, 0.3):
            store.append([new_events(model, 20, days)])
            reports.append(learning.learn(path, address, 2))
            texts.append(tr.load(path)._state.trained.texts)
        assert [report["how"] for report in reports if report] == ["update", "fit", "update"]
        assert texts[0] == model._state.trained.texts
        assert texts[1] != texts[0]
        assert texts[2] == texts[1]
        training = read_manifest(path)["training"]
        assert (training["updates"], training["updatable"]) == (1, True)
        assert training["rows"] == model.fitted.training["rows"] + 60
        store.append([new_events(model, 20, 0.4)])
        monkeypatch.setitem(sys.modules, "lightgbm", None)  # due for a fit, which is impossible
        report = learning.learn(path, address, 2)
        assert report is not None
        assert report["how"] == "update"
    assert tr.Ranker.refit_after == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"refit_every": 5}, "`refit_every` is 5; give `learn` too"),
        (
            {"refit_every": -1, "learn": 5.0, "store": "sqlite:///x.db"},
            "`refit_every` is -1; it must be at least 0",
        ),
    ],
)
def test_an_invalid_number_of_rounds_is_refused(settings, message):
    with pytest.raises(TalerecError) as error:
        Settings(path=Path("shop.tale"), **settings)
    assert str(error.value) == message


@pytest.mark.slow
def test_a_ranker_is_compared_with_a_candidate_on_arriving_events(model, tmp_path):
    path = model.save(tmp_path / "ranker.tale")
    other = tr.MODELS["tempo"](learn="off").fit(hour_log()).save(tmp_path / "tempo.tale")
    options = ["--store", f"sqlite:///{tmp_path}/shop.db", "--measure", "1", "--share", "0.5"]
    service = Remote(path, *options, "--candidate", str(other))
    try:
        until(lambda: service.ask("GET", "/v1/stats").json["measured"], "there is no summary")
        events = [{"user_id": n % 30, "item_id": n % 40} for n in range(60)]
        assert service.ask("POST", "/v1/events", {"events": events}).status == 202
        versions = set()
        for user in range(10):
            reply = service.ask("POST", "/v1/recommend", {"user_id": user, "k": 3})
            assert reply.status == 200
            versions.add(reply.json["model"])
        assert versions == {str(read_manifest(each)["version"]) for each in (path, other)}

        def measured() -> list[int]:
            stats = service.ask("GET", "/v1/stats").json["measured"]
            return [each["events"] for each in stats["hour"]["models"]]

        until(lambda: measured() == [60, 60], "not all events are measured for both models")
    finally:
        assert service.stop() == 0


# -- context ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def context_model() -> tr.Ranker:
    """A ranker of rows with a device and users with an age."""
    ages = pl.DataFrame({"user_id": range(250), "age": [20, 60] * 125})
    log = tr.Log.from_frame(device_frame(), context=["device"]).with_users(ages)
    return tr.Ranker(parts="markov,popular", candidates=40).fit(log)


def test_context_is_said_in_requests_and_user_columns_are_known(context_model, tmp_path):
    """The service answers as the library does, with a device said and with users' ages."""
    model = context_model
    local = Local(model.save(tmp_path / "m.tale"), tmp_path)
    for context in (None, {"device": "phone"}, {"device": "desk", "age": 60}, {"age": None}):
        frame = model.recommend([7], 8, context=context)
        said = {} if context is None else {"context": context}
        items = answer(local, "/v1/recommend", {"user_id": 7, "k": 8, **said})["items"]
        assert [item["item_id"] for item in items] == frame["item_id"].to_list()
        assert [item["score"] for item in items] == pytest.approx(frame["score"].to_list())
    body = {"user_id": 7, "item_id": items[0]["item_id"], "context": {"device": "phone"}}
    by_hand = model.explain_user(7, items[0]["item_id"], context=body["context"])
    explained = answer(local, "/v1/explain", body)
    assert explained["score"] == pytest.approx(by_hand["contribution"].sum())
    refused = [
        {"devise": "phone"},
        {"age": "old"},
        {"device": ["phone"]},
        "phone",
        {"device": 1e999},
    ]
    for context in refused:
        reply = local.ask("POST", "/v1/recommend", {"user_id": 7, "context": context})
        assert reply.status in (400, 422), reply
        assert len(str(reply.json["error"]["message"])) < 300


def test_events_of_a_store_carry_no_context(context_model, tmp_path):
    model = context_model
    path = model.save(tmp_path / "m.tale", updatable=True)
    address = f"sqlite:///{tmp_path}/shop.db"
    with Store.open(address) as store:
        store.append([new_events(model, 20, 0.1)])
        assert learning.learn(path, address, 0)["how"] == "update"
    device = tr.load(path).fitted.log.context[0]
    assert int((device.codes < 0).sum()) == 20
    assert len(device.codes) == model.fitted.log.rows + 20
