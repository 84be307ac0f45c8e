"""Updates of damaged and hostile artifacts, and of those that a power cut leaves."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from command import refusal, talerec, works, write_log
from talerec.artifact import Bundle, read_artifact, read_manifest, write_artifact
from talerec.errors import TalerecError
from talerec.runtime import files

Paths = tuple[Path, Path]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A model that can be updated, and rows that came later."""
    folder = tmp_path_factory.mktemp("shop")
    table = pl.read_csv(write_log(folder / "all.csv", users=30, rows=400))
    table.head(380).write_csv(folder / "old.csv")
    table.tail(25).write_csv(folder / "new.csv")
    settings = ("--set", "solver=local", "--set", "reg=5", "--updatable")
    works("fit", folder / "old.csv", "-o", folder / "m.tale", *settings)
    return folder / "m.tale", folder / "new.csv"


@pytest.fixture
def model(shop: Paths, tmp_path: Path) -> Paths:
    """The same in a folder of its own."""
    shutil.copytree(shop[0], tmp_path / "m.tale")
    return tmp_path / "m.tale", shop[1]


def version(path: Path) -> str:
    return str(read_manifest(path)["version"])


def test_at_every_moment_of_writing_the_folder_holds_the_old_model_or_the_new_one(
    model: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder before each step is what `kill -9` at that step leaves."""
    path, new = model
    before, moments = version(path), []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            moments.append(tmp_path / f"moment-{len(moments)}")
            shutil.copytree(path, moments[-1])
            return function(*args, **more)

        return call

    for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (files, "_write_part")):
        monkeypatch.setattr(owner, name, noted(getattr(owner, name)))
    works("update", path, new)
    monkeypatch.undo()
    after = version(path)
    assert len(moments) >= 20
    assert after != before
    actual = [version(moment) for moment in moments]
    assert actual == sorted(
        actual, key=lambda each: each == after
    )  # first the old one, then the new
    assert {before, after} == set(actual)
    for moment in moments:
        tr.load(moment, verify=True)
    last_old = moments[actual.index(after) - 1]
    works("update", last_old, new)  # the files that nobody names are in nobody's way
    assert version(last_old) == after
    assert sorted(os.listdir(last_old)) == sorted(os.listdir(path))


def tampered(path: Path, name: str, change: Callable[[Any], Any]) -> None:
    bundle = read_artifact(path)
    arrays = {key: np.array(array) for key, array in bundle.arrays.items()}
    arrays[name] = change(arrays[name])
    facts = {key: value for key, value in bundle.facts.items() if key != "format"}
    write_artifact(path, Bundle(facts, arrays, bundle.tables))


def put(place: int, value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


WRONG = [
    ("triangle_indices", put(2, 10**6), "triangle_indices goes from"),
    ("triangle_indices", put(-1, 11), "triangle_indices has a rank that is not below its row's"),
    ("triangle_indptr", put(3, 10**6), "triangle_indptr falls"),
    ("triangle_indptr", lambda a: a[:-1], "triangle_indptr has the shape"),
    ("triangle_values", lambda a: a[:-1], "the triangle has other values than indices"),
    ("triangle_values", put(0, np.nan), "triangle_values has a number that is not finite"),
    ("triangle_values", lambda a: a.astype(np.int64), "triangle_values are int64"),
    ("triangle_diagonal", put(0, -1.0), "triangle_diagonal has a number below 0"),
    ("triangle_diagonal", lambda a: a[:-1], "triangle_diagonal has another length"),
    ("triangle_rank", put(0, 500), "triangle_rank goes from"),
    ("triangle_rank", lambda a: np.zeros_like(a), "triangle_rank is not an order of the items"),
    ("residual", lambda a: a[:-1], "residual has another length"),
    ("residual", put(0, -1.0), "residual has a number below 0"),
    ("trends", put(0, 0), "trends goes from 0"),
    ("trends", lambda a: a[:-1], "other trends than items"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "said"), WRONG)
def test_what_no_fit_settles_is_refused_by_verify_and_by_update(
    model: Paths, name: str, change: Callable[[Any], Any], said: str
) -> None:
    path, new = model
    tampered(path, name, change)
    before = version(path)
    assert said in refusal("verify", path)
    assert said in refusal("update", path, new)
    assert version(path) == before


def test_a_model_that_is_mapped_stays_as_it_was(model: Paths) -> None:
    path, new = model
    mapped = tr.load(path)
    users = list(range(1, 31))
    before = mapped.recommend(users, 5)
    works("update", path, new)
    assert mapped.recommend(users, 5).equals(before)
    assert not tr.load(path).recommend(users, 5).equals(before)


def test_a_full_disk_leaves_the_old_model(model: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    path, new = model
    before, names, written = version(path), sorted(os.listdir(path)), 0
    write = files._write_part

    def full(file: Any, part: Any) -> None:
        nonlocal written
        written += len(part)
        if written > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, part)

    monkeypatch.setattr(files, "_write_part", full)
    assert "No space left on device" in refusal("update", path, new)
    monkeypatch.undo()
    assert version(path) == before
    assert sorted({*os.listdir(path)} - {".talerec.update.lock"}) == names
    works("verify", path)
    assert "20 new rows" in " ".join(works("update", path, new).split())


def test_times_in_another_unit_are_told_by_their_size(model: Paths, tmp_path: Path) -> None:
    """Milliseconds of a browser are the same moments, and the same rows."""
    path, new = model
    moments = pl.col("timestamp").str.to_datetime(time_unit="us").dt.epoch("ms")
    pl.read_csv(new).with_columns(moments).write_csv(tmp_path / "ms.csv")
    works("update", path, new)
    assert "no new rows" in works("update", path, tmp_path / "ms.csv")


def test_small_times_count_in_the_unit_of_the_model(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {"user_id": [1, 1, 2, 2], "item_id": [1, 2, 1, 3], "timestamp": [5, 9, 6, 8]}
    )
    rows.write_csv(tmp_path / "a.csv")
    rows.with_columns(pl.col("timestamp") + 90).write_csv(tmp_path / "b.csv")
    path = tmp_path / "m.tale"
    works("fit", tmp_path / "a.csv", "-o", path, "--time-unit", "ms", "--updatable")
    works("update", path, tmp_path / "b.csv")
    assert tr.load(path).fitted.training["last_time"] == 99_000


def test_the_log_of_another_shop_is_mentioned(model: Paths, tmp_path: Path) -> None:
    path, new = model
    other = pl.read_csv(new).with_columns(item_id="x" + pl.col("item_id").cast(pl.String))
    other.write_csv(tmp_path / "other.csv")
    outcome = talerec("update", path, tmp_path / "other.csv")
    assert outcome.code == 0
    assert (
        "no item of the 25 new rows is in the model: are they from the same source?" in outcome.err
    )


def test_somebody_else_who_is_faster_is_not_undone(
    model: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = model
    from talerec import models

    real = models.update

    def slow(*args: Any, **more: Any) -> Any:
        done = real(*args, **more)
        tr.Popular().fit(tr.synthetic_log(200)).save(path)
        return done

    monkeypatch.setattr(models, "update", slow)
    assert "was replaced by another process" in refusal("update", path, new)
    assert read_manifest(path)["model"] == "popular"


def test_what_only_an_update_needs_is_not_in_other_artifacts(model: Paths, tmp_path: Path) -> None:
    loaded = tr.load(model[0])
    loaded.save(tmp_path / "plain.tale")
    names = read_manifest(tmp_path / "plain.tale")["files"]
    assert not {"trends", "residual", *(n for n in names if n.startswith("triangle"))} & set(names)
    bare = tr.load(loaded.save(tmp_path / "bare.tale", histories=False))
    with pytest.raises(TalerecError, match="saved without histories"):
        tr.update(bare, tr.synthetic_log(100))


# -- read as the fit read --------------------------------------------------------------------------


ODD = {"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"}
NAMED = ("--user", "customer", "--item", "sku", "--time", "bought_at", "--sep", ";")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with a model of a log with odd columns, rows that came later, and item tables."""
    table = pl.read_csv(write_log(tmp_path / "all.csv", users=30, rows=400)).rename(ODD)
    table.head(380).write_csv(tmp_path / "old.csv", separator=";")
    late = table.tail(20).with_columns(sku=pl.lit("late"))
    pl.concat([table.tail(20), late]).write_csv(tmp_path / "new.csv", separator=";")
    named = pl.DataFrame({"sku": [f"i{n}" for n in range(12)]})
    named = named.with_columns(title=pl.col("sku") + " as it was", price=pl.arange(12))
    named.write_csv(tmp_path / "items.csv", separator="|")
    options = ("--items", tmp_path / "items.csv", "--items-sep", "|", "--updatable")
    works(
        "fit", tmp_path / "old.csv", "-o", tmp_path / "m.tale", "--model", "tale", *NAMED, *options
    )
    return tmp_path


def test_an_update_reads_its_rows_as_the_fit_did(odd: Path) -> None:
    assert read_manifest(odd / "m.tale")["training"]["read_with"] == {
        "user": "customer", "item": "sku", "time": "bought_at", "sep": ";", "items_sep": "|",
    }  # fmt: skip
    shutil.copytree(odd / "m.tale", odd / "told.tale")
    unnamed = talerec("update", odd / "m.tale", odd / "new.csv", "--json").json
    other = talerec("update", odd / "told.tale", odd / "new.csv", *NAMED, "--json").json
    assert unnamed["rows"] == 40
    assert unnamed["version"] == other["version"]
    repeated = talerec("update", odd / "m.tale", odd / "new.csv", "--json").json  # and it is kept
    assert (repeated["rows"], repeated["version"]) == (0, unnamed["version"])


def test_what_an_update_is_told_replaces_what_the_fit_was(odd: Path) -> None:
    back = {name: default for default, name in ODD.items()}
    pl.read_csv(odd / "new.csv", separator=";").rename(back).write_csv(odd / "usual.csv")
    default = ("--user", "user_id", "--item", "item_id", "--time", "timestamp", "--sep", ",")
    assert (
        talerec("update", odd / "m.tale", odd / "usual.csv", *default, "--json").json["rows"] == 40
    )
    said = refusal("update", odd / "m.tale", odd / "usual.csv", "--sep", ",")
    assert "there is no column 'customer'" in said
    assert said.endswith(
        "the model was fitted with --user customer --item sku --time bought_at --items-sep '|'"
    )
    pl.read_csv(odd / "usual.csv").rename(ODD).write_parquet(odd / "usual.parquet")
    parquet = talerec("update", odd / "m.tale", odd / "usual.parquet", "--json").json
    assert parquet["rows"] == 0  # no separator is asked of Parquet
    day = odd / "days" / "date=2026-11-15"
    day.mkdir(parents=True)
    shutil.copy(odd / "usual.parquet", day)
    for folder in (day, odd / "days"):
        assert talerec("update", odd / "m.tale", folder, "--json").json["rows"] == 0
    lists = talerec("lists", odd / "m.tale", odd / "days", "-o", odd / "lists.parquet", "--json")
    assert lists.json["users"] > 0


def test_new_items_without_a_row_in_the_item_table_are_told(odd: Path) -> None:
    done = talerec("update", odd / "m.tale", odd / "new.csv")
    assert "1 of 1 new items have no row in the item table, such as late" in done.err
    info = tr.load(odd / "m.tale").fitted.info
    assert info.filter(pl.col("item_id") == "late")["title"].to_list() == [None]


def test_an_update_refreshes_the_item_table_also_without_new_rows(odd: Path) -> None:
    rows = "sku|title|stock\ni3|Three|7\nlate|Late|0\nnever|Never|1\n"
    (odd / "later.csv").write_text(rows)
    done = talerec("update", odd / "m.tale", odd / "new.csv", "--items", odd / "later.csv")
    assert "no row in the item table" not in done.err
    info = tr.load(odd / "m.tale", verify=True).fitted.info
    actual = {row["item_id"]: row for row in info.iter_rows(named=True)}
    assert info.columns == ["item_id", "title", "price", "stock"]
    assert actual["i3"] == {"item_id": "i3", "title": "Three", "price": None, "stock": 7}
    assert actual["i4"] == {"item_id": "i4", "title": "i4 as it was", "price": 4, "stock": None}
    assert actual["late"]["title"] == "Late"
    assert set(actual) == {"late", *(f"i{n}" for n in range(12))}
    (odd / "later.csv").write_text("sku|title|price\ni3|Drei|dear\n")
    said = works("update", odd / "m.tale", odd / "new.csv", "--items", odd / "later.csv")
    assert "no new rows (40 were known already); new item table" in said
    after = tr.load(odd / "m.tale", verify=True)
    assert after.fitted.info["title"].to_list().count("Drei") == 1
    assert "Drei" in works("similar", odd / "m.tale", "i3", "-k", 3)


@pytest.mark.parametrize("facts", [None, 7, {"log": "x", "core": 3}, {"user": 5, "sep": ["x"]}])
def test_what_no_fit_was_told_is_not_read_from_a_manifest(odd: Path, facts: Any) -> None:
    bundle = read_artifact(odd / "m.tale")
    bundle.facts["training"]["read_with"] = facts
    bundle.facts.pop("format")
    arrays = {name: np.array(array) for name, array in bundle.arrays.items()}
    write_artifact(odd / "m.tale", Bundle(bundle.facts, arrays, bundle.tables))
    done = talerec("update", odd / "m.tale", odd / "new.csv", *NAMED, "--json").json
    assert done["rows"] == 40
