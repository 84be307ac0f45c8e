"""File formats of logs and item tables: detecting a format, and scanning a file."""

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
DELIMITERS = {".csv": ",", **dict.fromkeys((".tsv", ".tab", ".inter", ".item", ".data"), "\t")}
_TEXT = (*DELIMITERS, ".dat")
PARQUET = (".parquet", ".pq")
_JSON = (".ndjson", ".jsonl", ".json")

#: First bytes that identify a file, whatever its ending.
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_OTHER_FORMATS = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a zip archive (unpack it; of a spreadsheet, save a sheet as CSV)",
    b"\xff\xfe": "UTF-16 text (convert it with iconv -f UTF-16 -t UTF-8 FILE)",
    b"\xfe\xff": "UTF-16 text (convert it with iconv -f UTF-16 -t UTF-8 FILE)",
}

#: The fields of a rating and of a film in files without a header.
RATING = (columns.USER, columns.ITEM, "rating", columns.TIME)
_FILM = (columns.ITEM, columns.TITLES[0], "genres")
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_UNIX_TIME = re.compile(r"\d{9,19}")  # from 1973 on, in any unit


def scan(path: Path | str, sep: str | None = None) -> pl.LazyFrame:
    """Return the rows of a file or remote address, not yet read; ids in text files are text.

    A Path is a local file, a str a remote address. The ending names the format; with `sep`, a field
    separator, the file is delimited text whatever its ending. InvalidLogError if the file's first
    bytes contradict its ending.
    """
    kind = file_format(path)
    if isinstance(path, str):
        return _scan_remote(path, kind, sep)
    _refuse_other_formats(path, kind)
    if sep is None:
        return SCANNERS[kind](path)
    if len(sep.encode()) != 1 or sep in '"\n\r':
        raise InvalidLogError(f"`sep` is {sep!r}; it takes one character such as ; or \\t", "sep")
    frame = pl.scan_csv(path, separator=sep, infer_schema=False, glob=False)
    return _drop_type_suffixes(frame, kind)


def file_format(path: Path | str) -> str:
    """Return the ending that names a file's format, such as .csv (the one before .gz or .zst).

    A Path is a local file, a str a remote address. "" if there is no ending.
    """
    url_path = Path(urlsplit(path).path) if isinstance(path, str) else path
    endings = [ending.lower() for ending in url_path.suffixes]
    packed = len(endings) > 1 and endings[-1] in _PACKED
    return endings[-2 if packed else -1] if endings else ""


def is_text(path: Path | str, sep: str | None = None) -> bool:
    """Return whether every value of the file is read as text, as in CSV but not in Parquet.

    `sep` is the field separator of a delimited file; None: the ending names the format.
    """
    return sep is not None or file_format(path) in _TEXT


def is_readable(path: Path | str, sep: str | None = None) -> bool:
    """Return whether a file's ending names a supported format.

    `sep` is a field separator: with it, the file is read as delimited text, which any ending may
    have but those of Parquet, JSON and .dat. A str is a remote address, which may be a folder
    without ending.
    """
    kind = file_format(path)
    if sep is not None:
        return kind not in (*PARQUET, *_JSON, ".dat")
    return kind in SCANNERS or (kind == "" and isinstance(path, str))


def guess_separator(columns: list[str]) -> str | None:
    """Return the separator that the only column's name contains, or None.

    Such a name means that the file was read with a wrong separator.
    """
    signs = (sign for sign in ";|\t," if len(columns) == 1 and sign in columns[0])
    return next(signs, None)


def detect_format(path: Path) -> str:
    """Return the format that a file's start suggests: .parquet, .ndjson, .csv, .inter or .tsv."""
    with _open_decompressed(path) as stream:
        start = stream.read(2**16)
    if start.startswith(b"PAR1"):
        return ".parquet"
    line = start.lstrip().split(b"\n", 1)[0]
    if line.startswith((b"{", b"[")):
        return ".ndjson"
    if line.count(b"\t") <= line.count(b","):
        return ".csv"
    return ".inter" if b":token" in line else ".tsv"


