"""Which tests can see a fault: those that call the function that contains it."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from mutation.calls import CallRecord, imports_numba, is_compiled
from mutation.faults import Fault
from shape.sources import Source, read_sources
from shape.tree import FunctionNode


@dataclass(frozen=True)
class Plan:
    """The tests for one fault."""

    order: list[str]  # ids of the tests to run
    skip: list[str]  # ids of other tests in the same files
    seconds: dict[str, float]  # recorded durations of the tests to run
    is_complete: bool  # False if the budget left out tests that call the function

    @property
    def files(self) -> list[str]:
        """The test files, each once."""
        return list(dict.fromkeys(test.partition("::")[0] for test in self.order))


class Chooser:
    """Chooses tests from the functions that each test called.

    Compiled functions do not record their calls. In place of such a function stand the functions
    that mention its name, and so on upwards. If no test is known to call a function, the tests are
    chosen that call anything in its file, or else all recorded tests in the folder of its room.
    """

    def __init__(self, package: Path, tests: dict[str, CallRecord]) -> None:
        self.tests = {name: test for name, test in tests.items() if test.passed}
        self.all_tests = list(tests)
        self.sources = {source.path: source for source in read_sources(package)}
        self.callers: dict[str, set[str]] = defaultdict(set)  # function -> ids of tests
        for name, test in self.tests.items():
            for function in test.calls:
                self.callers[function].add(name)
        self.recorded: set[str] = set()  # functions whose every call is recorded
        self.mentions: dict[str, set[str]] = defaultdict(set)  # a name -> functions with it
        self.imports: dict[str, set[str]] = {}  # file -> names that it imports
        for source in self.sources.values():
            self._read_mentions(source)

    def choose(self, fault: Fault, budget: float) -> Plan:
        """Return the tests for a fault, of at most `budget` seconds, the likeliest and short first.

        Tests of the fault's room come before others, and short tests before long ones. Tests of one
        file run together, because they share fixtures.
        """
        room = f"tests/{fault.path.split('/')[0].removesuffix('.py')}/"
        callers = self.find_tests(enclosing_function(self.sources[fault.path], fault), room)
        ranked = sorted(
            callers, key=lambda name: (not name.startswith(room), self.tests[name].seconds, name)
        )
        chosen: dict[str, list[str]] = defaultdict(list)  # file -> tests
        spent = 0.0
        for name in ranked:
            spent += self.tests[name].seconds
            if spent > budget and chosen:
                break
            chosen[name.partition("::")[0]].append(name)
        order = [name for names in chosen.values() for name in names]
        seconds = {name: self.tests[name].seconds for name in order}
        skip = [
            name
            for name in self.all_tests
            if name.partition("::")[0] in chosen and name not in seconds
        ]
        return Plan(order, skip, seconds, len(order) == len(ranked))

    def find_tests(self, function: str, room: str) -> set[str]:
        """Return the ids of the tests that call a function, or what mentions a compiled one."""
        tests: set[str] = set()
        waiting, visited = [function], {function}
        while waiting:
            current = waiting.pop()
            tests |= self.callers.get(current, set())
            if current not in self.recorded:
                above = self._callers_by_name(current) - visited
                visited |= above
                waiting.extend(sorted(above))
        if not tests:
            file = function.partition(":")[0] + ":"
            tests = {
                name
                for called, names in self.callers.items()
                if called.startswith(file)
                for name in names
            }
        return tests or {name for name in self.tests if name.startswith(room)}

    def _callers_by_name(self, function: str) -> set[str]:
        """Return the functions that mention a function, in its own file or where it is imported.

        Methods are known by their name alone.
        """
        file, _, qualified = function.partition(":")
        owner, _, name = qualified.rpartition(".")
        imported = {name, Path(file).stem}  # `from gram import pairs` serves pairs.tale_pairs
        return {
            caller
            for caller in self.mentions[name]
            if owner
            or caller.startswith(f"{file}:")
            or not imported.isdisjoint(self.imports[caller.partition(":")[0]])
        }

    def _read_mentions(self, source: Source) -> None:
        """Note which names each function of a file mentions, which it imports, which it records.

        A statement of a module that assigns to a name counts as a function of that name.
        """
        numba = imports_numba(source)
        self.imports[source.path] = {
            name.asname or name.name
            for node, _ in source.nodes
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        for node, owners in source.nodes:
            if isinstance(node, FunctionNode) and not numba and not is_compiled(node):
                self.recorded.add(f"{source.path}:{'.'.join((*owners, node.name))}")
            if owners:
                for name in _mentioned(node):
                    self.mentions[name].add(f"{source.path}:{'.'.join(owners)}")
        for statement in source.tree.body:
            if isinstance(statement, ast.Assign):
                names = {name for node in ast.walk(statement) for name in _mentioned(node)}
                for target in statement.targets:
                    for assigned in _mentioned(target):
                        for name in names - {assigned}:
                            self.mentions[name].add(f"{source.path}:{assigned}")


def _mentioned(node: ast.AST) -> set[str]:
    """Return the name that a node mentions, if any."""
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.attr} if isinstance(node, ast.Attribute) else set()


def enclosing_function(source: Source, fault: Fault) -> str:
    """Return the innermost function that contains a fault, as `gram/pairs.py:tale_pairs`."""
    innermost = ""
    for node, owners in source.nodes:  # outer functions come before inner ones
        if isinstance(node, FunctionNode):
            last = node.end_lineno or node.lineno
            if node.lineno <= fault.line and fault.end_line <= last:
                innermost = ".".join((*owners, node.name))
    return f"{source.path}:{innermost}"
