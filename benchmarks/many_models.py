"""Seconds of `evaluate --models linear` against the sum of single commands, side by side.

    python benchmarks/many_models.py ml-1m.inter.gz amazon-beauty.inter.gz

For each log, nine single commands and one command with nine models run in turn, twice, each as a
process of its own (start, reading and printing included). The metrics of both are compared to the
last bit. `cpu` is the processor time of the processes, which hardly depends on other work on the
machine; `wall` is what a user waits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from talerec.evaluation import MODEL_LISTS

MODELS = MODEL_LISTS["linear"]
COMPARED = ("metrics", "metrics_hidden", "groups", "lists")


def run(log: Path, *options: str) -> tuple[Any, float, float]:
    """Run `talerec evaluate` with options; return its JSON, wall seconds and CPU seconds."""
    command = [sys.executable, "-m", "talerec", "evaluate", str(log), *options, "--json"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, env=dict(os.environ)).stdout
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(output), wall, cpu


def measure(log: Path) -> dict[str, float]:
    """Return wall and CPU seconds of single commands, and of the one with all models."""
    single_wall = single_cpu = 0.0
    singles = {}
    for name in MODELS:
        singles[name], wall, cpu = run(log, "--model", name)
        single_wall, single_cpu = single_wall + wall, single_cpu + cpu
        print(f"  {name}: wall {wall:.2f}, cpu {cpu:.2f}", file=sys.stderr, flush=True)
    answer, wall, cpu = run(log, "--models", "linear")
    for name, single in singles.items():
        for part in COMPARED:
            assert answer["models"][name][part] == single[part], (name, part)
    return {
        "single wall": single_wall, "many wall": wall, "wall ratio": wall / single_wall,
        "single cpu": single_cpu, "many cpu": cpu, "cpu ratio": cpu / single_cpu,
    }  # fmt: skip


def main() -> None:
    """Print a line per log and repetition."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    for log in options.logs:
        for _ in range(options.repeat):
            figures = measure(log)
            text = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
            print(f"{log.name}: {text}", flush=True)


if __name__ == "__main__":
    main()
