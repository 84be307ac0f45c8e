"""Faults that are planted: which there are, where each stands, and what tests say of it."""

from __future__ import annotations

import argparse
import ast
import os
from pathlib import Path

from mutants import draw_faults, find_faults, list_stages, read_trials, run_faults
from shape.sources import read_sources

CODE = '''
LIMIT = 3


def clip(value: int, most: int = 4) -> int:
    """Return at most 10."""
    é = "1" + "2"  # text is left alone
    if value > 10 and most:
        return 10
    return value - 1 if not most else value
'''
TEST = "from shop.a import clip\n\ndef test_ten(): assert clip(11) == 10 and clip(3) == 3\n"
OPTIONS = {"stages": 2, "marks": "", "timeout": 60, "jobs": 1, "minutes": 10}


def write_package(folder: Path) -> Path:
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "shop" / "a.py").write_text(CODE, encoding="utf-8")
    return folder / "shop"


def test_faults_are_comparisons_operators_conditions_and_numbers_inside_functions(tmp_path):
    (source,) = (s for s in read_sources(write_package(tmp_path)) if s.path == "a.py")
    assert sorted(fault.name for fault in find_faults(source)) == [
        "a.py:10: 1 -> (1 + 1)",
        "a.py:10: not most -> (most)",
        "a.py:10: value - 1 -> (value) + (1)",
        "a.py:10: value - 1 if not most else value -> (value) if (not most) else (value - 1)",
        "a.py:8: 10 -> (10 + 1)",
        "a.py:8: value > 10 -> (value) >= (10)",
        "a.py:8: value > 10 and most -> (value > 10) or (most)",
        "a.py:9: 10 -> (10 + 1)",
    ]


def test_a_planted_fault_changes_its_own_expression_alone(tmp_path):
    (source,) = (s for s in read_sources(write_package(tmp_path)) if s.path == "a.py")
    for fault in find_faults(source):
        planted = fault.plant(source.text)
        ast.parse(planted)
        assert fault.after in planted.splitlines()[fault.line - 1]
        assert planted.replace(fault.after, fault.before, 1) == source.text


def test_draws_are_the_same_for_one_seed_and_no_longer_than_asked(tmp_path):
    package = write_package(tmp_path)
    assert draw_faults(package, 3, 4) == draw_faults(package, 3, 4)
    assert len(draw_faults(package, 3, 4)) == 4
    assert len(draw_faults(package, 3, 100)) == 8


def test_the_tests_of_the_room_and_of_the_contract_come_first_and_all_others_follow(tmp_path):
    for name in ("gram/test_pairs.py", "cli/test_main.py", "test_contract.py", "test_layers.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "logs.py").write_text("", encoding="utf-8")
    near, rest = list_stages(tmp_path, "gram/pairs.py")
    assert [Path(path).name for path in near] == ["gram", "test_contract.py"]
    assert [Path(path).name for path in rest] == ["cli", "test_layers.py"]


def test_a_seen_fault_names_its_test_and_a_survivor_is_listed_and_nothing_runs_twice(
    tmp_path, monkeypatch, capsys
):
    package = write_package(tmp_path / "src")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_shop.py").write_text(TEST, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    options = argparse.Namespace(**OPTIONS, out=tmp_path / "results.json")
    (source,) = (s for s in read_sources(package) if s.path == "a.py")
    faults = [fault for fault in find_faults(source) if fault.line in (8, 9)]
    trials = run_faults(faults, package, options)
    outcomes = {trial.fault.name: trial.outcome for trial in trials}
    assert outcomes == {
        "a.py:8: 10 -> (10 + 1)": "seen",
        "a.py:8: value > 10 -> (value) >= (10)": "survived",  # equal at 10
        "a.py:8: value > 10 and most -> (value > 10) or (most)": "seen",
        "a.py:9: 10 -> (10 + 1)": "seen",
    }
    assert {trial.by for trial in trials if trial.outcome == "seen"} == {
        f"FAILED tests{os.sep}test_shop.py::test_ten".replace(os.sep, "/")
    }
    assert read_trials(options.out) == trials
    assert run_faults(faults, package, options) == trials
    assert capsys.readouterr().out.count("survived ") == 1
