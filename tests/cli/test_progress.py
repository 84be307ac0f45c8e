"""Progress: bars on a terminal, plain lines elsewhere, never on standard output."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from command import PYTHONPATH, run_on_terminal
from talerec.cli import progress
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
    monkeypatch.setattr(progress, "_named_stages", set())
    for _ in range(2):  # a command may show progress several times
        with progress.show_progress():
            stage("rank", 10)(10)
            stage("compile", 1)(1)
    with progress.show_progress(quiet=True):
        stage("compile", 1)(1)
    assert capsys.readouterr().err == "compiling kernels, once\n"


def test_trials_are_counted_in_lines_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(float(second) for second in range(0, 1000, 10))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with progress.show_progress():
        tick = stage("trials", 10)
        tick(4)  # of an earlier call, which took no time in this one
        for n in range(6):
            tick(1, f"best NDCG@10 0.0{n + 1}00")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "trials: 5 of 10, best NDCG@10 0.0100, about 50 seconds left",
        "trials: 7 of 10, best NDCG@10 0.0300, about 30 seconds left",
        "trials: 9 of 10, best NDCG@10 0.0500, about 10 seconds left",
    ]
    with progress.show_progress(quiet=True):
        stage("trials", 2)(1, "best NDCG@10 0.0100")
    assert capsys.readouterr().err == ""
