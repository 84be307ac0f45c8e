"""Tempo's fit beside TALE's, both with the local solver, in turns in one process.

    python benchmarks/tempo.py D/amazon-beauty.inter.gz [--core 5] [--ties random:0] [--turns 5]

Prints the median seconds of each step and the ratio. Without a file: a synthetic log.
"""

from __future__ import annotations

import argparse
import statistics
import time

import talerec as tr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?")
    parser.add_argument("--core", type=int)
    parser.add_argument("--ties", default="file")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    log = tr.read_log(args.log) if args.log else tr.synthetic_log(100_000, titles=False)
    log = tr.k_core(log, args.core) if args.core else log
    log = log if args.ties == "file" else tr.order_ties(log, args.ties)
    train = tr.leave_one_out(log).train
    models = {"tale": tr.TALE(solver="local"), "tempo": tr.Tempo(solver="local")}
    spent: dict[str, list[float]] = {name: [] for name in models}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for model in models.values():
        model.fit(train)  # compile
    for _ in range(args.turns):
        for name, model in models.items():
            start = time.perf_counter()
            model.fit(train)
            spent[name].append(time.perf_counter() - start)
            steps[name].append(dict(model.fitted.seconds))
    for name, seconds in spent.items():
        parts = ", ".join(
            f"{step} {statistics.median(turn[step] for turn in steps[name]):.2f}"
            for step in steps[name][0]
        )
        print(f"{name}: {statistics.median(seconds):.2f} s ({parts})")
    pairs = zip(spent["tempo"], spent["tale"], strict=True)
    print(f"tempo / tale: {statistics.median(a / b for a, b in pairs):.2f}")


if __name__ == "__main__":
    main()
