"""The exact solver beside bare LAPACK potrf + potrs, and the memory that it adds.

    python benchmarks/exact.py [--items 4000 12000 24000] [--repeat 3] [--alone 30000]

Bare: scipy.linalg.lapack.spotrf and spotrs on whole arrays, in place. Ours begins with a sparse
Gram, so both are given with what it takes to fill the two arrays, and without it. Above 24,000
items that call crashes with two threads in the OpenBLAS of current wheels; `--alone` runs ours
without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

import talerec as tr
from talerec.solvers import exact


def made_up(n: int) -> tr.Gram:
    """Return a sparse Gram of n items; the time of a dense solve does not depend on its values."""
    rng = np.random.default_rng(0)
    item = (n * rng.random((3 * n, 6)) ** 2).astype(np.int32)
    rows = np.repeat(np.arange(3 * n), 5)
    S = sparse.csr_array((np.ones(15 * n), (rows, item[:, :5].ravel())), shape=(3 * n, n))
    T = sparse.csr_array((np.ones(3 * n), (np.arange(3 * n), item[:, 5])), shape=(3 * n, n))
    return tr.Gram((S.T @ S).tocsr(), (S.T @ T).tocsc())


def resident(line: str) -> int:
    """Return current bytes (VmRSS) or the peak since `forget_peak` (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return next(int(row.split()[1]) * 1024 for row in status.splitlines() if row.startswith(line))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def ours(n: int) -> dict[str, float]:
    gram = made_up(n)
    exact.solve_exact(made_up(500), np.full(500, 10.0))
    fill, filling = exact.to_dense, 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal filling
        begin = time.perf_counter()
        array = fill(*arguments)
        filling += time.perf_counter() - begin
        return array

    exact.to_dense = timed
    forget_peak()
    before = resident("VmRSS")
    start = time.perf_counter()
    exact.solve_exact(gram, np.full(n, 10.0))
    seconds = time.perf_counter() - start
    arrays = (resident("VmHWM") - before) / (2 * 4 * n * n)
    return {"seconds": seconds, "calls": seconds - filling, "arrays": arrays}


def bare(n: int) -> dict[str, float]:
    gram = made_up(n)
    exact.solve_exact(made_up(500), np.full(500, 10.0))
    begin = time.perf_counter()
    A = exact.to_dense(gram.G, np.float32)
    A.flat[:: n + 1] += 10
    K = np.asfortranarray(exact.to_dense(gram.K, np.float32))
    start = time.perf_counter()
    U, _ = lapack.spotrf(A.T, lower=1, overwrite_a=1)
    lapack.spotrs(U, K, lower=1, overwrite_b=1)
    end = time.perf_counter()
    return {"seconds": end - begin, "calls": end - start}


def run_self(kind: str, n: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", kind, "--items", str(n)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="*", default=[4_000, 12_000])
    parser.add_argument("--repeat", type=int, default=1, help="medians of this many turns")
    parser.add_argument("--alone", type=int, nargs="*", default=[])
    parser.add_argument("--run", choices=["ours", "bare"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps({"ours": ours, "bare": bare}[args.run](args.items[0])))
        return
    for n in args.items:
        pairs = [(run_self("ours", n), run_self("bare", n)) for _ in range(args.repeat)]
        print(f"{n:7,} items:", flush=True)
        for part, words in (("seconds", "with filling"), ("calls", "without")):
            ours_value, theirs = (
                statistics.median(run[at][part] for run in pairs) for at in (0, 1)
            )
            turns = ", ".join(f"{a[part] / b[part]:.2f}" for a, b in pairs)
            print(
                f"  {words:12} ours {ours_value:7.2f} s, bare {theirs:7.2f} s, "
                f"{ours_value / theirs:.2f} times ({turns})"
            )
        print(f"  memory {max(run[0]['arrays'] for run in pairs):.3f} of two arrays", flush=True)
    for n in args.alone:
        ours_value = run_self("ours", n)
        print(
            f"{n:7,} items: ours {ours_value['seconds']:7.2f} s; "
            f"memory {ours_value['arrays']:.3f} of two arrays"
        )


if __name__ == "__main__":
    main()
