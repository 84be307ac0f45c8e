"""From a DataFrame or Parquet files to checked rows: all of it Spark expressions.

Rows have the columns `user, item, time, row_number`, and `weight` if the log has weights. The row
number is the order of rows in the files, which orders a user's rows with equal times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec.data import (
    overflow_message,
    parse_time_column,
    require_columns,
    require_distinct_columns,
)
from talerec.errors import InvalidLogError, TalerecError
from talerec.spark.log_columns import (
    Columns,
    id_expression,
    time_expression,
    time_in_microseconds,
    time_kind,
    weight_expression,
)
from talerec.spark.session import GLOB

Source = DataFrame | str | Path

_PREFIX = "_talerec_"  # of columns that are not the log's
_ROW = _PREFIX + "row_number"
_MAX_FILE_ROWS = 2**40
# A whole number, as in vocabularies; `\z`, because a line end may follow what `$` matches.
_WHOLE_NUMBER = r"^[+-]?0*[0-9]{1,38}\z"
_BLANK = r"^\p{IsWhite_Space}*\z"
_ID_COLUMNS = ("user", "item", "time")


def read_events(
    session: SparkSession, source: Source, names: Columns, ties: str
) -> tuple[DataFrame, str]:
    """Return the checked rows of a log, times in microseconds, and the unit of its times.

    source: a Spark table or the address of Parquet files; names: its columns. ties: "file" or
    "item", the order of a user's rows with equal times. The rows are a lazy Spark table of user,
    item, time, row_number (the order in the files), and maybe weight; rows of weight 0 are left
    out. The unit is that of the log, such as "s". Raises InvalidLogError if the log cannot be used.
    """
    tables = open_events(session, source, names, ties)
    totals = tables.unordered.agg(*check_expressions(tables.unordered)).first()
    assert totals is not None
    unit, _ = check_log(tables.ordered, names, totals.asDict())
    return to_events(tables.ordered, unit), unit


class EventTables(NamedTuple):
    """The unchecked rows of a log as two lazy Spark tables of the same rows.

    Both have the columns user, item, time (as in the files), row_number and maybe weight.
    """

    unordered: DataFrame  # row numbers mean nothing, and cost nothing
    ordered: DataFrame  # row numbers have the order of the files


def open_events(session: SparkSession, source: Source, names: Columns, ties: str) -> EventTables:
    """Return a log's unchecked rows as two lazy Spark tables: without file order, and with it.

    The first, `unordered`, is cheaper; in the second, `ordered`, row_number has the order of the
    files. Columns of both: user, item, time (unit of the log), row_number, and maybe weight.
    source: a Spark table or the address of Parquet files; names: its columns; ties: the order of a
    user's rows with equal times, "item", or "file" (only for files). A Spark table has no order:
    both results are the same, with row_number 0. TalerecError for a missing column or one of a
    wrong type.
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
    time_metadata = {"kind": time_kind(types[names.time])}
    selected = [
        id_expression(names.user, types[names.user]).alias("user"),
        id_expression(names.item, types[names.item]).alias("item"),
        time_expression(names.time, types[names.time]).alias("time", metadata=time_metadata),
        F.col(_ROW).alias("row_number"),
        *([weight_expression(unordered, names).alias("weight")] if names.has_weights else []),
    ]
    return EventTables(unordered.select(*selected), ordered.select(*selected))


def to_events(table: DataFrame, unit: str) -> DataFrame:
    """Return a Spark table of rows with times in microseconds, without rows of weight 0.

    table: rows with a column time, whose unit is `unit` ("datetime" for timestamps), and maybe
    weight.
    """
    is_whole = table.schema["time"].dataType == T.LongType()
    counted = table.where(F.col("weight") > 0) if "weight" in table.columns else table
    return counted.withColumn("time", time_in_microseconds(F.col("time"), unit, is_whole))


# -- files -----------------------------------------------------------------------------------------


def _open_files(session: SparkSession, address: str, names: Columns) -> EventTables:
    """Return the rows of Parquet files as two lazy tables: in any order, and in file order.

    Of the first table, row numbers count within a file; of the second they have the order of file
    names, then of rows. names: the columns that the log must have.
    """
    frame = _read_parquet(session, address, names)
    row = F.col("_metadata.row_index")
    unordered = frame.withColumn(_ROW, row)
    files = sorted(
        (re.sub("^file:/+", "file:/", name) for name in frame.inputFiles()),
        key=lambda name: PurePosixPath(unquote(name)),
    )
    if len(files) < 2:
        return EventTables(unordered, unordered)
    file_column, number_column, index_column = (
        _PREFIX + name for name in ("file", "number", "index")
    )
    table = {
        file_column: pa.array(files, pa.string()),
        number_column: pa.array(range(len(files)), pa.int64()),
    }
    file_table = F.broadcast(session.createDataFrame(pa.table(table)))
    rows_with_file = frame.select(
        "*", F.col("_metadata.file_path").alias(file_column), row.alias(index_column)
    )
    ordered = rows_with_file.join(file_table, file_column)
    row_number = F.col(number_column) * F.lit(_MAX_FILE_ROWS) + F.col(index_column)
    return EventTables(unordered, ordered.withColumn(_ROW, row_number))


