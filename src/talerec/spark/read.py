"""From a DataFrame or Parquet files to rows that are checked, cleaned and cut: all of it expressions of Spark."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec import columns
from talerec.data.frames import refuse_missing, refuse_twice
from talerec.data.times import DAY, to_microseconds
from talerec.data.weights import beyond, check_events
from talerec.errors import InvalidLogError, TalerecError
from talerec.spark.files import PLACE, PREFIX, placed_files
from talerec.spark.session import PATTERN, Run

Source = DataFrame | str | Path

_BROADCAST = (
    2_000_000  # items up to which their table is sent to every executor; a larger one is joined
)
_SLICE = 1_000_000  # rows of a long history that are ranked together
_MOST_EVENTS = 1000
_WHOLE = r"^[+-]?0*[0-9]{1,38}\z"  # a whole number, as vocabularies know one; after `$` a line end may follow
_BLANK = r"^\p{IsWhite_Space}*\z"


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
        A column that says what a row is worth; rows of weight 0 are left out.
    event, event_weights : str and dict, optional
        A column that says what happened, and what that is worth; they go together.
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
        """The columns that a log must have."""
        worth = (self.weight, self.event)
        return [self.user, self.item, self.time, *(name for name in worth if name is not None)]

    @property
    def are_weighed(self) -> bool:
        """Do rows have weights?"""
        return self.weight is not None or self.event_weights is not None


NAMES = Columns()


def read_events(
    session: SparkSession, source: Source, names: Columns, ties: str
) -> tuple[DataFrame, str]:
    """The log as user, item, time (microseconds), place (its order at equal times) and maybe weight; and how times were read."""
    plain, events = raw_events(session, source, names, ties)
    found = plain.agg(*checks(plain)).first()
    assert found is not None
    unit, _ = checked(events, names, found.asDict())
    return in_microseconds(events, unit), unit


class Raw(NamedTuple):
    """A log as user, item, time (as it stands), place, and weight where rows have one: read twice, by what a pass needs."""

    plain: DataFrame  # its places mean nothing, and cost nothing
    placed: DataFrame  # with the order of rows at equal times


def raw_events(session: SparkSession, source: Source, names: Columns, ties: str) -> Raw:
    """The log, with columns under names of our own."""
    if ties not in ("file", "item"):
        raise TalerecError(f"ties is {ties!r}; on Spark it takes file or item")
    if not isinstance(source, DataFrame):
        frame, placed = placed_files(session, _literal(source), names.needed, names.time)
    elif ties == "file":
        raise TalerecError(
            "rows of a DataFrame have no order: take ties=item, or the path of Parquet files"
        )
    else:
        frame = placed = source.withColumn(PLACE, F.lit(0).cast("long"))
    known = [name for name in frame.columns if not name.startswith(PREFIX)]
    refuse_twice(names.needed[:3])
    refuse_missing(known, names.needed)
    kinds = {name: frame.schema[name].dataType for name in names.needed}
    columns = [
        _id(names.user, kinds[names.user]).alias("user"),
        _id(names.item, kinds[names.item]).alias("item"),
        _number(names.time, kinds[names.time]).alias("time", metadata=_kind(kinds[names.time])),
        F.col(PLACE).alias("place"),
        *([worth(frame, names).alias("weight")] if names.are_weighed else []),
    ]
    return Raw(frame.select(*columns), placed.select(*columns))


def in_microseconds(events: DataFrame, unit: str) -> DataFrame:
    """Events whose times were read as `unit`, with times in microseconds, without those of weight 0."""
    whole = events.schema["time"].dataType == T.LongType()
    counted = events.where(F.col("weight") > 0) if "weight" in events.columns else events
    return counted.withColumn("time", _microseconds(F.col("time"), unit, whole))


def whole_address(path: str | Path) -> str:
    """An address as it was before `Path` dropped its slashes."""
    found = re.match(r"(\w+):/(?!/)", str(path))
    if found is None:
        return str(path)
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{str(path)[found.end() :]}"


def _literal(path: str | Path) -> str:
    """An address to read from; what is there under that very name is no pattern."""
    address = whole_address(path)
    file = Path(address.removeprefix("file://"))
    if file.is_file() and not _is_parquet(file):
        raise InvalidLogError(
            f"{file} is not a Parquet file: write it as one, or leave --engine spark out, which reads other formats too"
        )
    return PATTERN.sub(r"\\\g<0>", address) if file.exists() else address


def _is_parquet(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) in (b"PAR1", b"PARE")  # plain, or encrypted


def _column(name: str) -> Any:
    """The column of that name: dots and backticks are part of it."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def _id(name: str, kind: T.DataType) -> Any:
    if isinstance(kind, T.IntegralType):
        return _column(name).cast("long")
    if isinstance(kind, T.StringType):
        return _column(name).cast("string")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; ids are text or whole numbers"
    )


