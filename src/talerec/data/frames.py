"""Frames as Polars frames: checks of columns, nested fields, and types of text values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import polars as pl

from talerec.errors import InvalidLogError, MissingColumnError, TalerecError


def as_polars(frame: Any, needed: list[str], optional: tuple[str | None, ...] = ()) -> pl.DataFrame:
    """Return columns of a frame (Polars, lazy or not, pandas, Arrow) as a Polars frame.

    `needed` are the names of the columns to return, all distinct: user, item and time. `optional`
    are further names; None among them is skipped, and a name that `needed` has is not repeated.
    MissingColumnError if a column is absent; InvalidLogError for another kind of object.
    """
    require_distinct_columns(needed)
    needed = list(dict.fromkeys([*needed, *(name for name in optional if name is not None)]))
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        frame = _convert_pandas(frame, needed)
    elif not isinstance(frame, pl.DataFrame | pl.LazyFrame):
        frame = _convert_arrow(frame)
    require_columns(frame.lazy().collect_schema().names(), needed)
    selected: pl.DataFrame = frame.lazy().select(needed).collect(engine="streaming")
    return selected


def _convert_pandas(frame: Any, needed: list[str]) -> pl.DataFrame:
    """Return the needed columns of a pandas frame; InvalidLogError for values of mixed types.

    The other columns are left out, as Polars may not support their types.
    """
    require_columns([str(name) for name in frame.columns], needed)
    series = []
    for name in needed:
        try:
            series.append(cast(pl.Series, pl.from_pandas(frame[name])).alias(name))
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error).splitlines()[0]
            message = f"column {name!r} has values of several types: {reason}"
            raise InvalidLogError(message) from None
    return pl.DataFrame(series)


def _convert_arrow(frame: Any) -> pl.DataFrame:
    """Return an object that exports an Arrow stream as a Polars frame.

    The object is a frame or table of any library, not a single series; InvalidLogError for others.
    """
    kind = type(frame).__name__
    if not hasattr(frame, "__arrow_c_stream__") or "Series" in kind:
        raise InvalidLogError(f"a log comes from a Polars, pandas or Arrow frame, not from {kind}")
    try:
        return pl.DataFrame(frame)
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise InvalidLogError(f"{kind} is not a frame: {str(error).splitlines()[0]}") from None


def require_distinct_columns(needed: list[str]) -> None:
    """Raise TalerecError if `needed`, the columns of user, item and time, has a name twice."""
    if repeated := [name for name in needed if needed.count(name) > 1]:
        raise TalerecError(f"user, item and time are three columns, but two are {repeated[0]!r}")


def require_columns(present: list[str], needed: list[str], *parameters: str) -> None:
    """Raise an error unless every needed column is present exactly once.

    `present` and `needed` are names of columns. `parameters` are the names of the function
    parameters by which the caller could name another column; the message mentions them.
    MissingColumnError if a column is absent, InvalidLogError if it is there twice.
    """
    for name in needed:
        if present.count(name) > 1:
            raise InvalidLogError(f"there are {present.count(name)} columns {name!r}")
        if name not in present:
            shown = ", ".join(_shorten_name(column) for column in present[:20])
            rest = f" and {len(present) - 20} more" if len(present) > 20 else ""
            hint = "".join(f" (`{parameter}` names another)" for parameter in parameters)
            message = f"there is no column {name!r}; the columns are {shown}{rest}{hint}"
            raise MissingColumnError(message, *parameters)


def _shorten_name(name: str) -> str:
    """Return a name for a message: one line of at most 40 characters."""
    plain = name if name.isprintable() else repr(name)[1:-1]
    return plain if len(plain) <= 40 else f"{plain[:40]}..."


def require_id_type(column: pl.Series) -> None:
    """Raise InvalidLogError unless a column has a type for ids: text, integers or all null."""
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Null)):
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values; "
            f"ids are text or whole numbers{_suggest_fix(column)}"
        )


def _suggest_fix(column: pl.Series) -> str:
    """Return advice to append to the error about ids of a wrong type; "" if there is none."""
    if isinstance(column.dtype, pl.List | pl.Array):
        return ": write one row per element"
    if column.dtype.is_float() and (column == column.round()).all():  # integers with missing values
        return ": convert them, such as with pandas' astype('Int64')"
    return ""


def clean_ids(column: pl.Series) -> pl.Series:
    """Return ids as text or int64 (text if int64 is too narrow).

    InvalidLogError, with the row number from 1, if an id is null, blank or NaN; also if the
    column has another type.
    """
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    missing = column.is_null()
    if column.dtype == pl.String:
        missing = missing | (column.str.strip_chars() == "").fill_null(True)
    elif column.dtype.is_float():
        missing = missing | column.is_nan().fill_null(True)
    if missing.any():
        raise InvalidLogError(f"{column.name} is empty", row=missing.arg_true()[0] + 1)
    require_id_type(column)
    if column.dtype in (pl.String, pl.Int64):
        return column
    whole = column.cast(pl.Int64, strict=False)
    return column.cast(pl.String) if whole.null_count() else whole


# -- columns of files ------------------------------------------------------------------------------

_BLANK_COLUMN = "\0blank"  # an internal column


def unnest_fields(frame: pl.LazyFrame, names: list[str]) -> pl.LazyFrame:
    """Return the rows with fields of nested objects as columns, named as `order.user.id`.

    `names` are the columns that are needed; names that are neither columns nor fields are ignored.
    """
    schema = frame.collect_schema()
    fields = ((name, _select_field(schema, name)) for name in names if name not in schema)
    return frame.with_columns(field.alias(name) for name, field in fields if field is not None)


def _select_field(schema: pl.Schema, name: str) -> pl.Expr | None:
    """Return the expression of a nested field named as `order.user.id`; None if there is none.

    `schema` has the columns and their types; None too for the name of a column itself.
    """
    first, *path = name.split(".")
    kind: Any = schema.get(first)
    field = pl.col(first)
    for part in path:
        kind = dict(kind).get(part) if isinstance(kind, pl.Struct) else None
        field = field.struct.field(part)
    return field if path and kind is not None else None


def field_names(schema: pl.Schema) -> list[str]:
    """Return the names of the columns; for nested objects, those of their fields.

    `schema` has the columns' types; a field is named as `order.user.id`.
    """
    return list(
        dict.fromkeys(
            name for top, kind in schema.items() for name in _iterate_leaf_names(top, kind)
        )
    )


def _iterate_leaf_names(name: str, kind: Any) -> Iterator[str]:
    """Yield the names of a column's innermost fields, as `order.user.id`; else its own name.

    `kind` is the column's Polars type: a Struct has fields.
    """
    if not isinstance(kind, pl.Struct):
        yield name
        return
    for field, inner in kind:
        yield from _iterate_leaf_names(f"{name}.{field}", inner)


def read_text_columns(frame: pl.LazyFrame, needed: list[str]) -> pl.DataFrame:
    """Return the `needed` columns of a text file as text, parsed in one pass.

    `frame` is the lazy frame of the file. The pass reads every column, because Polars accepts lines
    with too many fields when it reads only some columns (pola-rs/polars#28350). Blank lines at the
    end are dropped. InvalidLogError if a needed column is there twice.
    """
    names = frame.collect_schema().names()
    for name in needed:
        if f"{name}_duplicated_0" in names:  # Polars' name for the second of two
            raise InvalidLogError(f"there are 2 columns {name!r}")
    blank = pl.all_horizontal(pl.all().is_null()).alias(_BLANK_COLUMN)
    table = frame.select(*dict.fromkeys(needed), blank).collect(engine="streaming")
    filled = (~table.drop_in_place(_BLANK_COLUMN)).arg_true()
    return table.head(filled[-1] + 1 if len(filled) else 0)


def infer_types(table: pl.DataFrame, plain: set[str]) -> pl.DataFrame:
    """Return text columns, except those in `plain`, as numbers or booleans if all values are."""
    return table.with_columns(map(_infer_type, table.drop(plain, strict=False).get_columns()))


def _infer_type(column: pl.Series) -> pl.Series:
    """Return a text column as integers, floats or booleans if all values are, else as it is.

    Numbers with leading zeros, as codes have (007), stay text.
    """
    if column.null_count() == len(column):
        return column
    if are_integers(column):
        return column.cast(pl.Int64)
    texts = column.drop_nulls().str
    has_zeros = texts.contains(r"^-?0\d").any()  # leading zeros, as codes have: 007
    if texts.contains(r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$").all() and not has_zeros:
        return column.cast(pl.Float64)
    lower = column.str.to_lowercase()
    return lower == "true" if lower.drop_nulls().is_in(["true", "false"]).all() else column


def are_integers(ids: pl.Series) -> bool:
    """Return whether each value of a text column is null or a plain int64 (7, but not 007)."""
    plain = ids.cast(pl.Int64, strict=False).cast(pl.String) == ids
    return (plain.fill_null(False) | ids.is_null()).all()
