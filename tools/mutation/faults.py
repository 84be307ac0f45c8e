"""Which faults a package can have: small changes of comparisons, operators, conditions, numbers."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shape.sources import Source, read_sources
from shape.tree import FunctionNode

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A change of a few characters in one line of the package."""

    path: str  # from the package's folder: gram/pairs.py
    line: int  # from 1, as is `end_line`
    column: int  # of the first replaced character, in bytes of UTF-8, as `ast` counts
    end_line: int
    end_column: int
    before: str  # the replaced text
    after: str

    @property
    def name(self) -> str:
        """The fault as one line of a report."""
        return f"{self.path}:{self.line}: {self.change}"

    @property
    def change(self) -> str:
        """The replaced text and its replacement, in one line."""
        return f"{_one_line(self.before)} -> {_one_line(self.after)}"

    def plant(self, text: str) -> str:
        """Return the text of the file with the fault."""
        lines = text.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.after.encode() + tail).decode()


def _one_line(text: str) -> str:
    return " ".join(text.split())


# -- which faults there are ------------------------------------------------------------------------


def find_faults(source: Source) -> Iterator[Fault]:
    """Yield every fault of a file: expressions inside functions, annotations left out."""
    for node in source.tree.body:
        for function in ast.walk(node):
            if isinstance(function, FunctionNode):
                for statement in function.body:
                    yield from _faults_within(source, statement)


def _faults_within(source: Source, node: ast.AST) -> Iterator[Fault]:
    """Yield the faults of a statement or expression; inner functions are left to their own turn."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return
    changed = _change(node, source)
    if isinstance(node, ast.expr) and changed is not None:
        before = _segment(source, node)
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        yield Fault(
            source.path, node.lineno, node.col_offset, end_line, end_column, before, changed
        )
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _faults_within(source, child)


def _segment(source: Source, node: ast.expr) -> str:
    """Return the text of an expression, as the much slower `ast.get_source_segment` does."""
    last = node.end_lineno or node.lineno
    lines = source.encoded_lines[node.lineno - 1 : last]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"".join(lines).decode()


def _change(node: ast.AST, file: Source) -> str | None:
    """Return the text of an expression with its fault, or None if it has none."""

    def source(part: ast.expr) -> str:
        return f"({_segment(file, part)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sign = COMPARISONS[type(node.ops[0])]
        return f"{source(node.left)} {sign} {source(node.comparators[0])}"
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _joins_text(node):
        return f"{source(node.left)} {OPERATORS[type(node.op)]} {source(node.right)}"
    if isinstance(node, ast.BoolOp):
        sign = " or " if isinstance(node.op, ast.And) else " and "
        return sign.join(map(source, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return source(node.operand)
    if isinstance(node, ast.IfExp):
        return f"{source(node.orelse)} if {source(node.test)} else {source(node.body)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return f"({node.value!r} + 1)"
    return None


def _joins_text(node: ast.BinOp) -> bool:
    """Return whether an operator joins or formats strings, where a swap is only a TypeError."""
    texts = (ast.JoinedStr, ast.List)
    return any(
        isinstance(part, texts) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )


def draw_faults(folder: Path, seed: int, n_drawn: int) -> list[Fault]:
    """Return `n_drawn` random faults of a package; the same tree and seed draw the same ones."""
    faults = [fault for source in read_sources(folder) for fault in find_faults(source)]
    return random.Random(seed).sample(faults, min(n_drawn, len(faults)))
