"""Columns and literals of a condition on the item table: their types, and tests on them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import polars as pl

from talerec.data import time_to_microseconds
from talerec.errors import TalerecError

COMPARISONS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

_NEVER = pl.lit(None, dtype=pl.Boolean)  # the outcome for a column without any value
_SEPARATORS = ",;/|"  # between the values of a text cell


class ValueKind(Enum):
    """The kinds of values that a condition can compare, with their text in messages."""

    TEXT = "text"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    TIME = "a date"
    LIST = "a list of values"
    EMPTY = "without any value"
    OTHER = "of a type that conditions cannot compare"


#: A type of the prepared table, as a class of Polars: classes are compared faster than instances.
PreparedType = type[pl.DataType]
_TYPES: dict[ValueKind, PreparedType] = {
    ValueKind.TEXT: pl.String, ValueKind.BOOLEAN: pl.Boolean, ValueKind.TIME: pl.Int64,
}  # fmt: skip


class Operand(NamedTuple):
    """A column or a literal in a condition."""

    at: int  # index of its first character in the condition
    label: str  # as messages write it: "column price", "'tents'"
    kind: ValueKind  # what it can be compared with
    value: Any  # a literal's str, bool, int or float (a time is microseconds since 1970);
    # the name of a column
    dtype: PreparedType | None = None  # of a column; for lists, of their values
    element: ValueKind | None = None  # the kind of the values in a column of lists

    def build_expr(self, dtype: PreparedType) -> pl.Expr:
        """Return the operand as an expression of the type `dtype` over the prepared table."""
        if self.dtype is not None:
            column = pl.col(self.value)
            return column if self.dtype is dtype else column.cast(dtype)
        if dtype is pl.Float64:
            return pl.lit(float(self.value))
        literal = pl.lit(self.value)
        return literal.cast(dtype) if dtype in (pl.UInt64, pl.Float32) else literal


def invalid_condition(at: int, problem: str) -> TalerecError:
    """Return the error for a condition; at: the index of the character where `problem` is."""
    return TalerecError(f"`where` is not valid at character {at + 1}: {problem}", "where")


def shorten(text: str) -> str:
    """Return a text for a message: in one line, at most 40 characters and an ellipsis."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= 40 else f"{line[:40]}..."


# -- columns and literals --------------------------------------------------------------------------


def prepare_column(at: int, name: str, dtype: pl.DataType) -> tuple[Operand, pl.Expr | None]:
    """Return a column of the item table as an operand, and its conversion if it needs one.

    The prepared table is the item table in few types (`_prepare`); None if the column stays as it
    is. at: the column's index in the condition; dtype: its type in the item table.
    """
    kind, prepared, column = _prepare(pl.col(name), dtype)
    element = None
    if isinstance(dtype, pl.List | pl.Array):
        inner: Any = dtype.inner
        element, prepared, value = _prepare(pl.element(), inner)
        if element not in (ValueKind.EMPTY, ValueKind.OTHER):
            kind = ValueKind.LIST
            if isinstance(dtype, pl.Array):
                column = pl.col(name).arr.to_list()
            if value is not None:
                column = (pl.col(name) if column is None else column).list.eval(value)
    return Operand(at, f"column {shorten(name)}", kind, name, prepared, element), column


def _prepare(column: pl.Expr, dtype: pl.DataType) -> tuple[ValueKind, PreparedType, pl.Expr | None]:
    """Return a column's kind, its type in the prepared table, and its conversion.

    Text is String, of categories too; whole numbers are Int64 or UInt64, other numbers Float32 or
    Float64 with null for NaN; times are microseconds since 1970, Int64. Other columns stay as they
    are, with the type Null. No conversion is None. column: the column, of the type `dtype`.
    """
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return ValueKind.TEXT, pl.String, None if dtype == pl.String else column.cast(pl.String)
    if dtype == pl.Boolean:
        return ValueKind.BOOLEAN, pl.Boolean, None
    if dtype in (pl.Date, pl.Datetime):
        return ValueKind.TIME, pl.Int64, column.dt.epoch("us")
    if dtype in (pl.Int64, pl.UInt64):
        return ValueKind.NUMBER, dtype.base_type(), None
    if dtype in (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32):
        return ValueKind.NUMBER, pl.Int64, column.cast(pl.Int64)
    if dtype in (pl.Float32, pl.Float64):
        return ValueKind.NUMBER, dtype.base_type(), column.fill_nan(None)
    if dtype.is_numeric():
        return ValueKind.NUMBER, pl.Float64, column.cast(pl.Float64).fill_nan(None)
    return ValueKind.EMPTY if dtype == pl.Null else ValueKind.OTHER, pl.Null, None


