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

#: Runs commands one after the other, and prints what each said, how many kernels it compiled, and which
#: kernels it was the first of its process to call, with which types.
RUN = """
import io, json, sys
from contextlib import redirect_stdout
from talerec.cli.main import main
from talerec.runtime.compiling import compiled
from talerec.runtime.kernel_cache import KernelCache
asked, found, load = [], {}, KernelCache.load_overload
def load_overload(cache, signature, target):
    kernel = cache._kernel.py_func
    asked.append(f"{kernel.__module__}.{kernel.__qualname__} {signature}")
    return load(cache, signature, target)
KernelCache.load_overload = load_overload
for line in sys.stdin.read().splitlines():
    before, first, said = compiled().kernels, len(asked), io.StringIO()
    sys.argv = ["talerec", *line.split("|")]
    try:
        with redirect_stdout(said):
            main()
    except SystemExit as end:
        assert not end.code, line
    found[line] = [said.getvalue(), compiled().kernels - before, asked[first:]]
print(json.dumps(found))
"""


def run(commands: list[str]) -> Any:
    found = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input="\n".join(commands),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.slow
def test_after_warm_nothing_is_compiled_by_any_command(tmp_path: Path) -> None:
    """In an empty cache too: `warm` calls every kernel that a command calls, with the same types.

    So the cache of all tests is used: what others compiled hides no kernel that `warm` has forgotten.
    """
    log = tmp_path / "log.csv"
    said, count, warmed = run(["warm|--json"])["warm|--json"]
    told = json.loads(said)
    assert told["kernels"] == count
    assert told["seconds"] > 0
    assert len(warmed) > 50
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
    found = run(commands)
    assert len(found) == len(commands)
    assert {line: count for line, (_, count, _) in found.items() if count} == {}
    forgotten = {line: sorted({*asked} - {*warmed}) for line, (_, _, asked) in found.items()}
    assert {line: kernels for line, kernels in forgotten.items() if kernels} == {}
