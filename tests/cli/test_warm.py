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

#: Runs commands one after the other. Prints the output of each, how many kernels it compiled, and
#: the kernels (with types) that no command called before it.
RUN = """
import io, json, sys
from contextlib import redirect_stdout
from talerec.cli.main import main
from talerec.runtime.jit import compilation_stats
from talerec.runtime.kernel_cache import KernelCache
called, results, load = [], {}, KernelCache.load_overload
def load_overload(cache, signature, target):
    kernel = cache._kernel.py_func
    called.append(f"{kernel.__module__}.{kernel.__qualname__} {signature}")
    return load(cache, signature, target)
KernelCache.load_overload = load_overload
for line in sys.stdin.read().splitlines():
    before, first, output = compilation_stats().kernels, len(called), io.StringIO()
    sys.argv = ["talerec", *line.split("|")]
    try:
        with redirect_stdout(output):
            main()
    except SystemExit as end:
        assert not end.code, line
    results[line] = [output.getvalue(), compilation_stats().kernels - before, called[first:]]
print(json.dumps(results))
"""


def run(commands: list[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        input="\n".join(commands),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_after_warm_nothing_is_compiled_by_any_command(tmp_path: Path) -> None:
    """`warm` calls every kernel that a command calls, with the same types.

    Calls are compared, not compilations: kernels that other tests compiled hide nothing.
    """
    log = tmp_path / "log.csv"
    output, count, warmed = run(["warm|--json"])["warm|--json"]
    counts = json.loads(output)
    assert counts["kernels"] == count
    assert counts["seconds"] > 0
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
    results = run(commands)
    assert len(results) == len(commands)
    assert {line: count for line, (_, count, _) in results.items() if count} == {}
    missing = {line: sorted({*called} - {*warmed}) for line, (_, _, called) in results.items()}
    assert {line: kernels for line, kernels in missing.items() if kernels} == {}
