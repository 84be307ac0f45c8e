"""Blends of parts that were trained elsewhere equal blends that are fitted here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import talerec as tr
from kinds import need_torch, small
from talerec.errors import TalerecError

need = pytest.fixture(autouse=True, scope="module")(need_torch)

SMALL = {**small("sasrec"), "epochs": 1, "judges": 0, "batch": 512}


def text_of(settings) -> str:
    return "sasrec(" + "; ".join(f"{name}={value}" for name, value in settings.items()) + ")"


def trained(rows, **changes):
    """A training as another machine makes it."""
    from talerec.models.networks import log_rows
    from talerec.neural.training import train

    return train(log_rows(rows), tr.SASRec(**{**SMALL, **changes}).settings())


@pytest.fixture(scope="module")
def log():
    return tr.synthetic_log(6000, items=40, seed=1)


@pytest.fixture(scope="module")
def both(log):
    """Trainings on all rows and on those of the first fit."""
    return trained(log), trained(tr.Blend.first_rows(log))


def test_trained_elsewhere_a_blend_is_the_one_that_is_fitted_here(log, both, tmp_path):
    here = tr.Blend(parts=f"markov,{text_of(SMALL)}").fit(log)
    assert here.part_weights[1] > 0
    files = [training.save(tmp_path / f"{n}.npz") for n, training in enumerate(both)]
    for trainings in (both, files, files[::-1]):
        blend = tr.Blend.from_trainings(log, trainings, parts="markov,sasrec")
        assert np.array_equal(blend.part_weights, here.part_weights)
        users = log.users.ids[:30]
        assert blend.recommend(users, k=5).equals(here.recommend(users, k=5))
    reloaded = tr.load(blend.save(tmp_path / "b.tale"), verify=True)
    assert "dim=8" in reloaded.parts
    assert reloaded.recommend(users, k=5).equals(here.recommend(users, k=5))
    assert reloaded.fit(log).recommend(users, k=5).equals(here.recommend(users, k=5))


def test_weights_that_are_given_need_no_first_fit(log, both):
    blend = tr.Blend.from_trainings(
        log, both[:1], parts="popular,sasrec", weights_of_parts="0.01,1"
    )
    assert blend.part_weights.tolist() == [0.01, 1.0]
    alone = tr.SASRec.from_training(log, both[0])
    lone = tr.Blend.from_trainings(log, both[:1], parts="sasrec")
    users = log.users.ids[:30]
    assert lone.recommend(users, k=5).equals(alone.recommend(users, k=5))


def test_seeds_are_parts_of_their_own(log, both):
    other = trained(log, seed=1)
    parts = "popular,sasrec(seed=0),sasrec(seed=1)"
    options = {"parts": parts, "weights_of_parts": "0,1,1"}
    blend = tr.Blend.from_trainings(log, [other, both[0]], **options)
    alone = [tr.SASRec.from_training(log, first) for first in (both[0], other)]
    history = [log.items.ids[:3].to_list()]

    def scores(model):
        ranked = model.recommend_histories(history, k=40)
        return dict(ranked.select("item_id", "score").iter_rows())

    first, two = map(scores, alone)
    assert scores(blend) == pytest.approx({item: first[item] + two[item] for item in first})
    with pytest.raises(TalerecError, match=r"2 trainings of sasrec .* such as sasrec\(seed=1\)"):
        tr.Blend.from_trainings(
            log, [other, both[0]], **{**options, "parts": "popular,popular,sasrec"}
        )


def test_what_is_missing_or_of_other_rows_or_parameters_is_refused(log, both):
    def refused(trainings, said, parts="popular,sasrec"):
        with pytest.raises(TalerecError, match=said):
            tr.Blend.from_trainings(log, trainings, parts=parts)

    refused([], "sasrec, a part of the blend, has no training on the rows of the log")
    refused(both[1:], "has no training on the rows of the log")
    refused(both[:1], r"rows of the first fit \(`first_rows`\) with dim=8")
    refused(both, "training 1, of sasrec, does not fit any part", "popular,markov")
    refused(both, "has no training on the rows of the log with dim=16", "popular,sasrec(dim=16)")
    refused(both, "hstu, a part of the blend, has no training", "popular,hstu")
    changed = replace(
        both[1], facts={**both[1].facts, "params": {**both[1].facts["params"], "rate": 0.5}}
    )
    refused([both[0], changed], "rows of the first fit")
    refused(
        [*both, trained(tr.synthetic_log(300, seed=2))],
        "training 3, of sasrec, does not fit any part",
    )
    refused([both[0], replace(both[1], facts={})], "not those of a training that has ended")


def test_where_it_was_trained_says_nothing_about_a_network(log, both):
    facts = {**both[1].facts, "params": {**both[1].facts["params"], "device": "auto"}}
    trainings = [both[0], replace(both[1], facts=facts)]
    assert len(tr.Blend.from_trainings(log, trainings, parts="popular,sasrec").part_weights) == 2


def test_a_blend_that_was_refused_is_fitted_here_afterwards(log, both):
    with pytest.raises(TalerecError):
        tr.Blend.from_trainings(log, both[:1], parts="popular,sasrec")
    blend = tr.Blend.from_trainings(log, both, parts="popular,sasrec")
    other = tr.synthetic_log(6000, items=40, seed=4)
    here = tr.Blend(parts=blend.parts).fit(other)
    assert np.array_equal(blend.fit(other).part_weights, here.part_weights)
