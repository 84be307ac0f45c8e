"""Files: every format and packing gives the same log, and a bad file is refused in one line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from logs import Row, rows_of
from talerec.data.readers import read_items, read_log
from talerec.errors import InvalidLogError, TalerecError

SECOND = 10**6
T = 1_600_000_000
HEADER = "user_id,item_id,timestamp\n"
GOOD = HEADER + f"1,a,{T}\n"


def zstd(content: bytes) -> bytes:
    buffer = pa.BufferOutputStream()
    with pa.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(content)
    return bytes(buffer.getvalue())


def parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def inter(table: pl.DataFrame) -> bytes:
    kinds = {"user_id": "token", "item_id": "token", "timestamp": "float"}
    named = table.rename({name: f"{name}:{kinds.get(name, 'token')}" for name in table.columns})
    return named.write_csv(separator="\t", quote_style="never").encode()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".zst": zstd,
}
FORMATS: dict[str, Callable[[pl.DataFrame], bytes]] = {
    ".csv": lambda table: table.write_csv().encode(),
    ".tsv": lambda table: table.write_csv(separator="\t").encode(),
    ".inter": inter,
    ".ndjson": lambda table: table.write_ndjson().encode(),
    ".jsonl": lambda table: table.write_ndjson().encode(),
    ".parquet": parquet,
}
TEXTS = [".csv", ".tsv", ".inter"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def put(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return put


Write = Callable[[str, str | bytes], Path]


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises(TalerecError) as caught:
        read_log(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message[len(str(path)) :].lstrip(": ")


def table(users: Any, items: Any, times: Any) -> pl.DataFrame:
    return pl.DataFrame({"user_id": users, "item_id": items, "timestamp": times})


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_and_packing_gives_the_same_log(
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
def test_a_name_is_no_pattern(ending: str, stem: str, write: Write) -> None:
    source = table(["u"], ["a"], [T])
    write(f"log1{ending}", FORMATS[ending](source))
    assert read_log(write(f"{stem}{ending}", FORMATS[ending](source))).rows == 1


@pytest.mark.parametrize("ending", FORMATS)
def test_packing_is_told_by_the_content_and_not_by_the_name(ending: str, write: Write) -> None:
    content = FORMATS[ending](table(["u"], ["a"], [T]))
    assert read_log(write(f"plain{ending}.gz", content)).rows == 1
    assert read_log(write(f"packed{ending}", gzip.compress(content))).rows == 1


def test_packed_files_may_be_joined(write: Write) -> None:
    more = f"2,b,{T}\n".encode()
    for ending, pack in ((".gz", gzip.compress), (".zst", zstd)):
        path = write(f"log.csv{ending}", pack(GOOD.encode()) + pack(more))
        assert read_log(path).rows == 2


def test_quoted_fields_may_hold_commas_quotes_and_line_ends(write: Write) -> None:
    content = HEADER + f'"Smith, J","say ""hi""",{T}\n"two\nlines",x,"{T}"\n'
    log = read_log(write("log.csv", content))
    assert log.users.ids.to_list() == ["Smith, J", "two\nlines"]
    assert log.items.ids.to_list() == ['say "hi"', "x"]


def test_quotes_are_plain_signs_between_tabs(write: Write) -> None:
    log = read_log(write("log.tsv", f'user_id\titem_id\ttimestamp\n1\t5" pipe\t{T}\n'))
    assert log.items.ids.to_list() == ['5" pipe']


def test_line_ends_of_windows_and_a_byte_order_mark_are_no_matter(write: Write) -> None:
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert rows_of(read_log(write("log.csv", content))) == [(1, "a", T * SECOND)]


@pytest.mark.parametrize("blank", ["\n", "\n\n\n", "\r\n", ",,\n"])
def test_blank_lines_at_the_end_are_no_rows(blank: str, write: Write) -> None:
    log = read_log(write("log.csv", GOOD + f"2,b,{T}\n" + blank))
    assert log.users.ids.to_list() == [1, 2]


def test_a_recbole_header_may_do_without_types(write: Write) -> None:
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


