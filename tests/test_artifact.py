"""Artifacts: what is saved is what is loaded, and a folder is whole at every moment."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import talerec as tr
from talerec import artifact
from talerec.artifact import Bundle
from talerec.errors import TalerecError
from talerec.runtime import files
from waiting import LONG_S, until

KILLS = int(os.environ.get("TALEREC_KILLS", "6"))
SOURCE = str(Path(artifact.__file__).parents[1])
PYTHONPATH = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
Change = Callable[[dict[str, Any]], Any]


# -- what the tests have in common -----------------------------------------------------------------


def tiny_log(seed: int = 0, rows: int = 120) -> tr.Log:
    rng = np.random.default_rng(seed)
    return tr.Log.from_frame(
        pl.DataFrame(
            {
                "user_id": rng.integers(0, 15, rows),
                "item_id": [f"i{x}" for x in rng.integers(0, 12, rows)],
                "timestamp": 1_600_000_000 + rng.integers(0, 10**7, rows),
            }
        )
    )


@pytest.fixture(scope="module")
def old() -> tr.Model:
    titles = pl.DataFrame({"item_id": ["i1", "i2"], "title": ["Één", "[b]two[/b]"]})
    return tr.TALE(reg=1.0, solver="exact").fit(tiny_log().with_items(titles))


@pytest.fixture(scope="module")
def new() -> tr.Model:
    return tr.TALE(reg=2.0, decay=math.inf, solver="exact").fit(tiny_log(1))


@pytest.fixture
def saved(old: tr.Model, tmp_path: Path) -> Path:
    return old.save(tmp_path / "m.tale")


def answers(model: tr.Model) -> list[pl.DataFrame]:
    """Everything that is asked of a model, to the last bit."""
    ids = model.item_ids.to_list()
    found = [
        model.recommend_histories([ids[:3], ids[4:5], []], 8, hide_seen=True),
        model.similar_items(ids[2], 5),
        model.explain(ids[:4], ids[5]),
    ]
    log = model.fitted.log
    return found if log is None else [*found, model.recommend(log.users.ids, 10)]


def same(one: tr.Model, other: tr.Model) -> bool:
    pairs = zip(answers(one), answers(other), strict=True)
    return one.params == other.params and all(a.equals(b) for a, b in pairs)


def data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".parquet"))


def manifest_of(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads((folder / "manifest.json").read_text(), parse_constant=refuse)


def edit_manifest(folder: Path, change: Change, *, rehash: bool = True) -> None:
    manifest = manifest_of(folder)
    change(manifest)
    if rehash:
        manifest["version"] = artifact._identity(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def refusal(folder: Path, **options: bool) -> str:
    with pytest.raises(TalerecError) as caught:
        tr.load(folder, **options)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def no_strays(folder: Path) -> bool:
    named = {entry["file"] for entry in manifest_of(folder)["files"].values()}
    return {path.name for path in folder.iterdir()} - named == {"manifest.json", artifact._LOCK}


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
    kept = artifact.read(saved)
    assert all(isinstance(array, np.memmap) for array in kept.arrays.values())
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
    assert manifest["format"] == artifact.FORMAT
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
    first, again, other = (
        artifact.read_manifest(model.save(tmp_path / name))["version"]
        for model, name in ((old, "a"), (old, "b"), (new, "c"))
    )
    assert first == again != other


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


def test_what_a_crash_left_behind_is_removed_and_what_is_not_ours_stays(
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


def test_a_file_is_no_target(old: tr.Model, tmp_path: Path) -> None:
    target = tmp_path / "m.tale"
    target.write_text("mine")
    with pytest.raises(TalerecError, match=r"m\.tale is a file; a model is a folder"):
        old.save(target)
    assert target.read_text() == "mine"


def test_a_folder_inside_a_file_is_no_target(old: tr.Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TalerecError, match=r"file/m\.tale cannot be written: .*file is a file"):
        old.save(tmp_path / "file" / "m.tale")


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "weights.npy"])
def test_a_folder_of_other_files_is_no_target(old: tr.Model, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "a web page"}')
    with pytest.raises(TalerecError, match=f"{tmp_path} holds other files"):
        old.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder_and_a_folder_that_is_not_there_are_targets(
    old: tr.Model, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "some" / "where" / "m.tale"):
        assert same(tr.load(old.save(target)), old)


def test_a_link_to_nothing_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "m.tale").symlink_to(tmp_path / "gone")
    with pytest.raises(TalerecError, match="link to nothing"):
        artifact.check_target(tmp_path / "m.tale")


def test_a_name_too_long_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(TalerecError, match="cannot be written: File name too long"):
        artifact.check_target(tmp_path / ("m" * 300))


def test_a_folder_without_permission_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    for target in (tmp_path, tmp_path / "deep" / "m.tale"):
        with pytest.raises(TalerecError, match=f"no permission in {tmp_path}"):
            artifact.check_target(target)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_no_target(old: tr.Model, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TalerecError, match="no permission"):
        old.save(tmp_path / "m.tale")


# -- damage ----------------------------------------------------------------------------------------


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


def test_the_manifest_says_what_an_array_is_whatever_its_header_says(
    old: tr.Model, saved: Path
) -> None:
    weights = next(saved.glob("weights-*.npy"))
    whole = weights.read_bytes()
    for place in range(128):
        flip(weights, place)
        assert artifact.read(saved).arrays["weights"].tobytes() == old.weights.tobytes()
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


@pytest.mark.parametrize("found", [0, 3, "3", None, [1]])
def test_another_format_is_refused_and_both_are_named(saved: Path, found: object) -> None:
    edit_manifest(saved, lambda m: m.update(format=found), rehash=False)
    assert f"has format {found!r}, and this version of talerec reads formats up to 2" in refusal(
        saved
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


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
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


# -- writers that fail -----------------------------------------------------------------------------


class Died(BaseException):
    """The process is no more: nothing that it would do happens."""


class Steps:
    """Calls by which a writer changes the disk. From step `at` on, each raises `error` (or only that one)."""

    def __init__(self, at: float, error: BaseException, *, once: bool) -> None:
        self.at, self.error, self.once, self.count = at, error, once, 0

    def watch(self, call: Callable[..., Any], *, torn: bool = False) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at and torn:
                writer, part = args
                call(writer, part[: len(part) // 2])
            if self.count == self.at or (self.count > self.at and not self.once):
                raise self.error
            return call(*args, **options)

        return watched

    @contextmanager
    def patched(self, *names: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in names:
                patch.setattr(os, name, self.watch(getattr(os, name)))
            patch.setattr(files, "_write_part", self.watch(files._write_part, torn=True))
            yield


CHANGES = ("replace", "fsync", "unlink", "mkdir", "rmdir")


def steps_to_save(model: tr.Model, folder: Path, names: tuple[str, ...]) -> int:
    steps = Steps(math.inf, Died(), once=False)
    with steps.patched(*names):
        model.save(folder)
    return steps.count


def test_a_crash_at_any_step_leaves_the_old_model_or_the_new_one(
    old: tr.Model, new: tr.Model, tmp_path: Path
) -> None:
    start = old.save(tmp_path / "start.tale")
    total = steps_to_save(new, Path(shutil.copytree(start, tmp_path / "count")), CHANGES)
    assert total > 25
    found = []
    for at in range(1, total + 1):
        folder = Path(shutil.copytree(start, tmp_path / f"{at}.tale"))
        with Steps(at, Died(), once=False).patched(*CHANGES), pytest.raises(Died):
            new.save(folder)
        loaded = tr.load(folder, verify=True)
        found.append(same(loaded, new))
        assert found[-1] or same(loaded, old)
        assert same(tr.load(new.save(folder), verify=True), new)
        assert no_strays(folder)
    assert found == sorted(found)  # first the old one, then the new one
    assert set(found) == {False, True}


def test_a_crash_at_any_step_of_the_first_save_leaves_no_model_or_a_whole_one(
    new: tr.Model, tmp_path: Path
) -> None:
    total = steps_to_save(new, tmp_path / "count" / "m.tale", CHANGES)
    for at in range(1, total + 1, 2):
        folder = tmp_path / str(at) / "m.tale"
        with Steps(at, Died(), once=False).patched(*CHANGES), pytest.raises(Died):
            new.save(folder)
        if (folder / "manifest.json").exists():
            assert same(tr.load(folder, verify=True), new)
        assert same(tr.load(new.save(folder), verify=True), new)
        assert no_strays(folder)


FILLED = ("replace", "fsync", "mkdir")


def test_a_full_disk_at_any_step_leaves_the_old_model_and_nothing_else(
    old: tr.Model, new: tr.Model, saved: Path
) -> None:
    copy = Path(shutil.copytree(saved, saved.with_name("count")))
    total = steps_to_save(new, copy, FILLED)
    before = sorted(saved.iterdir())
    failed = 0
    for at in range(1, total + 1):
        full = Steps(at, OSError(errno.ENOSPC, "No space left on device"), once=True)
        try:
            with full.patched(*FILLED):
                new.save(saved)
            old.save(saved)  # a folder that could not be synced is no failure
        except TalerecError as error:
            failed += 1
            assert str(error) == f"{saved} cannot be written: No space left on device"  # noqa: PT017
            assert same(tr.load(saved, verify=True), old)
            assert sorted(saved.iterdir()) == before
    assert failed > 20


def test_a_full_disk_during_the_first_save_leaves_nothing(new: tr.Model, tmp_path: Path) -> None:
    total = steps_to_save(new, tmp_path / "count", FILLED)
    failed = 0
    for at in range(1, total + 1):
        full = Steps(at, OSError(errno.ENOSPC, "No space left on device"), once=True)
        try:
            with full.patched(*FILLED):
                new.save(tmp_path / "some" / "where" / "m.tale")
            shutil.rmtree(tmp_path / "some")
        except TalerecError:
            failed += 1
            assert not (tmp_path / "some").exists()
    assert failed > 20


def test_a_file_that_the_system_cuts_short_is_a_failed_save(
    old: tr.Model, saved: Path, tmp_path: Path
) -> None:
    big = artifact.read(saved)
    big = Bundle(big.facts, {**big.arrays, "weights": np.zeros(10**6)}, big.tables)
    resource = pytest.importorskip("resource", exc_type=ImportError)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(TalerecError, match=f"{saved} cannot be written: File too large"):
            artifact.write(saved, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(tr.load(saved, verify=True), old)
    assert no_strays(saved)


def interrupted_at(line: int, work: Callable[[], object]) -> bool:
    """Run `work`, with Ctrl-C at the given line of artifact.py or files.py that it comes to. Did it come that far?"""
    seen = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in (artifact.__file__, files.__file__):
            return None
        seen += event == "line"
        if seen >= line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_anywhere_leaves_one_of_the_two_models_and_no_strays(
    old: tr.Model, new: tr.Model, saved: Path
) -> None:
    line = 1
    while interrupted_at(line, lambda: new.save(saved)):
        loaded = tr.load(saved, verify=True)
        assert same(loaded, old) or same(loaded, new)
        assert no_strays(saved)
        old.save(saved)
        line += 19
    assert line > 150


# -- writers and readers at once -------------------------------------------------------------------

WRITER = """
import sys, numpy as np, polars as pl
from pathlib import Path
from talerec.artifact import Bundle, write
path, number, enough = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
facts = {"model": "tale", "params": {}, "training": {"rows": number}}
print("ready", flush=True)
while True:
    last = enough.exists()
    for mine in (number, number + 1):
        array = np.full(20_000, mine)
        write(path, Bundle({**facts, "training": {"rows": mine}}, {"weights": array, "ptr": array[:9]},
                           {"items": pl.DataFrame({"item_id": [mine]})}))
    if last:
        break
