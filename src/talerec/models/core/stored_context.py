"""The context columns of a training log in an artifact."""

from __future__ import annotations

import numpy as np
import polars as pl

from talerec.artifact import Bundle
from talerec.data import ContextColumn, ContextColumns
from talerec.errors import ArtifactError
from talerec.runtime import Array

_FACT = "context"  # the manifest's entry: name, by_user and numbers (true or false) of each column
_TABLE = "context"  # a row per value: the number of its column, and its text or number


def store_context(columns: ContextColumns) -> Bundle:
    """Return context columns as contents of an artifact: nothing without any."""
    if not columns:
        return Bundle({}, {}, {})
    facts = [
        {"name": each.name, "by_user": each.by_user, "numbers": each.is_number} for each in columns
    ]
    arrays: dict[str, Array] = {f"context{n}": each.codes for n, each in enumerate(columns)}
    empty = pl.DataFrame(schema={"column": pl.Int64, "text": pl.String, "number": pl.Float64})
    parts = [
        pl.DataFrame({"column": n, ("number" if each.is_number else "text"): each.values})
        for n, each in enumerate(columns)
    ]
    table = pl.concat([empty, *(part.cast({"column": pl.Int64}) for part in parts)], how="diagonal")
    return Bundle({_FACT: facts}, arrays, {_TABLE: table})


def restore_context(bundle: Bundle, n_rows: int) -> ContextColumns:
    """Return the context columns that an artifact stores; none if it has none.

    n_rows: of the training log. ArtifactError if the columns are incomplete or inconsistent.
    """
    facts = bundle.facts.get(_FACT)
    if facts is None:
        return ()
    table = bundle.tables.get(_TABLE)
    if not isinstance(facts, list) or table is None or len(facts) > len(bundle.arrays):
        raise ArtifactError("the model's context columns are incomplete")
    if set(table.columns) != {"column", "text", "number"}:
        raise ArtifactError("the model's context columns have another table")
    return tuple(_restore_column(bundle, table, n, fact, n_rows) for n, fact in enumerate(facts))


def _restore_column(
    bundle: Bundle, table: pl.DataFrame, number: int, fact: object, n_rows: int
) -> ContextColumn:
    """Return one stored column; ArtifactError unless its codes are positions of its values."""
    problem = ArtifactError(f"context column {number + 1} of the model is damaged")
    if not isinstance(fact, dict) or not isinstance(fact.get("name"), str):
        raise problem
    is_number, by_user = fact.get("numbers"), fact.get("by_user")
    codes = bundle.arrays.get(f"context{number}")
    if not isinstance(is_number, bool) or not isinstance(by_user, bool) or codes is None:
        raise problem
    values = table.filter(pl.col("column") == number)["number" if is_number else "text"]
    if values.dtype != (pl.Float64 if is_number else pl.String) or values.null_count():
        raise problem
    if codes.shape != (n_rows,) or codes.dtype != np.int32 or values.is_duplicated().any():
        raise problem
    if n_rows and not -1 <= int(codes.min()) <= int(codes.max()) < len(values):
        raise problem
    if is_number and not values.is_finite().all():
        raise problem
    return ContextColumn(fact["name"], codes, values.alias(fact["name"]), by_user)
