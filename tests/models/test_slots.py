"""Slots: places of a list with conditions, against a slow loop over whole lists."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works
from kinds import maker
from talerec.errors import TalerecError
from talerec.models.core import inference

SLOTS = {
    3: {"where": "colour = 'red'"},
    1: {"where": "price < 20"},
    6: {"where": "colour = 'blue'"},
}
COLOURS = ["red", "green", "green", "green", "green", "green", "green", "blue", None]


@pytest.fixture(scope="module")
def log():
    rows = tr.synthetic_log(2500, users=60, items=140, seed=9).to_frame()
    ids = rows["item_id"].unique().sort()
    table = pl.DataFrame(
        {
            "item_id": ids,
            "colour": [COLOURS[n % len(COLOURS)] for n in range(len(ids))],
            "price": [float(7 * n % 101) for n in range(len(ids))],
        }
    )
    return tr.Log.from_frame(rows, items=table)


def slow_list(model, user, k, slots, per=None, **rules):
    """Return one list with slots, from the whole list of the user without them."""
    table = model.fitted.info
    n_items = len(model.item_ids)
    conditions = {
        place: set(model.recommend([user], k=n_items, where=rule["where"])["item_id"])
        for place, rule in slots.items()
    }
    every = model.recommend([user], k=n_items, **rules)
    ranking = list(zip(every["item_id"], every["score"], strict=True))
    values = {column: dict(zip(model.item_ids, table[column], strict=True)) for column in per or {}}
    listed = []
    for place in range(1, k + 1):
        left = [pair for pair in ranking if pair not in listed]
        for column, most in (per or {}).items():
            used = [values[column][item] for item, _ in listed]
            left = [
                (item, score)
                for item, score in left
                if values[column][item] is None or used.count(values[column][item]) < most
            ]
        matching = [pair for pair in left if pair[0] in conditions.get(place, ())]
        if not left:
            break
        listed.append((matching or left)[0])
    flags = [item in conditions.get(place, ()) for place, (item, _) in enumerate(listed, 1)]
    return [(item, score, flag) for (item, score), flag in zip(listed, flags, strict=True)]


RULES = {
    "plain": {},
    "hidden": {"hide_seen": True},
    "where": {"where": "price > 10"},
    "per": {"per": {"colour": 2}},
    "boost": {"boost": {"colour": {"blue": 0.5, "green": -0.2}}},
    "all": {
        "hide_seen": True, "where": "price < 90", "per": {"colour": 3},
        "boost": {"colour": {"red": 0.3}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ["markov", "tempo", "ease", "popular"])
@pytest.mark.parametrize("rules", list(RULES))
@pytest.mark.parametrize("growth", [1, 4])
def test_lists_with_slots_equal_their_slow_twins(name, rules, growth, log, monkeypatch):
    if growth == 1:  # short beginnings of lists, which have to grow
        monkeypatch.setattr(inference, "_GROWTH", 2)
        monkeypatch.setattr(inference, "_MAX_ENTRIES", 300)
    model = maker(name)().fit(log)
    users = log.users.ids[:6]
    frame = model.recommend(users, k=8, slots=SLOTS, **RULES[rules])
    for user in users:
        part = frame.filter(pl.col("user_id") == user)
        expected = slow_list(model, user, 8, SLOTS, **RULES[rules])
        assert part["item_id"].to_list() == [item for item, _, _ in expected]
        assert part["slot"].to_list() == [flag for _, _, flag in expected]
        assert part["score"].to_list() == pytest.approx([score for _, score, _ in expected])
        assert part["item_id"].n_unique() == len(part)
    assert frame["slot"].any()


def test_a_slot_without_an_item_is_filled_in_the_normal_order(log):
    model = tr.Popular().fit(log)
    nothing = {2: {"where": "price > 1000"}}
    with_slots = model.recommend(log.users.ids[:3], k=5, slots=nothing)
    assert with_slots.drop("slot").equals(model.recommend(log.users.ids[:3], k=5))
    assert not with_slots["slot"].any()


def test_one_item_for_several_slots_is_listed_once(log):
    model = tr.Popular().fit(log)
    price = model.fitted.info["price"][5]
    rule = {"where": f"price = {price} and colour is not null"}
    frame = model.recommend(log.users.ids[:1], k=6, slots={2: rule, 4: rule})
    assert frame["item_id"].n_unique() == 6
    assert frame["slot"].sum() <= 2


def test_lists_without_slots_have_no_such_column(log):
    model = tr.Popular().fit(log)
    assert "slot" not in model.recommend(log.users.ids[:1], k=2).columns
    assert "slot" not in model.recommend(log.users.ids[:1], k=2, slots={}).columns


def test_histories_have_slots_too(log):
    model = tr.Markov().fit(log)
    user = log.users.ids[2]
    rows = log.to_frame().filter(pl.col("user_id") == user)
    history = [list(zip(rows["item_id"], rows["timestamp"], strict=True))]
    frame = model.recommend_histories(history, k=7, slots=SLOTS)
    expected = model.recommend([user], k=7, slots=SLOTS)
    assert frame["item_id"].to_list() == expected["item_id"].to_list()


def test_a_ranker_fills_slots(log):
    pytest.importorskip("lightgbm", reason="needs the extra rank")
    model = tr.Ranker(parts="markov,ease", candidates=20).fit(log)
    frame = model.recommend(log.users.ids, k=6, slots=SLOTS)
    for user in log.users.ids:
        part = frame.filter(pl.col("user_id") == user)
        assert part["item_id"].n_unique() == 6
    prices = dict(zip(model.item_ids, model.fitted.info["price"], strict=True))
    first = frame.filter(pl.col("rank") == 1)
    assert first["slot"].all()
    assert all(prices[item] < 20 for item in first["item_id"])


BAD = [
    ({9: {"where": "price < 5"}}, "has the place 9, but `k` is 8"),
    ({0: {"where": "price < 5"}}, "0 is no place"),
    ({-1: {"where": "price < 5"}}, "-1 is no place"),
    ({"two": {"where": "price < 5"}}, "'two' is no place"),
    ({"03": {"where": "price < 5"}}, "'03' is no place"),
    ({True: {"where": "price < 5"}}, "True is no place"),
    ({1.5: {"where": "price < 5"}}, "1.5 is no place"),
    ({"9" * 5000: {"where": "price < 5"}}, "but `k` is 8"),
    ({3: {"where": "price < 5"}, "3": {"where": "price < 5"}}, "the place 3 twice"),
    ({3: "price < 5"}, "place 3 takes"),
    ({3: {}}, "place 3 takes"),
    ({3: {"where": "price < 5", "allow": [1]}}, "place 3 takes"),
    ({3: {"where": 5}}, "place 3 takes"),
    ({3: {"where": "size < 5"}}, "size"),
    ([3], "has conditions by place"),
    ({n: {"where": "price < 5"} for n in range(1, 22)}, "has 21 places; the limit is 20"),
]


@pytest.mark.parametrize(("slots", "message"), BAD)
def test_invalid_slots_are_refused(slots, message, log):
    model = tr.Popular().fit(log)
    with pytest.raises(TalerecError) as error:
        model.recommend(log.users.ids[:1], k=8, slots=slots)
    assert message in str(error.value)


def test_the_command_takes_slots(log, tmp_path):
    model = tr.Markov().fit(log)
    path = model.save(tmp_path / "shop.tale")
    user = log.users.ids[4]
    options = ("--slot", "3=colour = 'red'", "--slot", "1=price < 20")
    result = talerec("recommend", path, "--users", user, "-k", 5, *options, "--json").json
    slots = {place: SLOTS[place] for place in (3, 1)}
    expected = model.recommend([user], k=5, slots=slots)["item_id"].to_list()
    assert [item["item_id"] for item in result[0]["items"]] == expected
    out = tmp_path / "lists.parquet"
    works("recommend", path, "--users", "all", "-k", 5, *options, "-o", out)
    written = pl.read_parquet(out).filter(pl.col("user_id") == user)
    assert written["item_id"].to_list() == expected
    assert np.array_equal(written["slot"][[0, 2]], [True, True])
    for wrong in ("3", "3=", "=price < 5"):
        assert "--slot" in refusal("recommend", path, "--users", user, "--slot", wrong)
    beyond = refusal("recommend", path, "--users", user, "-k", 2, *options)
    assert "--slot has the place 3, but --k is 2" in beyond