def _number(name: str, kind: T.DataType) -> Any:
    """Times as numbers: timestamps and dates as microseconds, numbers as they are."""
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
        return column.cast("long")  # a double would round whole numbers that Spark has as decimals
    if isinstance(kind, T.FractionalType):
        return column.cast("double")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; times are timestamps or numbers"
    )


def _kind(kind: T.DataType) -> dict[str, str]:
    """What sort of times a column holds, where that tells how numbers are read."""
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        return {"kind": "moment"}
    return {"kind": "float"} if isinstance(kind, T.FloatType) else {"kind": "number"}


def worth(frame: DataFrame, names: Columns) -> Any:
    """What rows are worth: a column of weights, or the weight of each row's event."""
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
        raise TalerecError("--event-weights needs --event COLUMN")
    if names.weight is not None:
        raise TalerecError("give --weight or --event-weights, one of the two")
    event = _column(names.event).cast("string")
    found = frame.select(event.alias("event")).distinct().limit(_MOST_EVENTS + 1).collect()
    check_events(names.event, [row[0] for row in found], names.event_weights)
    pairs = [F.lit(part) for name, value in names.event_weights.items() for part in (name, float(value))]  # fmt: skip
    return F.element_at(F.create_map(*pairs), event)


def _microseconds(time: Any, unit: str, whole: bool) -> Any:
    if unit in ("datetime", "us") and whole:
        return time
    per = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    if not whole:
        return F.rint(time / 1000 if unit == "ns" else time * per).cast("long")
    if unit == "ns":
        return F.expr("(time - pmod(time, 1000)) div 1000")
    return time * F.lit(per)


def checks(events: DataFrame) -> list[Any]:
    """What is asked of rows before anything is made of them; answers of parts add up, or are least or largest ones."""
    size, texts = F.abs(F.col("time")), F.count_if(F.lit(True))
    if events.schema["user"].dataType == T.StringType():
        texts = F.count_if(~F.col("user").rlike(_WHOLE))
    return [
        F.count(F.lit(1)).alias("rows"),
        *(F.count_if(_is_empty(events, cell)).alias(f"no_{cell}") for cell in _CELLS),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.min(F.when(size >= 10**8, size)).alias("least"),
        texts.alias("texts"),
        *_checks_of_weights(events),
    ]


def _checks_of_weights(events: DataFrame) -> list[Any]:
    if "weight" not in events.columns:
        return [F.count(F.lit(1)).alias("kept")]
    weight = F.col("weight")
    odd = weight.isNull() | F.isnan(weight) | (F.abs(weight) == float("inf"))
    there = F.when(weight > 0, weight)
    return [
        F.count(there).alias("kept"),
        F.count_if(odd).alias("no_weight"),
        F.count_if(weight < 0).alias("below"),
        F.sum(there).alias("worth"),
        F.min(there).alias("light"),
        F.max(there).alias("heavy"),
        F.min(F.when(weight > 0, F.col("time"))).alias("begin"),
        F.max(F.when(weight > 0, F.col("time"))).alias("end"),
    ]


