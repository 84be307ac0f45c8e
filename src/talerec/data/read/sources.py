"""Sources of a log: files, folders, patterns, standard input, pipes, remote addresses."""

from __future__ import annotations

import base64
import csv
import glob
import json
import logging
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import polars as pl

from talerec.data.read import formats
from talerec.data.read.databases import database_file, hide_secrets, remove_secrets
from talerec.data.read.formats import DELIMITERS, RATING
from talerec.errors import InvalidLogError, TalerecError

logger = logging.getLogger("talerec")

STANDARD_INPUT = "-"
Source = str | Path

#: Cloud stores that Polars reads; their keys come from the environment.
_CLOUDS = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "hf")
_WEB = ("http", "https")
_HIVE_EMPTY = "__HIVE_DEFAULT_PARTITION__"
_TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class SourceFile:
    """A file of a log: its path, its name for messages, and its Hive partition columns.

    Hive partitions are folders called column=value in the path.
    """

    path: Path | str  # str: a remote address
    name: str  # without passwords
    partitions: dict[str, str | None] = field(default_factory=dict)  # column -> value; None: null


def source_name(source: Source | Sequence[Source]) -> str:
    """Return the name of a log for messages, without passwords: its first path, and a count.

    A source is a path or address, or a list of them: "a.csv and 2 more".
    """
    paths = [source] if isinstance(source, str | Path) else source
    first = hide_secrets(str(paths[0])) if paths else "nothing"
    return first if len(paths) < 2 else f"{first} and {len(paths) - 1} more"


@contextmanager
def open_source(source: Source | Sequence[Source]) -> Iterator[list[SourceFile]]:
    """Yield the files of a log, in order; streams and downloads are temporary files.

    `source` is a path, a folder, a pattern, "-" for standard input, or an address, or a list of
    them. The temporary files are removed at the end. TalerecError if there is no such file.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    if not sources:
        raise TalerecError("a log needs at least one path")
    if [str(path) for path in sources].count(STANDARD_INPUT) > 1:
        raise TalerecError("standard input (-) can be read only once")
    with tempfile.TemporaryDirectory(prefix="talerec-") as folder:
        yield [
            file
            for number, path in enumerate(sources)
            for file in _list_files(str(path), Path(folder) / str(number))
        ]


def _list_files(text: str, spool: Path) -> list[SourceFile]:
    """Return the files that a path, a pattern, "-" (standard input) or an address stands for.

    Standard input and web downloads are written to a temporary file named `spool` plus an ending;
    addresses of cloud stores stay addresses. TalerecError if there is no such file.
    """
    scheme = urlsplit(text).scheme.lower() if "://" in text else ""
    if text == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.isatty():
            raise TalerecError("standard input is a terminal: pipe a log into it, or name a file")
        return [SourceFile(_write_spool(sys.stdin.buffer, spool), "standard input")]
    if scheme in _WEB:
        return [SourceFile(_download(text, spool), hide_secrets(text))]
    if scheme in _CLOUDS:
        return [SourceFile(text, hide_secrets(text))]
    if scheme == "file":
        text = unquote(urlsplit(text).path)
    elif scheme:
        raise TalerecError(
            f"{hide_secrets(text)}: addresses begin with {', '.join((*_WEB, *_CLOUDS))} "
            "or the name of a database"
        )
    return _list_local(text, spool)


def _list_local(text: str, spool: Path) -> list[SourceFile]:
    """Return the files of a local path: a file, a folder, a named pipe or a glob pattern.

    `text` is the path. A pipe is written to a temporary file named `spool` plus an ending.
    TalerecError if there is no such file.
    """
    path = Path(text)
    if path.is_dir():
        return _list_folder(path)
    if path.exists():
        if stat.S_ISFIFO(path.stat().st_mode):
            with path.open("rb") as stream:
                return [SourceFile(_write_spool(stream, spool, formats.file_format(path)), text)]
        return [SourceFile(path, text, _parse_hive_partitions(path))]
    if not glob.has_magic(text):
        raise TalerecError(f"{text} does not exist")
    matched = sorted(Path(name) for name in glob.glob(text, recursive=True))
    files: dict[str, SourceFile] = {}
    for path in matched:
        for file in _list_folder(path) if path.is_dir() else [_local_source_file(path)]:
            files[file.name] = file
    if not files:
        raise TalerecError(f"no file matches {text}")
    return list(files.values())


def _local_source_file(path: Path) -> SourceFile:
    """Return a local file, named by its path in messages, with its Hive partition columns.

    These are the folders called column=value in the path.
    """
    return SourceFile(path, str(path), _parse_hive_partitions(path))


def _list_folder(folder: Path) -> list[SourceFile]:
    """Return the readable files in and below a folder, by name; an error if of two formats.

    TalerecError too if the folder is a saved model, or has no file in a supported format. Hidden
    files are skipped.
    """
    if (folder / "manifest.json").exists() and folder.suffix == ".tale":
        raise TalerecError(f"{folder} is a saved model, not a log")
    visible = (path for path in sorted(folder.rglob("*")) if not _is_hidden(path, folder))
    paths = [path for path in visible if path.is_file()]
    files = [path for path in paths if formats.file_format(path) in formats.SCANNERS]
    if not files:
        raise TalerecError(f"{folder} is a folder without a file that talerec reads")
    kinds = sorted({formats.file_format(path) for path in files})
    if len(kinds) > 1:
        raise TalerecError(
            f"{folder} holds {' and '.join(kinds)} files; "
            f"name one kind, such as '{folder}/**/*{kinds[0]}'"
        )
    if n_ignored := len(paths) - len(files):
        logger.info("%s: %s files of other formats are ignored", folder, f"{n_ignored:,}")
    return [_local_source_file(path) for path in files]


def may_be_text(text: str) -> bool:
    """Return whether the files of a path can be delimited text, by their endings.

    `text` is a file, a pattern, an address, or a folder, whose readable files count.
    """
    path = Path(text)
    paths = [path]
    if path.is_dir():
        inside = (each for each in path.rglob("*") if not _is_hidden(each, path))
        paths = [each for each in inside if formats.file_format(each) in formats.SCANNERS]
    return all(formats.is_readable(each, ";") for each in paths)


def _is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path below `folder` is hidden (_SUCCESS, .part.crc) or part of a model.

    Names that begin with "." or "_" are hidden, except name=value; a model is a folder NAME.tale.
    """
    parts = path.relative_to(folder).parts
    is_in_model = any(part.endswith(".tale") for part in parts[:-1])
    return is_in_model or any(p.startswith((".", "_")) and "=" not in p for p in parts)


