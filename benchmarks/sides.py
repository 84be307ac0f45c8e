"""One benchmark on two checkouts in alternating turns: how many times the other's cost is this one's?

    python benchmarks/sides.py --other PATH --turns 9 -- benchmarks/query.py [ARGUMENTS]

Every run is a process of its own with the `src` of its checkout, and the script of its checkout where there is one (so
that module names may differ), else this one's; --same-script: always this one's. Who goes first changes from turn to turn; one turn before them compiles and
does not count. Figures are costs: the JSON object on a run's last line, with a number by name. For each, the median over
turns of ours / other, with a 95 % interval (bootstrap, seeded): below 1, this checkout is better.
Scripts of older checkouts that have no --json are read by the patterns below, as exactly as they print: take --same-script for
`query.py` and `tune.py`, which need public names alone, and `family.py LOG --run MODEL`, which always prints JSON.
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
#: Script -> figure -> its pattern; {} in a figure's name is the pattern's first group. Rates are turned into costs.
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
    """The costs that a run printed."""
    last = output.strip().splitlines()[-1]
    if last.startswith("{"):
        values = json.loads(last).items()
        return {name: float(value) for name, value in values if isinstance(value, int | float)}
    found: dict[str, float] = {}
    for name, pattern in PRINTED.get(script.name, {}).items():
        for groups in re.findall(pattern, output, re.MULTILINE):
            label, text = groups if isinstance(groups, tuple) else ("", groups)
            value = float(text.replace(",", ""))
            found[name.format(label)] = 1e6 / value if "users/s" in pattern else value
    if not found:
        sys.exit(
            f"{script} printed no JSON on its last line, and nothing that is known of it:\n{output}"
        )
    return found


def run(checkout: Path, script: str, arguments: list[str], same: bool) -> dict[str, float]:
    """One run of a script with one checkout's package; `same`: the script of this checkout, whichever runs."""
    own = checkout / "benchmarks" / Path(script).name
    path = own if own.exists() and not same else HERE / "benchmarks" / Path(script).name
    wanted = ["--json"] if "--json" in path.read_text(encoding="utf-8") else []
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, str(path), *arguments, *wanted]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return figures(path, done.stdout)


def turns_of(
    ours: Path, other: Path, count: int, script: str, arguments: list[str], same: bool = False
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """(ours, other's) figures of every turn; in odd turns the other runs first."""
    found = []
    for number in range(-1, count):  # the first one compiles
        pair = (ours, other) if number % 2 == 0 else (other, ours)
        first, second = (run(checkout, script, arguments, same) for checkout in pair)
        mine, theirs = (first, second) if number % 2 == 0 else (second, first)
        if number >= 0:
            found.append((mine, theirs))
            both = ", ".join(
                f"{name} {mine[name]:.4g} | {theirs[name]:.4g}" for name in shared([(mine, theirs)])
            )
            print(f"turn {number + 1}: {both}", file=sys.stderr, flush=True)
    return found


def shared(turns: list[tuple[dict[str, float], dict[str, float]]]) -> list[str]:
    """Figures that both sides have in every turn."""
    return [name for name in turns[0][0] if all(name in side for turn in turns for side in turn)]


def interval(ratios: list[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the median, from samples of the turns with replacement."""
    rng = random.Random(seed)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def summary(turns: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, dict[str, float]]:
    """For each figure the medians of both sides, and of the ratio with its interval."""
    made = {}
    for name in shared(turns):
        ratios = [ours[name] / other[name] for ours, other in turns]
        low, high = interval(ratios)
        made[name] = {
            "ours": statistics.median(ours[name] for ours, _ in turns),
            "other": statistics.median(other[name] for _, other in turns),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, required=True, help="the root of the other checkout")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--same-script", action="store_true", help="this checkout's, on both sides")
    parser.add_argument("command", nargs="+", help="after --: the script and its arguments")
    given = parser.parse_args()
    script, *arguments = given.command
    other, same = given.other.resolve(), given.same_script
    found = summary(turns_of(HERE, other, given.turns, script, arguments, same))
    print("| figure | ours | other | ours / other | 95 % |")
    print("|---|---|---|---|---|")
    for name, it in found.items():
        print(
            f"| {name} | {it['ours']:.4g} | {it['other']:.4g} | {it['ratio']:.3f} | {it['low']:.3f} to {it['high']:.3f} |"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
