"""A real standalone cluster on loopback: one master, two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from logs import DAY, START
from processes import children_of
from waiting import until

_HOST = "127.0.0.1"
# Small logs: compiling well costs more than it gains.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    "spark.driver.extraJavaOptions": _QUICK,
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.bindAddress": _HOST,
    "spark.driver.host": _HOST,
    "spark.driver.memory": "600m",
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.shuffle.io.maxRetries": "1",  # a lost machine does not come back
    "spark.shuffle.io.retryWait": "1s",
    "spark.speculation": "true",  # every test: a slow task is started again beside itself
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def java_17() -> str | None:
    """Return the Java that Spark would run, if it is 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java or not Path(java).exists():
        return None
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', output)
    return java if version and int(version[1]) >= 17 else None


def require_spark() -> None:
    """Skip, with the reason, where Spark cannot run."""
    if os.environ.get("EXTRAS") != "all":
        pytest.skip("a Spark cluster is for EXTRAS=all make test")
    pytest.importorskip("pyspark", reason="needs pyspark: EXTRAS=all make test")
    if java_17() is None:
        pytest.skip("needs Java 17 for Spark: none was found")


class Cluster:
    """A cluster that starts on entry and stops on exit; every process is ended by its id."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder, self.count = folder, workers
        self.master: subprocess.Popen | None = None
        self.workers: list[subprocess.Popen] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        try:
            self.master = self._start("master", _HOST, "--port", "0", "--webui-port", "0")
            self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self.count):
                name = f"worker-{number}"
                sizes = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
                work = ("--work-dir", str(self.folder / name))
                host = f"127.0.0.{number + 2}"  # a task is never started again on its own host
                self.workers.append(self._start(name, host, *sizes, *work, self.url))
            for number in range(self.count):
                self._wait_for(f"worker-{number}", "Successfully registered with (master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        started = [*self.workers, *([self.master] if self.master else [])]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def lose(self, number: int) -> None:
        """Kill a worker and its executors, as if the machine were lost."""
        worker = self.workers[number]
        executors = children_of(worker.pid)
        for pid in (worker.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        worker.wait()

    def _start(self, name: str, host: str, *arguments: str) -> subprocess.Popen:
        import pyspark

        home = Path(pyspark.__file__).parent
        kind = name.partition("-")[0]
        java_class = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "160m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(home / "bin" / "spark-class"), java_class, "--host", host, *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _wait_for(self, name: str, pattern: str) -> str:
        """Wait for a line in the log of a process, and return its first group."""
        path = self.folder / f"{name}.log"
        match = until(
            lambda: re.search(pattern, path.read_text(errors="replace")),
            f"{name} did not start: its log is {path}",
        )
        return match[1]


# -- logs ------------------------------------------------------------------------------------------

SMALL = {"task_rows": 2_000, "task_pairs": 40_000}  # so that a small log has many tasks


def skewed(rows: int = 8_000, names: str = "{}") -> pl.DataFrame:
    """Return unordered rows with ties, repeats and a long tail.

    One user has a sixth of the rows, and one item a third.
    """
    rng = np.random.default_rng(11)
    user = np.where(rng.random(rows) < 1 / 6, 7, rng.integers(0, rows // 10, rows))
    item = np.where(rng.random(rows) < 1 / 3, 3, rng.zipf(1.25, rows) % 900)
    time = START + rng.integers(0, 2_000, rows) * (DAY // 4)
    return pl.DataFrame(
        {
            "user_id": user,
            "item_id": [names.format(x) for x in item.tolist()] if names != "{}" else item,
            "timestamp": pl.Series(time).cast(pl.Datetime("us")),
        }
    )


def write(frame: pl.DataFrame, folder, files: int = 3):
    """Write a frame as a folder of Parquet files, whose names give their order."""
    folder.mkdir()
    size = -(-len(frame) // files)
    for number in range(files):
        frame[number * size : (number + 1) * size].write_parquet(folder / f"{number}.parquet")
    return folder


def fit(model, source, out, session, **options):
    from talerec import spark

    return spark.fit(model, source, out, session=session, **{**SMALL, **options})


# -- failures --------------------------------------------------------------------------------------


def killed(original):
    """Return a `map_rows` whose task 0 is killed at its first attempt, after its first output."""

    def map_rows(frame, work, schema):
        def run(batches):
            from pyspark import TaskContext

            context = TaskContext.get()
            is_doomed = context.partitionId() == 0 and context.attemptNumber() == 0
            for batch in work(batches):
                yield batch
                if is_doomed:
                    os.kill(os.getpid(), signal.SIGKILL)
            if is_doomed:
                os.kill(os.getpid(), signal.SIGKILL)

        return original(frame, run, schema)

    return map_rows


def filled(attempts: int):
    """Return a failure: a `map_rows` whose task 0 finds a full disk at its first attempts."""

    def fail(original):
        def map_rows(frame, work, schema):
            def run(batches):
                from pyspark import TaskContext

                from talerec.runtime import files

                def replace(*_: object) -> None:
                    raise OSError(28, "No space left on device")

                context = TaskContext.get()
                if context.partitionId() or context.attemptNumber() >= attempts:
                    yield from work(batches)
                    return
                files.os, original_os = SimpleNamespace(replace=replace), files.os
                try:
                    yield from work(batches)
                finally:
                    files.os = original_os

            return original(frame, run, schema)

        return map_rows

    return fail


def inject(monkeypatch, failure) -> None:
    """Make the tasks of the driver fail: `failure` takes and returns a `map_rows`."""
    import sys

    from pyspark import cloudpickle

    from talerec.spark import log_stats, session

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    failing = failure(session.map_rows)
    for module in (session, log_stats):
        monkeypatch.setattr(module, "map_rows", failing)
