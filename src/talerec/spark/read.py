"""From a DataFrame or Parquet files to checked rows: all of it Spark expressions.

Rows have the columns `user, item, time, row_number`, and `weight` if the log has weights. The row
number is the order of rows in the files, which orders a user's rows with equal times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec import columns
from talerec.data import (
    DAY,
    check_event_weights,
    overflow_message,
    parse_time_column,
    require_columns,
    require_distinct_columns,
)
from talerec.errors import InvalidLogError, TalerecError
from talerec.spark.session import GLOB

Source = DataFrame | str | Path

_PREFIX = "_talerec_"  # of columns that are not the log's
_ROW = _PREFIX + "row_number"
_MAX_FILE_ROWS = 2**40
_MAX_EVENTS = 1000
# A whole number, as in vocabularies; `\z`, because a line end may follow what `$` matches.
_WHOLE_NUMBER = r"^[+-]?0*[0-9]{1,38}\z"
_BLANK = r"^\p{IsWhite_Space}*\z"
_ID_COLUMNS = ("user", "item", "time")


@dataclass(frozen=True)
class Columns:
    """The names of a log's columns, and how its times are read.

    Parameters
    ----------
    user, item, time : str
        The columns of user ids, item ids and times.
    time_unit : {"s", "ms", "us", "ns"}, optional
        The unit of times that are numbers; guessed from their size by default.
    any_time : bool
        Accept times outside 1970 to 2100.
    weight : str, optional
        The column of the rows' weights; rows of weight 0 are left out.
    event, event_weights : str and dict, optional
        The column of the rows' events, and the weight of each event; they go together.
    """

    user: str = columns.USER
    item: str = columns.ITEM
    time: str = columns.TIME
    time_unit: str | None = None
    any_time: bool = False
    weight: str | None = None
    event: str | None = None
    event_weights: Mapping[str, float] | None = None

    @property
    def needed(self) -> list[str]:
        """The names of the columns that a log must have: user, item, time, maybe weight, event."""
        optional = (self.weight, self.event)
        return [self.user, self.item, self.time, *(name for name in optional if name is not None)]

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights."""
        return self.weight is not None or self.event_weights is not None


NAMES = Columns()


def read_events(
    session: SparkSession, source: Source, names: Columns, ties: str
) -> tuple[DataFrame, str]:
    """Return the checked rows of a log, times in microseconds, and the unit of its times.

    ties: "file" or "item", the order of a user's rows with equal times. The rows have user, item,
    time, row_number, and maybe weight. Raises InvalidLogError if the log cannot be used.
    """
    tables = open_events(session, source, names, ties)
    totals = tables.unordered.agg(*check_expressions(tables.unordered)).first()
    assert totals is not None
    unit, _ = check_log(tables.ordered, names, totals.asDict())
    return to_events(tables.ordered, unit), unit


class EventTables(NamedTuple):
    """The unchecked rows of a log as two lazy tables of the same rows, times as in the files."""

    unordered: DataFrame  # row numbers mean nothing, and cost nothing
    ordered: DataFrame  # row numbers have the order of the files


def open_events(session: SparkSession, source: Source, names: Columns, ties: str) -> EventTables:
    """Return a log's rows with the columns user, item, time, row_number, and maybe weight.

    names: the log's columns; ties: "item", or "file" (only for files), for equal times of a user.
    """
    if ties not in ("file", "item"):
        raise TalerecError(f"`ties` is {ties!r}; on Spark it takes file or item", "ties")
    if not isinstance(source, DataFrame):
        unordered, ordered = _open_files(session, _to_address(source), names)
    elif ties == "file":
        raise TalerecError(
            "rows of a DataFrame have no order: set `ties` to item, or give the path of "
            "Parquet files",
            "ties",
        )
    else:
        unordered = ordered = source.withColumn(_ROW, F.lit(0).cast("long"))
    require_distinct_columns(names.needed[:3])
    present = [name for name in unordered.columns if not name.startswith(_PREFIX)]
    require_columns(present, names.needed)
    types = {name: unordered.schema[name].dataType for name in names.needed}
    time_kind = {"kind": _time_kind(types[names.time])}
    selected = [
        _id_expression(names.user, types[names.user]).alias("user"),
        _id_expression(names.item, types[names.item]).alias("item"),
        _time_expression(names.time, types[names.time]).alias("time", metadata=time_kind),
        F.col(_ROW).alias("row_number"),
        *([_weight_expression(unordered, names).alias("weight")] if names.has_weights else []),
    ]
    return EventTables(unordered.select(*selected), ordered.select(*selected))