def _read_parquet(session: SparkSession, address: str, names: Columns) -> DataFrame:
    """Return a Spark table of all Parquet files below a folder.

    names: the columns that the log must have. Columns that the files lack come from folders named
    name=value; all of these but the time are read as text.
    """
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
    """Return an address with the slashes that `Path` drops: s3a:/shop becomes s3a://shop.

    Paths without such a scheme are returned as text, unchanged.
    """
    scheme = re.match(r"(\w+):/(?!/)", str(path))
    if scheme is None:
        return str(path)
    return f"{scheme[1]}://{'/' if scheme[1] == 'file' else ''}{str(path)[scheme.end() :]}"


def _to_address(path: str | Path) -> str:
    """Return a path as the address for Spark to read; pattern characters of names are escaped.

    Only characters of existing paths are escaped; else the path may be a pattern. InvalidLogError
    for a file that is not Parquet.
    """
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


# -- checks ----------------------------------------------------------------------------------------


def check_expressions(table: DataFrame) -> list[Any]:
    """Return Spark aggregates of rows: counts, empty fields, extreme times, and weights.

    table: user, item, time, maybe weight. The name of an aggregate tells how those of groups of
    rows combine: n_ and sum_ add up, min_ and max_ are extremes. min_large_time: the least |time|
    from 10^8 on, from which the unit is guessed; n_text_users: 0 if users are text and all of it
    whole numbers; n_counted: rows of weight above 0.
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
        *_weight_aggregates(table),
    ]


def _weight_aggregates(table: DataFrame) -> list[Any]:
    """Return Spark aggregates of the column weight, and of the times of rows that count.

    n_counted: rows of weight above 0, all rows without such a column; n_invalid_weight: null, NaN
    or infinite; n_negative_weight; sum, min and max of weights above 0, and min and max of their
    times.
    """
    if "weight" not in table.columns:
        return [F.count(F.lit(1)).alias("n_counted")]
    weight = F.col("weight")
    is_invalid = weight.isNull() | F.isnan(weight) | (F.abs(weight) == float("inf"))
    positive_weight, counted_time = F.when(weight > 0, weight), F.when(weight > 0, F.col("time"))
    return [
        F.count(positive_weight).alias("n_counted"),
        F.count_if(is_invalid).alias("n_invalid_weight"),
        F.count_if(weight < 0).alias("n_negative_weight"),
        F.sum(positive_weight).alias("sum_weight"),
        F.min(positive_weight).alias("min_weight"),
        F.max(positive_weight).alias("max_weight"),
        F.min(counted_time).alias("min_counted_time"),
        F.max(counted_time).alias("max_counted_time"),
    ]


def _is_empty(table: DataFrame, name: str) -> Any:
    """Return a Spark condition: column `name` of a table is null, NaN, or only white space."""
    column = F.col(name)
    if table.schema[name].dataType == T.StringType():
        # a pattern costs more than a look at the first byte
        is_candidate = (column < "!") | (column >= "\u0080")
        return column.isNull() | (is_candidate & column.rlike(_BLANK))
    if table.schema[name].dataType == T.DoubleType():
        return column.isNull() | F.isnan(column)
    return column.isNull()


def check_log(table: DataFrame, names: Columns, totals: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return a log's time unit, such as "s", and its first and last time in microseconds.

    table: the log's rows; totals: the aggregates of `check_expressions` by name; rows of weight 0
    do not count. Raises InvalidLogError for an empty log, empty fields, and invalid times or
    weights.
    """
    if not totals["n_rows"]:
        raise InvalidLogError("the log is empty: it has no rows")
    for column, name in zip(_ID_COLUMNS, names.needed, strict=False):
        if n_empty := totals[f"n_empty_{column}"]:
            raise InvalidLogError(f"{name} is empty in {n_empty:,} of {totals['n_rows']:,} rows")
    counted_first = ("min_counted_time", "max_counted_time", "min_time", "max_time")
    raw_times = [totals.get(name) for name in (*counted_first, "min_large_time")]
    unit, times = _convert_times([time for time in raw_times if time is not None], names, table)
    _check_weights(names, totals)
    return unit, times[:2]


def _check_weights(names: Columns, totals: Mapping[str, Any]) -> None:
    """Raise InvalidLogError for weights that are invalid, negative, all 0, or too large.

    totals: aggregates of the weights by name, such as n_negative_weight (a count of rows).
    """
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


def _convert_times(raw_times: list[Any], names: Columns, table: DataFrame) -> tuple[str, list[int]]:
    """Return the unit of a log's times, such as "s", and some of its times in microseconds.

    raw_times: these times as the log has them; names: its columns, and the unit if it is known;
    table: the log's rows, whose metadata tell the type of times. An error names no row, because row
    numbers of these few values mean nothing.
    """
    series = pl.Series(names.time, raw_times)
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