"""


def start_writer(folder: Path, number: int, enough: Path) -> subprocess.Popen[str]:
    """Write two artifacts in turns until there is a file `enough`; the second is the last."""
    command = [sys.executable, "-c", WRITER, str(folder), str(number), str(enough)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def check_writers_bundle(folder: Path) -> int:
    kept = artifact.read(folder, verify=True)
    number = kept.facts["training"]["rows"]
    assert (kept.arrays["weights"] == number).all()
    assert (kept.arrays["ptr"] == number).all()
    assert kept.tables["items"].item() == number
    return int(number)


def test_two_writers_and_a_reader_at_once_never_see_a_mixture(tmp_path: Path) -> None:
    folder, enough = tmp_path / "m.tale", tmp_path / "enough"
    writers = [start_writer(folder, number, enough) for number in (10, 20)]
    seen: list[int] = []

    def has_read_enough() -> bool:
        if (folder / "manifest.json").exists():
            seen.append(check_writers_bundle(folder))
        ended = any(writer.poll() is not None for writer in writers)
        return ended or (len(seen) > 10 and len(set(seen)) > 2)

    try:
        until(has_read_enough)
    finally:
        enough.touch()
        codes = [writer.wait(LONG_S) for writer in writers]
    assert codes == [0, 0]
    for writer in writers:
        writer.communicate()
    assert len(seen) > 10
    assert set(seen) <= {10, 11, 20, 21}
    assert check_writers_bundle(folder) in (11, 21)
    assert no_strays(folder)


def test_a_writer_waits_for_a_folder_that_another_takes_away(
    new: tr.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first writer fails and removes the folder while the second waits for its lock."""
    folder, wait = tmp_path / "m.tale", files._wait_for
    taken = []

    def wait_and_lose(handle: Any, where: Path) -> None:
        wait(handle, where)
        if not taken:
            taken.append(where)
            shutil.rmtree(where)

    monkeypatch.setattr(files, "_wait_for", wait_and_lose)
    assert same(tr.load(new.save(folder)), new)
    assert taken


