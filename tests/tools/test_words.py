"""Each figure counts on a tiny package, and the check fails above the ceiling."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shape.counts import broken_ceilings, count_exempt, count_figures
from shape.limits import Limits, lower_ceilings, read_limits
from shape.words import FIGURES

ROOT = Path(__file__).parents[2]
BANNED = frozenset({"found", "made", "beside"})


def write_package(folder: Path, files: dict[str, str]) -> Path:
    """Write a package called shop with these files; return its folder."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "shop"


def places(folder: Path, figure: str, files: dict[str, str], **limits: dict[str, str]) -> list[str]:
    """Return `path:line text` for each place that a figure counts in a package of these files."""
    counts = count_figures(write_package(folder, files), Limits(BANNED, **limits))
    return [f"{path}:{line} {text}" for path, line, text in counts.places[figure]]


# -- banned names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "_found = 1",
        "__found: int = 1",
        "found += 1",
        "a, (found, b) = 1, (2, 3)",
        "for found in (): pass",
        "with f() as found: pass",
        "x = [1 for found in ()]",
        "if (found := 1): pass",
        "def found(): pass",
        "async def _found(): pass",
        "class A:\n    def found(self): pass",
        "class A:\n    found: int",
        "def f():\n    global found\n    found = 1",
    ],
)
def test_a_function_or_variable_with_a_banned_name_is_counted(tmp_path, code):
    assert len(places(tmp_path, "banned_names", {"a.py": code})) == 1


@pytest.mark.parametrize(
    "code",
    [
        "found_items = refound = 1",
        "print(found)",
        "x.found",
        "from a import found",
        "f(found=1)",
        "class Found: pass",
        "x = 'found'",
        "def f(found): pass",
        "self.found = 1",
    ],
)
def test_other_names_and_uses_are_not_counted_as_names_of_functions_and_variables(tmp_path, code):
    assert places(tmp_path, "banned_names", {"a.py": code}) == []


def test_a_variable_counts_each_time_it_is_set_and_a_place_is_where_it_stands(tmp_path):
    files = {"room/a.py": "found = 1\nmade = found\nfound = 2\n", "__init__.py": "made = 1\n"}
    assert places(tmp_path, "banned_names", files) == [
        "__init__.py:1 made",
        "room/a.py:1 found",
        "room/a.py:2 made",
        "room/a.py:3 found",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "def f(found): pass",
        "def f(*, _found=1): pass",
        "def f(*found): pass",
        "f = lambda found: 1",
        "self.found = 1",
        "x._found += 1",
        "try: pass\nexcept E as found: pass",
    ],
)
def test_parameters_attributes_and_exceptions_are_counted_apart(tmp_path, code):
    assert len(places(tmp_path, "banned_parameters", {"a.py": code})) == 1
    assert places(tmp_path / "names", "banned_names", {"a.py": code}) == []


def test_an_exception_names_the_class_or_function_and_counts_as_exempt(tmp_path):
    text = "class Card:\n    beside: int\n    def f(self, beside):\n        self.beside = beside\n"
    folder = write_package(tmp_path, {"a.py": text + "class Other:\n    beside: int\n"})
    reasons = {"Card.beside": "a field of the JSON", "f.beside": "promised"}
    limits = Limits(BANNED, name_exceptions=reasons)
    counts = count_figures(folder, limits)
    assert [place.line for place in counts.places["banned_names"]] == [6]
    assert counts.places["banned_parameters"] == []
    exempt = count_exempt(folder, limits, counts)
    assert (exempt["banned_names"], exempt["banned_parameters"]) == (1, 2)


# -- classes, lines and docstrings -----------------------------------------------------------------


def test_a_public_class_name_in_two_modules_is_counted_once(tmp_path):
    files = {"a.py": "class Rows: pass\n", "b.py": "if 1:\n    class Rows: pass\n"}
    assert places(tmp_path / "two", "repeated_classes", files) == [
        "b.py:2 class Rows is in a.py, b.py"
    ]
    files |= {"c.py": "class Rows: pass\n"}
    assert len(places(tmp_path / "three", "repeated_classes", files)) == 1


def test_private_classes_and_two_of_one_module_are_not_counted(tmp_path):
    files = {
        "a.py": "class _Rows: pass\nclass A: pass\nclass A: pass\n",
        "b.py": "class _Rows: pass",
    }
    assert places(tmp_path, "repeated_classes", files) == []


def test_a_line_has_100_characters_at_most_in_code_comments_and_docstrings(tmp_path):
    good = {"a.py": "x = 1  #" + "e" * 92 + "\n"}
    assert places(tmp_path / "good", "long_lines", good) == []
    bad = {"a.py": "x = 1  #" + "é" * 93 + '\n"""' + "e" * 98 + '"""\n'}
    assert places(tmp_path / "bad", "long_lines", bad) == [
        "a.py:1 101 characters",
        "a.py:2 104 characters",
    ]


