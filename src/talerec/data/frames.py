"""Frames of any library as columns of Polars, and the checks on the columns that a log needs."""

from __future__ import annotations

from typing import Any, cast

import polars as pl

from talerec.errors import InvalidLogError, TalerecError


def as_polars(frame: Any, needed: list[str], more: tuple[str | None, ...] = ()) -> pl.DataFrame:
    """The columns `needed`, and `more` that are named, of a frame (Polars, lazy or not, pandas, Arrow) as a Polars frame."""
    refuse_twice(needed)
    needed = list(dict.fromkeys([*needed, *(name for name in more if name is not None)]))
    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        frame = _from_pandas(frame, needed)
    elif not isinstance(frame, pl.DataFrame | pl.LazyFrame):
        frame = _from_arrow(frame)
    refuse_missing(frame.lazy().collect_schema().names(), needed)
    selected: pl.DataFrame = frame.lazy().select(needed).collect(engine="streaming")
    return selected


def _from_pandas(frame: Any, needed: list[str]) -> pl.DataFrame:
    """The needed columns alone: Polars may not be able to hold the others."""
    refuse_missing([str(name) for name in frame.columns], needed)
    return pl.DataFrame([_pandas_column(frame[name], name) for name in needed])


def _pandas_column(column: Any, name: str) -> pl.Series:
    try:
        series = cast(pl.Series, pl.from_pandas(column)).alias(name)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidLogError(f"column {name!r} is not of one kind: {reason}") from None
    return series


def _from_arrow(frame: Any) -> pl.DataFrame:
    kind = type(frame).__name__
    if not hasattr(frame, "__arrow_c_stream__") or "Series" in kind:
        raise InvalidLogError(f"a log comes from a Polars, pandas or Arrow frame, not from {kind}")
    try:
        return pl.DataFrame(frame)
    except (ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise InvalidLogError(
            f"{kind} is not a frame of columns: {str(error).splitlines()[0]}"
        ) from None


def refuse_twice(needed: list[str]) -> None:
    """An error where one column is to be two of user, item and time."""
    if twice := [name for name in needed if needed.count(name) > 1]:
        raise TalerecError(f"user, item and time are three columns, but two are {twice[0]!r}")


def refuse_missing(present: list[str], needed: list[str]) -> None:
    """An error unless every needed column is present exactly once."""
    for name in needed:
        if present.count(name) > 1:
            raise InvalidLogError(f"there are {present.count(name)} columns {name!r}")
        if name not in present:
            shown = ", ".join(_printable(column) for column in present[:20])
            more = f" and {len(present) - 20} more" if len(present) > 20 else ""
            raise InvalidLogError(f"there is no column {name!r}; the columns are {shown}{more}")


def _printable(name: str) -> str:
    """A name for a message: one line, and 40 characters at most."""
    plain = name if name.isprintable() else repr(name)[1:-1]
    return plain if len(plain) <= 40 else f"{plain[:40]}..."


def refuse_kind(column: pl.Series) -> None:
    """An error unless a column can hold ids."""
    if not (column.dtype.is_integer() or column.dtype in (pl.String, pl.Null)):
        raise InvalidLogError(
            f"column {column.name!r} holds {column.dtype} values; ids are text or whole numbers{_way_out(column)}"
        )


def _way_out(column: pl.Series) -> str:
    if isinstance(column.dtype, pl.List | pl.Array):
        return ": write a row for each of them"
    if column.dtype.is_float() and (column == column.round()).all():  # of numbers with gaps
        return ": make them whole, as pandas' astype('Int64') does"
    return ""


def checked_ids(column: pl.Series) -> pl.Series:
    """A column of ids as text or int64 (text where int64 is too narrow); an error where one is empty."""
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    missing = column.is_null()
    if column.dtype == pl.String:
        missing = missing | (column.str.strip_chars() == "").fill_null(True)
    elif column.dtype.is_float():
        missing = missing | column.is_nan().fill_null(True)
    if missing.any():
        raise InvalidLogError(f"row {missing.arg_true()[0] + 1}: {column.name} is empty")
    refuse_kind(column)
    if column.dtype in (pl.String, pl.Int64):
        return column
    whole = column.cast(pl.Int64, strict=False)
    return column.cast(pl.String) if whole.null_count() else whole
