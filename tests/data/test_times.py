"""Times: every format gives the right microsecond, and invalid times are refused by row."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs import quick
from talerec.data import (
    DAY,
    FARTHEST,
    days_to_microseconds,
    parse_time_column,
    parse_time_text,
    time_to_microseconds,
)
from talerec.data.times import datetime_to_microseconds
from talerec.errors import InvalidLogError, TalerecError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = 1_577_966_645_000_000  # 2020-01-02 12:04:05 UTC
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

stamps = st.datetimes(datetime(1970, 1, 1), datetime(2099, 12, 31))


def read(values: Any, unit: str | None = None, any_time: bool = False, dtype: Any = None) -> Any:
    column = values if isinstance(values, pl.Series) else pl.Series(values, dtype=dtype)
    moments, read_as = parse_time_column(column.alias("t"), unit, any_time=any_time)
    assert moments.dtype == np.int64
    assert moments.flags.writeable
    return moments.tolist(), read_as


def refusal(values: Any, **options: Any) -> str:
    with pytest.raises(TalerecError) as caught:
        read(values, **options)
    assert (type(caught.value) is InvalidLogError) == (options.get("unit") != "minutes")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("as_text", [False, True])
def test_numbers_are_read_in_the_unit_of_their_size_or_the_one_given(
    unit: str, as_text: bool
) -> None:
    number = NOON // 10**6 * PER_SECOND[unit]
    column = [str(number)] if as_text else [number]
    assert read(column) == ([NOON], unit)
    assert read(column, unit) == ([NOON], unit)


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(
    ("number", "microseconds"),
    [(1700000000123456789, 1700000000123456), (1700000000123457, 1700000000123457)],
)
def test_whole_numbers_never_pass_through_floats(
    number: int, microseconds: int, as_text: bool
) -> None:
    assert read([str(number)] if as_text else [number])[0] == [microseconds]


@quick
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_nanoseconds_are_exact_over_all_of_int64(values: list[int]) -> None:
    assert read(values, "ns", any_time=True)[0] == [number // 1000 for number in values]


@quick
@given(st.lists(st.integers(-(FARTHEST // 1000), FARTHEST // 1000), min_size=1))
def test_milliseconds_are_exact_up_to_their_limit(values: list[int]) -> None:
    assert read(values, "ms", any_time=True)[0] == [number * 1000 for number in values]


@quick
@given(stamps)
def test_decimal_seconds_are_right_to_the_microsecond(stamp: datetime) -> None:
    exact = datetime_to_microseconds(stamp)
    text = f"{exact // 10**6}.{exact % 10**6:06}"
    assert read([text], "s")[0] == [exact]
    assert read([float(text)], "s")[0] == [exact]
    assert read(pl.Series([Decimal(text)]), "s")[0] == [exact]


@pytest.mark.parametrize("text", ["1318896000.0", "1318896000", " 1318896000 ", "1.318896E9"])
def test_seconds_are_read_in_every_spelling(text: str) -> None:
    assert read([text]) == ([1318896000 * 10**6], "s")


INTEGERS = [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Int128]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_every_width_are_read(dtype: Any) -> None:
    assert read([0, 100], dtype=dtype) == ([0, 100 * 10**6], "s")


def test_decimals_without_a_fraction_are_whole_numbers() -> None:
    column = pl.Series([Decimal(1700000000123456789)])
    assert read(column) == ([1700000000123456], "ns")


def test_small_numbers_count_in_the_unit_of_the_large_ones() -> None:
    assert read([5, 1_600_000_000_000]) == ([5000, 1_600_000_000_000_000], "ms")


def test_numbers_of_two_sizes_are_refused_and_both_are_named() -> None:
    message = refusal([7, 1_600_000_000, 1_600_000_000_000])
    assert "row 2 (1600000000) looks like seconds" in message
    assert "row 3 (1600000000000) like milliseconds" in message
    assert "`time_unit`" in message


def test_an_explicit_unit_settles_numbers_of_two_sizes() -> None:
    moments, _ = read([1_600_000_000, 1_600_000_000_000], "ms")
    assert moments == [1_600_000_000_000, 1_600_000_000_000_000]


def test_an_unknown_unit_is_named() -> None:
    assert "`time_unit` is 'minutes'; it takes s, ms, us, ns" in refusal([1], unit="minutes")


# -- text as somebody says that it is written ------------------------------------------------------


@quick
@given(st.lists(stamps, min_size=1, max_size=5))
@pytest.mark.parametrize(
    ("spelling", "step"),
    [
        ("%m/%d/%Y %I:%M %p", timedelta(minutes=1)),
        ("%d/%b/%Y:%H:%M:%S %z", timedelta(seconds=1)),
        ("%Y%m%d", timedelta(days=1)),
        ("%d/%m/%y", timedelta(days=1)),
    ],
)
def test_times_are_read_in_a_given_format(
    spelling: str, step: timedelta, when: list[datetime]
) -> None:
    """Python's strftime writes them; a year of two figures is one from 1969 to 2068."""
    when = [w.replace(year=min(w.year, 2068)) for w in when if (w.month, w.day) != (2, 29)]
    when = [w.replace(tzinfo=UTC) for w in when] or [EPOCH]
    texts = [w.strftime(spelling) for w in when]
    expected = [(w - EPOCH) // step * step // timedelta(microseconds=1) for w in when]
    assert read(texts, spelling) == (expected, "datetime")


def test_a_format_that_does_not_match_names_the_row() -> None:
    said = refusal(["01/02/2020", "13/31/2020"], unit="%m/%d/%Y")
    assert said == "row 2: t '13/31/2020' is not a time in the format '%m/%d/%Y'"
    assert "row 1: t '01/02/2020' is not a time" in refusal(["01/02/2020"], unit="%Q")
    assert "such as '%m/%d/%Y' or '%d/%m/%Y'" in refusal(["01/02/2020"])


@pytest.mark.parametrize("values", [[20200102], [1.5]])
def test_a_format_applies_to_text_only(values: list[Any]) -> None:
    assert "not text as '%Y%m%d'" in refusal(values, unit="%Y%m%d")


@pytest.mark.parametrize("when", [datetime(2020, 1, 2, 3), date(2020, 1, 2)])
def test_dates_and_times_of_a_frame_need_no_format(when: date) -> None:
    assert read([when], "%Y%m%d") == read([when], None)


# -- datetimes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_datetimes_keep_their_instant_in_every_unit_and_zone(unit: Any, zone: str | None) -> None:
    column = pl.Series([NOON], dtype=pl.Int64).cast(pl.Datetime("us", zone)).dt.cast_time_unit(unit)
    assert read(column) == ([NOON], "datetime")


def test_a_datetime_with_a_zone_is_not_read_as_local_time() -> None:
    berlin = pl.Series([datetime(2020, 6, 1, 12)]).dt.replace_time_zone("Europe/Berlin")
    assert read(berlin)[0] == [datetime_to_microseconds(datetime(2020, 6, 1, 10))]


def test_dates_are_midnight() -> None:
    assert read([date(2020, 1, 2)]) == (
        [datetime_to_microseconds(datetime(2020, 1, 2))],
        "datetime",
    )


@pytest.mark.parametrize(
    "text",
    [
        "2020-01-02 12:04:05",
        "2020-01-02T12:04:05",
        "2020-01-02T12:04:05Z",
        "2020-01-02 12:04:05Z",
        "2020-01-02T14:04:05+02:00",
        "2020-01-02 14:04:05+02:00",
        "2020-01-02T14:04:05+0200",
        "2020-01-02T14:04:05+02",
        "2020-01-02 14:04:05 +0200",
        "2020-01-02T06:34:05-05:30",
        "2020-01-02 12:04:05 UTC",
        "2020-01-02 12:04:05.000",
        "2020-01-02T12:04:05.000000Z",
        "  2020-01-02 12:04:05  ",
    ],
)
def test_iso_text_is_read_in_every_variant(text: str) -> None:
    assert read([text]) == ([NOON], "datetime")


@pytest.mark.parametrize(
    "text",
    [
        "2020-01-02 12:04",
        "2020-01-02T12:04",
        "2020-01-02T12:04Z",
        "2020-01-02 12:04Z",
        "2020-01-02T14:04+02:00",
        "2020-01-02 14:04+0200",
    ],
)
def test_iso_text_may_leave_out_the_seconds(text: str) -> None:
    assert read([text])[0] == [NOON - 5 * 10**6]


@quick
@given(stamps)
def test_with_dots_the_day_comes_first_and_with_slashes_the_year_may(stamp: datetime) -> None:
    days = ("%d.%m.%Y", "%Y/%m/%d")
    clocks = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
    for spelling in (day + clock for day in days for clock in clocks):
        text = stamp.strftime(spelling)
        assert read([text])[0] == [datetime_to_microseconds(datetime.strptime(text, spelling))]


@pytest.mark.parametrize("value", ["32.01.2020", "01.13.2020", "01.02.20", "10/01/2019"])
def test_ambiguous_dates_are_refused(value: str) -> None:
    said = refusal(["2020-01-02", value])
    assert said.startswith(f"row 2: t {value!r} ")


def test_iso_dates_are_midnight() -> None:
    assert read(["2020-01-02"])[0] == [datetime_to_microseconds(datetime(2020, 1, 2))]


def test_formats_may_differ_between_rows() -> None:
    moments, _ = read(["2020-01-02", "2020-01-02 12:04:05", "2020-01-02T12:04:05.5Z"])
    assert moments == [datetime_to_microseconds(datetime(2020, 1, 2)), NOON, NOON + 500_000]


offsets = st.integers(-12 * 60, 12 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@quick
@given(stamps, st.sampled_from(["T", " "]), st.one_of(st.none(), offsets))
def test_iso_text_has_the_meaning_it_has_in_python(
    stamp: datetime, sep: str, zone: timezone | None
) -> None:
    text = stamp.replace(tzinfo=zone).isoformat(sep)
    assert read([text], any_time=True)[0] == [
        datetime_to_microseconds(datetime.fromisoformat(text))
    ]


def test_fractions_beyond_the_microsecond_are_cut() -> None:
    assert read(["2020-01-02T12:04:05.1234567Z"])[0] == [NOON + 123_456]


def test_categories_of_text_are_text() -> None:
    column = pl.Series(["2020-01-02T12:04:05Z"]).cast(pl.Categorical)
    assert read(column)[0] == [NOON]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["soon", "", "  ", "2020-02-30", "01/02/2020", "0x10", "1_000"])
def test_text_that_is_not_a_time_is_named_with_its_row(value: str) -> None:
    assert refusal(["2020-01-02", value]).startswith(f"row 2: t {value!r} is not a time")


def test_text_among_numbers_is_named() -> None:
    assert "row 2: t 'soon' is not a number" in refusal(["1600000000", "soon"])


@pytest.mark.parametrize("value", ["NaN", "nan", "inf", "-Infinity"])
def test_text_of_no_number_is_named_among_dates_and_numbers(value: str) -> None:
    for other in ("2020-01-02", "1600000000"):
        assert refusal([other, value]) == f"row 2: t {value!r} is not a time"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("unit", [None, "s"])
def test_nan_is_refused_even_when_any_time_is_allowed(value: float, unit: str | None) -> None:
    assert refusal([1.6e9, value], unit=unit, any_time=True) == f"row 2: t {value} is not a time"


@pytest.mark.parametrize("values", [[1, None], ["2020-01-02", None], [EPOCH, None], [1.5, None]])
def test_a_missing_time_is_named_by_its_row(values: list[Any]) -> None:
    assert refusal(values) == "row 2: t is empty"


def test_a_column_of_nulls_is_empty() -> None:
    assert refusal([None, None]) == "row 1: t is empty"


@pytest.mark.parametrize(
    "value",
    [-5, -0.5, "-5", "1969-12-31T23:59:59Z", 4_102_444_800, "2100-01-01", date(1969, 12, 31)],
)
def test_times_outside_1970_to_2100_need_to_be_allowed(value: Any) -> None:
    message = refusal([value])
    assert message.startswith("row 1: t ")
    assert str(value) in message
    assert "`any_time`" in message
    assert len(read([value], any_time=True)[0]) == 1


def test_the_first_and_the_last_allowed_time_are_accepted() -> None:
    assert read(["1970-01-01", "2099-12-31 23:59:59.999999"])[0] == [0, 4_102_444_800 * 10**6 - 1]


def test_a_number_outside_names_the_unit_it_was_read_as() -> None:
    assert "when read as seconds (`time_unit`" in refusal([1_600_000_000_000], unit="s")


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (1e300, None),
        (1e300, "ns"),
        ("1e300", None),
        (9 * 10**18, "s"),
        (9 * 10**18, "us"),
        (-(2**63), "us"),
        ("18446744073709551616000", None),
    ],
)
def test_numbers_that_would_overflow_are_refused(value: Any, unit: str | None) -> None:
    message = refusal([value], unit=unit, any_time=True)
    assert message == f"row 1: t {value!r} is beyond any date"


