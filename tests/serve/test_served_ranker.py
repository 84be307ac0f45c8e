"""A ranker is served as any other model: lists, reasons, filters, explanations, similar items."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("lightgbm", reason="needs the extra rank")

from logs import tiny_log
from service import Local

DAY, HOUR, START = 86_400.0, 3600.0, 1.6e9


def hour_log() -> tr.Log:
    """Every user has one item in the morning and another one in the evening, in random order."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(420):
        pair, first = rng.permutation(40)[:2], rng.integers(0, 60)
        for step in range(12):
            evening = int(rng.integers(0, 2))
            hour = 8 + 12 * evening + rng.random() / 2
            rows.append((user, int(pair[evening]), START + (first + step) * DAY + hour * HOUR))
    table = pl.DataFrame({"item_id": list(range(40)), "color": ["red", "blue"] * 20})
    return tiny_log(rows).with_items(table)


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


def test_filters_explanations_and_similar_items_work(local, model):
    history = [{"item_id": 1}, {"item_id": 2}]
    red = answer(local, "/v1/recommend", {"history": history, "k": 8, "where": "color = 'red'"})
    assert all(item["item_id"] % 2 == 0 for item in red["items"])
    assert answer(local, "/v1/explain", {"history": history, "item_id": 1})
    similar = answer(local, "/v1/similar", {"item_id": 3, "k": 3})["items"]
    frame = model.similar_items(3, k=3)
    assert [item["item_id"] for item in similar] == frame["item_id"].to_list()
