"""What went wrong with a file, in one line that names the file and, where it can be found, the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from talerec.data.read import formats
from talerec.data.read.databases import without_password
from talerec.data.read.sources import File
from talerec.errors import InvalidLogError, TalerecError

_READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@contextmanager
def named_errors(file: File, sep: str | None) -> Iterator[None]:
    """Whatever goes wrong with a file becomes one line that names the file."""
    if not formats.is_known(file.path, sep):
        if sep is not None:
            raise TalerecError(f"{file.name}: --sep goes with text files such as .csv")
        known = ", ".join(formats.SCANNERS)
        raise TalerecError(
            f"{file.name} has no ending that talerec reads ({known}; plain, .gz or .zst); --sep ';' reads it as text with ; between fields"
        )
    try:
        yield
    except TalerecError as error:
        if str(error).startswith(f"{file.name}:"):
            raise
        raise type(error)(f"{file.name}: {error}") from None
    except pl.exceptions.NoDataError:
        raise InvalidLogError(f"{file.name}: the file is empty") from None
    except _READ_ERRORS as error:
        raise InvalidLogError(f"{file.name} cannot be read: {_reason(file, sep, error)}") from None


def _reason(file: File, sep: str | None, error: BaseException) -> str:
    """The line at fault where one is found, else the first line of the reader's message."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(file.path, str):
        return without_password(file.path, said)
    kind = ".csv" if sep else formats.format_of(file.path)
    finders = [_undecoded_line, _long_line if kind in formats.DELIMITERS else _broken_line]
    for find in finders if kind not in (*formats.PARQUET, ".dat") else []:
        with suppress(OSError, csv.Error):  # a stream that ends too soon, which the error says
            if found := find(file.path, kind, sep or formats.DELIMITERS.get(kind, ",")):
                return found
    return said


def _undecoded_line(path: Path, kind: str, sep: str) -> str | None:
    for number, line in enumerate(formats.lines(path), 1):
        if any("\udc80" <= sign <= "\udcff" for sign in line):
            return f"line {number} is not UTF-8 text"
    return None


def _long_line(path: Path, kind: str, sep: str) -> str | None:
    rows = csv.reader(
        formats.lines(path),
        delimiter=sep,
        quoting=csv.QUOTE_MINIMAL if kind == ".csv" else csv.QUOTE_NONE,
    )
    headless = kind == ".data" or (kind == ".csv" and formats.has_no_header(path))
    width, whose = (
        (len(formats.RATING), "a rating") if headless else (len(next(rows)), "the header")
    )
    for row in rows:
        if len(row) > width:
            return f"line {rows.line_num} has {len(row)} fields, but {whose} has {width}"
    return None


def _broken_line(path: Path, kind: str, sep: str) -> str | None:
    blank = True
    for number, line in enumerate(formats.lines(path), 1):
        blank = blank and not line.strip()
        if line.strip() and not _is_object(line):
            return f"line {number} is not a JSON object: {line.strip()[:40]!r}"
    return "it holds no rows" if blank else None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
