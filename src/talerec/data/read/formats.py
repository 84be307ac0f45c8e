"""File formats of logs and item tables: what a file is, and how each format is scanned."""

from __future__ import annotations

import codecs
import csv
import glob
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from talerec import columns
from talerec.errors import InvalidLogError

_PACKED = (".gz", ".gzip", ".zst", ".zstd")
DELIMITERS = {
    ".csv": ",",
    ".tsv": "\t",
    ".tab": "\t",
    ".inter": "\t",
    ".item": "\t",
    ".data": "\t",
}
_TEXT = (*DELIMITERS, ".dat")
PARQUET = (".parquet", ".pq")
_JSON = (".ndjson", ".jsonl", ".json")

#: First bytes that tell what a file is, whatever its ending says.
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_OTHER_FORMATS = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive (unpack it; of a spreadsheet, save a sheet as CSV)",
    b"\xff\xfe": "UTF-16 text (iconv -f UTF-16 -t UTF-8 FILE makes UTF-8 of it)",
    b"\xfe\xff": "UTF-16 text (iconv -f UTF-16 -t UTF-8 FILE makes UTF-8 of it)",
}

#: The fields of a rating and of a film in files without a header.
RATING = (columns.USER, columns.ITEM, "rating", columns.TIME)
_FILM = (columns.ITEM, columns.TITLES[0], "genres")
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_UNIX_TIME = re.compile(r"\d{9,19}")  # from 1973 on, in any unit
_BLANK = "\0blank"  # a column of ours beside those of a file


def scan(path: Path | str, sep: str | None = None) -> pl.LazyFrame:
    """The rows of a file, or of a remote address (text), not yet read; ids in text files are still text."""
    kind = format_of(path)
    if isinstance(path, str):
        return _remote(path, kind, sep)
    _refuse_other_formats(path, kind)
    if sep is None:
        return SCANNERS[kind](path)
    _refuse_long_separator(sep)
    return _untyped(_delimited(path, sep), kind)


def format_of(path: Path | str) -> str:
    """The format of a file, named by its ending (the one before .gz or .zst)."""
    place = Path(urlsplit(path).path) if isinstance(path, str) else path
    endings = [ending.lower() for ending in place.suffixes]
    packed = len(endings) > 1 and endings[-1] in _PACKED
    return endings[-2 if packed else -1] if endings else ""


def is_text(path: Path | str, sep: str | None = None) -> bool:
    """Does every value of the file come as text?"""
    return sep is not None or format_of(path) in _TEXT


def is_known(path: Path | str, sep: str | None = None) -> bool:
    """Is there a way to read the file?"""
    kind = format_of(path)
    if sep is not None:
        return kind not in (*PARQUET, *_JSON, ".dat")
    return kind in SCANNERS or (kind == "" and isinstance(path, str))


def other_separator(columns: list[str]) -> str | None:
    """What stands between the fields of a file that was read with another separator: its one column holds it."""
    found = (sign for sign in ";|\t," if len(columns) == 1 and sign in columns[0])
    return next(found, None)


def sniffed(path: Path) -> str:
    """The format of a file without a name that tells it, by its first line."""
    with _unpacked(path) as stream:
        start = stream.read(2**16)
    if start.startswith(b"PAR1"):
        return ".parquet"
    line = start.lstrip().split(b"\n", 1)[0]
    if line.startswith((b"{", b"[")):
        return ".ndjson"
    if line.count(b"\t") <= line.count(b","):
        return ".csv"
    return ".inter" if b":token" in line else ".tsv"


def _remote(address: str, kind: str, sep: str | None) -> pl.LazyFrame:
    if kind in PARQUET or (kind == "" and sep is None):  # a folder of Parquet files
        return pl.scan_parquet(address)
    if kind in _JSON:
        return pl.scan_ndjson(address, infer_schema_length=None)
    if kind in (".data", ".dat"):
        raise InvalidLogError(f"{kind} files are read from disk alone: fetch it first")
    sign = sep or DELIMITERS[kind]
    quote = '"' if kind == ".csv" or sep else None
    return _untyped(
        pl.scan_csv(address, separator=sign, infer_schema=False, quote_char=quote), kind
    )


def _refuse_long_separator(sep: str) -> None:
    if len(sep.encode()) != 1 or sep in '"\n\r':
        raise InvalidLogError(f"--sep is {sep!r}; it takes one character such as ; or \\t")


