"""Conditions on the item table (`where`): a small grammar, evaluated in bounded time.

    condition   all-of [or all-of]...
    all-of      part [and part]...
    part        not part | ( condition ) | test
    test        value (= != <> < <= > >=) value
                value [not] in ( literal, ... )
                value [not] like 'pattern'
                value [not] between value and value
                column [not] has literal
                value is [not] null
                column of true and false | true | false
    value       column | "column" | literal
    literal     'text' | number | true | false | date '2024-01-31' | timestamp '2024-01-31 12:00'

Keywords may be in upper or lower case; names of columns are exact. A test of a missing value is
null, `and`, `or` and `not` have three values as in SQL, and an item whose condition is null does
not meet it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.models.core.condition_values import (
    COMPARISONS,
    Operand,
    ValueKind,
    build_comparison,
    build_has,
    build_like,
    build_membership,
    build_null_test,
    build_truth,
    invalid_condition,
    parse_literal,
    prepare_column,
    read_as_time,
    shorten,
)
from talerec.runtime import Array

MAX_CONDITION = 2000  # characters
_MAX_TESTS = 64
_MAX_DEPTH = 32  # brackets and `not` inside each other
_MAX_SEARCHES = 16  # uses of `like` and `has` in a condition
_MAX_ANY_TEXTS = 32  # % in all patterns of a condition
_MAX_ANY_CHARACTERS = 8  # _ in them: an automaton may have 2^n states for n of them after a %
_MAX_NAMED = 20  # columns that a message names

_RESERVED = {"and", "or", "not", "in", "like", "between", "is", "null"}
_TIME_WORDS = ("date", "timestamp")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<symbol><>|!=|<=|>=|\S)
    |(?P<end>\Z)
    )""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A word, number, text, quoted name or symbol of a condition; the last one is its end."""

    kind: str  # the name of a group of _TOKEN
    text: str  # as it is written
    at: int  # index of its first character in the condition
    keyword: str  # a word in lower case, or a symbol; "" for other kinds

    def describe(self) -> str:
        """Return the token for a message, as what is there instead of what is expected."""
        return "the condition ends" if self.kind == "end" else f"there is {shorten(self.text)}"


def split_tokens(condition: str) -> list[Token]:
    """Return the tokens of a condition in order; TalerecError for a quote without its end."""
    tokens = []
    for match in _TOKEN.finditer(condition):
        kind = str(match.lastgroup)
        text, at = match[kind], match.start(kind)
        if text in ("'", '"'):
            raise invalid_condition(at, f"the quote {text} has no end")
        tokens.append(Token(kind, text, at, text.lower() if kind in ("word", "symbol") else ""))
        if kind == "end":
            break
    return tokens


#: The index of a test, or "and", "or" or "not" with the nodes that it combines.
Node = int | tuple[str, "list[Node]"]


@dataclass(frozen=True, eq=False)
class ParsedCondition:
    """A condition as expressions over one item table.

    columns  the columns that the tests use and that have to be converted (`prepare_column`)
    tests    a Boolean expression per test, in order of the text, over the table with `columns`
    root     how `and`, `or` and `not` combine the tests
    """

    columns: list[pl.Expr]
    tests: list[pl.Expr]
    root: Node

    def evaluate(self, info: pl.DataFrame) -> pl.Series:
        """Return the outcome (true, false or null) for each row of the item table.

        The tests are evaluated side by side and combined afterwards: a nested expression would take
        Polars time that grows with the cube of its depth. The outcome of a condition without
        columns has one row.
        """
        table = info.with_columns(self.columns) if self.columns else info
        named = [test.alias(str(number)) for number, test in enumerate(self.tests)]
        return _combine(self.root, table.select(named).get_columns())


def _combine(node: Node, outcomes: list[pl.Series]) -> pl.Series:
    """Return the outcome of a node; outcomes: those of the tests (true, false, null per row)."""
    if isinstance(node, int):
        return outcomes[node]
    word, parts = node
    combined = [_combine(part, outcomes) for part in parts]
    return ~combined[0] if word == "not" else reduce(and_ if word == "and" else or_, combined)


