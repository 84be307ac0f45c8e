"""Progress: bars on a terminal, plain lines elsewhere, never on standard output."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from command import PYTHONPATH, run_on_terminal
from talerec.cli import terminal
from talerec.runtime import stage

# Runs the command with a fit that reports compilation stages, as the library does.
SCRIPT = """
import sys
from talerec.cli.main import main
from talerec.models.counting.popular import Popular
from talerec.runtime.progress import stage
learn = Popular.learn_weights
def slow(*args):
    for _ in range(2):
        tick = stage("compile", 3)
        for _ in range(3):
            tick(1)
    return learn(*args)
Popular.learn_weights = slow
main()
"""


def run(*args: object, tty: bool) -> tuple[str, str]:
    """Return standard output and standard error, a terminal or a pipe, of `talerec ARGS`."""
    command = [sys.executable, "-c", SCRIPT, *map(str, args)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TERM": "xterm", "COLUMNS": "80"}
    return run_on_terminal(command, environment, tty=tty)


def test_compiling_is_one_plain_line_in_a_pipe(log: Path, tmp_path: Path) -> None:
    out, err = run("fit", log, "-o", tmp_path / "m.tale", "--model", "popular", tty=False)
    assert err == "compiling kernels, once\n"
    assert "popular from 200 rows" in out


def test_compiling_is_a_bar_on_a_terminal(log: Path, tmp_path: Path) -> None:
    out, err = run("fit", log, "-o", tmp_path / "m.tale", "--model", "popular", tty=True)
    assert re.search(r"compiling kernels, once.*100%", err)
    assert "compiling kernels" not in out


@pytest.mark.parametrize("tty", [False, True])
def test_compiling_leaves_json_alone(tty: bool, log: Path, tmp_path: Path) -> None:
    options = ("-o", tmp_path / "m.tale", "--model", "popular", "--json")
    out, err = run("fit", log, *options, tty=tty)
    assert json.loads(out)["model"] == "popular"
    assert ("compiling kernels, once" in err) == tty


def test_stages_without_a_label_are_silent_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_named_stages", set())
    for _ in range(2):  # a command may show progress several times
        with terminal.show_progress():
            stage("rank", 10)(10)
            stage("compile", 1)(1)
    with terminal.show_progress(quiet=True):
        stage("compile", 1)(1)
    assert capsys.readouterr().err == "compiling kernels, once\n"
