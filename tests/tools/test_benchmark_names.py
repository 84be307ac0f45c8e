"""Benchmarks have names of their own: Python searches their folder first."""

from __future__ import annotations

import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_no_benchmark_hides_a_package() -> None:
    """With `benchmarks/coverage.py`, `import coverage` in Numba found the benchmark."""
    names = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert len(names) > 40
    folders = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")]
    assert PathFinder.find_spec("numpy", folders) is not None
    assert sorted(name for name in names if PathFinder.find_spec(name, folders)) == []
