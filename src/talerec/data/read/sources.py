"""Where a log comes from: files, folders, patterns, standard input, pipes, remote addresses."""

from __future__ import annotations

import base64
import glob
import logging
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from talerec.data.read import formats
from talerec.data.read.databases import file_of, shown, without_password
from talerec.errors import InvalidLogError, TalerecError

logger = logging.getLogger("talerec")

STANDARD_INPUT = "-"
Source = str | Path

#: Stores that Polars reads by itself; their keys come from the environment.
_CLOUDS = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "hf")
_WEB = ("http", "https")
_HIVE_EMPTY = "__HIVE_DEFAULT_PARTITION__"
_TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class File:
    """A file of a log: where its bytes are, what people call it, and what the names of its folders say."""

    path: Path | str  # the text of a remote address
    name: str
    partitions: dict[str, str | None] = field(default_factory=dict)  # Hive's: column -> value


def named(source: Source | Sequence[Source]) -> str:
    """A log's name for people."""
    every = [source] if isinstance(source, str | Path) else source
    first = shown(str(every[0])) if every else "nothing"
    return first if len(every) < 2 else f"{first} and {len(every) - 1} more"


@contextmanager
def opened(source: Source | Sequence[Source]) -> Iterator[list[File]]:
    """The files that a log consists of, in order; what is not a file yet is kept in one until the block ends."""
    given = [source] if isinstance(source, str | Path) else list(source)
    if not given:
        raise TalerecError("a log has one path at least")
    if [str(one) for one in given].count(STANDARD_INPUT) > 1:
        raise TalerecError("standard input (-) can be read once")
    with tempfile.TemporaryDirectory(prefix="talerec-") as folder:
        yield [
            file
            for number, one in enumerate(given)
            for file in _files(str(one), Path(folder) / str(number))
        ]


def _files(text: str, spool: Path) -> list[File]:
    scheme = urlsplit(text).scheme.lower() if "://" in text else ""
    if text == STANDARD_INPUT:
        return [File(_spooled_input(spool), "standard input")]
    if scheme in _WEB:
        return [File(_downloaded(text, spool), shown(text))]
    if scheme in _CLOUDS:
        return [File(text, shown(text))]
    if scheme == "file":
        text = unquote(urlsplit(text).path)
    elif scheme:
        raise TalerecError(
            f"{shown(text)}: addresses begin with {', '.join((*_WEB, *_CLOUDS))} or a database's name"
        )
    return _local(text, spool)


def _local(text: str, spool: Path) -> list[File]:
    path = Path(text)
    if path.is_dir():
        return _below(path)
    if path.exists():
        if stat.S_ISFIFO(path.stat().st_mode):
            with path.open("rb") as stream:
                return [File(_spooled(stream, spool, formats.format_of(path)), text)]
        return [File(path, text, _partitions(path))]
    if not glob.has_magic(text):
        raise TalerecError(f"{text} does not exist")
    matched = sorted(Path(name) for name in glob.glob(text, recursive=True))
    found = [
        file
        for one in matched
        for file in (_below(one) if one.is_dir() else [File(one, str(one), _partitions(one))])
    ]
    if not found:
        raise TalerecError(f"no file matches {text}")
    return list({file.name: file for file in found}.values())


def _below(folder: Path) -> list[File]:
    """The files of a folder by name."""
    if (folder / "manifest.json").exists() and folder.suffix == ".tale":
        raise TalerecError(f"{folder} is a saved model, not a log")
    every = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and not _hidden(path, folder)
    ]
    found = [path for path in every if formats.format_of(path) in formats.SCANNERS]
    if not found:
        raise TalerecError(f"{folder} is a folder without a file that talerec reads")
    kinds = sorted({formats.format_of(path) for path in found})
    if len(kinds) > 1:
        raise TalerecError(
            f"{folder} holds {' and '.join(kinds)} files; name one kind, such as '{folder}/**/*{kinds[0]}'"
        )
    if len(found) < len(every):
        logger.info(
            "%s: %s files of other kinds are left out", folder, f"{len(every) - len(found):,}"
        )
    return [File(path, str(path), _partitions(path)) for path in found]


def _hidden(path: Path, folder: Path) -> bool:
    """Is it a file that a writer left for itself (_SUCCESS, .part.crc), or in such a folder?"""
    parts = path.relative_to(folder).parts
    return any(part.startswith((".", "_")) and "=" not in part for part in parts) or any(
        part.endswith(".tale") for part in parts[:-1]
    )


def _partitions(path: Path) -> dict[str, str | None]:
    """The columns that folders called name=value stand for."""
    pairs = (part.partition("=") for part in path.parts[:-1] if "=" in part)
    return {name: None if value == _HIVE_EMPTY else unquote(value) for name, _, value in pairs}


def refuse_overwriting(outputs: Sequence[Path | None], inputs: Sequence[Source | None]) -> None:
    """An error where a file that is to be written is one that is to be read, or would be the next time."""
    for out in outputs:
        for text in inputs:
            if out is not None and text is not None and _is_read(out.resolve(), str(text)):
                raise TalerecError(
                    f"{out} is one of the inputs, and would be overwritten: name another file"
                )


def _is_read(out: Path, text: str) -> bool:
    if "://" in text:
        file = file_of(text)
        return file is not None and file.resolve() == out
    path = Path(text).resolve()
    if path.is_dir():
        return path == out or (path in out.parents and out.suffix != ".tale")
    if path.exists():
        return path == out or (out.exists() and path.samefile(out))
    return glob.has_magic(text) and fnmatch(str(out), str(path))


# -- what is not a file yet ------------------------------------------------------------------------


def _spooled_input(spool: Path) -> Path:
    if sys.stdin is None or sys.stdin.isatty():
        raise TalerecError("standard input is a terminal: pipe a log into it, or name a file")
    return _spooled(sys.stdin.buffer, spool)


def _spooled(stream: IO[bytes] | Any, spool: Path, ending: str = "") -> Path:
    """The bytes of a stream in a file, whose name ends as its content asks for unless an ending is known."""
    with spool.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)
    kind = ending if ending in formats.SCANNERS else formats.sniffed(spool)
    return spool.rename(spool.with_name(spool.name + kind))


def _downloaded(address: str, spool: Path) -> Path:
    parts = urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host, fragment="")))
    if login:
        token = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT) as answer:
            return _spooled(answer, spool, formats.format_of(Path(parts.path)))
    except (URLError, OSError, ValueError) as error:
        if isinstance(error, TalerecError):
            raise
        reason = without_password(address, str(error)) or type(error).__name__
        raise InvalidLogError(f"{shown(address)} cannot be read: {reason}") from None
