"""Events such as `hide` keep an item from a user's lists, and nothing learns from them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import talerec as tr
from talerec.errors import TalerecError

pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from command import talerec
from service import service_with_store
from talerec.serve import Settings
from talerec.serve.process.learner import learn
from talerec.store import NegativeFeedback, Store


def list_items(service: Any, user: Any, **options: Any) -> list[Any]:
    answer = service.post("/v1/recommend", {"user_id": user, "k": 10, **options})
    return [item["item_id"] for item in answer.json["items"]]


def send(service: Any, user: Any, item: Any, event: str, **fields: Any) -> None:
    row = {"user_id": user, "item_id": item, "event": event, **fields}
    assert service.post("/v1/events", {"events": [row]}).status == 202


@pytest.mark.parametrize("event", ["hide", "dislike", "return"])
def test_a_hidden_item_leaves_the_next_list_and_nothing_else_changes(
    service: Any, event: str
) -> None:
    before, others = list_items(service, 1, k=11), list_items(service, 2)
    send(service, 1, before[0], event)
    assert list_items(service, 1) == before[1:]
    assert list_items(service, 2) == others
    batch = {"requests": [{"user_id": user, "k": 10} for user in (1, 2)]}
    answers = service.post("/v1/recommend:batch", batch).json["answers"]
    assert [each["item_id"] for each in answers[0]["items"]] == before[1:]
    assert [each["item_id"] for each in answers[1]["items"]] == others


def test_an_item_comes_back_after_its_time(service: Any) -> None:
    before, day = list_items(service, 1), 86_400
    send(service, 1, before[0], "hide", timestamp=time.time() - 91 * day)
    assert list_items(service, 1) == before
    send(service, 1, before[0], "hide", timestamp=time.time() - 89 * day)
    assert before[0] not in list_items(service, 1)


def test_feedback_of_an_unknown_user_filters_trending_items(service: Any) -> None:
    before = list_items(service, 999, k=11)
    send(service, 999, before[0], "hide")
    assert list_items(service, 999) == before[1:]  # it is neither history nor popularity


def test_an_item_stays_hidden_under_many_later_events(saved: Path, tmp_path: Path) -> None:
    """A worker remembers 5 events of a user here; feedback is not displaced by other events."""
    address, tmp = f"sqlite:///{tmp_path}/shop.db", tmp_path
    with service_with_store(saved, tmp / "a", address, max_history=5, ids="integer") as service:
        before = list_items(service, 999, k=11)
        send(service, 999, before[0], "hide")
        assert list_items(service, 999) == before[1:]  # the user's events are cached now
        for n in range(12):
            send(service, 999, n, "view")
        assert before[0] not in list_items(service, 999, k=60)
        history = service.get("/v1/users/999").json["history"]
        assert [row["event"] for row in history] == ["hide", *5 * ["view"]]
        with service_with_store(saved, tmp / "b", address, max_history=5, ids="integer") as other:
            assert other.get("/v1/users/999").json["history"] == history
            assert before[0] not in list_items(other, 999, k=60)


def test_an_export_for_a_fit_leaves_feedback_out(service: Any, tmp_path: Path) -> None:
    for event in ("view", "hide", "return", "buy"):
        send(service, 1, 7, event)
    send(service, 1, 7, "view")
    path = tmp_path / "events.ndjson"
    export = ("events", "export", "--store", f"sqlite:///{tmp_path}/shop.db", "-o", path)
    everything = talerec(*export, "--json")
    assert (everything.json["rows"], everything.json["negative"]) == (5, 2)
    warned = talerec(*export).err
    assert "warning: 2 events are negative feedback" in warned
    assert "--without hide,dislike,return" in warned
    assert not talerec(*export, "--without", "none").err
    assert talerec(*export, "--without", "hide,return", "--json").json["rows"] == 3
    assert "hide" not in path.read_text()
    assert talerec(*export, "--without", "hide", "--user", "1").code != 0


def test_feedback_is_shown_and_gone_with_its_user(service: Any) -> None:
    send(service, 999, 5, "hide", event_id="h1")
    (row,) = service.get("/v1/users/999").json["history"]
    assert (row["item_id"], row["event"], row["event_id"]) == (5, "hide", "h1")
    assert service.ask("DELETE", "/v1/users/999").status == 200
    assert service.get("/v1/users/999").status == 404
    assert 5 in list_items(service, 999, k=60)


def test_nothing_is_learned_from_feedback(saved: Path, service: Any, tmp_path: Path) -> None:
    path = tmp_path / "copy.tale"
    shutil.copytree(saved, path)
    send(service, 1, 7, "hide")
    send(service, 1, 8, "view")
    address = f"sqlite:///{tmp_path}/shop.db"
    report = learn(path, address, feedback=NegativeFeedback())
    assert report is not None
    assert report["rows"] == 1
    log = tr.load(path).fitted.log
    assert log.rows == tr.load(saved).fitted.log.rows + 1
    with Store(address) as store:
        assert [row.event for row in store.read_after(0)] == ["hide", "view"]


@pytest.mark.parametrize("wrong", [{"negative_events": ("",)}, {"hide_for": 0.0}])
def test_wrong_settings_of_feedback_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TalerecError, match=next(iter(wrong))):
        Settings(path=Path("shop.tale"), **wrong)
