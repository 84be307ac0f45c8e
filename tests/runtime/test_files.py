"""A file is whole or not there."""

from __future__ import annotations

import os

import pytest

from talerec import TalerecError
from talerec.runtime.files import atomic_write, write_text


def test_a_text_is_written_as_it_is(tmp_path):
    path = write_text(tmp_path / "a.html", "zwölf\n– 12\n")
    assert path.read_bytes() == "zwölf\n– 12\n".encode()
    assert os.listdir(tmp_path) == ["a.html"]


def test_who_reads_the_old_file_goes_on_reading_it(tmp_path):
    path = write_text(tmp_path / "a.txt", "old")
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_stays_where_writing_fails(tmp_path, error):
    path = write_text(tmp_path / "a.txt", "old")

    def fail():
        with atomic_write(path) as unfinished:
            unfinished.write_text("half")
            raise error

    with pytest.raises((TalerecError, KeyboardInterrupt)):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(TalerecError, match=r"nowhere.*b\.txt cannot be written: No such file"):
        write_text(tmp_path / "nowhere" / "b.txt", "text")
    with pytest.raises(TalerecError, match="it is a folder"):
        write_text(tmp_path, "text")
    with pytest.raises(TalerecError, match=r"^\. cannot be written: it is a folder"):
        write_text("", "text")
