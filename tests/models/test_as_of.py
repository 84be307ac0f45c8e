"""A request time in the past: only rows before it are history, in whatever way it is asked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import talerec as tr
from kinds import maker
from logs import DAY, at, rows_of
from talerec.models import MODELS
from talerec.models.core import RecommendOptions, iterate_lists


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(1500, items=40, seed=3)


def moments(log: tr.Log) -> list[int]:
    """Before all rows, at a user's first row, at a row in the middle and right after it, late."""
    middle = int(np.sort(log.time)[log.rows // 2])
    return [int(log.time.min()), int(log.time[5]), middle, middle + 1, int(log.time.max()) + DAY]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_later_rows_of_a_user_play_no_part(name, log):
    """As if the model had never stored them; before, they were history and were hidden as seen."""
    model, users = maker(name)().fit(log), log.users.ids.to_list()
    differs = False
    for when in moments(log):
        short = replace(model.fitted, log=log.keep(log.time < when))
        blind = maker(name)(**model.params).set_fitted(short)
        for options in ({}, {"hide_seen": True}):
            lists = model.recommend(users, k=5, as_of=at(when), **options)
            assert lists.equals(blind.recommend(users, k=5, as_of=at(when), **options))
            differs |= not lists.equals(model.recommend(users, k=5, **options))
    assert differs or name == "popular"


@pytest.mark.parametrize("name", ["tempo", "tale", "stan", "popular"])
def test_all_ways_of_asking_agree(name, log):
    model, users = maker(name)().fit(log), log.users.ids.to_list()
    for when in moments(log):
        lists = model.recommend(users, k=5, as_of=at(when))
        streamed = iterate_lists(
            model, log, np.arange(len(users)), RecommendOptions(5, as_of=at(when))
        )
        assert next(streamed).equals(lists)
        for user in users[:8]:
            rows = [(item, at(time)) for who, item, time in rows_of(log) if who == user]
            mine = lists.filter(user_id=user).drop("user_id")
            alone = model.recommend_histories([rows], k=5, as_of=at(when)).drop("history")
            assert alone.equals(mine)
            for item, score in mine.select("item_id", "score").head(2).rows():
                by_user = model.explain_user(user, item, as_of=at(when))
                assert model.explain(rows, item, as_of=at(when)).equals(by_user)
                assert by_user["contribution"].sum() == pytest.approx(score, rel=1e-5)
                n_rows = sum(time < np.datetime64(when, "us") for _, time in rows)
                assert len(by_user) - (name in ("tempo", "popular")) == n_rows


def test_rows_without_times_are_always_history():
    frame = tr.synthetic_log(300, items=9).to_frame().drop("timestamp")
    log = tr.Log.from_frame(frame, time=None)
    model = tr.Markov().fit(log)
    users = log.users.ids.to_list()
    assert model.recommend(users, k=3, as_of="1960-01-01").equals(model.recommend(users, k=3))
    histories = [[1, 2], [3]]
    dated = model.recommend_histories(histories, k=3, as_of="1960-01-01")
    assert dated.equals(model.recommend_histories(histories, k=3))


def test_what_was_popular_is_that_of_the_request_time(log):
    """Of the same log without later rows; only what tempo learned of the whole log is the same."""
    whole = tr.Tempo(learn="off", span=0.05).fit(log)
    when = int(np.quantile(log.time, 0.6))
    history = whole.recommend_histories([[]], k=10, as_of=at(when))
    snapshots = whole.fitted.weights.query_arrays["moments"]
    assert (snapshots < when).any()
    assert (snapshots > when).any()
    # a moment between the same two snapshots, however late in the log's future the others are
    before, after = snapshots[snapshots < when].max(), snapshots[snapshots >= when].min()
    for other in (int(before) + 1, int(after)):
        assert whole.recommend_histories([[]], k=10, as_of=at(other)).equals(history)
    later = whole.recommend_histories([[]], k=10, as_of=at(int(after) + 1))
    assert not later.equals(history)
