#!/usr/bin/env python3
"""Report the shape of a Python package: sizes, imports, layers, rooms; or check its rules.

    python tools/house.py src/talerec [--rooms FILE] [--edges] [--dot FILE] [--json FILE]
    python tools/house.py src/talerec --rooms tools/rooms.toml --check
    python tools/house.py src/talerec --counts [--json FILE]
    python tools/house.py src/talerec --places banned_names
    python tools/house.py src/talerec --lower

Files are parsed, never imported; only the standard library is needed. An import is `top` (runs with
its module), `late` (inside a function) or `typing` (under TYPE_CHECKING). Layers are over top and
late imports.

--check prints one line for each broken rule, and exits with 1 if there is any. The rules: no
modules that import each other in a circle, by imports of any kind (that Python runs the `__init__`
of a module's package is not counted); no import of a room that stands higher in the rooms' file; no
module in no room or in two; with `packages = true` in the rooms' file, no import of a module inside
another room (its package exports what others need; the table `[doors]` names the exceptions); at
most 6 files in the root folder, 400 lines a file, 60 lines a function; no numbers as indices into
tuples in compiled functions; and no figure above its ceiling.

The figures are counts of banned names, public class names in two modules, lines over 100
characters, first docstring lines over 88, functions over eight parameters, messages that name
command-line flags, files and lines of code. The file of limits (tools/house.toml) has the banned
names, the exceptions with their reasons, and the ceilings. --counts prints the figures, --places
the places of one figure, and --lower writes today's counts into the file where they are below the
ceilings.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from shape import report
from shape.counts import count_exempt, count_figures, counts_as_json, format_counts
from shape.graphs import import_graph
from shape.limits import lower_ceilings, read_limits
from shape.rooms import packages_are_closed, read_doors, read_rooms
from shape.rules import House, broken_rules
from shape.tree import package_folder, read_package
from shape.words import FIGURES

LIMITS = Path(__file__).parent / "house.toml"


def main() -> int:
    """Run the command; return the exit status."""
    options = _parser().parse_args()
    if options.counts or options.places or options.lower:
        return print_counts(options)
    if options.check:
        return check(read_house(options.root, options.rooms, options.limits))
    print_report(options)
    return 0


def read_house(root: Path, rooms_file: Path | None, limits_file: Path | None) -> House:
    """Return the package with the rooms and limits that the rules need."""
    modules = read_package(root)
    rooms, doors = None, None
    if rooms_file:
        rooms = read_rooms(rooms_file, modules)
        doors = read_doors(rooms_file) if packages_are_closed(rooms_file) else None
    limits = read_limits(limits_file) if limits_file else None
    return House(package_folder(root), modules, rooms, limits, doors)


def check(house: House) -> int:
    """Print what breaks a rule; return 1 if anything does."""
    broken = broken_rules(house)
    for line in broken:
        print(line)
    print(f"broken rules: {len(broken) or 'none'} (modules: {len(house.modules)})")
    return int(bool(broken))


def print_counts(options: argparse.Namespace) -> int:
    """Print the figures or the places of one of them, or lower the ceilings; return 0."""
    folder = package_folder(options.root)
    limits = read_limits(options.limits)
    counts = count_figures(folder, limits)
    if options.lower:
        print("lowered:", ", ".join(lower_ceilings(options.limits, counts.totals)) or "none")
        return 0
    if options.places:
        for place in counts.places[options.places]:
            print(f"{folder.name}/{place.path}:{place.line}: {place.text}")
        return 0
    exempt = count_exempt(folder, limits, counts)
    print(format_counts(counts, exempt, limits))
    if options.json:
        text = json.dumps(counts_as_json(counts, exempt), indent=1)
        options.json.write_text(text, encoding="utf-8")
    return 0


def print_report(options: argparse.Namespace) -> None:
    """Print sizes, layers, cycles and rooms; write a drawing and JSON where the options ask."""
    modules = read_package(options.root)
    rooms = read_rooms(options.rooms, modules) if options.rooms else None
    graph = import_graph(modules, ("top", "late"))
    report.tell_sizes(modules, graph)
    report.tell_hard(modules)
    report.tell_layers(graph)
    report.tell_cycles(modules)
    if options.edges:
        report.tell_edges(modules)
    if rooms:
        report.tell_rooms(modules, graph, rooms)
    if options.dot:
        folders = rooms or {"": list(modules)}
        drawing = report.drawing(modules, graph, folders, options.hide)
        options.dot.write_text(drawing, encoding="utf-8")
    if options.json:
        text = json.dumps(report.as_json(modules, graph), indent=1)
        options.json.write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the folder of a package, or one that holds one")
    parser.add_argument("--rooms", type=Path, help="a TOML file with the rooms, bottom up")
    parser.add_argument("--limits", type=Path, default=LIMITS, help="a TOML file with the limits")
    parser.add_argument("--check", action="store_true", help="print broken rules and nothing else")
    parser.add_argument("--counts", action="store_true", help="print the figures and nothing else")
    parser.add_argument("--places", choices=sorted(FIGURES), help="print every place of a figure")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to the counts")
    parser.add_argument("--edges", action="store_true", help="print every import")
    parser.add_argument("--dot", type=Path, help="write the graph for Graphviz")
    parser.add_argument("--json", type=Path, help="write everything as JSON")
    text = "in the drawing, no lines into modules with so many importers"
    parser.add_argument("--hide", type=int, default=999, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
