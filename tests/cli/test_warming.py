"""`talerec warm` compiles everything: afterwards no command compiles anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import PYTHONPATH
from talerec.models import MODELS

#: Runs commands one after the other, and prints how many kernels were compiled by each.
RUN = """
import json, sys
from contextlib import redirect_stdout
from talerec.cli.main import main
from talerec.runtime.compiling import compiled
found = {}
for line in sys.stdin.read().splitlines():
    before = compiled().kernels
    sys.argv = ["talerec", *line.split("|")]
    try:
        with redirect_stdout(sys.stderr):
            main()
    except SystemExit as end:
        assert not end.code, line
    found[line] = compiled().kernels - before
print(json.dumps(found))
"""


def run(cache: Path, code: list[str], given: str = "") -> Any:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "NUMBA_CACHE_DIR": str(cache)}
    found = subprocess.run(
        [sys.executable, *code], env=environment, input=given, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.slow
def test_after_warm_nothing_is_compiled_by_any_command(tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log.csv"
    warm = ["-m", "talerec", "warm", "--json"]
    first = run(cache, warm)
    assert first["kernels"] > 50
    assert first["seconds"] > 0
    assert run(cache, warm)["kernels"] == 0
    commands = [
        f"synth|--out|{log}|--rows|20000|--items|6000",
        f"describe|{log}|--core|2|--drop-duplicates",
    ]
    for name in (name for name, kind in MODELS.items() if kind.extra is None):
        model, kind = tmp_path / f"{name}.tale", f"--model|{name}"
        commands += [
            f"evaluate|{log}|{kind}|--core|3|--json",
            f"fit|{log}|{kind}|-o|{model}",
            f"recommend|{model}|--users|5|--json",
            f"recommend|{model}|--history|3,5|--hide-seen|--json",
            f"similar|{model}|5",
            f"explain|{model}|--history|3,5|--item|5",
        ]
    compiled = run(cache, ["-c", RUN], "\n".join(commands))
    assert len(compiled) == len(commands)
    assert {line: count for line, count in compiled.items() if count} == {}
