"""Every command works with a ranker whose trees answer, and agrees with the library."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

import talerec as tr
from command import talerec, works
from logs import hour_log

pytest.importorskip("lightgbm")

PARTS = "markov,popular"
RANKER = ["--model", "ranker", "--set", f"parts={PARTS}", "--set", "candidates=10"]
LAST_DAYS = 12  # of the log, whose rows come by an update


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a log, its later rows, and a ranker fitted by command to the earlier ones."""
    folder = tmp_path_factory.mktemp("ranker")
    frame = hour_log(users=300).to_frame().with_columns(pl.col("timestamp").dt.epoch("us"))
    end = frame["timestamp"].max() - LAST_DAYS * 86_400_000_000
    frame.write_csv(folder / "whole.csv")
    frame.filter(pl.col("timestamp") <= end).write_csv(folder / "log.csv")
    frame.filter(pl.col("timestamp") > end).write_csv(folder / "later.csv")
    text = works("fit", folder / "log.csv", "-o", folder / "r.tale", *RANKER, "--updatable")
    assert "the trees answer" in " ".join(text.split())
    return folder


@pytest.fixture(scope="module")
def model(folder) -> tr.Ranker:
    model = tr.load(folder / "r.tale", verify=True)
    assert isinstance(model, tr.Ranker)
    assert model._state.find_second(0, hide_seen=False) is not None
    return model


def test_evaluations_of_a_ranker_are_compared(folder):
    for name, options in (("ranker", RANKER), ("markov", ["--model", "markov"])):
        works("evaluate", folder / "whole.csv", *options, "-o", folder / f"{name}.parquet")
    files = [folder / f"{name}.parquet" for name in ("markov", "ranker")]
    ours = tr.evaluate_log(tr.Ranker(parts=PARTS, candidates=10), tr.read_log(folder / "whole.csv"))
    assert pl.read_parquet(files[1])["rank"].equals(ours.frame["rank"])
    result = talerec("compare", *files, "--json").json
    gains = result["metrics"]["NDCG@10"]
    assert gains["b"] > 1.2 * gains["a"]
    assert gains["better"] > 100
    assert gains["worse"] == 0


def test_tune_tries_numbers_of_candidates(folder):
    options = ["--trials", 2, "--study", "none", "--json", "--set", f"parts={PARTS}"]
    tuned = talerec("tune", folder / "log.csv", "--model", "ranker", *options).json
    assert tuned["trials"][0]["params"]["candidates"] == 150
    assert all(60 <= trial["params"]["candidates"] <= 400 for trial in tuned["trials"])
    assert tuned["value"] == max(trial["value"] for trial in tuned["trials"]) > 0.95


def test_lists_are_those_of_the_library(folder, model):
    works("lists", folder / "r.tale", folder / "log.csv", "-k", 4, "-o", folder / "l.parquet")
    users = model.fitted.log.users.ids[:50]
    listed = pl.read_parquet(folder / "l.parquet").filter(pl.col("user_id").is_in(users))
    ours = model.recommend(users, k=4)
    assert listed.sort("user_id", "rank")["item_id"].equals(ours.sort("user_id", "rank")["item_id"])


def test_similar_explain_and_verify(folder, model):
    similar = talerec("similar", folder / "r.tale", 3, "-k", 5, "--json").json
    ours = model.similar_items(3, 5)["item_id"].to_list()
    assert [each["item_id"] for each in similar["items"]] == ours
    best = model.recommend([7], k=1)
    item = best["item_id"][0]
    said = talerec("explain", folder / "r.tale", "--user", 7, "--item", item, "--json").json
    families = sum(each["contribution"] for each in said["families"])
    assert families == pytest.approx(best["score"][0], abs=1e-6)
    works("verify", folder / "r.tale")


def test_an_update_by_command_equals_that_of_the_library(folder, model):
    path = shutil.copytree(folder / "r.tale", folder / "new.tale")
    works("update", path, folder / "later.csv")
    updated = tr.load(path, verify=True)
    assert updated.fitted.log.rows == len(pl.read_csv(folder / "whole.csv"))
    assert updated._state.trained.texts == model._state.trained.texts
    users = model.fitted.log.users.ids[:40].to_list()
    part, earlier = (each._state.first.parts[0] for each in (updated, model))
    assert not part.recommend(users, k=5).equals(earlier.recommend(users, k=5))
    ours = tr.load(folder / "r.tale")
    tr.update(ours, tr.read_log(folder / "later.csv"))
    assert updated.recommend(users, k=5).equals(ours.recommend(users, k=5))