def _scan_remote(address: str, kind: str, sep: str | None) -> pl.LazyFrame:
    """Return the rows of a remote address, not yet read; `kind` is the ending of its path.

    `sep` is the field separator of delimited text; None: by the ending. No ending means a folder of
    Parquet files.
    """
    if kind in PARQUET or (kind == "" and sep is None):  # a folder of Parquet files
        return pl.scan_parquet(address)
    if kind in _JSON:
        return pl.scan_ndjson(address, infer_schema_length=None)
    if kind in (".data", ".dat"):
        raise InvalidLogError(f"{kind} files are read from disk only: download it first")
    sign = sep or DELIMITERS[kind]
    quote = '"' if kind == ".csv" or sep else None
    frame = pl.scan_csv(address, separator=sign, infer_schema=False, quote_char=quote)
    return _drop_type_suffixes(frame, kind)


def _refuse_other_formats(path: Path, kind: str) -> None:
    """Raise InvalidLogError if the first bytes of a file contradict its ending, `kind`.

    `kind` is an ending such as ".csv". Also for an empty file, a JSON array and a line "sep=".
    """
    with _open_decompressed(path) as stream:
        start = stream.read(8).removeprefix(codecs.BOM_UTF8)
    if not start:
        raise InvalidLogError("the file is empty")
    if start.startswith(b"sep="):
        raise InvalidLogError(
            "its first line is a spreadsheet's sep=: remove it (tail -n +2 FILE) and set `sep`",
            "sep",
        )
    if kind in PARQUET and not start.startswith(b"PAR1"):
        raise InvalidLogError(f"its ending is {kind}, but the file is not Parquet")
    if kind in _JSON and start.lstrip().startswith(b"["):
        raise InvalidLogError(
            "the file is one JSON array; talerec reads one object per line "
            "(convert it with jq -c '.[]' FILE)"
        )
    for sign, what in _OTHER_FORMATS.items():
        if kind not in PARQUET and start.startswith(sign):
            raise InvalidLogError(f"its ending is {kind}, but the file is {what}")


def _detect_compression(path: Path) -> str | None:
    """Return a file's compression by its first bytes, "gzip" or "zstd"; None if it has none."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for sign, name in _CODECS.items() if start.startswith(sign)), None)


def _open_decompressed(path: Path) -> Any:
    """Return a binary stream of a file's content; gzip and zstd are decompressed.

    The compression is detected by the first bytes, not by the ending.
    """
    codec = _detect_compression(path)
    if codec is None:
        return path.open("rb")
    import pyarrow as pa

    return pa.input_stream(str(path), compression=codec)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file as text; bytes that are not UTF-8 become surrogates.

    The file may be compressed by gzip or zstd.
    """
    stream = _open_decompressed(path)
    with io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="") as text:
        yield from text


def _read_first_line(path: Path) -> str:
    """Return the first line of a file that is not blank; "" if there is none."""
    return next((line for line in read_lines(path) if line.strip()), "")


def _scan_csv(path: Path) -> pl.LazyFrame:
    """Return the rows of a CSV as text, not yet read; one without a header must hold ratings.

    Ratings have four fields: user, item, rating and unix time.
    """
    if has_no_header(path):
        return _scan_ratings(path, ",")
    return pl.scan_csv(path, infer_schema=False, glob=False)


def has_no_header(path: Path) -> bool:
    """Return whether a CSV has no header: its first line is a rating.

    A rating is four fields: user, item, a number and a unix time of 9 to 19 digits.
    """
    try:
        fields = next(csv.reader([_read_first_line(path)]), [])
    except csv.Error:  # a field longer than any id
        return False
    if len(fields) != len(RATING):
        return False
    rating, time = (field.strip() for field in fields[2:])
    return bool(_NUMBER.fullmatch(rating) and _UNIX_TIME.fullmatch(time))


def _scan_ratings(path: Path, separator: str) -> pl.LazyFrame:
    """Return the rows of a file without a header: user, item, rating and unix time, as text.

    `separator` is the field separator: a comma (then fields may be quoted) or a tab. Nothing is
    read yet.
    """
    schema, quote = dict.fromkeys(RATING, pl.String()), '"' if separator == "," else None
    return pl.scan_csv(
        path, separator=separator, has_header=False, schema=schema, quote_char=quote, glob=False
    )


def _scan_udata(path: Path) -> pl.LazyFrame:
    """Return the ratings of MovieLens `u.data`, separated by tabs, as text and not yet read.

    InvalidLogError unless the first line has four fields: user, item, rating and time.
    """
    fields = _read_first_line(path).count("\t") + 1
    if fields != len(RATING):
        raise InvalidLogError(f"the first line has {fields} fields, but a rating has {len(RATING)}")
    return _scan_ratings(path, "\t")


