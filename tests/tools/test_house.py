"""Each rule fails on a tiny package that breaks it, and the project keeps all rules."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from house import read_house
from shape.graphs import cycles, import_graph, layers, with_parents
from shape.report import as_json, drawing
from shape.rooms import packages_are_closed, read_doors, read_rooms
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


def assert_broken(broken_house: House, *texts: str) -> None:
    """Exactly these, in this order."""
    wrong = broken_rules(broken_house)
    assert len(wrong) == len(texts), wrong
    for line, part in zip(wrong, texts, strict=True):
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
    package = house(tmp_path, files)
    assert_broken(package)
    runs = with_parents(import_graph(package.modules))
    assert cycles(runs) == [["room", "room.three", "room.two"]]
    assert layers(import_graph(package.modules)) == {
        "room.three": 0,
        "room.two": 1,
        "room": 2,
        "one": 2,
    }
    assert package.modules["room.three"].libraries == {"json"}


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


SUBROOMS = """
[rooms]
"low.core" = ["low.core", "low.core.*"]
"low.other" = ["low.other", "low.other.*"]
low = ["low", "low.facade"]
high = ["high", "high.*"]
"""
SUBROOM_FILES = {
    "low/__init__.py": "",
    "low/facade.py": "from shop.low.other import b\nfrom shop.low.core.a import x",
    "low/core/__init__.py": "from shop.low.core.a import x",
    "low/core/a.py": "x = 1",
    "low/other/__init__.py": "",
    "low/other/b.py": "from shop.low.core.a import x",
    "high/__init__.py": "",
    "high/c.py": "from shop.low.core import x",
}


def test_a_sub_room_is_a_room_of_its_own_in_the_order(tmp_path):
    assert_broken(house(tmp_path / "down", SUBROOM_FILES, SUBROOMS))
    up = {**SUBROOM_FILES, "low/core/a.py": "import shop.low.other\nx = 1"}
    text = "low/core/a.py: imports low.other (top), but room low.other stands above low.core"
    assert_broken(house(tmp_path / "up", up, SUBROOMS), text)
    up = {**SUBROOM_FILES, "low/core/a.py": "import shop.low.facade\nx = 1"}
    texts = ("in a circle", "room low stands above low.core")
    assert_broken(house(tmp_path / "facade", up, SUBROOMS), *texts)
    lost = {**SUBROOM_FILES, "low/third/d.py": ""}
    assert_broken(house(tmp_path / "lost", lost, SUBROOMS), "low.third.d is in no room")


def closed_house(folder: Path, files: dict[str, str], rooms: str) -> House:
    """A package whose rooms file may say `packages = true`."""
    opened = house(folder, files, rooms)
    path = folder / "rooms.toml"
    return replace(opened, doors=read_doors(path) if packages_are_closed(path) else None)


@pytest.mark.parametrize(
    "line",
    [
        "from shop.low.core.a import x",
        "from shop.low.core import a",
        "import shop.low.core.a",
        "def f():\n    from shop.low.core.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.low.core.a import x",
    ],
)
def test_a_room_is_imported_by_its_package(tmp_path, line):
    """Rooms and sub-rooms alike, if the file of rooms says so."""
    files = {**SUBROOM_FILES, "low/facade.py": "", "low/other/b.py": "", "high/c.py": line}
    text = "high/c.py: imports low.core.a of another room; import from its package low.core"
    closed = "packages = true\n" + SUBROOMS
    assert_broken(closed_house(tmp_path / "closed", files, closed), text)
    assert_broken(closed_house(tmp_path / "open", files, SUBROOMS))
    door = closed + '[doors]\n"low.core.a" = "the worker starts it by its name"\n'
    assert_broken(closed_house(tmp_path / "door", files, door))


def test_siblings_packages_and_modules_without_a_package_are_imported_freely(tmp_path):
    files = {
        **SUBROOM_FILES,
        "low/facade.py": "from shop.low import other\nimport shop.low.core",
        "low/other/b.py": "from shop.low.core import x\nfrom shop.errors import E",
        "high/c.py": "from shop.high import d\nfrom shop.low import facade as f",
        "high/d.py": "",
        "errors.py": "class E(Exception): pass",
    }
    rooms = SUBROOMS.replace("[rooms]", 'packages = true\n[rooms]\nerrors = ["errors"]')
    text = "high/c.py: imports low.facade of another room; import from its package low"
    assert_broken(closed_house(tmp_path, files, rooms), text)


def test_a_stub_of_a_package_counts_as_its_imports(tmp_path):
    """`__init__.pyi` lists what a package imports on first use."""
    stub = "from shop.low.core.a import x as x\n"
    files = {**SUBROOM_FILES, "low/core/__init__.py": "", "low/core/__init__.pyi": stub}
    rooms = "packages = true\n" + SUBROOMS
    files |= {"low/facade.py": "", "low/other/b.py": "from shop.low.core import x"}
    good = closed_house(tmp_path / "good", files, rooms)
    assert_broken(good)
    assert good.modules["low.core"].imports == {"low.core.a": "late"}
    circle = {**files, "low/core/a.py": "from shop.low.core import y"}
    assert_broken(closed_house(tmp_path / "circle", circle, rooms), "circle: low.core, low.core.a")
    up = {**files, "low/core/__init__.pyi": "from shop.high.c import y as y\n", "high/c.py": ""}
    text = "low/core/__init__.py: imports high.c (late), but room high stands above low.core"
    past = "imports high.c of another room; import from its package high"
    assert_broken(closed_house(tmp_path / "up", up, rooms), text, past)


def test_a_package_may_export_from_the_modules_of_its_sub_rooms(tmp_path):
    stub = "from shop.low.core.a import x as x\n"
    files = {**SUBROOM_FILES, "low/__init__.pyi": stub, "low/facade.py": "", "low/other/b.py": ""}
    assert_broken(closed_house(tmp_path, files, "packages = true\n" + SUBROOMS))


def test_a_door_needs_a_reason(tmp_path):
    path = tmp_path / "rooms.toml"
    path.write_text('[doors]\n"low.a" = ""\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"the door low\.a needs a reason"):
        read_doors(path)


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
    broken = broken_rules(house(folder, {"types.py": TYPES, "kernels.py": text}))
    return [line.rpartition(": ")[2] for line in broken]


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
        "def f(s: Scratch):\n    sums, pair = s\n    left, right = pair\n"
        "    return sums[0] + left[1]",
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
    result = run(str(tmp_path / "bad" / "shop"), "--check")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "shop/a.py: 401 lines, more than 400",
        "broken rules: 1 (modules: 1)",
    ]
    house(tmp_path / "good", {"a.py": "x = 1\n"})
    result = run(str(tmp_path / "good"), "--check")
    assert (result.returncode, result.stdout) == (0, "broken rules: none (modules: 1)\n")


def test_the_report_shows_sizes_cycles_and_rooms(tmp_path):
    files = {"low.py": "def f():\n    return 1\n", "high.py": "from shop import low\n"}
    package = house(tmp_path, files, ROOMS)
    out, dot = tmp_path / "shape.json", tmp_path / "shape.dot"
    result = run(
        str(package.folder), "--rooms", str(tmp_path / "rooms.toml"), "--edges",
        "--json", str(out), "--dot", str(dot),
    )  # fmt: skip
    assert result.returncode == 0
    for part in ("2 modules, 3 lines", "high -> low", "imports that point up: none", "low 1"):
        assert part in result.stdout
    graph = import_graph(package.modules)
    assert as_json(package.modules, graph)["high"]["imports"] == {"low": "top"}
    assert '"high" -> "low";' in drawing(package.modules, graph, package.rooms, 9)
    assert dot.read_text().startswith("digraph house {")


def test_the_project_keeps_every_rule():
    tools = ROOT / "tools"
    project = read_house(ROOT / "src" / "talerec", tools / "rooms.toml", tools / "house.toml")
    assert broken_rules(project) == []
