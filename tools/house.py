#!/usr/bin/env python3
"""The shape of a Python package: sizes, imports, layers, cycles and rooms; with --check, the rules it has to keep.

    python tools/house.py src/talerec [--rooms tools/rooms.toml] [--edges] [--dot FILE] [--json FILE]
    python tools/house.py src/talerec --rooms tools/rooms.toml --check

Files are parsed, never imported; only the standard library is needed. An import is `top` (runs with its module),
`late` (inside a function) or `typing` (under TYPE_CHECKING). Layers are over top and late imports.

--check prints one line for each of these, and exits with 1 if there is any: modules that import each other in a
circle, by imports of any kind (that Python runs the `__init__` of a module's package is not counted); imports of a room
that stands higher in the rooms' file; modules in no room or in two; more than 6 files in the root folder; files above
400 lines; functions above 60; and numbers as indices into tuples in compiled functions.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from shape import report
from shape.graphs import import_graph
from shape.rooms import read_rooms
from shape.rules import House, broken_rules
from shape.tree import package_folder, read_package


def main() -> int:
    """Run the command; the exit status."""
    asked = _parser().parse_args()
    modules = read_package(asked.root)
    rooms = read_rooms(asked.rooms, modules) if asked.rooms else None
    if asked.check:
        return check(House(package_folder(asked.root), modules, rooms))
    graph = import_graph(modules, ("top", "late"))
    report.tell_sizes(modules, graph)
    report.tell_hard(modules)
    report.tell_layers(graph)
    report.tell_cycles(modules)
    if asked.edges:
        report.tell_edges(modules)
    if rooms:
        report.tell_rooms(modules, graph, rooms)
    if asked.dot:
        folders = rooms or {"": list(modules)}
        asked.dot.write_text(report.drawing(modules, graph, folders, asked.hide), encoding="utf-8")
    if asked.json:
        text = json.dumps(report.as_json(modules, graph), indent=1)
        asked.json.write_text(text, encoding="utf-8")
    return 0


def check(house: House) -> int:
    """Print what breaks a rule; 1 if anything does."""
    wrong = broken_rules(house)
    for line in wrong:
        print(line)
    print(f"broken rules: {len(wrong) or 'none'} (modules: {len(house.modules)})")
    return int(bool(wrong))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the folder of a package, or one that holds one")
    parser.add_argument("--rooms", type=Path, help="a TOML file with the rooms, bottom up")
    parser.add_argument("--check", action="store_true", help="print broken rules and nothing else")
    parser.add_argument("--edges", action="store_true", help="print every import")
    parser.add_argument("--dot", type=Path, help="write the graph for Graphviz")
    parser.add_argument("--json", type=Path, help="write everything as JSON")
    text = "in the drawing, no lines into modules with so many importers"
    parser.add_argument("--hide", type=int, default=999, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
