"""The first and later runs of `evaluate` and `recommend`, of two checkouts in turns.

    python benchmarks/cold.py --other OTHER_CHECKOUT [--turns 3] [--model tempo] [--rows 100000]

Each run is a separate process. Cold: the cache of compiled kernels is empty. Warm: the same command
again. Without `--other`, only this checkout is measured. Seconds are medians over the turns;
processor seconds are reliable on a busy machine too.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

HERE = Path(__file__).parents[1]
RUN = """
try:
    from talerec.cli.main import main
except ImportError:
    from talerec.cli import main
main()
"""
Cost = tuple[float, float]  # seconds, processor seconds
WARM_RUNS = 3


def run(checkout: Path, cache: Path, *arguments: object) -> Cost:
    """Run the command of a checkout; what it cost."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    start, before = time.perf_counter(), _processor_seconds()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: talerec {' '.join(command[3:])} failed: {done.stderr}")
    return time.perf_counter() - start, _processor_seconds() - before


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(checkout: Path, folder: Path, log: Path, model: str) -> Iterator[tuple[str, Cost]]:
    """Yield the name and cost of each measurement of one checkout in one turn."""
    fitting, querying = folder / "fitting", folder / "asking"
    evaluate = ("evaluate", log, "--model", model, "--json")
    yield "evaluate cold", run(checkout, fitting, *evaluate)
    yield "evaluate warm", run(checkout, fitting, *evaluate)
    artifact = folder / "model.tale"
    run(checkout, fitting, "fit", log, "-o", artifact, "--model", model)
    recommend = ("recommend", artifact, "--users", "5", "--json")
    yield "recommend cold", run(checkout, querying, *recommend)
    for _ in range(WARM_RUNS):
        yield "recommend warm", run(checkout, querying, *recommend)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="another checkout of the project")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--model", default="tempo")
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args()
    sides = {"this": HERE} | ({"other": args.other.resolve()} if args.other else {})
    costs: dict[str, dict[str, list[Cost]]] = {side: {} for side in sides}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        log = work / "log.csv"
        run(HERE, work / "log", "synth", log, "--rows", args.rows)
        for checkout in sides.values():  # an installation compiles Python's own bytecode
            compileall.compile_dir(checkout / "src", quiet=2)
        for turn in range(args.turns):
            for side in list(sides)[:: -1 if turn % 2 else 1]:
                folder = work / f"{turn}-{side}"
                folder.mkdir()
                for measured, cost in measure(sides[side], folder, log, args.model):
                    costs[side].setdefault(measured, []).append(cost)
                    print(f"turn {turn + 1}, {side}: {measured} {cost[0]:.2f} s", flush=True)
    show(costs)


def show(costs: dict[str, dict[str, list[Cost]]]) -> None:
    """Print the medians of both checkouts, and their ratio."""
    print("\n| | " + " | ".join(f"{side} s | processor s" for side in costs) + " | ratio |")
    print("|---" * (2 + 2 * len(costs)) + "|")
    for name in costs["this"]:
        middle = {
            side: [median(cost[part] for cost in runs[name]) for part in (0, 1)]
            for side, runs in costs.items()
        }
        cells = [f"{value:.2f}" for side in costs for value in middle[side]]
        ratios = [
            f"{a / b:.2f}"
            for a, b in zip(middle["this"], middle.get("other", middle["this"]), strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} | {ratios[0]} ({ratios[1]} of processor time) |")


if __name__ == "__main__":
    main()
