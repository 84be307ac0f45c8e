"""Times in any spelling as int64 microseconds since 1970, checked."""

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
from talerec.runtime.arrays import Array

logger = logging.getLogger("talerec")

DAY = 86_400_000_000  # microseconds
_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MICROSECONDS = {"D": DAY, "s": 10**6, "ms": 10**3, "us": 1}
_EARLIEST = 0
_LATEST = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp()) * 10**6
FARTHEST = 2**62  # microseconds: far beyond any date, and safe to subtract
_DISTINCT = 10**8  # seconds: for times from 1973 on, the size of a number tells its unit

# ISO 8601 as people write it, commonest first; UTC unless there is an offset. `%#z` takes Z, +02, +0200 and +02:00.
_SPELLINGS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d",
    "%+",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d %H:%M%#z",
    "%Y-%m-%dT%H:%M%#z",
    "%d.%m.%Y %H:%M:%S%.f",  # with dots the day comes first, wherever it is written so
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y",
    "%Y/%m/%d %H:%M:%S%.f",
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
)
_CLOCK = re.compile("%[-_0]?[HIklTRrXcs+]")  # what a spelling has that says more than the day
_WRITTEN = "%m/%d/%Y %H:%M"  # an example


def days(value: float) -> int:
    """Days as whole microseconds, within what int64 can subtract; infinity is a very long time."""
    return round(min(value * DAY, 2.0**61))


def to_microseconds(column: pl.Series, unit: str | None, *, any_time: bool) -> tuple[Array, str]:
    """The column as int64 microseconds, and what it was read as (a unit, or "datetime")."""
    spelling = unit if unit is not None and "%" in unit else None
    if unit is not None and unit not in _NAMES and spelling is None:
        raise TalerecError(
            f"time unit {unit!r} is not one of s, ms, us, ns, nor how dates are written ({_WRITTEN})"
        )
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    _refuse_rows(column, column.is_null(), "is empty")
    if spelling is not None:
        values = _as_written(column, spelling)
    else:
        values = _parse(column) if column.dtype == pl.String else column
    if isinstance(values.dtype, pl.Datetime | pl.Date):
        stored = values.to_physical().cast(pl.Int64)
        moments, read_as = _scale(column, stored, _stored_in(values.dtype)), "datetime"
    elif values.dtype.is_numeric():
        numbers = _numbers(column, values)
        if unit is None:
            _refuse_days(column, numbers)
        read_as = unit or _guess(column, numbers)
        moments = _scale(column, numbers, read_as)
    else:
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values; times are datetimes or numbers"
        )
    if not any_time:
        _refuse_distant(column, moments, read_as)
    return moments, read_as


def _refuse_distant(column: pl.Series, moments: Array, read_as: str) -> None:
    hint = "outside 1970 to 2100"
    if read_as in _NAMES:
        hint += f" when read as {_NAMES[read_as]} (--time-unit says otherwise)"
    outside = pl.Series((moments < _EARLIEST) | (moments >= _LATEST))
    _refuse_rows(column, outside, f"lies {hint}; --any-time allows it")


def _refuse_rows(column: pl.Series, bad: pl.Series, what: str) -> None:
    """An error that names the first bad row and its value, if there is one."""
    if bad.any():
        row = int(bad.arg_true()[0])
        shown = "" if column.is_null()[row] else _shown(column, row)
        raise InvalidLogError(f"row {row + 1}: {column.name}{shown} {what}")


def _shown(column: pl.Series, row: int) -> str:
    """A value for a message; NumPy writes it, because Python's dates end with the year 9999."""
    if isinstance(column.dtype, pl.Datetime | pl.Date):
        value: Any = column.to_physical().to_numpy()[row : row + 1].astype(np.int64)
        return f" {value.view(f'datetime64[{_stored_in(column.dtype)}]')[0]}"
    return f" {column[row]!r}"


def _stored_in(kind: pl.Datetime | pl.Date) -> str:
    return kind.time_unit if isinstance(kind, pl.Datetime) else "D"


