"""The sheets of a cold reading: what can be drawn, and what a sheet shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cold_reading import draw_definitions, write_sheets

ROOT = Path(__file__).parents[2]

CODE = '''
import os

LIMIT = 3


@decorate
def long_function(a):
    """Return twice the number."""
    # not a word of the rest
    return 2 * a


def short(a):
    """Return it."""
    return a


class Shop:
    """A shop."""

    def __init__(self):
        self.a = 1
        self.b = 2
        self.c = 3

    def method(self):
        """Return the sum."""
        total = self.a

        return total

    def tiny(self):
        return 1
'''


def write_package(folder: Path) -> Path:
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "shop" / "a.py").write_text(CODE, encoding="utf-8")
    return folder / "shop"


def test_functions_classes_and_methods_are_drawn_but_short_ones_and_dunders_are_not(tmp_path):
    drawn = draw_definitions(write_package(tmp_path), 7, 60)
    assert sorted(item.name for item in drawn) == ["Shop", "Shop.method", "long_function"]


def test_a_seed_gives_the_same_sheets_and_another_seed_others(tmp_path):
    folder = write_package(tmp_path)
    draws = {seed: [d.name for d in draw_definitions(folder, seed, 2)] for seed in range(10)}
    assert all([d.name for d in draw_definitions(folder, s, 2)] == draws[s] for s in draws)
    assert len({tuple(names) for names in draws.values()}) > 1


def test_a_sheet_shows_the_definition_alone_and_the_truth_says_where_it_is(tmp_path):
    drawn = [d for d in draw_definitions(write_package(tmp_path), 7, 60) if d.name != "Shop"]
    write_sheets(sorted(drawn), tmp_path / "out")
    sheets = (tmp_path / "out" / "sheets.md").read_text(encoding="utf-8")
    assert sheets.startswith(
        "## 1. `long_function`\n\n```python\n@decorate\ndef long_function(a):\n"
    )
    assert "## 2. `Shop.method`\n\n```python\ndef method(self):\n    " in sheets
    for hidden in ("LIMIT", "import os", "a.py", "A shop", "def short"):
        assert hidden not in sheets
    truth = json.loads((tmp_path / "out" / "truth.json").read_text(encoding="utf-8"))
    assert truth[0] == {"number": 1, "path": "a.py", "line": 7, "name": "long_function"}
    assert [entry["number"] for entry in truth] == [1, 2]


def test_the_command_writes_the_sheets(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools" / "cold_reading.py"),
        str(write_package(tmp_path)),
    ]
    options = ["--seed", "7", "-n", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 definitions in ")
    assert (tmp_path / "out" / "sheets.md").read_text(encoding="utf-8").count("\n## ") == 1
