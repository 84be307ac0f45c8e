"""Each rule of the house fails on a tiny tree that breaks it, passes on one that keeps it, and the project keeps all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shape.graphs import cycles, import_graph, layers, with_parents
from shape.report import as_json, drawing
from shape.rooms import read_rooms
from shape.rules import House, broken_rules
from shape.tree import read_package

ROOT = Path(__file__).parents[2]
ROOMS = '[rooms]\nlow = ["low", "low.*"]\nhigh = ["high", "high.*"]\n'


def house(folder: Path, files: dict[str, str], rooms: str | None = None) -> House:
    """A package called shop with these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    modules = read_package(folder / "shop")
    if rooms is None:
        return House(folder / "shop", modules, None)
    (folder / "rooms.toml").write_text(rooms, encoding="utf-8")
    return House(folder / "shop", modules, read_rooms(folder / "rooms.toml", modules))


def assert_broken(found: House, *said: str) -> None:
    """Exactly these, in this order."""
    wrong = broken_rules(found)
    assert len(wrong) == len(said), wrong
    for line, part in zip(wrong, said, strict=True):
        assert part in line


@pytest.mark.parametrize(
    "back",
    [
        "from shop.one import a",
        "import shop.one",
        "from shop import one",
        "from .one import a",
        "def f():\n    from shop.one import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.one import a",
    ],
)
def test_modules_that_import_each_other_in_any_way_are_a_cycle(tmp_path, back):
    files = {"one.py": "from shop.two import b\na = 1", "two.py": f"{back}\nb = 2"}
    assert_broken(house(tmp_path, files), "in a circle: one, two")


def test_imports_one_way_are_no_cycle_and_neither_is_the_package_that_python_runs(tmp_path):
    files = {
        "__init__.py": "from shop.one import a",
        "one.py": "from shop.room.two import b\na = 1",
        "room/__init__.py": "from shop.room.two import b",
        "room/two.py": "from shop.room import three\nb = 2",
        "room/three.py": "import json",
    }
    found = house(tmp_path, files)
    assert_broken(found)
    runs = with_parents(import_graph(found.modules))
    assert cycles(runs) == [["room", "room.three", "room.two"]]
    assert layers(import_graph(found.modules)) == {
        "room.three": 0,
        "room.two": 1,
        "room": 2,
        "one": 2,
    }
    assert found.modules["room.three"].libraries == {"json"}


def test_an_import_of_a_higher_room_is_broken_and_of_a_lower_one_is_not(tmp_path):
    files = {"low/__init__.py": "", "low/a.py": "", "high/__init__.py": "", "high/b.py": ""}
    down = {**files, "high/b.py": "from shop.low import a"}
    assert_broken(house(tmp_path / "down", down, ROOMS))
    up = {**files, "low/a.py": "def f():\n    import shop.high.b"}
    said = "low/a.py: imports high.b (late), but room high stands above low"
    assert_broken(house(tmp_path / "up", up, ROOMS), said)


def test_a_module_in_no_room_or_in_two_is_broken(tmp_path):
    files = {"low.py": "", "high.py": ""}
    assert_broken(house(tmp_path / "good", files, ROOMS))
    lost = {**files, "other.py": ""}
    assert_broken(house(tmp_path / "lost", lost, ROOMS), "other is in no room")
    twice = ROOMS + 'third = ["lo*"]\n'
    assert_broken(house(tmp_path / "twice", files, twice), "low is in 2 rooms: low, third")


def test_six_files_may_stand_in_the_root_folder_and_seven_may_not(tmp_path):
    six = {f"m{number}.py": "" for number in range(5)}  # and __init__
    assert_broken(house(tmp_path / "six", six))
    seven = {**six, "m5.py": ""}
    assert_broken(house(tmp_path / "seven", seven), "7 files stand in the root folder")
    assert_broken(house(tmp_path / "rooms", {**six, "room/m5.py": ""}))


def test_a_file_has_400_lines_at_most(tmp_path):
    assert_broken(house(tmp_path / "good", {"a.py": "x = 1\n" * 400}))
    assert_broken(house(tmp_path / "long", {"a.py": "x = 1\n" * 401}), "401 lines, more than 400")


def test_a_function_has_60_lines_at_most_with_its_decorators(tmp_path):
    text = "class A:\n    @property\n    def f(self):\n" + "        self.x = 1\n" * 58
    assert_broken(house(tmp_path / "good", {"a.py": text}))
    longer = {"a.py": text + "        self.x = 1\n"}
    assert_broken(house(tmp_path / "long", longer), "shop/a.py:2: f has 61 lines, more than 60")


# -- tuples ----------------------------------------------------------------------------------------

TYPES = """
Array = np.ndarray[Any, Any]
Arrays = tuple[Any, ...]
class Scratch(NamedTuple):
    sums: Array
    pair: tuple[Array, Array]
def pairs(n: int) -> tuple[Array, Array]: ...
def one(n: int) -> Array: ...
"""