def _parse(column: pl.Series) -> pl.Series:
    """Text as integers, else as decimals, else as dates and times."""
    text = column.str.strip_chars()
    for kind in (pl.Int64, pl.Float64):
        numbers = text.cast(kind, strict=False)
        if not numbers.null_count():
            return numbers
    _refuse_rows(column, ~numbers.is_finite().fill_null(True), "is not a time")
    if numbers.null_count() < len(text):
        _refuse_rows(column, numbers.is_null(), "is not a number, as other times are")
    moments = pl.Series([None], dtype=pl.Datetime("us", "UTC")).new_from_index(0, len(text))
    for spelling in _SPELLINGS:
        if moments.null_count():
            moments = moments.fill_null(_spelled(text, spelling))
    way_out = f"write 2019-10-01 12:30:00, or say how it is written: --time-unit '{_WRITTEN}'"
    _refuse_rows(column, moments.is_null(), f"is not a time; {way_out}")
    return moments


def _as_written(column: pl.Series, spelling: str) -> pl.Series:
    """Text as dates and times that are written as somebody says."""
    if column.dtype != pl.String:
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values, and no text that is written as {spelling!r}"
        )
    try:
        moments = _spelled(column.str.strip_chars(), spelling)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise TalerecError(f"{spelling!r} does not say how times are written: {reason}") from None
    _refuse_rows(column, moments.is_null(), f"is not a time that is written as {spelling!r}")
    return moments


def _spelled(text: pl.Series, spelling: str) -> pl.Series:
    if not _CLOCK.search(spelling):
        return text.str.to_date(spelling, strict=False).cast(pl.Datetime("us", "UTC"))
    return text.str.to_datetime(spelling, time_unit="us", time_zone="UTC", strict=False)


def _numbers(column: pl.Series, values: pl.Series) -> pl.Series:
    """Numbers of any width as Int64, or as finite Float64 where they have decimals."""
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


#: Days since 1900, as spreadsheets count them: from 1954 to 2064.
_SPREADSHEET = (20_000, 60_000)


def _refuse_days(column: pl.Series, numbers: pl.Series) -> None:
    """An error where every number is a date written as YYYYMMDD, or a day as spreadsheets count them."""
    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    way_out = "; write dates such as 2019-10-01, or say --time-unit s if they are seconds"
    if low >= 19700101 and high < 21000101 and _are_written_dates(numbers):
        shown = f"row 1 is {_shown(column, 0).strip()}"
        raise InvalidLogError(f"every {column.name} is a date as a number ({shown}){way_out}")
    if low >= _SPREADSHEET[0] and high <= _SPREADSHEET[1]:
        raise InvalidLogError(
            f"every {column.name} lies between 20,000 and 60,000, as the days of a spreadsheet do{way_out}"
        )


def _are_written_dates(numbers: pl.Series) -> bool:
    whole = numbers.cast(pl.Int64)
    days_written = whole.cast(pl.String).str.to_date("%Y%m%d", strict=False)
    return not days_written.null_count() and bool((whole == numbers).all())


def _looks_like(value: float) -> str:
    for unit in ("s", "ms", "us"):
        if abs(value) < _DISTINCT * 1000 * _PER_SECOND[unit]:
            return unit
    return "ns"


def _guess(column: pl.Series, numbers: pl.Series) -> str:
    """The unit that the size of the numbers suggests; an error where they suggest two."""
    size = numbers.cast(pl.Float64).abs()
    _refuse_rows(column, size > 2.0**63, "is beyond any date")
    largest = float(size.max())  # type: ignore[arg-type]
    unit = _looks_like(largest)
    least = float(size.filter(size >= min(_DISTINCT, largest)).min())  # type: ignore[arg-type]
    if _looks_like(least) != unit:
        low, high = int((size == least).arg_true()[0]), int((size == largest).arg_true()[0])
        raise InvalidLogError(
            f"times are of mixed units: row {low + 1} ({column[low]}) looks like "
            f"{_NAMES[_looks_like(least)]}, row {high + 1} ({column[high]}) like {_NAMES[unit]}; "
            "--time-unit says which they are"
        )
    logger.info("times read as %s (guessed by size)", _NAMES[unit])
    return unit


