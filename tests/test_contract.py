"""The contract of models, for every entry of MODELS, on logs with an obvious answer."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import polars as pl
import pytest

import talerec as tr
from kinds import maker
from logs import described, tiny_log
from talerec.data import Histories
from talerec.errors import TalerecError
from talerec.models import MODELS
from talerec.models.core import ItemFilter, rank_with_reasons

K = 3


def loop_log(users: int = 40, items: int = 8, rows: int = 6):
    """Everybody walks round the same circle of items, from a place of their own, a day a step.

    In the item table every item has a direction of its own, for models of content.
    """
    log = tiny_log(
        [(u, (u + s) % items, 1.6e9 + u + 86_400 * s) for u in range(users) for s in range(rows)]
    )
    return described(log)


#: Every model as it comes (neural ones small), and those that have more than one kind of weights.
MADE = {
    **dict.fromkeys(MODELS),
    "tale, local": partial(tr.TALE, solver="local", neighbors=5),
    "tempo, local": partial(tr.Tempo, solver="local", neighbors=5),
    "swalk, local": partial(tr.SWalk, solver="local", neighbors=5, width=4),
    "blend, four": partial(
        tr.Blend, parts="tempo,ease,popular,sknn", weights_of_parts="1,0.5,0.001,0.1"
    ),
    "rdlae, local": partial(tr.RDLAE, solver="local", neighbors=5),
}


@pytest.fixture(scope="module", params=list(MADE))
def make(request):
    return MADE[request.param] or maker(request.param)


@pytest.fixture(scope="module")
def model(make):
    return make().fit(loop_log())


def test_fit_returns_the_model_itself(make):
    unfitted = make()
    assert unfitted.fit(loop_log()) is unfitted


def test_a_model_can_be_copied_and_pickled(model):
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.recommend([0, 1], k=K).equals(model.recommend([0, 1], k=K))


def test_many_threads_may_ask_one_model(model):
    users = list(range(40))
    alone = [model.recommend([user], k=K) for user in users]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda user: model.recommend([user], k=K), users * 3))
    if model.extra == "torch":  # torch's own threads are counted for each of ours
        assert_as_good(model, pl.concat(together), pl.concat(alone * 3))
    else:
        assert all(lists.equals(alone[n % 40]) for n, lists in enumerate(together))


def test_a_log_without_rows_is_refused(make):
    log = loop_log()
    with pytest.raises(TalerecError, match="no rows"):
        make().fit(log.keep(np.zeros(log.rows, bool)))


def test_a_model_has_a_name_a_paper_and_documented_parameters(model):
    import dataclasses

    assert model.name
    assert model.summary
    assert "docs/" not in model.paper  # whoever has a wheel has no such file
    assert all(field.metadata["help"] for field in dataclasses.fields(model))
    json.dumps(model.params)


def test_recommendations_are_a_frame_with_these_columns(model):
    frame = model.recommend([0, 1], k=K)
    assert frame.columns == ["user_id", "item_id", "score", "rank"]
    assert frame["rank"].to_list() == [1, 2, 3, 1, 2, 3]
    frame = model.recommend_histories([[1, 2], [3]], k=K)
    assert frame.columns == ["history", "item_id", "score", "rank"]


def test_scores_fall_and_equal_scores_stand_by_item(model):
    for part in model.recommend(list(range(10)), k=8).partition_by("user_id"):
        rows = list(zip((-part["score"]).to_list(), part["item_id"].to_list(), strict=True))
        assert rows == sorted(rows)


def test_a_batch_equals_one_by_one(model):
    users = list(range(20))
    batch = model.recommend(users, k=K)
    single = pl.concat([model.recommend([user], k=K) for user in users])
    if model.extra == "torch":
        assert_as_good(model, batch, single)
    else:
        assert batch.equals(single)


def assert_as_good(model, batch, single):
    """Assert lists equal to 1e-5 of the largest score: a network's sums depend on the batch."""
    scores, others = batch["score"].to_numpy(), single["score"].to_numpy()
    near = 1e-5 * np.abs(scores).max()
    np.testing.assert_allclose(scores, others, rtol=0, atol=near)
    everything = model.recommend(list(range(40)), k=8)
    by_id = {(row[0], row[1]): row[2] for row in everything.iter_rows()}
    for user, each, two in zip(batch["user_id"], batch["item_id"], single["item_id"], strict=True):
        assert abs(by_id[user, each] - by_id[user, two]) <= near


