"""Faults that are planted: which there are, which tests can see each, and what tests say of it."""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
from pathlib import Path

import pytest

from mutants import REASONS, print_report, read_reasons, run_faults
from mutation.calls import CallRecord, read_calls
from mutation.choice import Chooser, enclosing_function
from mutation.faults import Fault, draw_faults, find_faults
from mutation.trials import read_trials, record_calls
from shape.sources import Source, read_sources

CODE = '''
LIMIT = 3


def clip(value: int, most: int = 4) -> int:
    """Return at most 10."""
    é = "1" + "2"  # text is left alone
    if value > 10 and most:
        return 10
    return value - 1 if not most else value
'''
KERNELS = """
def kernel(function):
    return function


@kernel
def add(a, b):
    return a + b


@kernel
def add_twice(a, b):
    return add(add(a, b), b)


aliases = {"twice": add_twice}


class Sums:
    def total(self, values):
        def step(a, b):
            return a + b

        return step(add_twice(*values), aliases is None)


def unused(a):
    return a * 2
"""
TESTS = """
import os, subprocess, sys
import pytest
from shop.a import clip
from shop.kernels import Sums

def test_ten(): assert clip(11) == 10 and clip(3) == 3
def test_sums(): assert Sums().total([1, 2]) == 5
def test_fails(): assert clip(11) == 12
def test_process():
    code = "from shop.a import clip; raise SystemExit(clip(11) - 10)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
"""
OPTIONS = {"retry": False, "minutes": 10, "budget": 60, "limit": 600, "loop": 2}


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package, `src/shop`, with its tests, in the working directory."""
    for name, text in {
        "src/shop/__init__.py": "",
        "src/shop/a.py": CODE,
        "src/shop/kernels.py": KERNELS,
        "tests/shop/test_shop.py": TESTS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path / "src" / "shop"


def source_of(package: Path, path: str) -> Source:
    (source,) = (source for source in read_sources(package) if source.path == path)
    return source


def fault_of(package: Path, path: str, before: str) -> Fault:
    return next(f for f in find_faults(source_of(package, path)) if f.before == before)


def test_faults_are_comparisons_operators_conditions_and_numbers_inside_functions(package):
    assert sorted(fault.name for fault in find_faults(source_of(package, "a.py"))) == [
        "a.py:10: 1 -> (1 + 1)",
        "a.py:10: not most -> (most)",
        "a.py:10: value - 1 -> (value) + (1)",
        "a.py:10: value - 1 if not most else value -> (value) if (not most) else (value - 1)",
        "a.py:8: 10 -> (10 + 1)",
        "a.py:8: value > 10 -> (value) >= (10)",
        "a.py:8: value > 10 and most -> (value > 10) or (most)",
        "a.py:9: 10 -> (10 + 1)",
    ]


def test_a_planted_fault_changes_its_own_expression_alone(package):
    source = source_of(package, "a.py")
    for fault in find_faults(source):
        planted = fault.plant(source.text)
        ast.parse(planted)
        assert fault.after in planted.splitlines()[fault.line - 1]
        assert planted.replace(fault.after, fault.before, 1) == source.text


def test_draws_are_the_same_for_one_seed_and_no_longer_than_asked(package):
    assert draw_faults(package, 3, 4) == draw_faults(package, 3, 4)
    assert len(draw_faults(package, 3, 4)) == 4
    assert len(draw_faults(package, 3, 100)) == 8 + 5


def test_a_fault_belongs_to_the_innermost_function_around_it(package):
    source = source_of(package, "kernels.py")
    owners = [enclosing_function(source, fault) for fault in find_faults(source)]
    assert owners == [
        "kernels.py:add",
        "kernels.py:Sums.total",
        "kernels.py:Sums.total.step",
        "kernels.py:unused",
        "kernels.py:unused",
    ]


def test_recorded_calls_are_those_of_the_test_and_of_its_processes(package, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*")}
    record_calls(package, ["tests"], tmp_path / "calls")
    tests = {name.partition("::")[2]: test for name, test in read_calls(tmp_path / "calls").items()}
    assert {name: (test.passed, sorted(test.calls)) for name, test in tests.items()} == {
        "test_ten": (True, ["a.py:clip"]),
        "test_sums": (True, ["kernels.py:Sums.total", "kernels.py:Sums.total.step"]),
        "test_fails": (False, ["a.py:clip"]),
        "test_process": (True, ["a.py:clip"]),
    }
    assert all(0 <= test.seconds < 60 for test in tests.values())
    assert {path: path.stat().st_mtime_ns for path in package.rglob("*")} == before


def test_a_later_record_of_a_test_replaces_the_earlier(tmp_path):
    lines = [
        {"test": "t", "seconds": 1.0, "passed": False, "calls": ["a"]},
        {"test": "t", "calls": ["b"]},
        {"test": "t", "seconds": 2.0, "passed": True, "calls": ["c"]},
        {"test": "unknown", "calls": ["b"]},
    ]
    (tmp_path / "calls").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert read_calls(tmp_path / "calls") == {"t": CallRecord(2.0, True, {"b", "c"})}
    assert read_calls(tmp_path / "none") == {}


def test_tests_of_the_room_come_first_then_short_ones_and_files_stay_together(package):
    seconds = {
        "tests/models/test_b.py::slow": 9.0,
        "tests/models/test_b.py::quick": 1.0,
        "tests/kernels/test_k.py::slow": 5.0,
        "tests/models/test_c.py::middle": 2.0,
    }
    tests = {name: CallRecord(time, True, {"kernels.py:unused"}) for name, time in seconds.items()}
    tests["tests/models/test_c.py::other"] = CallRecord(0.1, True, {"a.py:clip"})
    tests["tests/models/test_c.py::failed"] = CallRecord(0.1, False, {"kernels.py:unused"})
    fault = fault_of(package, "kernels.py", "2")
    plan = Chooser(package, tests).choose(fault, budget=100)
    assert plan.order == [
        "tests/kernels/test_k.py::slow",
        "tests/models/test_b.py::quick",
        "tests/models/test_b.py::slow",
        "tests/models/test_c.py::middle",
    ]
    assert plan.files == [
        f"tests/{name}.py" for name in ("kernels/test_k", "models/test_b", "models/test_c")
    ]
    assert plan.skip == ["tests/models/test_c.py::other", "tests/models/test_c.py::failed"]
    assert plan.is_complete
    short = Chooser(package, tests).choose(fault, budget=8.5)
    assert [name.rpartition("::")[2] for name in short.order] == ["slow", "quick", "middle"]
    assert not short.is_complete
    assert Chooser(package, tests).choose(fault, budget=0).order == plan.order[:1]


def test_callers_stand_in_for_compiled_functions_and_a_file_or_room_for_uncalled_ones(package):
    def chosen(calls: dict[str, str], before: str) -> list[str]:
        tests = {name: CallRecord(1.0, True, {call}) for name, call in calls.items()}
        return Chooser(package, tests).choose(fault_of(package, "kernels.py", before), 10).order

    calls = {"tests/x.py::a": "kernels.py:Sums.total", "tests/x.py::b": "a.py:clip"}
    assert chosen(calls, "a + b") == ["tests/x.py::a"]  # by add_twice
    assert chosen(calls, "a * 2") == ["tests/x.py::a"]  # by the file
    calls = {"tests/kernels/x.py::a": "a.py:clip", "tests/x.py::b": "a.py:clip"}
    assert chosen(calls, "a * 2") == ["tests/kernels/x.py::a"]  # by the room
    assert chosen({"tests/x.py::b": "a.py:clip"}, "a * 2") == []


def test_a_seen_fault_names_its_test_and_a_survivor_is_listed_and_nothing_runs_twice(
    package, tmp_path, capsys
):
    options = argparse.Namespace(**OPTIONS, out=tmp_path / "results", calls=tmp_path / "calls")
    record_calls(package, ["tests"], options.calls)
    faults = [f for f in find_faults(source_of(package, "a.py")) if f.line in (8, 9)]
    trials = run_faults(faults, package, options)
    outcomes = {trial.fault.name: trial.outcome for trial in trials}
    assert outcomes == {
        "a.py:8: 10 -> (10 + 1)": "seen",
        "a.py:8: value > 10 -> (value) >= (10)": "survived",  # equal at 10
        "a.py:8: value > 10 and most -> (value > 10) or (most)": "seen",
        "a.py:9: 10 -> (10 + 1)": "seen",
    }
    assert {trial.by for trial in trials if trial.outcome == "seen"} == {
        "tests/shop/test_shop.py::test_ten"
    }
    assert list(read_trials(options.out).values()) == trials
    assert run_faults(faults, package, options) == trials
    assert capsys.readouterr().out.count("survived ") == 1

    new_test = (
        "\ndef test_below_ten(): assert clip(10, 0) == 9 and clip(10) == 10 and clip(9, 1) == 9"
    )
    new_test += "\ndef test_most(): assert clip(11, 1) == 10"
    with open("tests/shop/test_shop.py", "a", encoding="utf-8") as file:
        file.write(new_test)
    options.retry = True
    retried = run_faults(faults, package, options)
    assert [trial.outcome for trial in retried] == [trial.outcome for trial in trials]
    print_report(retried, {retried[0].fault: "seen all the same", faults[1]: "equal at 10"})
    report = capsys.readouterr().out
    assert "3 of 4 faults seen (75.0%)" in report
    assert "survived: a.py:8: value > 10" in report
    assert "equal at 10" in report


LOOP = """
def count(n):
    while n != 0:
        n = n - 1
    return n
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs signals of POSIX")
def test_a_fault_that_never_ends_or_breaks_the_import_is_seen(package, tmp_path):
    (package / "loop.py").write_text(LOOP, encoding="utf-8")
    Path("tests/shop/test_loop.py").write_text(
        "from shop.loop import count\ndef test_zero(): assert count(3) == 0\n", encoding="utf-8"
    )
    options = argparse.Namespace(**OPTIONS, out=tmp_path / "results", calls=tmp_path / "calls")
    record_calls(package, ["tests"], options.calls)
    (trial,) = run_faults([fault_of(package, "loop.py", "n - 1")], package, options)
    expected = f"tests/shop/test_loop.py::test_zero (signal {signal.SIGPROF})"
    assert (trial.outcome, trial.by) == ("seen", expected)
    broken = Fault("loop.py", 2, 0, 2, 3, "def", "deaf")
    (trial,) = run_faults([broken], package, options)
    assert (trial.outcome, trial.by) == ("seen", "collecting tests")


def test_a_fault_that_no_recorded_test_can_see_is_unfinished_at_once(package, tmp_path):
    options = argparse.Namespace(**OPTIONS, out=tmp_path / "results", calls=tmp_path / "none")
    (trial,) = run_faults([fault_of(package, "a.py", "not most")], package, options)
    assert (trial.outcome, trial.tests, trial.by) == ("unfinished", 0, "")


def test_every_reason_belongs_to_a_fault_that_the_package_can_have():
    package = Path(__file__).resolve().parents[2] / "src" / "talerec"
    tables = REASONS.read_text(encoding="utf-8").count("[[fault]]")
    named = {(fault.path, fault.change) for fault in read_reasons(REASONS, package)}
    assert len(named) >= tables > 0
