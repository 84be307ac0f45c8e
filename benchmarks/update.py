"""Tomorrow's rows: `update` with the last 1 % of a log, against a fit of all rows.

    python benchmarks/update.py                      # 2 million rows, 100,000 items
    python benchmarks/update.py --rows 20000000      # 20 million rows, a million items; needs 16 GB

Each user's last row is held back; of the others, the last 1 % by time are the new rows. Accuracy is that of 5,000 users.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import talerec as tr


def timed(work: Any) -> tuple[Any, float]:
    begun = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begun


def ndcg(model: tr.Model, cases: pl.DataFrame) -> float:
    """NDCG@10 of the rows that were held back, asked by their users' rows."""
    found = model.recommend(cases["user_id"].to_list(), 10)
    hits = found.join(cases, on=["user_id", "item_id"])
    return float((1 / np.log2(hits["rank"].to_numpy() + 1)).sum() / len(cases))


def size(model: tr.Model, folder: Path, updatable: bool) -> float:
    model.save(folder, updatable=updatable)
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tolerance", type=float, default=0.1)
    asked = parser.parse_args()
    log = tr.synthetic_log(asked.rows, titles=False).compact()
    split = tr.leave_one_out(log, refit=True)
    train, some = split.train, np.random.default_rng(0).permutation(len(split.test))[:5000]
    cases = pl.DataFrame(
        {"user_id": split.users.ids.gather(split.test.user[some]), "place": split.test.target[some]}
    )
    cases = cases.filter(pl.col("place") >= 0)
    cases = cases.select("user_id", item_id=train.items.ids.gather(cases["place"]))
    newest = np.argsort(train.time, kind="stable")[-train.rows // 100 :]
    is_new = np.zeros(train.rows, bool)
    is_new[newest] = True
    model = tr.TALE().fit(train.keep(~is_new).compact())
    stale = ndcg(model, cases.filter(pl.col("user_id").is_in(model.fitted.log.users.ids.implode())))
    full, fit = timed(lambda: tr.TALE().fit(train))
    done, update = timed(lambda: tr.update(model, train.keep(is_new), tolerance=asked.tolerance))
    place = model.fitted.items.positions(full.item_ids, "item", "error")
    off = abs(model.weights[place][:, place] - full.weights).max()
    with tempfile.TemporaryDirectory() as folder:
        sizes = [size(model, Path(folder) / "m.tale", kept) for kept in (False, True)]
    found = {
        "rows": train.rows, "new": done.rows, "fit s": round(fit, 1), "update s": round(update, 1), "times as fast": round(fit / update, 2),
        "solved": round(done.solved / done.targets, 3), "largest difference": round(float(off), 4), "steps": {k: round(v, 1) for k, v in done.seconds.items()},
        "NDCG@10": {"full": round(ndcg(full, cases), 4), "updated": round(ndcg(model, cases), 4), "without": round(stale, 4)},
        "MB": {"plain": round(sizes[0]), "updatable": round(sizes[1])},
    }  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
