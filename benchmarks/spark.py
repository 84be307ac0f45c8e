"""The fit on Spark compared with one machine: time, shuffled bytes, growth, driver memory.

    python benchmarks/spark.py --rows 2000000 20000000 --items 20000

Each fit runs in its own process, so that its peak memory is measured alone. The catalogue is the
same for every size: the driver's memory grows with items, and must not grow with rows. The default
master runs two executors, processes with one core each, next to the driver. Shuffled bytes are
those that tasks wrote for other tasks, from Spark's event log. Kernels are compiled before the
clock starts.
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


def write_log(rows: int, items: int, path: Path, users: int | None = None) -> None:
    log = tr.synthetic_log(rows, items=items, users=users, titles=False)
    path.with_suffix(".size").write_text(json.dumps(asdict(plan.measure_size(log))))
    log.to_frame().write_parquet(path, row_group_size=500_000)


def peak_mb(process: int | str = "self") -> float:
    """Return the peak memory of a process; getrusage may report the peak of its parent."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


KINDS = {"tale": tr.TALE, "tempo": tr.Tempo}


def fit_locally(source: Path, kind: str) -> dict[str, float]:
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


def fit_on_spark(
    source: Path, kind: str, master: str, driver: str, **limits: int
) -> dict[str, float]:
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
        n_bytes = count_shuffled(events)
        bare = measure_shuffle(session, source.parent, n_bytes)
    return {
        "seconds": seconds,
        **{f"in {name}": spent for name, spent in model.fitted.seconds.items()},
        "weights": model.weights.nnz,
        "driver_python_mb": peak_mb(),
        "driver_java_mb": java,
        "shuffled": n_bytes,
        "floor": bare,
    }


def measure_shuffle(session, folder: Path, total: int, tasks: int = 8) -> float:
    """Return the seconds in which Spark moves so many bytes between tasks, without any work."""
    from talerec.spark import (
        ClusterRun,
        concatenate_messages,
        pack_message,
        run_tasks,
        send_messages,
    )

    run, size = ClusterRun(session, folder), total // tasks**2

    def send(number: int):
        rng = np.random.default_rng(number)
        for block in range(tasks):
            yield pack_message(block, number, rng.integers(0, 256, size, np.uint8))

    start = time.perf_counter()
    sent = send_messages(run, tasks, send)
    run_tasks(sent, tasks, lambda _, batches: concatenate_messages(batches, np.uint8))
    return time.perf_counter() - start


def count_shuffled(folder: Path) -> int:
    """Return the bytes that tasks wrote for other tasks."""
    total = 0
    for path in folder.iterdir():
        for line in path.open():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
                metrics = event["Task Metrics"]["Shuffle Write Metrics"]
                total += metrics["Shuffle Bytes Written"]
    return total


def max_difference(source: Path) -> float:
    """Return the largest difference of the two models' weights, relative to the largest."""
    ours, theirs = (tr.load(source.with_suffix(end)).weights for end in (".tale", ".local.tale"))
    return float(abs(ours - theirs).max() / abs(theirs).max())


def differing_params(source: Path) -> list[str]:
    """Return the names of learned query arrays that differ in any bit."""
    ours, theirs = (
        tr.load(source.with_suffix(end)).fitted.weights.query_arrays
        for end in (".tale", ".local.tale")
    )
    return [n for n in theirs if n not in ours or not np.array_equal(ours[n], theirs[n])]


def count_same_lists(source: Path, users: int = 10_000) -> tuple[int, int]:
    """Return how many of some users' lists of 10 are equal for both models, and how many users."""
    log = tr.read_log(source)
    some = np.linspace(0, len(log.users) - 1, min(users, len(log.users))).astype(np.int64)
    histories = [
        list(zip(log.items.ids.gather(log.item[a:b]), log.time[a:b], strict=True))
        for a, b in zip(log.ptr[some], log.ptr[some + 1], strict=True)
    ]
    ours, theirs = (
        tr.load(source.with_suffix(end))
        .recommend_histories(histories, k=10)
        .sort("history", "rank")
        for end in (".tale", ".local.tale")
    )
    other = ours.filter(ours["item_id"] != theirs["item_id"])["history"].n_unique()
    return len(some) - other, len(some)


