"""From a DataFrame or Parquet files to rows that are checked, cleaned and cut: all of it expressions of Spark."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec import columns
from talerec.data.frames import refuse_missing
from talerec.data.times import DAY, to_microseconds
from talerec.errors import InvalidLogError, TalerecError
from talerec.spark.sessions import Run

Source = DataFrame | str | Path

_BROADCAST = (
    2_000_000  # items up to which their table is sent to every executor; a larger one is joined
)
_SLICE = 1_000_000  # rows of a long history that are ranked together
_FILE_ROWS = 2**40  # more rows than a file has
_PREFIX = "_talerec_"  # of columns that are not the log's
_PLACE = _PREFIX + "place"


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
    """

    user: str = columns.USER
    item: str = columns.ITEM
    time: str = columns.TIME
    time_unit: str | None = None
    any_time: bool = False


NAMES = Columns()


def read_events(
    session: SparkSession, source: Source, names: Columns, ties: str
) -> tuple[DataFrame, str]:
    """The log as user, item, time (microseconds) and place (its order at equal times); and how times were read."""
    if ties not in ("file", "item"):
        raise TalerecError(f"ties is {ties!r}; on Spark it takes file or item")
    if not isinstance(source, DataFrame):
        frame = _read_files(session, source)
    elif ties == "file":
        raise TalerecError(
            "rows of a DataFrame have no order: take ties=item, or the path of Parquet files"
        )
    else:
        frame = source.withColumn(_PLACE, F.lit(0).cast("long"))
    needed = [names.user, names.item, names.time]
    refuse_missing([name for name in frame.columns if not name.startswith(_PREFIX)], needed)
    kinds = {name: frame.schema[name].dataType for name in needed}
    events = frame.select(
        _id(names.user, kinds[names.user]).alias("user"),
        _id(names.item, kinds[names.item]).alias("item"),
        _number(names.time, kinds[names.time]).alias("time"),
        F.col(_PLACE).alias("place"),
    )
    unit = _check_cells(events, names, kinds[names.time])
    whole = events.schema["time"].dataType == T.LongType()
    return events.withColumn("time", _microseconds(F.col("time"), unit, whole)), unit


def _read_files(session: SparkSession, path: str | Path) -> DataFrame:
    """Parquet files with the place of every row: files in the order of their names, rows as they stand."""
    address = re.sub(r"^(\w+):/(?!/)", r"\1://", str(path))  # pathlib has dropped a slash
    frame = session.read.parquet(address)
    file, row = F.col("_metadata.file_path"), F.col("_metadata.row_index")
    files = sorted(found[0] for found in frame.select(file).distinct().collect())
    names = {
        _PREFIX + "file": pa.array(files, pa.string()),
        _PREFIX + "number": pa.array(range(len(files)), pa.int64()),
    }
    numbers = F.broadcast(session.createDataFrame(pa.table(names)))
    placed = frame.select("*", file.alias(_PREFIX + "file"), row.alias(_PREFIX + "row")).join(
        numbers, _PREFIX + "file"
    )
    return placed.withColumn(
        _PLACE, F.col(_PREFIX + "number") * F.lit(_FILE_ROWS) + F.col(_PREFIX + "row")
    )


def _id(name: str, kind: T.DataType) -> Any:
    if isinstance(kind, T.IntegralType):
        return F.col(name).cast("long")
    if isinstance(kind, T.StringType):
        return F.col(name).cast("string")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; ids are text or whole numbers"
    )


def _number(name: str, kind: T.DataType) -> Any:
    """Times as numbers: timestamps and dates as microseconds, numbers as they are."""
    column = F.col(name)
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DateType):
        return F.unix_date(column).cast("long") * F.lit(DAY)
    if isinstance(kind, T.TimestampNTZType):  # computed without a time zone
        clock = F.hour(column) * 3600 + F.minute(column) * 60
        fraction = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("long")
        day = F.unix_date(F.to_date(column)).cast("long") * F.lit(DAY)
        return day + clock.cast("long") * 1_000_000 + fraction
    if isinstance(kind, T.IntegralType):
        return column.cast("long")
    if isinstance(kind, T.FractionalType):
        return column.cast("double")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; times are timestamps or numbers"
    )