def to_events(table: DataFrame, unit: str) -> DataFrame:
    """Return rows with times in microseconds, without those of weight 0; `unit`: of the times."""
    is_whole = table.schema["time"].dataType == T.LongType()
    counted = table.where(F.col("weight") > 0) if "weight" in table.columns else table
    return counted.withColumn("time", _microseconds(F.col("time"), unit, is_whole))


# -- files -----------------------------------------------------------------------------------------


def _open_files(session: SparkSession, address: str, names: Columns) -> EventTables:
    """Return Parquet rows in two tables: numbered within their file, and by file name and row."""
    frame = _read_parquet(session, address, names)
    row = F.col("_metadata.row_index")
    unordered = frame.withColumn(_ROW, row)
    files = sorted(
        (re.sub("^file:/+", "file:/", name) for name in frame.inputFiles()),
        key=lambda name: PurePosixPath(unquote(name)),
    )
    if len(files) < 2:
        return EventTables(unordered, unordered)
    path, number, index = (_PREFIX + name for name in ("file", "number", "index"))
    table = {path: pa.array(files, pa.string()), number: pa.array(range(len(files)), pa.int64())}
    file_table = F.broadcast(session.createDataFrame(pa.table(table)))
    located = frame.select("*", F.col("_metadata.file_path").alias(path), row.alias(index))
    ordered = located.join(file_table, path)
    row_number = F.col(number) * F.lit(_MAX_FILE_ROWS) + F.col(index)
    return EventTables(unordered, ordered.withColumn(_ROW, row_number))


def _read_parquet(session: SparkSession, address: str, names: Columns) -> DataFrame:
    """Return all Parquet files below a folder; missing columns come from name=value folders."""
    frame = session.read.option("recursiveFileLookup", "true").parquet(address)
    missing = set(names.needed) - set(frame.columns)
    if not missing:
        return frame
    frame = session.read.parquet(address)
    text_columns = missing - {names.time}  # Spark alone would read the id 007 as 7
    fields = [
        T.StructField(column.name, T.StringType()) if column.name in text_columns else column
        for column in frame.schema
    ]
    return session.read.schema(T.StructType(fields)).parquet(address)


def restore_slashes(path: str | Path) -> str:
    """Return an address with the slashes that `Path` drops: s3a:/shop becomes s3a://shop."""
    scheme = re.match(r"(\w+):/(?!/)", str(path))
    if scheme is None:
        return str(path)
    return f"{scheme[1]}://{'/' if scheme[1] == 'file' else ''}{str(path)[scheme.end() :]}"


def _to_address(path: str | Path) -> str:
    """Return the address for Spark to read; pattern characters of existing names are escaped."""
    address = restore_slashes(path)
    file = Path(address.removeprefix("file://"))
    if file.is_file() and not _is_parquet(file):
        raise InvalidLogError(
            f"{file} is not a Parquet file: convert it, or work without Spark, which reads "
            "other formats too"
        )
    return GLOB.sub(r"\\\g<0>", address) if file.exists() else address


def _is_parquet(file: Path) -> bool:
    """Return whether a file begins with the bytes of Parquet, plain or encrypted."""
    with file.open("rb") as opened:
        return opened.read(4) in (b"PAR1", b"PARE")  # plain, or encrypted


# -- columns ---------------------------------------------------------------------------------------


