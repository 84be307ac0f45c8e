"""Audiences: the users most likely to take an item, against a loop over all users' lists."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from kinds import maker
from talerec.errors import TalerecError
from talerec.models.core import audience as audience_module

_DEPTH = 100


def slow_audience(model, item, k, *, hide_seen=False, as_of=None):
    """Return (user, list rank, lead) of an audience, from the whole list of every user."""
    found = []
    n_items = len(model.item_ids)
    for position, user in enumerate(model.fitted.log.users.ids):
        top = model.recommend([user], k=n_items, hide_seen=hide_seen, as_of=as_of)
        items, scores = top["item_id"].to_list(), top["score"].to_list()
        if item not in items:
            continue
        rank = items.index(item) + 1
        others = [score for other, score in zip(items, scores, strict=True) if other != item]
        spread = scores[0] - scores[min(_DEPTH, len(scores)) - 1]
        lead = (scores[rank - 1] - others[0]) / spread if others and spread > 0 else 0.0
        found.append((rank, -lead if rank <= _DEPTH else np.inf, position, user))
    return [(user, rank, -lead) for rank, lead, _, user in sorted(found)[:k]]


def assert_equal(frame, expected):
    assert frame["user_id"].to_list() == [user for user, _, _ in expected]
    assert frame["list_rank"].to_list() == [rank for _, rank, _ in expected]
    assert frame["rank"].to_list() == list(range(1, len(expected) + 1))
    leads = [lead if np.isfinite(lead) else None for _, _, lead in expected]
    for lead, wanted_lead in zip(frame["lead"], leads, strict=True):
        assert lead == (None if wanted_lead is None else pytest.approx(wanted_lead, abs=1e-9))


@pytest.fixture(scope="module")
def log():
    return tr.synthetic_log(1500, users=90, items=130, seed=5)


MODELS = ("markov", "tempo", "sknn", "popular", "fpmc", "trending", "content")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("hide_seen", [False, True])
def test_an_audience_equals_a_loop_over_the_lists_of_all_users(name, hide_seen, log, monkeypatch):
    monkeypatch.setattr(audience_module, "_BLOCK", 17)  # 90 users: some blocks and a rest
    model = maker(name)().fit(log)
    by_count = np.argsort(-log.counts())
    for position in by_count[[0, 3, 40, -1]]:
        item = model.item_ids[int(position)]
        expected = slow_audience(model, item, 25, hide_seen=hide_seen)
        assert_equal(model.audience(item, k=25, hide_seen=hide_seen), expected)
        assert expected or position != by_count[0]


def test_a_ranker_has_audiences(log):
    pytest.importorskip("lightgbm", reason="needs the extra rank")
    model = tr.Ranker(parts="markov,ease", candidates=20).fit(log)
    item = model.item_ids[int(np.argmax(log.counts()))]
    assert_equal(model.audience(item, k=12), slow_audience(model, item, 12))


def test_the_request_time_cuts_histories(log):
    model = tr.Tempo().fit(log)
    when = int(np.median(log.time)) // 10**6
    item = model.item_ids[int(np.argmax(log.counts()))]
    frame = model.audience(item, k=30, as_of=when)
    assert_equal(frame, slow_audience(model, item, 30, as_of=when))
    assert not frame.equals(model.audience(item, k=30))


def test_the_order_does_not_depend_on_the_scale_of_a_users_scores():
    """Two users with the same list: one has ten times as many rows, and larger scores."""
    rows = [(user, item, 10 * user + n) for user in range(40) for n, item in enumerate([1, 2, 3])]
    rows += [(100, item, 5000 + n) for n, item in enumerate([1, 2])]
    rows += [(101, item, 6000 + n) for n, item in enumerate([1, 2] * 10)]
    log = tr.Log.from_frame(pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row"))
    model = tr.EASE(reg=10).fit(log)
    frame = model.audience(3, k=42, hide_seen=True)
    assert set(frame["user_id"]) == {100, 101}
    assert frame["list_rank"].to_list() == [1, 1]


def test_more_users_than_there_are_give_all_who_have_a_score(log):
    model = tr.Markov().fit(log)
    frame = model.audience(model.item_ids[0], k=10**6)
    expected = slow_audience(model, model.item_ids[0], 10**6)
    assert 0 < len(frame) < len(log.users)
    assert_equal(frame, expected)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "9", None])
def test_k_is_a_whole_number_from_1(k, log):
    model = tr.Popular().fit(log)
    with pytest.raises(TalerecError, match="it takes a whole number from 1"):
        model.audience(model.item_ids[0], k=k)


def test_unknown_items_and_missing_histories_are_refused(log, tmp_path):
    model = tr.Popular().fit(log)
    with pytest.raises(TalerecError, match="nobody"):
        model.audience("nobody")
    bare = tr.load(model.save(tmp_path / "bare.tale", histories=False))
    with pytest.raises(TalerecError, match="saved without histories"):
        bare.audience(model.item_ids[0])


def test_memory_holds_one_block_and_the_best_users(log, monkeypatch):
    sizes = []
    rank_targets = audience_module.rank_targets

    def count(model, histories, *arguments, **options):
        sizes.append(len(histories))
        return rank_targets(model, histories, *arguments, **options)

    monkeypatch.setattr(audience_module, "_BLOCK", 8)
    monkeypatch.setattr(audience_module, "rank_targets", count)
    model = tr.Popular().fit(log)
    assert len(model.audience(model.item_ids[0], k=5)) == 5
    assert max(sizes) == 8
    assert sum(sizes) == len(log.users)
