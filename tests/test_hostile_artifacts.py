"""Artifacts with right hashes and wrong contents: an error that names it, never a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, works
from talerec.artifact import Bundle, read_artifact, write_artifact
from talerec.artifact.integrity import manifest_version
from talerec.errors import TalerecError

Arrays = dict[str, np.ndarray]
MODELS = ("tempo", "tale", "sknn", "fpmc", "popular")


@pytest.fixture(scope="module")
def models() -> dict[str, tr.Model]:
    log = tr.synthetic_log(800, users=60, items=40, seed=3)
    made = {name: tr.MODELS[name]().fit(log) for name in MODELS if name != "fpmc"}
    sparse = {"local": tr.TALE(solver="local").fit(log), "dense": tr.TALE(solver="exact").fit(log)}
    return {**made, **sparse, "fpmc": tr.FPMC(epochs=1, factors=4).fit(log)}


def tampered(model: tr.Model, path: Path, change: Callable[[Bundle], Any]) -> Path:
    """An artifact that was written as any other is, from what `change` made of the model."""
    kept = read_artifact(model.save(path))
    whole = Bundle(
        {**kept.facts, "training": dict(kept.facts["training"])},
        {name: np.array(array) for name, array in kept.arrays.items()},
        dict(kept.tables),
    )
    change(whole)
    return write_artifact(path, whole)


def put(name: str, place: Any, value: Any) -> Callable[[Bundle], None]:
    def change(whole: Bundle) -> None:
        whole.arrays[name][place] = value

    return change


def cut(name: str, size: int = -1) -> Callable[[Bundle], None]:
    def change(whole: Bundle) -> None:
        whole.arrays[name] = whole.arrays[name][:size]

    return change


def fact(name: str, value: Any) -> Callable[[Bundle], None]:
    def change(whole: Bundle) -> None:
        whole.facts["training"][name] = value

    return change


def ids(*values: int) -> Callable[[Bundle], None]:
    def change(whole: Bundle) -> None:
        table = whole.tables["items"]
        new = pl.Series("item_id", [*values, *table["item_id"][len(values) :]])
        whole.tables["items"] = table.with_columns(new)

    return change


WRONG = [
    ("local", put("indices", 3, 40), "indices of block 0 goes from"),
    ("local", put("indices", 3, -1), "indices of block 0 goes from"),
    ("local", put("indptr", 5, 10**6), "indptr of block 0 falls"),
    ("local", put("indptr", -1, 10**6), "indptr of block 0 ends at 1000000"),
    ("local", put("data", 0, np.nan), "values of block 0 has a number that is not finite"),
    ("local", cut("data"), "block 0 has other values than indices"),
    ("local", cut("peaks"), "block 0 has other peaks than rows"),
    ("dense", put("weights", (1, 1), np.inf), "weights of block 0 has a number"),
    ("dense", cut("weights"), "the weights have 39 rows for 40 items"),
    ("dense", put("item", 0, 40), "item goes from"),
    ("dense", put("ptr", 1, 10**9), "ptr falls"),
    ("dense", put("time", 0, -(2**63)), "time goes from"),
    ("dense", cut("time"), "other times than items"),
    ("dense", fact("items", 41), "training.items is 41"),
    ("dense", fact("last_time", None), "training.last_time is None"),
    ("dense", fact("last_time", 2**70), "training.last_time is"),
    ("dense", ids(2, 2), "an id of a item is missing or twice"),
    ("popular", put("base", 0, np.inf), "base has a number that is not finite"),
    ("popular", cut("base"), "base has the shape (39,)"),
    ("tempo", cut("aside_repeats"), "repeats does not have 32 weights"),
    ("tempo", cut("aside_moments"), "moments has another length than snapshots"),
    ("tempo", put("aside_decay", 0, 0.0), "decay is not above 0"),
    ("tempo", cut("aside_lengths", 0), "lengths and memories differ in number"),
    ("tempo", put("aside_lengths", 0, 7.0), "the default memory has another length than 1"),
    ("tempo", put("aside_decay", 0, np.nan), "decay has a number that is not finite"),
    ("tempo", put("indices_2", 0, 4000), "indices of block 2 goes from"),
    ("tempo", put("source_item_2", 0, 4000), "source_item of block 2 goes from"),
    ("sknn", put("aside_entries", 0, 10**6), "entries goes from"),
    ("sknn", put("aside_user", 0, 10**6), "user goes from"),
    ("sknn", put("aside_holders", 1, 10**6), "holders falls"),
    ("sknn", cut("fade", 1), "fade of block 0 is too short"),
    ("fpmc", cut("aside_taste"), "taste has the shape (39, 4)"),
    ("fpmc", cut("weights"), "block 0 has other sources than it says"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "change", "said"), WRONG)
def test_what_no_model_can_have_is_refused_on_load(models, model, change, said, tmp_path):
    path = tampered(models[model], tmp_path / "m.tale", change)
    read_artifact(path, verify=True)  # every hash is right
    for verify in (False, True):
        with pytest.raises(TalerecError) as caught:
            tr.load(path, verify=verify)
        assert said in str(caught.value)
        assert str(path) in str(caught.value)
    assert said in refusal("verify", path)


@pytest.mark.parametrize("model", [*MODELS, "local", "dense"])
def test_what_a_fit_leaves_is_not_refused(models, model, tmp_path):
    path = models[model].save(tmp_path / "m.tale")
    tr.load(path, verify=True)
    assert "is intact" in works("verify", path)
    without = models[model].save(tmp_path / "n.tale", histories=False)
    tr.load(without, verify=True)


def test_facts_that_are_missing_are_one_line(models, tmp_path):
    for name in ("solver", "has_item_info", "blocks", "training"):
        path = models["tempo"].save(tmp_path / "m.tale")
        manifest = json.loads((path / "manifest.json").read_text())
        del manifest[name]
        manifest["version"] = manifest_version(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))
        said = refusal("recommend", path, "--users", "1")
        assert str(path) in said


def test_a_table_of_more_rows_than_there_are_items_is_not_read(models, tmp_path):
    """A column of one repeated value takes a few bytes for any number of rows."""

    def blow_up(whole: Bundle) -> None:
        whole.tables["users"] = pl.DataFrame({"user_id": np.zeros(3_000_000, np.int64)})

    path = tampered(models["dense"], tmp_path / "m.tale", blow_up)
    with pytest.raises(TalerecError, match=r"3,000,000 rows; there is room for"):
        tr.load(path)


def test_a_table_that_unpacks_to_far_more_than_it_is_is_refused_when_verified(models, tmp_path):
    def blow_up(whole: Bundle) -> None:
        titles = pl.Series("title", [str(n) * 3_000_000 for n in range(10, 50)])
        whole.tables["items"] = whole.tables["items"].with_columns(titles)

    path = tampered(models["dense"], tmp_path / "m.tale", blow_up)
    with pytest.raises(TalerecError, match="would unpack to"):
        tr.load(path, verify=True)
