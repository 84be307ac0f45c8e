"""The recency that EASE chooses: planted answers, noise, and that nothing else depends on it."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec.errors import TalerecError
from talerec.models.core import hold_out_last_rows

GENRES, ITEMS = 6, 120


def log_of(rows) -> tr.Log:
    user, item, time = zip(*rows, strict=True)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "timestamp": time})
    return tr.Log.from_frame(frame, time_unit="s")


def genre_log(is_lasting: bool, users=800, length=12, seed=3) -> tr.Log:
    """Users take items of one genre at a time: always the same, or a new one every third row.

    A third of the rows are noise, so that one row alone says little of the genre.
    """
    draw = np.random.default_rng(seed)
    rows = []
    for user in range(users):
        genre = int(draw.integers(GENRES))
        for step in range(length):
            if not is_lasting and step % 3 == 0:
                genre = int(draw.integers(GENRES))
            item = int(draw.integers(ITEMS // GENRES)) * GENRES + genre
            rows.append((user, item if draw.random() < 2 / 3 else int(draw.integers(ITEMS)), step))
    return log_of(rows)


def test_where_the_whole_history_tells_the_genre_all_rows_count():
    model = tr.EASE().fit(genre_log(is_lasting=True))
    assert model.query_recency >= 6
    (sentence,) = model.describe_learned()
    share = math.exp(-7 / model.query_recency)
    assert sentence == f"The 8th most recent row has {share:.0%} of the latest row's weight."


@pytest.mark.parametrize("model", [tr.EDLAE(dropout=0.9), tr.RDLAE(xi=0.0), tr.EDLAE(reg=5.0)])
@pytest.mark.parametrize("is_lasting", [False, True])
def test_dropout_and_self_weights_do_not_change_the_chosen_recency(model, is_lasting):
    log = genre_log(is_lasting)
    assert model.fit(log).query_recency == tr.EASE(reg=model.reg).fit(log).query_recency


def test_where_only_the_last_rows_tell_the_genre_old_rows_count_little():
    assert tr.EASE().fit(genre_log(is_lasting=False)).query_recency <= 2


@pytest.mark.parametrize("seed", range(8))
def test_noise_keeps_the_default(seed):
    draw = np.random.default_rng(seed)
    rows = [(user, int(draw.integers(100)), step) for user in range(400) for step in range(8)]
    model = tr.EASE().fit(log_of(rows))
    assert model.query_recency == 2.0
    assert model.describe_learned() == ["Validation kept the default recency of 2 rows."]


def test_a_small_log_keeps_the_default_without_a_second_fit():
    log = tr.synthetic_log(150, seed=1)
    assert hold_out_last_rows(log) is None
    assert tr.EASE().fit(log).query_recency == 2.0


def test_a_recency_that_is_set_is_used_and_nothing_is_chosen():
    log = genre_log(is_lasting=True)
    chosen, fixed = tr.EASE().fit(log), tr.EASE(recency=2.0).fit(log)
    assert fixed.query_recency == 2.0
    assert fixed.describe_learned() == []
    assert "recency" not in fixed.fitted.weights.query_arrays
    np.testing.assert_array_equal(chosen.weights, fixed.weights)
    users = log.users.ids.to_list()[:50]
    same = chosen.with_params(recency=2.0).recommend(users, k=5)
    assert same.equals(fixed.recommend(users, k=5))
    assert not same.equals(chosen.recommend(users, k=5))


def test_queries_never_hold_the_row_that_they_ask_for():
    log = genre_log(is_lasting=True, users=300)
    train, (histories, target, _) = hold_out_last_rows(log)
    assert train.rows == log.rows - len(target)
    for q in range(len(target)):
        rows = np.flatnonzero(log.user_codes() == log.user_codes()[histories.stop[q]])
        assert histories.stop[q] == rows[-1]
        assert log.item[rows[-1]] == target[q]
        assert train.ptr[log.user_codes()[rows[0]] + 1] - train.ptr[log.user_codes()[rows[0]]] == (
            len(rows) - 1
        )


def test_a_saved_model_keeps_the_recency_and_a_damaged_one_is_refused(tmp_path):
    log = genre_log(is_lasting=True)
    model = tr.EASE().fit(log)
    loaded = tr.load(model.save(tmp_path / "a.tale"))
    assert loaded.query_recency == model.query_recency
    model.fitted.weights.query_arrays["recency"] = np.array([-1.0])
    with pytest.raises(TalerecError, match="recency"):
        tr.load(model.save(tmp_path / "b.tale"))


@pytest.mark.parametrize("kind", [tr.EASE, tr.EDLAE, tr.RDLAE])
def test_a_model_that_chose_no_decay_is_saved_updated_and_loaded(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("talerec.models.linear.ease._RECENCIES", (2.0, math.inf))
    monkeypatch.setattr("talerec.models.linear.ease._MIN_Z", -math.inf)
    monkeypatch.setattr("talerec.models.linear.ease.rank_targets", lambda model, *_: Ranks(model))
    log = genre_log(is_lasting=True)
    model = kind().fit(log)
    assert model.query_recency == math.inf
    lists = model.recommend([1, 2], k=5)
    assert lists.equals(kind(recency=math.inf).fit(log).recommend([1, 2], k=5))
    loaded = tr.load(model.save(tmp_path / "m.tale"), verify=True)
    assert loaded.query_recency == math.inf
    assert loaded.recommend([1, 2], k=5).equals(lists)
    tr.update(model, log)
    assert tr.load(model.save(tmp_path / "m.tale"), verify=True).query_recency == math.inf


class Ranks:
    """Ranks of two targets, of which the first is better without decay."""

    def __init__(self, model: tr.EASE) -> None:
        self.ranks = np.array([[1 if model.recency == math.inf else 3, 0], [1, 1]])


def test_an_update_keeps_the_recency_of_the_fit(tmp_path):
    log = genre_log(is_lasting=True)
    model = tr.load(tr.EASE().fit(log).save(tmp_path / "a.tale", updatable=True))
    rows = [(user, int(item), 100) for user, item in enumerate(np.arange(600) % ITEMS)]
    recency, before = model.query_recency, model.fitted
    assert recency != 2.0
    assert tr.update(model, log_of(rows)).rows == 600
    assert model.fitted is not before
    assert model.query_recency == recency


@pytest.mark.data
def test_on_invoices_the_chosen_recency_is_ahead_of_the_last_rows_and_of_the_textbook(data):
    log = tr.order_ties(tr.k_core(tr.read_log(data / "online-retail.csv.gz"), 5), "random:0")
    split = tr.leave_one_out(log)
    model = tr.EASE().fit(split.train)
    ndcg = {}
    for recency in (model.query_recency, 2.0, math.inf):
        result = tr.evaluate(model.with_params(recency=recency), split, on="validation")
        ndcg[recency] = result.metrics["NDCG@10"], result.metrics_hidden["NDCG@10"]
    for other in (2.0, math.inf):
        assert ndcg[model.query_recency][0] > 1.1 * ndcg[other][0]
        assert ndcg[model.query_recency][1] > 1.1 * ndcg[other][1]