def _column(name: str) -> Any:
    """Return the Spark column of exactly that name, which may have dots and backticks."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _id_expression(name: str, kind: T.DataType) -> Any:
    """Return a column of ids as int64 or text; raise InvalidLogError for another type `kind`."""
    if isinstance(kind, T.IntegralType):
        return _column(name).cast("long")
    if isinstance(kind, T.StringType):
        return _column(name).cast("string")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; ids are text or whole numbers"
    )


def _time_expression(name: str, kind: T.DataType) -> Any:
    """Return times as numbers: timestamps and dates as microseconds, numbers unchanged."""
    column = _column(name)
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DateType):
        return F.unix_date(column).cast("long") * F.lit(DAY)
    if isinstance(kind, T.TimestampNTZType):  # computed without a time zone
        clock = F.hour(column) * 3600 + F.minute(column) * 60
        fraction = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("long")
        day = F.unix_date(F.to_date(column)).cast("long") * F.lit(DAY)
        return day + clock.cast("long") * 1_000_000 + fraction
    if isinstance(kind, T.IntegralType) or getattr(kind, "scale", None) == 0:
        return column.cast("long")  # a double would round whole numbers that are decimals in Spark
    if isinstance(kind, T.FractionalType):
        return column.cast("double")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; times are timestamps or numbers"
    )


def _time_kind(kind: T.DataType) -> str:
    """Return "timestamp", "float" (32 bits) or "number", by the Spark type of a time column."""
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        return "timestamp"
    return "float" if isinstance(kind, T.FloatType) else "number"


def _weight_expression(frame: DataFrame, names: Columns) -> Any:
    """Return the Spark column of row weights: a column of the log, or its event's weight."""
    if names.event_weights is None:
        assert names.weight is not None
        kind = frame.schema[names.weight].dataType
        if isinstance(kind, T.NumericType):
            return _column(names.weight).cast("double")
        if isinstance(kind, T.StringType):
            return F.trim(_column(names.weight)).try_cast("double")
        raise InvalidLogError(
            f"column {names.weight!r} holds {kind.simpleString()} values; weights are numbers"
        )
    if names.event is None:
        raise TalerecError("`event_weights` needs `event`", "event_weights", "event")
    if names.weight is not None:
        raise TalerecError(
            "give `weight` or `event_weights`, one of the two", "weight", "event_weights"
        )
    event = _column(names.event).cast("string")
    events = frame.select(event.alias("event")).distinct().limit(_MAX_EVENTS + 1).collect()
    check_event_weights(names.event, [row[0] for row in events], names.event_weights)
    weights = names.event_weights.items()
    pairs = [F.lit(part) for name, value in weights for part in (name, float(value))]
    return F.element_at(F.create_map(*pairs), event)


def _microseconds(time: Any, unit: str, is_whole: bool) -> Any:
    """Return the column `time` in microseconds, from `unit`; is_whole: it has integers."""
    if unit in ("datetime", "us") and is_whole:
        return time
    scale = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    if not is_whole:
        return F.rint(time / 1000 if unit == "ns" else time * scale).cast("long")
    if unit == "ns":
        return F.expr("(time - pmod(time, 1000)) div 1000")
    return time * F.lit(scale)


# -- checks ----------------------------------------------------------------------------------------


def check_expressions(table: DataFrame) -> list[Any]:
    """Return Spark aggregates of rows: counts, empty fields, extreme times, and weights.

    Those of groups of rows combine by prefix: n_ and sum_ add up, min_ and max_ are extremes.
    min_large_time: the least |time| from 10^8 on, from which the unit is guessed; n_text_users: 0
    if users are text and all of it whole numbers.
    """
    size, n_text = F.abs(F.col("time")), F.count_if(F.lit(True))
    if table.schema["user"].dataType == T.StringType():
        n_text = F.count_if(~F.col("user").rlike(_WHOLE_NUMBER))
    return [
        F.count(F.lit(1)).alias("n_rows"),
        *(F.count_if(_is_empty(table, name)).alias(f"n_empty_{name}") for name in _ID_COLUMNS),
        F.min("time").alias("min_time"),
        F.max("time").alias("max_time"),
        F.min(F.when(size >= 10**8, size)).alias("min_large_time"),
        n_text.alias("n_text_users"),
        *_weight_checks(table),
    ]


