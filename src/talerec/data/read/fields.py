"""Columns of a scanned file: fields of nested objects, text columns, and types of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from talerec.errors import InvalidLogError

_BLANK_COLUMN = "\0blank"  # an internal column


def unnest_fields(frame: pl.LazyFrame, names: list[str]) -> pl.LazyFrame:
    """Return the rows with fields of nested objects as columns, named as `order.user.id`.

    `names` are the columns that are needed; names that are neither columns nor fields are ignored.
    """
    schema = frame.collect_schema()
    fields = ((name, _field(schema, name)) for name in names if name not in schema)
    return frame.with_columns(field.alias(name) for name, field in fields if field is not None)


def _field(schema: pl.Schema, name: str) -> pl.Expr | None:
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
    return list(dict.fromkeys(name for top, kind in schema.items() for name in _leaves(top, kind)))


def _leaves(name: str, kind: Any) -> Iterator[str]:
    """Yield the names of a column's innermost fields, as `order.user.id`; else its own name.

    `kind` is the column's Polars type: a Struct has fields.
    """
    if not isinstance(kind, pl.Struct):
        yield name
        return
    for field, inner in kind:
        yield from _leaves(f"{name}.{field}", inner)


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