def parse_literal(at: int, text: str) -> Operand:
    """Return a literal: 'text' with its quotes ('' is a quote in it), a number, true or false.

    at: its index in the condition. TalerecError for a number that no float holds.
    """
    label = shorten(text)
    if text.startswith("'"):
        return Operand(at, label, ValueKind.TEXT, text[1:-1].replace("''", "'"))
    if text.lower() in ("true", "false"):
        return Operand(at, label, ValueKind.BOOLEAN, text.lower() == "true")
    try:
        is_whole = text.lstrip("+-").isdigit()
        number = int(text) if is_whole else float(text)
        if abs(float(number)) == float("inf"):
            raise OverflowError
    except (OverflowError, ValueError):
        raise invalid_condition(at, f"the number {label} is too large") from None
    return Operand(at, label, ValueKind.NUMBER, number)


def read_as_time(literal: Operand) -> Operand:
    """Return a text literal, such as '2024-01-31' or '2024-01-31 12:00', as a time.

    A date is its first moment; a text without a time zone is in UTC. TalerecError for other text.
    """
    try:
        microseconds = time_to_microseconds(datetime.fromisoformat(literal.value))
    except (ValueError, OverflowError):
        advice = "write a date as '2024-01-31' or '2024-01-31 12:00'"
        raise invalid_condition(literal.at, f"{literal.label} is not a date; {advice}") from None
    return literal._replace(kind=ValueKind.TIME, value=microseconds)


# -- tests -----------------------------------------------------------------------------------------


def build_comparison(symbol: str, left: Operand, right: Operand) -> pl.Expr:
    """Return the test `left symbol right` over the prepared table; null if a value is missing.

    symbol: a key of COMPARISONS. TalerecError if the operands are of different kinds.
    """
    if ValueKind.EMPTY in (left.kind, right.kind):
        return _NEVER
    (left, right), dtype = _align([left, right])
    return COMPARISONS[symbol](left.build_expr(dtype), right.build_expr(dtype))


def build_membership(operand: Operand, literals: list[Operand]) -> pl.Expr:
    """Return the test whether the operand equals one of the literals, as a Polars expression.

    The test is null in rows in which the operand, a column, has no value. A column without any
    value (kind EMPTY) equals nothing: the test is false everywhere. TalerecError if a literal is of
    another kind than the operand.
    """
    if operand.kind == ValueKind.EMPTY:
        return _NEVER
    (operand, *literals), dtype = _align([operand, *literals])
    values = pl.Series([literal.value for literal in literals], dtype=dtype, strict=False)
    return operand.build_expr(dtype).is_in(pl.lit(values).implode())


def _align(operands: list[Operand]) -> tuple[list[Operand], PreparedType]:
    """Return operands of one kind, and the type to compare them in.

    Text literals become times if another operand is a time. TalerecError for operands of different
    kinds, and for kinds that have no order, such as lists.
    """
    if any(operand.kind == ValueKind.TIME for operand in operands):
        operands = [
            read_as_time(operand)
            if operand.kind == ValueKind.TEXT and operand.dtype is None
            else operand
            for operand in operands
        ]
    first = operands[0]
    for operand in operands:
        if operand.kind in (ValueKind.LIST, ValueKind.OTHER):
            advice = "use HAS" if operand.kind == ValueKind.LIST else "only IS NULL takes it"
            problem = f"{operand.label} is {operand.kind.value}; {advice}"
            raise invalid_condition(operand.at, problem)
        if operand.kind != first.kind:
            kinds = f"{first.label} is {first.kind.value}, but {operand.label} is"
            advice = "text is in single quotes, numbers are not"
            raise invalid_condition(operand.at, f"{kinds} {operand.kind.value} ({advice})")
    return operands, _common_type(operands)


