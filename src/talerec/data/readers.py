"""Files of interactions and of items, in the formats that people have."""

from __future__ import annotations

import csv
import glob
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import polars as pl

from talerec import columns
from talerec.data.log import Log, refuse_missing
from talerec.errors import TalerecError

_PACKED = (".gz", ".gzip", ".zst", ".zstd")
_DELIMITERS = {
    ".csv": ",",
    ".tsv": "\t",
    ".tab": "\t",
    ".inter": "\t",
    ".item": "\t",
    ".data": "\t",
}
_TEXTS = (*_DELIMITERS, ".dat")
_PARQUET = (".parquet", ".pq")
_JSON = (".ndjson", ".jsonl", ".json")
_FAULTS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

#: First bytes that tell what a file is, whatever its ending says.
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_STRANGERS = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}

#: Files without a header: what the fields of a rating and of a film are.
_RATING = (columns.USER, columns.ITEM, "rating", columns.TIME)
_FILM = (columns.ITEM, columns.TITLES[0], "genres")
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_BLANK = "\0blank"  # a column of ours beside those of a file
_UNIX_TIME = re.compile(r"\d{9,19}")  # from 1973 on, in any unit


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
        frame = _scan(path)
        user, item, time = _names(frame, (user, item, time))
        try:
            log = Log.from_frame(
                _settled(path, frame, [user, item, time], ids=[user, item]),
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
        frame = _scan(path)
        table = _settled(path, frame, frame.collect_schema().names(), ids=[]).collect()
        refuse_missing(table.columns, [item])
    if item != columns.ITEM:
        table = table.drop(columns.ITEM, strict=False).rename({item: columns.ITEM})
    title = next((name for name in columns.TITLES if name in table.columns), None)
    return table if title is None else table.rename({title: columns.TITLES[0]})


# -- formats ---------------------------------------------------------------------------------------


def _scan(path: Path) -> pl.LazyFrame:
    kind = _kind(path)
    _refuse_strangers(path, kind)
    return _SCANNERS[kind](path)


def _kind(path: Path) -> str:
    """The format, as the ending says."""
    endings = [ending.lower() for ending in path.suffixes]
    packed = len(endings) > 1 and endings[-1] in _PACKED
    return endings[-2 if packed else -1] if endings else ""


def _refuse_strangers(path: Path, kind: str) -> None:
    """A file whose first bytes show that it cannot be what its ending says."""
    with _unpacked(path) as stream:
        start = stream.read(4)
    if not start:
        raise TalerecError("the file is empty")
    if kind in _PARQUET and start != b"PAR1":
        raise TalerecError(f"its ending says {kind}, but the file is not Parquet")
    if kind in _JSON and start.lstrip().startswith(b"["):
        raise TalerecError(
            "the file is one JSON array; talerec reads lines, with one object in each"
        )
    for sign, what in _STRANGERS.items():
        if kind not in _PARQUET and start.startswith(sign):
            raise TalerecError(f"its ending says {kind}, but the file is {what}")


def _codec(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for sign, name in _CODECS.items() if start.startswith(sign)), None)


def _unpacked(path: Path) -> Any:
    """The file's bytes, decompressed if they are compressed."""
    codec = _codec(path)
    if codec is None:
        return path.open("rb")
    import pyarrow as pa

    return pa.input_stream(str(path), compression=codec)


def _csv(path: Path) -> pl.LazyFrame:
    if _is_bare(path):
        return _ratings(path, ",")
    return pl.scan_csv(path, infer_schema=False, glob=False)


def _is_bare(path: Path) -> bool:
    """Whether a CSV begins with a rating (user, item, rating, unix time), and not with a header."""
    try:
        fields = next(csv.reader([_first_line(path)]), [])
    except csv.Error:  # a field longer than any id
        return False
    if len(fields) != len(_RATING):
        return False
    rating, time = (field.strip() for field in fields[2:])
    return bool(_NUMBER.fullmatch(rating) and _UNIX_TIME.fullmatch(time))


def _ratings(path: Path, separator: str) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=separator,
        has_header=False,
        schema=dict.fromkeys(_RATING, pl.String()),
        quote_char='"' if separator == "," else None,
        glob=False,
    )


def _udata(path: Path) -> pl.LazyFrame:
    """MovieLens `u.data`: ratings with tabs between their fields."""
    fields = _first_line(path).count("\t") + 1
    if fields != len(_RATING):
        raise TalerecError(f"the first line has {fields} fields, but a rating has {len(_RATING)}")
    return _ratings(path, "\t")


def _dat(path: Path) -> pl.LazyFrame:
    """MovieLens `ratings.dat` and `movies.dat`: fields with `::` between them; UTF-8, else Latin-1."""
    lines = _whole_lines(path)
    fields = lines.str.count_matches("::", literal=True).fill_null(-1) + 1
    names = {len(kind): kind for kind in (_RATING, _FILM)}.get(fields[0])
    if names is None:
        raise TalerecError(
            f"line 1 has {fields[0]} fields; user::item::rating::time and item::title::genres are known"
        )
    if (odd := (fields != len(names)).arg_true()).len():
        number = odd[0]
        raise TalerecError(
            f"line {number + 1} has {fields[number]} fields, but line 1 has {len(names)}"
        )
    return (
        lines.str.split_exact("::", len(names) - 1)
        .struct.rename_fields(names)
        .struct.unnest()
        .lazy()
    )


def _whole_lines(path: Path) -> pl.Series:
    """The lines of a file as one column; a blank line is null, and those at the end are left out."""
    with _unpacked(path) as stream:
        content = stream.read().rstrip()
    if not content:
        raise TalerecError("it holds no rows")
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode()
    lines = pl.read_csv(
        io.BytesIO(content),
        has_header=False,
        separator="\x1f",  # in no text
        quote_char=None,
        schema={"line": pl.String()},
    )
    return lines.to_series().str.strip_chars_end("\r")


