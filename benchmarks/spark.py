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
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

import plan
import talerec as tr


def write(rows: int, items: int, path: Path, users: int | None = None) -> None:
    log = tr.synthetic_log(rows, items=items, users=users, titles=False)
    path.with_suffix(".size").write_text(json.dumps(asdict(plan.described(log))))
    log.to_frame().write_parquet(path, row_group_size=500_000)


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


def on_spark(source: Path, kind: str, master: str, driver: str, **limits: int) -> dict[str, float]:
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
        model = spark.fit(
            KINDS[kind](), source, source.with_suffix(".tale"), session=session, **limits
        )
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
    from talerec.spark.session import Run, run_tasks, send_tasks

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
        write(rows, given.items, source, given.users)
        if given.before:
            before(given, source)
        limits = () if given.solve_bytes is None else ("--solve-bytes", given.solve_bytes)
        there = run_self("--spark", source, *told, *limits)
        found.append(there["seconds"])
        if given.record:
            size = plan.Size(**json.loads(source.with_suffix(".size").read_text()))
            took = {n[3:]: s for n, s in there.items() if n.startswith("in ")}
            plan.record(given.record, given.model, given.cores, size, took, int(there["shuffled"]), not given.unseen)  # fmt: skip
        if given.alone:
            print(f"{rows:,} rows: {there['seconds']:.1f} s ({there})", flush=True)
            continue
        here = run_self("--local", source, *told)
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


def before(given: argparse.Namespace, source: Path) -> None:
    """The same log by another checkout, in its own words."""
    script = given.before / "benchmarks" / "spark.py"
    command = [sys.executable, str(script), "--spark", str(source), "--model", given.model, "--master", given.master, "--driver", given.driver]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(given.before / "src")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    was = json.loads(done.stdout.splitlines()[-1])
    for path in source.parent.glob(f"{source.stem}.*"):
        if path.suffix in (".events", ".tale", ".weights"):
            shutil.rmtree(path, ignore_errors=True)
    stages = ", ".join(f"{n[3:]} {s:.1f}" for n, s in was.items() if n.startswith("in "))
    print(f"before: {was['seconds']:.1f} s ({stages}); shuffled {was['shuffled'] / 1e6:,.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--model", choices=list(KINDS), default="tempo")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--driver", default="1g", help="memory of the driver's Java")
    parser.add_argument("--folder", type=Path, help="where logs and models go (they stay there)")
    parser.add_argument("--users", type=int, help="by default one for every 10 rows")
    parser.add_argument(
        "--before", type=Path, help="an earlier checkout, to be measured beside this"
    )
    parser.add_argument("--solve-bytes", type=int, help="of G that a solving task may hold")
    parser.add_argument("--alone", action="store_true", help="Spark alone, without one machine")
    parser.add_argument("--record", type=Path, help="add runs on Spark to this file (plan.py)")
    parser.add_argument("--unseen", action="store_true", help="... which plan.py is not fitted to")
    parser.add_argument("--cores", type=int, default=2, help="that the master has")
    parser.add_argument("--local", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--spark", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.local:
        print(json.dumps(on_one_machine(given.local, given.model)))
    elif given.spark:
        limits = {} if given.solve_bytes is None else {"solve_bytes": given.solve_bytes}
        print(json.dumps(on_spark(given.spark, given.model, given.master, given.driver, **limits)))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.folder or Path(temporary)
            folder.mkdir(exist_ok=True)
            report(given, folder)


if __name__ == "__main__":
    main()
