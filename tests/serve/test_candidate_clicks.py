"""The comparison of a candidate: all users of the store, in whatever steps they are read."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra serve")

from service import Local
from talerec.evaluation import OutcomeSums, difference_sequence
from talerec.serve import Settings
from talerec.serve.online import CandidateComparison, ImpressionCounts, comparison, impressions
from talerec.store import Event, IdSigner, Impression, ImpressionStore, now_us
from talerec.store import impressions as store_module
from waiting import until

WINDOW = 60_000_000  # microseconds
START = 1_700_000_000_000_000
END = START + 20 * WINDOW  # of the answers
NEGATIVE = frozenset({"hide"})


def make_shop(seed: int, key: bytes) -> tuple[list[Impression], list[Event]]:
    """Return answers and events: users of both models, old candidates, named lists, strangers."""
    chance, signer, answers = random.Random(seed), IdSigner(key), []
    for time in sorted(chance.sample(range(START, END), 900)):
        n = min(chance.randrange(300), chance.randrange(300))
        user = None if n % 11 == 0 else f"u{n}"
        role, model = ("candidate", "next") if n % 3 == 0 else ("current", "shop")
        if n % 17 == 0:  # moves between the models
            role, model = chance.choice([("candidate", "next"), ("current", "shop")])
        if role == "candidate" and time < START + 3 * WINDOW:
            model = "earlier"
        name = "new" if chance.random() < 0.1 else None
        items, explored = json.dumps(chance.sample("abcdefg", 3)), chance.choice([None, "[2]"])
        answers.append(Impression(
            signer.make_id(time), user, time, model, role, name, None, items, None, explored
        ))  # fmt: skip
    events = []
    for answer in chance.choices(answers, k=1500):
        time = answer.time + chance.randrange(2 * WINDOW)
        shown_id = answer.id if chance.random() < 0.3 else None
        name = "hide" if chance.random() < 0.1 else None
        user = answer.user or "someone"
        events.append(Event(user, chance.choice("abcdefg"), time, name, None, True, shown_id))
    return answers, events


def is_click(answer: Impression, item: str, answers: list[Impression], event: Event) -> bool:
    """Is this event a click on this item of this answer? `answers` are those of its user."""
    if event.item != item or event.event in NEGATIVE or event.user != answer.user:
        return False
    if not 0 <= event.time - answer.time <= WINDOW:
        return False
    if event.recommendation_id is not None:
        return event.recommendation_id == answer.id
    later = [a for a in answers if answer.time < a.time <= event.time]
    return not any(item in json.loads(a.items) for a in later)


def compare_slowly(answers: list[Impression], events: list[Event], end: int) -> dict[str, Any]:
    """Return users, mean outcomes and the interval, from plain loops over everything."""
    personal = {a for a in answers if a.list is None and a.user and a.model != "earlier"}
    start = min(a.time for a in personal if a.model == "next")
    outcomes: dict[str, list[float]] = {"current": [], "candidate": []}
    for user in sorted({str(a.user) for a in personal}):
        every = [a for a in answers if a.user == user]
        mine = [a for a in every if a in personal and a.time >= start]
        first = min((a.time for a in mine), default=end)
        mine = [a for a in mine if a.time < first + WINDOW]
        if first >= end or len({a.role for a in mine}) != 1:
            continue
        clicks = [
            any(is_click(a, item, every, event) for event in events if event.user == user)
            for a in mine
            for rank, item in enumerate(json.loads(a.items), 1)
            if rank not in json.loads(a.explored or "[]")
        ]
        outcomes[mine[0].role].append(sum(clicks) / len(clicks))
    sums = {
        role: OutcomeSums(len(rates), sum(rates), sum(rate**2 for rate in rates))
        for role, rates in outcomes.items()
    }
    return {
        "users": {role: total.users for role, total in sums.items()},
        "ctr": {role: total.mean for role, total in sums.items()},
        "interval": difference_sequence(sums["current"], sums["candidate"]),
    }


@pytest.mark.parametrize(("users", "items"), [(1, 10**6), (40, 10**6), (10**6, 30), (10**6, 10**6)])
@pytest.mark.parametrize("seed", range(3))
def test_the_comparison_is_that_of_a_slow_twin(seed, users, items, tmp_path, monkeypatch) -> None:
    """Whenever it is asked for and however few users and items are read at a time."""
    monkeypatch.setattr(comparison, "_CHUNK_USERS", users)
    monkeypatch.setattr(comparison, "_MAX_S", 600.0)  # whatever else the machine does
    monkeypatch.setattr(comparison, "_CHUNK_ITEMS", items)
    monkeypatch.setattr(store_module, "_PAGE_ROWS", 50)
    with ImpressionStore.open(f"sqlite:///{tmp_path}/shop.db") as store:
        answers, events = make_shop(seed, store.read_secret())
        store.write_impressions(answers)
        store.append([events])
        chance, compared = random.Random(seed), CandidateComparison(WINDOW, NEGATIVE)
        looks = sorted(chance.sample(range(START, END), 6))
        for now in [*looks, END + 3 * WINDOW]:
            figures = compared.update(store, "next", now)
            end = round(1e6 * figures["until"])
            assert now - 2 * WINDOW - WINDOW // 5 < end <= max(now - 2 * WINDOW, end)
            expected = compare_slowly(answers, events, end)
            assert figures["users"] == expected["users"]
            assert figures["ctr"] == pytest.approx(expected["ctr"])
    assert min(figures["users"].values()) > 50
    assert figures["interval"] == pytest.approx(list(expected["interval"]))


def test_all_answers_are_compared_though_the_latest_have_rates(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(impressions, "_MAX_RESPONSES", 20)
    settings = Settings(
        path=tmp_path, store=f"sqlite:///{tmp_path}/shop.db", impressions=1.0, attribution=60.0
    )
    with ImpressionStore.open(settings.store or "") as store:
        shift = now_us() - END - 3 * WINDOW
        signer = IdSigner(store.read_secret())
        answers, _ = make_shop(1, b"key")
        moved = [
            a._replace(time=a.time + shift, id=signer.make_id(a.time + shift)) for a in answers
        ]
        store.write_impressions(moved)
    figures = ImpressionCounts(settings, tmp_path).read()
    assert figures is not None
    assert figures["answers"] == 20
    assert figures["comparison"]["users"] == compare_slowly(moved, [], now_us())["users"]


def test_workers_show_the_same_figures_and_the_comparison_does_not_go_back(
    tmp_path, monkeypatch
) -> None:
    """One worker counts, all show its figures; a worker that has read less shows no less."""
    settings = Settings(
        path=tmp_path, store=f"sqlite:///{tmp_path}/shop.db", impressions=1.0, attribution=60.0
    )
    with ImpressionStore.open(settings.store or "") as store:
        shift = now_us() - END - 3 * WINDOW
        signer = IdSigner(store.read_secret())
        answers = [
            a._replace(time=a.time + shift, id=signer.make_id(a.time + shift))
            for a in make_shop(1, b"key")[0]
        ]
        store.write_impressions(answers)
    first, second = (ImpressionCounts(settings, tmp_path) for _ in range(2))
    figures = first.read()
    assert figures["since"] == min(a.time for a in answers) / 1e6
    assert second.read() == figures  # also after JSON
    assert second._comparison._until == 0  # it has counted nothing
    users = figures["comparison"]["users"]
    assert min(users.values()) > 50
    monkeypatch.setattr(comparison, "_MAX_S", 0.0)  # the other worker reads no user in time
    monkeypatch.setattr(impressions, "_AGE_FACTOR", 0.0)
    monkeypatch.setattr(impressions, "_MIN_AGE_S", -1.0)  # every call counts
    second._valid_until = 0.0
    (tmp_path / "impressions.json").write_text(
        json.dumps({"valid_until": 0.0, "figures": figures}), encoding="utf-8"
    )
    again = second.read()
    assert second._comparison._until > 0
    assert again["counted_at"] > figures["counted_at"]
    assert again["comparison"]["users"] == users


@pytest.mark.parametrize("content", ["", "[1]", '{"valid_until": 9e99}', '{"figures": {}}'])
def test_a_damaged_file_of_figures_is_replaced(content, tmp_path) -> None:
    settings = Settings(path=tmp_path, store=f"sqlite:///{tmp_path}/shop.db", impressions=1.0)
    ImpressionStore.open(settings.store or "").close()
    (tmp_path / "impressions.json").write_text(content, encoding="utf-8")
    assert ImpressionCounts(settings, tmp_path).read()["answers"] == 0
    assert json.loads((tmp_path / "impressions.json").read_text())["figures"]["answers"] == 0


def test_a_new_candidate_begins_anew(tmp_path) -> None:
    with ImpressionStore.open(f"sqlite:///{tmp_path}/shop.db") as store:
        answers, _ = make_shop(2, store.read_secret())
        store.write_impressions(answers)
        compared = CandidateComparison(WINDOW, NEGATIVE)
        assert compared.update(store, "next", END + 3 * WINDOW)["users"]["candidate"] > 50
        earlier = compared.update(store, "earlier", END + 3 * WINDOW)
        assert earlier["candidate"] == "earlier"
        assert earlier["users"]["candidate"] < 50
        assert earlier["interval"] is None


def test_named_lists_take_no_users_out_of_the_comparison(
    model, saved, tmp_path, monkeypatch
) -> None:
    """The current model shows them to everybody, also to users whom the candidate answers."""
    monkeypatch.setattr(impressions, "_AGE_FACTOR", 1.0)  # figures are counted anew soon
    lists, other = tmp_path / "lists.toml", model.save(tmp_path / "next.tale")
    lists.write_text("[top]\n")
    options: dict[str, Any] = {"candidate": other, "share": 1.0, "lists": lists}
    options |= {"store": f"sqlite:///{tmp_path}/shop.db", "impressions": 1.0, "attribution": 1.0}
    local = Local(saved, tmp_path / "run", **options)
    local.shows_ids = True
    local.app.start()
    try:
        local.get("/v1/lists/top?user_id=1")
        asked = {"user_id": 1, "k": 3}
        until(lambda: local.post("/v1/recommend", asked).status == 200)  # the candidate is loaded
        local.get("/v1/lists/top?user_id=1")

        def compared() -> Any:
            figures = local.get("/v1/stats").json["impressions"].get("comparison")
            return figures and figures["users"]["candidate"]

        assert until(compared) == 1
        by_list = local.get("/v1/stats").json["impressions"]["by_list"]
    finally:
        local.app.stop()
    assert set(by_list) == {"recommend", "top"}
