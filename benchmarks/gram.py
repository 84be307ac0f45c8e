"""Pairs per second of TALE's Gram, beside multiplying explicitly built rows with SciPy.

    python benchmarks/gram.py LOG   # such as ml-1m.inter.gz; without a log, a synthetic one

Both run on the same users: a sample small enough for the rows to be built. The whole log follows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy import sparse

import talerec as tr

DAY = 86_400_000_000
SETTINGS = {
    "decay": 1 / 512,
    "floor": 0.2,
    "window": 180.0,
    "trend": 0.0,
    "trend_side": "both",
    "same_time": "ordered",
    "max_history": 2500,
}


def pairs(log: tr.Log) -> int:
    length = np.diff(log.ptr)
    return int((length * (length - 1) // 2).sum())


def explicit_rows(log: tr.Log) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Return S and T with one row per prefix, built user by user with NumPy."""
    columns, values, lengths, targets = [], [], [], []
    for u in range(len(log.users)):
        item, moment = log.item[log.ptr[u] : log.ptr[u + 1]], log.time[log.ptr[u] : log.ptr[u + 1]]
        target, source = np.tril_indices(len(item), -1)
        interval = (moment[target] - moment[source]) / (SETTINGS["decay"] * DAY)
        columns.append(item[source])
        values.append(np.maximum(np.exp(-interval), SETTINGS["floor"]))
        lengths.append(np.arange(1, len(item)))
        targets.append(item[1:])
    ends = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    shape = (len(ends) - 1, len(log.items))
    S = sparse.csr_array((np.concatenate(values), np.concatenate(columns), ends), shape=shape)
    goal = np.concatenate(targets)
    T = sparse.csr_array((np.ones(len(goal)), goal, np.arange(len(goal) + 1)), shape=shape)
    return S, T


def best_of(times: int, work) -> float:
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)


def sample_of(log: tr.Log, most_pairs: int) -> tr.Log:
    """Return every n-th user of a log, so that about `most_pairs` pairs remain."""
    step = max(1, pairs(log) // most_pairs)
    users = np.arange(len(log.users)) % step == 0
    return log.keep(np.repeat(users, np.diff(log.ptr))).compact()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?")
    parser.add_argument("--sample-pairs", type=int, default=4_000_000)
    args = parser.parse_args()
    if args.log:
        log = tr.read_log(args.log)
    else:
        log = tr.synthetic_log(1_000_000, items=3_500, users=6_000, titles=False)
    sample = sample_of(log, args.sample_pairs)
    tr.tale_gram(sample, **SETTINGS)  # compile

    def by_rows() -> None:
        S, T = explicit_rows(sample)
        _ = S.T @ S, S.T @ T

    ours = best_of(5, lambda: tr.tale_gram(sample, **SETTINGS))
    theirs = best_of(2, by_rows)
    whole = best_of(5, lambda: tr.tale_gram(log, **SETTINGS))
    print(f"sample: {len(sample.users):,} users, {pairs(sample):,} pairs")
    print(f"  closed form   {ours:8.3f} s   {pairs(sample) / ours / 1e6:8.1f} million pairs/s")
    print(f"  explicit rows {theirs:8.3f} s   {pairs(sample) / theirs / 1e6:8.1f} million pairs/s")
    print(f"  ratio         {theirs / ours:8.1f}")
    print(f"whole log: {log.rows:,} rows, {pairs(log):,} pairs")
    print(f"  closed form   {whole:8.3f} s   {pairs(log) / whole / 1e6:8.1f} million pairs/s")


if __name__ == "__main__":
    main()
