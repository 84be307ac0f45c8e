"""Evaluate each of the last rows of a log (`--split every:last:10%`): seconds, memory, queries/s.

    python benchmarks/every.py --rows 2000000 20000000 [--items 100000] [--model tale]

The log is synthetic and written to Parquet first (not timed). The command runs in a process of its
own, start and reading included. `positions` compares the memory with that of a tenth of the
queries (`every:last:1%`), in bytes per further query. `--keep DIR` keeps the logs, for a run of the
same command with `--engine spark` beside it.
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
from typing import Any

import talerec as tr


def run(log: Path, model: str, share: int) -> dict[str, Any]:
    """Run the command; return its JSON with wall seconds, CPU seconds and peak memory in MB."""
    split = ["--split", f"every:last:{share}%", "--model", model]
    command = [sys.executable, "-m", "talerec", "evaluate", str(log), *split, "--json"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return {
        **json.loads(output),
        "wall": time.perf_counter() - start,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss / 1024,
    }


def measure(log: Path, model: str) -> str:
    """Return a line on the evaluation of the last 10 % of a log, and its memory beside 1 %."""
    few, many = (run(log, model, share) for share in (1, 10))
    growth = (many["peak_mb"] - few["peak_mb"]) * 2**20 / (many["cases"] - few["cases"])
    speed = many["cases"] / many["seconds"]["score"]
    parts = {name: round(value, 1) for name, value in many["seconds"].items()}
    return (
        f"{many['cases']:,} queries: {many['wall']:.1f} s, {many['cpu']:.1f} processor s, "
        f"{many['peak_mb'] / 1024:.2f} GB, {speed:,.0f} queries/s ranked; seconds {parts}; "
        f"1 %: {few['peak_mb'] / 1024:.2f} GB ({growth:.0f} bytes per further query); "
        f"HR@10 {many['metrics']['HR@10']:.4f}"
    )


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000])
    parser.add_argument("--items", type=int, default=0, help="0: one item per 200 rows")
    parser.add_argument("--model", default="tale")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            path = (options.keep or Path(folder)) / f"every-{rows}.parquet"
            if not path.exists():
                log = tr.synthetic_log(rows, items=options.items or rows // 200, titles=False)
                log.to_frame().write_parquet(path)
                del log
            print(f"{rows:,} rows: {measure(path, options.model)}", flush=True)


if __name__ == "__main__":
    main()
