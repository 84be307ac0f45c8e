"""Artifacts: loading gives what was saved, and a model is saved only where it may be."""

from __future__ import annotations

import math
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from bundles import data_files, manifest_of, no_strays, same, tiny_log
from command import SOURCE
from talerec.artifact import check_target, read_artifact, read_manifest
from talerec.artifact.integrity import FORMAT
from talerec.errors import TalerecError

# -- save, load ------------------------------------------------------------------------------------


def test_a_loaded_model_answers_to_the_last_bit_like_the_saved_one(
    old: tr.Model, saved: Path
) -> None:
    assert same(tr.load(saved), old)
    assert same(tr.load(str(saved), verify=True), old)


def test_infinite_parameters_come_back_and_the_manifest_stays_json(
    new: tr.Model, tmp_path: Path
) -> None:
    folder = new.save(tmp_path / "m.tale")
    assert manifest_of(folder)["params"]["decay"] == "inf"
    assert tr.load(folder).params["decay"] == math.inf
    assert same(tr.load(folder), new)


def test_a_model_of_base_scores_comes_back(tmp_path: Path) -> None:
    popular = tr.Popular().fit(tiny_log())
    assert same(tr.load(popular.save(tmp_path / "p.tale"), verify=True), popular)


def test_titles_come_back(old: tr.Model, saved: Path) -> None:
    assert tr.load(saved).fitted.info.equals(old.fitted.info)


def test_arrays_are_memory_mapped(saved: Path) -> None:
    bundle = read_artifact(saved)
    assert all(isinstance(array, np.memmap) for array in bundle.arrays.values())
    assert isinstance(tr.load(saved).weights, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tr.load(saved).weights[0, 0] = 1.0


def test_a_loaded_model_can_be_saved_over_itself(old: tr.Model, saved: Path) -> None:
    loaded = tr.load(saved)
    loaded.save(saved)
    assert same(tr.load(saved, verify=True), old)
    assert same(loaded, old)


def test_the_manifest_says_what_the_model_is(old: tr.Model, saved: Path) -> None:
    manifest = manifest_of(saved)
    assert manifest["format"] == FORMAT
    assert manifest["model"] == "tale"
    assert manifest["params"] == old.params
    assert manifest["training"]["rows"] == 120
    assert manifest["training"]["users"] == 15
    assert manifest["training"]["items"] == 12
    assert manifest["versions"]["talerec"] == tr.__version__
    assert {"python", "numpy", "scipy", "numba", "polars"} <= manifest["versions"].keys()


def test_the_manifest_has_size_and_hash_of_every_file_and_names_carry_the_hash(saved: Path) -> None:
    entries = {entry["file"]: entry for entry in manifest_of(saved)["files"].values()}
    assert sorted(entries) == [path.name for path in data_files(saved)]
    for path in data_files(saved):
        digest = subprocess.run(["sha256sum", path], capture_output=True, text=True).stdout[:64]
        assert entries[path.name]["sha256"] == digest
        assert entries[path.name]["bytes"] == path.stat().st_size
        assert f"-{digest[:16]}." in path.name


def test_the_same_model_has_the_same_version_and_another_has_another(
    old: tr.Model, new: tr.Model, tmp_path: Path
) -> None:
    first, second, other = (
        read_manifest(model.save(tmp_path / name))["version"]
        for model, name in ((old, "a"), (old, "b"), (new, "c"))
    )
    assert first == second != other


def test_nothing_is_pickled(saved: Path) -> None:
    assert {path.suffix for path in saved.iterdir()} - {".lock"} == {".json", ".npy", ".parquet"}
    for path in saved.glob("*.npy"):
        assert not np.load(path, allow_pickle=False).dtype.hasobject
    for source in Path(SOURCE, "talerec").rglob("*.py"):
        assert not re.search(r"import pickle|joblib|cloudpickle", source.read_text())


def test_without_histories_users_are_refused_and_histories_are_not(
    old: tr.Model, tmp_path: Path
) -> None:
    folder = old.save(tmp_path / "m.tale", histories=False)
    assert not {"ptr", "item", "time", "users"} & manifest_of(folder)["files"].keys()
    loaded = tr.load(folder)
    with pytest.raises(TalerecError, match="saved without histories"):
        loaded.recommend([1])
    assert loaded.recommend_histories([["i1"]], 3).equals(old.recommend_histories([["i1"]], 3))


# -- replacing -------------------------------------------------------------------------------------


def test_saving_again_replaces_the_model_and_removes_its_files(saved: Path, new: tr.Model) -> None:
    before = next(saved.glob("weights-*.npy"))
    new.save(saved)
    assert same(tr.load(saved, verify=True), new)
    assert not before.exists()
    assert no_strays(saved)


def test_a_model_in_use_outlives_its_replacement(saved: Path, old: tr.Model, new: tr.Model) -> None:
    loaded = tr.load(saved)
    new.save(saved)
    assert same(loaded, old)


def test_leftovers_of_a_crash_are_removed_and_other_files_are_not(
    saved: Path, new: tr.Model
) -> None:
    strays = [
        "weights-0123456789abcdef.npy", "weights-0123456789abcdef.npy.new", "items.parquet.new",
        "manifest.json.new",
    ]  # fmt: skip
    theirs = ["notes.txt", "my.npy", "users.parquet", "thing.new"]
    for name in strays + theirs:
        (saved / name).write_bytes(b"x")
    new.save(saved)
    left = {path.name for path in saved.iterdir()}
    assert not left & set(strays)
    assert left >= set(theirs)


# -- targets ---------------------------------------------------------------------------------------


def test_a_file_is_refused_as_target(old: tr.Model, tmp_path: Path) -> None:
    target = tmp_path / "m.tale"
    target.write_text("mine")
    with pytest.raises(TalerecError, match=r"m\.tale is a file; a model is a folder"):
        old.save(target)
    assert target.read_text() == "mine"


def test_a_folder_inside_a_file_is_refused_as_target(old: tr.Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TalerecError, match=r"file/m\.tale cannot be written: .*file is a file"):
        old.save(tmp_path / "file" / "m.tale")


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "weights.npy"])
def test_a_folder_of_other_files_is_refused_as_target(
    old: tr.Model, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text('{"name": "a web page"}')
    with pytest.raises(TalerecError, match=f"{tmp_path} holds other files"):
        old.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_and_a_missing_folder_are_targets(old: tr.Model, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "some" / "where" / "m.tale"):
        assert same(tr.load(old.save(target)), old)


def test_a_broken_link_is_refused_as_target(tmp_path: Path) -> None:
    (tmp_path / "m.tale").symlink_to(tmp_path / "gone")
    with pytest.raises(TalerecError, match="link to nothing"):
        check_target(tmp_path / "m.tale")


def test_too_long_a_name_is_refused_as_target(tmp_path: Path) -> None:
    with pytest.raises(TalerecError, match="cannot be written: File name too long"):
        check_target(tmp_path / ("m" * 300))


def test_a_folder_without_permission_is_refused_as_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    for target in (tmp_path, tmp_path / "deep" / "m.tale"):
        with pytest.raises(TalerecError, match=f"no permission in {tmp_path}"):
            check_target(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused_as_target(old: tr.Model, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TalerecError, match="no permission"):
        old.save(tmp_path / "m.tale")
