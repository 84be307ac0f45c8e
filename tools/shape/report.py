"""What `house.py` prints and draws."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from shape.graphs import (
    Graph,
    components,
    cycles,
    import_graph,
    importers,
    layers,
    reach,
    with_parents,
)
from shape.rooms import Rooms, homes_of, upward
from shape.tree import Modules

_COLOURS = [
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
]


def _heading(text: str) -> None:
    print(f"\n== {text} " + "=" * max(0, 88 - len(text)))


def _quantile(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def _median(values: list[int]) -> float:
    return statistics.median(values) if values else 0


def tell_sizes(modules: Modules, graph: Graph) -> None:
    """One line per module, the longest first, and one for all."""
    back, layer = importers(graph), layers(graph)
    _heading("modules: lines, functions, median and p90 of their lines, fan-in, fan-out, layer")
    for module in sorted(modules.values(), key=lambda m: -m.lines):
        sizes = [function.lines for function in module.functions]
        print(
            f"{module.lines:5} lines {len(sizes):3} fn  med {_median(sizes):5.1f}"
            f"  p90 {_quantile(sizes, 0.9):3}  in {len(back[module.name]):3}"
            f"  out {len(graph[module.name]):3}  layer {layer[module.name]:2}  {module.name}"
        )
    every = [function.lines for module in modules.values() for function in module.functions]
    lines = [module.lines for module in modules.values()]
    print(
        f"\n{len(modules)} modules, {sum(lines):,} lines (median {_median(lines):.0f},"
        f" p90 {_quantile(lines, 0.9)}, most {max(lines, default=0)});"
        f" {len(every):,} functions (median {_median(every):.0f},"
        f" p90 {_quantile(every, 0.9)}, most {max(every, default=0)})"
    )


def tell_hard(modules: Modules, most: int = 25) -> None:
    """The functions that are hardest to read."""
    _heading("hard functions: branches x (depth + 1) + 2 x parameters beyond five + lines / 5")
    scored = [
        (f.branches * (f.depth + 1) + 2 * max(0, f.parameters - 5) + f.lines / 5, module, f)
        for module in modules.values()
        for f in module.functions
    ]
    for score, module, f in sorted(scored, key=lambda entry: -entry[0])[:most]:
        print(
            f"{score:6.1f}  {f.lines:3} lines {f.parameters:2} params {f.branches:2} branches"
            f" depth {f.depth}  {module.name}:{f.line} {f.name}"
        )


def tell_layers(graph: Graph) -> None:
    """Modules by the longest path of imports below them."""
    _heading("layers, bottom up (longest path of imports)")
    by_layer: dict[int, list[str]] = defaultdict(list)
    for name, place in layers(graph).items():
        by_layer[place].append(name)
    for place in sorted(by_layer):
        print(f"{place:3}  {' '.join(sorted(by_layer[place]))}")


def tell_cycles(modules: Modules) -> None:
    """Modules that import each other."""
    _heading("cycles")
    runs = import_graph(modules, ("top", "late"))
    for label, graph in (
        ("top and late imports", runs),
        ("typing imports too", import_graph(modules)),
        ("packages' __init__ too, as Python runs them", with_parents(runs)),
    ):
        groups = cycles(graph)
        print(f"{label}: {len(groups) or 'none'}")
        for group in groups:
            print(f"    {' '.join(group)}")


def tell_edges(modules: Modules) -> None:
    """Every import."""
    _heading("imports: module -> module (kind)")
    for name, module in sorted(modules.items()):
        for other, kind in sorted(module.imports.items()):
            print(f"{name} -> {other}{'' if kind == 'top' else f' ({kind})'}")


def tell_rooms(modules: Modules, graph: Graph, rooms: Rooms) -> None:
    """Sizes of rooms and imports between them; doors are modules that other rooms import."""
    _heading("rooms, bottom up")
    between: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, others in graph.items():
        for other in others:
            for home in homes_of(rooms, name)[:1]:
                for far in homes_of(rooms, other)[:1]:
                    between[home, far].append((name, other))
    for room, names in rooms.items():
        into = [edge for (a, b), edges in between.items() if b == room != a for edge in edges]
        out = [edge for (a, b), edges in between.items() if a == room != b for edge in edges]
        lines = sum(modules[name].lines for name in names)
        print(
            f"{room:16} {len(names):3} modules {lines:6,} lines"
            f"  inside {len(between[room, room]):3}  out {len(out):3}"
            f"  in {len(into):3}  doors {len({b for _, b in into})}/{len(names)}"
        )
    up = list(upward(rooms, graph))
    print("\nimports that point up:", len(up) or "none")
    for name, other in up:
        print(f"  {name} -> {other}")
    over = {room: {b for a, b in between if a == room != b and between[a, b]} for room in rooms}
    circles = [group for group in components(over) if len(group) > 1]
    print("cycles between rooms:", circles or "none")
    print("\nroom -> room (imports):")
    for room in rooms:
        row = [f"{b} {len(between[room, b])}" for b in rooms if b != room and between[room, b]]
        print(f"  {room:12} -> {', '.join(row) or '-'}")


def drawing(modules: Modules, graph: Graph, rooms: Rooms, hide: int) -> str:
    """Return the graph for Graphviz, without imports that a longer path implies.

    Lines into modules that `hide` others import, or more, are left out too.
    """
    back = importers(graph)
    lines = [
        "digraph house {",
        "rankdir=TB; newrank=true; nodesep=0.12; ranksep=0.45; compound=true;",
        'node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10,'
        ' margin="0.08,0.04", fillcolor=white];',
        'edge [arrowsize=0.5, color="#00000055"];',
    ]
    for number, (room, names) in enumerate(rooms.items()):
        look = f'style="rounded,filled"; color="{_COLOURS[number % len(_COLOURS)]}"'
        lines.append(f'subgraph "cluster_{room}" {{ label="{room}"; {look};')
        lines += [f'  "{name}" [label="{name}\\n{modules[name].lines}"];' for name in names]
        lines.append("}")
    for name, others in graph.items():
        implied = {far for other in others for far in reach(graph, other)}
        for other in sorted(others - implied):
            invisible = " [style=invis]" if len(back[other]) >= hide else ""  # it still ranks them
            lines.append(f'"{name}" -> "{other}"{invisible};')
    return "\n".join([*lines, "}"])


def as_json(modules: Modules, graph: Graph) -> dict[str, object]:
    """Everything that is printed, by module."""
    layer = layers(graph)
    return {
        name: {
            "path": Path(module.path).as_posix(),
            "lines": module.lines,
            "layer": layer[name],
            "imports": module.imports,
            "libraries": sorted(module.libraries),
            "functions": [vars(function) for function in module.functions],
        }
        for name, module in modules.items()
    }
