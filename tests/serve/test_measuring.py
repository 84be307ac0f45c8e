"""Measuring against a walk through the same events by hand: every model is asked with what was known before each event."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")

from talerec.serve.online import evaluation as measuring
from talerec.serve.online.evaluation import LEASE_S, Measurer
from talerec.serve.online.sampling import MEASURED, is_in_share
from talerec.store.events import Event, Kept
from talerec.store.measurements import Measures
from talerec.store.store import Store

NOW = 1_700_000_000.0
MICRO = 1_000_000


class Counted:
    """A model that shows what the user had last, newest first; it notes what it was asked with."""

    def __init__(self, version: str, shown: int = 10) -> None:
        self.version, self.shown = version, shown
        self.asked: list[tuple[str, list[str | None], int]] = []

    def place(self, user: str, before: list[Kept], event: Kept) -> int:
        items = [row.item for row in before]
        self.asked.append((user, items, event.seq))
        order = list(dict.fromkeys(reversed(items)))[: self.shown]
        return order.index(event.item) + 1 if event.item in order else 0


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


def shop(events: int, seed: int = 1, users: int = 30) -> list[Event]:
    rng = np.random.default_rng(seed)
    return [
        Event(f"u{rng.integers(users)}", f"i{rng.integers(20)}", int((NOW - 60 + n / 100) * MICRO))
        for n in range(events)
    ]


def run(measurer: Measurer, start: float = NOW) -> float:
    """Until nothing is left; the time then."""
    while measurer.step(start):
        start += 1
    measurer.step(start + 5)
    return start + 5


def published(address: str) -> dict[str, Any]:
    with Measures.open(address) as store:
        return json.loads(store.summary() or "{}")


def by_hand(events: list[Event], share: float, shown: int) -> list[int]:
    """The place of every sampled event's item among what its user had before."""
    had: dict[str, list[str]] = defaultdict(list)
    places = []
    for event in events:
        if is_in_share(event.user, share, MEASURED):
            order = list(dict.fromkeys(reversed(had[event.user])))[:shown]
            places.append(order.index(event.item) + 1 if event.item in order else 0)
        had[event.user].append(event.item)
    return places


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_every_sampled_event_is_measured_before_it_is_known(address: str, share: float) -> None:
    model, events = Counted("v1"), shop(500)
    measurer = Measurer(address, share, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW - 100)  # from now on
    with Store.open(address) as store:
        for begin in range(0, 500, 50):
            store.append([events[begin : begin + 50]])
    run(measurer)
    wanted = by_hand(events, share, 10)
    found = published(address)
    assert (found["share"], found["behind"], found["left_out"]) == (share, 0, 0)
    if share == 0.0:
        assert found["hour"] == {"models": []}
        return
    told = found["hour"]["models"][0]
    assert (told["version"], told["events"]) == ("v1", len(wanted))
    assert told["HR@10"] == pytest.approx(np.mean([place > 0 for place in wanted]))
    assert told["MRR@10"] == pytest.approx(np.mean([1 / p if p else 0 for p in wanted]))


def test_a_model_that_takes_the_place_of_another_is_counted_apart(address: str) -> None:
    current = [Counted("v1")]
    measurer = Measurer(address, 1.0, lambda: {"current": current[0]}, max_age=3600, history=100)
    measurer.step(NOW)
    events = shop(200)
    with Store.open(address) as store:
        store.append([events[:80]])
        run(measurer)
        current[0] = Counted("v2", shown=1)
        store.append([events[80:]])
        run(measurer, NOW + 20)
    found = {one["version"]: one for one in published(address)["day"]["models"]}
    assert found["v1"]["events"] == 80
    assert found["v2"]["events"] == 120
    assert found["v2"]["HR@10"] == pytest.approx(
        np.mean([p > 0 for p in by_hand(events, 1.0, 1)][80:])
    )


@pytest.mark.parametrize(("current", "candidate", "sign"), [(1, 10, 1), (10, 1, -1)])
def test_a_candidate_is_measured_on_the_same_events(
    address: str, current: int, candidate: int, sign: int
) -> None:
    models = {"current": Counted("a", current), "candidate": Counted("b", candidate)}
    measurer = Measurer(address, 1.0, lambda: models, max_age=3600, history=100)
    measurer.step(NOW)
    with Store.open(address) as store:
        store.append([shop(600)])
    run(measurer)
    assert models["current"].asked == models["candidate"].asked
    told = published(address)["hour"]["difference"]
    assert told["events"] == 600
    for metric in ("HR@10", "MRR@10"):
        assert all(sign * end > 0 for end in told[metric]["interval"])


