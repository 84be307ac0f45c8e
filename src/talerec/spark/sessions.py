"""Sessions on a cluster, and one piece of work there: stages that are watched, tasks that are numbered."""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec.errors import TalerecError
from talerec.runtime.clock import Clock
from talerec.runtime.progress import stage
from talerec.runtime.threads import VARIABLE
from talerec.spark import tasks

_RAISED = re.compile(r"talerec\.errors\.TalerecError: (.*)")


@contextmanager
def connected(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session on a cluster, stopped at the end; executors run the Python that runs this.

    A session that is there already is used, and left running.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("talerec").config(
        "spark.ui.showConsoleProgress", "false"
    )
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    there = SparkSession.getActiveSession()
    try:
        session = (builder.master(master) if master else builder).getOrCreate()
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        raise TalerecError(f"Spark did not start (it needs Java 17): {_first(error)}") from None
    try:
        yield session
    finally:
        if there is None:
            session.stop()


@contextmanager
def faults_named() -> Iterator[None]:
    """What a task refused is said in its words; of what else goes wrong in Spark, the first line."""
    try:
        yield
    except PythonException as error:
        raised = _RAISED.search(str(error))
        raise TalerecError(
            raised[1] if raised else f"a Spark task failed: {_last(error)}"
        ) from error
    except PySparkException as error:
        raise TalerecError(f"Spark: {_first(error)}") from error


def _first(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _last(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__


@dataclass
class Run:
    """One piece of work on a cluster: its session, the folder that all see, and how long stages take."""

    session: SparkSession
    folder: Path
    clock: Clock = field(default_factory=Clock)

    @property
    def cores(self) -> int:
        return int(self.session.sparkContext.defaultParallelism)

    def save(self, name: str, frame: DataFrame, label: str) -> DataFrame:
        """Run the stage that makes `frame`: Spark's committer takes one attempt of every task."""
        path = f"file://{self.folder / name}"
        with self.watched(label):
            frame.write.mode("overwrite").parquet(path)
        return self.session.read.parquet(path)

    def read(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.folder / name / "*.parquet")

    @contextmanager
    def watched(self, label: str) -> Iterator[None]:
        """Report the tasks that end inside the block as stage `label`."""
        context = self.session.sparkContext
        group = f"talerec {label} {uuid.uuid4().hex}"
        context.setJobGroup(group, f"talerec: {label}")
        tick, over = stage(label, 1.0), threading.Event()
        watcher = threading.Thread(target=_watch, args=(context, group, tick, over), daemon=True)
        watcher.start()
        try:
            with self.clock(label), faults_named():
                yield
        finally:
            over.set()
            watcher.join()


def _watch(context: Any, group: str, tick: Callable[[float], None], over: threading.Event) -> None:
    """Tick on as tasks of a job group end; stages that appear later do not turn it back."""
    shown, tracker = 0.0, context.statusTracker()
    while not over.wait(0.2):
        jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
        stages = [tracker.getStageInfo(number) for job in jobs if job for number in job.stageIds]
        total = sum(known.numTasks for known in stages if known)
        done = sum(known.numCompletedTasks for known in stages if known)
        if total and done / total > shown:
            tick(done / total - shown)
            shown = done / total
    tick(1.0 - shown)


def spread(
    frame: DataFrame,
    tasks: int,
    column: str,
    work: Callable[[int, tasks.Batches], Any],
    schema: str,
) -> DataFrame:
    """Task number c works on the rows with `column` = c."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[VARIABLE] = "1"  # cores are Spark's to share out
        yield from work(TaskContext.get().partitionId(), batches)  # type: ignore[union-attr]

    return frame.repartitionById(tasks, F.col(column)).mapInArrow(run, schema)


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type of an id, a count or a place."""
    kinds: dict[Any, pa.DataType] = {
        T.StringType(): pa.string(),
        T.LongType(): pa.int64(),
        T.IntegerType(): pa.int32(),
    }
    return kinds[kind]


def spelled(schema: pa.Schema) -> str:
    """The same columns in Spark's words."""
    words = {
        pa.string(): "string",
        pa.int64(): "long",
        pa.int32(): "int",
        pa.float64(): "double",
        pa.float32(): "float",
    }
    return ", ".join(f"{one.name} {words[one.type]}" for one in schema)
