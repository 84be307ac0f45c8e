"""Benchmarks have names of their own: Python searches their folder first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

#: Imports packages from the folder of benchmarks, and prints the modules of this folder.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import numba, numpy, polars, scipy.sparse
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
print([file for file in files if file.startswith(sys.argv[1])])
"""


def test_no_benchmark_hides_a_package() -> None:
    """With `benchmarks/coverage.py`, `import coverage` in Numba found the benchmark."""
    command = [sys.executable, "-c", SCRIPT, str(BENCHMARKS)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
