"""A request is answered by one model, even if another one replaces it in the meantime."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import talerec as tr
from talerec.artifact import read_manifest

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from service import Local

TOKEN = "a-token-for-tests-alone"
HISTORY = [{"item_id": 3}, {"item_id": 5}]
ANSWERED = [
    ("POST", "/v1/recommend", {"history": HISTORY, "k": 3}),
    ("POST", "/v1/recommend", {"history": HISTORY, "k": 3, "recency": 4}),
    ("POST", "/v1/recommend", {"history": [], "k": 3}),
    ("POST", "/v1/recommend:batch", {"requests": [{"history": HISTORY, "k": 3}] * 2}),
    ("POST", "/v1/similar", {"item_id": 3, "k": 3}),
    ("POST", "/v1/explain", {"history": HISTORY, "item_id": 3}),
    ("GET", "/v1/items?q=3", None),
    ("GET", "/v1/model", None),
    ("GET", "/health/ready", None),
]
REFUSED = [
    ("POST", "/v1/recommend", {"history": [], "k": 151}),
    ("POST", "/v1/recommend", {"history": [], "k": 1001}),
    ("POST", "/v1/recommend", {"k": 3}),
    ("POST", "/v1/recommend:batch", {"requests": [{"history": [], "k": 151}]}),
    ("POST", "/v1/similar", {"item_id": "nobody", "k": 3}),
    ("POST", "/v1/explain", {"history": HISTORY, "item_id": "nobody"}),
    ("GET", "/v1/items?limit=0", None),
    ("GET", "/nowhere", None),
]


@pytest.fixture(scope="module")
def local(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return Local(tr.TALE(reg=20).fit(log).save(folder / "m.tale"), folder)


@pytest.fixture(scope="module")
def other(log, tmp_path_factory):
    """Another model, as it is served."""
    folder = tmp_path_factory.mktemp("models")
    return Local(tr.TALE(reg=500).fit(log).save(folder / "m.tale"), folder).app.holder.current


@pytest.fixture(params=[False, True], ids=["at once", "in a thread"])
def slow(request, local, monkeypatch):
    """Answers that the event loop computes, and answers that a thread computes."""
    current = local.app.holder.current
    monkeypatch.setattr(current, "is_slow", lambda *_: request.param)


@pytest.mark.parametrize(("method", "path", "body"), [*ANSWERED, *REFUSED])
def test_a_request_reads_the_current_model_once(
    method, path, body, local, other, slow, monkeypatch
):
    """A second read of the current model would return another one."""
    first = local.app.holder.current
    same_id = {"x-request-id": "one"}
    expected = local.ask(method, path, body, same_id)
    assert expected.json["model"] == first.version != other.version
    models = itertools.chain([first], itertools.repeat(other))
    monkeypatch.setattr(
        type(local.app.holder), "current", property(lambda _: next(models)), raising=False
    )
    assert local.ask(method, path, body, same_id) == expected


def test_concurrent_requests_are_each_answered_by_the_model_they_began_with(
    local, other, monkeypatch
):
    """Half of them begin before the model is replaced, half after it."""
    body = {"history": HISTORY, "k": 3}
    first = local.app.holder.current
    models = [first, other, other, first, other, first]
    sequence = itertools.cycle(models)
    monkeypatch.setattr(
        type(local.app.holder), "current", property(lambda _: next(sequence)), raising=False
    )
    answers = [answer.json for answer in local.post_all("/v1/recommend", [body] * len(models))]
    assert [answer["model"] for answer in answers] == [model.version for model in models]
    scores = {answer["model"]: [item["score"] for item in answer["items"]] for answer in answers}
    assert scores[first.version] != scores[other.version]
    for answer in answers:
        assert [item["score"] for item in answer["items"]] == scores[answer["model"]]


def test_a_reload_names_the_model_that_it_loaded(log, other, tmp_path, monkeypatch):
    """Also if a third model becomes current before the response is written."""
    path = tr.TALE(reg=20).fit(log).save(tmp_path / "m.tale")
    local = Local(path, tmp_path, token=TOKEN, timeout=2)
    tr.TALE(reg=70).fit(log).save(path)
    holder = local.app.holder
    refresh = holder.refresh

    def refresh_twice() -> Any:
        outcome = refresh()
        holder.current = other
        return outcome

    monkeypatch.setattr(holder, "refresh", refresh_twice)
    answer = local.ask("POST", "/v1/reload", None, {"authorization": f"Bearer {TOKEN}"})
    assert (answer.status, answer.json["reloaded"]) == (200, True)
    assert answer.json["model"] == read_manifest(path)["version"] != other.version
