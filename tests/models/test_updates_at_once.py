"""Several processes that change one saved model: no rows of a command that succeeds are lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from command import PYTHONPATH, RUN, refusal, works, write_log
from talerec.artifact import hold_for_update, install_artifact, read_manifest, write_artifact
from talerec.artifact.format import LOCK, read_artifact
from talerec.errors import ArtifactError, ReplacedArtifactError
from talerec.models.core import Model
from waiting import LONG_S

#: `talerec update`, which waits before it saves until the other update is there too, 3 s at most.
MEETING = """
import sys, time
from pathlib import Path
from talerec.cli.main import main
from talerec.models.core import Model

here, there, save = Path(sys.argv[1]), Path(sys.argv[2]), Model.save

def save_later(*args, **named):
    here.touch()
    end = time.monotonic() + 3
    while not there.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return save(*args, **named)

Model.save = save_later
sys.argv = ["talerec", *sys.argv[3:]]
main()
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that can be updated, and later rows in two files."""
    folder = tmp_path_factory.mktemp("shop")
    table = pl.read_csv(write_log(folder / "all.csv", users=30, rows=400))
    table.head(360).write_csv(folder / "old.csv")
    table.slice(360, 20).write_csv(folder / "a.csv")
    table.slice(380, 20).write_csv(folder / "b.csv")
    settings = ("--model", "tale", "--set", "solver=local", "--updatable")
    works("fit", folder / "old.csv", "-o", folder / "m.tale", *settings)
    return folder


@pytest.fixture
def path(shop: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shop / "m.tale", tmp_path / "m.tale")


def start(command: list[str], *args: object) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.Popen([*command, *map(str, args)], env=environment, **pipes)


def n_rows(path: Path) -> int:
    return int(read_manifest(path)["training"]["rows"])


def test_two_updates_that_save_at_the_same_time_both_count(shop: Path, path: Path) -> None:
    here, there = path.parent / "a", path.parent / "b"
    command = [sys.executable, "-c", MEETING]
    both = [
        start(command, here, there, "update", path, shop / "a.csv"),
        start(command, there, here, "update", path, shop / "b.csv"),
    ]
    ends = [(process.communicate(timeout=LONG_S), process.returncode) for process in both]
    assert [code for _, code in ends] == [0, 0], ends
    assert n_rows(path) == 400
    tr.load(path, verify=True)


@pytest.mark.slow
def test_no_row_of_an_update_that_succeeds_is_lost(shop: Path, tmp_path: Path) -> None:
    """Two processes at a time, started together, in several rounds; nothing slows them down."""
    for number in range(4):
        path = shutil.copytree(shop / "m.tale", tmp_path / f"{number}.tale")
        both = [start(RUN, "update", path, shop / f"{name}.csv") for name in "ab"]
        for process in both:
            process.communicate(timeout=LONG_S)
        assert n_rows(path) == 360 + 20 * sum(process.returncode == 0 for process in both)
        assert [process.returncode for process in both] == [0, 0]


def replace_just_before_saving(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another model take the place of the one at `path` when a model is about to be saved."""
    save = Model.save

    def save_second(self: Model, *args: Any, **named: Any) -> Path:
        monkeypatch.undo()
        tr.Popular().fit(tr.synthetic_log(200)).save(path)
        return save(self, *args, **named)

    monkeypatch.setattr(Model, "save", save_second)


def test_an_update_does_not_replace_a_model_that_was_installed_meanwhile(
    shop: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_just_before_saving(path, monkeypatch)
    message = refusal("update", path, shop / "a.csv")
    assert message.endswith("m.tale was replaced by another process meanwhile: run this again")
    assert read_manifest(path)["model"] == "popular"
    tr.load(path, verify=True)


def test_an_update_does_not_bring_back_a_model_that_was_removed(
    shop: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Model.save

    def save_after_removal(self: Model, *args: Any, **named: Any) -> Path:
        shutil.rmtree(path)
        return save(self, *args, **named)

    monkeypatch.setattr(Model, "save", save_after_removal)
    assert "was replaced by another process" in refusal("update", path, shop / "a.csv")
    assert not path.exists()


def test_the_version_is_compared_under_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces a model of a known version holds the lock from comparing to renaming."""
    from talerec.artifact import format as file_format

    other = tr.Popular().fit(tr.synthetic_log(200)).save(path.with_name("other.tale"))
    is_locked, compare = [], file_format._check_version

    def compare_and_probe(folder: Path, expected: str) -> None:
        import fcntl

        compare(folder, expected)
        with (folder / LOCK).open("rb") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked.append(True)

    monkeypatch.setattr(file_format, "_check_version", compare_and_probe)
    before = read_manifest(path)["version"]
    after = install_artifact(other, path, tr.load, replaces=before)
    assert is_locked == [True]
    with pytest.raises(ReplacedArtifactError, match="was replaced by another process"):
        install_artifact(other, path, tr.load, replaces=before)
    with pytest.raises(ReplacedArtifactError, match="was replaced by another process"):
        write_artifact(path, read_artifact(path), replaces=before)
    assert read_manifest(path)["version"] == after


def test_an_update_lock_needs_a_model(tmp_path: Path) -> None:
    def hold(path: Path) -> None:
        with hold_for_update(path):
            pass

    with pytest.raises(ArtifactError, match="does not exist"):
        hold(tmp_path / "nothing.tale")
    assert os.listdir(tmp_path) == []
