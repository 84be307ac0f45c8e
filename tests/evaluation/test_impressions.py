"""Clicks on what was shown, their rates, and the comparison of a candidate: slow twins."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import polars as pl
import pytest

from talerec.errors import TalerecError
from talerec.evaluation import (
    attribute_clicks,
    compute_user_rates,
    count_rates,
    estimate_policy_rate,
    summarize_impressions,
)

SECOND = 1_000_000
WINDOW = 60 * SECOND
NEGATIVE = ("hide", "return")
SHOWN = {
    "recommendation_id": pl.String, "user_id": pl.String, "time": pl.Int64, "model": pl.String,
    "role": pl.String, "list": pl.String, "item_id": pl.String, "rank": pl.Int64,
    "explored": pl.Boolean,
}  # fmt: skip
EVENTS = {
    "user_id": pl.String, "item_id": pl.String, "time": pl.Int64, "event": pl.String,
    "recommendation_id": pl.String,
}  # fmt: skip


def random_shop(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return answers and events of a small shop, in which every kind of mismatch occurs."""
    chance = random.Random(seed)
    times = chance.sample(range(10 * WINDOW), 60)
    answers = [
        {
            "recommendation_id": f"r{n}", "user_id": chance.choice(["ann", "bob", "cid", None]),
            "time": time, "model": chance.choice(["old", "new"]),
            "role": chance.choice(["current", "candidate"]), "list": chance.choice([None, "new"]),
            "items": chance.sample("abcdefg", 4), "explored": chance.sample([2, 3, 4], 1),
        }
        for n, time in enumerate(times)
    ]  # fmt: skip
    events = []
    for _ in range(600):
        answer = chance.choice(answers)
        time = answer["time"] + chance.randrange(-2 * WINDOW, 2 * WINDOW)
        events.append({
            "user_id": chance.choice([answer["user_id"] or "dan", "ann", "bob"]),
            "item_id": chance.choice("abcdefgh"),
            "time": time - time % SECOND if chance.random() < 0.3 else time,
            "event": chance.choice(["view", None, "hide"]),
            "recommendation_id": chance.choice([answer["recommendation_id"], None, "pruned"]),
        })  # fmt: skip
    return answers, events


def list_items(answers: list[dict[str, Any]]) -> pl.DataFrame:
    rows = [
        {**answer, "item_id": item, "rank": rank, "explored": rank in answer["explored"]}
        for answer in answers
        for rank, item in enumerate(answer["items"], 1)
    ]
    return pl.DataFrame(rows, SHOWN, strict=False) if rows else pl.DataFrame(schema=SHOWN)


def find_click(answers: list[dict[str, Any]], event: dict[str, Any]) -> tuple[str | None, str]:
    """Return the id of the answer that an event belongs to, or None and why there is none."""
    time = event["time"] + (SECOND - 1 if event["time"] % SECOND == 0 else 0)
    if event["recommendation_id"] is None:
        possible = [
            answer for answer in answers
            if answer["user_id"] == event["user_id"] and event["item_id"] in answer["items"]
            and 0 <= time - answer["time"] <= WINDOW
        ]  # fmt: skip
        latest = max(possible, key=lambda answer: answer["time"], default=None)
        return (None, "") if latest is None else (latest["recommendation_id"], "")
    named = [a for a in answers if a["recommendation_id"] == event["recommendation_id"]]
    if not named:
        return None, ""
    (answer,) = named
    if answer["user_id"] not in (None, event["user_id"]):
        return None, "other_user"
    if event["item_id"] not in answer["items"]:
        return None, "not_shown"
    if time < answer["time"] - 60 * SECOND:
        return None, "early"
    if time > answer["time"] + WINDOW:
        return None, "late"
    return answer["recommendation_id"], ""


def find_clicks(
    answers: list[dict[str, Any]], events: list[dict[str, Any]]
) -> tuple[set[tuple[str, str]], Counter[str]]:
    """Return the clicked items of answers, and counts of other events by reason."""
    clicks: set[tuple[str, str]] = set()
    reasons: Counter[str] = Counter()
    for event in events:
        answer, reason = find_click(answers, event)
        if answer is not None and event["event"] in NEGATIVE:
            reason = "negative"
        elif answer is not None and (answer, event["item_id"]) in clicks:
            reason = "repeated"
        elif answer is not None:
            clicks.add((answer, event["item_id"]))
        reasons[reason] += 1
    del reasons[""]
    return clicks, reasons