def _refuse_other_formats(path: Path, kind: str) -> None:
    """An error if the first bytes of a file show that it is not what its ending says."""
    with _unpacked(path) as stream:
        start = stream.read(8).removeprefix(codecs.BOM_UTF8)
    if not start:
        raise InvalidLogError("the file is empty")
    if start.startswith(b"sep="):
        raise InvalidLogError(
            "its first line says sep= to a spreadsheet: leave it out (tail -n +2 FILE), and give --sep"
        )
    if kind in PARQUET and not start.startswith(b"PAR1"):
        raise InvalidLogError(f"its ending says {kind}, but the file is not Parquet")
    if kind in _JSON and start.lstrip().startswith(b"["):
        raise InvalidLogError(
            "the file is one JSON array; talerec reads lines, with one object in each "
            "(jq -c '.[]' FILE makes such lines)"
        )
    for sign, what in _OTHER_FORMATS.items():
        if kind not in PARQUET and start.startswith(sign):
            raise InvalidLogError(f"its ending says {kind}, but the file is {what}")


def _codec(path: Path) -> str | None:
    """How a file is compressed, or None."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for sign, name in _CODECS.items() if start.startswith(sign)), None)


def _unpacked(path: Path) -> Any:
    """The bytes of a file, decompressed."""
    codec = _codec(path)
    if codec is None:
        return path.open("rb")
    import pyarrow as pa

    return pa.input_stream(str(path), compression=codec)


def lines(path: Path) -> Iterator[str]:
    """The lines of a file; bytes that are not UTF-8 become surrogates."""
    stream = _unpacked(path)
    with io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="") as lines:
        yield from lines


def _first_line(path: Path) -> str:
    """The first line that is not blank."""
    return next((line for line in lines(path) if line.strip()), "")


def _csv(path: Path) -> pl.LazyFrame:
    if has_no_header(path):
        return _ratings(path, ",")
    return pl.scan_csv(path, infer_schema=False, glob=False)


def has_no_header(path: Path) -> bool:
    """Whether a CSV begins with a rating (user, item, rating, unix time), and not with a header."""
    try:
        fields = next(csv.reader([_first_line(path)]), [])
    except csv.Error:  # a field longer than any id
        return False
    if len(fields) != len(RATING):
        return False
    rating, time = (field.strip() for field in fields[2:])
    return bool(_NUMBER.fullmatch(rating) and _UNIX_TIME.fullmatch(time))


def _ratings(path: Path, separator: str) -> pl.LazyFrame:
    """Ratings in a file without a header."""
    return pl.scan_csv(
        path,
        separator=separator,
        has_header=False,
        schema=dict.fromkeys(RATING, pl.String()),
        quote_char='"' if separator == "," else None,
        glob=False,
    )


def _udata(path: Path) -> pl.LazyFrame:
    """MovieLens `u.data`: ratings with tabs between their fields."""
    fields = _first_line(path).count("\t") + 1
    if fields != len(RATING):
        raise InvalidLogError(f"the first line has {fields} fields, but a rating has {len(RATING)}")
    return _ratings(path, "\t")


def _dat(path: Path) -> pl.LazyFrame:
    """MovieLens `ratings.dat` and `movies.dat`: fields with `::` between them; UTF-8, else Latin-1."""
    lines = _column_of_lines(path)
    fields = lines.str.count_matches("::", literal=True).fill_null(-1) + 1
    names = {len(kind): kind for kind in (RATING, _FILM)}.get(fields[0])
    if names is None:
        raise InvalidLogError(
            f"line 1 has {fields[0]} fields; user::item::rating::time and item::title::genres are known"
        )
    if (odd := (fields != len(names)).arg_true()).len():
        number = odd[0]
        raise InvalidLogError(
            f"line {number + 1} has {fields[number]} fields, but line 1 has {len(names)}"
        )
    return (
        lines.str.split_exact("::", len(names) - 1)
        .struct.rename_fields(names)
        .struct.unnest()
        .lazy()
    )


def _column_of_lines(path: Path) -> pl.Series:
    """The lines of a file as one column; blank lines are null, and left out at the end."""
    with _unpacked(path) as stream:
        content = stream.read().rstrip()
    if not content:
        raise InvalidLogError("it holds no rows")
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode()
    lines = pl.read_csv(
        io.BytesIO(content),
        has_header=False,
        separator="\x1f",  # a control character that no text contains
        quote_char=None,
        schema={"line": pl.String()},
    )
    return lines.to_series().str.strip_chars_end("\r")


def _tsv(path: Path) -> pl.LazyFrame:
    return pl.scan_csv(path, separator="\t", infer_schema=False, quote_char=None, glob=False)


def _delimited(path: Path, sep: str) -> pl.LazyFrame:
    return pl.scan_csv(path, separator=sep, infer_schema=False, glob=False)


def _recbole(path: Path) -> pl.LazyFrame:
    """Tab-separated; a column is called `name:type`."""
    return _untyped(_tsv(path))


def _untyped(frame: pl.LazyFrame, kind: str = ".inter") -> pl.LazyFrame:
    """Columns by their names alone, where RecBole's have types too."""
    if kind not in (".inter", ".item"):
        return frame
    names = frame.collect_schema().names()
    return frame.rename({name: name.partition(":")[0] for name in names})


