"""One user's top 10 and batches from a memory-mapped artifact; how long it takes to load.

python benchmarks/scale.py --items 1000000 --keep DIR    # makes the artifact
python benchmarks/query.py DIR/1000000.tale
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import talerec as tr

LENGTH, K = 50, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", nargs="?", type=Path)
    parser.add_argument("--queries", type=int, default=2_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.artifact or small_artifact(Path(folder))
        start = time.perf_counter()
        model = tr.load(path)
        print(f"load (sizes checked, not hashed): {time.perf_counter() - start:.3f} s")
        measure(model, given.queries)


def small_artifact(folder: Path) -> Path:
    log = tr.synthetic_log(200_000, items=10_000, titles=False)
    return tr.TALE(solver="local").fit(log).save(folder / "small.tale")


def measure(model: tr.Model, queries: int) -> None:
    rng = np.random.default_rng(0)
    ids = model.item_ids.to_numpy()
    popular = model.fitted.log.item  # histories as they are: items by how often they occur
    histories = ids[popular[rng.integers(0, len(popular), (queries, LENGTH))]]
    print(f"{len(ids):,} items, history of {LENGTH}, top {K}")
    for _ in range(50):
        model.recommend_histories([histories[0].tolist()], k=K)
    spent = []
    for history in histories:
        rows = history.tolist()
        start = time.perf_counter()
        model.recommend_histories([rows], k=K)
        spent.append(time.perf_counter() - start)
    spent.sort()
    print(
        f"one by one: median {1e3 * spent[len(spent) // 2]:.2f} ms, 99 % under {1e3 * spent[int(0.99 * len(spent))]:.2f} ms"
    )
    users = model.fitted.log.users.ids.sample(min(100_000, len(model.fitted.log.users)), seed=0)
    model.recommend(users[:1000], k=K)
    start = time.perf_counter()
    model.recommend(users, k=K)
    seconds = time.perf_counter() - start
    print(
        f"batch of {len(users):,} users with their own histories: {len(users) / seconds:,.0f} users/s"
    )
    batch = [row.tolist() for row in histories]
    start = time.perf_counter()
    model.recommend_histories(batch, k=K)
    seconds = time.perf_counter() - start
    print(f"batch of {len(batch):,} histories of {LENGTH}: {len(batch) / seconds:,.0f} users/s")


if __name__ == "__main__":
    main()
