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
    found = run(*arguments)
    assert (found.returncode, found.stderr) == (0, "")
    assert f"Usage: {' '.join(['talerec', *arguments[:-1]])} [OPTIONS]" in found.stdout
    assert "__main__" not in found.stdout
    assert "-m talerec" not in found.stdout


def test_the_module_has_the_command_s_version_and_mistakes() -> None:
    assert run("--version").stdout == f"talerec {talerec.__version__}\n"
    found = run("nothing")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "error: no such command 'nothing' (talerec --help says more)\n"
