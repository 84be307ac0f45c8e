"""Tomorrow's rows: `update` with the last 1 % of a log, against a fit of all rows.

    python benchmarks/update.py                                    # 2 million rows, 100,000 items
    python benchmarks/update.py --rows 20000000 --set memory=6.5   # a million items
    python benchmarks/update.py --model tempo

Each user's last row is held back; of the others, the last 1 % by time are the new rows. Accuracy is
that of 5,000 users. "saved" adds what it takes to write the artifact, for a fit and for an update,
which also maps the old one.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import talerec as tr
from talerec.models.core import build_model, parse_settings


def timed(name: str, work: Any) -> tuple[Any, np.ndarray]:
    """Return the result of some work, its wall seconds, and its processor seconds."""
    begun, used = time.perf_counter(), time.process_time()
    result = work()
    spent = np.array([time.perf_counter() - begun, time.process_time() - used])
    print(f"{name}: {spent.round(2)} s", file=sys.stderr, flush=True)
    return result, spent


def ndcg(model: tr.Model, cases: pl.DataFrame) -> float:
    """Return NDCG@10 of the held-out rows."""
    lists = model.recommend(cases["user_id"].to_list(), 10)
    hits = lists.join(cases, on=["user_id", "item_id"])
    return float((1 / np.log2(hits["rank"].to_numpy() + 1)).sum() / len(cases))


def rounded(seconds: np.ndarray) -> list[float]:
    return [round(float(value), 2) for value in seconds]


def size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e6


def held_back(rows: int) -> tuple[tr.Log, pl.DataFrame]:
    """Return a log without each user's last row, and 5,000 of the held-out rows."""
    log = tr.synthetic_log(rows, titles=False).compact()
    split = tr.leave_one_out(log, refit=True)
    train, some = split.train, np.random.default_rng(0).permutation(len(split.test))[:5000]
    cases = pl.DataFrame(
        {"user_id": split.users.ids.gather(split.test.user[some]), "place": split.test.target[some]}
    )
    cases = cases.filter(pl.col("place") >= 0)
    return train, cases.select("user_id", item_id=train.items.ids.gather(cases["place"]))


def warm(model: Any, tolerance: float) -> None:
    """Compile the kernels of an update."""
    log = tr.synthetic_log(60_000, items=6000, titles=False)
    small = build_model(type(model), {**model.params, "solver": "local"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.tale"
        small.fit(log.keep(log.time < np.sort(log.time)[-600])).save(path, updatable=True)
        tr.update(tr.load(path), log, tolerance=tolerance)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--tolerance", type=float, default=0.2)
    parser.add_argument("--model", default="tale")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    kind = tr.MODELS[args.model]
    make = lambda: build_model(kind, parse_settings(kind, args.set))  # noqa: E731
    warm(make(), args.tolerance)
    train, cases = held_back(args.rows)
    is_new = np.zeros(train.rows, bool)
    is_new[np.argsort(train.time, kind="stable")[-train.rows // 100 :]] = True
    old, new = train.keep(~is_new).compact(), train.keep(is_new).compact()
    with tempfile.TemporaryDirectory() as folder:
        plain, path = Path(folder) / "plain.tale", Path(folder) / "m.tale"
        model = make().fit(old)
        old_cases = cases.filter(pl.col("user_id").is_in(old.users.ids.implode()))
        stale = ndcg(model, old_cases)
        _, keep = timed("save, updatable", lambda: model.save(path, updatable=True))
        del model, old
        model, load = timed("load", lambda: tr.load(path))
        done, update = timed("update", lambda: tr.update(model, new, tolerance=args.tolerance))
        _, save = timed("save", lambda: model.save(path, updatable=True))
        updated, sizes = ndcg(model, cases), [size(path)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        del model
        full, fit = timed("fit", lambda: make().fit(train))
        _, fit_save = timed("save, plain", lambda: full.save(plain))
        sizes.append(size(plain))
        model = tr.load(path)
        place = model.fitted.items.positions(full.item_ids, "item", "error")
        weights = model.weights[place][:, place]
        off = abs(weights - full.weights).max()
    facts = {
        "model": args.model, "rows": train.rows, "items": len(train.items), "new": done.rows,
        "seconds, and processor seconds": {
            "fit": rounded(fit), "update": rounded(update), "times as fast": rounded(fit / update),
            "fit and save": rounded(fit + fit_save),
            "load, update and save": rounded(load + update + save),
            "saved, times as fast": rounded((fit + fit_save) / (load + update + save)),
            "what --updatable adds to a fit": rounded(keep),
        },
        "solved": round(done.solved / done.targets, 4),
        "largest difference": round(float(off), 4),
        "largest weight": round(float(abs(full.weights).max()), 4),
        "steps": {k: round(v, 2) for k, v in done.seconds.items()},
        "steps of the fit": {k: round(v, 1) for k, v in full.fitted.seconds.items()},
        "NDCG@10": {
            "full": round(ndcg(full, cases), 5),
            "updated": round(updated, 5),
            "without": round(stale, 5),
        },
        "MB": {"updatable": round(sizes[0]), "plain": round(sizes[1])},
        "peak GB until the update": round(peak, 2),
    }  # fmt: skip
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
