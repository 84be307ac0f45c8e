"""Whatever is wrong with an artifact is found, and told in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import talerec as tr
from bundles import Change, data_files, edit_manifest, flip, manifest_of, no_strays, refusal, same
from talerec.artifact import read_artifact
from talerec.artifact.integrity import FORMAT


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_flipped_byte_in_any_file_is_found_by_its_hash(saved: Path, share: float) -> None:
    for path in data_files(saved):
        whole = path.read_bytes()
        flip(path, int(share * (len(whole) - 1)))
        assert f"{path.name} is damaged: its hash does not match" in refusal(saved, verify=True)
        path.write_bytes(whole)
    tr.load(saved, verify=True)


def test_a_flipped_byte_in_a_table_is_found_by_plain_load(saved: Path) -> None:
    table = next(saved.glob("items-*.parquet"))
    flip(table, 40)
    assert f"{table.name} is damaged: its hash does not match" in refusal(saved)


def test_the_manifest_overrides_the_header_of_an_array(old: tr.Model, saved: Path) -> None:
    weights = next(saved.glob("weights-*.npy"))
    whole = weights.read_bytes()
    for place in range(128):
        flip(weights, place)
        assert read_artifact(saved).arrays["weights"].tobytes() == old.weights.tobytes()
        weights.write_bytes(whole)
    assert np.array_equal(np.load(weights), old.weights)


def test_a_truncated_file_is_found_by_plain_load(saved: Path) -> None:
    for path in data_files(saved):
        whole = path.read_bytes()
        for size in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            message = f"{path.name} is damaged: it has {size:,} bytes instead of {len(whole):,}"
            assert message in refusal(saved)
        path.write_bytes(whole)


def test_a_missing_file_is_named(saved: Path) -> None:
    path = data_files(saved)[0]
    path.unlink()
    assert f"{path.name} is missing" in refusal(saved)


def test_a_folder_in_the_place_of_a_file_is_damage(saved: Path) -> None:
    path = data_files(saved)[0]
    path.unlink()
    path.mkdir()
    assert f"{path.name} is damaged" in refusal(saved)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b'"format"', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1}'],
)
def test_a_garbage_manifest_is_damage(saved: Path, content: bytes) -> None:
    (saved / "manifest.json").write_bytes(content)
    assert "manifest.json is damaged" in refusal(saved)


def test_a_manifest_without_one_of_its_keys_is_damage(saved: Path) -> None:
    whole = (saved / "manifest.json").read_text()
    for key in set(manifest_of(saved)) - {"seconds", "saved", "versions"}:
        edit_manifest(saved, lambda m, key=key: m.pop(key), rehash=False)
        assert "manifest.json is damaged" in refusal(saved)
        (saved / "manifest.json").write_text(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(files=[]),
        lambda m: m.update(params=3),
        lambda m: m["files"].update(weights="weights.npy"),
        lambda m: m["files"]["weights"].pop("bytes"),
        lambda m: m["files"]["weights"].update(sha256=None),
        lambda m: m["files"]["weights"].update(file=7),
        lambda m: m["files"]["weights"].update(dtype="|O8"),
        lambda m: m["files"]["weights"].update(shape=[12, "12"]),
        lambda m: m["files"]["weights"].update(shape=[-1, -1]),
        lambda m: m["files"]["weights"].update(shape=[10**6, 10**6]),
        lambda m: m["files"]["weights"].pop("dtype"),
    ],
)
def test_a_manifest_of_the_wrong_shape_is_damage(saved: Path, change: Change) -> None:
    edit_manifest(saved, change)
    assert "manifest.json is damaged" in refusal(saved)


def test_a_manifest_changed_by_hand_is_damage(saved: Path) -> None:
    edit_manifest(saved, lambda m: m["params"].update(recency=9.0), rehash=False)
    assert "manifest.json is damaged" in refusal(saved)


@pytest.mark.parametrize("number", [0, FORMAT + 1, "3", None, [1]])
def test_another_format_is_refused_and_both_are_named(saved: Path, number: object) -> None:
    edit_manifest(saved, lambda m: m.update(format=number), rehash=False)
    assert (
        f"has format {number!r}, and this version of talerec reads formats up to {FORMAT}"
        in refusal(saved)
    )


def test_an_unknown_model_is_refused_by_name(saved: Path) -> None:
    edit_manifest(saved, lambda m: m.update(model="oracle"))
    assert "'oracle'" in refusal(saved)


@pytest.mark.parametrize(
    "name", ["../secret.npy", "/etc/passwd", "..", ".", "", "a/b-0123456789abcdef.npy", "x\0.npy"]
)
def test_a_manifest_cannot_point_outside_its_folder(saved: Path, name: str) -> None:
    np.save(saved.parent / "secret.npy", np.zeros(3))
    edit_manifest(saved, lambda m: m["files"]["weights"].update(file=name))
    assert "manifest.json is damaged" in refusal(saved)


def test_saving_over_a_manifest_that_points_outside_removes_nothing_there(
    saved: Path, new: tr.Model
) -> None:
    secret = saved.parent / "secret-0123456789abcdef.npy"
    secret.write_bytes(b"mine")
    edit_manifest(saved, lambda m: m["files"]["weights"].update(file=f"../{secret.name}"))
    new.save(saved)
    assert secret.read_bytes() == b"mine"


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.tale").write_text("hello")
    (tmp_path / "empty").mkdir()
    assert "gone does not exist" in refusal(tmp_path / "gone")
    for name in ("file.tale", "empty"):
        assert "is not a talerec model: it has no manifest.json" in refusal(tmp_path / name)


def test_a_damaged_model_can_be_replaced(saved: Path, new: tr.Model) -> None:
    (saved / "manifest.json").write_bytes(b"garbage")
    new.save(saved)
    assert same(tr.load(saved, verify=True), new)
    assert no_strays(saved)
