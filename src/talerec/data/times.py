"""Times in any format as int64 microseconds since 1970 (UTC), checked."""

from __future__ import annotations

import logging
import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import Array

logger = logging.getLogger("talerec")

DAY = 86_400_000_000  # microseconds
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MICROSECONDS = {"D": DAY, "s": 10**6, "ms": 10**3, "us": 1}
_EARLIEST = 0
_LATEST = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * 10**6
FARTHEST = 2**62  # microseconds: far beyond any date, and safe to subtract
_MIN_DISTINCT = 10**8  # seconds: for times from 1973 on, the size of a number tells its unit

# Variants of ISO 8601, most frequent first; UTC unless there is an offset. `%#z` accepts Z, +02,
# +0200 and +02:00.
_TEXT_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d", "%+", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M%#z", "%Y-%m-%dT%H:%M%#z",
    "%d.%m.%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M", "%d.%m.%Y",  # with dots, the day comes first
    "%Y/%m/%d %H:%M:%S%.f", "%Y/%m/%d %H:%M", "%Y/%m/%d",
)  # fmt: skip
_HAS_CLOCK = re.compile("%[-_0]?[HIklTRrXcs+]")  # a format with a time of day
_FORMAT_EXAMPLE = "%m/%d/%Y %H:%M"


def days_to_microseconds(value: float) -> int:
    """Return days as whole microseconds; very long times, infinity too, as 2**61."""
    return round(min(value * DAY, 2.0**61))


def parse_time_column(column: pl.Series, unit: str | None, *, any_time: bool) -> tuple[Array, str]:
    """Return a column of times as int64 microseconds since 1970, and the unit it was read in.

    column : numbers, datetimes, dates, or text of numbers or dates
    unit : s, ms, us or ns of numbers, or the strptime format of text ("%d.%m.%Y"); None: guessed
    any_time : whether times outside 1970 to 2100 are allowed

    The unit returned is s, ms, us or ns for numbers, and "datetime" for dates and text of dates.
    InvalidLogError names the first row that is not a time.
    """
    text_format = unit if unit is not None and "%" in unit else None
    if unit is not None and unit not in _NAMES and text_format is None:
        raise TalerecError(
            f"`time_unit` is {unit!r}; it takes s, ms, us, ns or a date format such as "
            f"{_FORMAT_EXAMPLE}",
            "time_unit",
        )
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    _refuse_rows(column, column.is_null(), "is empty")
    if column.dtype == pl.String:
        is_header = column.str.strip_chars() == column.name
        _refuse_rows(column, is_header, "repeats the header line; remove this row")
    if text_format is not None and not isinstance(column.dtype, pl.Datetime | pl.Date):
        values = _parse_with_format(column, text_format)
    else:
        values = _parse_any_text(column) if column.dtype == pl.String else column
    if isinstance(values.dtype, pl.Datetime | pl.Date):
        stored = values.to_physical().cast(pl.Int64)
        times, read_as = _scale_numbers(column, stored, _stored_unit(values.dtype)), "datetime"
    elif values.dtype.is_numeric():
        stamps = _clean_numbers(column, values)
        if unit is None:
            _refuse_day_numbers(column, stamps)
        read_as = unit or _guess_unit(column, stamps)
        times = _scale_numbers(column, stamps, read_as)
    else:
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values; times are datetimes or numbers"
        )
    if not any_time:
        _refuse_distant(column, times, read_as)
    return times, read_as


def _refuse_distant(column: pl.Series, times: Array, read_as: str) -> None:
    """Raise InvalidLogError for the first time (microseconds) outside 1970 to 2100.

    `column` has the original values, and `read_as` the unit in which they were read.
    """
    hint, parameters = "outside 1970 to 2100", ["any_time"]
    if read_as in _NAMES:
        hint += f" when read as {_NAMES[read_as]} (`time_unit` sets another unit)"
        parameters.append("time_unit")
    outside = pl.Series((times < _EARLIEST) | (times >= _LATEST))
    _refuse_rows(column, outside, f"lies {hint}; `any_time` allows it", *parameters)