def run_self(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, *map(str, arguments)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def report(args: argparse.Namespace, folder: Path) -> None:
    warm = folder / "warm.parquet"
    write_log(20_000, 2_000, warm)
    common = ("--model", args.model, "--master", args.master, "--driver", args.driver)
    run_self("--local", warm, *common)
    run_self("--spark", warm, *common)
    seconds = []
    for rows in args.rows:
        source = folder / f"{rows}.parquet"
        write_log(rows, args.items, source, args.users)
        if args.before:
            fit_before(args, source)
        limits = () if args.solve_bytes is None else ("--solve-bytes", args.solve_bytes)
        spark = run_self("--spark", source, *common, *limits)
        seconds.append(spark["seconds"])
        if args.record:
            size = plan.Size(**json.loads(source.with_suffix(".size").read_text()))
            took = {n[3:]: s for n, s in spark.items() if n.startswith("in ")}
            run = {"model": args.model, "cores": args.cores, "fitted": not args.unseen}
            run |= {"seconds": took, "shuffled": int(spark["shuffled"])}
            plan.record(args.record, size, run)
        if args.alone:
            print(f"{rows:,} rows: {spark['seconds']:.1f} s ({spark})", flush=True)
            continue
        local = run_self("--local", source, *common)
        print(f"{rows:,} rows, {args.items:,} items, {spark['weights']:,} weights")
        ratio, n_bytes = spark["seconds"] / local["seconds"], spark["shuffled"]
        python, java = spark["driver_python_mb"], spark["driver_java_mb"]
        memory, steps = local["peak_mb"], format_stages(local)
        print(f"  local {local['seconds']:.1f} s, {memory:,.0f} MB ({steps})")
        print(
            f"  Spark {spark['seconds']:.1f} s: {ratio:.2f} times as long ({format_stages(spark)})"
        )
        print(
            f"  shuffled {n_bytes / 1e6:,.0f} MB, {n_bytes / rows:.0f} bytes per event; "
            f"a bare job takes {spark['floor']:.1f} s for them"
        )
        print(f"  driver: Python {python:,.0f} MB, Java {java:,.0f} MB")
        print(f"  weights differ by {max_difference(source):.1e} of the largest at most")
        names = ", ".join(differing_params(source)) or "none"
        print(f"  learned parameters that differ: {names}")
        n_same, n_users = count_same_lists(source)
        print(f"  equal lists: {n_same:,} of {n_users:,} users", flush=True)
    if len(seconds) > 1:
        growth = np.log(seconds[-1] / seconds[0]) / np.log(args.rows[-1] / args.rows[0])
        print(f"growth exponent of the fit on Spark: {growth:.2f}")


def format_stages(figures: dict[str, float]) -> str:
    """Return the seconds of each stage as text."""
    return ", ".join(f"{n[3:]} {s:.1f}" for n, s in figures.items() if n.startswith("in "))


def fit_before(args: argparse.Namespace, source: Path) -> None:
    """Fit the same log with another checkout, and print its figures."""
    script = args.before / "benchmarks" / "spark.py"
    command = [sys.executable, str(script), "--spark", str(source), "--model", args.model]
    command += ["--master", args.master, "--driver", args.driver]
    environment = {**os.environ, "PYTHONPATH": str(args.before / "src")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    figures = json.loads(done.stdout.splitlines()[-1])
    for path in source.parent.glob(f"{source.stem}.*"):
        if path.suffix in (".events", ".tale", ".weights"):
            shutil.rmtree(path, ignore_errors=True)
    stages, n_bytes = format_stages(figures), figures["shuffled"]
    print(f"before: {figures['seconds']:.1f} s ({stages}); shuffled {n_bytes / 1e6:,.0f} MB")


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
    args = parser.parse_args()
    if args.local:
        print(json.dumps(fit_locally(args.local, args.model)))
    elif args.spark:
        limits = {} if args.solve_bytes is None else {"solve_bytes": args.solve_bytes}
        print(json.dumps(fit_on_spark(args.spark, args.model, args.master, args.driver, **limits)))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.folder or Path(temporary)
            folder.mkdir(exist_ok=True)
            report(args, folder)


if __name__ == "__main__":
    main()
