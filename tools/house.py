#!/usr/bin/env python3
"""The shape of a Python source tree: sizes, imports, layers, cycles, and which modules belong together.

    python house.py SOURCE_ROOT [--rooms rooms.toml] [--dot graph.dot] [--json shape.json] [--edges]

SOURCE_ROOT is the folder of one package (src/talerec) or a folder that holds one (src). Nothing is imported
or run: files are parsed. Standard library only.

An import has one of three kinds: `top` (runs when the module is imported), `late` (inside a function) and
`typing` (under TYPE_CHECKING, never runs). Layers and cycles are over top and late imports.

rooms.toml, to check a proposed layout (every module in exactly one room, rooms from the bottom up):

    [rooms]
    data = ["log", "readers", "times"]
    models = ["models", "models.*"]
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

Graph = dict[str, set[str]]


@dataclass
class Function:
    name: str
    line: int
    lines: int
    parameters: int
    branches: int  # McCabe, less one
    depth: int  # deepest nesting of blocks


@dataclass
class Module:
    name: str
    path: Path
    lines: int
    functions: list[Function]
    public: int  # names at module level without an underscore
    imports: dict[str, str] = field(default_factory=dict)  # module -> kind
    libraries: set[str] = field(default_factory=set)


# -- reading ---------------------------------------------------------------------------------------

BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
    ast.AsyncFor,
)
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def package_of(root: Path) -> tuple[Path, str]:
    """The folder of the package, and its name."""
    if (root / "__init__.py").exists():
        return root, root.name
    inside = [child for child in sorted(root.iterdir()) if (child / "__init__.py").exists()]
    if len(inside) != 1:
        sys.exit(f"{root} holds {len(inside)} packages; name one of them")
    return inside[0], inside[0].name


def read(root: Path) -> dict[str, Module]:
    """Every module by its name without the package's own: `models.base`, and `__init__` for the package itself."""
    folder, package = package_of(root)
    found: dict[str, Module] = {}
    trees: dict[str, ast.Module] = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        trees[name] = ast.parse(text, str(path))
        functions = list(functions_of(trees[name]))
        found[name] = Module(
            name, path, len(text.splitlines()), functions, public_names(trees[name])
        )
    for name, tree in trees.items():
        is_package = found[name].path.name == "__init__.py"
        for target, kind in imports_of(tree, package, name, is_package, set(found)):
            if target.startswith("!"):
                found[name].libraries.add(target[1:])
            elif target != name:
                before = found[name].imports.get(target)
                found[name].imports[target] = min(filter(None, (before, kind)), key=KINDS.index)
    return found


KINDS = ("top", "late", "typing")


def imports_of(tree: ast.Module, package: str, name: str, is_package: bool, known: set[str]):
    """(module, kind) for every import of the package's own modules; (!library, kind) for others'."""

    def visit(node: ast.AST, kind: str):
        for child in ast.iter_child_nodes(node):
            inner = kind
            if isinstance(child, (*DEFINITIONS, ast.Lambda)):
                inner = "late" if kind == "top" else kind
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = "typing"
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield from resolve(alias.name, [], kind)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    here = name.split(".") if name != "__init__" else []
                    up = child.level - (1 if is_package else 0)
                    here = here[: len(here) - up] if up else here
                    base = ".".join([package, *here, *filter(None, [child.module])])
                yield from resolve(base, [alias.name for alias in child.names], kind)
            else:
                yield from visit(child, inner)

    def resolve(base: str, names: list[str], kind: str):
        if base.split(".")[0] != package:
            yield f"!{base.split('.')[0]}", kind
            return
        inside = base.removeprefix(package).lstrip(".")
        for one in names or [""]:
            full = f"{inside}.{one}".strip(".")
            if full in known:
                yield full, kind
            elif (inside or "__init__") in known:
                yield inside or "__init__", kind

    yield from visit(tree, "top")