def test_users_and_their_own_histories_get_the_same(model):
    log = loop_log()
    by_user = model.recommend([5], k=K)
    rows = list(
        zip(
            log.item[log.ptr[5] : log.ptr[6]].tolist(),
            log.time[log.ptr[5] : log.ptr[6]].tolist(),
            strict=True,
        )
    )
    by_history = model.recommend_histories([rows], k=K)
    assert by_user.drop("user_id").equals(by_history.drop("history"))


def test_refitting_equals_fitting(model, make):
    refitted = make().fit(loop_log(users=9, items=5)).fit(loop_log())
    assert refitted.recommend([0, 1, 2], k=K).equals(model.recommend([0, 1, 2], k=K))


def test_saving_then_loading_gives_the_same_scores_and_parameters(model, tmp_path):
    model.save(tmp_path / "m.tale")
    loaded = tr.load(tmp_path / "m.tale", verify=True)
    assert type(loaded) is type(model)
    assert loaded.params == model.params
    assert loaded.recommend(list(range(9)), k=K).equals(model.recommend(list(range(9)), k=K))
    assert loaded.recommend_histories([[1]], k=K).equals(model.recommend_histories([[1]], k=K))


def test_hidden_and_denied_items_never_come_back(model):
    seen = model.recommend_histories([[1, 2]], k=8, hide_seen=True)["item_id"].to_list()
    assert not {1, 2} & set(seen)
    denied = model.recommend_histories([[1]], k=8, deny=[3, 4])["item_id"].to_list()
    assert not {3, 4} & set(denied)
    allowed = model.recommend_histories([[1]], k=8, allow=[2, 5], deny=[5])["item_id"].to_list()
    assert set(allowed) <= {2}


def test_contributions_add_up_to_the_score(model):
    for history in ([1], [1, 2, 3], [3, 1, 3, 2]):
        for row in model.recommend_histories([history], k=8).iter_rows(named=True):
            explained = model.explain(history, row["item_id"])
            assert explained["contribution"].sum() == pytest.approx(row["score"], abs=1e-12)


def test_base_scores_of_several_items_are_those_of_each(model):
    if not isinstance(model, tr.Model):
        pytest.skip("a ranker has no base scores of several items")
    history = Histories.from_ids([[3, 1, 3, 2]], model.fitted.items)
    targets = np.array([5, 0, 7, 5])
    scores = model.base_scores(history, targets)
    if scores is None:
        assert model.base_score(history, 5) is None
        return
    assert scores.tolist() == [model.base_score(history, target) for target in targets.tolist()]


def test_a_users_contributions_add_up_to_the_score_it_is_recommended_by(model):
    log = model.fitted.log
    for place, user in enumerate(log.users.ids[:4].to_list()):
        user_items = log.items.ids.gather(log.item[log.ptr[place] : log.ptr[place + 1]])
        lists = model.recommend([user], k=8)
        for item, score in lists.select("item_id", "score").iter_rows():
            explained = model.explain_user(user, item)
            assert explained["contribution"].sum() == pytest.approx(score, rel=1e-12, abs=1e-12)
            assert explained["item_id"][: len(user_items)].to_list() == user_items.to_list()


def test_an_answer_on_positions_is_the_recommendation_with_its_reasons(model):
    items = model.fitted.items
    hidden = model.name != "ranker"  # whose lists without seen items may have other scores
    for history in ([1], [1, 2, 3], [3, 1, 3, 2], [5, 77, 2]):
        encoded = Histories.from_ids([history], items, "skip")
        lists, _ = rank_with_reasons(model, encoded, K, ItemFilter(hide_seen=hidden), 2)
        frame = model.recommend_histories([history], k=K, hide_seen=hidden, unknown="skip")
        assert model.item_ids.gather(lists.items).to_list() == frame["item_id"].to_list()
        assert lists.scores == frame["score"].to_list()
        begins = [0, *lists.ends]
        for n, item in enumerate(frame["item_id"]):
            explained = model.explain(history, item, unknown="skip").filter(
                pl.col("item_id").is_not_null()
            )
            largest = explained["contribution"].abs().sort(descending=True).head(2).to_list()
            reasons = slice(begins[n], lists.ends[n])
            families = lists.families[n] if lists.families else None
            # shares are of the score, or of the absolute sum of what families add
            whole = sum(abs(each.contribution) for each in families) if families else None
            whole = lists.scores[n] if whole is None else whole
            there = [share * whole for share in lists.shares[reasons]]
            assert [abs(part) for part in there] == pytest.approx([w for w in largest if w])
            for source, part in zip(
                model.item_ids.gather(lists.sources[reasons]).to_list(), there, strict=True
            ):
                user_items = explained.filter(pl.col("item_id") == source)["contribution"].to_list()
                assert any(part == pytest.approx(each) for each in user_items)


