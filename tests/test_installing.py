"""`talerec install`: one model replaces another in one step, from a folder or an archive."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import talerec as tr
from command import RUN, refusal, works
from talerec.artifact import install as installing
from talerec.artifact import install_artifact, read_manifest
from talerec.artifact.format import LOCK
from talerec.errors import TalerecError


@pytest.fixture(scope="module")
def log() -> tr.Log:
    return tr.synthetic_log(800, users=60, items=40, seed=3)


@pytest.fixture(scope="module")
def new(log: tr.Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tr.TALE(reg=7).fit(log).save(tmp_path_factory.mktemp("new") / "new.tale")


@pytest.fixture
def old(log: tr.Log, tmp_path: Path) -> Path:
    return tr.TALE(reg=3).fit(log).save(tmp_path / "shop.tale")


def version(path: Path) -> str:
    return str(read_manifest(path)["version"])


def packed(folder: Path, path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as archive:
        archive.add(folder, arcname="models/new.tale")
    return path


def same_bytes(path: Path, other: Path) -> bool:
    names = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in (path, other)]
    for files in names:
        files.pop(LOCK, None)
    return names[0] == names[1]


def test_a_model_is_installed_over_another_and_in_a_new_place(new, old, tmp_path):
    assert version(new) in works("install", new, old)
    assert same_bytes(new, old)
    works("install", new, tmp_path / "first.tale")
    assert same_bytes(new, tmp_path / "first.tale")
    tr.load(old, verify=True)


@pytest.mark.parametrize(
    ("name", "mode"), [("m.tar", "w"), ("m.tar.gz", "w:gz"), ("m.tar.xz", "w:xz")]
)
def test_an_archive_is_installed(new, old, tmp_path, name, mode):
    works("install", packed(new, tmp_path / name, mode), old)
    assert same_bytes(new, old)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "shop.tale"])


def test_an_archive_comes_from_standard_input(new, old, tmp_path):
    with packed(new, tmp_path / "m.tar", "w").open("rb") as stream:
        subprocess.run(
            [*RUN, "install", "-", str(old)], stdin=stream, check=True, capture_output=True
        )
    assert same_bytes(new, old)


def test_a_model_in_use_outlives_an_install(new, old, log):
    """Mapped files are not touched: a new file is a new inode, even under the same name."""
    used = tr.load(old)
    before = {path.name: os.stat(path).st_ino for path in old.iterdir()}
    users = log.users.ids
    expected = used.recommend(users, 5)
    works("install", new, old)
    assert used.recommend(users, 5).equals(expected)
    common = [path for path in old.iterdir() if path.suffix == ".npy" and path.name in before]
    assert common  # the log is the same one
    assert all(os.stat(path).st_ino != before[path.name] for path in common)


def test_a_damaged_file_of_the_same_name_is_replaced(new, old):
    name = read_manifest(old)["files"]["time"]["file"]
    (old / name).write_bytes(b"")
    works("install", new, old)
    tr.load(old, verify=True)


@pytest.mark.parametrize("part", ["weights", "items", "manifest"])
def test_a_damaged_model_is_not_installed(new, old, tmp_path, part):
    bad = shutil.copytree(new, tmp_path / "bad.tale")
    entry = read_manifest(new)["files"].get(part)
    file = bad / (entry["file"] if entry else "manifest.json")
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    before = version(old)
    said = refusal("install", bad, old)
    assert "damaged" in said
    assert version(old) == before
    tr.load(old, verify=True)


def test_a_full_disk_leaves_the_old_model(new, old, monkeypatch):
    def full(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(installing.shutil, "copyfile", full)
    before = sorted(path.name for path in old.iterdir())
    with pytest.raises(TalerecError, match="No space left"):
        install_artifact(new, old, tr.load)
    assert sorted(path.name for path in old.iterdir()) == before
    tr.load(old, verify=True)


def test_mistakes_are_one_line(new, old, tmp_path):
    assert "same folder" in refusal("install", old, old)
    assert "does not exist" in refusal("install", tmp_path / "none.tale", old)
    text = tmp_path / "text.txt"
    text.write_text("not an archive")
    assert "not a complete tar archive" in refusal("install", text, old)
    cut = packed(new, tmp_path / "cut.tar", "w")
    cut.write_bytes(cut.read_bytes()[:3000])
    assert "tar archive" in refusal("install", cut, old) or "damaged" in refusal(
        "install", cut, old
    )
    assert "is a file" in refusal("install", new, text)


def test_an_archive_writes_nowhere_else(new, old, tmp_path):
    """Names that climb, links and devices are ignored; two models in one archive are refused."""
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("new.tale/manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        climb = tarfile.TarInfo("../../evil.txt")
        climb.size = 4
        archive.addfile(climb, io.BytesIO(b"evil"))
    assert "has no manifest.json" in refusal("install", path, old)
    with tarfile.open(path, "w") as archive:
        archive.add(new, arcname="a.tale")
        archive.add(new, arcname="b.tale")
    assert "files of two models" in refusal("install", path, old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar", "shop.tale"]
