"""A file is complete or absent."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from talerec import TalerecError
from talerec.runtime import atomic_replace, atomic_write, file_lock, write_synced, write_text
from waiting import LONG_S


def test_a_text_is_written_unchanged(tmp_path):
    path = write_text(tmp_path / "a.html", "zwölf\n– 12\n")
    assert path.read_bytes() == "zwölf\n– 12\n".encode()
    assert os.listdir(tmp_path) == ["a.html"]


def test_open_readers_of_the_old_file_can_continue(tmp_path):
    path = write_text(tmp_path / "a.txt", "old")
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_the_old_file_remains_if_writing_fails(tmp_path, error):
    path = write_text(tmp_path / "a.txt", "old")

    def fail():
        with atomic_write(path) as unfinished:
            unfinished.write_text("half")
            raise error

    with pytest.raises((TalerecError, KeyboardInterrupt)):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(TalerecError, match=r"nowhere.*b\.txt cannot be written: No such file"):
        write_text(tmp_path / "nowhere" / "b.txt", "text")
    with pytest.raises(TalerecError, match="it is a folder"):
        write_text(tmp_path, "text")
    with pytest.raises(TalerecError, match=r"^\. cannot be written: it is a folder"):
        write_text("", "text")


def test_two_writers_of_one_file_do_not_interfere(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_write(path, "one") as first, atomic_write(path, "two") as second:
        first.write_text("first")
        second.write_text("second")
        assert sorted(os.listdir(tmp_path)) == ["a.txt.one", "a.txt.two"]
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_atomic_replace_does_not_change_errors(tmp_path):
    with (
        pytest.raises(FileNotFoundError),
        atomic_replace(tmp_path / "gone" / "a.txt") as unfinished,
    ):
        write_synced(unfinished, [b"text"])
    with atomic_replace(tmp_path / "a.txt") as unfinished:
        write_synced(unfinished, [b"some ", memoryview(b"text")])
    assert (tmp_path / "a.txt").read_bytes() == b"some text"


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    if sys.platform != "win32":
        pytest.importorskip("fcntl", exc_type=ImportError)
    lock, inside, most = tmp_path / "folder" / ".lock", [], []

    def work() -> None:
        with file_lock(lock):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    workers = [threading.Thread(target=work) for _ in range(5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LONG_S)
    assert most == [1] * 5
