"""Conditions on the item table equal a slow evaluator, and everything else is refused in place."""

from __future__ import annotations

import os
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slow_conditions import COMPARE, Writer, meets
from talerec.errors import TalerecError
from talerec.models.core import MAX_CONDITION, match_rows

BIG = 2**53 + 1  # a float cannot hold it
ROWS: list[dict[str, Any]] = [
    {
        "title": ["Tent", "tent 50%", "it's", "", "é漢😀", None][n % 6],
        "genre": ["drama", "crime, drama", "a/b ;c|", None, " drama ", "dramas"][n % 6],
        'net "price"': [1.5, -2.0, 0.0, None, float("nan"), 1e300][n % 6],
        "stock": [0, 3, None, -7, BIG, BIG - 1][n % 6],
        "in_stock": [True, False, None][n % 3],
        "is": [False, True][n % 2],
        "released": [date(2024, 1, 1), None, date(1969, 12, 31), date(2024, 2, 29)][n % 4],
        "seen": [datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 1), None][n % 3],
        "tags": [["new", "it's"], [], None, ["new", None]][n % 4],
        "sizes": [[1, 3], None, [BIG], [None]][n % 4],
    }
    for n in range(36)
]
TABLE = pl.DataFrame(ROWS)
COLUMNS = {
    "text": ["title", "genre"], "number": ['net "price"', "stock"], "truth": ["in_stock", "is"],
    "time": ["released", "seen"],
}  # fmt: skip
LITERALS = {
    "text": ["", "Tent", "tent 50%", "it's", "drama", "é", "zz"],
    "number": [0, 1, 1.5, -7, BIG, BIG - 1, -2.0, 1e300, 10**30],
    "truth": [True, False],
    "time": [date(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 1), date(2024, 2, 29), date(1, 1, 1)],
}


def draw_literal(draw: Any, kind: str) -> Any:
    return ("literal", draw(st.sampled_from(LITERALS[kind])))


def draw_value(draw: Any, kind: str) -> Any:
    is_column = draw(st.integers(0, 3)) > 0
    column = ("column", draw(st.sampled_from(COLUMNS[kind])))
    return column if is_column else draw_literal(draw, kind)


@st.composite
def draw_test(draw: Any) -> Any:
    kind = draw(st.sampled_from([*COMPARE, "in", "between", "like", "has", "null", "true"]))
    of = draw(st.sampled_from([*COLUMNS]))
    if kind == "like":
        pattern = "".join(draw(st.lists(st.sampled_from([*"%_tenéT' "]), max_size=6)))
        return kind, draw_value(draw, "text"), ("literal", pattern[:4].replace("__", "_"))
    if kind == "has":
        cases = [("genre", "drama"), ("genre", "c"), ("genre", " b"), ("tags", "new"),
                 ("tags", "it's"), ("sizes", 3), ("sizes", BIG), ("sizes", 1.0)]  # fmt: skip
        column, literal = draw(st.sampled_from(cases))
        return kind, ("column", column), ("literal", literal)
    if kind == "true":
        return kind, draw_value(draw, "truth")
    if kind == "null":
        named = st.sampled_from([*TABLE.columns])
        return kind, ("column", draw(named))
    if kind == "in":
        literals = [draw_literal(draw, of) for _ in range(draw(st.integers(1, 4)))]
        return kind, draw_value(draw, of), literals
    if kind == "between":
        return kind, *(draw_value(draw, of) for _ in range(3))
    return kind, draw_value(draw, of), draw_value(draw, of)


