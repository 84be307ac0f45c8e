"""What a fit on a cluster will take, from what fits of smaller logs took (`plan.json`, which `spark.py --record` writes).

    python benchmarks/plan.py --users 1e8 --items 1e7 --rows 1e10 --cores 200
    python benchmarks/plan.py --check            # predicted beside measured, for every run in plan.json

A stage takes a fixed time, and a time of one core per row, per pair of rows of a user, per pair of items that some
user has, per item, per piece that one task sends another, and per row that a task looks at, whichever it works on. These numbers are fitted (none below zero, relative errors) to the runs
that are marked `fitted`, and to no others. How many pairs of items there are is not measured but reckoned, alike for
measured logs and for others: items meet as often as their popularity says. A log that is only described has the
popularity and the spread of histories of the largest fitted run.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

RUNS = Path(__file__).with_name("plan.json")

#: What the time of each stage grows with, beside a fixed part.
GROWS = {
    "read": ("rows",),
    "users": ("rows",),
    "rows": ("rows",),
    "trend": ("rows",),
    "habits": ("rows",),
    "learn": ("rows",),
    "gram": ("pairs", "sums", "cells", "scans"),
    "solve": ("items", "entries", "cells"),
}
_GROUP = 1e8  # rows that lie together


@dataclass(frozen=True)
class Size:
    """A log, as far as its cost goes."""

    rows: float
    users: float
    items: float
    pairs: float  # of rows of a user, a row with itself included
    popularity: list[list[float]]  # shares of the items, and the shares of the rows that they have
    task_pairs: float = 8e6  # pairs of items that a task holds, the default of spark.fit

    @property
    def entries(self) -> float:
        """Ordered pairs of items that are expected to occur."""
        return self._expected(self.pairs)

    @property
    def groups(self) -> int:
        """Groups of rows, which are counted apart."""
        return math.ceil(self.rows / _GROUP)

    @property
    def sums(self) -> float:
        """The ordered pairs of items of all groups."""
        return self.groups * self._expected(self.pairs / self.groups)

    def cells(self, cores: float) -> float:
        """What tasks send each other: everyone who counts one piece to everyone who sums."""
        return self.counting(cores) * self.summing(cores)

    def scans(self, cores: float) -> float:
        """Rows that are looked at to find those of some targets: each task looks at its group."""
        return self.counting(cores) * min(self.rows, _GROUP)

    def counting(self, cores: float) -> float:
        """Tasks that count targets, in all groups."""
        return self.groups * self._tasks(self.pairs / self.groups, cores / self.groups)

    def summing(self, cores: float) -> float:
        """Tasks that sum and solve."""
        return self._tasks(self.pairs, cores)

    def _tasks(self, pairs: float, cores: float) -> float:
        share, rows = np.array(self.popularity)
        count = share * self.items
        each = np.divide(rows, count, out=np.zeros_like(rows), where=count > 0)
        bound = count @ np.minimum(each * 2 * pairs, self.items) / 2
        return max(float(bound) / self.task_pairs, cores)

    def _expected(self, pairs: float) -> float:
        share, rows = np.array(self.popularity)
        count = share * self.items
        each = np.divide(rows, count, out=np.zeros_like(rows), where=count > 0)
        return float(count @ -np.expm1(-pairs * np.outer(each, each)) @ count)

    def units(self, names: tuple[str, ...], cores: float) -> list[float]:
        found = [getattr(self, name) for name in names]
        return [float(one(cores) if callable(one) else one) for one in found]


def described(log) -> Size:
    """The size of a log that is there."""
    length = np.minimum(np.diff(log.ptr), 2500)
    rows_of = np.sort(np.bincount(log.item, minlength=len(log.items)))[::-1]
    cuts = np.unique(np.geomspace(1, len(rows_of), 64).astype(int))
    bounds = np.concatenate([[0], cuts])
    share = np.diff(bounds) / len(rows_of)
    have = np.add.reduceat(rows_of, bounds[:-1]) / rows_of.sum()
    pairs = float((length * (length + 1) // 2).sum())
    return Size(log.rows, len(log.users), len(log.items), pairs, [share.tolist(), have.tolist()])


def imagined(given: argparse.Namespace, like: Size) -> Size:
    """A log of the size that is asked for, whose users and items are spread as those of another."""
    rows, users, items, most = given.rows, given.users, given.items, given.max_history
    mean = rows / users
    spread = like.pairs / like.users / (like.rows / like.users) ** 2
    longest = (most + 1) / 2 * rows  # pairs, if every row had so many
    pairs = min(users * spread * mean**2, longest)
    return Size(rows, users, items, pairs, like.popularity, given.task_pairs)


class Costs:
    """What was fitted: of each stage a fixed time, and the time of one core per unit."""

    def __init__(self, runs: list[dict]) -> None:
        self.of = {
            stage: _fitted(runs, stage, names)
            for stage, names in GROWS.items()
            if all(stage in run["seconds"] for run in runs)
        }
        sizes = [Size(**run["size"]) for run in runs]
        grows = np.array([size.units(("rows", "sums"), 1) for size in sizes])
        moved = np.array([run["shuffled"] for run in runs], float)
        self.bytes, _ = nnls(grows / moved[:, None], np.ones(len(moved)))

    def seconds(self, size: Size, cores: float) -> dict[str, float]:
        """What each stage takes."""
        return {
            stage: fixed + float(np.dot(each, size.units(GROWS[stage], cores))) / cores
            for stage, (fixed, each) in self.of.items()
        }

    def shuffled(self, size: Size) -> float:
        """Bytes that move between tasks."""
        return float(self.bytes @ size.units(("rows", "sums"), 1))


def _fitted(runs: list[dict], stage: str, names: tuple[str, ...]) -> tuple[float, np.ndarray]:
    took = np.array([run["seconds"][stage] for run in runs])
    units = np.array(
        [
            [1.0, *(u / run["cores"] for u in Size(**run["size"]).units(names, run["cores"]))]
            for run in runs
        ]
    )
    scale = units.max(axis=0)
    found, _ = nnls(units / scale / took[:, None], np.ones(len(took)))
    found = found / scale
    return float(found[0]), found[1:]


def record(path: Path, kind: str, cores: int, size: Size, seconds: dict, shuffled: int, fitted: bool) -> None:  # fmt: skip
    """Add a run to a file, in place of an earlier one of the same log."""
    runs = json.loads(path.read_text()) if path.exists() else []
    named = (kind, size.rows, size.users, size.items)
    runs = [one for one in runs if named != (one["model"], *(one["size"][n] for n in ("rows", "users", "items")))]  # fmt: skip
    made = {"model": kind, "cores": cores, "fitted": fitted, "size": asdict(size)}
    runs.append({**made, "seconds": seconds, "shuffled": shuffled})
    path.write_text(json.dumps(runs, indent=1) + "\n")


def say(size: Size, costs: Costs, given: argparse.Namespace) -> None:
    seconds = costs.seconds(size, given.cores)
    hours = sum(seconds.values()) / 3600
    print(f"{size.rows:,.0f} rows of {size.users:,.0f} users, {size.items:,.0f} items; {size.pairs:.2e} pairs of rows, {size.entries:.2e} of items")  # fmt: skip
    print(f"on {given.cores:,.0f} cores: {hours:.2f} hours ({', '.join(f'{s} {t / 60:.1f} min' for s, t in seconds.items())})")  # fmt: skip
    print(f"{hours * given.cores:,.0f} core hours, {hours * given.cores * given.price:,.0f} at {given.price} an hour")  # fmt: skip
    print(f"shuffled: {costs.shuffled(size) / 1e12:.2f} TB")
    half, group = 6 * size.entries, min(size.rows, _GROUP)
    tasks = max(size.counting(given.cores), size.rows / 2e6)
    print(f"in the shared folder: rows {52 * size.rows / 1e12:.2f} TB, sums of pairs {16 * size.sums / 1e12:.2f} TB, half of G {half / 1e12:.2f} TB")  # fmt: skip
    print(f"memory: a counting task maps {40 * group / 1e9:.1f} GB and holds {(80 * size.task_pairs + 36 * size.items) / 1e9:.1f} GB; a solving task holds solve_bytes (4 GB) and {0.12 * size.items / 1e6:.1f} GB; the driver {(100 * size.items) / 1e9:.1f} GB")  # fmt: skip
    print(f"{math.ceil(tasks):,} tasks a stage: raise task_pairs and task_rows where that is above ten thousand")  # fmt: skip


def check(runs: list[dict], costs: Costs) -> None:
    for run in runs:
        size = Size(**run["size"])
        guess, took = costs.seconds(size, run["cores"]), run["seconds"]
        whole, measured = sum(guess.values()), sum(took[stage] for stage in guess)
        by = ", ".join(f"{stage} {guess[stage]:.0f}/{took[stage]:.0f}" for stage in guess)
        print(f"{size.rows:,.0f} rows, {size.users:,.0f} users, {size.items:,.0f} items ({'fitted' if run['fitted'] else 'not seen'}): {whole:.0f} s predicted, {measured:.0f} measured ({whole / measured - 1:+.0%}); {by}; shuffled {costs.shuffled(size) / 1e9:.2f}/{run['shuffled'] / 1e9:.2f} GB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    for name, value in (("users", 1e8), ("items", 1e7), ("rows", 1e10), ("cores", 200)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--max-history", type=float, default=2500)
    parser.add_argument("--task-pairs", type=float, default=1e8, help="of spark.fit")
    parser.add_argument("--price", type=float, default=0.05, help="of a core hour")
    parser.add_argument("--model", default="tale")
    parser.add_argument("--check", action="store_true", help="predicted beside measured")
    parser.add_argument("--runs", type=Path, default=RUNS)
    given = parser.parse_args()
    runs = [one for one in json.loads(given.runs.read_text()) if one["model"] == given.model]
    fitted = [one for one in runs if one["fitted"]]
    costs = Costs(fitted)
    if given.check:
        check(runs, costs)
        return
    like = Size(**max(fitted, key=lambda one: one["size"]["rows"])["size"])
    say(imagined(given, like), costs, given)


if __name__ == "__main__":
    main()
