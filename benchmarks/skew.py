"""A bot among people, and one thread against two.

    python benchmarks/skew.py

One user of 1,000,000 rows among 10,000 normal ones: fit seconds with and without the bot, side by
side. Then Gram and local solve with 1 and with 2 threads: the same bits, and the speed-up.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import polars as pl

import talerec as tr
from talerec.data import Vocabulary
from talerec.runtime import threads


def with_bot(log: tr.Log, rows: int) -> tr.Log:
    rng = np.random.default_rng(0)
    item = rng.integers(0, len(log.items), rows, dtype=np.int32)
    moment = np.sort(rng.integers(log.time.min(), log.time.max(), rows))
    return replace(
        log,
        ptr=np.append(log.ptr, log.rows + rows),
        item=np.concatenate([log.item, item]),
        time=np.concatenate([log.time, moment]),
        users=Vocabulary(log.users.ids.append(pl.Series([len(log.users) + 1]))),
    )


def seconds(log: tr.Log, times: int = 3) -> tuple[float, tr.TALE]:
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        model = tr.TALE(solver="local").fit(log)
        spent.append(time.perf_counter() - start)
    return min(spent), model


def main() -> None:
    people = tr.synthetic_log(100_000, users=10_000, items=5_000, titles=False)
    seconds(people, 1)  # compile
    alone, _ = seconds(people)
    joined, _ = seconds(with_bot(people, 1_000_000))
    print(f"10,000 users: {alone:.2f} s; and a bot of 1,000,000 rows: {joined:.2f} s")
    log = tr.synthetic_log(1_000_000, items=50_000, titles=False)
    weights, spent = [], []
    for count in ("1", "2"):
        os.environ[threads.VARIABLE] = count
        took, model = seconds(log, 2)
        spent.append(took)
        weights.append(model.weights)
    same = all(
        np.array_equal(getattr(weights[0], part), getattr(weights[1], part))
        for part in ("indptr", "indices", "data")
    )
    print(
        f"50,000 items, 1,000,000 rows: 1 thread {spent[0]:.2f} s, 2 threads {spent[1]:.2f} s, "
        f"{spent[0] / spent[1]:.2f} times as fast; the same bits: {same}"
    )


if __name__ == "__main__":
    main()