def _parse_hive_partitions(path: Path) -> dict[str, str | None]:
    """Return column -> value of the folders called column=value in a path; None is null.

    Partitions are these folders, as Hive and Spark write them; values are text.
    """
    pairs = (part.partition("=") for part in path.parts[:-1] if "=" in part)
    return {name: None if value == _HIVE_EMPTY else unquote(value) for name, _, value in pairs}


def refuse_overwriting(outputs: Sequence[Path | None], inputs: Sequence[Source | None]) -> None:
    """Raise TalerecError if an output is one of the inputs, or would match them next time.

    Inputs are paths, folders, patterns and addresses of logs; outputs are files to be written. None
    entries are ignored.
    """
    for out in outputs:
        for text in inputs:
            if out is not None and text is not None and _is_input(out.resolve(), str(text)):
                message = f"{out} is one of the inputs, and would be overwritten: name another file"
                raise TalerecError(message)


def _is_input(out: Path, text: str) -> bool:
    """Return whether the resolved path `out` is a file of the input `text`, or would match it.

    `text` is a path, a folder, a pattern or an address of a database, which a command reads; `out`
    is a file that it writes.
    """
    if "://" in text:
        file = database_file(text)
        return file is not None and file.resolve() == out
    path = Path(text).resolve()
    if path.is_dir():
        return path == out or (path in out.parents and out.suffix != ".tale")
    if path.exists():
        return path == out or (out.exists() and path.samefile(out))
    return glob.has_magic(text) and fnmatch(str(out), str(path))


# -- streams and downloads -------------------------------------------------------------------------


def _write_spool(stream: IO[bytes] | Any, spool: Path, ending: str = "") -> Path:
    """Write a stream to a file called `spool` plus an ending, and return its path.

    The ending is the given one if it names a supported format, else one that fits the content.
    """
    with spool.open("wb") as file:
        shutil.copyfileobj(stream, file, 2**20)
    kind = ending if ending in formats.SCANNERS else formats.detect_format(spool)
    return spool.rename(spool.with_name(spool.name + kind))


