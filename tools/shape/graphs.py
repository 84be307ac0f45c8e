"""Graphs of imports: cycles and layers."""

from __future__ import annotations

import sys

from shape.tree import KINDS, Modules

Graph = dict[str, set[str]]


def import_graph(modules: Modules, kinds: tuple[str, ...] = KINDS) -> Graph:
    """Module -> the modules that it imports, by imports of these kinds."""
    return {
        name: {other for other, kind in module.imports.items() if kind in kinds}
        for name, module in modules.items()
    }


def with_parents(graph: Graph) -> Graph:
    """The graph as Python runs it: to import a.b runs the `__init__` of a first."""
    extended = {name: set(others) for name, others in graph.items()}
    for name, others in graph.items():
        for other in (name, *others):
            parts = other.split(".")
            parents = {".".join(parts[:size]) for size in range(1, len(parts))}
            inside = {p for p in parents if name.startswith(f"{p}.")} if other != name else set()
            extended[name] |= {p for p in parents - inside if p in graph and p != name}
    return extended


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components (Tarjan), imported ones before importers."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        on_stack.add(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in on_stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
                on_stack.discard(group[-1])
            groups.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in number:
            visit(name)
    return groups


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other."""
    return [group for group in components(graph) if len(group) > 1]


def layers(graph: Graph) -> dict[str, int]:
    """The longest path down from each module; modules of one cycle share a layer."""
    layer: dict[str, int] = {}
    for group in components(graph):  # what a group imports comes before it
        below = [layer[other] for name in group for other in graph[name] if other not in group]
        for name in group:
            layer[name] = 1 + max(below, default=-1)
    return layer


def importers(graph: Graph) -> Graph:
    """Module -> the modules that import it."""
    back: Graph = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            back[other].add(name)
    return back


def reach(graph: Graph, name: str) -> set[str]:
    """Everything that a module imports, directly or not."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        new = graph[todo.pop()] - seen
        seen |= new
        todo.extend(new)
    return seen - {name}
