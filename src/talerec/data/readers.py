"""Read files of interactions and of items; what is wrong with a file is said in one line that names it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import polars as pl

from talerec import columns
from talerec.data import formats
from talerec.data.frames import refuse_missing
from talerec.data.log import Log
from talerec.errors import TalerecError

_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


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
    """A log from CSV, TSV, Parquet, JSON lines, RecBole `.inter` or MovieLens `.dat`; plain, gzip or zstd.

    Files of MovieLens, Amazon and Yelp are read as they are published: their own names of columns
    (`columns.FOREIGN`) stand in for the usual ones where those are missing.

    `time_unit` (s, ms, us, ns) says what numbers mean; without it their size does. `any_time`
    lets times before 1970 and after 2100 through. `items` names a side table (see `read_items`).
    """
    side = None if items is None else read_items(items)
    path = Path(path)
    with _faults_named(path):
        frame = formats.scan(path)
        user, item, time = _names(frame, (user, item, time))
        try:
            log = Log.from_frame(
                formats.settled(path, frame, [user, item]),
                user=user,
                item=item,
                time=time,
                time_unit=time_unit,
                any_time=any_time,
            )
        except TalerecError as error:
            raise TalerecError(f"{error}{_hint(str(error), (user, item, time))}") from None
    return log if side is None else log.with_items(side)


def _names(frame: pl.LazyFrame, wanted: tuple[str, str, str]) -> Iterator[str]:
    """The columns to read: a usual name that is not there gives way to that of a known publisher."""
    there = set(frame.collect_schema().names())
    foreign = next((names for names in columns.FOREIGN if there.issuperset(names)), columns.USUAL)
    for name, usual, other in zip(wanted, columns.USUAL, foreign, strict=True):
        yield other if name == usual and name not in there else name


def _hint(message: str, names: tuple[str, str, str]) -> str:
    for flag, name in zip(("user", "item", "time"), names, strict=True):
        if f"no column {name!r}" in message:
            return f" (--{flag} NAME says which to use)"
    return ""


def read_items(path: str | Path, item: str = columns.ITEM) -> pl.DataFrame:
    """An item side table (`.item`, CSV, TSV, Parquet, JSON lines, `movies.dat`): ids and what describes them.

    The first column found under a usual name for titles is called `title`.
    """
    path = Path(path)
    with _faults_named(path):
        table = formats.settled(path, formats.scan(path), []).collect()
        refuse_missing(table.columns, [item])
    if item != columns.ITEM:
        table = table.drop(columns.ITEM, strict=False).rename({item: columns.ITEM})
    title = next((name for name in columns.TITLES if name in table.columns), None)
    return table if title is None else table.rename({title: columns.TITLES[0]})


# -- faults ----------------------------------------------------------------------------------------


@contextmanager
def _faults_named(path: Path) -> Iterator[None]:
    """What goes wrong with a file becomes one line that names it."""
    if not path.exists():
        raise TalerecError(f"{path} does not exist")
    if path.is_dir():
        raise TalerecError(f"{path} is a folder; a log is a file")
    if formats.format_of(path) not in formats.SCANNERS:
        known = ", ".join(formats.SCANNERS)
        raise TalerecError(f"{path} has no ending that talerec knows ({known}, plain, .gz or .zst)")
    try:
        yield
    except TalerecError as error:
        raise TalerecError(f"{path}: {error}") from None
    except pl.exceptions.NoDataError:
        raise TalerecError(f"{path}: the file is empty") from None
    except _FAULTS as error:
        raise TalerecError(f"{path} cannot be read: {_reason(path, error)}") from None


def _reason(path: Path, error: BaseException) -> str:
    """The line at fault where there is one, else the first line of what the reader said."""
    kind = formats.format_of(path)
    finders = [_foreign_line, _long_line if kind in formats.DELIMITERS else _broken_line]
    for find in finders if kind not in (*formats.PARQUET, ".dat") else []:
        with suppress(OSError, csv.Error):  # a stream that ends too soon, which the error says
            if found := find(path, kind):
                return found
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _foreign_line(path: Path, kind: str) -> str | None:
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
    bare = kind == ".data" or (kind == ".csv" and formats.is_bare(path))
    width, whose = (len(formats.RATING), "a rating") if bare else (len(next(rows)), "the header")
    for row in rows:
        if len(row) > width:
            return f"line {rows.line_num} has {len(row)} fields, but {whose} has {width}"
    return None


def _broken_line(path: Path, kind: str) -> str | None:
    blank = True
    for number, line in enumerate(formats.lines(path), 1):
        blank = blank and not line.strip()
        if line.strip() and not _is_object(line):
            return f"line {number} is no JSON object: {line.strip()[:40]!r}"
    return "it holds no rows" if blank else None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
