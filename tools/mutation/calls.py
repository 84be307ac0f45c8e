"""Which functions of a package each test calls: recording them, and reading the records."""

from __future__ import annotations

import ast
import importlib.util
import json
import marshal
import re
from dataclasses import dataclass, field
from pathlib import Path

from shape.sources import Source, read_sources
from shape.tree import FunctionNode

#: Decorators of functions that Numba compiles: they cannot record calls.
COMPILED = ("kernel", "template", "reduction")

_IMPORTS_NUMBA = re.compile(r"^(import numba|from numba)", re.MULTILINE)


@dataclass
class CallRecord:
    """A test, as the records have it."""

    seconds: float = 0.0  # with its fixtures
    passed: bool = False
    calls: set[str] = field(default_factory=set)  # functions, as `gram/pairs.py:tale_pairs`


def read_calls(path: Path) -> dict[str, CallRecord]:
    """Return the records of a file by the id of the test; a later record of a test replaces others.

    Lines without `seconds` come from processes that a test started and add calls to the test.
    """
    tests: dict[str, CallRecord] = {}
    from_processes: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        calls = record["calls"]
        if "seconds" in record:
            tests[record["test"]] = CallRecord(record["seconds"], record["passed"], set(calls))
        else:
            from_processes.append((record["test"], calls))
    for test, calls in from_processes:
        if test in tests:
            tests[test].calls.update(calls)
    return tests


def is_compiled(function: FunctionNode) -> bool:
    """Return whether Numba compiles a function, as its decorators say."""
    return any(
        isinstance(decorator, ast.Name) and decorator.id in COMPILED
        for decorator in function.decorator_list
    )


def imports_numba(source: Source) -> bool:
    """Return whether a file imports Numba, and so may pass any of its functions to it."""
    return _IMPORTS_NUMBA.search(source.text) is not None


def add_recording(package: Path) -> None:
    """Make the functions of a copy of a package record their calls, at their first statement.

    Only compiled bytecode (`__pycache__`) changes: the text of the files, line numbers and Numba's
    compiled kernels stay as they are.
    """
    for source in read_sources(package):
        if imports_numba(source):
            continue
        _add_to_body(source.tree, f"{source.path}:")
        _insert(source.tree.body, "from mutation.recorder import record_call as __record_call__")
        path = package / source.path
        code = compile(ast.fix_missing_locations(source.tree), str(path), "exec", dont_inherit=True)
        compiled = Path(importlib.util.cache_from_source(str(path)))
        compiled.parent.mkdir(exist_ok=True)
        compiled.unlink(missing_ok=True)  # it may be a link to the file of the original
        unchecked = (1).to_bytes(4, "little") + bytes(
            8
        )  # used without a look at the source (PEP 552)
        compiled.write_bytes(importlib.util.MAGIC_NUMBER + unchecked + marshal.dumps(code))


def _add_to_body(node: ast.AST, prefix: str) -> None:
    """Add the recording statement to every function inside `node`; `prefix` starts their names."""
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, FunctionNode) and is_compiled(child):
            continue
        if isinstance(child, FunctionNode | ast.ClassDef):
            inside = f"{prefix}{child.name}."
        if isinstance(child, FunctionNode):
            _insert(child.body, f"__record_call__({prefix + child.name!r})")
        _add_to_body(child, inside)


def _insert(body: list[ast.stmt], statement: str) -> None:
    """Insert a statement after the docstring and the imports from `__future__`."""
    place = 0
    for index, node in enumerate(body):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not docstring and not future:
            break
        place = index + 1
    (added,) = ast.parse(statement).body
    for part in ast.walk(added) if body else []:
        ast.copy_location(part, body[max(place - 1, 0)])
    body.insert(place, added)
