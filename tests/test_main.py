"""`python -m talerec` is the command `talerec`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import talerec

SOURCE = str(Path(talerec.__file__).parents[1])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "100"}
    command = [sys.executable, "-m", "talerec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("evaluate", "--help")])
def test_the_module_names_itself_as_the_command(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {' '.join(['talerec', *arguments[:-1]])} [OPTIONS]" in done.stdout
    assert "__main__" not in done.stdout
    assert "-m talerec" not in done.stdout


def test_the_module_prints_the_version_and_errors_of_the_command() -> None:
    assert run("--version").stdout == f"talerec {talerec.__version__}\n"
    done = run("nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command 'nothing'; see talerec --help\n"
