"""From file to saved artifact at 10k, 100k and 1M items, 20 rows per item.

    python benchmarks/scale.py --items 10000 100000 1000000 [--keep DIR]

Each size runs in a process of its own, so that its peak memory is its own. The synthetic log is
written to Parquet first (not timed); kernels are compiled before the clock starts. `--keep` leaves
the largest artifact behind for benchmarks/query.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import talerec as tr

ROWS_PER_ITEM = 20


def fit_once(source: Path, target: Path) -> dict[str, float]:
    """Read, fit, save; seconds by step and the peak memory of this process."""
    from talerec.runtime import peak_rss_mb

    marks = [time.perf_counter()]
    log = tr.read_log(source)
    marks.append(time.perf_counter())
    model = tr.TALE(solver="local").fit(log)
    marks.append(time.perf_counter())
    model.save(target)
    marks.append(time.perf_counter())
    read, fit, save = np.diff(marks)
    return {
        "read": read,
        "gram": model.fitted.seconds["gram"],
        "solve": model.fitted.seconds["solve"],
        "fit": fit,
        "save": save,
        "all": marks[-1] - marks[0],
        "peak_gb": peak_rss_mb() / 1024,
        "items": len(log.items),
        "weights": model.weights.nnz,
    }


def measure(items: int, folder: Path) -> dict[str, float]:
    source, target = folder / f"{items}.parquet", folder / f"{items}.tale"
    run_self("--write", str(source), "--items", str(items))
    return json.loads(run_self("--fit", str(source), str(target)))


def run_self(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fit", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        rows = ROWS_PER_ITEM * args.items[0]
        log = tr.synthetic_log(rows, items=round(1.2 * args.items[0]), titles=False)
        log.to_frame().write_parquet(args.write)  # about one item in six is never sold
    elif args.fit:
        print(json.dumps(fit_once(*args.fit)))
    else:
        report(args.items, args.keep)


def report(sizes: list[int], keep: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        measure(2_000, folder)  # compile
        results = {}
        print(
            f"{'items':>9} {'rows':>11} {'read':>7} {'gram':>7} {'solve':>7} {'save':>6} "
            f"{'all':>7} {'peak':>8}"
        )
        for items in sizes:
            it = results[items] = measure(items, folder)
            print(
                f"{it['items']:9,} {items * ROWS_PER_ITEM:11,} "
                f"{it['read']:6.1f}s {it['gram']:6.1f}s "
                f"{it['solve']:6.1f}s {it['save']:5.1f}s {it['all']:6.1f}s {it['peak_gb']:5.1f} GB",
                flush=True,
            )
        if len(results) > 1:
            slope = np.polyfit(np.log(sizes), np.log([results[n]["fit"] for n in sizes]), 1)[0]
            ends = np.log(results[sizes[-1]]["fit"] / results[sizes[0]]["fit"])
            print(
                f"growth exponent of fit seconds: {slope:.2f} (least squares), "
                f"{ends / np.log(sizes[-1] / sizes[0]):.2f} (first to last)"
            )


if __name__ == "__main__":
    main()
