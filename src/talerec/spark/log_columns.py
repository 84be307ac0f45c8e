"""The columns of a log on Spark: their names, and their values as Spark expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec import columns
from talerec.data import DAY, check_event_weights
from talerec.errors import InvalidLogError, TalerecError

_MAX_EVENTS = 1000


@dataclass(frozen=True)
class Columns:
    """The names of a log's columns, and how its times and weights are read.

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
        """Whether rows of the log have weights, from a column or from the names of their events."""
        return self.weight is not None or self.event_weights is not None


NAMES = Columns()


def _select_column(name: str) -> Any:
    """Return the Spark column of exactly that name, which may have dots and backticks."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def id_expression(name: str, kind: T.DataType) -> Any:
    """Return a Spark expression of a column of ids as int64 or text, by its type `kind`.

    name: of the column. InvalidLogError if it is neither text nor whole numbers.
    """
    if isinstance(kind, T.IntegralType):
        return _select_column(name).cast("long")
    if isinstance(kind, T.StringType):
        return _select_column(name).cast("string")
    raise InvalidLogError(
        f"column {name!r} holds {kind.simpleString()} values; ids are text or whole numbers"
    )


def time_expression(name: str, kind: T.DataType) -> Any:
    """Return a Spark expression of a time column as numbers: int64, or doubles for fractions.

    Timestamps and dates become microseconds since 1970; numbers stay as they are, in the unit of
    the log. kind: the Spark type of the column `name`; InvalidLogError for another type.
    """
    column = _select_column(name)
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


def time_kind(kind: T.DataType) -> str:
    """Return "timestamp", "float" (32 bits) or "number", by the Spark type of a time column."""
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        return "timestamp"
    return "float" if isinstance(kind, T.FloatType) else "number"


def weight_expression(frame: DataFrame, names: Columns) -> Any:
    """Return the Spark expression of row weights: a column of the log, or its event's weight.

    frame: the log as a Spark table; names: its columns, and the weight by event name, if any. Text
    is read as numbers. TalerecError if the parameters conflict or an event has no weight.
    """
    if names.event_weights is None:
        assert names.weight is not None
        kind = frame.schema[names.weight].dataType
        if isinstance(kind, T.NumericType):
            return _select_column(names.weight).cast("double")
        if isinstance(kind, T.StringType):
            return F.trim(_select_column(names.weight)).try_cast("double")
        raise InvalidLogError(
            f"column {names.weight!r} holds {kind.simpleString()} values; weights are numbers"
        )
    if names.event is None:
        raise TalerecError("`event_weights` needs `event`", "event_weights", "event")
    if names.weight is not None:
        raise TalerecError(
            "give `weight` or `event_weights`, one of the two", "weight", "event_weights"
        )
    event = _select_column(names.event).cast("string")
    events = frame.select(event.alias("event")).distinct().limit(_MAX_EVENTS + 1).collect()
    check_event_weights(names.event, [row[0] for row in events], names.event_weights)
    weights = names.event_weights.items()
    pairs = [F.lit(part) for name, value in weights for part in (name, float(value))]
    return F.element_at(F.create_map(*pairs), event)


def time_in_microseconds(time: Any, unit: str, is_whole: bool) -> Any:
    """Return a Spark expression of the time column in microseconds.

    time: the column; unit: of its values, "datetime" for timestamps, which are microseconds
    already; is_whole: it has integers. Fractions are rounded; nanoseconds are rounded down.
    """
    if unit in ("datetime", "us") and is_whole:
        return time
    scale = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    if not is_whole:
        return F.rint(time / 1000 if unit == "ns" else time * scale).cast("long")
    if unit == "ns":
        return F.expr("(time - pmod(time, 1000)) div 1000")
    return time * F.lit(scale)
