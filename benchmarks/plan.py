"""Predict the time of a fit on a cluster from fits of smaller logs.

    python benchmarks/plan.py --users 1e8 --items 1e7 --rows 1e10 --cores 200
    python benchmarks/plan.py --check     # predicted and measured times of every run in plan.json

`spark.py --record` writes plan.json. A stage takes a fixed time, and a time of one core per unit
of its work: rows, pairs of rows of a user, pairs of items, items, messages between tasks, or rows
that tasks read. These costs are fitted (none below zero, relative errors) to the runs that are
marked `fitted`. The number of item pairs is estimated for all logs: items meet in proportion to
their popularity. A planned log has the popularity and the history lengths of the largest fitted
run.

It knows the models that have runs in plan.json alone: tale, and one run of tempo. It refuses
content and ranker: parts, rounds of queries and trees have units of their own, which nobody has
measured.
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

#: The units of work of each stage.
UNITS = {
    "read": ("rows",),
    "users": ("rows",),
    "rows": ("rows",),
    "trend": ("rows",),
    "habits": ("rows",),
    "learn": ("rows",),
    "gram": ("pairs", "sums", "messages", "scans"),
    "solve": ("items", "entries", "messages"),
}
_GROUP = 1e8  # rows of a group of partitions


@dataclass(frozen=True)
class Size:
    """What the cost of a log depends on."""

    rows: float
    users: float
    items: float
    pairs: float  # of rows of a user, a row with itself included
    popularity: list[list[float]]  # shares of the items, and of the rows that they have
    task_pairs: float = 8e6  # item pairs that a task holds

    @property
    def entries(self) -> float:
        """The expected number of ordered item pairs."""
        return self._expected(self.pairs)

    @property
    def groups(self) -> int:
        """The number of groups of rows, each counted separately."""
        return math.ceil(self.rows / _GROUP)

    @property
    def sums(self) -> float:
        """The ordered item pairs of all groups."""
        return self.groups * self._expected(self.pairs / self.groups)

    def messages(self, cores: float) -> float:
        """The messages between tasks: from each counting task to each summing task."""
        return self.counting(cores) * self.summing(cores)

    def scans(self, cores: float) -> float:
        """Rows that counting tasks read: each reads all rows of its group."""
        return self.counting(cores) * min(self.rows, _GROUP)

    def counting(self, cores: float) -> float:
        """The number of counting tasks, in all groups."""
        return self.groups * self._tasks(self.pairs / self.groups, cores / self.groups)

    def summing(self, cores: float) -> float:
        """The number of tasks that sum and solve."""
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
        values = [getattr(self, name) for name in names]
        return [float(value(cores) if callable(value) else value) for value in values]


def measure_size(log) -> Size:
    """Return the size of a log."""
    length = np.minimum(np.diff(log.ptr), 2500)
    rows_of = np.sort(np.bincount(log.item, minlength=len(log.items)))[::-1]
    cuts = np.unique(np.geomspace(1, len(rows_of), 64).astype(int))
    bounds = np.concatenate([[0], cuts])
    share = np.diff(bounds) / len(rows_of)
    have = np.add.reduceat(rows_of, bounds[:-1]) / rows_of.sum()
    pairs = float((length * (length + 1) // 2).sum())
    return Size(log.rows, len(log.users), len(log.items), pairs, [share.tolist(), have.tolist()])


def scale_size(args: argparse.Namespace, like: Size) -> Size:
    """Return the size of a log whose users and items are distributed as those of another."""
    rows, users, items, max_history = args.rows, args.users, args.items, args.max_history
    mean = rows / users
    spread = like.pairs / like.users / (like.rows / like.users) ** 2
    most_pairs = (max_history + 1) / 2 * rows  # if all histories were that long
    pairs = min(users * spread * mean**2, most_pairs)
    return Size(rows, users, items, pairs, like.popularity, args.task_pairs)


class Costs:
    """The fitted costs of each stage: a fixed time, and the time of one core per unit."""

    def __init__(self, runs: list[dict]) -> None:
        self.of = {
            stage: _fit_stage(runs, stage, names)
            for stage, names in UNITS.items()
            if all(stage in run["seconds"] for run in runs)
        }
        sizes = [Size(**run["size"]) for run in runs]
        units = np.array([size.units(("rows", "sums"), 1) for size in sizes])
        n_bytes = np.array([run["shuffled"] for run in runs], float)
        self.bytes, _ = nnls(units / n_bytes[:, None], np.ones(len(n_bytes)))

    def seconds(self, size: Size, cores: float) -> dict[str, float]:
        """Return the seconds of each stage."""
        return {
            stage: fixed + float(np.dot(each, size.units(UNITS[stage], cores))) / cores
            for stage, (fixed, each) in self.of.items()
        }

    def shuffled(self, size: Size) -> float:
        """Return the bytes that move between tasks."""
        return float(self.bytes @ size.units(("rows", "sums"), 1))


def _fit_stage(runs: list[dict], stage: str, names: tuple[str, ...]) -> tuple[float, np.ndarray]:
    took = np.array([run["seconds"][stage] for run in runs])
    units = np.array(
        [
            [1.0, *(u / run["cores"] for u in Size(**run["size"]).units(names, run["cores"]))]
            for run in runs
        ]
    )
    scale = units.max(axis=0)
    costs, _ = nnls(units / scale / took[:, None], np.ones(len(took)))
    costs = costs / scale
    return float(costs[0]), costs[1:]


def record(path: Path, size: Size, run: dict) -> None:
    """Add a run to a file, in place of an earlier one of the same model and log."""
    runs = json.loads(path.read_text()) if path.exists() else []
    names = ("rows", "users", "items")
    key = (run["model"], *(getattr(size, name) for name in names))
    runs = [old for old in runs if key != (old["model"], *(old["size"][name] for name in names))]
    path.write_text(json.dumps([*runs, {**run, "size": asdict(size)}], indent=1) + "\n")


def print_plan(size: Size, costs: Costs, args: argparse.Namespace) -> None:
    """Print the predicted time, cost and memory of a fit."""
    seconds, cores = costs.seconds(size, args.cores), args.cores
    hours = sum(seconds.values()) / 3600
    print(f"{size.rows:,.0f} rows of {size.users:,.0f} users, {size.items:,.0f} items")
    print(f"{size.pairs:.2e} pairs of rows, {size.entries:.2e} of items")
    stages = ", ".join(f"{stage} {time / 60:.1f} min" for stage, time in seconds.items())
    print(f"on {cores:,.0f} cores: {hours:.2f} hours ({stages})")
    price = hours * cores * args.price
    print(f"{hours * cores:,.0f} core hours, {price:,.0f} at {args.price} an hour")
    print(f"shuffled: {costs.shuffled(size) / 1e12:.2f} TB")
    group = min(size.rows, _GROUP)
    tasks = max(size.counting(cores), size.rows / 2e6)
    print(
        f"in the shared folder: rows {52 * size.rows / 1e12:.2f} TB, sums of pairs "
        f"{16 * size.sums / 1e12:.2f} TB, triangle of G {6 * size.entries / 1e12:.2f} TB"
    )
    counting = (80 * size.task_pairs + 36 * size.items) / 1e9
    print(
        f"memory: a counting task maps {40 * group / 1e9:.1f} GB and holds {counting:.1f} GB; "
        f"a solving task holds solve_bytes (4 GB) and {0.12 * size.items / 1e6:.1f} GB; "
        f"the driver {(100 * size.items) / 1e9:.1f} GB"
    )
    print(f"{math.ceil(tasks):,} tasks a stage; above ten thousand, raise task_pairs and task_rows")


def check(runs: list[dict], costs: Costs) -> None:
    """Print the predicted and the measured time of each run."""
    for run in runs:
        size = Size(**run["size"])
        guess, took = costs.seconds(size, run["cores"]), run["seconds"]
        predicted, measured = sum(guess.values()), sum(took[stage] for stage in guess)
        by_stage = ", ".join(f"{stage} {guess[stage]:.0f}/{took[stage]:.0f}" for stage in guess)
        state = "fitted" if run["fitted"] else "not seen"
        log = f"{size.rows:,.0f} rows, {size.users:,.0f} users, {size.items:,.0f} items ({state})"
        times = f"{predicted:.0f} s predicted, {measured:.0f} measured"
        shuffled = f"{costs.shuffled(size) / 1e9:.2f}/{run['shuffled'] / 1e9:.2f} GB"
        error = predicted / measured - 1
        print(f"{log}: {times} ({error:+.0%}); {by_stage}; shuffled {shuffled}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for name, value in (("users", 1e8), ("items", 1e7), ("rows", 1e10), ("cores", 200)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--max-history", type=float, default=2500)
    parser.add_argument("--task-pairs", type=float, default=1e8, help="of spark.fit")
    parser.add_argument("--price", type=float, default=0.05, help="of a core hour")
    parser.add_argument("--model", default="tale")
    parser.add_argument("--check", action="store_true", help="print predicted and measured times")
    parser.add_argument("--runs", type=Path, default=RUNS)
    args = parser.parse_args()
    runs = [run for run in json.loads(args.runs.read_text()) if run["model"] == args.model]
    fitted = [run for run in runs if run["fitted"]]
    if not fitted:
        parser.error(f"{args.runs.name} has no run of {args.model}")
    costs = Costs(fitted)
    if args.check:
        check(runs, costs)
        return
    largest = Size(**max(fitted, key=lambda run: run["size"]["rows"])["size"])
    print_plan(scale_size(args, largest), costs, args)


if __name__ == "__main__":
    main()
