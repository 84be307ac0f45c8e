"""The ranker on logs of unusual shape: trees answer, explain, are saved and updated."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.models.ranker import learning
from talerec.models.ranker.learning import Verdict

pytest.importorskip("lightgbm")

START, YEAR_1900 = 1_600_000_000, -2_208_988_800


def draw(rng: np.random.Generator, size: int, n_items: int) -> np.ndarray:
    """Items drawn by popularity."""
    weights = 1.0 / np.arange(1, n_items + 1)
    return rng.choice(n_items, size, p=weights / weights.sum())


def half_of_one_user(rng):
    user = np.where(rng.random(1600) < 0.5, 0, rng.integers(1, 120, 1600))
    return user, draw(rng, 1600, 60), START + rng.integers(0, 10**7, 1600)


def two_items(rng):
    return rng.integers(0, 150, 1500), rng.integers(0, 2, 1500), START + rng.permutation(1500) * 60


def one_instant(rng):
    return rng.integers(0, 150, 1500), draw(rng, 1500, 60), np.full(1500, START)


def three_rows_per_user(rng):
    return np.repeat(np.arange(500), 3), draw(rng, 1500, 60), START + rng.permutation(1500) * 60


def no_repeats(rng):
    item = np.concatenate([rng.permutation(40)[:10] for _ in range(150)])
    return np.repeat(np.arange(150), 10), item, START + rng.permutation(1500) * 60


def an_item_per_row(rng):
    return rng.integers(0, 150, 1500), np.arange(1500), START + np.arange(1500) * 60


def one_item_per_user(rng):
    user = rng.integers(0, 150, 1500)
    return user, user % 37, START + rng.permutation(1500) * 60


def many_items_of_few_rows(rng):
    return rng.integers(0, 150, 3000), rng.integers(0, 30_000, 3000), START + np.arange(3000) * 60


def times_from_1900_on(rng):
    return rng.integers(0, 150, 1500), draw(rng, 1500, 60), YEAR_1900 + rng.integers(0, 10**9, 1500)


def times_around_1970(rng):
    time = rng.integers(-(10**6), 10**6, 1500)
    return rng.integers(0, 150, 1500), draw(rng, 1500, 60), time


def a_row_of_1970_and_others_of_2200(rng):
    time = 7_258_118_400 + rng.integers(0, 10**7, 1500)
    time[0] = 1
    return rng.integers(0, 150, 1500), draw(rng, 1500, 60), time


def items_of_an_hour(rng):
    hour = np.sort(rng.integers(0, 300, 1800))
    return rng.integers(0, 150, 1800), hour // 3 * 2 + rng.integers(0, 2, 1800), START + hour * 3600


SHAPES = [
    half_of_one_user, two_items, one_instant, three_rows_per_user, no_repeats, an_item_per_row,
    one_item_per_user, many_items_of_few_rows, times_from_1900_on, times_around_1970,
    a_row_of_1970_and_others_of_2200, items_of_an_hour,
]  # fmt: skip
#: Too few users have rows enough to hold out, or no target is an item of training rows.
NOTHING_TO_LEARN = [
    three_rows_per_user, an_item_per_row, many_items_of_few_rows, items_of_an_hour
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_logs_of_unusual_shape_are_ranked_explained_saved_and_updated(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "_MAX_TREES", 5)
    monkeypatch.setattr(learning, "_LINEAR_QUERIES", 50)
    monkeypatch.setattr(Verdict, "uses_trees", property(lambda self: True))
    times = {"time_unit": "s", "any_time": True}
    columns = dict(
        zip(("user_id", "item_id", "timestamp"), shape(np.random.default_rng(0)), strict=True)
    )
    frame = pl.DataFrame(columns).with_columns(pl.col("timestamp").cast(pl.Float64))
    split = tr.leave_one_out(tr.Log.from_frame(frame, **times))
    log = split.train
    model = tr.Ranker(parts="tempo,markov", candidates=20).fit(log)
    assert any(model._state.second) == (shape not in NOTHING_TO_LEARN)
    users, k = log.users.ids.to_list()[:20], min(10, len(log.items))
    for hide_seen in (False, True):
        ranks = tr.evaluate(model, split, hide_seen=hide_seen).frame["rank"].drop_nulls()
        assert ranks.is_between(1, len(log.items)).all()
        lists = model.recommend(users, k=k, hide_seen=hide_seen)
        assert lists["score"].is_finite().all()
        assert not lists.select("user_id", "item_id").is_duplicated().any()
    lists = model.recommend(users, k=k)
    for user, item, score in lists.group_by("user_id").first().select(
        "user_id", "item_id", "score"
    ).head(3).iter_rows():  # fmt: skip
        explained = model.explain_user(user, item)["contribution"].sum()
        assert explained == pytest.approx(score, abs=1e-6 * max(1.0, abs(score)))
    path = model.save(tmp_path / "r.tale")
    assert tr.load(path, verify=True).recommend(users, k=k).equals(lists)
    later = frame.head(30).with_columns(pl.col("timestamp") + 10**9)
    tr.update(model, tr.Log.from_frame(pl.concat([frame, later]), **times))
    assert len(model.recommend(users, k=k)) > 0
