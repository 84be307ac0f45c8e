"""Tempo with all of its dense weights and with compact ones: seconds, size and accuracy.

    python benchmarks/compact.py D/ml-1m.inter.gz [--core 5] [--on validation] [--ties file]
        [--kept 150 250 400]

For both: processor seconds of the fit, megabytes saved, NDCG@10 of leave-one-out, and the paired
difference. Then, with the weights of the first: the weights with the largest products of B_ij^2 and
the count of item i, each target's largest products, and each target's largest absolute weights.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import talerec as tr
from talerec.ranking import Weights, make_block
from talerec.runtime import sparse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--core", type=int, default=5)
    parser.add_argument("--on", default="validation", choices=("validation", "test"))
    parser.add_argument("--ties", default="file", help="order of equal times, such as random:0")
    parser.add_argument("--kept", type=int, nargs="*", default=[150, 250, 400])
    args = parser.parse_args()
    log = tr.order_ties(tr.k_core(tr.read_log(args.log), args.core), args.ties)
    split = tr.leave_one_out(log)
    models, results = {}, {}
    for compact in ("off", "auto"):
        start = time.process_time()
        model = models[compact] = tr.Tempo(compact=compact).fit(split.train)
        seconds = time.process_time() - start
        results[compact] = tr.evaluate(model, split, on=args.on)
        figure = f"NDCG@10 {results[compact].metrics['NDCG@10']:.4f}"
        print(
            f"compact={compact}: {seconds:.1f} s, {megabytes(model):.1f} MB, {figure}", flush=True
        )
    print(tr.compare(results["off"], results["auto"]))
    print(models["auto"].describe_learned()[-1])
    values = models["off"].weights
    if not isinstance(values, np.ndarray):
        return
    effect = np.abs(values) * np.sqrt(split.train.counts())[:, None]
    for kept in args.kept:
        rules = {
            "largest products": effect >= largest(effect, kept * len(effect), None),
            "each target's products": effect >= largest(effect, kept, 0),
            "each target's absolute weights": abs(values) >= largest(abs(values), kept, 0),
        }
        for name, is_kept in rules.items():
            result = evaluate(is_kept, models["off"], split, args.on)
            print(f"{kept}, {name}: {tr.compare(results['off'], result)}", flush=True)


def largest(importance: np.ndarray, count: int, axis: int | None) -> np.ndarray:
    """Return the smallest of the `count` largest numbers, of all or along an axis."""
    return np.partition(importance, -count, axis=axis).take(-count, axis=axis)


def evaluate(is_kept: np.ndarray, model: tr.Tempo, split: tr.Split, on: str) -> tr.Evaluation:
    """Return the evaluation of a model with some of its item-item weights."""
    weights = model.fitted.weights
    block = make_block(sparse.csr_array(np.where(is_kept, weights.matrix, 0)))
    fewer = Weights([block, *weights.blocks[1:]], weights.base, weights.query_arrays)
    smaller = model.with_params().set_fitted(replace(model.fitted, weights=fewer))
    return tr.evaluate(smaller, split, on=on)


def megabytes(model: tr.Tempo) -> float:
    """Return the size of a saved model in megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = model.save(Path(folder) / "model.tale")
        return sum(file.stat().st_size for file in path.iterdir()) / 1e6


if __name__ == "__main__":
    main()