def _scale(column: pl.Series, numbers: pl.Series, unit: str) -> Array:
    """Numbers in `unit` as microseconds; whole numbers never pass through floats."""
    values: Array = numbers.to_numpy()
    whole = values.dtype == np.int64
    if unit == "ns":
        values = values // 1000 if whole else values / 1000
        unit = "us"
    reach = FARTHEST // _MICROSECONDS[unit]
    _refuse_rows(column, pl.Series((values > reach) | (values < -reach)), "is beyond any date")
    scaled = values * _MICROSECONDS[unit]
    return scaled if whole else np.rint(scaled).astype(np.int64)


# -- moments, one at a time ------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A point in time, as people give it; `microseconds` says what each stands for.
Moment = str | date | float | np.datetime64


def microseconds(when: Moment, unit: str = "s") -> int:
    """A moment in microseconds since 1970: the one meaning of time in library, command and service.

    A date or a datetime (or its ISO 8601 text) is UTC unless it names a time zone. A number, or its text, of 10^8
    and more shows its unit by its size: s, ms, us or ns. A smaller one counts in `unit`, that of the log.
    """
    if isinstance(when, str):
        return parse_moment(when, unit)
    if isinstance(when, datetime) and when == when:  # pandas' NaT is not
        return moment(when)
    if isinstance(when, date) and not isinstance(when, datetime):
        return moment(datetime(when.year, when.month, when.day))
    if isinstance(when, np.datetime64) and not np.isnat(when):
        return int(when.astype("datetime64[us]").astype(np.int64))
    if isinstance(when, bool | np.bool_) or not isinstance(when, int | float | np.number):
        raise TalerecError(
            f"{when!r} is not a time: give a datetime, 2019-10-01 as text, or a number"
        )
    return _from_number(when.item() if isinstance(when, np.number) else when, unit)


def _from_number(number: float, unit: str) -> int:
    if not abs(number) < _BEYOND:  # NaN is not
        raise TalerecError(f"time {number} is beyond any date")
    unit = _unit_of(number, unit)
    if isinstance(number, int):
        exact = number // 1000 if unit == "ns" else number * _MICROSECONDS[unit]
    else:
        exact = round(number / 1000 if unit == "ns" else number * _MICROSECONDS[unit])
    if abs(exact) > FARTHEST:
        raise TalerecError(f"time {number} is beyond any date")
    return exact


_BEYOND = 2**63


def _unit_of(number: float, unit: str) -> str:
    """What a number counts: its size tells, or else the log does."""
    if abs(number) >= _DISTINCT:
        return _looks_like(number)
    if unit in _NAMES:
        return unit
    if _is_written_date(number):
        raise TalerecError(
            f"time {number} looks like a date without dashes; write it as {_dashed(number)}"
        )
    return "s"


def _is_written_date(number: float) -> bool:
    """Is it a day of 1970 to 2099 as YYYYMMDD?"""
    try:
        return 19700101 <= number < 21000101 and bool(date.fromisoformat(f"{number:.0f}"))
    except ValueError:
        return False


def _dashed(number: float) -> str:
    return date.fromisoformat(f"{number:.0f}").isoformat()


def parse_moment(text: str, unit: str = "s") -> int:
    """A moment as text (a date, a datetime or a number) in microseconds; see `microseconds`."""
    number = _number_in(text)
    if number is not None:
        return _from_number(number, unit)
    try:
        return moment(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        raise TalerecError(
            f"{text!r} is not a time; write 2019-10-01, 2019-10-01 12:30 or unix seconds"
        ) from None


def _number_in(text: str) -> float | None:
    """The number that a text spells, exact where it is whole; None for any other text."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def moment(value: datetime) -> int:
    """A datetime (UTC unless it has a time zone) in microseconds, exactly."""
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
