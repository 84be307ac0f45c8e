#!/usr/bin/env python3
"""Plant small faults in a package, one at a time, and see whether its tests fail.

    python tools/mutants.py src/talerec --seed 7 -n 200 --out mutants.json
    python tools/mutants.py src/talerec --only gram/pairs.py:229 --out mutants.json
    python tools/mutants.py src/talerec --report mutants.json

A fault swaps a comparison, an operator or a condition, or adds one to a number. Each fault is
planted in a copy of the package, and pytest runs on that copy in stages: first the tests of the
fault's room and of the contract, then the rest of the suite. The first failing test ends a run:
the fault is *seen*. Faults that every stage passes have *survived*: they need a test, or a reason
why they change nothing.

Results are appended to the file of --out, and a repeated command continues there. A stage that
takes longer than --timeout counts as seen, like a crash: a fault that hangs a test is noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from shape.sources import Source, read_sources
from shape.tree import FunctionNode, package_folder

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
}  # fmt: skip
#: Rooms whose models answer queries: the contract tests run for their faults too.
QUERY_ROOMS = ("gram", "solvers", "ranking", "models", "data", "features")


@dataclass(frozen=True)
class Fault:
    """A change of a few characters in one line of the package."""

    path: str  # from the package's folder: gram/pairs.py
    line: int  # from 1, as is `end_line`
    column: int  # of the first replaced character, in bytes of UTF-8, as `ast` counts
    end_line: int
    end_column: int
    before: str  # the replaced text
    after: str

    @property
    def name(self) -> str:
        """The fault as one line of a report."""
        return f"{self.path}:{self.line}: {_one_line(self.before)} -> {_one_line(self.after)}"

    def plant(self, text: str) -> str:
        """Return the text of the file with the fault."""
        lines = text.encode().splitlines(keepends=True)
        head = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        tail = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (head + self.after.encode() + tail).decode()


def _one_line(text: str) -> str:
    return " ".join(text.split())


# -- which faults there are ------------------------------------------------------------------------


def find_faults(source: Source) -> Iterator[Fault]:
    """Yield every fault of a file: expressions inside functions, annotations left out."""
    for node in source.tree.body:
        for function in ast.walk(node):
            if isinstance(function, FunctionNode):
                for statement in function.body:
                    yield from _faults_within(source, statement)


def _faults_within(source: Source, node: ast.AST) -> Iterator[Fault]:
    """Yield the faults of a statement or expression; inner functions are left to their own turn."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return
    changed = _change(node, source.text)
    if isinstance(node, ast.expr) and changed is not None:
        before = ast.get_source_segment(source.text, node) or ""
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        yield Fault(
            source.path, node.lineno, node.col_offset, end_line, end_column, before, changed
        )
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _faults_within(source, child)


