"""Run the command `talerec` in this process or another, and check its output."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from talerec.cli import main, terminal

SOURCE = str(Path(main.__file__).parents[2])
PYTHONPATH = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
terminal.console()  # takes its width from the environment before any test changes it

COMPILING = "compiling kernels, once\n"
RUN = [sys.executable, "-c", "from talerec.cli.main import main; main()"]


@dataclass
class Outcome:
    """Exit code, standard output and standard error of one run."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output of a run without errors, decoded as strict JSON."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=refuse)


def talerec(*args: object) -> Outcome:
    """Run the command in this process, without the note that kernels are compiled."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["talerec", *map(str, args)])
        try:
            main.main()
        except SystemExit as end:
            code = end.code
    errors = err.buffer.getvalue().decode().replace(COMPILING, "")  # from the first test to compile
    return Outcome(code, out.buffer.getvalue().decode(), errors)


def run_on_terminal(
    command: list[str], environment: dict[str, str], *, tty: bool = True
) -> tuple[str, str]:
    """Return standard output and standard error, a terminal or a pipe, of a successful command."""
    import pty  # not on Windows

    ours, theirs = pty.openpty() if tty else os.pipe()
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=theirs) as running:
        os.close(theirs)
        errors = b""
        with suppress(OSError):  # the other end of a terminal is closed
            while part := os.read(ours, 4096):
                errors += part
        out, _ = running.communicate()
    os.close(ours)
    assert running.returncode == 0, errors
    return out.decode(), errors.decode()


def works(*args: object) -> str:
    """Return the standard output of a successful command."""
    outcome = talerec(*args)
    assert outcome.code == 0, outcome
    assert "error" not in outcome.err
    return outcome.out


def refusal(*args: object) -> str:
    """Return the error message of a failing command, its only line of output."""
    outcome = talerec(*args)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", outcome.err), outcome.err
    return outcome.err.removeprefix("error: ").removesuffix("\n")


def write_log(path: Path, users: int = 20, items: int = 12, rows: int = 200) -> Path:
    """Write a CSV log with dates, so that no unit is guessed; every user and item has rows."""
    rng = np.random.default_rng(5)
    start = np.datetime64("2019-01-01", "us")
    pl.DataFrame(
        {
            "user_id": np.arange(rows) % users + 1,
            "item_id": [f"i{x}" for x in (np.arange(rows) + rng.integers(0, 3, rows)) % items],
            "timestamp": start + rng.integers(0, 360 * 86_400, rows).astype("timedelta64[s]"),
        }
    ).write_csv(path)
    return path