def functions_of(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            arguments = node.args
            count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
            branches = sum(isinstance(n, BRANCHES) for n in ast.walk(node))
            branches += sum(len(n.values) - 1 for n in ast.walk(node) if isinstance(n, ast.BoolOp))
            yield Function(
                node.name,
                start,
                (node.end_lineno or start) - start + 1,
                count,
                branches,
                depth(node),
            )


def depth(node: ast.AST) -> int:
    inner = [depth(child) + isinstance(child, BLOCKS) for child in ast.iter_child_nodes(node)]
    return max(inner, default=0)


def public_names(tree: ast.Module) -> int:
    names = set()
    for node in tree.body:
        if isinstance(node, (*DEFINITIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return sum(not name.startswith("_") for name in names)


# -- graphs ----------------------------------------------------------------------------------------


def graph_of(modules: dict[str, Module], kinds: tuple[str, ...] = ("top", "late")) -> Graph:
    return {
        name: {other for other, kind in module.imports.items() if kind in kinds}
        for name, module in modules.items()
    }


def with_parents(graph: Graph) -> Graph:
    """Python runs a package's __init__ before any module in it: importing a.b imports a, too."""
    made = {name: set(others) for name, others in graph.items()}
    for name, others in graph.items():
        for other in others:
            parts = other.split(".")
            for size in range(1, len(parts)):
                parent = ".".join(parts[:size])
                if parent in graph and parent != name and not name.startswith(parent + "."):
                    made[name].add(parent)
        own = name.split(".")
        for size in range(1, len(own)):
            if (parent := ".".join(own[:size])) in graph:
                made[name].add(parent)
    return made


def components(graph: Graph) -> list[list[str]]:
    """Strongly connected components (Tarjan), those that others need first."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on: set[str] = set()
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        on.add(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in on:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
                on.discard(group[-1])
            found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def layers_of(graph: Graph) -> dict[str, int]:
    """The longest path down from each module; modules of one cycle share a layer."""
    layer: dict[str, int] = {}
    for group in components(graph):  # what a group imports comes before it
        below = [layer[other] for name in group for other in graph[name] if other not in group]
        for name in group:
            layer[name] = 1 + max(below, default=-1)
    return layer


def reversed_graph(graph: Graph) -> Graph:
    back: Graph = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            back[other].add(name)
    return back


def reach(graph: Graph, name: str) -> set[str]:
    seen, todo = set(), [name]
    while todo:
        for other in graph[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen - {name}


# -- rooms -----------------------------------------------------------------------------------------


def guessed_rooms(graph: Graph, ground: int) -> tuple[set[str], list[list[str]]]:
    """Modules that many import (the ground), and groups of the others by greedy modularity (Clauset, Newman, Moore).

    Folders that exist count: modules of one subpackage begin in one group.
    """
    back = reversed_graph(graph)
    floor = {name for name in graph if len(back[name]) >= ground and "." not in name}
    edges = Counter(
        frozenset((a, b)) for a in graph for b in graph[a] if not {a, b} & floor and a != b
    )
    group = {
        name: name.split(".")[0] if "." in name else name for name in graph if name not in floor
    }
    total = sum(edges.values()) or 1
    while True:
        degree: Counter[str] = Counter()
        between: Counter[tuple[str, str]] = Counter()
        for pair, weight in edges.items():
            a, b = sorted(group[name] for name in pair)
            degree[a] += weight
            degree[b] += weight
            if a != b:
                between[a, b] += weight
        gains = {
            (a, b): w / total - degree[a] * degree[b] / (2 * total * total)
            for (a, b), w in between.items()
        }
        best = max(gains, key=lambda pair: (gains[pair], pair), default=None)
        if best is None or gains[best] <= 0:
            break
        group = {name: best[0] if of == best[1] else of for name, of in group.items()}
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, of in group.items():
        rooms[of].append(name)
    return floor, sorted(map(sorted, rooms.values()), key=len, reverse=True)


def private_to(graph: Graph, rooms: dict[str, str]) -> dict[str, set[str]]:
    """For each module, the rooms of those who import it."""
    back = reversed_graph(graph)
    return {name: {rooms[other] for other in back[name] if other in rooms} for name in graph}


def given_rooms(path: Path, names: list[str]) -> dict[str, list[str]]:
    """The rooms of a TOML file, bottom up; `models.*` stands for every module of that package."""
    wanted = tomllib.loads(path.read_text(encoding="utf-8"))["rooms"]
    rooms: dict[str, list[str]] = {}
    taken: Counter[str] = Counter()
    for room, patterns in wanted.items():
        rooms[room] = [n for n in names if any(fnmatchcase(n, pattern) for pattern in patterns)]
        taken.update(rooms[room])
    for name in names:
        if taken[name] != 1:
            print(f"! {name} is in {taken[name]} rooms")
    return rooms


# -- telling ---------------------------------------------------------------------------------------


def heading(text: str) -> None:
    print(f"\n== {text} " + "=" * max(0, 88 - len(text)))


def quantile(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def tell_sizes(modules: dict[str, Module], graph: Graph, layer: dict[str, int]) -> None:
    back = reversed_graph(graph)
    heading("modules: lines, functions, median and p90 of their lines, fan-in, fan-out, layer")
    for module in sorted(modules.values(), key=lambda m: -m.lines):
        sizes = [function.lines for function in module.functions]
        middle = statistics.median(sizes) if sizes else 0
        print(
            f"{module.lines:5} lines {len(sizes):3} fn  med {middle:5.1f}  p90 {quantile(sizes, 0.9):3}"
            f"  in {len(back[module.name]):3}  out {len(graph[module.name]):3}  layer {layer[module.name]:2}  {module.name}"
        )
    every = [function.lines for module in modules.values() for function in module.functions]
    lines = [module.lines for module in modules.values()]
    print(
        f"\n{len(modules)} modules, {sum(lines):,} lines (median {statistics.median(lines):.0f}, p90 {quantile(lines, 0.9)},"
        f" most {max(lines)}); {len(every):,} functions (median {statistics.median(every):.0f},"
        f" p90 {quantile(every, 0.9)}, most {max(every)})"
    )


def tell_hard(modules: dict[str, Module], most: int = 25) -> None:
    heading("hard functions: branches x (depth + 1) + 2 x parameters beyond five + lines / 5")
    scored = []
    for module in modules.values():
        for f in module.functions:
            score = f.branches * (f.depth + 1) + 2 * max(0, f.parameters - 5) + f.lines / 5
            scored.append((score, module, f))
    for score, module, f in sorted(scored, key=lambda entry: -entry[0])[:most]:
        print(
            f"{score:6.1f}  {f.lines:3} lines {f.parameters:2} params {f.branches:2} branches depth {f.depth}"
            f"  {module.name}:{f.line} {f.name}"
        )


def tell_layers(graph: Graph, layer: dict[str, int]) -> None:
    heading("layers, bottom up (longest path of imports)")
    by: dict[int, list[str]] = defaultdict(list)
    for name, place in layer.items():
        by[place].append(name)
    for place in sorted(by):
        print(f"{place:3}  {' '.join(sorted(by[place]))}")


def tell_cycles(modules: dict[str, Module], graph: Graph) -> None:
    heading("cycles")
    for label, made in (
        ("top and late imports", graph),
        ("typing imports too", graph_of(modules, KINDS)),
        ("packages' __init__ too, as Python runs them", with_parents(graph)),
    ):
        found = [group for group in components(made) if len(group) > 1]
        print(f"{label}: {len(found) or 'none'}")
        for group in found:
            print(f"    {' '.join(group)}")


def tell_edges(modules: dict[str, Module]) -> None:
    heading("imports: module -> module (kind)")
    for name, module in sorted(modules.items()):
        for other, kind in sorted(module.imports.items()):
            print(f"{name} -> {other}{'' if kind == 'top' else f' ({kind})'}")


def tell_guesses(graph: Graph, ground: int) -> None:
    floor, groups = guessed_rooms(graph, ground)
    heading(
        f"rooms that the imports suggest (greedy modularity; ground: imported by {ground} or more)"
    )
    print(f"ground: {' '.join(sorted(floor))}")
    for number, group in enumerate(groups, 1):
        print(f"room {number}: {' '.join(group)}")
    back = reversed_graph(graph)
    heading("modules with one importer (private helpers in all but place)")
    for name in sorted(graph):
        if len(back[name]) == 1:
            print(f"{name} <- {next(iter(back[name]))}")


def tell_rooms(modules: dict[str, Module], graph: Graph, rooms: dict[str, list[str]]) -> None:
    heading("the proposed rooms, bottom up")
    room = {name: label for label, names in rooms.items() for name in names}
    order = list(rooms)
    between: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, others in graph.items():
        for other in others:
            if name in room and other in room:
                between[room[name], room[other]].append(f"{name} -> {other}")
    for label, names in rooms.items():
        inside = len(between[label, label])
        out = sum(len(edges) for (a, b), edges in between.items() if a == label != b)
        into = sum(len(edges) for (a, b), edges in between.items() if b == label != a)
        lines = sum(modules[name].lines for name in names)
        doors = {
            e.split(" -> ")[1] for (a, b), es in between.items() if b == label != a for e in es
        }
        print(
            f"{label:12} {len(names):3} modules {lines:6,} lines  inside {inside:3}  out {out:3}  in {into:3}"
            f"  doors {len(doors)}/{len(names)}"
        )
    up = [
        (a, b, edges)
        for (a, b), edges in sorted(between.items())
        if order.index(b) > order.index(a)
    ]
    print("\nimports that point up:", len([e for _, _, edges in up for e in edges]) or "none")
    for a, b, edges in up:
        print(f"  {a} -> {b}: {', '.join(edges)}")
    upper = {
        label: {b for (a, b), edges in between.items() if a == label != b and edges}
        for label in rooms
    }
    loops = [group for group in components(upper) if len(group) > 1]
    print("cycles between rooms:", loops or "none")
    print("\nroom -> room (imports):")
    for label in order:
        row = [f"{b} {len(between[label, b])}" for b in order if b != label and between[label, b]]
        print(f"  {label:12} -> {', '.join(row) or '-'}")


COLOURS = (
    "#dbe9f6",
    "#fde3c8",
    "#d9f0d3",
    "#f3d9ec",
    "#fff3bf",
    "#e0e0f5",
    "#d0f0f0",
    "#f7d4d4",
    "#e8e8e8",
    "#e6f5c9",
)


def write_dot(
    path: Path,
    modules: dict[str, Module],
    graph: Graph,
    rooms: dict[str, list[str]] | None,
    hide: int,
) -> None:
    """The graph for Graphviz, without edges that longer paths imply; `hide`: edges into modules that so many import."""
    back = reversed_graph(graph)
    thin = {
        name: {o for o in others if not any(o in reach(graph, p) for p in others if p != o)}
        for name, others in graph.items()
    }
    if rooms is None:
        rooms = defaultdict(list)
        for name in modules:
            rooms[
                name.split(".")[0]
                if "." in name or any(n.startswith(name + ".") for n in modules)
                else ""
            ].append(name)
    out = [
        "digraph house {",
        "rankdir=TB; newrank=true; nodesep=0.12; ranksep=0.45; compound=true;",
        'node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, margin="0.08,0.04", fillcolor=white];',
        'edge [arrowsize=0.5, color="#00000055"];',
    ]
    for number, (label, names) in enumerate(rooms.items()):
        colour = COLOURS[number % len(COLOURS)]
        if label:
            out.append(
                f'subgraph "cluster_{label}" {{ label="{label}"; fontname="Helvetica-Bold"; style="rounded,filled"; color="{colour}";'
            )
        for name in names:
            size = 9 + min(modules[name].lines, 500) / 80
            out.append(f'  "{name}" [label="{name}\\n{modules[name].lines}", fontsize={size:.1f}];')
        if label:
            out.append("}")
    for name, others in thin.items():
        for other in sorted(others):
            look = (
                "" if len(back[other]) < hide else " [style=invis]"
            )  # it still says what stands above what
            out.append(f'"{name}" -> "{other}"{look};')
    out.append("}")
    path.write_text("\n".join(out), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--rooms", type=Path, help="a TOML file with a proposed layout, to check")
    parser.add_argument("--dot", type=Path, help="write the graph for Graphviz")
    parser.add_argument("--json", type=Path, help="write everything as JSON")
    parser.add_argument("--edges", action="store_true", help="print every import")
    parser.add_argument(
        "--ground", type=int, default=10, help="importers that make a module part of the ground"
    )
    parser.add_argument(
        "--hide",
        type=int,
        default=999,
        help="in the drawing, leave out edges into modules with so many importers",
    )
    asked = parser.parse_args()
    modules = read(asked.root)
    modules.pop("__init__", None)  # the package's own page of names imports everything
    for module in modules.values():
        module.imports.pop("__init__", None)
    graph = graph_of(modules)
    layer = layers_of(graph)
    tell_sizes(modules, graph, layer)
    tell_hard(modules)
    tell_layers(graph, layer)
    tell_cycles(modules, graph)
    if asked.edges:
        tell_edges(modules)
    tell_guesses(graph, asked.ground)
    rooms = given_rooms(asked.rooms, sorted(modules)) if asked.rooms else None
    if rooms:
        tell_rooms(modules, graph, rooms)
    if asked.dot:
        write_dot(asked.dot, modules, graph, rooms, asked.hide)
    if asked.json:
        made = {
            name: {
                "lines": m.lines,
                "layer": layer[name],
                "imports": m.imports,
                "libraries": sorted(m.libraries),
                "functions": [vars(f) for f in m.functions],
            }
            for name, m in modules.items()
        }
        asked.json.write_text(json.dumps(made, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
