"""Read logs and item tables from files; an error names the file and what is wrong in one line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl

from talerec import columns
from talerec.data import formats
from talerec.data.frames import refuse_missing
from talerec.data.log import Log
from talerec.errors import InvalidLogError, TalerecError

_READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def read_log(
    path: str | Path,
    *,
    user: str = columns.USER,
    item: str = columns.ITEM,
    time: str = columns.TIME,
    time_unit: str | None = None,
    any_time: bool = False,
    items: str | Path | None = None,
) -> Log:
    """Read a log: CSV, TSV, Parquet, JSON lines, RecBole `.inter`, MovieLens `.dat`; plain, gzip or zstd.

    Files of MovieLens, Amazon and Yelp are read as they are published, with their names of columns.

    Parameters
    ----------
    path : str or Path
        The file.
    user, item, time : str
        The names of its columns.
    time_unit : {"s", "ms", "us", "ns"}, optional
        What times that are numbers count; by default their size tells.
    any_time : bool
        Whether times before 1970 and after 2100 are allowed.
    items : str or Path, optional
        A file that describes the items (see `read_items`).

    Returns
    -------
    Log

    Raises
    ------
    InvalidLogError
        If the file cannot be read, a column is missing, or a row has no usable id or time.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import talerec as tr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.parquet")
    ...     tr.synthetic_log(200).to_frame().write_parquet(path)
    ...     tr.read_log(path).rows
    200
    """
    side = None if items is None else read_items(items)
    path = Path(path)
    with _named_errors(path):
        frame = formats.scan(path)
        names = tuple(_column_names(frame, (user, item, time)))
        with _hinted(names):
            typed = formats.with_typed_ids(path, frame, [*names], [*names[:2]])
            options: dict[str, Any] = dict(zip(("user", "item", "time"), names, strict=True))
            log = Log.from_frame(typed, **options, time_unit=time_unit, any_time=any_time)
    return log if side is None else log.with_items(side)


def _column_names(frame: pl.LazyFrame, wanted: tuple[str, str, str]) -> Iterator[str]:
    """The columns to read: where a usual name is missing, that of a known publisher is taken."""
    there = set(frame.collect_schema().names())
    known = next((names for names in columns.PUBLISHED if there.issuperset(names)), columns.USUAL)
    for name, usual, other in zip(wanted, columns.USUAL, known, strict=True):
        yield other if name == usual and name not in there else name


@contextmanager
def _hinted(names: tuple[str, ...]) -> Iterator[None]:
    """An error about a missing column says which option names another."""
    try:
        yield
    except TalerecError as error:
        message = str(error)
        for flag, name in zip(("user", "item", "time"), names, strict=True):
            if f"no column {name!r}" in message:
                message += f" (--{flag} NAME says which to use)"
                break
        raise type(error)(message) from None


def read_items(path: str | Path, item: str = columns.ITEM) -> pl.DataFrame:
    """Read a table of items: their ids, and whatever describes them.

    Parameters
    ----------
    path : str or Path
        The file: `.item`, CSV, TSV, Parquet, JSON lines or `movies.dat`; plain, gzip or zstd.
    item : str
        The name of its column of ids.

    Returns
    -------
    polars.DataFrame
        The table; ids are in a column `item_id`, and titles, where there are any, in `title`.

    Raises
    ------
    InvalidLogError
        If the file cannot be read, or has no such column.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import talerec as tr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "items.csv")
    ...     _ = path.write_text("asin,name\\nB1,Tent\\n")
    ...     tr.read_items(path, item="asin").to_dicts()
    [{'item_id': 'B1', 'title': 'Tent'}]
    """
    path = Path(path)
    with _named_errors(path):
        frame = formats.scan(path)
        every = frame.collect_schema().names()
        table = formats.with_typed_ids(path, frame, every, []).collect()
        refuse_missing(table.columns, [item])
    if item != columns.ITEM:
        table = table.drop(columns.ITEM, strict=False).rename({item: columns.ITEM})
    title = next((name for name in columns.TITLES if name in table.columns), None)
    return table if title is None else table.rename({title: columns.TITLES[0]})


# -- errors ----------------------------------------------------------------------------------------


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file becomes one line that names the file."""
    if not path.exists():
        raise TalerecError(f"{path} does not exist")
    if path.is_dir():
        raise TalerecError(f"{path} is a folder; a log is a file")
    if formats.format_of(path) not in formats.SCANNERS:
        known = ", ".join(formats.SCANNERS)
        raise TalerecError(f"{path} has no ending that talerec reads ({known}; plain, .gz or .zst)")
    try:
        yield
    except TalerecError as error:
        raise type(error)(f"{path}: {error}") from None
    except pl.exceptions.NoDataError:
        raise InvalidLogError(f"{path}: the file is empty") from None
    except _READ_ERRORS as error:
        raise InvalidLogError(f"{path} cannot be read: {_reason(path, error)}") from None


def _reason(path: Path, error: BaseException) -> str:
    """The line at fault where one is found, else the first line of the reader's message."""
    kind = formats.format_of(path)
    finders = [_undecoded_line, _long_line if kind in formats.DELIMITERS else _broken_line]
    for find in finders if kind not in (*formats.PARQUET, ".dat") else []:
        with suppress(OSError, csv.Error):  # a stream that ends too soon, which the error says
            if found := find(path, kind):
                return found
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _undecoded_line(path: Path, kind: str) -> str | None:
    for number, line in enumerate(formats.lines(path), 1):
        if any("\udc80" <= sign <= "\udcff" for sign in line):
            return f"line {number} is not UTF-8 text"
    return None


def _long_line(path: Path, kind: str) -> str | None:
    rows = csv.reader(
        formats.lines(path),
        delimiter=formats.DELIMITERS[kind],
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


def _broken_line(path: Path, kind: str) -> str | None:
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
