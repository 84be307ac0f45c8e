"""Online evaluation against a plain loop over the same events."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.serve.online import evaluation as measuring
from talerec.serve.online import is_in_share
from talerec.serve.online.evaluation import LEASE_S, OnlineEvaluator
from talerec.serve.online.metrics import MEASURED
from talerec.store import Event, MeasurementStore, Store, StoredRow

NOW = 1_700_000_000.0
MICRO = 1_000_000


class Counted:
    """A model that lists the user's last items, newest first, and records its queries."""

    def __init__(self, version: str, shown: int = 10) -> None:
        self.version, self.shown = version, shown
        self.queries: list[tuple[str, list[str | None], int]] = []

    def rank_event(self, event: StoredRow, history: list[StoredRow]) -> int:
        items = [row.item for row in history]
        self.queries.append((event.user, items, event.seq))
        order = list(dict.fromkeys(reversed(items)))[: self.shown]
        return order.index(event.item) + 1 if event.item in order else 0


@pytest.fixture
def address(tmp_path: Path) -> str:
    """An empty store: online evaluation follows a store that a service has created."""
    place = f"sqlite:///{tmp_path}/shop.db"
    Store.open(place)
    return place


def shop(events: int, seed: int = 1, users: int = 30) -> list[Event]:
    rng = np.random.default_rng(seed)
    return [
        Event(f"u{rng.integers(users)}", f"i{rng.integers(20)}", int((NOW - 60 + n / 100) * MICRO))
        for n in range(events)
    ]


def run(evaluator: OnlineEvaluator, start: float = NOW) -> float:
    """Evaluate all events, and return the time at the end."""
    while evaluator.step(start):
        start += 1
    evaluator.step(start + 5)
    return start + 5


def published(address: str) -> dict[str, Any]:
    with MeasurementStore.open(address) as store:
        return json.loads(store.read_summary() or "{}")


def by_hand(events: list[Event], share: float, shown: int) -> list[int]:
    """Return the rank of each sampled event's item among the user's earlier items."""
    had: dict[str, list[str]] = defaultdict(list)
    places = []
    for event in events:
        if is_in_share(event.user, share, MEASURED):
            order = list(dict.fromkeys(reversed(had[event.user])))[:shown]
            places.append(order.index(event.item) + 1 if event.item in order else 0)
        had[event.user].append(event.item)
    return places


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_every_sampled_event_is_ranked_before_it_enters_the_history(
    address: str, share: float
) -> None:
    model, events = Counted("v1"), shop(500)
    evaluator = OnlineEvaluator(
        address, share, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW - 100)  # from now on
    with Store.open(address) as store:
        for begin in range(0, 500, 50):
            store.append([events[begin : begin + 50]])
    run(evaluator)
    ranks = by_hand(events, share, 10)
    summary = published(address)
    assert (summary["share"], summary["behind"], summary["left_out"]) == (share, 0, 0)
    if share == 0.0:
        assert summary["hour"] == {"models": [], "not_measured": {}}
        return
    model_summary = summary["hour"]["models"][0]
    assert (model_summary["version"], model_summary["events"]) == ("v1", len(ranks))
    assert model_summary["HR@10"] == pytest.approx(np.mean([place > 0 for place in ranks]))
    assert model_summary["MRR@10"] == pytest.approx(np.mean([1 / p if p else 0 for p in ranks]))


def test_a_new_model_is_counted_separately(address: str) -> None:
    current = [Counted("v1")]
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": current[0]}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    events = shop(200)
    with Store.open(address) as store:
        store.append([events[:80]])
        run(evaluator)
        current[0] = Counted("v2", shown=1)
        store.append([events[80:]])
        run(evaluator, NOW + 20)
    by_version = {row["version"]: row for row in published(address)["day"]["models"]}
    assert by_version["v1"]["events"] == 80
    assert by_version["v2"]["events"] == 120
    assert by_version["v2"]["HR@10"] == pytest.approx(
        np.mean([p > 0 for p in by_hand(events, 1.0, 1)][80:])
    )


@pytest.mark.parametrize(("current", "candidate", "sign"), [(1, 10, 1), (10, 1, -1)])
def test_a_candidate_is_measured_on_the_same_events(
    address: str, current: int, candidate: int, sign: int
) -> None:
    models = {"current": Counted("a", current), "candidate": Counted("b", candidate)}
    evaluator = OnlineEvaluator(address, 1.0, lambda: models, max_age=3600, max_history=100)
    evaluator.step(NOW)
    with Store.open(address) as store:
        store.append([shop(600)])
    run(evaluator)
    assert models["current"].queries == models["candidate"].queries
    summary = published(address)["hour"]["difference"]
    assert summary["events"] == 600
    for metric in ("HR@10", "MRR@10"):
        assert all(sign * end > 0 for end in summary[metric]["interval"])


