"""A FIFO, folder, socket or device in the place of a file is refused at once, never waited for."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import talerec as tr
from talerec.artifact import MANIFEST, hold_for_update
from talerec.artifact.format import LOCK
from talerec.artifact.integrity import manifest_version
from talerec.errors import ArtifactError
from talerec.runtime import file_lock, open_regular, read_regular
from waiting import LONG_S

if not hasattr(os, "mkfifo"):
    pytest.skip("this system has no FIFOs", allow_module_level=True)


@pytest.fixture(scope="module")
def model() -> tr.Model:
    return tr.Popular().fit(tr.synthetic_log(300, users=30, items=20, seed=1))


def outcome(work: Callable[[], object]) -> str:
    """Return the message of the error that `work` raises, "" for none; it must not hang."""
    messages: list[str] = []

    def run() -> None:
        try:
            work()
            messages.append("")
        except (OSError, ArtifactError) as error:
            messages.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG_S / 10)
    assert messages, "it waits"
    return messages[0]


def put_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


OTHERS = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "socket": put_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=OTHERS.values(), ids=OTHERS)
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts something into a place where a file is expected."""
    return request.param  # type: ignore[no-any-return]


def test_files_that_must_be_regular(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "x")

    def lock() -> None:
        with file_lock(tmp_path / "x"):
            pass

    for work in (lock, lambda: open_regular(tmp_path / "x"), lambda: read_regular(tmp_path / "x")):
        assert outcome(work).endswith("x is not a regular file")


def test_a_model_with_something_else_in_the_place_of_a_file(
    model: tr.Model, tmp_path: Path, put: Callable[[Path], None]
) -> None:
    path = model.save(tmp_path / "m.tale")
    for name in sorted(os.listdir(path)):
        broken = shutil.copytree(path, tmp_path / f"{name}.tale")
        (broken / name).unlink()
        put(broken / name)
        if name == LOCK:
            message = f"{name} is not a regular file"
            assert outcome(lambda broken=broken: model.save(broken)).endswith(message)
            assert tr.load(broken).name == "popular"
        else:
            assert "not a regular file" in outcome(lambda broken=broken: tr.load(broken))
            assert "not a regular file" in outcome(lambda b=broken: tr.load(b, verify=True))


def test_a_fifo_that_the_manifest_says_is_empty(model: tr.Model, tmp_path: Path) -> None:
    path = model.save(tmp_path / "m.tale")
    manifest = json.loads((path / MANIFEST).read_text())
    entry = manifest["files"]["items"]
    entry["bytes"] = 0
    manifest["version"] = manifest_version(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))
    (path / entry["file"]).unlink()
    os.mkfifo(path / entry["file"])
    assert "it is not a regular file" in outcome(lambda: tr.load(path))


def test_an_update_lock_that_is_none(
    model: tr.Model, tmp_path: Path, put: Callable[[Path], None]
) -> None:
    path = model.save(tmp_path / "m.tale")
    put(path / ".talerec.update.lock")

    def hold() -> None:
        with hold_for_update(path):
            pass

    assert outcome(hold).endswith(".talerec.update.lock is not a regular file")


def test_a_lock_does_not_empty_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "lock").symlink_to(tmp_path / "letter")
    with file_lock(tmp_path / "lock"):
        pass
    assert (tmp_path / "letter").read_text() == "dear"


def test_a_manifest_of_gigabytes_is_not_read(model: tr.Model, tmp_path: Path) -> None:
    path = model.save(tmp_path / "m.tale")
    with (path / MANIFEST).open("r+b") as file:
        file.truncate(2**40)
    assert "has more than 16,777,216 bytes" in outcome(lambda: tr.load(path))
