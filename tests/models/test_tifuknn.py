"""TIFU-kNN against the paper's formulas, evaluated user by user."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import talerec as tr
from logs import at, histories_of, logs, rows_of, tiny_log
from talerec.errors import TalerecError


def slow_vector(history, model):
    """The vector of (user, item, time) rows as Hu et al. define it, as a dict by item."""
    baskets = [
        {item for _, item, time in history if time == when}
        for when in sorted({time for *_, time in history})
    ]
    groups = []
    while baskets:  # the last baskets form the last group
        groups.insert(0, baskets[-model.group :])
        baskets = baskets[: -model.group]
    vector = defaultdict(float)
    for g, group in enumerate(groups, start=1):
        for b, basket in enumerate(group, start=1):
            for item in basket:
                within = model.basket_decay ** (len(group) - b) / len(group)
                vector[item] += within * model.group_decay ** (len(groups) - g) / len(groups)
    return vector


def slow_scores(users, history, model):
    """Scores of all items: the history's vector mixed with the mean of the nearest users'."""
    stored = [
        {item: float(np.float32(value)) for item, value in slow_vector(rows, model).items()}
        for rows in users.values()
    ]
    own = slow_vector(history, model)

    def distance(other):
        squares = sum(value**2 for value in other.values())
        return round(squares - 2 * sum(own[item] * other.get(item, 0.0) for item in own), 6)

    nearest = sorted(range(len(stored)), key=lambda u: (distance(stored[u]), u))
    nearest = nearest[: min(model.nearest, len(stored))]
    scores = defaultdict(float)
    for item, value in own.items():
        scores[item] += model.history_share * value
    for user in nearest:
        for item, value in stored[user].items():
            scores[item] += (1 - model.history_share) * value / len(nearest)
    return scores


@given(
    logs(max_users=5, max_items=6, max_rows=40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([(0.9, 0.7, 0.7), (0.37, 0.51, 0.2), (1.0, 1.0, 0.0)]),
)
@settings(max_examples=25, deadline=None)
def test_scores_equal_the_formulas(log, group, nearest, numbers):
    decays = dict(zip(("basket_decay", "group_decay", "history_share"), numbers, strict=True))
    model = tr.TIFUKNN(group=group, nearest=nearest, **decays).fit(log)
    users = histories_of(rows_of(log))
    for history in users.values():
        shown = model.recommend_histories([[(i, at(t)) for _, i, t in history]], k=len(log.items))
        expected = {i: s for i, s in slow_scores(users, history, model).items() if s > 0}
        scores = dict(zip(shown["item_id"], shown["score"], strict=True))
        assert {i: s for i, s in scores.items() if s > 0} == pytest.approx(expected, rel=1e-5)


def shop():
    """Weekly baskets: everybody buys bread; the users of each half share further items."""
    return tiny_log(
        [
            (u, item, week * 604_800)
            for u in range(10)
            for week in range(5)
            for item in ("bread", f"half {u % 2}", f"own {u}" if week % 2 else "milk")
        ]
    )


def test_explanations_are_history_rows_and_the_neighbors_share():
    model = tr.TIFUKNN(nearest=4).fit(shop())
    history = [("bread", at(0)), ("half 1", at(0)), ("bread", at(10**12))]
    top = model.recommend_histories([history], k=8)
    for item, score in zip(top["item_id"], top["score"], strict=True):
        reasons = model.explain(history, item)
        assert reasons["contribution"].sum() == pytest.approx(score, rel=1e-5)
        assert reasons["item_id"].to_list() == ["bread", "half 1", "bread", None]
        share = reasons.filter(reasons["item_id"].is_null())["contribution"].item()
        assert share > 0  # four users have the item, too
    assert "own 1" in top["item_id"].to_list()  # an item of neighbors alone


def test_unknown_items_are_baskets_of_the_history_and_have_no_score():
    model = tr.TIFUKNN(group=2, history_share=1.0).fit(shop())
    history = [("bread", at(0)), ("tea", at(1)), ("tea", at(2))]
    (score,) = model.recommend_histories([history], k=1, unknown="skip")["score"]
    assert score == pytest.approx(0.7 * 1.0 / 1 / 2)  # alone in the first of two groups
    lists = model.recommend_histories([[], [("tea", at(0))]], k=3, unknown="skip")
    assert not len(lists)


def test_queries_do_not_depend_on_their_batch(monkeypatch):
    model, log = tr.TIFUKNN(nearest=3).fit(shop()), shop()
    together = model.recommend(log.users.ids, k=4)
    monkeypatch.setattr("talerec.models.neighbors.tifuknn._MAX_DISTANCES", 1)
    assert model.recommend(log.users.ids, k=4).equals(together)


def test_a_log_without_baskets_has_a_basket_per_row():
    rows = [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("b", 2, 1)]
    model = tr.TIFUKNN(group=99, history_share=1.0, basket_decay=0.5).fit(tiny_log(rows))
    shown = model.recommend(["a"], k=2)
    assert shown["item_id"].to_list() == [1, 2]
    assert shown["score"].to_list() == pytest.approx([(1 + 0.25) / 3, 0.5 / 3])


def test_saving_and_updating(tmp_path):
    log = shop()
    early = log.keep(log.time < 2 * 604_800 * 10**6).compact()
    model, whole = tr.TIFUKNN(nearest=3).fit(early), tr.TIFUKNN(nearest=3).fit(log)
    tr.update(model, log)
    model.save(tmp_path / "shop.tale")
    loaded = tr.load(tmp_path / "shop.tale")

    def scores(fitted):
        frame = fitted.recommend(log.users.ids, k=5)
        return dict(
            zip(zip(frame["user_id"], frame["item_id"], strict=True), frame["score"], strict=True)
        )

    assert scores(loaded) == pytest.approx(scores(model))
    assert scores(loaded) == pytest.approx(scores(whole))


@pytest.mark.parametrize(
    "setting", [{"group": 0}, {"basket_decay": 0}, {"group_decay": 1.1}, {"history_share": -0.1}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(TalerecError, match=next(iter(setting))):
        tr.TIFUKNN(**setting)


def test_logs_without_times_are_refused():
    log = tr.Log.from_frame(shop().to_frame().drop("timestamp"), time=None)
    with pytest.raises(TalerecError, match="time"):
        tr.TIFUKNN().fit(log)


def test_a_single_user_is_the_only_neighbor():
    model = tr.TIFUKNN().fit(tiny_log([("a", 1, 1), ("a", 2, 1)]))
    shown = model.recommend(["a"], k=2)
    assert shown["score"].to_list() == pytest.approx([1.0, 1.0])
    assert math.isclose(model.history_share, 0.7)