def _ndjson(path: Path) -> pl.LazyFrame:
    name, fields = glob.escape(str(path)), _review_fields(path)
    if not fields:
        return pl.scan_ndjson(name, infer_schema_length=None)
    return pl.scan_ndjson(name, schema=dict.fromkeys(fields, pl.String()))


def _review_fields(path: Path) -> list[str]:
    """The plain fields of a file of reviews as Amazon and Yelp publish them; of other files, none.

    Such files hold gigabytes of prose: naming the fields saves a pass that finds them.
    """
    try:
        first = json.loads(_first_line(path))
    except (ValueError, RecursionError):
        return []
    if not isinstance(first, dict) or not any(first.keys() >= set(n) for n in columns.PUBLISHED):
        return []
    return [name for name, value in first.items() if isinstance(value, str | int | float)]


def _parquet(path: Path) -> pl.LazyFrame:
    if _codec(path) is None:
        return pl.scan_parquet(path, glob=False)
    with _unpacked(path) as stream:
        return pl.read_parquet(io.BytesIO(stream.read())).lazy()


SCANNERS: dict[str, Callable[[Path], pl.LazyFrame]] = {
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


def unnested(frame: pl.LazyFrame, names: list[str]) -> pl.LazyFrame:
    """The rows, with fields of nested objects that are asked for as columns: `order.customer.id`."""
    schema = frame.collect_schema()
    fields = ((name, _field(schema, name)) for name in names if name not in schema)
    return frame.with_columns(field.alias(name) for name, field in fields if field is not None)


def _field(schema: pl.Schema, name: str) -> pl.Expr | None:
    first, *path = name.split(".")
    kind: Any = schema.get(first)
    field = pl.col(first)
    for part in path:
        kind = dict(kind).get(part) if isinstance(kind, pl.Struct) else None
        field = field.struct.field(part)
    return field if path and kind is not None else None


def field_names(schema: pl.Schema) -> list[str]:
    """The names of columns; of nested objects, those of their fields."""
    return list(dict.fromkeys(name for top, kind in schema.items() for name in _leaves(top, kind)))


def _leaves(name: str, kind: Any) -> Iterator[str]:
    if not isinstance(kind, pl.Struct):
        yield name
        return
    for field, inner in kind:
        yield from _leaves(f"{name}.{field}", inner)


def text_columns(frame: pl.LazyFrame, needed: list[str]) -> pl.DataFrame:
    """The needed columns of a text file, parsed once, as text.

    Every column takes part in that one pass, because Polars lets lines with too many fields pass when it reads
    only some of them (pola-rs/polars#28350). Blank lines at the end are left out.
    """
    names = frame.collect_schema().names()
    for name in needed:
        if f"{name}_duplicated_0" in names:  # Polars' name for the second of two
            raise InvalidLogError(f"there are 2 columns {name!r}")
    blank = pl.all_horizontal(pl.all().is_null()).alias(_BLANK)
    table = frame.select(*dict.fromkeys(needed), blank).collect(engine="streaming")
    filled = (~table.drop_in_place(_BLANK)).arg_true()
    return table.head(filled[-1] + 1 if len(filled) else 0)


def with_types(table: pl.DataFrame, plain: set[str]) -> pl.DataFrame:
    """Columns of text, but for the `plain` ones, as numbers or truth values where every value is written as one."""
    return table.with_columns(_typed(table[name]) for name in table.columns if name not in plain)


def _typed(column: pl.Series) -> pl.Series:
    if column.null_count() == len(column):
        return column
    if are_whole(column):
        return column.cast(pl.Int64)
    if column.drop_nulls().str.contains(r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$").all() and not _has_zeros(
        column
    ):
        return column.cast(pl.Float64)
    lower = column.str.to_lowercase()
    return lower == "true" if lower.drop_nulls().is_in(["true", "false"]).all() else column


def _has_zeros(column: pl.Series) -> bool:
    """Is a number written with zeros that a code may have, but no amount: 007?"""
    return bool(column.drop_nulls().str.contains(r"^-?0\d").any())


def are_whole(ids: pl.Series) -> bool:
    """Whether every id of a column is the plain spelling of an integer."""
    plain = ids.cast(pl.Int64, strict=False).cast(pl.String) == ids
    return (plain.fill_null(False) | ids.is_null()).all()