@pytest.mark.parametrize("seed", range(12))
def test_clicks_and_reasons_are_those_of_a_slow_twin(seed: int) -> None:
    answers, events = random_shop(seed)
    clicks, reasons = find_clicks(answers, events)
    assert len(clicks) > 20
    assert min(reasons.values()) > 0
    assert len(reasons) == 6
    shown = list_items(answers)
    frame, counts = attribute_clicks(shown, pl.DataFrame(events, EVENTS), WINDOW, NEGATIVE)
    clicked = frame.filter("clicked").select("recommendation_id", "item_id").rows()
    assert set(clicked) == clicks
    assert len(clicked) == len(clicks)
    assert len(frame) == len(shown)
    assert counts == reasons


@pytest.mark.parametrize("seed", range(4))
def test_figures_are_those_of_a_slow_twin(seed: int) -> None:
    answers, events = random_shop(seed)
    clicks, _ = find_clicks(answers, events)
    sums: dict[tuple[str, Any], list[int]] = defaultdict(lambda: [0, 0])
    for answer in answers:
        for rank, item in enumerate(answer["items"], 1):
            is_clicked = (answer["recommendation_id"], item) in clicks
            keys: list[tuple[str, Any]] = [("all", "")]
            if rank in answer["explored"]:
                keys.append(("explored", ""))
            else:
                keys.append(("by_list", answer["list"] or "recommend"))
                if answer["list"] is None:
                    keys += [("by_model", answer["model"]), ("by_rank", str(rank))]
                    keys.append(("by_role", answer["role"]))
            for key in keys:
                sums[key][0] += 1
                sums[key][1] += is_clicked
    frames = list_items(answers), pl.DataFrame(events, EVENTS)
    figures = summarize_impressions(*frames, WINDOW, NEGATIVE)
    counted = {("all", ""): figures, ("explored", ""): figures["explored"]}
    for group in ("by_model", "by_rank", "by_list", "by_role"):
        counted |= {(group, name): row for name, row in figures[group].items()}
    assert {key: [row["impressions"], row["clicks"]] for key, row in counted.items()} == sums
    for row in counted.values():
        assert row["ctr"] == row["clicks"] / row["impressions"]
        assert row["interval"][0] <= row["ctr"] <= row["interval"][1]
    assert figures["answers"] == len(answers)


def test_nothing_shown_has_no_rate() -> None:
    empty = list_items([]), pl.DataFrame(schema=EVENTS)
    figures = summarize_impressions(*empty, WINDOW)
    assert (figures["impressions"], figures["clicks"], figures["ctr"]) == (0, 0, None)
    assert figures["by_model"] == figures["by_rank"] == {}
    assert figures["explored"] is None


def test_a_model_that_was_promoted_is_one_row_and_old_versions_are_left_out() -> None:
    roles = [("candidate", "v0")] + [("current", f"v{n}") for n in range(12)]
    answers = [
        {"recommendation_id": f"r{n}", "user_id": "ann", "time": n, "model": model, "role": role,
         "list": None, "items": ["a"], "explored": []}
        for n, (role, model) in enumerate([*roles, ("current", "v0")])
    ]  # fmt: skip
    figures = summarize_impressions(list_items(answers), pl.DataFrame(schema=EVENTS), 1)
    assert list(figures["by_model"]) == ["v0", *(f"v{n}" for n in range(11, 2, -1))]
    assert (figures["by_model"]["v0"]["role"], figures["by_model"]["v0"]["impressions"]) == (
        "current", 3,
    )  # fmt: skip


def test_the_unit_of_an_interval_is_the_user() -> None:
    """A user who clicks everything is one user, however often something is shown."""
    rows = {"recommendation_id": [f"r{n}" for n in range(400)], "clicked": [True, False] * 200}
    users = {"user_id": [f"u{n % 20}" for n in range(400)]}  # odd users click always, even never
    anonymous = pl.DataFrame({**rows, "user_id": pl.Series([None] * 400, dtype=pl.String)})
    (few,), (many,) = count_rates(pl.DataFrame({**rows, **users})), count_rates(anonymous)
    assert (few["users"], many["users"]) == (20, 400)
    widths = [row["interval"][1] - row["interval"][0] for row in (few, many)]
    assert widths[0] > 4 * widths[1]


def slow_outcomes(frame: list[dict[str, Any]], end: int) -> dict[str, tuple[str, float]]:
    """Return the role and the outcome of each compared user, from rows with `clicked`."""
    rows_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in frame:
        if row["user_id"] and row["list"] is None and not row["explored"]:
            rows_of[row["user_id"]].append(row)
    outcomes = {}
    for user, rows in rows_of.items():
        first = min(row["time"] for row in rows)
        counted = [row for row in rows if row["time"] < first + WINDOW]
        if len({row["role"] for row in counted}) == 1 and first < end:
            rate = sum(row["clicked"] for row in counted) / len(counted)
            outcomes[user] = (counted[0]["role"], rate)
    return outcomes


