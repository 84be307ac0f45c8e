#!/usr/bin/env python3
"""Plant small faults in a package, one at a time, and see whether its tests fail.

    python tools/mutants.py src/talerec --record tests           # once, as long as all tests take
    python tools/mutants.py src/talerec --seed 7 -n 200          # continues where it stopped
    python tools/mutants.py src/talerec --only gram/pairs.py:229
    python tools/mutants.py src/talerec --report

A fault swaps a comparison, an operator or a condition, or adds one to a number. It is planted in a
copy of the package, and pytest runs the tests that call the changed function, as --record noted
them in the file of --calls: tests of the fault's room first, short ones before long ones, at most
--budget seconds of recorded time. The first failing test ends the run: the fault is *seen*. A fault
that all these tests pass has *survived*: it needs a test, or a reason why it changes nothing that
can be observed, in tools/mutants.toml. If the budget left out tests, it is *unfinished*.

Results are appended to the file of --out. A repeated command tries only faults that the file lacks;
with --retry also those that were not seen. Tests that are newer than the record run first; record
their file again (--record tests/gram/test_gram.py) to have them chosen for other faults too.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

from mutation.calls import read_calls
from mutation.choice import Chooser
from mutation.faults import Fault, draw_faults, find_faults
from mutation.trials import Trial, read_trials, record_calls, try_fault, write_trial
from shape.sources import read_sources
from shape.tree import package_folder

REASONS = Path(__file__).with_suffix(".toml")


def read_reasons(path: Path, package: Path) -> dict[Fault, str]:
    """Return why faults change nothing that a test could observe, by fault.

    A table `[[fault]]` of the TOML file has the fault's `file`, the `code` of its line, the
    `change`, and a `reason`. It holds for each such line of the file.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["fault"] if path.exists() else []
    reasons = {(table["file"], table["code"], table["change"]): table["reason"] for table in tables}
    sources = {source.path: source for source in read_sources(package)}
    found: dict[Fault, str] = {}
    for file in sorted({table["file"] for table in tables} & set(sources)):
        lines = sources[file].text.splitlines()
        for fault in find_faults(sources[file]):
            key = file, lines[fault.line - 1].strip(), fault.change
            if key in reasons:
                found[fault] = reasons[key]
    return found


def print_report(trials: list[Trial], reasons: dict[Fault, str]) -> None:
    """Print how many faults were seen, per room and in total, and each that was not."""
    rooms = Counter(trial.fault.path.split("/")[0] for trial in trials)
    seen = Counter(trial.fault.path.split("/")[0] for trial in trials if trial.outcome == "seen")
    for room, count in sorted(rooms.items()):
        print(f"{room:<16} {seen[room]:>4} of {count:>4}")
    total = f"{seen.total()} of {len(trials)} faults seen"
    print(f"{total} ({seen.total() / max(len(trials), 1):.1%})")
    for trial in trials:
        if trial.outcome != "seen":
            print(f"{trial.outcome}: {trial.fault.name} ({trial.tests} tests)")
            print(f"    {reasons.get(trial.fault, 'no reason is known: it needs a test')}")


def run_faults(faults: list[Fault], package: Path, options: argparse.Namespace) -> list[Trial]:
    """Try the faults that the results file lacks; return the trials of all that were tried."""
    trials = read_trials(options.out)
    chooser = Chooser(package, read_calls(options.calls))
    deadline = time.monotonic() + 60 * options.minutes
    for fault in faults:
        if fault in trials and (trials[fault].outcome == "seen" or not options.retry):
            continue
        if time.monotonic() > deadline:
            break
        plan = chooser.choose(fault, options.budget)
        trial = try_fault(fault, package, plan, options.limit, options.loop)
        trials[fault] = trial
        write_trial(options.out, trial)
        print(f"{trial.outcome:<10} {trial.seconds:>6} s  {fault.name}  {trial.by}", flush=True)
    return [trials[fault] for fault in faults if fault in trials]


def list_faults(package: Path, options: argparse.Namespace) -> list[Fault]:
    """Return the faults that a command names: of one line, or drawn, of all rooms or some."""
    if options.only:
        path, _, line = options.only.partition(":")
        return [
            fault
            for source in read_sources(package)
            if source.path == path
            for fault in find_faults(source)
            if fault.line == int(line)
        ]
    rooms = options.rooms.split(",") if options.rooms else None
    return [
        fault
        for fault in draw_faults(package, options.seed, options.n)
        if rooms is None or fault.path.split("/")[0] in rooms
    ]


def main() -> int:
    """Run the command; return the exit status: 1 if fewer faults are seen than --least."""
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="the folder of a package, or one that holds one")
    parser.add_argument("--record", nargs="+", metavar="TESTS", help="note what these tests call")
    parser.add_argument("--calls", type=Path, default=Path("build/calls.jsonl"), help="the notes")
    parser.add_argument("--seed", type=int, default=7, help="of the draw")
    parser.add_argument("-n", type=int, default=200, help="how many faults to draw")
    parser.add_argument("--rooms", metavar="A,B", help="of the drawn faults, only those of rooms")
    parser.add_argument("--only", metavar="FILE:LINE", help="all faults of one line instead")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.jsonl"), help="the results")
    parser.add_argument("--report", action="store_true", help="print the results, and end")
    parser.add_argument("--retry", action="store_true", help="try unseen faults once more")
    parser.add_argument("--budget", type=float, default=240, help="recorded seconds per fault")
    parser.add_argument("--limit", type=float, default=1200, help="real seconds per fault")
    parser.add_argument("--loop", type=float, default=120, help="processor seconds of a hung test")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no fault after so many")
    parser.add_argument("--least", type=float, default=0.0, help="share that has to be seen")
    options = parser.parse_args()
    package = package_folder(options.root)
    for file in (options.calls, options.out):
        file.parent.mkdir(parents=True, exist_ok=True)
    if options.record:
        status = record_calls(package, options.record, options.calls)
        return 0 if status == 1 else status  # 1: some tests fail, and are not chosen
    if options.report:
        trials = list(read_trials(options.out).values())
    else:
        trials = run_faults(list_faults(package, options), package, options)
    print_report(trials, read_reasons(REASONS, package))
    seen = sum(trial.outcome == "seen" for trial in trials)
    return int(seen < options.least * len(trials))


if __name__ == "__main__":
    sys.exit(main())
