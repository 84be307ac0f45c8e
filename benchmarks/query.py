"""One user's top 10 and batches from a memory-mapped artifact; how long it takes to load.

python benchmarks/scale.py --items 1000000 --keep DIR    # makes the artifact
python benchmarks/query.py DIR/1000000.tale
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--json", action="store_true", help="costs as JSON on the last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.artifact or small_artifact(Path(folder))
        start = time.perf_counter()
        model = tr.load(path)
        costs = {"load s": time.perf_counter() - start}
        print(f"load (sizes checked, not hashed): {costs['load s']:.3f} s")
        costs |= measure(model, args.queries)
    if args.json:
        print(json.dumps(costs))


def small_artifact(folder: Path) -> Path:
    log = tr.synthetic_log(200_000, items=10_000, titles=False)
    return tr.TALE(solver="local").fit(log).save(folder / "small.tale")


def measure(model: tr.Model, queries: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    ids = model.item_ids.to_numpy()
    popular = model.fitted.log.item  # histories as they are: items by how often they occur
    histories = ids[popular[rng.integers(0, len(popular), (queries, LENGTH))]]
    print(f"{len(ids):,} items, history of {LENGTH}, top {K}")
    return one_by_one(model, histories) | in_batches(model, histories)


def one_by_one(model: tr.Model, histories: np.ndarray) -> dict[str, float]:
    for _ in range(50):
        model.recommend_histories([histories[0].tolist()], k=K)
    spent = []
    for history in histories:
        rows = history.tolist()
        start = time.perf_counter()
        model.recommend_histories([rows], k=K)
        spent.append(1e3 * (time.perf_counter() - start))
    spent.sort()
    middle, last = spent[len(spent) // 2], spent[int(0.99 * len(spent))]
    print(f"one by one: median {middle:.2f} ms, 99 % under {last:.2f} ms")
    plain = plain_pairs(model, histories)
    print(f"one by one as plain pairs: median {plain:.3f} ms")
    costs = {"one by one, median ms": middle, "one by one, 99 % ms": last}
    return costs | {"plain pairs, median ms": plain}


def plain_pairs(model: tr.Model, histories: np.ndarray) -> float:
    """Return the median milliseconds of `top_items` for one history."""
    spent = []
    for history in histories:
        rows = history.tolist()
        start = time.perf_counter()
        model.top_items(rows, k=K)
        spent.append(1e3 * (time.perf_counter() - start))
    return float(np.median(spent))


def in_batches(model: tr.Model, histories: np.ndarray) -> dict[str, float]:
    users = model.fitted.log.users.ids.sample(min(100_000, len(model.fitted.log.users)), seed=0)
    model.recommend(users[:1000], k=K)
    start = time.perf_counter()
    model.recommend(users, k=K)
    seconds_each = (time.perf_counter() - start) / len(users)
    print(
        f"batch of {len(users):,} users with their own histories: {1 / seconds_each:,.0f} users/s"
    )
    batch = [row.tolist() for row in histories]
    start = time.perf_counter()
    model.recommend_histories(batch, k=K)
    drawn = (time.perf_counter() - start) / len(batch)
    print(f"batch of {len(batch):,} histories of {LENGTH}: {1 / drawn:,.0f} users/s")
    return {
        "batch of users, us each": 1e6 * seconds_each,
        "batch of histories, us each": 1e6 * drawn,
    }


if __name__ == "__main__":
    main()
