"""Seconds and memory of learning a ranker's trees, of two checkouts in turns.

    python benchmarks/ranker_trees.py --other OTHER_CHECKOUT [--turns 3] [--queries 600]

Each run is a process of its own, with one thread, that learns from random features of 3 times as
many queries as `--queries`, of which 7 in 10 have 150 candidates. Printed are processor seconds,
the peak memory in MB, and the size of the features.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).parents[1]
N_FEATURES, N_CANDIDATES = 57, 150
CODE = """
import json, sys, time
import numpy as np
import lightgbm
from talerec.models.ranker import learning
from talerec.models.ranker.examples import Examples
from talerec.runtime import peak_rss_mb

def examples(n, seed):
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(n) < 0.7, {n_candidates}, 0)
    ptr = np.concatenate([[0], np.cumsum(sizes)])
    rows = rng.normal(size=(ptr[-1], {n_features})).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[:, 1] = np.concatenate([np.arange(size) for size in sizes])
    score = np.nan_to_num(rows[:, 3]) + 0.5 * np.nan_to_num(rows[:, 4]) - np.log(rows[:, 1] + 3)
    score = (score + rng.gumbel(size=len(rows))).reshape(-1, {n_candidates})
    is_target = np.zeros(score.shape, np.int8)
    is_target[np.arange(len(score)), score.argmax(axis=1)] = 1
    gain = 0.1 * rng.random((n, 3))
    return Examples(rng.integers(0, n // 2, n), gain, ptr, rows, is_target.ravel())

sets = [examples(n, n) for n in ({queries}, 2 * {queries})]
names = [f"f{{i}}" for i in range({n_features})]
learn = getattr(learning, "learn_order", None) or learning.learn_trees  # of an older checkout
learn([examples(300, 1)], names, 0)  # compiles kernels
features_mb, start = sum(each.rows.nbytes for each in sets) / 2**20, time.process_time()
learned = learn(sets, names, 0)
seconds = time.process_time() - start
gains = [verdict.gain for verdict in learned.verdicts]
print(json.dumps([seconds, peak_rss_mb(), features_mb, *gains]))
"""


def measure(checkout: Path, queries: int) -> list[float]:
    """Return processor seconds, peak MB, MB of features, and NDCG@10 of both sets."""
    code = CODE.format(queries=queries, n_features=N_FEATURES, n_candidates=N_CANDIDATES)
    threads = {"TALEREC_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), **threads}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure both checkouts in turns, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="another checkout of the project")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--queries", type=int, default=600)
    args = parser.parse_args()
    sides = {"this": HERE} | ({"other": args.other.resolve()} if args.other else {})
    runs: dict[str, list[list[float]]] = {side: [] for side in sides}
    for turn in range(args.turns):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            runs[side].append(measure(sides[side], args.queries))
            print(side, [round(value, 3) for value in runs[side][-1]], flush=True)
    for side, rows in runs.items():
        seconds, peak, features, *gains = map(median, zip(*rows, strict=True))
        shown = ", ".join(f"{gain:.4f}" for gain in gains)
        print(f"{side}: {seconds:.1f} s, {peak:.0f} MB ({features:.0f} MB features), {shown}")


if __name__ == "__main__":
    main()
