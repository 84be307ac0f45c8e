"""Files that are whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from talerec.errors import TalerecError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A name to write under; the file takes its own name when the block ends well."""
    unfinished = path.with_name(f"{path.name}.new")
    try:
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise TalerecError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: Path) -> Path:
    """Refuse a file that could not be written, before the work that it is to hold."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be written: its folder is not there"
        raise TalerecError(f"{path} {problem}")
    return path


def write_text(path: Path, text: str) -> None:
    with writing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