_CELLS = ("user", "item", "time")
_TIMES = ("begin", "end", "first", "last", "least")  # those of rows that count come first


def checked(events: DataFrame, names: Columns, found: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Refuse a log without rows, with empty cells, impossible times or weights; what times are read as, and the first and last that count."""
    if not found["rows"]:
        raise InvalidLogError("the log is empty: it has no rows")
    for cell, name in zip(_CELLS, names.needed, strict=False):
        if found[f"no_{cell}"]:
            raise InvalidLogError(
                f"{name} is empty in {found[f'no_{cell}']:,} of {found['rows']:,} rows"
            )
    some = [found[name] for name in _TIMES if found.get(name) is not None]
    unit, times = _unit_of(some, names, events)
    _check_weights(names, found)
    return unit, times[:2]


def _check_weights(names: Columns, found: Mapping[str, Any]) -> None:
    for count, what in (("no_weight", "is not a finite number"), ("below", "is below 0")):
        if found.get(count):
            raise InvalidLogError(
                f"{names.weight} {what} in {found[count]:,} of {found['rows']:,} rows; weights are 0 or more"
            )
    if not found["kept"]:
        raise InvalidLogError("every row has the weight 0: nothing is left")
    if math.isinf(found.get("worth", 0.0)):
        raise InvalidLogError(beyond(names.weight or names.event or ""))


def _unit_of(some: list[Any], names: Columns, events: DataFrame) -> tuple[str, list[int]]:
    """How times are read, from the few that decide it."""
    series = pl.Series(names.time, some)
    kind = events.schema["time"].metadata.get("kind")
    if kind == "moment":
        series = series.cast(pl.Datetime("us"))
    elif kind == "float":
        series = series.cast(pl.Float32)
    try:
        found, unit = to_microseconds(series, names.time_unit, any_time=names.any_time)
    except TalerecError as error:  # its row numbers are those of these few values
        raise type(error)(re.sub(r"row \d+:? ", "", str(error))) from None
    return unit, found.tolist()


def _is_empty(events: DataFrame, cell: str) -> Any:
    column = F.col(cell)
    if events.schema[cell].dataType == T.StringType():
        maybe = (column < "!") | (
            column >= "\u0080"
        )  # a pattern costs more than a look at the first byte
        return column.isNull() | (maybe & column.rlike(_BLANK))
    if events.schema[cell].dataType == T.DoubleType():
        return column.isNull() | F.isnan(column)
    return column.isNull()


def one_of_each(run: Run, events: DataFrame) -> DataFrame:
    """Rows without duplicates: the first of each user, item and time."""
    first: list[Any] = [F.min("place").alias("place")]
    if "weight" in events.columns:
        first.append(F.min_by("weight", "place").alias("weight"))
    kept = events.groupBy("user", "item", "time").agg(*first)
    return run.save("unique", kept.select(events.columns), "read")


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


def newest_rows(events: DataFrame, limit: int, order: Sequence[str]) -> DataFrame:
    """Each user's last `limit` rows in the order of some columns.

    Only users with more are ranked, and their rows in slices first: no task sorts a very long history.
    """
    counts = events.groupBy("user").count()
    long = counts.where(F.col("count") > limit)
    few = events.join(long, "user", "left_anti")
    many = events.join(long, "user")
    slices = F.ceil(F.col("count") / _SLICE)
    many = many.withColumn("slice", F.pmod(F.xxhash64("item", "time", "place"), slices))
    latest = [F.desc(name) for name in order]
    for group in (("user", "slice"), ("user",)):
        place = F.row_number().over(Window.partitionBy(*group).orderBy(*latest))
        many = many.withColumn("from_end", place).where(F.col("from_end") <= limit)
    return few.unionByName(many.select(few.columns))


def item_table(session: SparkSession, path: Path, items: int) -> DataFrame:
    """The table of items to join with, sent to every executor while it is small."""
    table = session.read.parquet(f"file://{path}")
    return F.broadcast(table) if items <= _BROADCAST else table