CONDITION = st.recursive(
    draw_test(),
    lambda parts: st.one_of(
        st.tuples(st.just("not"), parts),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)


@given(CONDITION, st.integers(0, 2**32))
@settings(max_examples=int(os.environ.get("TALEREC_EXAMPLES", "600")))
def test_conditions_equal_a_slow_evaluator(condition: Any, seed: int) -> None:
    text = Writer(seed).write(condition)
    if text.count("_") > 8:
        return
    expected = [bool(meets(condition, row)) for row in ROWS]
    assert match_rows(TABLE, text).tolist() == expected, text


VALID = [
    "title = 'Tent' and not (stock < 3 or in_stock)",
    '"net ""price""" between -2 and 1.5 or released >= \'2024-01-01\'',
    "title like 'tent%' and genre has 'drama' and stock not in (1, 2, 3)",
    "tags has 'new' or sizes has 3 or seen is not null and true",
]
PIECES = [
    "(",
    ")",
    "not ",
    "and ",
    "or ",
    "in ",
    "has ",
    "like ",
    "'",
    '"',
    ",",
    "1",
    "+",
    "case when ",
]


@given(st.sampled_from(VALID), st.integers(0, 2**32), st.text(max_size=30))
@settings(max_examples=int(os.environ.get("TALEREC_EXAMPLES", "600")))
def test_any_text_is_evaluated_or_refused_with_its_place(text: str, seed: int, other: str) -> None:
    draws = random.Random(seed)
    for _ in range(draws.randint(1, 4)):
        at, end = sorted(draws.choices(range(len(text) + 1), k=2))
        piece = draws.choice([*PIECES, other, text[at:end] * draws.randint(1, 9)])
        text = text[:at] + piece + text[draws.choice([at, end]) :]
    flags = match_or_refuse(text)
    if isinstance(flags, TalerecError):
        is_text = text.strip() and len(text) <= MAX_CONDITION
        assert ("is not valid at character " if is_text else "such as price < 100") in str(flags)
        assert flags.parameters == ("where",)
    else:
        assert flags.dtype == np.uint8
        assert len(flags) == len(TABLE)
        assert set(flags.tolist()) <= {0, 1}


def match_or_refuse(text: str) -> Any:
    """Return the flags of the rows, or the error."""
    try:
        return match_rows(TABLE, text)
    except TalerecError as error:
        return error


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("case when title = 1 then " * 30, 1, "the item table has no column case; it has title"),
        ("in_stock and " + "case when " * 30, 14, "the item table has no column case"),
        ("title = lpad(title, 2000000000, 'x')", 9, "lpad(...): there are no functions"),
        ("+".join(["1"] * 999), 2, "expected a comparison of 1, such as = or IN, but there is +1"),
        ("(" * 1999, 33, "more than 32 brackets and NOT are inside each other"),
        ("not " * 33 + "is", 129, "more than 32 brackets and NOT are inside each other"),
        (" or ".join(['"is"'] * 65), 513, "it has more than 64 tests"),
        (" or ".join(["title like 'a'"] * 17), 300, "it has more than 16 uses of LIKE and HAS"),
        (" or ".join(["tags has 'a'"] * 17), 266, "it has more than 16 uses of LIKE and HAS"),
        ("title like '" + "%a" * 33 + "'", 12, "it has more than 32 % in its patterns"),
        ("title like '_' or title like '%a________b'", 30, "it has more than 8 _ in its patterns"),
        ("stock", 1, "column stock is a number, and is not a true/false condition by itself"),
        ("stock <", 8, "expected a column or a value, but the condition ends"),
        ("stock < null", 9, "(IS NULL tests for it), but there is null"),
        ("stock = 1 stock = 2", 11, "expected AND, OR or the end, but there is stock"),
        ("stock = 1;", 10, "expected AND, OR or the end, but there is ;"),
        ("(stock = 1", 11, "expected ), but the condition ends"),
        ("stock in 3", 10, "expected (, but there is 3"),
        ("stock in (select stock)", 11, "expected a 'text', a number, true, false or a date"),
        ("stock in ()", 11, "expected a 'text', a number, true, false or a date"),
        ("stock not = 3", 11, "expected IN, LIKE, BETWEEN or HAS, but there is ="),
        ("stock is 3", 10, "expected NULL, but there is 3"),
        ("stock between 1 or 2", 17, "expected AND, but there is or"),
        ("stock = 1e999", 9, "the number 1e999 is too large"),
        ("stock = " + "9" * 400, 9, "999... is too large"),
        ("title = 'x", 9, "the quote ' has no end"),
        ('"title = 3', 1, 'the quote " has no end'),
        ('title = "Tent"', 9, "no column Tent; it has"),
        ("title = 3", 9, "column title is text, but 3 is a number (text is in single quotes"),
        ("title == 'Tent'", 7, "equality is written with one ="),
        ("released >= 2024-02-01", 13, "write a date in quotes: '2024-02-01'"),
        ("stock = '3'", 9, "column stock is a number, but '3' is text"),
        ("in_stock = 1", 12, "column in_stock is true or false, but 1 is a number"),
        ("title in ('a', 3)", 16, "column title is text, but 3 is a number"),
        ("title between 'a' and 3", 23, "column title is text, but 3 is a number"),
        ("title < stock", 9, "column title is text, but column stock is a number"),
        ("released = 'soon'", 12, "'soon' is not a date; write a date as '2024-01-31'"),
        ("released > 3", 12, "column released is a date, but 3 is a number"),
        ("title > date '2024-01-01'", 9, "column title is text, but '2024-01-01' is a date"),
        ("tags = 'new'", 1, "column tags is a list of values; use HAS"),
        ("tags has 3", 10, "a value of column tags is text, but 3 is a number"),
        ("stock has 3", 1, "column stock is a number; HAS takes a column of text or lists"),
        ("'a, b' has 'a'", 1, "'a, b' is text; HAS takes a column of text or lists"),
        ("genre has 'a/b'", 11, "HAS takes a text without , ; / |"),
        ("genre has ' '", 11, "HAS takes a text without , ; / |"),
        ("genre has 3", 11, "HAS takes a text without , ; / |"),
        ("stock like '3'", 1, "column stock is a number; LIKE takes text"),
        ("title like 3", 12, "3 is a number; LIKE takes text"),
        ("title like genre", 12, "expected a 'text', a number"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place(text: str, place: int, problem: str) -> None:
    with pytest.raises(TalerecError) as raised:
        match_rows(TABLE, text)
    message = str(raised.value)
    assert problem in message
    assert message.startswith(f"`where` is not valid at character {place}: ")
    assert len(message) < 400


@pytest.mark.parametrize(
    "text", ["", " \n", "x" * 2001, "in_stock" + " " * 1993, "\ud800", None, 3]
)
def test_what_is_no_text_of_a_condition_is_refused(text: Any) -> None:
    with pytest.raises(TalerecError, match="a condition such as price < 100, of at most 2,000"):
        match_rows(TABLE, text)


def test_a_condition_may_use_all_that_the_limits_allow() -> None:
    everything = [
        "(" * 32 + '"is"' + ")" * 32,
        "not " * 32 + '"is"',
        " or ".join(['"is"'] * 64),
        " or ".join(["title like '%a%'"] * 16),
        "title like '%a________'",
        '"is"' + " " * 1996,
        f"stock in ({','.join(['1'] * 990)})",
    ]
    for text in everything:
        assert match_rows(TABLE, text).any() or "like" in text or "in (" in text


def rows_of(column: pl.Series, text: str) -> list[int]:
    """Return the numbers of the rows of a column `x` that meet a condition."""
    return np.flatnonzero(match_rows(pl.DataFrame({"x": column}), text)).tolist()


PARIS = timezone(timedelta(hours=1))
TIMES = [datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC), None]


@pytest.mark.parametrize(
    ("column", "text", "rows"),
    [
        (pl.Series(["a", None, "b"], dtype=pl.Categorical), "x <> 'a'", [2]),
        (pl.Series(["b", "a", None], dtype=pl.Enum(["b", "a"])), "x < 'b'", [1]),
        (pl.Series([None, None], dtype=pl.Null), "x = 1 or x or x in (1) or not x like 'a'", []),
        (pl.Series([None, None], dtype=pl.Null), "x is null", [0, 1]),
        (pl.Series([2**64 - 1, 2**63, None], dtype=pl.UInt64), f"x > {2**64 - 2}", [0]),
        (pl.Series([2**64 - 1, 2**63, 0], dtype=pl.UInt64), "x >= -1", [0, 1, 2]),
        (pl.Series([2**64 - 1, 2**63], dtype=pl.UInt64), f"x in (1, {2**63})", [1]),
        (pl.Series([120, -128], dtype=pl.Int8), "x < 300 and x > -129.5", [0, 1]),
        (pl.Series([4.7, 4.5, float("nan")], dtype=pl.Float32), "x = 4.7 or x in (4.5)", [0, 1]),
        (pl.Series([4.7, 4.5, float("nan")], dtype=pl.Float32), "x < 4.7", [1]),
        (pl.Series([1.0, float("nan"), float("inf")]), "x > 1", [2]),
        (pl.Series([1.0, float("nan"), None]), "x is null", [1, 2]),
        (pl.Series([1.0, float("nan"), None]), "not x = 1", []),
        (pl.Series([Decimal("19.99"), None, Decimal("20")]), "x = 19.99", [0]),
        (pl.Series(TIMES), "x >= '2024-01-02'", [1]),
        (pl.Series(TIMES), "x = '2024-01-01 13:00+01:00'", [0]),
        (pl.Series(TIMES).dt.convert_time_zone("Asia/Tokyo"), "x < timestamp '2024-01-02'", [0]),
        (pl.Series(TIMES).cast(pl.Datetime("ns", "UTC")), "x in ('2024-01-02', '1999-01-01')", [1]),
        (pl.Series(TIMES).cast(pl.Datetime("ms")), "x between '2023-01-01' and '2024-01-01'", []),
        (pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int16, 2)), "x has 3", [1]),
        (pl.Series([["a"], ["b"], []], dtype=pl.List(pl.Categorical)), "x has 'b'", [1]),
        (pl.Series([[TIMES[0]], [TIMES[1]], [None], None]), "x has '2024-01-02'", [1]),
        (pl.Series([[0.5], [float("nan")], None]), "not x has 0.5", [1]),
        (pl.Series([[True], [False], None]), "x has true", [0]),
        (pl.Series([{"a": 1}, None]), "x is not null", [0]),
        (pl.Series([timedelta(1), None]), "x is null", [1]),
        (pl.Series(["a.b", "axb", "a\nb"]), "x like 'a.b'", [0]),
        (pl.Series(["a.b", "axb", "a\nb"]), "x like 'a_b'", [0, 1, 2]),
        (pl.Series(["a\\b", "(a|b)", "^"]), "x like '(a|b)' or x like 'a\\b'", [0, 1]),
        (pl.Series(["b(a)", "a", "b/(a)"]), "x has '(a)'", [2]),
        (pl.Series([], dtype=pl.Int64), "x = 1 or 1 = 1", []),
        (pl.Series([], dtype=pl.Int64), "1 = 1", []),
        (pl.Series([5]), "1 = 1", [0]),
        (pl.Series([5, 6, 7]), "1 = 1 and 'a' < 'b' and 3 in (1, 3)", [0, 1, 2]),
        (pl.Series([5, 6, 7]), "false or 1.5 between 2 and 3", []),
        (pl.Series([5, 6, 7]), "true or x = 5", [0, 1, 2]),
    ],
)  # fmt: skip
def test_columns_of_every_type_are_compared(column: pl.Series, text: str, rows: list[int]) -> None:
    assert rows_of(column, text) == rows


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([{"a": 1}]),
        pl.Series([timedelta(1)]),
        pl.Series([b"x"]),
        pl.Series([[{"a": 1}]]),
        pl.Series([[[1]]]),
    ],
)
def test_a_column_that_cannot_be_compared_is_refused(column: pl.Series) -> None:
    for test in ("x = 1", "x in ('a')", "x has 1", "x", "x like 'a'"):
        with pytest.raises(TalerecError, match="column x is of a type that conditions cannot"):
            rows_of(column, test)


def test_words_of_the_grammar_are_columns_where_they_can_be() -> None:
    table = pl.DataFrame(
        {"date": [1, 2], "has": [["a"], ["b"]], "timestamp": [3, 4], "AND": [1, 2]}
    )
    assert match_rows(table, "date = 2 and timestamp > 3 and has has 'b'").tolist() == [0, 1]
    assert match_rows(table, '"AND" = 1 and "date" = 1').tolist() == [1, 0]


def test_a_message_names_some_columns_of_a_wide_table() -> None:
    table = pl.DataFrame({f"{'c' * 300}{n}": [1] for n in range(500)})
    with pytest.raises(TalerecError, match="and 480 more") as raised:
        match_rows(table, "x = 1")
    assert len(str(raised.value)) < 1200
