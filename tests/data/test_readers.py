"""Files: every format and packing gives the same log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from log_files import (
    FORMATS,
    GOOD,
    HEADER,
    PACKINGS,
    SECOND,
    TEXTS,
    T,
    Write,
    parquet,
    refusal,
    table,
    zstd,
)
from logs import Row, rows_of
from talerec.data.read import read_log
from talerec.errors import InvalidLogError

# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_and_compression_gives_the_same_log(
    ending: str, packing: str, write: Write
) -> None:
    rows: list[Row] = [("x", 10, T + 1), ("é日", 9, T), ("x", 9, T), ("x", 8, T)]
    source = table(*(list(column) for column in zip(*rows, strict=True)))
    log = read_log(write(f"log{ending}{packing}", PACKINGS[packing](FORMATS[ending](source))))
    expected = [rows[2], rows[3], rows[0], rows[1]]
    assert rows_of(log) == [(user, item, time * SECOND) for user, item, time in expected]
    assert log.items.ids.dtype == pl.Int64
    assert log.unit == "s"


@pytest.mark.parametrize("ending", FORMATS)
def test_columns_may_be_in_any_order_among_others_and_under_other_names(
    ending: str, write: Write
) -> None:
    source = pl.DataFrame({"when": [T], "x": ["q"], "what": ["a"], "who": ["u"], "user_id": ["no"]})
    path = write(f"log{ending}", FORMATS[ending](source))
    log = read_log(path, user="who", item="what", time="when")
    assert rows_of(log) == [("u", "a", T * SECOND)]


@pytest.mark.parametrize(
    "name", ["A.CSV", "my.events.csv", "log.csv.GZ", "log.2020.csv.gz", "a b.csv"]
)
def test_endings_count_in_either_case_and_after_other_dots(name: str, write: Write) -> None:
    packed = name.lower().endswith(".gz")
    assert read_log(write(name, gzip.compress(GOOD.encode()) if packed else GOOD)).rows == 1


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("stem", ["log[1]", "log*", "log?"])
def test_the_name_of_an_existing_file_is_not_a_pattern(
    ending: str, stem: str, write: Write
) -> None:
    source = table(["u"], ["a"], [T])
    write(f"log1{ending}", FORMATS[ending](source))
    assert read_log(write(f"{stem}{ending}", FORMATS[ending](source))).rows == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_compression_is_detected_by_content_and_not_by_name(ending: str, write: Write) -> None:
    content = FORMATS[ending](table(["u"], ["a"], [T]))
    assert read_log(write(f"plain{ending}.gz", content)).rows == 1
    assert read_log(write(f"packed{ending}", gzip.compress(content))).rows == 1


def test_compressed_files_may_be_concatenated(write: Write) -> None:
    more = f"2,b,{T}\n".encode()
    for ending, pack in ((".gz", gzip.compress), (".zst", zstd)):
        path = write(f"log.csv{ending}", pack(GOOD.encode()) + pack(more))
        assert read_log(path).rows == 2


def test_quoted_fields_may_hold_commas_quotes_and_line_ends(write: Write) -> None:
    content = HEADER + f'"Smith, J","say ""hi""",{T}\n"two\nlines",x,"{T}"\n'
    log = read_log(write("log.csv", content))
    assert log.users.ids.to_list() == ["Smith, J", "two\nlines"]
    assert log.items.ids.to_list() == ['say "hi"', "x"]


def test_quotes_are_plain_characters_between_tabs(write: Write) -> None:
    log = read_log(write("log.tsv", f'user_id\titem_id\ttimestamp\n1\t5" pipe\t{T}\n'))
    assert log.items.ids.to_list() == ['5" pipe']


def test_windows_line_ends_and_a_byte_order_mark_are_accepted(write: Write) -> None:
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert rows_of(read_log(write("log.csv", content))) == [(1, "a", T * SECOND)]


@pytest.mark.parametrize("blank", ["\n", "\n\n\n", "\r\n", ",,\n"])
def test_blank_lines_at_the_end_are_ignored(blank: str, write: Write) -> None:
    log = read_log(write("log.csv", GOOD + f"2,b,{T}\n" + blank))
    assert log.users.ids.to_list() == [1, 2]


def test_a_recbole_header_needs_no_types(write: Write) -> None:
    path = write("log.inter", f"user_id\titem_id:token\ttimestamp:float\n1\t2\t{T}.0\n")
    assert rows_of(read_log(path)) == [(1, 2, T * SECOND)]


# -- ids -------------------------------------------------------------------------------------------


def ids_read(write: Write, ending: str, ids: list[Any]) -> list[Any]:
    source = table(ids, ids, [T] * len(ids))
    log = read_log(write(f"log{ending}", FORMATS[ending](source)))
    assert log.users.ids.equals(log.items.ids)
    return log.users.ids.to_list()