def _refuse_rows(column: pl.Series, bad: pl.Series, what: str, *parameters: str) -> None:
    """Raise InvalidLogError about the first row where `bad`, a boolean per row, is true.

    Nothing happens if there is none. The message has the column's name, the row's value and `what`,
    which says what is wrong; `parameters` are the names of the parameters that could help.
    """
    if bad.any():
        row = int(bad.arg_true()[0])
        shown = "" if column.is_null()[row] else _format_value(column, row)
        raise InvalidLogError(f"{column.name}{shown} {what}", *parameters, row=row + 1)


def _format_value(column: pl.Series, row: int) -> str:
    """Return a space and the value in a row of `column`, for a message.

    NumPy formats dates, as Python's end in the year 9999.
    """
    if isinstance(column.dtype, pl.Datetime | pl.Date):
        value: Any = column.to_physical().to_numpy()[row : row + 1].astype(np.int64)
        return f" {value.view(f'datetime64[{_stored_unit(column.dtype)}]')[0]}"
    return f" {column[row]!r}"


def _stored_unit(kind: pl.Datetime | pl.Date) -> str:
    """Return the unit in which Polars stores a column of times: ms, us, ns, or D for dates."""
    return kind.time_unit if isinstance(kind, pl.Datetime) else "D"


def _parse_any_text(column: pl.Series) -> pl.Series:
    """Return text as Int64, else Float64, else UTC datetimes; InvalidLogError for other text.

    `column` has text such as "1570000000", "1.5e9" or "2019-10-01 12:30" (several forms of ISO
    8601, and dates such as 01.10.2019). All values must be numbers, or all dates.
    """
    text = column.str.strip_chars()
    for kind in (pl.Int64, pl.Float64):
        stamps = text.cast(kind, strict=False)
        if not stamps.null_count():
            return stamps
    _refuse_rows(column, ~stamps.is_finite().fill_null(True), "is not a time")
    if stamps.null_count() < len(text):
        _refuse_rows(column, stamps.is_null(), "is not a number, as other times are")
    times = pl.Series([None], dtype=pl.Datetime("us", "UTC")).new_from_index(0, len(text))
    for text_format in _TEXT_FORMATS:
        if times.null_count():
            times = times.fill_null(_parse_text(text, text_format))
    example = _suggest_format(text) if times.null_count() else ""
    way_out = f"write 2019-10-01 12:30:00, or set `time_unit` to its format, such as {example}"
    _refuse_rows(column, times.is_null(), f"is not a time; {way_out}", "time_unit")
    return times


def _suggest_format(text: pl.Series) -> str:
    """Return quoted strptime formats (one or two) of dates such as 25/12/2023, or an example."""
    pattern = r"^(\d{1,2})/(\d{1,2})/\d{4}"
    first, second = (text.str.extract(pattern, i).cast(pl.Int64) for i in (1, 2))
    if first.null_count() == len(first):
        return f"'{_FORMAT_EXAMPLE}'"
    clock = {1: " %H:%M", 2: " %H:%M:%S"}.get(text[0].count(":"), "")
    if (first > 12).any():
        return f"'%d/%m/%Y{clock}'"
    month_first = f"'%m/%d/%Y{clock}'"
    return month_first if (second > 12).any() else f"{month_first} or '%d/%m/%Y{clock}'"


def _parse_with_format(column: pl.Series, text_format: str) -> pl.Series:
    """Return text in a strptime format, such as %d.%m.%Y, as UTC datetimes.

    InvalidLogError if the column is not text, or a value is not in the format.
    """
    if column.dtype != pl.String:
        message = f"column {column.name!r} holds {column.dtype} values, not text as {text_format!r}"
        raise InvalidLogError(message)
    try:
        times = _parse_text(column.str.strip_chars(), text_format)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise TalerecError(f"{text_format!r} is not a format of times: {reason}") from None
    _refuse_rows(column, times.is_null(), f"is not a time in the format {text_format!r}")
    return times


def _parse_text(text: pl.Series, text_format: str) -> pl.Series:
    """Return text in a strptime format as UTC datetimes; null where it is not in the format.

    A format without a time of day gives midnight.
    """
    if not _HAS_CLOCK.search(text_format):
        return text.str.to_date(text_format, strict=False).cast(pl.Datetime("us", "UTC"))
    return text.str.to_datetime(text_format, time_unit="us", time_zone="UTC", strict=False)


