"""The torch solver on a GPU, against bare torch.linalg.cholesky and cholesky_solve.

    PYTHONPATH=src python benchmarks/gpu.py [--items 20000] [--save FILE.npz]
    python benchmarks/gpu.py --check FILE.npz   # elsewhere: the same by the CPU solver

Needs NumPy and torch only (the check needs talerec installed). The Gram is made from a seed, so
both machines have the same one.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

COLUMNS = 64


def make_gram(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return dense float32 G and K of 5 n random rows with 8 long-tailed sources each."""
    rng = np.random.default_rng(seed)
    rows = 5 * n
    item = (n * rng.random((rows, 9)) ** 2).astype(np.int64)
    weight = rng.random((rows, 8)).astype(np.float32)
    G, K = np.zeros((n, n), np.float32), np.zeros((n, n), np.float32)
    for a in range(8):
        np.add.at(K, (item[:, a], item[:, 8]), weight[:, a])
        for b in range(8):
            np.add.at(G, (item[:, a], item[:, b]), weight[:, a] * weight[:, b])
    return G, K


def timed(work, torch, times: int = 3) -> float:
    spent = []
    for _ in range(times):
        arguments = work.prepare()
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(*arguments)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
        del arguments
    return min(spent)


class Work:
    """Return seconds of some work on fresh copies of the arrays on the GPU."""

    def __init__(self, run, A, B) -> None:
        self.run, self.A, self.B = run, A, B

    def prepare(self):
        return self.A.clone(), self.B.clone()

    def __call__(self, A, B):
        return self.run(A, B)


def measure(n: int, reg: float, save: str | None) -> None:
    import torch

    from talerec.solvers import gpu

    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: this benchmark times one")
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    G, K = make_gram(n)
    A = torch.tensor(G, device="cuda")
    A.diagonal().add_(reg)
    B = torch.tensor(K, device="cuda")

    def bare(A, B):
        return torch.cholesky_solve(B, torch.linalg.cholesky(A))

    for work in (bare, gpu.solve_in_place):  # warm up
        work(A[:3000, :3000].clone(), B[:3000, :3000].clone())
    flops = 7 / 3 * n**3
    theirs = timed(Work(bare, A, B), torch)
    chosen = gpu._TILE
    for tile in (1024, 2048, 4096):
        gpu._TILE = tile
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        ours = timed(Work(gpu.solve_in_place, A, B), torch)
        extra = (torch.cuda.max_memory_allocated() - held) / (2 * 4 * n * n)
        print(
            f"ours, tiles of {tile}: {ours:.3f} s, {flops / ours / 1e12:.1f} TFLOP/s, "
            f"{ours / theirs:.2f} x the time of bare, memory {extra:.2f} of two arrays"
        )
    print(f"bare cholesky + cholesky_solve: {theirs:.3f} s, {flops / theirs / 1e12:.1f} TFLOP/s")
    multiply = timed(Work(torch.mm, A, B), torch)
    print(f"float32 matrix product: {2 * n**3 / multiply / 1e12:.1f} TFLOP/s")
    del A, B
    gpu._TILE = chosen
    for precision in ("float32", "refined", "float64"):
        start = time.perf_counter()
        W = gpu.solve(G, K, np.full(n, reg), precision=precision)
        spent = time.perf_counter() - start
        sample = W[:, :COLUMNS].astype(np.float64)
        missed = G.astype(np.float64) @ sample + reg * sample - K[:, :COLUMNS]
        size = np.linalg.norm(K[:, :COLUMNS])
        print(
            f"{precision}, from host to host: {spent:.2f} s, "
            f"residual {np.linalg.norm(missed) / size:.1e}"
        )
        if save and precision == "float32":
            np.savez(save, n=n, reg=reg, weights=W[:, :COLUMNS])


def check(path: str) -> None:
    from talerec.gram import Gram
    from talerec.solvers import solve_exact

    saved = np.load(path)
    n, reg = int(saved["n"]), float(saved["reg"])
    start = time.perf_counter()
    W = solve_exact(Gram(*make_gram(n)), np.full(n, reg))[:, :COLUMNS]
    print(f"exact on this machine's CPU: {time.perf_counter() - start:.1f} s")
    print(
        f"largest difference: {np.abs(W - saved['weights']).max():.1e} "
        f"of weights up to {np.abs(W).max():.2f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--reg", type=float, default=10.0)
    parser.add_argument("--save")
    parser.add_argument("--check")
    args = parser.parse_args()
    if args.check:
        check(args.check)
    else:
        measure(args.items, args.reg, args.save)