@pytest.mark.parametrize("value", [2**64 - 1, 2**100])
def test_integers_wider_than_64_bits_are_refused(value: int) -> None:
    column = pl.Series([value], dtype=pl.Int128)
    assert refusal(column, any_time=True) == f"row 1: t {value} is beyond any date"


@pytest.mark.parametrize(
    ("stored", "kind", "shown"),
    [
        (2**31 - 1, pl.Date, "5881580-07-11"),
        (9 * 10**18, pl.Datetime("ms"), "285200616-07-24"),
        (9 * 10**18, pl.Datetime("us"), "287168-08-24"),
    ],
)
def test_dates_outside_the_calendar_are_refused(stored: int, kind: Any, shown: str) -> None:
    column = pl.Series([stored]).cast(pl.Int32 if kind == pl.Date else pl.Int64).cast(kind)
    for any_time in (True, False):
        assert f"row 1: t {shown}" in refusal(column, any_time=any_time)


def test_a_date_past_the_year_9999_can_be_named() -> None:
    column = pl.Series([10**18], dtype=pl.Datetime("us"))
    assert "33658-09-27" in refusal(column)


@pytest.mark.parametrize(
    "values",
    [[True, False], [[1], [2]], [timedelta(1)], [datetime(2020, 1, 1).time()], [b"1600000000"]],
)
def test_values_of_other_types_are_not_times(values: Any) -> None:
    message = refusal(values)
    assert message.startswith("column 't' holds ")
    assert message.endswith("times are datetimes or numbers")


