"""Conditions on rows of an item table, evaluated slowly in plain Python, and written as text.

A condition is a tuple: ("and", [...]), ("or", [...]), ("not", condition), or a test:
("=", left, right) and so on, ("in", value, [literals]), ("like", value, pattern),
("between", value, low, high), ("has", column, literal), ("null", value), ("true", value).
A value is ("column", name) or ("literal", value). A row is a dict by column.
"""

from __future__ import annotations

import math
import operator
import random
from datetime import date, datetime, time
from typing import Any

COMPARE = {
    "=": operator.eq, "!=": operator.ne, "<>": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
RESERVED = {"and", "or", "not", "in", "like", "between", "is", "null", "true", "false"}
WORDS = {"in", "like", "between", "has", "null"}  # tests that have a form with `not` in them


def value_of(value: Any, row: dict[str, Any]) -> Any:
    """Return a cell or a literal; NaN is None, and a date is its first moment."""
    kind, content = value
    content = row[content] if kind == "column" else content
    if isinstance(content, float) and math.isnan(content):
        return None
    if isinstance(content, date) and not isinstance(content, datetime):
        return datetime.combine(content, time())
    return content


def as_floats(values: list[Any]) -> list[Any]:
    """Return numbers as floats if one of them is a float or beyond 64 bits, else unchanged."""
    is_float = any(
        isinstance(v, float) or (isinstance(v, int) and not -(2**63) <= v < 2**63) for v in values
    )
    return [float(value) for value in values] if is_float else values


def is_like(text: str, pattern: str) -> bool:
    """Try every length of the text for each %."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(is_like(text[n:], pattern[1:]) for n in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:])


def parts_of(cell: Any) -> list[Any]:
    if isinstance(cell, list):
        return cell
    for separator in ";/|":
        cell = cell.replace(separator, ",")
    return [part.strip(" ") for part in cell.split(",")]


def meets(condition: Any, row: dict[str, Any]) -> bool | None:
    """Return True, False or None (unknown) for one row."""
    kind, *operands = condition
    if kind == "not":
        outcome = meets(operands[0], row)
        return None if outcome is None else not outcome
    if kind in ("and", "or"):
        outcomes = [meets(part, row) for part in operands[0]]
        decides = kind == "or"  # the outcome of one part that decides
        return decides if decides in outcomes else None if None in outcomes else not decides
    if kind == "between":
        value, low, high = operands
        return meets(("and", [(">=", value, low), ("<=", value, high)]), row)
    if kind == "in":
        literals = [literal for _, literal in operands[1]]
        options = [("literal", literal) for literal in as_floats(literals)]
        return meets(("or", [("=", operands[0], option) for option in options]), row)
    values = [value_of(operand, row) for operand in operands]
    if kind == "null":
        return values[0] is None
    if None in values:
        return None
    if kind == "true":
        return values[0]
    if kind == "like":
        return is_like(*values)
    if kind == "has":
        cell, literal = values
        return (literal.strip(" ") if isinstance(cell, str) else literal) in parts_of(cell)
    return COMPARE[kind](*as_floats(values))


# -- as text ---------------------------------------------------------------------------------------


class Writer:
    """Writes conditions as text, with spaces, cases of letters and brackets at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self, text: str) -> str:
        return self.random.choice([text, text.upper(), text.capitalize()])

    def space(self) -> str:
        return self.random.choice([" ", " ", "  ", "\n", "\t "])

    def value(self, value: Any) -> str:
        kind, content = value
        if kind == "column":
            is_plain = content.isidentifier() and content not in RESERVED
            is_plain = is_plain and self.random.random() < 0.7
            return content if is_plain else '"' + content.replace('"', '""') + '"'
        if isinstance(content, bool):
            return self.word(str(content).lower())
        if isinstance(content, date):
            return f"{self.word(self.random.choice(['date', 'timestamp']))} '{content}'"
        return "'" + content.replace("'", "''") + "'" if isinstance(content, str) else repr(content)

    def write(self, condition: Any, level: int = 0) -> str:
        """Return the text; level: how tightly the words around it bind (0 or, 1 and, 2 not)."""
        kind, *operands = condition
        binding = {"or": 0, "and": 1, "not": 2}.get(kind, 3)
        if kind in ("or", "and"):
            joint = f"{self.space()}{self.word(kind)}{self.space()}"
            text = joint.join(self.write(part, binding + 1) for part in operands[0])
        elif kind == "not" and operands[0][0] in WORDS and self.random.random() < 0.5:
            binding, text = 3, self.test(*operands[0], word="not")
        elif kind == "not":
            text = self.word("not") + self.space() + self.write(operands[0], 2)
        else:
            text = self.test(kind, *operands)
        needs_brackets = binding < level or self.random.random() < 0.1
        return f"({text})" if needs_brackets else text

    def test(self, kind: str, first: Any, *others: Any, word: str = "") -> str:
        """Return a test as text; word: "not" for its negation, as in `not in`."""
        left, gap = self.value(first), self.space()
        word = f"{self.word(word)} " if word else ""
        if kind == "true":
            return left
        if kind == "null":
            return f"{left} {self.word('is')}{gap}{word}{self.word('null')}"
        if kind == "in":
            literals = ", ".join(map(self.value, others[0]))
            return f"{left} {word}{self.word('in')}{gap}({literals})"
        if kind == "between":
            low, high = map(self.value, others)
            return f"{left} {word}{self.word(kind)}{gap}{low} {self.word('and')} {high}"
        right = self.value(others[0])
        if kind in WORDS:
            return f"{left} {word}{self.word(kind)}{gap}{right}"
        return (
            f"{left}{kind}{right}" if self.random.random() < 0.5 else f"{left} {kind}{gap}{right}"
        )