def test_a_query_may_be_asked_with_other_parameters(make, model):
    if "recency" not in model.params:
        with pytest.raises(TalerecError, match="no parameter 'recency'"):
            model.with_params(recency=5)
        return
    other = type(model)(**{**model.params, "recency": 5}).fit(loop_log())
    histories = [[1, 2, 3], [3, 1, 3, 2]]
    lists = model.with_params(recency=5).recommend_histories(histories, k=K)
    assert lists.equals(other.recommend_histories(histories, k=K))


def test_similar_items_leave_out_the_item(model):
    frame = model.similar_items(3, k=7)
    assert frame.columns == ["item_id", "score", "rank"]
    assert 3 not in frame["item_id"].to_list()


def test_k_is_checked(model):
    for k in (0, -1, 2.5, True, "3"):
        with pytest.raises(TalerecError, match="`k` is"):
            model.recommend([0], k=k)
    with pytest.raises(TalerecError, match="`k` is 9, but the model knows 8 items"):
        model.recommend([0], k=9)


def test_unknown_ids_are_named_or_skipped(model):
    with pytest.raises(TalerecError, match="user 'nobody'"):
        model.recommend(["nobody"], k=K)
    with pytest.raises(TalerecError, match="item 77"):
        model.recommend_histories([[77]], k=K)
    assert model.recommend(["nobody"], k=K, unknown="skip").is_empty()
    skipped = model.recommend_histories([[77, 1]], k=K, unknown="skip")
    expected = model.recommend_histories([[1]], k=K)
    assert skipped["item_id"].to_list() == expected["item_id"].to_list()


def test_an_unfitted_model_says_so():
    for kind in MODELS.values():
        with pytest.raises(TalerecError, match="not fitted"):
            kind().recommend([1])


@pytest.mark.parametrize(
    "rows", [[(1, 1, 1e9)], [(1, 1, 1e9), (1, 1, 1e9)], [(1, 1, 1e9), (2, 2, 2e9)]]
)
def test_the_smallest_logs_fit(make, rows, tmp_path):
    small = make().fit(described(tiny_log(rows)))
    frame = small.recommend([1], k=1)
    assert len(frame) <= 1
    small.save(tmp_path / "small.tale")
    assert tr.load(tmp_path / "small.tale").recommend([1], k=1).equals(frame)


def test_the_next_item_of_a_circle_is_found():
    model = tr.TALE(reg=0.1, solver="exact").fit(loop_log())
    for item in range(8):
        best = model.recommend_histories([[(item - 1) % 8, item]], k=1)["item_id"][0]
        assert best == (item + 1) % 8


def test_scores_go_from_source_to_target_and_not_back():
    """After 1 comes 2, always; after 2 comes nothing: x @ B, never B @ x."""
    log = tiny_log([(u, i, 1e9 + i) for u in range(9) for i in (1, 2)])
    model = tr.TALE(reg=0.1).fit(log)
    assert model.recommend_histories([[1]], k=1)["item_id"].to_list() == [2]
    assert model.recommend_histories([[2]], k=2).is_empty()


def test_a_model_that_is_not_finite_is_never_made():
    weights = np.asarray(tr.TALE(reg=1e-6, solver="exact").fit(loop_log()).weights)
    assert np.isfinite(weights).all()


def test_a_loaded_model_searches_long_histories_as_the_fitted_one_did(tmp_path):
    """Long enough for the search to stop early, which it does by what was saved."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, [80, 200, 10**7], (4000, 3))
    log = tiny_log([(int(u), int(i), 1e9 + float(t)) for u, i, t in drawn])
    model = tr.TALE(reg=1.0, solver="local", neighbors=30).fit(log)
    loaded = tr.load(model.save(tmp_path / "m.tale"))
    histories = rng.integers(0, 200, (30, 60)).tolist()
    lists = loaded.recommend_histories(histories, k=10)
    assert lists.equals(model.recommend_histories(histories, k=10))
    ours, theirs = (each.fitted.weights.blocks[0].peaks for each in (model, loaded))
    np.testing.assert_array_equal(theirs, ours)
