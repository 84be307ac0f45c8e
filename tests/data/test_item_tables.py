"""Tables of items beside a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from log_files import FORMATS, GOOD, HEADER, T, Write, inter
from talerec.data.read import read_items, read_log
from talerec.errors import InvalidLogError, MissingColumnError, TalerecError

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
def test_common_names_of_title_columns_are_tried_in_order(
    names: list[str], chosen: str, write: Write
) -> None:
    content = ",".join(["item_id", *names]) + "\n" + ",".join(["a", *names]) + "\n"
    assert read_items(write("items.csv", content))["title"].to_list() == [chosen]


def test_a_table_without_titles_is_unchanged(write: Write) -> None:
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
        ("log.csv", GOOD, {"user": "who"}, MissingColumnError),
        ("log.parquet", GOOD, {}, InvalidLogError),
        ("log.ndjson", "{", {}, InvalidLogError),
        ("log.csv", GOOD, {"time_unit": "minutes"}, TalerecError),
        ("log.csv", GOOD, {"item": "user_id"}, TalerecError),
        ("log.txt", GOOD, {}, TalerecError),
    ],
)
def test_a_bad_log_raises_its_own_error_class(
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
        f"{path}: there is no column 'item_id'; the columns are id, title (`item` names another)"
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


# -- item tables with other separators and names ---------------------------------------------------


def test_an_item_table_may_have_another_separator(write: Any) -> None:
    path = write("items.csv", "item_id;title;price\na;Tent, red;5\n")
    assert read_items(path, sep=";").to_dicts() == [
        {"item_id": "a", "title": "Tent, red", "price": 5}
    ]
    with pytest.raises(InvalidLogError, match="set `sep` to ';'"):
        read_items(path)
    with pytest.raises(TalerecError, match="`sep` is ';;'; it takes one character"):
        read_items(path, sep=";;")
    with pytest.raises(TalerecError, match="`sep` goes with text files"):
        read_items(write("items.parquet", "PAR1"), sep=";")


def test_an_item_tables_ids_are_in_the_logs_item_column(write: Any) -> None:
    log = write("log.csv", "user_id,sku,timestamp\nann,a,2024-05-01\nann,b,2024-05-02\n")
    for content in ("sku,title\na,A\n", "item_id,title\na,A\n", "item_id,sku,title\n9,a,A\n"):
        info = read_log(log, item="sku", items=write("items.csv", content)).info
        assert info is not None
        assert info["title"].to_list() == ["A", None]
    named = {"item": "sku", "items": write("items.csv", "code,title\na,A\n")}
    with pytest.raises(InvalidLogError, match=r"'item_id'.*code, title.*`item_key` names another"):
        read_log(log, **named)
    info = read_log(log, **named, item_key="code").info
    assert info is not None
    assert info["title"].to_list() == ["A", None]


def test_an_item_tables_titles_may_have_any_name(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("items.csv", "item_id,Bezeichnung,title,007\na,12,T,5\n")
    table = read_items(path, title="Bezeichnung")
    assert table.to_dicts() == [{"item_id": "a", "title": "12", "007": 5}]  # a title is text
    with pytest.raises(InvalidLogError, match=r"no column 'Name'.*`title` names another"):
        read_items(path, title="Name")
    for key in ("item_id", "Bezeichnung"):
        with pytest.raises(TalerecError, match="titles cannot be in its column of ids"):
            read_items(path, item=key, title="item_id" if key == "item_id" else key)
    with caplog.at_level("INFO", "talerec"):
        read_items(write("items.csv", "item_id,Bezeichnung\na,12\n"))
    assert "no column of titles (title, name, " in caplog.text


def test_text_columns_become_numbers_or_booleans_only_if_every_value_is_one(write: Any) -> None:
    """A code with leading zeros stays text, whatever its other values are."""
    columns = {
        "whole": (["1", "-20", ""], [1, -20, None]),
        "real": (["1.5", "2", "-3e2"], [1.5, 2.0, -300.0]),
        "flag": (["True", "false", ""], [True, False, None]),
        "code": (["007", "1.5", "2"], ["007", "1.5", "2"]),
        "mixed": (["true", "1", "x"], ["true", "1", "x"]),
    }
    lines = [",".join(["item_id", *columns])]
    for row, values in enumerate(zip(*(texts for texts, _ in columns.values()), strict=True)):
        lines.append(",".join([f"i{row}", *values]))
    table = read_items(write("items.csv", "\n".join(lines) + "\n"))
    for name, (_, expected) in columns.items():
        assert table[name].to_list() == expected, name


def write_folder(folder: Path, tables: list[pl.DataFrame]) -> Path:
    """Write the files of an item table to a folder: 0.parquet, 1.parquet ..."""
    for number, table in enumerate(tables):
        table.write_parquet(folder / f"{number}.parquet")
    return folder


def test_files_of_an_item_table_may_have_other_columns_and_types(tmp_path: Path) -> None:
    first = pl.DataFrame({"item_id": [1], "title": ["a"], "price": [2.5], "vector": [[1.0, 0.0]]})
    later = pl.DataFrame({"color": ["red"], "price": ["cheap"], "item_id": ["x"]})
    table = read_items(write_folder(tmp_path, [first, later]))
    assert table.to_dicts() == [
        {"item_id": "1", "title": "a", "price": "2.5", "vector": [1.0, 0.0], "color": None},
        {"item_id": "x", "title": None, "price": "cheap", "vector": None, "color": "red"},
    ]


def test_a_column_of_lists_that_another_file_has_as_text_is_refused(tmp_path: Path) -> None:
    first = pl.DataFrame({"item_id": [1], "vector": [[1.0, 0.0]]})
    folder = write_folder(tmp_path, [first, first, first.with_columns(vector=pl.lit("[1, 0]"))])
    with pytest.raises(InvalidLogError) as caught:
        read_items(folder)
    assert str(caught.value) == (
        f"{folder}/2.parquet: column 'vector' has values of type String, and those of earlier files"
        " are List(Float64)"
    )
