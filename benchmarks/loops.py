"""Seconds of two compiled loops: ranking with dense weights, and the walk of `swalk`.

    python benchmarks/sides.py --other PATH --same-script -- benchmarks/loops.py

Weights and histories are random. Ranking: 1,000 histories of 165 of 3,400 items, as on ML-1M, all
items ranked. Walk: over 12,000 items with 50 and 100 weights a row, as on Beauty. The last line is
a JSON object with the processor seconds of each.
"""

from __future__ import annotations

import json
import time

import numpy as np
import scipy.sparse as sp

from talerec.models.linear.swalk import walk
from talerec.ranking import Mask, Query, Weights, make_block, rank_queries

ITEMS, QUERIES, LENGTH = 3400, 1000, 165


def rank_dense(rng: np.random.Generator) -> float:
    """Return the processor seconds of ranking all items after random histories."""
    weights = Weights([make_block(rng.random((ITEMS, ITEMS), np.float32) - 0.5)])
    ptr = np.arange(QUERIES + 1) * LENGTH
    item = np.concatenate([rng.permutation(ITEMS)[:LENGTH] for _ in range(QUERIES)])
    query = Query(ptr, item, np.tile(np.exp(-np.arange(LENGTH) / 60), QUERIES))
    mask = Mask(np.empty(0, np.uint8), ptr[:-1], ptr[1:], item.astype(np.int32), False)
    targets = rng.integers(0, ITEMS, QUERIES)
    rank_queries(weights, query, mask, 10, targets)  # compiles
    start = time.process_time()
    rank_queries(weights, query, mask, 10, targets)
    return time.process_time() - start


def walk_sparse(rng: np.random.Generator) -> float:
    """Return the processor seconds of five steps of a walk that keeps 200 items."""
    items = 12_000
    R, T = (
        sp.random_array((items, items), density=n / items, rng=rng, format="csr", dtype=np.float32)
        for n in (50, 100)
    )
    walk(R[:300, :300], T[:300, :300], 0.5, 2, 200)  # compiles
    start = time.process_time()
    walk(R, T, 0.5, 5, 200)
    return time.process_time() - start


def main() -> None:
    """Print the processor seconds of both as JSON."""
    rng = np.random.default_rng(0)
    print(json.dumps({"dense ranking": rank_dense(rng), "walk": walk_sparse(rng)}))


if __name__ == "__main__":
    main()
