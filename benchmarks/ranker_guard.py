"""How often the ranker's guard lets trees answer on logs of noise: resumable, log by log.

    python benchmarks/ranker_guard.py [--logs 40] [-o FILE]

Items of a log are drawn at random, so no order of candidates is better than another, and trees
should answer in 2.3 % of verdicts, of which z, the gain in standard errors, should have a standard
deviation of 1. Verdicts of one log are not independent. Every log is a line of FILE (JSON), and is
not fitted again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl

import talerec as tr

_USERS, _ITEMS, _ROWS = 400, 60, 5000
_KINDS = ("current, seen allowed", "current, seen hidden", "delayed, seen allowed",
          "delayed, seen hidden")  # fmt: skip


def draw_log(seed: int) -> tr.Log:
    """Return a log of which users, items and times are drawn at random."""
    drawn = np.random.default_rng(seed).integers(0, [_USERS, _ITEMS, 10**7], (_ROWS, 3))
    columns = {"user_id": drawn[:, 0], "item_id": drawn[:, 1], "timestamp": drawn[:, 2] + 10**9}
    return tr.Log.from_frame(pl.DataFrame(columns), time_unit="s")


def measure_verdicts(seed: int) -> list[float]:
    """Return z of the verdict of each kind of query and mode; NaN without one."""
    model = tr.Ranker(parts="markov,popular").fit(draw_log(seed))
    verdicts = [verdict for kind in model._state.trained.verdicts for verdict in kind]
    return [np.nan if verdict is None else verdict.z for verdict in verdicts]


def main() -> None:
    """Fit the logs that FILE does not have, and print a line per kind of verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=40)
    parser.add_argument("-o", "--out", type=Path, default=Path("ranker_guard.jsonl"))
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = dict(json.loads(line) for line in lines)
    for seed in range(options.logs):
        if seed not in done:
            done[seed] = measure_verdicts(seed)
            with options.out.open("a") as file:
                file.write(json.dumps([seed, done[seed]]) + "\n")
    z = np.array([done[seed] for seed in range(options.logs)])
    for name, column in zip((*_KINDS, "all"), (*z.T, z.ravel()), strict=True):
        column = column[~np.isnan(column)]
        passed = (column >= 2).sum()
        print(f"{name:24s} {len(column):4d} verdicts: z {column.mean():+.2f} ± {column.std():.2f}, "
              f"trees answer in {passed} ({passed / len(column):.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