@pytest.mark.parametrize("delay", [0.005, 0.02])
def test_kill_9_in_the_middle_of_writing_leaves_a_whole_artifact(
    tmp_path: Path, delay: float
) -> None:
    folder = tmp_path / "m.tale"
    (tmp_path / "enough").touch()
    first = start_writer(folder, 0, tmp_path / "enough")
    assert first.wait() == 0
    first.communicate()
    writer = start_writer(folder, 10, tmp_path / "never")
    assert writer.stdout.readline() == "ready\n"
    time.sleep(delay)
    writer.kill()
    writer.communicate()
    assert check_writers_bundle(folder) in (1, 10, 11)


def fit_command(log: Path, folder: Path) -> list[str]:
    run = "from talerec.cli.main import main; main()"
    return [sys.executable, "-c", run, "fit", str(log), "-o", str(folder), "--set", "reg=3"]


def kill_while_fitting(folder: Path, log: Path, kills: int, seed: int = 0) -> int:
    """Kill `talerec fit` at moments spread over its duration, loading after each; how many died in time."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    options: dict[str, Any] = {"env": environment, "stdout": -3, "stderr": -3}
    start = time.perf_counter()
    assert subprocess.run(fit_command(log, folder), **options).returncode == 0
    duration = time.perf_counter() - start
    moments, died = random.Random(seed), 0
    for number in range(kills):
        fitting = subprocess.Popen(fit_command(log, folder), **options)
        time.sleep(duration * (number + moments.random()) / kills)
        fitting.kill()
        died += fitting.wait() == -signal.SIGKILL
        tr.load(folder, verify=True)
    return died


def test_kill_9_of_the_command_leaves_a_whole_model(
    old: tr.Model, saved: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    tiny_log().to_frame().write_csv(log)
    assert kill_while_fitting(saved, log, KILLS) > 0
    assert tr.load(saved, verify=True).params["reg"] == 3.0