def _weight_checks(table: DataFrame) -> list[Any]:
    """Return the aggregates of `check_expressions` that concern weights."""
    if "weight" not in table.columns:
        return [F.count(F.lit(1)).alias("n_counted")]
    weight = F.col("weight")
    is_invalid = weight.isNull() | F.isnan(weight) | (F.abs(weight) == float("inf"))
    positive, time = F.when(weight > 0, weight), F.when(weight > 0, F.col("time"))
    return [
        F.count(positive).alias("n_counted"),
        F.count_if(is_invalid).alias("n_invalid_weight"),
        F.count_if(weight < 0).alias("n_negative_weight"),
        F.sum(positive).alias("sum_weight"),
        F.min(positive).alias("min_weight"),
        F.max(positive).alias("max_weight"),
        F.min(time).alias("min_counted_time"),
        F.max(time).alias("max_counted_time"),
    ]


def _is_empty(table: DataFrame, name: str) -> Any:
    """Return a condition: a column of the table is null, NaN, or only white space."""
    column = F.col(name)
    if table.schema[name].dataType == T.StringType():
        # a pattern costs more than a look at the first byte
        is_candidate = (column < "!") | (column >= "\u0080")
        return column.isNull() | (is_candidate & column.rlike(_BLANK))
    if table.schema[name].dataType == T.DoubleType():
        return column.isNull() | F.isnan(column)
    return column.isNull()


def check_log(table: DataFrame, names: Columns, totals: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return a log's time unit, and its first and last time in microseconds.

    totals: the aggregates of `check_expressions` by name; rows of weight 0 do not count. Raises
    InvalidLogError for an empty log, empty fields, and invalid times or weights.
    """
    if not totals["n_rows"]:
        raise InvalidLogError("the log is empty: it has no rows")
    for column, name in zip(_ID_COLUMNS, names.needed, strict=False):
        if n_empty := totals[f"n_empty_{column}"]:
            raise InvalidLogError(f"{name} is empty in {n_empty:,} of {totals['n_rows']:,} rows")
    counted_first = ("min_counted_time", "max_counted_time", "min_time", "max_time")
    some_times = [totals.get(name) for name in (*counted_first, "min_large_time")]
    unit, times = _parse_times([time for time in some_times if time is not None], names, table)
    _check_weights(names, totals)
    return unit, times[:2]


def _check_weights(names: Columns, totals: Mapping[str, Any]) -> None:
    """Raise InvalidLogError for weights that are invalid, negative, all 0, or too large."""
    for kind, what in (("invalid", "is not a finite number"), ("negative", "is below 0")):
        if count := totals.get(f"n_{kind}_weight"):
            raise InvalidLogError(
                f"{names.weight} {what} in {count:,} of {totals['n_rows']:,} rows; "
                "weights are 0 or more"
            )
    if not totals["n_counted"]:
        raise InvalidLogError("every row has the weight 0: nothing is left")
    if math.isinf(totals.get("sum_weight", 0.0)):
        raise InvalidLogError(overflow_message(names.weight or names.event or ""))


def _parse_times(some: list[Any], names: Columns, table: DataFrame) -> tuple[str, list[int]]:
    """Return the unit of a log's times ("s", "us", ..), and raw times `some` in microseconds."""
    series = pl.Series(names.time, some)
    kind = table.schema["time"].metadata.get("kind")
    if kind == "timestamp":
        series = series.cast(pl.Datetime("us"))
    elif kind == "float":
        series = series.cast(pl.Float32)
    try:
        times, unit = parse_time_column(series, names.time_unit, any_time=names.any_time)
    except TalerecError as error:  # its row numbers are those of these few values
        message = re.sub(r"row \d+:? ", "", error.message)
        raise type(error)(message, *error.parameters) from None
    return unit, times.tolist()