def _scan_dat(path: Path) -> pl.LazyFrame:
    """Return the fields of MovieLens `ratings.dat` or `movies.dat`, separated by `::`.

    Lines of four fields are user, item, rating and time; lines of three are item, title and genres.
    InvalidLogError for other or unequal numbers of fields.
    """
    lines = _read_lines(path)
    fields = lines.str.count_matches("::", literal=True).fill_null(-1) + 1
    names = {len(kind): kind for kind in (RATING, _FILM)}.get(fields[0])
    if names is None:
        raise InvalidLogError(
            f"line 1 has {fields[0]} fields; "
            "supported are user::item::rating::time and item::title::genres"
        )
    if (odd := (fields != len(names)).arg_true()).len():
        number = odd[0]
        message = f"line {number + 1} has {fields[number]} fields, but line 1 has {len(names)}"
        raise InvalidLogError(message)
    table = lines.str.split_exact("::", len(names) - 1).struct.rename_fields(names)
    return table.struct.unnest().lazy()


def _read_lines(path: Path) -> pl.Series:
    """Return the lines of a UTF-8 (else Latin-1) file as a text column; blank lines are null.

    InvalidLogError if the file has no text. Line ends and blank lines at the end are removed.
    """
    with _open_decompressed(path) as stream:
        content = stream.read().rstrip()
    if not content:
        raise InvalidLogError("it holds no rows")
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode("latin-1").encode()
    file, schema = io.BytesIO(content), {"line": pl.String()}
    separator = "\x1f"  # a control character that no text contains
    lines = pl.read_csv(file, has_header=False, separator=separator, quote_char=None, schema=schema)
    return lines.to_series().str.strip_chars_end("\r")


def _scan_tsv(path: Path) -> pl.LazyFrame:
    """Return the rows of a tab-separated file, not yet read; all values are text."""
    return pl.scan_csv(path, separator="\t", infer_schema=False, quote_char=None, glob=False)


def _scan_recbole(path: Path) -> pl.LazyFrame:
    """Return the rows of a tab-separated RecBole file, whose columns are called `name:type`."""
    return _drop_type_suffixes(_scan_tsv(path))


def _drop_type_suffixes(frame: pl.LazyFrame, kind: str = ".inter") -> pl.LazyFrame:
    """Return the frame with RecBole's column names, `name:type`, cut to `name`.

    Only for its file endings (`kind`): .inter and .item; other frames are returned as they are.
    """
    if kind not in (".inter", ".item"):
        return frame
    names = frame.collect_schema().names()
    return frame.rename({name: name.partition(":")[0] for name in names})


def _scan_ndjson(path: Path) -> pl.LazyFrame:
    """Return the rows of a file of JSON lines; of published reviews, only the plain fields.

    Published reviews are those of Amazon and Yelp; their lists and objects are left out, and their
    other fields are text.
    """
    name, fields = glob.escape(str(path)), _review_fields(path)
    if not fields:
        return pl.scan_ndjson(name, infer_schema_length=None)
    return pl.scan_ndjson(name, schema=dict.fromkeys(fields, pl.String()))


def _review_fields(path: Path) -> list[str]:
    """Return the fields of a file of Amazon or Yelp reviews, other than lists and objects.

    `path` is a file of JSON lines, of which the first is read. An empty list for other files. Such
    files hold gigabytes of prose: naming the fields saves the pass that infers them.
    """
    try:
        first = json.loads(_read_first_line(path))
    except (ValueError, RecursionError):
        return []
    if not isinstance(first, dict) or not any(first.keys() >= set(n) for n in columns.PUBLISHED):
        return []
    return [name for name, value in first.items() if isinstance(value, str | int | float)]


def _scan_parquet(path: Path) -> pl.LazyFrame:
    """Return the rows of a Parquet file, not yet read.

    A file that is compressed as a whole (.gz, .zst) is read into memory.
    """
    if _detect_compression(path) is None:
        return pl.scan_parquet(path, glob=False)
    with _open_decompressed(path) as stream:
        return pl.read_parquet(io.BytesIO(stream.read())).lazy()


SCANNERS: dict[str, Callable[[Path], pl.LazyFrame]] = {
    ".csv": _scan_csv, ".tsv": _scan_tsv, ".tab": _scan_tsv,
    ".inter": _scan_recbole, ".item": _scan_recbole, ".data": _scan_udata, ".dat": _scan_dat,
    ".ndjson": _scan_ndjson, ".jsonl": _scan_ndjson, ".json": _scan_ndjson,
    ".parquet": _scan_parquet, ".pq": _scan_parquet,
}  # fmt: skip