def test_float32_cannot_hold_a_timestamp() -> None:
    assert "rounded to Float32" in refusal([1.6e9], dtype=pl.Float32)
    assert read([0.0, 86400.0], dtype=pl.Float32)[0] == [0, DAY]


# -- points in time --------------------------------------------------------------------------------


@quick
@given(st.datetimes(timezones=st.one_of(st.none(), offsets)))
def test_datetimes_are_converted_exactly(stamp: datetime) -> None:
    delta = stamp.replace(tzinfo=stamp.tzinfo or UTC) - EPOCH
    exact = (delta.days * 86_400 + delta.seconds) * 10**6 + delta.microseconds
    assert datetime_to_microseconds(stamp) == exact
    assert parse_time_text(stamp.isoformat()) == exact


@pytest.mark.parametrize(
    "text", ["2020-01-02T12:04:05", "2020-01-02T13:04:05+01:00", "1577966645", "1577966645.0"]
)
def test_a_time_as_text_is_a_date_or_unix_seconds(text: str) -> None:
    assert parse_time_text(text) == NOON


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "2020-13-01"])
def test_text_that_is_not_a_time_is_named(text: str) -> None:
    with pytest.raises(TalerecError, match="is not a time") as caught:
        parse_time_text(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "number", [1577966645, 1577966645000, 1577966645000000, 1577966645 * 10**9]
)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "datetime"])
def test_the_size_of_a_number_tells_its_unit_whatever_the_log(number: int, unit: str) -> None:
    for same in (number, float(number), str(number), np.int64(number), np.float64(number)):
        assert time_to_microseconds(same, unit) == NOON
    assert time_to_microseconds(-number, unit) == -NOON