def test_old_and_future_events_are_not_measured(address: str) -> None:
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    moments = [NOW - 86_400, NOW - 3700, NOW - 3000, NOW, NOW + 30, NOW + 7200]
    with Store.open(address) as store:
        store.append([[Event("ann", "tea", int(moment * MICRO)) for moment in moments]])
    run(evaluator)
    assert [seq for _, _, seq in model.queries] == [3, 4, 5]


def test_a_late_event_is_ranked_with_the_events_before_it(address: str) -> None:
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    times = {"tea": -50, "cup": -10, "pot": -30}
    with Store.open(address) as store:
        for item, second in times.items():
            store.append([[Event("ann", item, int((NOW + second) * MICRO))]])
    run(evaluator)
    assert [items for _, items, _ in model.queries] == [[], ["tea"], ["tea"]]


def test_events_after_a_deletion_are_measured_although_they_are_read_together(address: str) -> None:
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    times = iter(int((NOW - 60 + n) * MICRO) for n in range(9))
    with Store.open(address) as store:
        store.append([[Event(user, "tea", next(times)) for user in ("ann", "bob", "ann")]])
        rows = store.read_after(0)
        store.delete_user("ann", next(times))
        store.append([[Event("ann", "cup", next(times))]])
        rows += store.read_after(3)
    progress = evaluator._progress
    assert progress is not None
    evaluator._evaluate(rows, progress, NOW)  # the rows before the deletion were read in time
    with MeasurementStore.open(address) as stored:
        assert [row.seq for row in stored.read_since(0)] == [2, 5]
    assert evaluator._recent["seq"].to_list() == [2, 5]


def test_a_lagging_evaluator_skips_events_and_counts_them(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(measuring, "MAX_BEHIND", 100)
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    with Store.open(address) as store:
        store.append([shop(1000)])
    run(evaluator)
    assert published(address)["left_out"] == 950
    assert len(model.queries) == 50


def test_slow_models_are_measured_a_second_at_a_time(address: str, monkeypatch: Any) -> None:
    """A step that takes longer than a lease would be repeated forever and never saved."""
    monkeypatch.setattr(measuring, "_STEP_S", -1.0)
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    with Store.open(address) as store:
        store.append([shop(7)])
    assert [evaluator.step(NOW) for _ in range(9)] == [1] * 7 + [0] * 2
    assert [seq for _, _, seq in model.queries] == list(range(1, 8))


def test_two_evaluators_do_not_count_twice_and_one_takes_over(address: str) -> None:
    events, models = shop(300), [Counted("v1"), Counted("v1")]
    first, second = (
        OnlineEvaluator(address, 1.0, lambda m=m: {"current": m}, max_age=3600, max_history=100)
        for m in models
    )
    with Store.open(address) as store:
        first.step(NOW)
        second.step(NOW)
        store.append([events[:100]])
        first.step(NOW + 1)
        second.step(NOW + 1)
        store.append([events[100:]])
        second.step(NOW + 1 + LEASE_S + 1)  # the first was killed, or sleeps
        first.step(NOW + 2)  # and wakes up, believing that it holds the lease
        run(second, NOW + 30)
    seqs = [seq for model in models for _, _, seq in model.queries]
    summary = published(address)["hour"]["models"][0]
    assert summary["events"] == 300
    assert set(seqs) == set(range(1, 301))
    with MeasurementStore.open(address) as store:
        assert [row.seq for row in store.read_since(0)] == list(range(1, 301))


def test_a_restart_loses_nothing(address: str) -> None:
    events, model = shop(200), Counted("v1")
    options = {"max_age": 3600, "max_history": 100}
    first = OnlineEvaluator(address, 1.0, lambda: {"current": model}, **options)
    first.step(NOW)
    with Store.open(address) as store:
        store.append([events[:120]])
        run(first)
        store.append([events[120:]])
    second = OnlineEvaluator(address, 1.0, lambda: {"current": model}, **options)
    assert second.step(NOW + 9) == 0  # the first may still run
    namesake = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, **options, holder=first._holder
    )  # the first was killed and is replaced
    run(namesake, NOW + 10)
    summary = published(address)["day"]["models"][0]
    assert summary["events"] == 200
    places = by_hand(events, 1.0, 10)
    assert summary["HR@10"] == pytest.approx(np.mean([place > 0 for place in places]))


def test_measurements_of_a_deleted_user_are_removed(address: str) -> None:
    model = Counted("v1")
    evaluator = OnlineEvaluator(
        address, 1.0, lambda: {"current": model}, max_age=3600, max_history=100
    )
    evaluator.step(NOW)
    with Store.open(address) as store:
        store.append([[Event(user, "tea", int(NOW * MICRO)) for user in ("ann", "bob", "ann")]])
        run(evaluator)
        store.delete_user("ann", int(NOW * MICRO))
        run(evaluator, NOW + 20)
    assert published(address)["day"]["models"][0]["events"] == 1