def _tsv(path: Path) -> pl.LazyFrame:
    return pl.scan_csv(path, separator="\t", infer_schema=False, quote_char=None, glob=False)


def _recbole(path: Path) -> pl.LazyFrame:
    """Tab-separated; a column is called `name:type`."""
    frame = _tsv(path)
    names = frame.collect_schema().names()
    return frame.rename({name: name.partition(":")[0] for name in names})


def _ndjson(path: Path) -> pl.LazyFrame:
    name, fields = glob.escape(str(path)), _published(path)
    if not fields:
        return pl.scan_ndjson(name, infer_schema_length=None)
    return pl.scan_ndjson(name, schema=dict.fromkeys(fields, pl.String()))


def _published(path: Path) -> list[str]:
    """The plain fields of a file of reviews as Amazon and Yelp publish them, else none.

    Such files hold gigabytes of prose: known fields save the pass that finds out what they are.
    """
    try:
        first = json.loads(_first_line(path))
    except (ValueError, RecursionError):
        return []
    if not isinstance(first, dict) or not any(first.keys() >= set(n) for n in columns.FOREIGN):
        return []
    return [name for name, value in first.items() if isinstance(value, str | int | float)]


def _parquet(path: Path) -> pl.LazyFrame:
    if _codec(path) is None:
        return pl.scan_parquet(path, glob=False)
    with _unpacked(path) as stream:
        return pl.read_parquet(io.BytesIO(stream.read())).lazy()


_SCANNERS: dict[str, Callable[[Path], pl.LazyFrame]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".tab": _tsv,
    ".inter": _recbole,
    ".item": _recbole,
    ".data": _udata,
    ".dat": _dat,
    ".ndjson": _ndjson,
    ".jsonl": _ndjson,
    ".json": _ndjson,
    ".parquet": _parquet,
    ".pq": _parquet,
}


def _settled(path: Path, frame: pl.LazyFrame, needed: list[str], ids: list[str]) -> pl.LazyFrame:
    """The needed columns of a text file, parsed once; ids that are all plain whole numbers become numbers.

    Every column takes part in that one pass, because Polars lets lines with too many fields pass when
    it reads only some of them (pola-rs/polars#28350). Blank lines at the end are not rows.
    """
    if _kind(path) not in _TEXTS:
        return frame
    names = frame.collect_schema().names()
    for name in ids:
        if f"{name}_duplicated_0" in names:  # Polars' name for the second of two
            raise TalerecError(f"there are 2 columns {name!r}")
    if not set(needed) <= set(names):
        return frame  # refused by whoever asks for the missing column
    blank = pl.all_horizontal(pl.all().is_null()).alias(_BLANK)
    table = frame.select(*dict.fromkeys(needed), blank).collect(engine="streaming")
    filled = (~table.drop_in_place(_BLANK)).arg_true()
    table = table.head(filled[-1] + 1 if len(filled) else 0)
    return table.with_columns(
        table[name].cast(pl.Int64) for name in dict.fromkeys(ids) if _is_whole(table[name])
    ).lazy()


def _is_whole(ids: pl.Series) -> bool:
    plain = ids.cast(pl.Int64, strict=False).cast(pl.String) == ids
    return (plain.fill_null(False) | ids.is_null()).all()


# -- faults ----------------------------------------------------------------------------------------


@contextmanager
def _faults_named(path: Path) -> Iterator[None]:
    """What goes wrong with a file becomes one line that names it."""
    if not path.exists():
        raise TalerecError(f"{path} does not exist")
    if path.is_dir():
        raise TalerecError(f"{path} is a folder; a log is a file")
    if _kind(path) not in _SCANNERS:
        known = ", ".join(_SCANNERS)
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
    kind = _kind(path)
    finders = [_foreign_line, _long_line if kind in _DELIMITERS else _broken_line]
    for find in finders if kind not in (*_PARQUET, ".dat") else []:
        with suppress(OSError, csv.Error):  # a stream that ends too soon, which the error says
            if found := find(path, kind):
                return found
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _lines(path: Path) -> Iterator[str]:
    stream = _unpacked(path)
    with io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="") as lines:
        yield from lines


def _first_line(path: Path) -> str:
    """The first line that is not blank."""
    return next((line for line in _lines(path) if line.strip()), "")


def _foreign_line(path: Path, kind: str) -> str | None:
    for number, line in enumerate(_lines(path), 1):
        if any("\udc80" <= sign <= "\udcff" for sign in line):
            return f"line {number} is not UTF-8 text"
    return None


def _long_line(path: Path, kind: str) -> str | None:
    rows = csv.reader(
        _lines(path),
        delimiter=_DELIMITERS[kind],
        quoting=csv.QUOTE_MINIMAL if kind == ".csv" else csv.QUOTE_NONE,
    )
    bare = kind == ".data" or (kind == ".csv" and _is_bare(path))
    width, whose = (len(_RATING), "a rating") if bare else (len(next(rows)), "the header")
    for row in rows:
        if len(row) > width:
            return f"line {rows.line_num} has {len(row)} fields, but {whose} has {width}"
    return None


def _broken_line(path: Path, kind: str) -> str | None:
    blank = True
    for number, line in enumerate(_lines(path), 1):
        blank = blank and not line.strip()
        if line.strip() and not _is_object(line):
            return f"line {number} is no JSON object: {line.strip()[:40]!r}"
    return "it holds no rows" if blank else None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
