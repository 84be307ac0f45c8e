"""Lists for all users: memory and speed of `recommend --users all`, and of a Python loop.

    python benchmarks/lists.py                       # 300,000 users, 40,000 items
    python benchmarks/lists.py --users 30000

The loop recommends to a thousand users at a time, keeps the frames and writes them at the end. Each
runs in its own process; peak memory is what the operating system reports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOP = """
import sys, polars as pl, talerec as tr
model = tr.load(sys.argv[1])
users = model.fitted.log.users.ids
parts = [model.recommend(users[a:a + 1000], k=10) for a in range(0, len(users), 1000)]
pl.concat(parts).write_parquet(sys.argv[2])
"""
FIT = """
import sys, talerec as tr
users, items, model, path = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
log = tr.synthetic_log(users * 10, users=users, items=items, titles=False)
tr.MODELS[model]().fit(log).save(path)
"""
COMMAND = [sys.executable, "-m", "talerec", "recommend"]


def run(command: list[str]) -> tuple[float, float]:
    """Return seconds and peak megabytes of a process."""
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{command} failed")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=300_000)
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--model", default="tempo")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder) / "shop.tale", Path(folder) / "lists.parquet"
        settings = [str(args.users), str(args.items), args.model, str(model)]
        run(
            [sys.executable, "-c", FIT, *settings]
        )  # a child's peak begins with what its parent has
        results = {}
        for name, command in {
            "command": [*COMMAND, str(model), "--users", "all", "-o", str(out)],
            "loop": [sys.executable, "-c", LOOP, str(model), str(out)],
        }.items():
            run(command)  # compiles
            seconds, peak = run(command)
            results[name] = {
                "seconds": round(seconds, 1),
                "users/s": round(args.users / seconds),
                "peak MB": round(peak),
            }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