def test_ids_in_json_may_be_large_or_of_both_kinds(write: Write) -> None:
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
def test_ids_of_another_kind_are_refused(value: str, write: Write) -> None:
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
def test_times_in_text_are_read_however_they_are_spelled(
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
    assert "--any-time" in refusal(path)
    assert int(value) * SECOND in read_log(path, any_time=True).time


def test_mixed_units_are_refused(write: Write) -> None:
    assert "mixed units" in refusal(write("log.csv", GOOD + f"1,a,{T}000\n"))


# -- bad files -------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == "does not exist"


def test_an_empty_folder_is_no_log(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a folder without a file that talerec reads"


@pytest.mark.parametrize("name", ["log", "log.txt", "log.gz", "log.xlsx", ".csv", "csv"])
def test_an_unknown_ending_is_refused(name: str, write: Write) -> None:
    assert refusal(write(name, GOOD)).startswith("has no ending that talerec reads (.csv, ")


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("ending", FORMATS)
def test_an_empty_file_is_refused(ending: str, packing: str, write: Write) -> None:
    assert refusal(write(f"log{ending}{packing}", b"")) == "the file is empty"
    assert refusal(write(f"log{ending}{packing}", PACKINGS[packing](b""))) == "the file is empty"


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_header_alone_is_an_empty_log(end: str, write: Write) -> None:
    path = write("log.csv", HEADER.strip() + end)
    assert refusal(path) == "the log is empty: it has no rows"


def test_parquet_without_rows_is_an_empty_log(write: Write) -> None:
    path = write("log.parquet", parquet(table(["u"], ["a"], [T]).head(0)))
    assert refusal(path) == "the log is empty: it has no rows"


def test_nothing_but_blank_lines_is_refused(write: Write) -> None:
    assert refusal(write("log.csv", "\n\n")) == "the file is empty"
    assert refusal(write("log.ndjson", "\n \n")) == "cannot be read: it holds no rows"


@pytest.mark.parametrize("column", ["user_id", "item_id", "timestamp"])
@pytest.mark.parametrize("ending", FORMATS)
def test_a_missing_column_is_named_with_the_option_that_mends_it(
    ending: str, column: str, write: Write
) -> None:
    source = table(["u"], ["a"], [T]).rename({column: "other"})
    message = refusal(write(f"log{ending}", FORMATS[ending](source)))
    flag = {"user_id": "--user", "item_id": "--item", "timestamp": "--time"}[column]
    assert message.startswith(f"there is no column {column!r}; the columns are ")
    assert "other" in message
    assert message.endswith(f"({flag} NAME says which to use)")


def test_one_column_cannot_be_two_things(write: Write) -> None:
    path = write("log.csv", GOOD)
    assert refusal(path, item="user_id").endswith("but two are 'user_id'")


def test_two_columns_of_one_name_are_refused(write: Write) -> None:
    path = write("log.csv", f"user_id,user_id,item_id,timestamp\n1,2,3,{T}\n")
    assert refusal(path) == "there are 2 columns 'user_id'"
    path = write("log.inter", f"user_id:token\tuser_id:float\titem_id\ttimestamp\n1\t2\t3\t{T}\n")
    assert "'user_id' is duplicate" in refusal(path)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_line_with_too_many_fields_is_named(packing: str, write: Write) -> None:
    content = GOOD + f"1,a,{T},5\n"
    path = write(f"log.csv{packing}", PACKINGS[packing](content.encode()))
    assert refusal(path) == "cannot be read: line 3 has 4 fields, but the header has 3"


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_line_with_too_many_fields_is_named_though_its_column_is_not_read(
    separator: str, write: Write
) -> None:
    lines = ["title,user_id,item_id,timestamp", f"x,1,2,{T}", f"Smith, J,1,2,{T}"]
    content = "\n".join(lines).replace(",", separator)
    path = write("log.csv" if separator == "," else "log.tsv", content)
    assert refusal(path) == "cannot be read: line 3 has 5 fields, but the header has 4"


def test_a_line_with_too_few_fields_lacks_its_time(write: Write) -> None:
    assert refusal(write("log.csv", GOOD + "1,b\n")) == "row 2: timestamp is empty"


def test_a_blank_line_between_rows_is_named(write: Write) -> None:
    assert refusal(write("log.csv", GOOD + f"\n1,b,{T}\n")) == "row 2: user_id is empty"


def test_an_open_quote_is_refused(write: Write) -> None:
    assert refusal(write("log.csv", HEADER + f'"1,b,{T}\n')).startswith("cannot be read: ")


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".ndjson"])
def test_text_that_is_not_utf8_is_named_by_its_line(ending: str, write: Write) -> None:
    content = FORMATS[ending](table(["u", "é"], ["a", "b"], [T, T]))
    path = write(f"log{ending}", content.decode().encode("latin-1"))
    line = 2 if ending == ".ndjson" else 3
    assert refusal(path) == f"cannot be read: line {line} is not UTF-8 text"


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("broken", ["{broken", "[1, 2]", "5", '{"user_id": 1, "item'])
def test_a_broken_line_of_json_is_named(broken: str, packing: str, write: Write) -> None:
    good = f'{{"user_id": 1, "item_id": 1, "timestamp": {T}}}\n'
    path = write(f"log.ndjson{packing}", PACKINGS[packing]((good + broken + "\n" + good).encode()))
    assert refusal(path) == f"cannot be read: line 2 is not a JSON object: {broken!r}"