def _common_type(operands: list[Operand]) -> PreparedType:
    """Return the type in which operands of one kind are compared.

    Numbers are compared exactly as whole numbers where possible, else as floats; with Float32
    columns alone in their precision, so that `rating = 4.7` holds for the cell 4.7.
    """
    kind = operands[0].kind
    if kind != ValueKind.NUMBER:
        return _TYPES[kind]
    types = {operand.dtype for operand in operands if operand.dtype is not None}
    literals = [operand.value for operand in operands if operand.dtype is None]
    if types == {pl.Float32}:
        return pl.Float32
    are_whole = not any(isinstance(value, float) for value in literals)
    if are_whole and types <= {pl.Int64} and all(-(2**63) <= value < 2**63 for value in literals):
        return pl.Int64
    if are_whole and types == {pl.UInt64} and all(0 <= value < 2**64 for value in literals):
        return pl.UInt64
    return pl.Float64


def build_like(operand: Operand, pattern: Operand) -> pl.Expr:
    """Return the test whether a text matches a pattern: % is any text, _ is any character.

    Upper and lower case differ. TalerecError if the operand or the pattern is not text, or if the
    pattern is a column.
    """
    if operand.kind == ValueKind.EMPTY:
        return _NEVER
    for text in (operand, pattern):
        if text.kind != ValueKind.TEXT:
            raise invalid_condition(text.at, f"{text.label} is {text.kind.value}; LIKE takes text")
    pieces = [
        ".".join(map(pl.escape_regex, piece.split("_"))) for piece in pattern.value.split("%")
    ]
    # a leading or trailing % needs no `.*`: a search for plain text is faster than an automaton
    start, end = "^" if pieces[0] else "", "$" if pieces[-1] else ""
    if len(pieces) == 1:
        start, end = "^", "$"
    regex = f"(?s){start}{'.*'.join(piece for piece in pieces if piece)}{end}"
    return operand.build_expr(pl.String).str.contains(regex)


def build_has(operand: Operand, literal: Operand) -> pl.Expr:
    """Return the Boolean expression: a cell with several values contains a literal.

    operand: a column; its cells are lists, or texts whose parts are separated by , ; / or | (spaces
    around a part do not count). The result is null for a missing cell, and false for a column
    without any value. TalerecError for operands of other kinds.
    """
    if operand.kind == ValueKind.EMPTY:
        return _NEVER
    if operand.kind == ValueKind.LIST:
        assert operand.element is not None
        element = operand._replace(label=f"a value of {operand.label}", kind=operand.element)
        (_, literal), dtype = _align([element, literal])
        lists = pl.col(operand.value)
        lists = lists if operand.dtype is dtype else lists.cast(pl.List(dtype))
        return lists.list.contains(literal.build_expr(dtype))
    if operand.kind != ValueKind.TEXT or operand.dtype is None:
        problem = f"{operand.label} is {operand.kind.value}; HAS takes a column of text or lists"
        raise invalid_condition(operand.at, problem)
    part = literal.value.strip(" ") if literal.kind == ValueKind.TEXT else ""
    if not part or any(separator in part for separator in _SEPARATORS):
        advice = "is not one part of a text; HAS takes a text without , ; / |"
        raise invalid_condition(literal.at, f"{literal.label} {advice}")
    regex = f"(?:^|[{_SEPARATORS}]) *{pl.escape_regex(part)} *(?:[{_SEPARATORS}]|$)"
    return operand.build_expr(pl.String).str.contains(regex)


def build_truth(operand: Operand) -> pl.Expr:
    """Return an operand by itself as a test: a column of true and false, or such a literal.

    TalerecError for an operand of another kind.
    """
    if operand.kind == ValueKind.EMPTY:
        return _NEVER
    if operand.kind != ValueKind.BOOLEAN:
        by_itself = f"{operand.label} is {operand.kind.value}, and is not a true/false condition"
        raise invalid_condition(operand.at, f"{by_itself} by itself; compare it with a value")
    return operand.build_expr(pl.Boolean)


def build_null_test(operand: Operand) -> pl.Expr:
    """Return the test whether an operand has no value (null or NaN); it is never null itself."""
    if operand.dtype is None:
        return pl.lit(False)
    return pl.col(operand.value).is_null()
