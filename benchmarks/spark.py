"""The fit on Spark against the fit on one machine: overhead, bytes shuffled, growth, and the driver's memory.

    python benchmarks/spark.py --rows 2000000 20000000 --items 20000 [--master local-cluster[2,1,2048]]

Each fit runs in a process of its own, so that its peak memory is its own. The catalogue is the same for
every size: what the driver holds grows with items, and must not grow with rows. The default master runs
two executors, processes with one core each, beside the driver. Shuffled bytes are those that tasks
wrote for others, from Spark's event log. Kernels are compiled before the clock starts.
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


def write(rows: int, items: int, path: Path) -> None:
    tr.synthetic_log(rows, items=items, titles=False).to_frame().write_parquet(
        path, row_group_size=500_000
    )


def peak_mb(process: int | str = "self") -> float:
    """The most memory a process has held. (What getrusage says would be its parent's, if that held more.)"""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


KINDS = {"tale": tr.TALE, "tempo": tr.Tempo}


def on_one_machine(source: Path, kind: str) -> dict[str, float]:
    start = time.perf_counter()
    log = tr.read_log(source)
    model = KINDS[kind](solver="local").fit(log)
    model.save(source.with_suffix(".local.tale"), histories=False)
    return {
        "seconds": time.perf_counter() - start,
        **{f"in {name}": spent for name, spent in model.fitted.seconds.items()},
        "weights": model.weights.nnz,
        "peak_mb": peak_mb(),
    }


def on_spark(source: Path, kind: str, master: str, driver: str) -> dict[str, float]:
    from pyspark import SparkContext

    from talerec import spark

    events = source.with_suffix(".events")
    events.mkdir()
    conf = {
        "spark.driver.memory": driver,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": f"file://{events}",
    }
    with spark.connected(master, conf) as session:
        session.sparkContext.setLogLevel("OFF")
        start = time.perf_counter()
        model = spark.fit(KINDS[kind](), source, source.with_suffix(".tale"), session=session)
        seconds = time.perf_counter() - start
        java = peak_mb(SparkContext._gateway.proc.pid)
        moved = shuffled(events)
        bare = floor(session, source.parent, moved)
    return {
        "seconds": seconds,
        **{f"in {name}": spent for name, spent in model.fitted.seconds.items()},
        "weights": model.weights.nnz,
        "driver_python_mb": peak_mb(),
        "driver_java_mb": java,
        "shuffled": moved,
        "floor": bare,
    }


def floor(session, folder: Path, total: int, tasks: int = 8) -> float:
    """Seconds in which Spark carries so many bytes from tasks to tasks, and nothing is computed."""
    from talerec.spark import blocks
    from talerec.spark.sessions import Run, run_tasks, send_tasks

    run, size = Run(session, folder), total // tasks**2

    def send(number: int):
        draw = np.random.default_rng(number)
        for block in range(tasks):
            yield blocks.cells(block, number, draw.integers(0, 256, size, np.uint8))

    start = time.perf_counter()
    run_tasks(send_tasks(run, tasks, send), tasks, lambda _, b: blocks.chained(b, np.uint8))
    return time.perf_counter() - start


def shuffled(folder: Path) -> int:
    """Bytes that tasks wrote for other tasks."""
    total = 0
    for path in folder.iterdir():
        for line in path.open():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
                metrics = event["Task Metrics"]["Shuffle Write Metrics"]
                total += metrics["Shuffle Bytes Written"]
    return total


def furthest(source: Path) -> float:
    """The largest difference of the two models' weights, relative to the largest weight."""
    ours, theirs = (tr.load(source.with_suffix(end)).weights for end in (".tale", ".local.tale"))
    return float(abs(ours - theirs).max() / abs(theirs).max())


def numbers_that_differ(source: Path) -> list[str]:
    """The arrays that queries are made by, and do not agree to the last bit."""
    ours, theirs = (
        tr.load(source.with_suffix(end)).fitted.weights.query_arrays
        for end in (".tale", ".local.tale")
    )
    return [n for n in theirs if n not in ours or not np.array_equal(ours[n], theirs[n])]


def same_lists(source: Path, users: int = 10_000) -> tuple[int, int]:
    """How many of some users' lists of 10 are the same by both models."""
    log = tr.read_log(source)
    some = np.linspace(0, len(log.users) - 1, min(users, len(log.users))).astype(np.int64)
    given = [
        list(zip(log.items.ids.gather(log.item[a:b]), log.time[a:b], strict=True))
        for a, b in zip(log.ptr[some], log.ptr[some + 1], strict=True)
    ]
    ours, theirs = (
        tr.load(source.with_suffix(end)).recommend_histories(given, k=10).sort("history", "rank")
        for end in (".tale", ".local.tale")
    )
    other = ours.filter(ours["item_id"] != theirs["item_id"])["history"].n_unique()
    return len(some) - other, len(some)


def run_self(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, *map(str, arguments)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def report(given: argparse.Namespace, folder: Path) -> None:
    warm = folder / "warm.parquet"
    write(20_000, 2_000, warm)
    told = ("--model", given.model, "--master", given.master, "--driver", given.driver)
    run_self("--local", warm, *told)
    run_self("--spark", warm, *told)
    found = []
    for rows in given.rows:
        source = folder / f"{rows}.parquet"
        write(rows, given.items, source)
        there = run_self("--spark", source, *told)
        here = run_self("--local", source, *told)
        found.append(there["seconds"])
        print(f"{rows:,} rows, {given.items:,} items, {there['weights']:,} weights")
        stages, steps = (
            ", ".join(f"{n[3:]} {s:.1f}" for n, s in one.items() if n.startswith("in "))
            for one in (there, here)
        )
        print(f"  local {here['seconds']:.1f} s, {here['peak_mb']:,.0f} MB ({steps})")
        print(f"  Spark {there['seconds']:.1f} s: {there['seconds'] / here['seconds']:.2f} times as long ({stages})")  # fmt: skip
        print(f"  shuffled {there['shuffled'] / 1e6:,.0f} MB, {there['shuffled'] / rows:.0f} bytes per event; a bare job takes {there['floor']:.1f} s for them")  # fmt: skip
        print(f"  driver: Python {there['driver_python_mb']:,.0f} MB, Java {there['driver_java_mb']:,.0f} MB")  # fmt: skip
        print(f"  weights differ by {furthest(source):.1e} of the largest at most")
        print(f"  learned numbers that differ: {', '.join(numbers_that_differ(source)) or 'none'}")
        alike, asked = same_lists(source)
        print(f"  the same lists: {alike:,} of {asked:,} users", flush=True)
    if len(found) > 1:
        growth = np.log(found[-1] / found[0]) / np.log(given.rows[-1] / given.rows[0])
        print(f"growth exponent of the fit on Spark: {growth:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--model", choices=list(KINDS), default="tempo")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--driver", default="1g", help="memory of the driver's Java")
    parser.add_argument("--folder", type=Path, help="where logs and models go (they stay there)")
    parser.add_argument("--local", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--spark", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.local:
        print(json.dumps(on_one_machine(given.local, given.model)))
    elif given.spark:
        print(json.dumps(on_spark(given.spark, given.model, given.master, given.driver)))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.folder or Path(temporary)
            folder.mkdir(exist_ok=True)
            report(given, folder)


if __name__ == "__main__":
    main()