class ConditionParser:
    """Reads one condition on an item table with the columns `schema`, from left to right."""

    def __init__(self, condition: str, schema: pl.Schema) -> None:
        self._text, self._tokens = condition, split_tokens(condition)
        self._schema = schema
        self._next = 0  # index of the next token
        self._depth = 0
        self._columns: dict[str, tuple[Operand, pl.Expr | None]] = {}
        self._tests: list[pl.Expr] = []
        self._n_searches = 0
        self._patterns = ""  # all patterns of `like`, one after another

    def parse(self) -> ParsedCondition:
        """Return the whole condition; TalerecError, with the place, if it is not valid.

        Not valid is what is not in the grammar, an unknown column, a test of values of different
        types, and a condition that is too deep or has too many tests.
        """
        root = self._parse_any()
        if self._peek().kind != "end":
            raise self._expected("AND, OR or the end")
        converted = [column for _, column in self._columns.values() if column is not None]
        return ParsedCondition(converted, self._tests, root)

    # -- tokens --

    def _peek(self) -> Token:
        """Return the next token without moving on."""
        return self._tokens[self._next]

    def _accept(self, *keywords: str) -> Token | None:
        """Return the next token and move on, if it is one of the keywords or symbols; else None."""
        token = self._tokens[self._next]
        if token.keyword not in keywords or not token.keyword:
            return None
        self._next += 1
        return token

    def _require(self, keyword: str) -> None:
        """Move on over a keyword or symbol; TalerecError if the next token is another."""
        if not self._accept(keyword):
            raise self._expected(keyword.upper())

    def _expected(self, what: str) -> TalerecError:
        """Return the error that the next token is not what the grammar has there."""
        token = self._peek()
        return invalid_condition(token.at, f"expected {what}, but {token.describe()}")

    # -- and, or, not --

    def _parse_any(self) -> Node:
        """Read parts joined by `or`, and return their node."""
        parts = [self._parse_all()]
        while self._accept("or"):
            parts.append(self._parse_all())
        return parts[0] if len(parts) == 1 else ("or", parts)

    def _parse_all(self) -> Node:
        """Read parts joined by `and`, and return their node."""
        parts = [self._parse_part()]
        while self._accept("and"):
            parts.append(self._parse_part())
        return parts[0] if len(parts) == 1 else ("and", parts)

    def _parse_part(self) -> Node:
        """Read a part with `not`, a condition in brackets or a test, and return its node."""
        opening = self._accept("not", "(")
        if opening is None:
            return self._parse_test()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            limit = f"more than {_MAX_DEPTH} brackets and NOT are inside each other"
            raise invalid_condition(opening.at, limit)
        node: Node
        if opening.keyword == "not":
            node = ("not", [self._parse_part()])
        else:
            node = self._parse_any()
            self._require(")")
        self._depth -= 1
        return node

    # -- tests --

    def _parse_test(self) -> Node:
        """Read a test, add its expression to the tests, and return its index."""
        if len(self._tests) == _MAX_TESTS:
            raise invalid_condition(self._peek().at, f"it has more than {_MAX_TESTS} tests")
        self._tests.append(self._build_test(self._parse_value()))
        return len(self._tests) - 1

    def _build_test(self, operand: Operand) -> pl.Expr:
        """Read what follows the first operand of a test, and return the expression of the test."""
        if symbol := self._accept(*COMPARISONS):
            if symbol.keyword == "=" and self._peek().keyword == "=":
                raise invalid_condition(symbol.at, "equality is written with one =")
            return build_comparison(symbol.keyword, operand, self._parse_value())
        if self._accept("is"):
            is_negated = self._accept("not") is not None
            self._require("null")
            test = build_null_test(operand)
        else:
            is_negated = self._accept("not") is not None
            test = self._build_word_test(operand, is_negated)
        return ~test if is_negated else test

    def _build_word_test(self, operand: Operand, is_negated: bool) -> pl.Expr:
        """Read `in`, `like`, `between` or `has` and what follows; return the test without `not`.

        Without such a word, the operand itself is the test, unless a `not` follows it.
        """
        if self._accept("in"):
            return build_membership(operand, self._parse_list())
        if self._accept("between"):
            low = build_comparison(">=", operand, self._parse_value())
            self._require("and")
            return low & build_comparison("<=", operand, self._parse_value())
        if self._accept("like"):
            pattern = self._parse_literal()
            self._count_search(pattern, str(pattern.value))
            return build_like(operand, pattern)
        if self._accept("has"):
            element = self._parse_literal()
            self._count_search(element)
            return build_has(operand, element)
        if is_negated:
            raise self._expected("IN, LIKE, BETWEEN or HAS")
        if operand.kind != ValueKind.BOOLEAN and not self._is_end_of_test():
            raise self._expected(f"a comparison of {operand.label}, such as = or IN")
        return build_truth(operand)

    def _is_end_of_test(self) -> bool:
        """Return whether the next token ends a test: the end, `and`, `or` or a bracket."""
        token = self._tokens[self._next]
        return token.kind == "end" or token.keyword in ("and", "or", ")")

    def _count_search(self, literal: Operand, pattern: str = "") -> None:
        """Count a use of `like` or `has`; TalerecError if the condition has too many.

        literal: what is searched for, for the place of the error; pattern: that of `like`.
        """
        self._n_searches += 1
        self._patterns += pattern
        for count, limit, what in (
            (self._n_searches, _MAX_SEARCHES, "uses of LIKE and HAS"),
            (self._patterns.count("%"), _MAX_ANY_TEXTS, "% in its patterns"),
            (self._patterns.count("_"), _MAX_ANY_CHARACTERS, "_ in its patterns"),
        ):
            if count > limit:
                raise invalid_condition(literal.at, f"it has more than {limit} {what}")

    # -- values --

    def _parse_value(self) -> Operand:
        """Read a column or a literal."""
        literal = self._accept_literal()
        if literal is not None:
            return literal
        token = self._tokens[self._next]
        if token.kind not in ("word", "quoted") or token.keyword in _RESERVED:
            advice = " (IS NULL tests for it)" if token.keyword == "null" else ""
            raise self._expected(f"a column or a value{advice}")
        self._next += 1
        if token.kind == "word" and self._tokens[self._next].keyword == "(":
            raise invalid_condition(token.at, f"{shorten(token.text)}(...): there are no functions")
        return self._find_column(token)

    def _parse_list(self) -> list[Operand]:
        """Read literals in brackets, separated by commas."""
        self._require("(")
        literals = [self._parse_literal()]
        while self._accept(","):
            literals.append(self._parse_literal())
        self._require(")")
        return literals

    def _parse_literal(self) -> Operand:
        """Read a text, a number, true, false or a time."""
        literal = self._accept_literal()
        if literal is None:
            raise self._expected("a 'text', a number, true, false or a date")
        return literal

    def _accept_literal(self) -> Operand | None:
        """Return the next literal and move on; None if a name or something else is next."""
        token = self._tokens[self._next]
        if token.kind in ("text", "number") or token.keyword in ("true", "false"):
            if date := _DATE.match(self._text, token.at):
                raise invalid_condition(token.at, f"write a date in quotes: '{date[0]}'")
            self._next += 1
            return parse_literal(token.at, token.text)
        if token.keyword in _TIME_WORDS and self._tokens[self._next + 1].kind == "text":
            self._next += 2
            return read_as_time(parse_literal(token.at, self._tokens[self._next - 1].text))
        return None

    def _find_column(self, token: Token) -> Operand:
        """Return the column that a word or a quoted name names; TalerecError if there is none."""
        is_quoted = token.kind == "quoted"
        name = token.text[1:-1].replace('""', '"') if is_quoted else token.text
        if name not in self._schema:
            named = ", ".join(map(shorten, list(self._schema)[:_MAX_NAMED]))
            more = len(self._schema) - _MAX_NAMED
            columns = f"{named} and {more} more" if more > 0 else named
            advice = " (text is in single quotes)" if is_quoted else ""
            missing = f"the item table has no column {shorten(name)}; it has {columns}{advice}"
            raise invalid_condition(token.at, missing)
        if name not in self._columns:
            self._columns[name] = prepare_column(token.at, name, self._schema[name])
        return self._columns[name][0]._replace(at=token.at)


def match_rows(info: pl.DataFrame, condition: str) -> Array:
    """Return a flag (uint8) per row of an item table: whether it meets a condition.

    condition: a text such as "category = 'tents' and price < 100"; the module describes its
    grammar. A row whose outcome is null does not meet it. TalerecError for anything else, with the
    place in the text.
    """
    if isinstance(condition, pl.Expr):
        message = '`where` is a Polars expression; write it as text, such as "price < 100"'
        raise TalerecError(message, "where")
    is_text = isinstance(condition, str) and condition.strip() != ""
    if not is_text or len(condition) > MAX_CONDITION or not _is_unicode(condition):
        limit = f"of at most {MAX_CONDITION:,} characters"
        raise TalerecError(f"`where` is a condition such as price < 100, {limit}", "where")
    outcome = ConditionParser(condition, info.schema).parse().evaluate(info)
    flags: Array = outcome.eq_missing(True).cast(pl.UInt8).to_numpy(writable=True)
    return flags if len(flags) == len(info) else np.full(len(info), flags[0], np.uint8)


def _is_unicode(text: str) -> bool:
    """Return whether a text can be encoded; half a surrogate pair, as JSON can hold, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