def test_old_events_and_those_of_the_future_are_not_live(address: str) -> None:
    model = Counted("v1")
    measurer = Measurer(address, 1.0, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW)
    moments = [NOW - 86_400, NOW - 3700, NOW - 3000, NOW, NOW + 30, NOW + 7200]
    with Store.open(address) as store:
        store.append([[Event("ann", "tea", int(moment * MICRO)) for moment in moments]])
    run(measurer)
    assert [seq for _, _, seq in model.asked] == [3, 4, 5]


def test_an_event_that_comes_late_is_asked_with_what_was_before_it(address: str) -> None:
    model = Counted("v1")
    measurer = Measurer(address, 1.0, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW)
    times = {"tea": -50, "cup": -10, "pot": -30}
    with Store.open(address) as store:
        for item, second in times.items():
            store.append([[Event("ann", item, int((NOW + second) * MICRO))]])
    run(measurer)
    assert [items for _, items, _ in model.asked] == [[], ["tea"], ["tea"]]


def test_who_lags_leaves_events_out_and_says_how_many(address: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(measuring, "MAX_BEHIND", 100)
    model = Counted("v1")
    measurer = Measurer(address, 1.0, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW)
    with Store.open(address) as store:
        store.append([shop(1000)])
    run(measurer)
    assert published(address)["left_out"] == 950
    assert len(model.asked) == 50


def test_slow_models_are_measured_a_second_at_a_time(address: str, monkeypatch: Any) -> None:
    """A step that took longer than a lease would be done again and again, and never kept."""
    monkeypatch.setattr(measuring, "_STEP_S", -1.0)
    model = Counted("v1")
    measurer = Measurer(address, 1.0, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW)
    with Store.open(address) as store:
        store.append([shop(7)])
    assert [measurer.step(NOW) for _ in range(9)] == [1] * 7 + [0] * 2
    assert [seq for _, _, seq in model.asked] == list(range(1, 8))


def test_two_machines_do_not_count_twice_and_one_takes_over(address: str) -> None:
    events, models = shop(300), [Counted("v1"), Counted("v1")]
    one, two = (
        Measurer(address, 1.0, lambda m=m: {"current": m}, max_age=3600, history=100)
        for m in models
    )
    with Store.open(address) as store:
        one.step(NOW)
        two.step(NOW)
        store.append([events[:100]])
        one.step(NOW + 1)
        two.step(NOW + 1)
        store.append([events[100:]])
        two.step(NOW + 1 + LEASE_S + 1)  # the other was killed, or sleeps
        one.step(NOW + 2)  # and wakes up, believing that it is its turn
        run(two, NOW + 30)
    asked = [seq for model in models for _, _, seq in model.asked]
    told = published(address)["hour"]["models"][0]
    assert told["events"] == 300
    assert set(asked) == set(range(1, 301))
    with Measures.open(address) as store:
        assert [row.seq for row in store.measured_since(0)] == list(range(1, 301))


def test_a_restart_forgets_nothing(address: str) -> None:
    events, model = shop(200), Counted("v1")
    options = {"max_age": 3600, "history": 100}
    first = Measurer(address, 1.0, lambda: {"current": model}, **options)
    first.step(NOW)
    with Store.open(address) as store:
        store.append([events[:120]])
        run(first)
        store.append([events[120:]])
    second = Measurer(address, 1.0, lambda: {"current": model}, **options)
    assert second.step(NOW + 9) == 0  # the first might live
    namesake = Measurer(
        address, 1.0, lambda: {"current": model}, **options, holder=first._holder
    )  # it was killed, and this has its place
    run(namesake, NOW + 10)
    told = published(address)["day"]["models"][0]
    assert told["events"] == 200
    places = by_hand(events, 1.0, 10)
    assert told["HR@10"] == pytest.approx(np.mean([place > 0 for place in places]))


def test_figures_of_a_deleted_user_go(address: str) -> None:
    model = Counted("v1")
    measurer = Measurer(address, 1.0, lambda: {"current": model}, max_age=3600, history=100)
    measurer.step(NOW)
    with Store.open(address) as store:
        store.append([[Event(user, "tea", int(NOW * MICRO)) for user in ("ann", "bob", "ann")]])
        run(measurer)
        store.forget("ann", int(NOW * MICRO))
        run(measurer, NOW + 20)
    assert published(address)["day"]["models"][0]["events"] == 1