@pytest.mark.parametrize("packing", [".gz", ".zst"])
@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_truncated_file_is_refused(ending: str, packing: str, share: float, write: Write) -> None:
    users = np.random.default_rng(0).integers(0, 10**9, 2000)
    content = PACKINGS[packing](FORMATS[ending](table(users, users, users)))
    path = write(f"log{ending}{packing}", content[: int(len(content) * share)])
    assert refusal(path).startswith("cannot be read: ")


def test_truncated_parquet_is_refused(write: Write) -> None:
    content = parquet(table(["u"], ["a"], [T]))
    assert refusal(write("log.parquet", content[:-10])).startswith("cannot be read: ")


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_file_that_is_not_what_its_ending_says_is_refused(packing: str, write: Write) -> None:
    source = table(["u"], ["a"], [T])

    def refused(ending: str, content: bytes) -> str:
        return refusal(write(f"log{ending}{packing}", PACKINGS[packing](content)))

    for ending in (".csv", ".tsv", ".ndjson"):
        assert refused(ending, parquet(source)) == (
            f"its ending says {ending}, but the file is Parquet"
        )
        assert refused(ending, GOOD.encode("utf-16")) == (
            f"its ending says {ending}, but the file is UTF-16 text (iconv -f UTF-16 -t UTF-8 FILE makes UTF-8 of it)"
        )
    assert refused(".parquet", GOOD.encode()).endswith("but the file is not Parquet")
    assert refused(".ndjson", GOOD.encode()).startswith(
        "cannot be read: line 1 is not a JSON object"
    )
    assert refused(".csv", source.write_ndjson().encode()).startswith(
        "there is no column 'user_id'"
    )


def test_a_file_of_junk_is_refused_in_one_short_line(write: Write) -> None:
    junk = bytes(range(1, 256)) * 20
    for ending in (".csv", ".tsv", ".inter", ".ndjson", ".parquet"):
        message = refusal(write(f"log{ending}", junk))
        assert message.isprintable()
        assert len(message) < 1500


# -- item side tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".item", ".csv", ".tsv", ".ndjson", ".parquet"])
def test_an_item_table_is_read_in_every_format(ending: str, write: Write) -> None:
    source = pl.DataFrame({"item_id": ["a", "b"], "movie_title": ["A", "B"], "year": ["1", "2"]})
    content = inter(source) if ending == ".item" else FORMATS[ending](source)
    side = read_items(write(f"items{ending}", content))
    assert side.columns == ["item_id", "title", "year"]
    assert side["title"].to_list() == ["A", "B"]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["title", "name"], "title"),
        (["name", "movie_title"], "name"),
        (["product_title"], "product_title"),
    ],
)
def test_the_usual_names_of_titles_are_tried_in_order(
    names: list[str], chosen: str, write: Write
) -> None:
    content = ",".join(["item_id", *names]) + "\n" + ",".join(["a", *names]) + "\n"
    assert read_items(write("items.csv", content))["title"].to_list() == [chosen]


def test_a_table_without_titles_stays_as_it_is(write: Write) -> None:
    assert read_items(write("items.csv", "item_id,year\na,1\n")).columns == ["item_id", "year"]


def test_item_ids_may_be_under_another_name(write: Write) -> None:
    side = read_items(write("items.csv", "asin,item_id,title\na,1,A\n"), item="asin")
    assert side.rows() == [("a", "A")]


