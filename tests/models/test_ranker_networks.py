"""A ranker with a network among its parts: fitted, evaluated, saved, explained, not updated."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import talerec as tr
from kinds import need_torch
from logs import hour_log
from talerec.data import Histories
from talerec.errors import TalerecError

pytest.importorskip("lightgbm")

NETWORK = "sasrec(dim=8; layers=1; max_history=6; epochs=2; batch=256; device=cpu)"


@pytest.fixture(scope="module")
def split() -> tr.Split:
    return tr.leave_one_out(hour_log())


@pytest.fixture(scope="module")
def model(split) -> tr.Ranker:
    need_torch()
    return tr.Ranker(parts=f"markov,{NETWORK}", candidates=10, content="off").fit(split.train)


def test_it_is_evaluated_and_ahead_of_its_parts(model, split):
    network = model._state.first.parts[1]
    assert network.name == "sasrec"
    assert model._state.find_second(0, hide_seen=False) is not None
    ours, alone = (tr.evaluate(each, split).metrics["NDCG@10"] for each in (model, network))
    assert ours > alone + 0.1
    assert "Candidates come from markov, sasrec." in model.describe_learned()


def test_its_features_are_the_networks_own_scores(model, split):
    histories = Histories.of_users(split.train, np.arange(20))
    every = np.tile(np.arange(len(model.item_ids), dtype=np.int32), (20, 1))
    first = model._state.first
    scores = first.score_candidates(histories, every, np.full(20, every.shape[1])).parts.scores[1]
    ids = model.item_ids.to_list()
    lists = first.parts[1].recommend(split.train.users.ids.to_list()[:20], k=10)
    for number, user in enumerate(split.train.users.ids.to_list()[:20]):
        mine = lists.filter(user_id=user)
        positions = [ids.index(item) for item in mine["item_id"]]
        np.testing.assert_allclose(scores[number, positions], mine["score"], rtol=1e-12)


def test_it_answers_and_explains_alike_after_loading(model, tmp_path):
    loaded = tr.load(model.save(tmp_path / "r.tale"), verify=True)
    users = list(range(20))
    lists = model.recommend(users, k=40)
    assert loaded.recommend(users, k=40).equals(lists)
    for user, item, score in lists.filter(pl.col("user_id") < 2).select(
        "user_id", "item_id", "score"
    ).iter_rows():  # fmt: skip
        explained = loaded.explain_user(user, item)
        assert explained.equals(model.explain_user(user, item))
        assert explained["contribution"].sum() == pytest.approx(score, abs=1e-6)


def test_a_network_can_be_the_first_part(split):
    need_torch()
    model = tr.Ranker(parts=f"{NETWORK},markov", candidates=10).fit(split.train)
    network = model._state.first.parts[0]
    listed = model.recommend([3], k=40)["item_id"].to_list()
    order = network.recommend([3], k=40)["item_id"].to_list()
    assert listed[10:] == [item for item in order if item not in listed[:10]]
    assert model.similar_items(3, k=5).equals(network.similar_items(3, k=5))


def test_it_is_not_updated(model, split):
    with pytest.raises(TalerecError, match="sasrec, a part of the ranker, cannot be updated"):
        tr.update(model, split.train)