@pytest.mark.parametrize("seed", range(4))
def test_outcomes_of_users_are_those_of_a_slow_twin(seed: int) -> None:
    chance, answers = random.Random(seed), []
    for n in range(400):
        user = chance.randrange(100)
        role = chance.choice(["current", "candidate"]) if user % 7 == 0 else (
            "candidate" if user % 2 else "current"
        )  # fmt: skip
        answers.append({
            "recommendation_id": f"r{n}", "user_id": f"u{user}" if user else None, "role": role,
            "time": chance.randrange(9 * WINDOW), "model": role,
            "list": "new" if n % 5 == 0 else None, "explored": [2] if n % 3 == 0 else [],
            "items": chance.sample("abcdefg", 3),
        })  # fmt: skip
    shown = list_items(answers)
    clicked = pl.Series("clicked", [chance.random() < 0.2 for _ in range(len(shown))])
    frame, end = shown.with_columns(clicked), 6 * WINDOW
    found = compute_user_rates(frame, WINDOW, end)
    expected = slow_outcomes(frame.to_dicts(), end)
    assert len(found) == len(expected) > 50
    for user, role, rate in found.rows():
        assert (role, pytest.approx(rate)) == expected[user]


def test_named_lists_have_rates_of_their_own_only() -> None:
    """No model orders them for a user: they say nothing about a model, a role or a rank."""
    row = {"user_id": "ann", "model": "v", "role": "current", "items": ["a", "b"], "explored": []}
    answers = [
        {**row, "recommendation_id": "r0", "time": 0, "list": None},
        {**row, "recommendation_id": "r1", "time": 1, "list": "new"},
    ]
    figures = summarize_impressions(list_items(answers), pl.DataFrame(schema=EVENTS), WINDOW)
    assert (figures["answers"], figures["impressions"]) == (2, 4)
    assert figures["by_model"]["v"]["impressions"] == 2
    assert figures["by_role"]["current"]["impressions"] == 2
    assert [row["impressions"] for row in figures["by_rank"].values()] == [1, 1]
    assert {name: row["impressions"] for name, row in figures["by_list"].items()} == {
        "new": 2, "recommend": 2,
    }  # fmt: skip


def test_an_estimate_for_another_policy_is_right_in_the_mean() -> None:
    """Each place shows one of three items; the weights of all outcomes make the mean exact."""
    rates, kept, other = [0.5, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.3, 0.6]
    mean = 0.0
    for item, probability in enumerate(kept):
        for is_clicked in (True, False):
            frame = policy_frame([item] * 12, [is_clicked] * 12, kept, other)
            chance = probability * (rates[item] if is_clicked else 1 - rates[item])
            mean += chance * estimate_policy_rate(frame, "other")["ctr"]
    assert mean == pytest.approx(sum(p * r for p, r in zip(other, rates, strict=True)))


def test_the_interval_of_an_estimate_covers_the_truth() -> None:
    rates, kept, other = [0.3, 0.2, 0.1], [0.6, 0.2, 0.2], [0.1, 0.3, 0.6]
    truth = sum(p * r for p, r in zip(other, rates, strict=True))
    chance, covered = random.Random(5), 0
    for _ in range(200):
        items = chance.choices(range(3), kept, k=400)
        frame = policy_frame(items, [chance.random() < rates[n] for n in items], kept, other)
        low, high = estimate_policy_rate(frame, "other")["interval"]
        covered += low <= truth <= high
    assert 182 <= covered <= 198


def test_the_estimate_of_the_policy_itself_is_its_click_rate() -> None:
    frame = policy_frame([0, 1, 2] * 10, [True, False, False] * 10, [0.5, 0.25, 0.25], [0.0] * 3)
    estimate = estimate_policy_rate(frame, "probability")
    assert estimate["ctr"] == pytest.approx(1 / 3)
    assert estimate["effective"] == pytest.approx(30)
    assert estimate_policy_rate(frame, "other") == {"ctr": 0, "interval": [0, 0], "effective": 0}
    with pytest.raises(TalerecError, match="9 users are too few"):
        estimate_policy_rate(frame.head(9), "other")


def policy_frame(
    items: list[int], clicked: list[bool], kept: list[float], other: list[float]
) -> pl.DataFrame:
    """Return a row per shown item, each of a user of its own."""
    users = [f"u{n}" for n in range(len(items))]
    columns = {"user_id": users, "recommendation_id": users, "clicked": clicked}
    chances = {"probability": [kept[n] for n in items], "other": [other[n] for n in items]}
    return pl.DataFrame({**columns, **chances})
