"""The published algorithm in plain words, beside ours, exact and local, in one run.

    python benchmarks/published.py LOG [--ties item] [--set reg=100 ...]
    python benchmarks/published.py --synthetic 50000 --skip published   # too large for it

Published: for every user and every prefix a row of sources and a row of targets, in Python loops;
two n x n matrices by sparse products; a dense LU solve of all columns. Each contender is fitted on
the same training rows in a process of its own, after its kernels were compiled, and judged on the
same test rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
from scipy import linalg, sparse

import talerec as tr
from talerec.models.core import build_model, parse_settings
from talerec.ranking import Weights
from talerec.runtime import peak_rss_mb

DAY = 86_400_000_000
CONTENDERS = ("published", "exact", "local")


def published_weights(log: tr.Log, model: tr.TALE) -> np.ndarray:
    """Build the paper's matrices row by row, without trend counts (trend = 0)."""
    n = len(log.items)
    sources, goals, values, places, row = [], [], [], [], 0
    for u in range(len(log.users)):
        item = log.item[log.ptr[u] : log.ptr[u + 1]].tolist()
        moment = log.time[log.ptr[u] : log.ptr[u + 1]].tolist()
        for target in range(1, len(item)):
            for source in range(target):
                interval = (moment[target] - moment[source]) / DAY
                sources.append(item[source])
                values.append(max(np.exp(-interval / model.decay), model.floor))
                places.append(row)
            goals.append(item[target])
            row += 1
    S = sparse.csr_array((values, (places, sources)), shape=(row, n))
    T = sparse.csr_array((np.ones(row), (np.arange(row), goals)), shape=(row, n))
    G = (S.T @ S).toarray() + model.reg * np.eye(n)
    K = (S.T @ T).toarray()
    return linalg.solve(G, K)


def prepare(args: argparse.Namespace) -> tr.Split:
    if args.synthetic:
        log = tr.synthetic_log(20 * args.synthetic, items=args.synthetic, titles=False).compact()
    else:
        log = tr.read_log(args.log)
    if args.core:
        log = tr.k_core(log, args.core)
    return tr.leave_one_out(tr.order_ties(log, args.ties))


def run(contender: str, args: argparse.Namespace) -> dict[str, float]:
    """Fit once, after compilation on a small log; return seconds, memory and accuracy."""
    split = prepare(args)
    model = build_model(tr.TALE, {"trend": 0.0, **parse_settings(tr.TALE, args.set)})
    model.solver = contender if contender != "published" else "exact"
    small = tr.leave_one_out(tr.synthetic_log(5_000, items=4_100, titles=False))
    tr.evaluate(model.fit(small.train), small)
    if contender == "published":
        start = time.perf_counter()
        B = published_weights(split.train, model)
        seconds = time.perf_counter() - start
        peak = peak_rss_mb()
        model.max_history = 1  # the cheapest fit there is, only to carry the weights
        model.solver = "local"
        model.fit(split.train)
        model.max_history = 2500
        model.set_fitted(replace_weights(model, B))
    else:
        start = time.perf_counter()
        model.fit(split.train)
        seconds = time.perf_counter() - start
        peak = peak_rss_mb()
    metrics = tr.evaluate(model, split).metrics
    return {
        "seconds": seconds,
        "peak_gb": peak / 1024,
        "items": len(split.train.items),
        "HR@10": metrics["HR@10"],
        "NDCG@10": metrics["NDCG@10"],
    }


def replace_weights(model: tr.TALE, B: np.ndarray):
    import dataclasses

    return dataclasses.replace(model.fitted, weights=Weights(B.astype(np.float32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?")
    parser.add_argument("--synthetic", type=int, help="items of a synthetic log, 20 rows each")
    parser.add_argument("--ties", default="file")
    parser.add_argument("--core", type=int)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[], choices=CONTENDERS)
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="one BLAS thread for published: current OpenBLAS crashes with two above 16,000 items",
    )
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.log and not args.synthetic:
        args.synthetic = 5_000
    if args.only:
        print(json.dumps(run(args.only, args)))
        return
    results = {}
    for contender in CONTENDERS:
        if contender in args.skip:
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--only", contender]
        out = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment(contender, args)
        ).stdout
        results[contender] = json.loads(out)
        print_row(contender, results)
    n = next(iter(results.values()))["items"]
    print(
        f"on paper, two float64 {n:,} x {n:,} matrices and the solution: "
        f"{3 * 8 * n * n / 1e9:.1f} GB"
    )


def environment(contender: str, args: argparse.Namespace) -> dict[str, str]:
    """Return the environment; one BLAS thread for the published algorithm on request."""
    is_single = args.one_thread and contender == "published"
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1"} if is_single else dict(os.environ)


def print_row(contender: str, results: dict[str, dict[str, float]]) -> None:
    it, first = results[contender], next(iter(results.values()))
    exact = results.get("exact", it)
    if len(results) == 1:
        print(
            f"{'':10} {'seconds':>8} {'times':>7} {'peak':>8} {'HR@10':>7} {'NDCG@10':>8}"
            "   of exact"
        )
    shares = " / ".join(f"{it[name] / exact[name]:.2%}" for name in ("HR@10", "NDCG@10"))
    print(
        f"{contender:10} {it['seconds']:8.2f} {first['seconds'] / it['seconds']:7.1f} "
        f"{it['peak_gb']:5.2f} GB {it['HR@10']:7.4f} {it['NDCG@10']:8.4f}   {shares}",
        flush=True,
    )


if __name__ == "__main__":
    main()