def _download(address: str, spool: Path) -> Path:
    """Write the content of a web address to a file called `spool` plus an ending.

    Returns the file's path. A login in the address is sent as basic authentication; no error
    message contains it.
    """
    parts = urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    request = Request(urlunsplit(parts._replace(netloc=host, fragment="")))
    if login:
        token = base64.b64encode(unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urlopen(request, timeout=_TIMEOUT) as response:
            return _write_spool(response, spool, formats.file_format(Path(parts.path)))
    except (URLError, OSError, ValueError) as error:
        if isinstance(error, TalerecError):
            raise
        reason = remove_secrets(address, str(error)) or type(error).__name__
        raise InvalidLogError(f"{hide_secrets(address)} cannot be read: {reason}") from None


# -- errors while reading --------------------------------------------------------------------------

_READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@contextmanager
def report_read_errors(file: SourceFile, sep: str | None) -> Iterator[None]:
    """Turn errors in the block, which reads `file`, into TalerecErrors that name the file.

    First TalerecError if the file's format is not supported; `sep` is the field separator of
    delimited text, None: by the file's ending.
    """
    if not formats.is_readable(file.path, sep):
        if sep is not None:
            message = f"{file.name}: `sep` goes with text files such as .csv"
            raise TalerecError(message, "sep", source=file.name)
        endings = ", ".join(formats.SCANNERS)
        raise TalerecError(
            f"{file.name} has no ending that talerec reads ({endings}; plain, .gz or .zst); "
            "set `sep` to read it as delimited text",
            "sep",
            source=file.name,
        )
    try:
        yield
    except TalerecError as error:
        error.locate(file.name)
        raise
    except pl.exceptions.NoDataError:
        raise InvalidLogError(f"{file.name}: the file is empty", source=file.name) from None
    except _READ_ERRORS as error:
        reason = _find_reason(file, sep, error)
        raise InvalidLogError(f"{file.name} cannot be read: {reason}", source=file.name) from None


def _find_reason(file: SourceFile, sep: str | None, error: BaseException) -> str:
    """Return what is wrong with a file: the line at fault, or else the reader's message.

    `file` is a file of a log that could not be read, `error` the reader's exception, and `sep` the
    field separator, None: by the file's ending. Remote files are not searched.
    """
    message = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(file.path, str):
        return remove_secrets(file.path, message)
    kind = ".csv" if sep else formats.file_format(file.path)
    finders = [_find_undecoded_line, _find_long_line if kind in DELIMITERS else _find_broken_line]
    for find in finders if kind not in (*formats.PARQUET, ".dat") else []:
        with suppress(OSError, csv.Error):  # a truncated stream, which `error` reports
            if problem := find(file.path, kind, sep or DELIMITERS.get(kind, ",")):
                return problem
    return message


def _find_undecoded_line(path: Path, kind: str, sep: str) -> str | None:
    """Return a sentence about the first line of a file that is not UTF-8, or None.

    `kind` and `sep` are not used: all finders of bad lines have the same arguments.
    """
    for number, line in enumerate(formats.read_lines(path), 1):
        if any("\udc80" <= sign <= "\udcff" for sign in line):
            return f"line {number} is not UTF-8 text"
    return None


def _find_long_line(path: Path, kind: str, sep: str) -> str | None:
    """Return a sentence about the first line with more fields than the header, or None.

    `kind` is the file's ending, and `sep` its field separator. Without a header, lines are ratings
    of four fields.
    """
    quoting: Any = csv.QUOTE_MINIMAL if kind == ".csv" else csv.QUOTE_NONE
    rows = csv.reader(formats.read_lines(path), delimiter=sep, quoting=quoting)
    headless = kind == ".data" or (kind == ".csv" and formats.has_no_header(path))
    width, reference = (len(RATING), "a rating") if headless else (len(next(rows)), "the header")
    for row in rows:
        if len(row) > width:
            return f"line {rows.line_num} has {len(row)} fields, but {reference} has {width}"
    return None


def _find_broken_line(path: Path, kind: str, sep: str) -> str | None:
    """Return a sentence about the first line that is not a JSON object, or None.

    A file of blank lines alone gets a sentence too. `kind` and `sep` are not used: all finders of
    bad lines have the same arguments.
    """
    blank = True
    for number, line in enumerate(formats.read_lines(path), 1):
        blank = blank and not line.strip()
        if line.strip() and not _is_object(line):
            return f"line {number} is not a JSON object: {line.strip()[:40]!r}"
    return "it holds no rows" if blank else None


def _is_object(line: str) -> bool:
    """Return whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