@pytest.mark.parametrize(
    ("name", "content", "options", "error"),
    [
        ("log.csv", GOOD + "1,,5\n", {}, InvalidLogError),
        ("log.csv", GOOD + "1,a,soon\n", {}, InvalidLogError),
        ("log.csv", GOOD + "1,b,5,6\n", {}, InvalidLogError),
        ("log.csv", "", {}, InvalidLogError),
        ("log.csv", GOOD, {"user": "who"}, InvalidLogError),
        ("log.parquet", GOOD, {}, InvalidLogError),
        ("log.ndjson", "{", {}, InvalidLogError),
        ("log.csv", GOOD, {"time_unit": "minutes"}, TalerecError),
        ("log.csv", GOOD, {"item": "user_id"}, TalerecError),
        ("log.txt", GOOD, {}, TalerecError),
    ],
)
def test_a_bad_log_has_an_error_of_its_own(
    name: str, content: str, options: dict[str, Any], error: type[Exception], write: Write
) -> None:
    with pytest.raises(TalerecError) as caught:
        read_log(write(name, content), **options)
    assert type(caught.value) is error


def test_an_item_table_without_ids_is_refused(write: Write) -> None:
    path = write("items.csv", "id,title\na,A\n")
    with pytest.raises(TalerecError) as caught:
        read_items(path)
    assert str(caught.value) == (
        f"{path}: there is no column 'item_id'; the columns are id, title (--item-key NAME says which holds the ids)"
    )


@pytest.mark.parametrize("content", [b"", b"PAR1", b"item_id,title\na,b,c\n", b"item_id\n\xff\n"])
def test_a_bad_item_table_is_refused_in_one_line(content: bytes, write: Write) -> None:
    path = write("items.csv", content)
    with pytest.raises(TalerecError) as caught:
        read_items(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_log_is_read_with_its_items(write: Write) -> None:
    items = write("log.item", "item_id:token\tname:token_seq\n10\tten\n9\tnine\n")
    log = read_log(write("log.csv", HEADER + f"1,9,{T}\n1,10,{T}\n1,11,{T}\n"), items=items)
    assert log.info is not None
    assert log.info.rows() == [(9, "nine"), (10, "ten"), (11, None)]


# -- size ------------------------------------------------------------------------------------------


def test_a_million_lines_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    many = 1_000_000
    numbers = np.arange(many)
    source = table(numbers % 1000, numbers, np.full(many, T)).with_columns(x=pl.lit("extra"))
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


# -- item tables with other separators and names ---------------------------------------------------


def test_an_item_table_may_have_another_separator(write: Any) -> None:
    path = write("items.csv", "item_id;title;price\na;Tent, red;5\n")
    assert read_items(path, sep=";").to_dicts() == [
        {"item_id": "a", "title": "Tent, red", "price": 5}
    ]
    with pytest.raises(InvalidLogError, match="--items-sep ';' reads such a file"):
        read_items(path)
    with pytest.raises(TalerecError, match="--items-sep is ';;'; it takes one character"):
        read_items(path, sep=";;")
    with pytest.raises(TalerecError, match="--items-sep goes with text files"):
        read_items(write("items.parquet", "PAR1"), sep=";")


def test_an_item_tables_ids_are_where_the_log_has_its_own(write: Any) -> None:
    log = write("log.csv", "user_id,sku,timestamp\nann,a,2024-05-01\nann,b,2024-05-02\n")
    for content in ("sku,title\na,A\n", "item_id,title\na,A\n", "item_id,sku,title\n9,a,A\n"):
        info = read_log(log, item="sku", items=write("items.csv", content)).info
        assert info is not None
        assert info["title"].to_list() == ["A", None]
    named = {"item": "sku", "items": write("items.csv", "code,title\na,A\n")}
    with pytest.raises(InvalidLogError, match=r"'item_id'.*code, title.*--item-key NAME"):
        read_log(log, **named)
    info = read_log(log, **named, item_key="code").info
    assert info is not None
    assert info["title"].to_list() == ["A", None]


def test_an_item_tables_titles_may_have_any_name(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("items.csv", "item_id,Bezeichnung,title,007\na,12,T,5\n")
    found = read_items(path, title="Bezeichnung")
    assert found.to_dicts() == [{"item_id": "a", "title": "12", "007": 5}]  # a title is text
    with pytest.raises(InvalidLogError, match=r"no column 'Name'.*--item-title NAME says which"):
        read_items(path, title="Name")
    for key in ("item_id", "Bezeichnung"):
        with pytest.raises(TalerecError, match="titles cannot be in its column of ids"):
            read_items(path, item=key, title="item_id" if key == "item_id" else key)
    with caplog.at_level("INFO", "talerec"):
        read_items(write("items.csv", "item_id,Bezeichnung\na,12\n"))
    assert "no column of titles (title, name, " in caplog.text


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
def test_fields_of_nested_objects_are_named_by_the_way_to_them(
    ending: str, write: Callable[..., Path]
) -> None:
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