@pytest.mark.parametrize("ending", TEXTS)
@pytest.mark.parametrize(
    ("ids", "read"),
    [
        (["10", "9", "-3"], [-3, 9, 10]),
        (["007", "10", "9"], ["007", "9", "10"]),
        (["1", "x2"], ["1", "x2"]),
        (["+1", "2"], ["+1", "2"]),
        (["-0", "0"], ["-0", "0"]),
        (["1.0", "2"], ["1.0", "2"]),
        (["1e5"], ["1e5"]),
        ([" 5", "5"], [" 5", "5"]),
        ([str(2**63 - 1), str(-(2**63))], [-(2**63), 2**63 - 1]),
        ([str(2**63), "9"], ["9", str(2**63)]),
        ([str(10**30), "9"], ["9", str(10**30)]),
        (["null", "None", "NaN", "true"], ["NaN", "None", "null", "true"]),
        (["2020-01-01"], ["2020-01-01"]),
        (["日本", "ü"], ["ü", "日本"]),
    ],
)
def test_ids_in_text_are_numbers_only_where_all_are_written_plainly(
    ending: str, ids: list[str], read: list[Any], write: Write
) -> None:
    assert ids_read(write, ending, ids) == read


@pytest.mark.parametrize("ending", [".ndjson", ".parquet"])
@pytest.mark.parametrize("ids", [["9", "10"], [9, 10], ["007", "7"], ["2020-01-01"]])
def test_formats_with_types_keep_them(ending: str, ids: list[Any], write: Write) -> None:
    assert ids_read(write, ending, ids) == ids


def test_large_unsigned_ids_in_parquet_are_text(write: Write) -> None:
    ids = pl.Series([2**64 - 1, 9], dtype=pl.UInt64)
    log = read_log(write("log.parquet", parquet(table(ids, ["a", "b"], [T, T]))))
    assert log.users.ids.to_list() == ["9", str(2**64 - 1)]


def test_ids_in_json_may_be_large_or_of_mixed_types(write: Write) -> None:
    for ids, read in (([2**64, 9], ["9", str(2**64)]), ([1, "x2"], ["1", "x2"])):
        lines = [json.dumps({"user_id": i, "item_id": 1, "timestamp": T}) for i in ids]
        assert read_log(write("log.ndjson", "\n".join(lines))).users.ids.to_list() == read


@pytest.mark.parametrize("value", ["", '""', "  "])
@pytest.mark.parametrize("column", [0, 1])
def test_an_empty_id_is_named_by_its_row(value: str, column: int, write: Write) -> None:
    fields = ["u", "a", str(T)]
    fields[column] = value
    path = write("log.csv", GOOD + ",".join(fields) + "\n")
    assert refusal(path) == f"row 2: {('user_id', 'item_id')[column]} is empty"


@pytest.mark.parametrize("value", ["1.5", "true", "[1]"])
def test_ids_of_another_type_are_refused(value: str, write: Write) -> None:
    path = write("log.ndjson", f'{{"user_id": {value}, "item_id": 1, "timestamp": {T}}}')
    assert "ids are text or whole numbers" in refusal(path)


def test_an_object_in_place_of_an_id_is_refused_with_its_fields(write: Write) -> None:
    path = write("log.ndjson", f'{{"user_id": {{"a": 1}}, "item_id": 1, "timestamp": {T}}}')
    assert "the columns are user_id.a, item_id, timestamp" in refusal(path)


def test_a_null_id_in_json_is_named_by_its_row(write: Write) -> None:
    good = f'{{"user_id": 1, "item_id": 1, "timestamp": {T}}}\n'
    assert refusal(write("log.ndjson", good + '{"user_id": 1}\n')) == "row 2: item_id is empty"


# -- times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", FORMATS)
def test_whole_numbers_are_exact_to_the_microsecond(ending: str, write: Write) -> None:
    for number, exact in (
        (1700000000123456789, 1700000000123456),
        (1700000000123457, 1700000000123457),
    ):
        path = write(f"log{ending}", FORMATS[ending](table(["u"], ["a"], [number])))
        assert read_log(path).time.tolist() == [exact]


@pytest.mark.parametrize(
    ("text", "seconds", "read_as"),
    [
        ("1318896000.0", 1318896000, "s"),
        ("1318896000000", 1318896000, "ms"),
        ("2011-10-18", 1318896000, "datetime"),
        ("2011-10-18T02:00:00+02:00", 1318896000, "datetime"),
        ("2011-10-18 00:00:00.250", 1318896000.25, "datetime"),
    ],
)
@pytest.mark.parametrize("ending", TEXTS)
def test_times_in_text_are_read_in_every_format(
    ending: str, text: str, seconds: float, read_as: str, write: Write
) -> None:
    log = read_log(write(f"log{ending}", FORMATS[ending](table(["u"], ["a"], [text]))))
    assert (log.time.tolist(), log.unit) == ([seconds * SECOND], read_as)


