"""Tuning beside as many separate evaluations, in one process and one run.

    python benchmarks/tune.py LOG [--ties item] [--trials 100] [--set solver=local]

Separate: for every setting that the search tried, read the log, split it, fit and evaluate on
validation rows, as `talerec evaluate` does; every n-th setting is taken (`--every`), and the time
is scaled up. Kernels are compiled before.
"""

from __future__ import annotations

import argparse
import json
import time

import talerec as tr
from talerec.models.core import build_model, parse_settings


def separate(args: argparse.Namespace, values: dict[str, float]) -> float:
    """Return the seconds of one evaluation that starts from the file."""
    start = time.perf_counter()
    model = build_model(tr.TALE, values)
    tr.evaluate_log(model, tr.read_log(args.log), ties=args.ties, on="validation")
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--ties", default="file")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--set", action="append", default=["solver=local"])
    parser.add_argument("--json", action="store_true", help="seconds as JSON on the last line")
    args = parser.parse_args()
    fixed = parse_settings(tr.TALE, args.set)
    separate(args, fixed)  # compiles
    start = time.perf_counter()
    log = tr.read_log(args.log)
    result = tr.tune("tale", log, trials=args.trials, fixed=fixed, ties=args.ties)
    tuned = time.perf_counter() - start
    some = result.trials[:: args.every]
    alone = sum(separate(args, {**fixed, **trial.params}) for trial in some)
    alone *= args.trials / len(some)
    grams = len({tuple(t.params[n] for n in ("decay", "floor", "trend")) for t in result.trials})
    print(f"tune:     {tuned:8.1f} s for {args.trials} trials ({grams} Grams)")
    print(f"separate: {alone:8.1f} s ({len(some)} of them run, scaled)")
    print(
        f"{alone / tuned:.1f} times as fast; "
        f"best {result.metric} {result.value:.4f} on validation rows"
    )
    print(", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items()))
    if args.json:
        print(json.dumps({"tune s": tuned, "separate s": alone}))


if __name__ == "__main__":
    main()