@pytest.mark.parametrize("value", [True, np.True_, None, [1], float("nan"), float("inf"), 2**63])
def test_values_that_are_not_times_are_refused(value: Any) -> None:
    with pytest.raises(TalerecError, match=r"is not a time|is beyond any date"):
        time_to_microseconds(value)


def test_a_date_without_dashes_is_a_number_only_where_the_log_has_numbers() -> None:
    with pytest.raises(TalerecError, match="without dashes; write it as 2026-11-15"):
        time_to_microseconds("20261115", "datetime")
    assert time_to_microseconds(20261115, "s") == 20261115 * 10**6
    assert time_to_microseconds(20261340, "datetime") == 20261340 * 10**6  # no date


# -- days that are numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [[20190131, 20191201], ["20190131"], [20190131.0], [19700101, 20991231]]
)
def test_dates_written_as_numbers_are_refused_unless_a_unit_is_named(values: list[Any]) -> None:
    message = refusal(values)
    assert message.startswith("every t is a date as a number (row 1 is ")
    assert "2019-10-01" in message
    assert "set `time_unit` to s" in message
    assert read(values, unit="s")[1] == "s"


@pytest.mark.parametrize("values", [[43831.0, 43832.5], ["43831"], [20_000, 60_000]])
def test_days_of_a_spreadsheet_are_refused_unless_a_unit_is_named(values: list[Any]) -> None:
    message = refusal(values)
    assert "as a spreadsheet counts days; write dates such as 2019-10-01" in message
    assert read(values, unit="s")[1] == "s"


@pytest.mark.parametrize(
    "values", [[20190131, 20190132], [20190131, 5], [43831, 60_001], [19_999, 43831], [0, 1, 2]]
)
def test_other_small_numbers_are_seconds(values: list[int]) -> None:
    assert read(values) == ([value * 10**6 for value in values], "s")


def test_days_are_whole_microseconds_and_infinity_is_long() -> None:
    assert days_to_microseconds(1.5) == 3 * DAY // 2
    assert days_to_microseconds(float("inf")) == 2**61