@pytest.mark.parametrize(
    "form", ['"""{0}"""', '"""{0}\n\n    More.\n    """', '"""\n    {0}\n    """']
)
def test_the_first_line_of_a_docstring_has_88_characters_at_most(tmp_path, form):
    for owner in ("", "def f():\n    ", "class A:\n    ", "class A:\n  def f():\n    "):
        good = {"a.py": owner + form.format("e" * 88) + "\n"}
        assert places(tmp_path, "long_summaries", good) == []
        bad = {"a.py": owner + form.format("e" * 89) + "\n"}
        assert [p.partition(" ")[2] for p in places(tmp_path, "long_summaries", bad)] == [
            "89 characters"
        ]


def test_strings_that_are_no_docstrings_and_later_lines_may_be_long(tmp_path):
    text = 'x = "' + "e" * 89 + '"\ndef f():\n    """Short.\n\n    ' + "e" * 89 + '\n    """\n'
    assert places(tmp_path, "long_summaries", {"a.py": text}) == []


# -- parameters ------------------------------------------------------------------------------------

NINE = "a, b, c, d, e, f, g, h, i"


@pytest.mark.parametrize(
    ("code", "all_kinds", "not_exempt"),
    [
        (f"def f({NINE}): pass", 1, 1),
        (f"def f({NINE}, /): pass", 1, 1),
        (f"class A:\n    def f(self, {NINE[3:]}): pass", 1, 1),
        (f"def f(x, *, {NINE}): pass", 1, 0),
        (f"def _f(*, {NINE}): pass", 1, 1),
        (f"def f({NINE[3:]}): pass", 0, 0),
        (f"def f({NINE[3:]}, *args, **options): pass", 0, 0),
        (f"@app.command()\ndef f({NINE}): pass", 1, 1),  # not under cli/
    ],
)
def test_a_function_has_eight_parameters_at_most(tmp_path, code, all_kinds, not_exempt):
    files = {"a.py": code}
    assert len(places(tmp_path, "wide_functions", files)) == all_kinds
    assert len(places(tmp_path, "wide_signatures", files)) == not_exempt


@pytest.mark.parametrize("decorator", ["app.command()", "command(ASK, 'x')", "app.callback"])
def test_commands_of_typer_are_exempt_and_their_helpers_are_not(tmp_path, decorator):
    files = {"cli/a.py": f"@{decorator}\ndef f({NINE}): pass\n"}
    assert places(tmp_path / "command", "wide_signatures", files) == []
    files = {"cli/a.py": f"@cache\ndef f({NINE}): pass\n"}
    assert places(tmp_path / "helper", "wide_signatures", files) == [
        "cli/a.py:2 f has 9 parameters"
    ]


def test_a_wide_function_can_be_an_exception(tmp_path):
    files = {"a.py": f"class A:\n    def f({NINE}): pass\ndef f({NINE}): pass\n"}
    reasons = {"A.f": "the interface of a library"}
    wide = places(tmp_path, "wide_signatures", files, wide_exceptions=reasons)
    assert wide == ["a.py:3 f has 9 parameters"]


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "in_errors", "in_messages"),
    [
        ("raise ShopError('give --weight')", 1, 1),
        ("raise ShopError(f'{x} needs (--weight or {y} --event)')", 1, 1),
        ("raise errors.ShopError('--weight ' + '--event')", 1, 2),
        ("logger.warning('see --weight')", 0, 1),
        ("x = {'a': '--weight'}", 0, 1),
        ("raise ShopError('weight is a-b -- or c--d')", 0, 0),
        ("x = 'var(--paper)'", 0, 0),
        ("def f():\n    '''Of --weight.'''", 0, 0),
        ("x = 1  # --weight", 0, 0),
    ],
)
def test_a_flag_in_a_message_of_the_library_is_counted(tmp_path, code, in_errors, in_messages):
    for folder in ("data", "serve"):
        files = {f"{folder}/a.py": code}
        assert len(places(tmp_path / folder, "flags_in_errors", files)) == in_errors
        assert len(places(tmp_path / folder, "flags_in_messages", files)) == in_messages
    assert places(tmp_path / "cli", "flags_in_messages", {"cli/a.py": code}) == []


def test_a_file_may_be_excepted_from_the_rule_of_flags(tmp_path):
    files = {"a.py": "x = '--weight'", "b.py": "x = '--weight'"}
    reasons = {"a.py": "it writes command lines"}
    assert places(tmp_path, "flags_in_messages", files, flag_exceptions=reasons) == [
        "b.py:1 --weight"
    ]


