"""A bad file is refused in one line that says where and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from log_files import FORMATS, GOOD, HEADER, PACKINGS, T, Write, parquet, refusal, table


def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == "does not exist"


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
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


def test_a_file_of_blank_lines_is_refused(write: Write) -> None:
    assert refusal(write("log.csv", "\n\n")) == "the file is empty"
    assert refusal(write("log.ndjson", "\n \n")) == "cannot be read: it holds no rows"


@pytest.mark.parametrize("column", ["user_id", "item_id", "timestamp"])
@pytest.mark.parametrize("ending", FORMATS)
def test_a_missing_column_is_named_with_the_parameter_to_set(
    ending: str, column: str, write: Write
) -> None:
    source = table(["u"], ["a"], [T]).rename({column: "other"})
    message = refusal(write(f"log{ending}", FORMATS[ending](source)))
    parameter = {"user_id": "user", "item_id": "item", "timestamp": "time"}[column]
    assert message.startswith(f"there is no column {column!r}; the columns are ")
    assert "other" in message
    assert message.endswith(f"(`{parameter}` names another)")


def test_one_column_cannot_have_two_roles(write: Write) -> None:
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
def test_a_file_that_contradicts_its_ending_is_refused(packing: str, write: Write) -> None:
    source = table(["u"], ["a"], [T])

    def refused(ending: str, content: bytes) -> str:
        return refusal(write(f"log{ending}{packing}", PACKINGS[packing](content)))

    for ending in (".csv", ".tsv", ".ndjson"):
        assert refused(ending, parquet(source)) == (
            f"its ending is {ending}, but the file is Parquet"
        )
        assert refused(ending, GOOD.encode("utf-16")) == (
            f"its ending is {ending}, but the file is UTF-16 text "
            "(convert it with iconv -f UTF-16 -t UTF-8 FILE)"
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
