"""This library beside implicit, LensKit, RecTools and irspack: the same rows, the same metrics.

    python benchmarks/peers.py --setup FOLDER      # each peer in an environment of its own, once
    python benchmarks/peers.py DATA --peers FOLDER [--only beauty,ml-1m] [--models NAMES] [-o FILE]

DATA is the folder with the logs. Leave-one-out on 5-cores (dunnhumby-sample: 2-core), ties in
random order: every contender fits all rows but each user's last one, and lists ten items that are
not among the user's rows. NDCG@10 and HR@10 are computed here for all, with 95 % intervals. Each
contender runs in a process of its own (`peers_worker.py`), on one thread (`--threads`), with
defaults. All times are processor seconds, which other work on the machine changes little. Cold
start is what a process takes from its start to its first answer from a saved model. A finished
contender is a line of FILE (JSON), and is not run again.

None of the peers' models that run here uses the order of rows, so their accuracy is what is
expected of models of co-occurrence; the costs are what this benchmark compares.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import talerec as tr
from ranker import LOGS
from talerec.evaluation.intervals import mean_intervals
from talerec.evaluation.user_sums import sum_users

WORKER = Path(__file__).with_name("peers_worker.py")
K = 10
PACKAGES = {
    "implicit": ["implicit"], "irspack": ["irspack"], "rectools": ["rectools"],
    "lenskit": ["torch==2.13.0", "lenskit"],
}  # fmt: skip
CONTENDERS = [
    "talerec:tempo", "talerec:ranker", "talerec:slist", "talerec:ease", "talerec:rules",
    "implicit:als", "implicit:bpr", "implicit:cosine", "implicit:bm25",
    "irspack:IALS", "irspack:RP3beta", "irspack:EDLAE", "irspack:CosineKNN",
    "rectools:EASE", "rectools:PureSVD", "lenskit:ItemKNN", "lenskit:ALS", "lenskit:EASE",
]  # fmt: skip


def set_up(folder: Path) -> None:
    """Install each peer in a virtual environment of its own."""
    for name, packages in PACKAGES.items():
        print(f"installing {name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        for package in packages:
            command = [folder / name / "bin/pip", "install", "--quiet", package]
            subprocess.run(command, check=True)


def write_rows(path: Path, data: Path, name: str) -> np.ndarray:
    """Write a log's training rows for the workers; return each user's held-out item.

    An item without a training row is -1.
    """
    file, core, _ = LOGS[name]
    log = tr.order_ties(tr.k_core(tr.read_log(str(data / file)), core), "random:0")
    user = np.repeat(np.arange(len(log.users)), np.diff(log.ptr))
    last = log.ptr[1:] - 1
    is_train = np.ones(log.rows, bool)
    is_train[last] = False
    items, item = np.unique(log.item[is_train], return_inverse=True)
    rows = {"user": user[is_train], "item": item, "time": log.time[is_train]}
    np.savez(path, n_items=len(items), request_time=log.time[last], **rows)
    at = np.minimum(np.searchsorted(items, log.item[last]), len(items) - 1)
    return np.where(items[at] == log.item[last], at, -1)


def score_lists(lists: np.ndarray, target: np.ndarray) -> dict[str, Any]:
    """Return HR@10 and NDCG@10 of lists (user x 10), with 95 % intervals."""
    is_hit = (lists == target[:, None]) & (target[:, None] >= 0)
    gains = np.stack([is_hit.any(axis=1), (is_hit / np.log2(np.arange(K) + 2)).sum(axis=1)], axis=1)
    sums = sum_users(gains)
    low, high = mean_intervals(sums)
    names = ("HR@10", "NDCG@10")
    return {n: [sums.means[c], low[c], high[c]] for c, n in enumerate(names)}


def run_step(step: str, name: str, folder: Path, args: argparse.Namespace) -> float:
    """Run one step of a contender in its environment; return its processor seconds."""
    library = name.partition(":")[0]
    python = sys.executable if library == "talerec" else args.peers / library / "bin/python"
    threads = str(args.threads)
    names = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    environment = os.environ | {f"{n}_NUM_THREADS": threads for n in names}
    environment |= {"POLARS_MAX_THREADS": threads, "TALEREC_THREADS": threads}
    environment |= {"LK_NUM_THREADS": threads, "LK_NUM_PROCS": "1"}
    before = processor_seconds()
    command = [python, "-W", "ignore", WORKER, step, name, folder]
    subprocess.run(command, check=True, env=environment, stderr=subprocess.PIPE, text=True)
    return processor_seconds() - before


def processor_seconds() -> float:
    """Return the processor seconds, user and system, of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_contender(name: str, target: np.ndarray, rows: Path, args: Any) -> dict[str, Any]:
    """Return accuracy and costs of one contender on the rows of a log."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        shutil.copy(rows, folder / "rows.npz")
        run_step("fit", name, folder, args)
        cold = min(run_step("cold", name, folder, args) for _ in range(3))
        costs = json.loads((folder / "costs.json").read_text())
        return score_lists(np.load(folder / "lists.npy"), target) | costs | {"cold": cold}


def measure_log(log: str, finished: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Run the contenders that have no line yet on a log, and append their lines to the file."""
    with tempfile.TemporaryDirectory() as text:
        rows = Path(text) / "rows.npz"
        target = write_rows(rows, args.data, log)
        for name in args.models.split(","):
            if any(line["log"] == log and line["model"] == name for line in finished):
                continue
            line: dict[str, Any] = {"log": log, "model": name, "threads": args.threads}
            try:
                line |= run_contender(name, target, rows, args)
            except subprocess.CalledProcessError as error:
                line["error"] = error.stderr.strip().splitlines()[-1:]
            finished.append(line)
            with args.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{log} {name}: {line.get('NDCG@10', line.get('error'))}", flush=True)


def print_tables(lines: list[dict[str, Any]]) -> None:
    """Print a Markdown table for each log."""
    header = "model NDCG@10 95% fit_s memory_MB size_MB answer_ms lists/s cold_s"
    for log in dict.fromkeys(line["log"] for line in lines):
        print(f"\n{log}\n\n| {' | '.join(header.split())} |\n|{'---|' * len(header.split())}")
        for line in lines:
            if line["log"] != log or "error" in line:
                continue
            mean, low, high = line["NDCG@10"]
            cells = [
                line["model"], f"{mean:.4f}", f"{low:.4f}-{high:.4f}",
                f"{line['fit_cpu']:.2f}", f"{line['memory_mb']:.0f}", f"{line['size_mb']:.1f}",
                f"{line['answer_ms']:.3f}", f"{line['lists_per_s']:,.0f}", f"{line['cold']:.2f}",
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--setup", type=Path, help="folder in which to install the peers")
    parser.add_argument("--peers", type=Path, help="folder in which they are installed")
    parser.add_argument("--only", default=",".join(LOGS))
    parser.add_argument("--models", default=",".join(CONTENDERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=Path("peers.jsonl"))
    args = parser.parse_args()
    if args.setup:
        set_up(args.setup)
    if args.data is None:
        return
    lines = []
    if args.output.exists():
        lines = [json.loads(line) for line in args.output.read_text().splitlines()]
    for log in args.only.split(","):
        measure_log(log, lines, args)
    print_tables(lines)


if __name__ == "__main__":
    main()