def numbered(folder: Path, code: str, decorator: str = "@kernel") -> list[str]:
    """What the rule finds in one compiled function."""
    text = f"{decorator}\n{code}\n"
    found = broken_rules(house(folder, {"types.py": TYPES, "kernels.py": text}))
    return [line.rpartition(": ")[2] for line in found]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(s: Arrays): return s[5]", ["s[5]"]),
        ("def f(s: Arrays): return s[-1]", ["s[-1]"]),
        ("def f(left: Arrays, i: int): return left[0][i]", ["left[0]"]),
        ("def f(s: Arrays): a, b = s[:2]", ["s[:2]"]),
        ("def f(s: tuple[Array, Array]): return s[1]", ["s[1]"]),
        ("def f(s: 'Arrays'): return s[1]", ["s[1]"]),
        ("def f(s: runtime.Arrays): return s[1]", ["s[1]"]),
        ("def f(s: Scratch): return s[0]", ["s[0]"]),
        ("def f(s: Scratch): return s.pair[0]", ["s.pair[0]"]),
        ("def f(s: Scratch):\n    sums, pair = s\n    return pair[0]", ["pair[0]"]),
        ("def f(n: int):\n    s = (np.zeros(n), np.ones(n))\n    return s[0]", ["s[0]"]),
        ("def f(n: int):\n    s = Scratch(n, n)\n    return s[0]", ["s[0]"]),
        ("def f(n: int):\n    s = pairs(n)\n    return s[0]", ["s[0]"]),
        ("def f(n: int): return pairs(n)[1]", ["pairs(n)[1]"]),
        ("def f(s: Arrays):\n    t = s\n    return t[1]", ["t[1]"]),
        ("def f(a: bool, s: Arrays):\n    t = s if a else s\n    return t[1]", ["t[1]"]),
        ("def f(*s: Array): return s[1]", ["s[1]"]),
        ("def f(s: tuple[Arrays, ...], i: int):\n    for t in s:\n        t[2]", ["t[2]"]),
        ("def f(s: tuple[Arrays, ...]):\n    for t in literal_unroll(s):\n        t[2]", ["t[2]"]),
        ("def f(s: tuple[Arrays, int]):\n    t, n = s\n    return t[1]", ["t[1]"]),
        ("def f(s: Any, i: int): return s[0][i]", ["s[0]"]),
        ("def f(s, i): return s[0][i]", ["s[0]"]),
    ],
)
def test_a_tuple_that_is_indexed_by_number_is_found(tmp_path, code, said):
    assert numbered(tmp_path, code) == said


@pytest.mark.parametrize(
    "code",
    [
        "def f(s: Array): return s[0] + s[-1]",
        "def f(s: Array, i: int): return s[0][i]",
        "def f(s: Array): return s[:2]",
        "def f(s: Arrays, i: int): return s[i]",
        "def f(s: Arrays):\n    a, b = s\n    return a[0] + b[1]",
        "def f(s: Scratch): return s.sums[0]",
        "def f(s: Scratch):\n    sums, pair = s\n    left, right = pair\n    return sums[0] + left[1]",
        "def f(n: int):\n    s = np.zeros((n, 2))\n    return s[0]",
        "def f(n: int): return one(n)[0]",
        "def f(n: int):\n    left, right = pairs(n)\n    return left[0]",
        "def f(s: tuple[Array, ...]):\n    for one in s:\n        one[0]",
        "def f(s: Any): return s[0]",
    ],
)
def test_an_array_and_a_tuple_that_is_unpacked_may_have_numbers(tmp_path, code):
    assert numbered(tmp_path, code) == []


@pytest.mark.parametrize(
    "decorator", ["@template", "@reducing", "@jit.kernel", "@kernel(cache=True)"]
)
def test_every_way_to_compile_a_function_is_seen(tmp_path, decorator):
    assert numbered(tmp_path, "def f(s: Arrays): return s[1]", decorator) == ["s[1]"]


def test_a_function_that_is_compiled_by_a_call_is_seen_and_plain_python_is_free(tmp_path):
    code = "def f(s: Arrays): return s[1]"
    assert numbered(tmp_path / "plain", code, "") == []
    assert numbered(tmp_path / "call", f"{code}\nfast = kernel(f)", "") == ["s[1]"]


# -- the command and the project -------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "house.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_ends_with_1_where_a_rule_is_broken_and_with_0_where_none_is(tmp_path):
    house(tmp_path / "bad", {"a.py": "x = 1\n" * 401})
    told = run(str(tmp_path / "bad" / "shop"), "--check")
    assert told.returncode == 1
    assert told.stdout.splitlines() == [
        "shop/a.py: 401 lines, more than 400",
        "broken rules: 1 (modules: 1)",
    ]
    house(tmp_path / "good", {"a.py": "x = 1\n"})
    told = run(str(tmp_path / "good"), "--check")
    assert (told.returncode, told.stdout) == (0, "broken rules: none (modules: 1)\n")


def test_the_report_shows_sizes_cycles_and_rooms(tmp_path):
    files = {"low.py": "def f():\n    return 1\n", "high.py": "from shop import low\n"}
    found = house(tmp_path, files, ROOMS)
    out, dot = tmp_path / "shape.json", tmp_path / "shape.dot"
    told = run(
        str(found.folder), "--rooms", str(tmp_path / "rooms.toml"), "--edges", "--json", str(out), "--dot", str(dot),
    )  # fmt: skip
    assert told.returncode == 0
    for part in ("2 modules, 3 lines", "high -> low", "imports that point up: none", "low 1"):
        assert part in told.stdout
    graph = import_graph(found.modules)
    assert as_json(found.modules, graph)["high"]["imports"] == {"low": "top"}
    assert '"high" -> "low";' in drawing(found.modules, graph, found.rooms, 9)
    assert dot.read_text().startswith("digraph house {")


def test_the_project_keeps_every_rule():
    modules = read_package(ROOT / "src" / "talerec")
    rooms = read_rooms(ROOT / "tools" / "rooms.toml", modules)
    assert broken_rules(House(ROOT / "src" / "talerec", modules, rooms)) == []
