"""What a context column is worth to the ranker: planted, shuffled, and written after the choice.

    python benchmarks/context.py                       # a synthetic log with a planted device
    python benchmarks/context.py shuffled --seeds 40   # the null: how often noise "helps"
    python benchmarks/context.py leak DATA             # online-retail with its price as context

Each line is one seed: NDCG@10 on test rows (leave-one-out) without the column and with it, and the
difference in standard errors (users are the unit).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

import talerec as tr
from talerec.data import ContextColumn

PARTS = "markov,popular,sknn"
SHARE = 0.3  # of the rows are of an item of their device's half of the catalogue


def planted_log(rows: int, seed: int) -> tr.Log:
    """Return a synthetic log with a device per row, which draws some of the items."""
    log = tr.synthetic_log(rows, seed=seed, titles=False)
    rng = np.random.default_rng(seed + 1)
    device = rng.integers(0, 2, log.rows)
    n_items = len(log.items)
    half = rng.permutation(n_items) % 2
    of_half = [np.flatnonzero(half == side) for side in (0, 1)]
    popularity = np.bincount(log.item, minlength=n_items)
    drawn = np.empty(log.rows, np.int32)
    for side in (0, 1):
        shares = popularity[of_half[side]] / popularity[of_half[side]].sum()
        n_rows = int((device == side).sum())
        drawn[device == side] = rng.choice(of_half[side], n_rows, p=shares)
    is_drawn = rng.random(log.rows) < SHARE
    item = np.where(is_drawn, drawn, log.item).astype(np.int32)
    names = np.array(["desk", "phone"])[device]

    column = ContextColumn.from_series("device", pl.Series(names))
    return replace(log, item=item, context=(column,)).compact()


def shuffle(log: tr.Log, seed: int) -> tr.Log:
    """Return the log with its context columns in random order."""
    order = np.random.default_rng(seed + 2).permutation(log.rows)
    return replace(log, context=tuple(column.take(order) for column in log.context))


def gains(log: tr.Log) -> np.ndarray:
    """Return NDCG@10 of each test case, by user."""
    split = tr.leave_one_out(log)
    result = tr.evaluate(tr.Ranker(parts=PARTS).fit(split.train), split)
    rank = result.frame["rank"].fill_null(0).to_numpy()
    return np.where((rank >= 1) & (rank <= 10), 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)


def compare(log: tr.Log) -> dict[str, float]:
    """Return the metrics without and with context, and the difference in standard errors."""
    without, with_it = gains(replace(log, context=())), gains(log)
    difference = with_it - without
    error = difference.std() / np.sqrt(len(difference))
    z = float(difference.mean() / error) if error > 0 else 0.0
    return {"without": float(without.mean()), "with": float(with_it.mean()), "z": z}


def main() -> None:
    """Print one line of JSON per seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["planted", "shuffled", "leak"]
    parser.add_argument("kind", choices=kinds, default="planted", nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.kind == "leak":
        path = arguments.data / "online-retail.csv.gz"
        print(json.dumps(compare(tr.k_core(tr.read_log(path, context=["price"]), 5))))
        return
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        log = planted_log(arguments.rows, seed)
        log = shuffle(log, seed) if arguments.kind == "shuffled" else log
        print(json.dumps({"seed": seed, **compare(log)}), flush=True)


if __name__ == "__main__":
    main()