def _change(node: ast.AST, text: str) -> str | None:
    """Return the source of an expression with its fault, or None if it has none."""

    def source(part: ast.expr) -> str:
        return f"({ast.get_source_segment(text, part)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        sign = COMPARISONS[type(node.ops[0])]
        return f"{source(node.left)} {sign} {source(node.comparators[0])}"
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _joins_text(node):
        return f"{source(node.left)} {OPERATORS[type(node.op)]} {source(node.right)}"
    if isinstance(node, ast.BoolOp):
        sign = " or " if isinstance(node.op, ast.And) else " and "
        return sign.join(map(source, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return source(node.operand)
    if isinstance(node, ast.IfExp):
        return f"{source(node.orelse)} if {source(node.test)} else {source(node.body)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return f"({node.value!r} + 1)"
    return None


def _joins_text(node: ast.BinOp) -> bool:
    """Return whether an operator joins or formats strings, where a swap is only a TypeError."""
    texts = (ast.JoinedStr, ast.List)
    return any(
        isinstance(part, texts) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in (node.left, node.right)
    )


def draw_faults(folder: Path, seed: int, n_drawn: int) -> list[Fault]:
    """Return `n_drawn` random faults of a package; the same tree and seed draw the same ones."""
    faults = [fault for source in read_sources(folder) for fault in find_faults(source)]
    return random.Random(seed).sample(faults, min(n_drawn, len(faults)))


# -- running the tests -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What the tests said of one fault."""

    fault: Fault
    outcome: str  # "seen", "survived", or "unfinished" where later stages were left out
    stage: int  # the number of the last stage that ran, from 1
    by: str  # the first failing test, or why the run ended
    seconds: float


def list_stages(tests: Path, path: str) -> list[list[str]]:
    """Return the paths of tests per stage for a fault in the file `path` of the package."""
    room = path.split("/")[0].removesuffix(".py")
    near = [tests / room] if (tests / room).is_dir() else []
    if room in QUERY_ROOMS:
        near.append(tests / "test_contract.py")
    rest = [
        child
        for child in sorted(tests.iterdir())
        if (child.is_dir() or child.name.startswith("test_"))
        and child not in near
        and any(child.rglob("test_*.py") if child.is_dir() else [child])
    ]
    return [[str(child) for child in paths] for paths in (near, rest) if paths]


def try_fault(fault: Fault, package: Path, tests: Path, limits: argparse.Namespace) -> Trial:
    """Run the stages of tests on a copy of the package with the fault."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / package.name
        shutil.copytree(package, copy)  # with its compiled kernels
        target = copy / fault.path
        target.write_text(fault.plant(target.read_text(encoding="utf-8")), encoding="utf-8")
        stages = list_stages(tests, fault.path)
        outcome, by, last = "survived", "", 0
        while outcome == "survived" and last < min(len(stages), limits.stages):
            by = _first_failure(stages[last], Path(folder), limits)
            outcome = "seen" if by else outcome
            last += 1
        if outcome == "survived" and last < len(stages):
            outcome = "unfinished"
    return Trial(fault, outcome, last, by, round(time.monotonic() - start, 1))


def _first_failure(paths: list[str], source: Path, limits: argparse.Namespace) -> str:
    """Run pytest until its first failure; return the name of that test, or "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:xdist", "-m", limits.marks] if limits.marks else ["-p", "no:xdist"]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            [*command, *paths],
            env=environment,
            capture_output=True,
            text=True,
            timeout=limits.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if run.returncode in (0, 5):  # all passed, or nothing was collected
        return ""
    failed = [
        line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR tests"))
    ]
    return failed[0].split(" - ")[0] if failed else f"exit status {run.returncode}"


# -- the command -----------------------------------------------------------------------------------


def read_trials(path: Path) -> list[Trial]:
    """Return the trials of a results file, one JSON object per line."""
    if not path.exists():
        return []
    trials = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        trials.append(Trial(Fault(**fields.pop("fault")), **fields))
    return trials


def print_report(trials: list[Trial]) -> None:
    """Print the share of faults that were seen, per room and in total, and those that were not."""
    rooms = Counter(trial.fault.path.split("/")[0] for trial in trials)
    seen = Counter(trial.fault.path.split("/")[0] for trial in trials if trial.outcome == "seen")
    for room, count in sorted(rooms.items()):
        print(f"{room:<16} {seen[room]:>4} of {count:>4}")
    total = f"{sum(seen.values())} of {len(trials)} faults seen"
    print(f"{total} ({sum(seen.values()) / max(len(trials), 1):.1%})")
    for trial in trials:
        if trial.outcome != "seen":
            print(f"{trial.outcome} after stage {trial.stage}: {trial.fault.name}")


def run_faults(faults: list[Fault], package: Path, options: argparse.Namespace) -> list[Trial]:
    """Try the faults that the results file lacks, `--jobs` at a time; return all trials."""
    trials = read_trials(options.out)
    done = {trial.fault for trial in trials}
    deadline = time.monotonic() + 60 * options.minutes

    def attempt(fault: Fault) -> Trial | None:
        if time.monotonic() > deadline:
            return None
        return try_fault(fault, package, Path("tests").resolve(), options)

    with ThreadPoolExecutor(options.jobs) as pool:
        for trial in pool.map(attempt, [fault for fault in faults if fault not in done]):
            if trial is None:
                continue
            trials.append(trial)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
            print(f"{trial.outcome:<10} {trial.seconds:>6} s  {trial.fault.name}  {trial.by}")
    return trials


def main() -> int:
    """Run the command; return the exit status: 1 if fewer faults are seen than --least."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the folder of a package, or one that holds one")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("-n", type=int, default=200, help="how many faults to draw")
    parser.add_argument("--only", metavar="FILE:LINE", help="all faults of one line instead")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"), help="the results")
    parser.add_argument("--report", type=Path, help="print the report of a results file, and end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    parser.add_argument("--stages", type=int, default=2, help="how many stages to run")
    parser.add_argument("--marks", default="", help="pytest's -m: which tests run")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a stage")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no fault after so many")
    parser.add_argument("--least", type=float, default=0.0, help="share that has to be seen")
    options = parser.parse_args()
    package = package_folder(options.root)
    if options.report:
        print_report(read_trials(options.report))
        return 0
    if options.only:
        path, _, line = options.only.partition(":")
        faults = [
            fault
            for source in read_sources(package)
            if source.path == path
            for fault in find_faults(source)
            if fault.line == int(line)
        ]
    else:
        faults = draw_faults(package, options.seed, options.n)
    trials = run_faults(faults, package, options)
    print_report(trials)
    seen = sum(trial.outcome == "seen" for trial in trials)
    return int(seen < options.least * len(trials))


if __name__ == "__main__":
    sys.exit(main())
