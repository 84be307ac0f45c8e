"""The source files of a package, parsed, with the owner of every node."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from shape.tree import FunctionNode

_SILENT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


OwnedNode = tuple[ast.AST, tuple[str, ...]]  # a node, the names of its classes and functions
PlacedNode = ast.stmt | ast.expr | ast.arg | ast.excepthandler  # a node with a line


class Place(NamedTuple):
    """A spot in a source file, and what stands there."""

    path: str  # from the package's folder: models/base.py
    line: int
    text: str


@dataclass(frozen=True)
class Source:
    """One source file of a package."""

    path: str  # from the package's folder: models/base.py
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[OwnedNode]:
        """Every node of the tree with the classes and functions around it, in source order."""
        return list(_nodes_with_owners(self.tree))

    @cached_property
    def encoded_lines(self) -> list[bytes]:
        """The lines in UTF-8, with their ends: `ast` counts columns in these bytes."""
        return self.text.encode().splitlines(keepends=True)

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """The string node of every docstring: of the module, its classes and functions."""
        return list(_docstring_nodes(self.nodes))

    def place(self, node: PlacedNode, text: str) -> Place:
        """Return the place of a node of this file."""
        return Place(self.path, node.lineno, text)


def read_sources(folder: Path) -> list[Source]:
    """Return every Python file of a package, its own `__init__` included."""
    sources = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        relative = path.relative_to(folder).as_posix()
        sources.append(Source(relative, text, ast.parse(text, str(path))))
    return sources


def _nodes_with_owners(tree: ast.Module) -> Iterator[OwnedNode]:
    """Yield each node with the names of the classes and functions around it, outermost first."""
    stack: list[OwnedNode] = [(tree, ())]
    while stack:
        node, owners = stack.pop()
        yield node, owners
        if isinstance(node, FunctionNode | ast.ClassDef):
            owners = (*owners, node.name)
        stack.extend((child, owners) for child in reversed(list(ast.iter_child_nodes(node))))


def _docstring_nodes(nodes: list[OwnedNode]) -> Iterator[ast.Constant]:
    for node, _ in nodes:
        if isinstance(node, FunctionNode | ast.ClassDef | ast.Module) and node.body:
            first = node.body[0]
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def count_code_lines(source: Source) -> int:
    """Return the number of lines that are no docstring, no comment and not blank."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in _SILENT_TOKENS:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in source.docstrings:
        lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