def _microseconds(time: Any, unit: str, whole: bool) -> Any:
    if unit in ("datetime", "us") and whole:
        return time
    per = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    if not whole:
        return F.rint(time / 1000 if unit == "ns" else time * per).cast("long")
    if unit == "ns":
        return F.expr("(time - pmod(time, 1000)) div 1000")
    return time * F.lit(per)


def _check_cells(events: DataFrame, names: Columns, kind: T.DataType) -> str:
    """Refuse a log without rows, with empty cells or with impossible times; what the times are read as."""
    cells = {"user": names.user, "item": names.item, "time": names.time}
    size = F.abs(F.col("time"))
    found = events.agg(
        F.count(F.lit(1)).alias("rows"),
        *(F.count_if(_is_empty(events, cell)).alias(cell) for cell in cells),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.min(F.when(size >= 10**8, F.col("time"))).alias("least"),
    ).first()
    assert found is not None
    if not found["rows"]:
        raise InvalidLogError("the log is empty: it has no rows")
    for cell, name in cells.items():
        if found[cell]:
            raise InvalidLogError(f"{name} is empty in {found[cell]:,} of {found['rows']:,} rows")
    some = [found[name] for name in ("first", "last", "least") if found[name] is not None]
    return _unit_of(some, names, kind)


def _unit_of(some: list[Any], names: Columns, kind: T.DataType) -> str:
    """How times are read, from the few that decide it."""
    series = pl.Series(names.time, some)
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        series = series.cast(pl.Datetime("us"))
    elif isinstance(kind, T.FloatType):
        series = series.cast(pl.Float32)
    try:
        return to_microseconds(series, names.time_unit, any_time=names.any_time)[1]
    except TalerecError as error:  # its row numbers are those of these few values
        raise type(error)(re.sub(r"row \d+:? ", "", str(error))) from None


def _is_empty(events: DataFrame, cell: str) -> Any:
    column = F.col(cell)
    if events.schema[cell].dataType == T.StringType():
        return column.isNull() | (F.trim(column) == "")
    if events.schema[cell].dataType == T.DoubleType():
        return column.isNull() | F.isnan(column)
    return column.isNull()


def one_of_each(run: Run, events: DataFrame) -> DataFrame:
    """Rows without duplicates: the first of each user, item and time."""
    first = events.groupBy("user", "item", "time").agg(F.min("place").alias("place"))
    return run.save("unique", first.select(events.columns), "read")


def k_core(run: Run, events: DataFrame, k: int) -> DataFrame:
    """Leave out users and items with fewer than `k` rows, again and again until nothing changes."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise TalerecError(f"core is {k}; it takes a whole number from 1")
    rows, turn = events.count(), 0
    while True:
        stays = events
        for name in ("user", "item"):
            enough = events.groupBy(name).count().where(F.col("count") >= k).select(name)
            stays = stays.join(enough, name, "left_semi")
        events = run.save(f"core-{turn}", stays, "core")
        left, turn = events.count(), turn + 1
        if not left:
            raise TalerecError(f"nothing is left of the log after a {k}-core; use a smaller core")
        if left == rows:
            return events
        shutil.rmtree(run.folder / f"core-{turn - 2}", ignore_errors=True)
        rows = left


def newest_rows(events: DataFrame, limit: int) -> DataFrame:
    """Each user's last `limit` rows.

    Only users with more are ranked, and their rows in slices first: no task sorts a very long history.
    """
    counts = events.groupBy("user").count()
    long = counts.where(F.col("count") > limit)
    few = events.join(long, "user", "left_anti")
    many = events.join(long, "user")
    slices = F.ceil(F.col("count") / _SLICE)
    many = many.withColumn("slice", F.pmod(F.xxhash64("item", "time", "place"), slices))
    latest = (F.desc("time"), F.desc("place"))
    for group in (("user", "slice"), ("user",)):
        place = F.row_number().over(Window.partitionBy(*group).orderBy(*latest))
        many = many.withColumn("from_end", place).where(F.col("from_end") <= limit)
    return few.unionByName(many.select(few.columns))


def item_table(session: SparkSession, path: Path, items: int) -> DataFrame:
    """The table of items to join with, sent to every executor while it is small."""
    table = session.read.parquet(f"file://{path}")
    return F.broadcast(table) if items <= _BROADCAST else table
