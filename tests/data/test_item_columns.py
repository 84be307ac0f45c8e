"""Types of an item table's columns, and bad item tables."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import talerec as tr
from command import talerec
from talerec.data import detect_columns
from talerec.data.items import (
    CATEGORIES,
    CATEGORY,
    DATE,
    EMPTY,
    NUMBER,
    SKIPPED,
    TEXT,
    VECTOR,
    column_categories,
)
from talerec.errors import InvalidLogError, MissingColumnError

N = 40  # items


def table(**values: Any) -> pl.DataFrame:
    """Return an item table of N items with these columns."""
    return pl.DataFrame({"item_id": list(range(N)), **values}, strict=False)


def kind_of(values: Any, **options: Any) -> Any:
    """Return the type of a column with these values."""
    (column,) = detect_columns(table(column=values), **options)
    return column


COLORS = ["red", "green", "blue", "black"]
SENTENCES = [f"A chair of type {i}, made in {1900 + i}, with {i * 7} nails" for i in range(N)]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([COLORS[i % 4] for i in range(N)], CATEGORY),
        (SENTENCES, TEXT),
        ([i * 0.5 for i in range(N)], NUMBER),
        (list(range(N)), NUMBER),
        ([i % 2 == 0 for i in range(N)], CATEGORY),
        ([datetime.date(2020, 1, 1 + i % 28) for i in range(N)], DATE),
        ([f"2020-01-{1 + i % 28:02}" for i in range(N)], DATE),
        ([f"2020-01-{1 + i % 28:02} 12:30:00" for i in range(N)], DATE),
        ([f"2020-01-{1 + i % 28:02}T12:30:00Z" for i in range(N)], DATE),
        ([[0.5, 0.25, float(i)] for i in range(N)], VECTOR),
        ([[1, 2, i] for i in range(N)], VECTOR),
        ([["red", "blue"][: 1 + i % 2] for i in range(N)], CATEGORIES),
        ([[1, 2, 3][: 1 + i % 3] for i in range(N)], CATEGORIES),
        ([None] * N, EMPTY),
        (["", "  "] * (N // 2), EMPTY),
        ([float("nan")] * N, EMPTY),
        ([{"a": i} for i in range(N)], SKIPPED),
        ([b"x"] * N, SKIPPED),
        ([[[1.0]]] * N, SKIPPED),
        ([1, 2, 3] + ["seven nails and more words than a category has"] * (N - 3), TEXT),
    ],
)
def test_a_column_has_the_type_of_its_values(values: list[Any], kind: str) -> None:
    if kind == TEXT and isinstance(values[0], int):  # a column whose type changes
        values = [str(value) if i < 3 else f"{value} {i}" for i, value in enumerate(values)]
    assert kind_of(values).kind == kind


@pytest.mark.parametrize("sign", [",", ";", "|", "/", " "])
def test_separators_of_several_categories_are_found(sign: str) -> None:
    cells = [sign.join({COLORS[i % 4], COLORS[i % 3], "new"}) for i in range(N)]
    cells += [f" {sign} ".join([a, b]) for a in COLORS for b in COLORS if a != b]
    column = detect_columns(pl.DataFrame({"item_id": range(len(cells)), "column": cells}))[0]
    assert (column.kind, column.separators, column.distinct) == (CATEGORIES, sign, 5)
    split = column_categories(pl.Series(cells), column).to_list()
    assert all(set(part) <= {*COLORS, "new"} for part in split)


def test_two_separators_in_one_column_are_both_used() -> None:
    pairs = [(a, b) for a in COLORS for b in COLORS if a != b]
    cells = [f"{a},{b}" for a, b in pairs] + [f"{a}/{b}" for a, b in pairs]
    column = detect_columns(pl.DataFrame({"item_id": range(24), "column": cells}))[0]
    assert (column.kind, column.separators, column.distinct) == (CATEGORIES, ",/", 4)


def test_a_sign_in_names_is_no_separator() -> None:
    names = ["BREAD/BUNS", "CRACKERS/MISC", "MILK", "EGGS/DAIRY"]
    column = kind_of([names[i % 4] for i in range(N)])
    assert (column.kind, column.separators, column.distinct) == (CATEGORY, "", 4)


def test_titles_are_text_and_callers_overrule_types() -> None:
    items = table(title=["Tent"] * N, color=[COLORS[i % 4] for i in range(N)], price=[1.0] * N)
    assert [column.kind for column in detect_columns(items)] == [TEXT, CATEGORY, NUMBER]
    kinds = [column.kind for column in detect_columns(items, text=["color"], skip=["price"])]
    assert kinds == [TEXT, TEXT, SKIPPED]
    with pytest.raises(MissingColumnError, match=r"no column 'colour' \(`item_text`\)"):
        detect_columns(items, text=["colour"])
    with pytest.raises(MissingColumnError, match=r"no column 'item_id' \(`item_skip`\)"):
        detect_columns(items, skip=["item_id"])


def test_vectors_of_two_widths_are_refused_by_item() -> None:
    with pytest.raises(InvalidLogError, match="two widths: 3, and 2 in the row of item 7"):
        kind_of([[0.0] * (2 if i == 7 else 3) for i in range(N)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_vectors_with_missing_numbers_are_refused_by_item(value: Any) -> None:
    with pytest.raises(InvalidLogError, match="missing, NaN or infinite, in the row of item 5"):
        kind_of([[0.0, value if i == 5 else 1.0] for i in range(N)])


def test_rows_without_a_vector_are_allowed() -> None:
    column = kind_of([None if i % 2 else [1.0, 2.0] for i in range(N)])
    assert (column.kind, column.width, column.filled) == (VECTOR, 2, N // 2)


def test_a_million_categories_and_a_text_of_10_mb_have_types() -> None:
    size = 1_000_000
    number = pl.arange(size, eager=True)
    unique, paired = (
        pl.DataFrame({"item_id": number, "code": (number // group).cast(pl.String) + "x"})
        for group in (1, 2)
    )
    assert detect_columns(unique)[0].kind == TEXT  # no two items share a value
    column = detect_columns(paired)[0]
    assert (column.kind, column.distinct) == (CATEGORY, size // 2)
    assert kind_of(["word " * 2_000_000, *SENTENCES[1:]]).kind == TEXT


# -- items of the log and of the table -------------------------------------------------------------


def log_of(items: list[Any]) -> tr.Log:
    """Return a log in which one user takes these items, one a day."""
    days = [86_400 * (19_000 + day) for day in range(len(items))]
    rows = {"user_id": [1] * len(items), "item_id": items, "timestamp": days}
    return tr.Log.from_frame(pl.DataFrame(rows))


def test_rows_of_other_items_are_the_catalogue() -> None:
    items = pl.DataFrame({"item_id": ["c", "a", "z"], "color": ["red", "green", "blue"]})
    log = log_of(["a", "b", "c"]).with_items(items)
    assert log.info is not None
    assert log.catalogue is not None
    assert log.info.rows() == [("a", "green"), ("b", None), ("c", "red")]
    assert log.catalogue.rows() == [("z", "blue")]
    extended = log.with_catalogue()
    assert extended.items.ids.to_list() == ["a", "b", "c", "z"]
    assert extended.info is not None
    assert extended.info["color"].to_list() == ["green", None, "red", "blue"]
    assert extended.with_catalogue() is extended
    assert log.with_catalogue() is extended  # one object, which caches of fits know


def test_items_that_leave_the_log_stay_in_the_catalogue() -> None:
    items = pl.DataFrame({"item_id": ["c", "a", "z"], "color": ["red", "green", "blue"]})
    log = log_of(["a", "b", "c"]).with_items(items)
    rest = log.keep(log.item == 0).compact()
    assert rest.items.ids.to_list() == ["a"]
    assert rest.catalogue is not None
    assert rest.catalogue.rows() == [("c", "red"), ("z", "blue")]  # the table does not have b


def test_ids_of_another_type_match_or_are_left_out() -> None:
    items = pl.DataFrame({"item_id": ["7", "x", None, "9"], "color": ["red", "", "blue", "green"]})
    log = log_of([7, 8]).with_items(items)
    assert log.info is not None
    assert log.catalogue is not None
    assert log.info.rows() == [(7, "red"), (8, None)]
    assert log.catalogue.rows() == [(9, "green")]


def test_items_twice_in_the_table_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    items = pl.DataFrame({"item_id": ["a", "a", "b", "a"], "color": ["red", "green", "b", "c"]})
    with caplog.at_level(logging.INFO, "talerec"):
        log = log_of(["a", "b"]).with_items(items)
    assert log.info is not None
    assert log.info["color"].to_list() == ["red", "b"]
    text = "rows of the item table that repeat an id: 2, such as 'a'; the first row counts"
    assert text in caplog.messages


def test_ids_that_differ_by_spaces_or_case_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    items = pl.DataFrame({"item_id": ["A1", "a1", " A2 ", "a9", "A3"], "color": COLORS[:1] * 5})
    with caplog.at_level(logging.WARNING, "talerec"):
        log = log_of(["A1", "A2", "A3"]).with_items(items)
    assert log.catalogue is not None
    assert log.catalogue["item_id"].to_list() == ["a1", " A2 ", "a9"]
    text = "by spaces or upper and lower case alone: 2, such as 'a1'; they count as other items"
    assert text in caplog.text
    caplog.clear()
    log_of([1, 2]).with_items(pl.DataFrame({"item_id": [1, 3], "color": ["red", "blue"]}))
    log_of(["A1", "A2"]).with_items(items.filter(pl.col("item_id").is_in(["A1", "a9"])))
    assert "upper and lower" not in caplog.text


def test_describe_shows_the_types_and_which_items_match(tmp_path: Path) -> None:
    log_of([f"i{n % 30}" for n in range(50)]).to_frame().write_csv(tmp_path / "log.csv")
    rows = {"asin": [f"i{n}" for n in range(20, 60)], "color": [COLORS[n % 4] for n in range(N)]}
    rows |= {"note": SENTENCES, "price": [n * 0.5 for n in range(N)], "gone": [""] * N}
    pl.DataFrame(rows).write_csv(tmp_path / "items.csv")
    words = f"describe {tmp_path}/log.csv --items {tmp_path}/items.csv --item-key asin"
    result = talerec(*words.split(), "--item-skip", "note", "--json").json["item_table"]
    counts = {name: value for name, value in result.items() if name != "columns"}
    assert counts == {"rows": 40, "matching": 10, "without_row": 20, "without_events": 30}
    assert result["columns"] == [
        {"name": "color", "kind": "category", "coverage": 1.0, "distinct": 4},
        {"name": "note", "kind": "skipped", "coverage": 1.0},
        {"name": "price", "kind": "number", "coverage": 1.0, "min": 0.0, "max": 19.5},
        {"name": "gone", "kind": "empty", "coverage": 0.0},
    ]
    shown = talerec(*words.split(), "--item-text", "color").out
    assert "10 items of the log have a row in the table, 20 have none; 30 items" in shown
    assert "Item table, 40 rows" in shown


def test_a_table_of_another_shop_is_named(tmp_path: Path) -> None:
    log_of([f"i{n}" for n in range(34)]).to_frame().write_csv(tmp_path / "log.csv")
    table().with_columns(color=pl.lit("red")).write_csv(tmp_path / "items.csv")
    result = talerec("describe", tmp_path / "log.csv", "--items", tmp_path / "items.csv")
    assert "describes no item of the log: 0 of 34 ids match" in result.err
    assert "0 items of the log have a row in the table, 34 have none" in result.out


@pytest.mark.parametrize("dates", [["25/12/2023", "01/02/2024"], ["1.2.2024 10:30", "25.12.2023"]])
def test_dates_in_another_order_are_not_used_and_reported(
    dates: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    table = pl.DataFrame({"item_id": [f"i{n}" for n in range(N)], "added": dates * (N // 2)})
    with caplog.at_level(logging.WARNING, "talerec"):
        log = log_of([f"i{n}" for n in range(N)]).with_items(table)
    assert log.info is not None
    assert [(column.name, column.kind) for column in detect_columns(log.info)] == [
        ("added", "skipped")
    ]
    message = "column 'added' of the item table is not used: write dates such as"
    assert message in caplog.text
    caplog.clear()
    iso = table.with_columns(added=pl.lit("2023-12-25"))
    log_of([f"i{n}" for n in range(N)]).with_items(iso)
    assert message not in caplog.text