def _clean_numbers(column: pl.Series, values: pl.Series) -> pl.Series:
    """Return numbers of any width as Int64, or finite Float64 if they have decimals.

    `column` has the original values, for messages of errors: a number that is not finite, is beyond
    any date, or was rounded to Float32.
    """
    if values.dtype.is_integer() or getattr(values.dtype, "scale", None) == 0:
        whole = values.cast(pl.Int64, strict=False)
        _refuse_rows(column, whole.is_null(), "is beyond any date")
        return whole
    decimals = values.cast(pl.Float64)
    _refuse_rows(column, ~decimals.is_finite(), "is not a time")
    if values.dtype.is_float() and values.dtype != pl.Float64:
        rounded = decimals.abs() > 2**24  # from there on Float32 skips whole seconds
        _refuse_rows(column, rounded, f"was rounded to {values.dtype}; times need whole numbers")
    return decimals


#: Days since 1900, as spreadsheets store dates: from 1954 to 2064.
_SPREADSHEET_DAYS = (20_000, 60_000)


def _refuse_day_numbers(column: pl.Series, stamps: pl.Series) -> None:
    """Raise InvalidLogError if all numbers are YYYYMMDD dates or a spreadsheet's day counts.

    A spreadsheet counts days since 1900: 20,000 to 60,000 for 1954 to 2064. `stamps` are the
    numbers in `column`, whose name and values the message quotes.
    """
    low, high = float(stamps.min()), float(stamps.max())  # type: ignore[arg-type]
    way_out = "; write dates such as 2019-10-01, or set `time_unit` to s if they are seconds"
    if low >= 19700101 and high < 21000101 and _are_dates(stamps):
        shown = f"row 1 is {_format_value(column, 0).strip()}"
        message = f"every {column.name} is a date as a number ({shown}){way_out}"
        raise InvalidLogError(message, "time_unit")
    if low >= _SPREADSHEET_DAYS[0] and high <= _SPREADSHEET_DAYS[1]:
        raise InvalidLogError(
            f"every {column.name} lies between 20,000 and 60,000, as a spreadsheet counts days"
            f"{way_out}",
            "time_unit",
        )


def _are_dates(stamps: pl.Series) -> bool:
    """Return whether every number is whole and spells a date as YYYYMMDD.

    `stamps` are the times of a log as numbers, such as 20191001.
    """
    whole = stamps.cast(pl.Int64)
    days_written = whole.cast(pl.String).str.to_date("%Y%m%d", strict=False)
    return not days_written.null_count() and bool((whole == stamps).all())


def _guess_unit_of(value: float) -> str:
    """Return the unit (s, ms, us or ns) of a time since 1970 that its size suggests.

    Below 10^11 in size it is s, below 10^14 ms, below 10^17 us.
    """
    for unit in ("s", "ms", "us"):
        if abs(value) < _MIN_DISTINCT * 1000 * _PER_SECOND[unit]:
            return unit
    return "ns"


def _guess_unit(column: pl.Series, stamps: pl.Series) -> str:
    """Return the unit (s, ms, us, ns) that the size of the numbers suggests; an error if two.

    `stamps` are the times of the log as numbers since 1970, and `column` the same as in the file,
    for messages. The unit is reported by a log message.
    """
    size = stamps.cast(pl.Float64).abs()
    _refuse_rows(column, size > 2.0**63, "is beyond any date")
    largest = float(size.max())  # type: ignore[arg-type]
    unit = _guess_unit_of(largest)
    least = float(size.filter(size >= min(_MIN_DISTINCT, largest)).min())  # type: ignore[arg-type]
    if _guess_unit_of(least) != unit:
        low, high = int((size == least).arg_true()[0]), int((size == largest).arg_true()[0])
        raise InvalidLogError(
            f"times are of mixed units: row {low + 1} ({column[low]}) looks like "
            f"{_NAMES[_guess_unit_of(least)]}, row {high + 1} ({column[high]}) like "
            f"{_NAMES[unit]}; set `time_unit`",
            "time_unit",
        )
    logger.info("times read as %s (guessed by size)", _NAMES[unit])
    return unit