# -- sizes, ceilings and the command ---------------------------------------------------------------


def test_lines_of_code_leave_out_docstrings_comments_and_blank_lines(tmp_path):
    text = '"""Two\nlines."""\n\n# a comment\nx = """a\n\nb"""  # code\n\n\n'
    text += 'def f():\n    """D."""\n    x\n'
    counts = count_figures(write_package(tmp_path, {"a.py": text}), Limits())
    assert counts.totals["code_lines"] == 5
    assert (counts.totals["files"], counts.n_docstrings) == (2, 2)


BAD = {
    "banned_names": {"a.py": "found = 1"},
    "banned_parameters": {"a.py": "def f(found): pass"},
    "repeated_classes": {"a.py": "class A: pass", "b.py": "class A: pass"},
    "long_lines": {"a.py": "#" * 101},
    "long_summaries": {"a.py": f"'''{'e' * 89}'''"},
    "wide_functions": {"a.py": f"def f(*, {NINE}): pass"},
    "wide_signatures": {"a.py": f"def f({NINE}): pass"},
    "flags_in_errors": {"a.py": "raise ShopError('--weight')"},
    "flags_in_messages": {"a.py": "x = '--weight'"},
}


def test_every_figure_has_a_bad_sample():
    assert set(BAD) == set(FIGURES)


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_figure_above_its_ceiling_is_a_broken_rule(tmp_path, name):
    folder = write_package(tmp_path, BAD[name])
    assert list(broken_ceilings(folder, Limits(BANNED, ceilings={name: 1}))) == []
    broken = list(broken_ceilings(folder, Limits(BANNED, ceilings={name: 0})))
    assert f": 1, more than 0 (--places {name})" in broken[0]
    assert broken[1].startswith(("shop/a.py:1: ", "shop/b.py:1: "))


@pytest.mark.parametrize("name", ["files", "code_lines"])
def test_a_package_above_its_size_is_a_broken_rule(tmp_path, name):
    folder = write_package(tmp_path, {"a.py": "x = 1\ny = 2\n"})
    assert list(broken_ceilings(folder, Limits(ceilings={name: 2}))) == []
    (line,) = broken_ceilings(folder, Limits(ceilings={name: 1}))
    assert ": 2, more than 1" in line


LIMITS = """
[ceilings]
banned_names = {}  # the goal is 0
long_lines = 0
[banned]
names = ["found"]
[banned.exceptions]
"Card.found" = "{}"
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "house.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_checks_counts_lists_and_lowers(tmp_path):
    folder = write_package(tmp_path, {"a.py": "found = 1\nfound = 2\n"})
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS.format(1, "promised"), encoding="utf-8")
    result = run(folder, "--limits", limits, "--check")
    assert result.returncode == 1
    assert "banned names of functions and variables: 2, more than 1" in result.stdout
    result = run(folder, "--limits", limits, "--places", "banned_names")
    assert result.stdout.splitlines() == ["shop/a.py:1: found", "shop/a.py:2: found"]
    result = run(folder, "--limits", limits, "--counts", "--json", tmp_path / "counts.json")
    assert "       2  found" in result.stdout
    written = json.loads((tmp_path / "counts.json").read_text())
    assert written["totals"]["banned_names"] == written["banned_by_file"]["a.py"] == 2
    limits.write_text(LIMITS.format(7, "promised"), encoding="utf-8")
    assert run(folder, "--limits", limits, "--lower").stdout == "lowered: banned_names\n"
    assert limits.read_text(encoding="utf-8") == LIMITS.format(2, "promised")
    assert run(folder, "--limits", limits, "--check").returncode == 0


def test_a_ceiling_is_never_raised(tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS.format(1, "promised"), encoding="utf-8")
    assert lower_ceilings(limits, {"banned_names": 3, "long_lines": 0}) == []
    assert limits.read_text(encoding="utf-8") == LIMITS.format(1, "promised")


def test_an_exception_needs_a_reason(tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text(LIMITS.format(1, " "), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the exception Card\.found needs a reason"):
        read_limits(limits)


def test_the_project_bans_every_name_of_the_first_list():
    limits = read_limits(ROOT / "tools" / "house.toml")
    first = (
        "found made told kept asked known given taken one mine own worth lately aside beside "
        "besides habits memories numbers settled halves half turned lasting again fading often "
        "usual judge judged keeping asking choosing wishes tried learned remembered wanted"
    )
    assert limits.banned >= set(first.split())
    assert set(limits.ceilings) == {*FIGURES, "files", "code_lines"}
