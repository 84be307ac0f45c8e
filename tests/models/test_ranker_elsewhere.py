"""Rankers of networks that were trained elsewhere equal rankers that are fitted here."""

from __future__ import annotations

from dataclasses import replace

import pytest

import talerec as tr
from kinds import need_torch
from logs import hour_log
from talerec.errors import TalerecError

pytest.importorskip("lightgbm")
need = pytest.fixture(autouse=True, scope="module")(need_torch)

SETTINGS = {"dim": 8, "layers": 1, "max_history": 6, "epochs": 1, "judges": 0, "batch": 256}
TEXT = "; ".join(f"{name}={value}" for name, value in SETTINGS.items())
OPTIONS = {"parts": "markov,sasrec", "candidates": 10, "content": "off"}


def trained(rows, **changes):
    """A training as another machine makes it."""
    from talerec.models.networks import log_rows
    from talerec.neural.training import train

    return train(log_rows(rows), tr.SASRec(**{**SETTINGS, **changes}).settings())


@pytest.fixture(scope="module")
def log():
    return hour_log(users=150)


@pytest.fixture(scope="module")
def trainings(log):
    """A training on each of the rows that a part is fitted to, by their name."""
    return {name: trained(rows) for name, rows in tr.Ranker(**OPTIONS).training_rows(log).items()}


@pytest.fixture(scope="module")
def here(log):
    return tr.Ranker(parts=f"markov,sasrec({TEXT})", candidates=10, content="off").fit(log)


def test_trained_elsewhere_a_ranker_is_the_one_that_is_fitted_here(log, trainings, here, tmp_path):
    files = [t.save(tmp_path / f"{n}.npz") for n, t in enumerate(trainings.values())]
    users = list(range(30))
    lists = here.recommend(users, k=40)
    for given in (list(trainings.values()), files[::-1]):
        model = tr.Ranker.from_trainings(log, given, **OPTIONS)
        assert model.describe_learned() == here.describe_learned()
        assert model.recommend(users, k=40).equals(lists)
    loaded = tr.load(model.save(tmp_path / "r.tale"), verify=True)
    assert loaded.recommend(users, k=40).equals(lists)
    assert "dim=8" in loaded.parts


def test_without_trainings_on_delayed_rows_the_first_part_answers_delayed_requests(
    log, trainings, here
):
    names = list(trainings)
    assert names[:2] == ["all", "current"]
    assert len(names) > 2
    given = [trainings["all"], trainings["current"]]
    model = tr.Ranker.from_trainings(log, given, **OPTIONS)
    first, second = model._state, here._state
    assert first.trained.texts == [second.trained.texts[0], b""]
    assert first.trained.verdicts == [second.trained.verdicts[0], [None, None]]
    assert first.best_part(1, hide_seen=True).name == "markov"


def test_what_is_missing_or_of_other_rows_or_parameters_is_refused(log, trainings):
    def refused(given, said, parts="markov,sasrec"):
        with pytest.raises(TalerecError, match=said):
            tr.Ranker.from_trainings(log, given, parts=parts)

    every = list(trainings.values())
    refused([], "sasrec, a part of the ranker, has no training on the rows of `training_rows`, all")
    refused(every[:1], "has no training on the rows of `training_rows`, current with dim=8")
    refused(every[:-1], "has no training on the rows of `training_rows`, delayed")
    refused(every[:2], "training 1, of sasrec, does not fit any part", "markov,ease")
    facts = {**every[1].facts, "params": {**every[1].facts["params"], "rate": 0.5}}
    refused([every[0], replace(every[1], facts=facts)], "`training_rows`, current with dim=8")


def test_parts_that_are_no_networks_need_no_trainings(log):
    options = {"parts": "markov,popular", "candidates": 10, "content": "off"}
    assert tr.Ranker.from_trainings(log, [], **options)._state.trained.texts == (
        tr.Ranker(**options).fit(log)._state.trained.texts
    )
