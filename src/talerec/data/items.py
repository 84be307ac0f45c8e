"""Types of an item table's columns: text, categories, numbers, dates and vectors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import polars as pl

from talerec import columns
from talerec.errors import InvalidLogError, MissingColumnError

#: What a column of an item table holds. EMPTY has no value at all, SKIPPED is not used.
TEXT, CATEGORY, CATEGORIES, NUMBER, DATE, VECTOR, EMPTY, SKIPPED = (
    "text", "category", "categories", "number", "date", "vector", "empty", "skipped"
)  # fmt: skip

_SEPARATORS = (",", ";", "|", "/")  # between the categories of one cell
_MIN_SEPARATED = 0.05  # share of the cells that must have a separator
_MAX_PART_WORDS = 4.0  # mean words of a category
_MAX_PART_SHARE = 0.5  # distinct categories per category
_MAX_SPACED = 0.25  # distinct words per distinct cell, for a space to be a separator
_MAX_DISTINCT = 0.75  # distinct cells per filled cell of a column of categories
_MAX_LONG_DISTINCT, _MAX_CATEGORY_WORDS = 0.5, 8.0  # the same if categories are long
_MIN_DATES = 0.95  # share of the filled cells that must be dates
_SAMPLE = 200_000  # rows that a type is detected in
_DATE = r"^\s*(\d{4}-\d{2}-\d{2})(?:[T ]\d{2}:\d{2}.*)?\s*$"
_OTHER_DATE = r"^\s*\d{1,2}[/.]\d{1,2}[/.]\d{4}(?:[T ]\d{1,2}:\d{2}.*)?\s*$"


@dataclass(frozen=True)
class ItemColumn:
    """The type of one column of an item table, and how it was read.

    Parameters
    ----------
    name : str
        The column's name.
    kind : str
        text, category, categories (several in a cell), number, date, vector, empty or skipped.
    separators : str
        The signs between the categories of a cell, such as ``,/``; "" for lists and other kinds.
    filled : int
        The number of rows with a value.
    distinct : int
        The number of different categories; 0 for other kinds.
    width : int
        The number of dimensions of a vector; 0 for other kinds.
    """

    name: str
    kind: str
    separators: str = ""
    filled: int = 0
    distinct: int = 0
    width: int = 0


def detect_columns(
    table: pl.DataFrame, *, text: Collection[str] = (), skip: Collection[str] = ()
) -> list[ItemColumn]:
    """Return the type of each column of an item table, except its ids.

    Parameters
    ----------
    table : polars.DataFrame
        A row per item, with ids in the column item_id.
    text, skip : collections of str
        Columns that are text whatever they look like, and columns that are not used.

    Returns
    -------
    list of ItemColumn
        In the order of the table.

    Raises
    ------
    InvalidLogError
        If `text` or `skip` name a column that the table does not have (MissingColumnError), vectors
        of a column have different widths, or one has a number that is not finite.

    Examples
    --------
    >>> import polars as pl
    >>> table = pl.DataFrame({"item_id": [1, 2], "tags": [["a", "b"], ["b"]], "price": [2.5, 3.0]})
    >>> [(column.name, column.kind) for column in detect_columns(table)]
    [('tags', 'categories'), ('price', 'number')]
    """
    check_column_names(table, text, skip)
    others = [column for column in table.get_columns() if column.name != columns.ITEM]
    return [_detect(c, table[columns.ITEM], c.name in text, c.name in skip) for c in others]


def check_column_names(table: pl.DataFrame, text: Collection[str], skip: Collection[str]) -> None:
    """Raise MissingColumnError if `text` or `skip` name a column that an item table has not."""
    for parameter, names in (("item_text", text), ("item_skip", skip)):
        for name in names:
            if name not in table.columns or name == columns.ITEM:
                message = f"the item table has no column {name!r} (`{parameter}`)"
                raise MissingColumnError(message, parameter)


def _detect(column: pl.Series, ids: pl.Series, is_text: bool, is_skipped: bool) -> ItemColumn:
    """Return the type of a column; `ids` are the items of its rows, for messages.

    is_text, is_skipped: the caller has decided that it is text, or is not used.
    """
    kind: Any = column.dtype
    values = blank_to_null(column)
    filled = len(values) - values.null_count()
    if is_skipped or kind in (pl.Binary, pl.Object, pl.Duration) or isinstance(kind, pl.Struct):
        return ItemColumn(column.name, SKIPPED, filled=filled)
    if not filled:
        return ItemColumn(column.name, EMPTY)
    if is_text or (column.name == columns.TITLES[0] and kind == pl.String):
        return ItemColumn(column.name, TEXT, filled=filled)
    if isinstance(kind, pl.List | pl.Array):
        return _detect_list(column, ids, filled)
    if kind.is_numeric():
        return ItemColumn(column.name, NUMBER, filled=filled)
    if kind in (pl.Date, pl.Datetime):
        return ItemColumn(column.name, DATE, filled=filled)
    if kind != pl.String:  # booleans, categoricals, times of day
        distinct = values.n_unique() - int(filled < len(values))
        return ItemColumn(column.name, CATEGORY, filled=filled, distinct=distinct)
    return _detect_text(column.name, values.drop_nulls())


def _detect_list(column: pl.Series, ids: pl.Series, filled: int) -> ItemColumn:
    """Return the type of a column of lists: vector (numbers of one width), or categories.

    Lists of whole numbers with different widths are categories; lists of lists and of records are
    skipped (not used, and reported as such). `ids` are the items of the rows,
    for messages; `filled` is the number of rows with a value. InvalidLogError as `detect_columns`.
    """
    inner: Any = column.dtype.inner  # type: ignore[attr-defined]
    if isinstance(inner, pl.List | pl.Array | pl.Struct):
        return ItemColumn(column.name, SKIPPED, filled=filled)
    lists = as_lists(column)
    widths = lists.list.len()
    has_one_width = widths.drop_nulls().n_unique() == 1
    if inner.is_numeric() and (inner.is_float() or has_one_width):
        width = check_vectors(lists, ids)
        return ItemColumn(column.name, VECTOR, filled=filled, width=width)
    distinct = lists.explode().drop_nulls().n_unique()
    return ItemColumn(column.name, CATEGORIES, filled=filled, distinct=distinct)


def check_vectors(vectors: pl.Series, ids: pl.Series, width: int = 0) -> int:
    """Return the width of a column of vectors (lists of numbers; null for none).

    width: the one that they must have; 0 for that of the first vector. `ids` are the items of the
    rows. InvalidLogError, with the item, if a vector has another width or a number that is missing
    or not finite.
    """
    name = vectors.name
    widths = vectors.list.len()
    present = widths.drop_nulls()
    width = width or (int(present[0]) if len(present) else 0)
    for row in (widths != width).fill_null(False).arg_true()[:1]:
        raise InvalidLogError(
            f"column {name!r} has vectors of two widths: {width}, and {widths[int(row)]} in the "
            f"row of item {ids[int(row)]!r}"
        )
    are_finite = vectors.list.eval(pl.element().cast(pl.Float64).is_finite().fill_null(False))
    for row in (~are_finite.list.all()).fill_null(False).arg_true()[:1]:
        raise InvalidLogError(
            f"column {name!r} has a vector with a number that is missing, NaN or infinite, in the "
            f"row of item {ids[int(row)]!r}"
        )
    return width


def _detect_text(name: str, values: pl.Series) -> ItemColumn:
    """Return the type of a column of text, given its filled cells: see `ItemColumn`."""
    sample = values.head(_SAMPLE)
    if sample.str.contains(_DATE).mean() >= _MIN_DATES:  # type: ignore[operator]
        n_dates = len(values) - parse_dates(values).null_count()
        if n_dates >= _MIN_DATES * len(values):
            return ItemColumn(name, DATE, filled=n_dates)
    if has_other_dates(sample):
        return ItemColumn(name, SKIPPED, filled=len(values))
    if separators := _find_separators(sample):
        distinct = split_categories(values, separators).explode().n_unique()
        return ItemColumn(name, CATEGORIES, separators, len(values), distinct)
    share, words = sample.n_unique() / len(sample), _mean_words(sample)
    is_short = share <= _MAX_DISTINCT and words <= _MAX_PART_WORDS
    if is_short or (share <= _MAX_LONG_DISTINCT and words <= _MAX_CATEGORY_WORDS):
        return ItemColumn(name, CATEGORY, filled=len(values), distinct=values.n_unique())
    return ItemColumn(name, TEXT, filled=len(values))


def has_other_dates(values: pl.Series) -> bool:
    """Return whether filled cells are dates such as 25/12/2023, which are not read as dates."""
    n_dates = int(values.str.contains(_OTHER_DATE).sum())
    return n_dates > 0 and n_dates >= _MIN_DATES * len(values)


def _find_separators(cells: pl.Series) -> str:
    """Return the signs that stand between several categories of a cell; "" if there are none.

    A sign is a separator if at least 5 % of the cells have it, the parts are short and occur twice
    on average, unlike parts of a sentence, and there are fewer different parts than different cells
    (unless most cells differ), unlike parts of a name. Only if no other sign is a separator, a
    space is one if there are at most a quarter as many different words as different cells.
    """
    n_cells = cells.n_unique()
    separators = ""
    for sign in _SEPARATORS:
        if cells.str.contains(sign, literal=True).mean() < _MIN_SEPARATED:  # type: ignore[operator]
            continue
        parts = split_categories(cells, sign).explode().drop_nulls()
        n_parts = parts.n_unique()
        are_lists = n_parts < n_cells or n_cells > _MAX_LONG_DISTINCT * len(cells)
        is_shared = are_lists and n_parts <= _MAX_PART_SHARE * len(parts)
        if is_shared and _mean_words(parts) <= _MAX_PART_WORDS:
            separators += sign
    if separators:
        return separators
    words = split_categories(cells, " ").explode().drop_nulls()
    is_listed = len(words) > len(cells) and words.n_unique() <= _MAX_SPACED * n_cells
    return " " if is_listed else ""


def _mean_words(cells: pl.Series) -> float:
    """Return the mean number of words in the cells of a column of text; 0 without cells."""
    mean: Any = (cells.str.count_matches(r"\s+", literal=False) + 1).mean()
    return float(mean or 0.0)


# -- values ----------------------------------------------------------------------------------------


def blank_to_null(column: pl.Series) -> pl.Series:
    """Return a column with null for blank text, NaN and empty lists; others as they are."""
    kind = column.dtype
    if kind == pl.String:
        return column.set(column.str.strip_chars() == "", None)
    if kind.is_float():
        return column.set(~column.is_finite(), None)
    if isinstance(kind, pl.List):
        return pl.select(pl.when(column.list.len() > 0).then(column)).to_series()
    return column


def read_numbers(column: pl.Series, ids: pl.Series) -> pl.Series:
    """Return a column of numbers as float64, with null for blank text, NaN and infinity.

    ids: the items of the rows. InvalidLogError, with the item, for a value that is not a number.
    """
    values = blank_to_null(column)
    try:
        floats = values.cast(pl.Float64, strict=False)
    except pl.exceptions.PolarsError:
        raise InvalidLogError(
            f"column {column.name!r} of the item table has no numbers, but {column.dtype}"
        ) from None
    for row in (floats.is_null() & values.is_not_null()).arg_true()[:1]:
        raise InvalidLogError(
            f"column {column.name!r} of the item table has {values[int(row)]!r} in place of a "
            f"number, in the row of item {ids[int(row)]!r}"
        )
    return blank_to_null(floats)


def as_lists(column: pl.Series) -> pl.Series:
    """Return a column of lists or arrays as lists, with null in place of empty ones.

    InvalidLogError if it has other values.
    """
    if column.dtype == pl.Null:
        column = column.cast(pl.List(pl.Float64))
    if not isinstance(column.dtype, pl.List | pl.Array):
        raise InvalidLogError(
            f"column {column.name!r} of the item table has no lists, but {column.dtype}"
        )
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    return blank_to_null(lists).alias(column.name)


def parse_dates(values: pl.Series) -> pl.Series:
    """Return dates: of a column of text such as 2019-10-01 or 2019-10-01 12:30, or of times.

    Null where a text is not a date.
    """
    if values.dtype != pl.String:
        return values.cast(pl.Date)
    return values.str.extract(_DATE).str.to_date("%Y-%m-%d", strict=False)


def split_categories(cells: pl.Series, separators: str) -> pl.Series:
    """Return the categories of each cell of text as a list, without blanks around them.

    separators: the signs between categories; "" if a cell is one category. Null stays null, and a
    category that a cell has twice is there twice.
    """
    if not separators:
        return cells.str.strip_chars().reshape((-1, 1)).arr.to_list()
    signs = "".join(rf"\{sign}" if sign != " " else r"\s" for sign in separators)
    split = cells.str.replace_all(f"[{signs}]", "\0").str.split("\0")
    trimmed = pl.element().str.strip_chars()
    return split.list.eval(trimmed.filter(trimmed != ""))


def column_categories(values: pl.Series, column: ItemColumn) -> pl.Series:
    """Return the categories of each row as a list of text; null or empty for none.

    values: a column of the kind category or categories. column: its type.
    """
    if isinstance(values.dtype, pl.List | pl.Array):
        return as_lists(values).cast(pl.List(pl.String))
    return split_categories(blank_to_null(values.cast(pl.String)), column.separators)


def describe_items(log_items: pl.Series, table: pl.DataFrame, types: list[ItemColumn]) -> Any:
    """Return how an item table describes the items of a log, as a dict for JSON.

    Parameters
    ----------
    log_items : polars.Series
        The ids of the log's items.
    table : polars.DataFrame
        The item table, a row per item; ids, in item_id, have the type of `log_items`.
    types : list of ItemColumn
        The types of its columns, from `detect_columns`.

    Returns
    -------
    dict
        rows; matching, without_row and without_events (items in both, in the log alone and in the
        table alone); columns (name, kind, share of rows with a value, and what its kind has).
    """
    matching = int(log_items.is_in(table[columns.ITEM].implode()).sum())
    return {
        "rows": len(table),
        "matching": matching,
        "without_row": len(log_items) - matching,
        "without_events": len(table) - matching,
        "columns": [_describe_type(column, table) for column in types],
    }


def _describe_type(column: ItemColumn, table: pl.DataFrame) -> dict[str, Any]:
    """Return the name, kind and coverage of a column, with what its kind has, as a dict."""
    values = table[column.name]
    facts: dict[str, Any] = {"name": column.name, "kind": column.kind}
    facts["coverage"] = column.filled / len(table) if len(table) else 0.0
    if column.kind in (CATEGORY, CATEGORIES):
        facts["distinct"] = column.distinct
    if column.separators:
        facts["separators"] = column.separators
    if column.kind == VECTOR:
        facts["width"] = column.width
    if column.kind == NUMBER:
        present = blank_to_null(values)
        facts |= {"min": present.min(), "max": present.max()}
    if column.kind == DATE:
        dates = parse_dates(values)
        facts |= {"min": str(dates.min()), "max": str(dates.max())}
    return facts
