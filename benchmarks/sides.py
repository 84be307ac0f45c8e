"""One benchmark on two checkouts in alternating turns: the ratio of their costs.

    python benchmarks/sides.py --other PATH --turns 9 -- benchmarks/query.py [ARGUMENTS]

Every run is a separate process with the `src` of its checkout, and the script of its checkout if it
has one (module names may differ), else this one's; --same-script: always this one's. The order
alternates from turn to turn; an uncounted turn before them compiles kernels.
Figures are costs: the JSON object on a run's last line, with a number by name. For each, the median
over turns of ours / other, with a 95 % interval (bootstrap, seeded): below 1, this checkout is
better. The output of older scripts without --json is parsed by the patterns below, as precisely as
it is printed; use --same-script for `query.py` and `tune.py`, which need only public names, and
`family.py LOG --run MODEL`, which always prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
RESAMPLES = 10_000

_NUMBER = r"([\d.,]+)"
#: Script -> figure -> its pattern; {} in a figure's name is the pattern's first group. Rates become
#: costs.
PRINTED = {
    "query.py": {
        "load s": rf"^load .*: {_NUMBER} s",
        "one by one, median ms": rf"^one by one: median {_NUMBER} ms",
        "one by one, 99 % ms": rf"99 % under {_NUMBER} ms",
        "batch of users, us each": rf"own histories: {_NUMBER} users/s",
        "batch of histories, us each": rf"histories of \d+: {_NUMBER} users/s",
    },
    "tune.py": {"tune s": rf"^tune: +{_NUMBER} s", "separate s": rf"^separate: +{_NUMBER} s"},
    "family.py": {"{} fit s": rf"^\| (\w+) \|.*\| {_NUMBER} \| \d+ \|$"},
}


def figures(script: Path, output: str) -> dict[str, float]:
    """Return the costs that a run printed."""
    last = output.strip().splitlines()[-1]
    if last.startswith("{"):
        values = json.loads(last).items()
        return {name: float(value) for name, value in values if isinstance(value, int | float)}
    costs: dict[str, float] = {}
    for name, pattern in PRINTED.get(script.name, {}).items():
        for groups in re.findall(pattern, output, re.MULTILINE):
            label, text = groups if isinstance(groups, tuple) else ("", groups)
            value = float(text.replace(",", ""))
            costs[name.format(label)] = 1e6 / value if "users/s" in pattern else value
    if not costs:
        sys.exit(
            f"{script} printed no JSON on its last line, and nothing that is known of it:\n{output}"
        )
    return costs


def run(checkout: Path, script: str, arguments: list[str], same: bool) -> dict[str, float]:
    """Run a script with a checkout's package; `same`: always this checkout's script."""
    own_script = checkout / "benchmarks" / Path(script).name
    path = (
        own_script if own_script.exists() and not same else HERE / "benchmarks" / Path(script).name
    )
    flags = ["--json"] if "--json" in path.read_text(encoding="utf-8") else []
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(path), *arguments, *flags]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return figures(path, done.stdout)


def turns_of(
    ours: Path, other: Path, count: int, script: str, arguments: list[str], same: bool = False
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return figures of every turn as (ours, other); in odd turns the other runs first."""
    pairs = []
    for number in range(-1, count):  # the first one compiles
        pair = (ours, other) if number % 2 == 0 else (other, ours)
        first, second = (run(checkout, script, arguments, same) for checkout in pair)
        this, theirs = (first, second) if number % 2 == 0 else (second, first)
        if number >= 0:
            pairs.append((this, theirs))
            both = ", ".join(
                f"{name} {this[name]:.4g} | {theirs[name]:.4g}" for name in shared([(this, theirs)])
            )
            print(f"turn {number + 1}: {both}", file=sys.stderr, flush=True)
    return pairs


def shared(turns: list[tuple[dict[str, float], dict[str, float]]]) -> list[str]:
    """Return the names of figures that both checkouts have in every turn."""
    return [name for name in turns[0][0] if all(name in side for turn in turns for side in turn)]


def interval(ratios: list[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median over turns."""
    rng = random.Random(seed)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def summary(turns: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return per figure the medians of both checkouts, and the ratio with its interval."""
    rows = {}
    for name in shared(turns):
        ratios = [ours[name] / other[name] for ours, other in turns]
        low, high = interval(ratios)
        rows[name] = {
            "ours": statistics.median(ours[name] for ours, _ in turns),
            "other": statistics.median(other[name] for _, other in turns),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, required=True, help="the root of the other checkout")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--same-script", action="store_true", help="this checkout's, on both sides")
    parser.add_argument("command", nargs="+", help="after --: the script and its arguments")
    args = parser.parse_args()
    script, *arguments = args.command
    other, same = args.other.resolve(), args.same_script
    ratios_by_name = summary(turns_of(HERE, other, args.turns, script, arguments, same))
    print("| figure | ours | other | ours / other | 95 % |")
    print("|---|---|---|---|---|")
    for name, it in ratios_by_name.items():
        print(
            f"| {name} | {it['ours']:.4g} | {it['other']:.4g} | {it['ratio']:.3f} | "
            f"{it['low']:.3f} to {it['high']:.3f} |"
        )
    print(json.dumps(ratios_by_name))


if __name__ == "__main__":
    main()