def _scale_numbers(column: pl.Series, stamps: pl.Series, unit: str) -> Array:
    """Return numbers in `unit` (D, s, ms, us or ns) as int64 microseconds.

    Integers never pass through floats. `column` has the original values, for the error about a
    number beyond any date.
    """
    values: Array = stamps.to_numpy()
    whole = values.dtype == np.int64
    if unit == "ns":
        values = values // 1000 if whole else values / 1000
        unit = "us"
    reach = FARTHEST // _MICROSECONDS[unit]
    _refuse_rows(column, pl.Series((values > reach) | (values < -reach)), "is beyond any date")
    scaled = values * _MICROSECONDS[unit]
    return scaled if whole else np.rint(scaled).astype(np.int64)


# -- single times ----------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A point in time as callers give it; `time_to_microseconds` defines what each type means.
TimeLike = str | date | float | np.datetime64


def time_to_microseconds(when: TimeLike, unit: str = "s") -> int:
    """Return a time in microseconds since 1970.

    A date or a datetime (or its ISO 8601 text) is UTC unless it names a time zone. A number, or its
    text, of 10^8 and more shows its unit by its size: s, ms, us or ns. A smaller number counts in
    `unit`, the unit of the log.
    """
    if isinstance(when, str):
        return parse_time_text(when, unit)
    if isinstance(when, datetime) and when == when:  # pandas' NaT is not
        return datetime_to_microseconds(when)
    if isinstance(when, date) and not isinstance(when, datetime):
        return datetime_to_microseconds(datetime(when.year, when.month, when.day))
    if isinstance(when, np.datetime64) and not np.isnat(when):
        return int(when.astype("datetime64[us]").astype(np.int64))
    if isinstance(when, bool | np.bool_) or not isinstance(when, int | float | np.number):
        message = f"{when!r} is not a time: give a datetime, 2019-10-01 as text, or a number"
        raise TalerecError(message)
    return _convert_number(when.item() if isinstance(when, np.number) else when, unit)


def _convert_number(number: float, unit: str) -> int:
    """Return a number as microseconds since 1970; TalerecError if it is beyond any date.

    From 10^8 on, the size of the number shows its unit (s, ms, us or ns); a smaller one has the
    unit `unit`, that of the log.
    """
    if not abs(number) < _MAX_NUMBER:  # NaN is not
        raise TalerecError(f"time {number} is beyond any date")
    unit = _choose_unit(number, unit)
    if isinstance(number, int):
        exact = number // 1000 if unit == "ns" else number * _MICROSECONDS[unit]
    else:
        exact = round(number / 1000 if unit == "ns" else number * _MICROSECONDS[unit])
    if abs(exact) > FARTHEST:
        raise TalerecError(f"time {number} is beyond any date")
    return exact


_MAX_NUMBER = 2**63


def _choose_unit(number: float, unit: str) -> str:
    """Return the unit (s, ms, us or ns) of a number: by its size from 10^8 on, else `unit`.

    If `unit` is none of these, it is s; but TalerecError for a number that reads as a YYYYMMDD
    date.
    """
    if abs(number) >= _MIN_DISTINCT:
        return _guess_unit_of(number)
    if unit in _NAMES:
        return unit
    if (day := _parse_yyyymmdd(number)) is not None:
        raise TalerecError(f"time {number} looks like a date without dashes; write it as {day}")
    return "s"


def _parse_yyyymmdd(number: float) -> date | None:
    """Return the day of 1970 to 2099 that a number spells as YYYYMMDD, or None."""
    with suppress(ValueError):
        return date.fromisoformat(f"{number:.0f}") if 19700101 <= number < 21000101 else None
    return None


def parse_time_text(text: str, unit: str = "s") -> int:
    """Return a time given as text (date, datetime or number) in microseconds since 1970.

    A number below 10^8 counts in `unit`; see `time_to_microseconds`. TalerecError for other text.
    """
    number = _parse_number(text)
    if number is not None:
        return _convert_number(number, unit)
    try:
        return datetime_to_microseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        message = f"{text!r} is not a time; write 2019-10-01, 2019-10-01 12:30 or unix seconds"
        raise TalerecError(message) from None


def _parse_number(text: str) -> float | None:
    """Return the int that a text spells, else the finite float; None if it is not a number."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def datetime_to_microseconds(value: datetime) -> int:
    """Return a datetime (UTC unless it has a time zone) in exact microseconds since 1970."""
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
