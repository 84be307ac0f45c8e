"""Files that are whole or not there: written under another name first, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from talerec.errors import TalerecError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """The name to write to; it becomes `path` once all went well, and is gone otherwise."""
    output = Path(path)
    if output.is_dir():
        raise TalerecError(f"{output} cannot be written: it is a folder")
    unfinished = output.with_name(f"{output.name}.new")
    try:
        yield unfinished
        os.replace(unfinished, output)
    except OSError as error:
        raise TalerecError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, as UTF-8 with plain line ends on every system."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def check_writable(path: Path) -> Path:
    """Refuse a file that could not be written, before the work that it is to hold."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be written: its folder is not there"
        raise TalerecError(f"{path} {problem}")
    return path
