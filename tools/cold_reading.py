#!/usr/bin/env python3
"""Draw functions and classes of a package at random, to be read one at a time.

    python tools/cold_reading.py src/talerec --seed 7 -n 60 --out sheets

Module-level functions and classes and the methods of these classes have the same chance. Methods
with double underscores and definitions of fewer than four lines are left out. `sheets.md` has the
source text of each definition, docstring included, under a number and its qualified name;
`truth.json` has its path and line. The same tree and seed draw the same sheets.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shape.sources import Source, read_sources
from shape.tree import FunctionNode, package_folder

SHORTEST = 4  # lines of a definition that may be drawn, decorators included


class Definition(NamedTuple):
    """A function, method or class of the package."""

    path: str  # from the package's folder
    line: int
    name: str  # qualified: Model.fit
    text: str


def find_definitions(source: Source) -> Iterator[Definition]:
    """Yield the functions, classes and methods of a file that are long enough to be drawn."""
    for node in source.tree.body:
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield from _long_enough(source, node, node.name)
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, FunctionNode) and not _is_dunder(method.name):
                    yield from _long_enough(source, method, f"{node.name}.{method.name}")


def _long_enough(
    source: Source, node: FunctionNode | ast.ClassDef, name: str
) -> Iterator[Definition]:
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.text.splitlines()[start - 1 : node.end_lineno]
    if len(lines) >= SHORTEST:
        yield Definition(source.path, start, name, textwrap.dedent("\n".join(lines)))


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def draw_definitions(folder: Path, seed: int, n_drawn: int) -> list[Definition]:
    """Return `n_drawn` random definitions of a package, or all if there are fewer."""
    definitions = [item for source in read_sources(folder) for item in find_definitions(source)]
    return random.Random(seed).sample(definitions, min(n_drawn, len(definitions)))


def write_sheets(definitions: list[Definition], folder: Path) -> None:
    """Write `sheets.md`, which hides where a definition stands, and `truth.json`, which tells."""
    folder.mkdir(parents=True, exist_ok=True)
    sheets = [
        f"## {number}. `{item.name}`\n\n```python\n{item.text}\n```\n"
        for number, item in enumerate(definitions, 1)
    ]
    (folder / "sheets.md").write_text("\n".join(sheets), encoding="utf-8")
    truth = [
        {"number": number, "path": item.path, "line": item.line, "name": item.name}
        for number, item in enumerate(definitions, 1)
    ]
    (folder / "truth.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run the command; return the exit status."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the folder of a package, or one that holds one")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("-n", type=int, default=60, help="how many to draw")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    options = parser.parse_args()
    definitions = draw_definitions(package_folder(options.root), options.seed, options.n)
    write_sheets(definitions, options.out)
    print(f"{len(definitions)} definitions in {options.out / 'sheets.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