def test_a_unit_can_be_given(write: Write) -> None:
    log = read_log(write("log.csv", HEADER + "1,2,5000\n"), time_unit="ms")
    assert log.time.tolist() == [5 * SECOND]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "row 2: timestamp is empty"),
        ("soon", "row 2: timestamp 'soon' is not a number, as other times are"),
        ("NaN", "row 2: timestamp 'NaN' is not a time"),
        ("inf", "row 2: timestamp 'inf' is not a time"),
        ("1e300", "row 2: timestamp '1e300' is beyond any date"),
    ],
)
def test_a_bad_time_is_named_by_its_row(value: str, message: str, write: Write) -> None:
    assert refusal(write("log.csv", GOOD + f"1,a,{value}\n")) == message


@pytest.mark.parametrize("value", ["-5", "4102444800"])
def test_times_outside_1970_to_2100_need_to_be_allowed(value: str, write: Write) -> None:
    path = write("log.csv", GOOD + f"1,a,{value}\n")
    assert f"row 2: timestamp '{value}' lies outside 1970 to 2100" in refusal(path)
    assert "`any_time`" in refusal(path)
    assert int(value) * SECOND in read_log(path, any_time=True).time


def test_mixed_units_are_refused(write: Write) -> None:
    assert "mixed units" in refusal(write("log.csv", GOOD + f"1,a,{T}000\n"))


# -- size ------------------------------------------------------------------------------------------


def test_a_million_lines_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    many = 1_000_000
    stamps = np.arange(many)
    source = table(stamps % 1000, stamps, np.full(many, T)).with_columns(x=pl.lit("extra"))
    source.write_csv(tmp_path / "log.csv")
    log = read_log(tmp_path / "log.csv")
    expected = np.arange(many).reshape(-1, 1000).T.ravel()
    assert np.array_equal(log.item, expected)


@pytest.mark.parametrize("ending", [".csv.gz", ".ndjson", ".parquet"])
def test_other_formats_are_read_in_the_order_of_the_file_too(ending: str, tmp_path: Path) -> None:
    many = 100_000
    source = table(np.zeros(many, int), np.arange(many), np.full(many, T))
    path = tmp_path / f"log{ending}"
    if ending == ".parquet":
        source.write_parquet(path, row_group_size=1000)
    elif ending == ".ndjson":
        source.write_ndjson(path)
    else:
        path.write_bytes(gzip.compress(source.write_csv().encode(), 1))
    assert np.array_equal(read_log(path).item, np.arange(many))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".inter", ".parquet", ".ndjson"])
def test_a_file_is_parsed_once(ending: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(f"log{ending}", FORMATS[ending](table([1, 2], ["a", "b"], [T, T])))
    scans = []
    collect = pl.LazyFrame.collect

    def counted(frame: pl.LazyFrame, **options: Any) -> pl.DataFrame:
        scans.extend(["SCAN"] * frame.explain().count(" SCAN ["))
        return collect(frame, **options)

    monkeypatch.setattr(pl.LazyFrame, "collect", counted)
    read_log(path)
    assert scans == ["SCAN"]


# -- nested objects --------------------------------------------------------------------------------

NESTED = pl.DataFrame(
    {
        "order": [{"id": n, "by": {"id": user}} for n, user in enumerate("aab")],
        "item.id": ["x", "y", "x"],  # a plain column that is called so
        "item": [{"id": "other"}] * 3,
        "at": [T, T + 1, T + 2],
    }
)


@pytest.mark.parametrize("ending", [".ndjson", ".jsonl", ".parquet"])
def test_fields_of_nested_objects_are_named_by_their_path(ending: str, write: Write) -> None:
    path = write(f"log{ending}", FORMATS[ending](NESTED))
    log = read_log(path, user="order.by.id", item="item.id", time="at")
    plain = pl.DataFrame(
        {"user_id": [*"aab"], "item_id": ["x", "y", "x"], "timestamp": NESTED["at"]}
    )
    assert rows_of(log) == rows_of(read_log(write("plain.parquet", parquet(plain))))
    for wrong in ("order", "order.by", "order.who", "order.id.more", "at.x"):
        with pytest.raises(
            InvalidLogError, match=r"the columns are order.id, order.by.id, item.id, at"
        ):
            read_log(path, user=wrong, item="item.id", time="at")
