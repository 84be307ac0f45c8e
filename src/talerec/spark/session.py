"""Sessions on a cluster, and runs of work there: timed stages, and numbered tasks."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from zipimport import zipimporter

import polars as pl
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import talerec
from talerec.errors import TalerecError
from talerec.runtime import VARIABLE, Clock, stage
from talerec.spark.errors import NANOSECONDS, first_line, translate_errors
from talerec.spark.messages import MESSAGES, Batches
from talerec.spark.requirements import check_installed

GLOB = re.compile(r"[][{}*?\\]")  #: what makes a path a pattern of Spark

#: Defaults of our sessions; without the second, Spark refuses times as pandas writes them.
_DEFAULTS = {"spark.ui.showConsoleProgress": "false", NANOSECONDS: "true"}
_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def connected(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a Spark session on a cluster, and stop it at the end of the `with` block.

    A session that is already active is used, and stays open.

    Parameters
    ----------
    master : str, optional
        The address of the cluster, `spark://host:7077`; Spark's own configuration by default.
    conf : mapping, optional
        Spark settings by name. Executors run the Python that runs this function, unless the
        environment variable `PYSPARK_PYTHON` is set.

    Returns
    -------
    context manager
        It gives the session.

    Raises
    ------
    TalerecError
        When Spark does not start, or Java or a package that it needs is not installed.
    """
    is_running = SparkContext._active_spark_context is not None  # maybe opened by another thread
    check_installed(is_running)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("talerec").config(map={**_DEFAULTS, **(conf or {})})
    try:
        session = (builder.master(master) if master else builder).getOrCreate()
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        reason = first_line(error)
        raise TalerecError(f"Spark did not start (it needs Java 17): {reason}") from None
    try:
        yield session
    finally:
        if not is_running:
            session.stop()


# -- runs ------------------------------------------------------------------------------------------


@dataclass
class ClusterRun:
    """One run of work on a Spark cluster; TalerecError if its session or folder is unusable."""

    session: SparkSession
    folder: Path  # all machines of the cluster see it under the same path
    clock: Clock = field(default_factory=Clock)  # seconds by the name of a stage of the work

    def __post_init__(self) -> None:
        if match := GLOB.search(str(self.folder)):
            raise TalerecError(
                f"{self.folder} has {match[0]} in its name, which Spark takes for a pattern: "
                "work in another folder"
            )
        if self.session.sparkContext._jsc is None:
            raise TalerecError("the session was stopped: open another one (spark.connected)")

    @property
    def n_cores(self) -> int:
        """The number of Spark tasks that run at the same time on the cluster."""
        return int(self.session.sparkContext.defaultParallelism)

    def task_numbers(self, count: int) -> DataFrame:
        """Return a table with column `block`: the numbers 0 to count - 1, one row for each task."""
        return self.session.range(count).select(F.col("id").cast("int").alias("block"))

    def save(self, name: str, frame: DataFrame, label: str) -> DataFrame:
        """Save a Spark table to `name`, a subfolder of the run; return it as read from there.

        The time is measured as stage `label`. The folder has Parquet files; old ones are replaced.
        """
        path = f"file://{self.folder / name}"
        with self.stage(label):
            frame.write.mode("overwrite").parquet(path)  # Spark commits one attempt of each task
        return self.session.read.parquet(path)

    def read(self, name: str) -> pl.DataFrame:
        """Return the table that `save` saved under `name`, as a frame in the driver's memory."""
        return pl.read_parquet(self.folder / name / "*.parquet")

    @contextmanager
    def stage(self, label: str) -> Iterator[None]:
        """Measure the time of the `with` block as stage `label`, and report its finished tasks.

        A progress bar shows the share of Spark tasks that are finished. Errors of Spark become
        TalerecErrors; Ctrl-C and SIGTERM cancel the Spark jobs of the block, which are one job
        group.
        """
        context = self.session.sparkContext
        group = f"talerec {label} {uuid.uuid4().hex}"
        tick, is_over = stage(label, 1.0), threading.Event()
        watcher = threading.Thread(
            target=_report_tasks, args=(context, group, tick, is_over), daemon=True
        )
        watcher.start()
        try:
            with (
                self.clock(label),
                _cancel_on_signals(context, group),
                translate_errors(),
                _set_job_group(context, group, f"talerec: {label}"),
            ):
                yield
        finally:
            is_over.set()
            watcher.join()


@contextmanager
def open_run(session: SparkSession, parent: str | Path) -> Iterator[ClusterRun]:
    """Yield a run in a new folder of `parent`; the folder is removed at the end in any case.

    A context manager; a run has the session, the folder and a clock. The folder is renamed first,
    so that abandoned attempts of tasks cannot write to it. TalerecError if it cannot be made.
    """
    check_installed(is_running=True)
    folder = Path(parent).absolute() / f"talerec-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise TalerecError(f"{folder} cannot be made: {error.strerror or error}") from None
    try:
        yield ClusterRun(session, folder)
    finally:
        with suppress(OSError):
            folder = folder.rename(f"{folder}.old")
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _set_job_group(context: SparkContext, group: str, description: str) -> Iterator[None]:
    """Put the Spark jobs of the `with` block into a group; then restore the caller's group.

    group: its id, by which jobs are cancelled and counted; description: shown by Spark.
    """
    previous = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        with suppress(Exception):  # a stopped session has no properties to restore
            for name, value in previous.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]


@contextmanager
def _cancel_on_signals(context: SparkContext, group: str) -> Iterator[None]:
    """Cancel the Spark jobs of a group on Ctrl-C and SIGTERM, then raise the interrupt.

    A context manager: the handlers are set while the block runs. Spark's own handler cancels on the
    very connection that waits for an answer, and breaks it. Only the main thread handles signals;
    in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[BaseException] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """Handle a signal: cancel the jobs if Python waits for Spark, else raise the interrupt."""
        is_keyboard = number == signal.SIGINT
        interrupts.append(KeyboardInterrupt() if is_keyboard else SystemExit(128 + number))
        if len(interrupts) > 1 or not _is_waiting_for_spark(frame):
            raise interrupts[0]
        java: Any = context._jsc
        cancel = threading.Thread(target=lambda: java.sc().cancelJobGroupAndFutureJobs(group))
        cancel.start()  # each thread has its own connection to Spark

    previous_handlers = {signal.SIGINT: signal.signal(signal.SIGINT, stop)}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        previous_handlers[signal.SIGTERM] = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except TalerecError as error:  # it reports that the jobs were cancelled
        raise interrupts[0] if interrupts else error from None
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
    if interrupts:
        raise interrupts[0]


def _is_waiting_for_spark(frame: FrameType | None) -> bool:
    """Return whether Python waits for an answer of Spark when a signal interrupts `frame`.

    It does if this stack frame, or a caller of it, is code of py4j, which calls Java.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _report_tasks(
    context: Any, group: str, tick: Callable[[float], None], is_over: threading.Event
) -> None:
    """Report the growth of a job group's share of finished tasks, until `is_over` is set.

    context: of Spark. group: the id of the job group. tick: gets each increase; all increases add
    up to 1. Runs in a thread of its own, and looks five times a second.
    """
    reported = 0.0
    with suppress(Py4JError):  # the thread that waits for Spark raises the error
        tracker = context.statusTracker()
        while not is_over.wait(0.2):
            jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
            infos = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            total = sum(info.numTasks for info in infos if info)
            done = sum(info.numCompletedTasks for info in infos if info)
            if total and done / total > reported:
                tick(done / total - reported)
                reported = done / total
    tick(1.0 - reported)


# -- tasks -----------------------------------------------------------------------------------------


def map_tasks(
    frame: DataFrame, count: int, column: str, work: Callable[[int, Batches], Any], schema: str
) -> DataFrame:
    """Return a lazy Spark table of the rows that `work(number, batches)` yields in each task.

    Task c (0 to count - 1) gets the rows of `frame` whose `column` is c, as Arrow batches. schema:
    of the result, as Spark's text.
    """

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from work(TaskContext.get().partitionId(), batches)  # type: ignore[union-attr]

    return map_rows(frame.repartitionById(count, F.col(column)), run, schema)


def map_rows(
    frame: DataFrame, work: Callable[[Batches], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Return a lazy Spark table of the rows that `work(batches)` yields for each partition.

    A partition is a part of `frame` that one Spark task has; its rows come as Arrow batches.
    schema: of the result, as Spark's text. Executors must have the driver's version of talerec;
    tasks use one thread.
    """
    expected = talerec.__version__

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `work(batches)`, in an executor that has the driver's version."""
        if talerec.__version__ != expected:  # weights would come from two versions
            versions = f"{talerec.__version__}, and the driver {expected}"
            advice = "install the same on all machines"
            raise TalerecError(f"an executor has talerec {versions}: {advice}")
        os.environ[VARIABLE] = "1"  # Spark runs one task on each core
        _reduce_task_cleanup()
        yield from work(batches)

    return frame.mapInArrow(run, schema)


def _reduce_task_cleanup() -> None:
    """Make Spark's cleaning between two tasks of a Python process cheap; it takes 0.2 s else.

    Spark collects garbage, which visits every object of every module, and makes Python read the
    file lists of Spark's own archives anew, once for each package in them. So present objects are
    exempted from collection, and the archives are dropped from the import cache.
    """
    gc.freeze()
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def send_messages(
    run: ClusterRun, count: int, work: Callable[[int], Iterator[pa.RecordBatch]]
) -> DataFrame:
    """Return a lazy Spark table of the messages that `count` tasks yield, one per row.

    Task c (0 to count - 1) yields those of `work(c)`. A message has arrays as bytes, and the number
    of the task that receives it (column `block`).
    """

    def send(number: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from work(number)

    return map_tasks(run.task_numbers(count), count, "block", send, MESSAGES)


def run_tasks(frame: DataFrame, count: int, work: Callable[[int, Batches], object]) -> None:
    """Run `work(number, batches)` in `count` Spark tasks, and wait for all of them.

    Task c (0 to count - 1) gets the rows of `frame` whose column `block` is c, as Arrow batches,
    such as the messages that other tasks sent to it. What `work` returns is ignored.
    """

    def run(number: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Run the work of one task, read its remaining rows, and yield the task's number."""
        work(number, batches)
        for _ in batches:
            pass  # Spark waits until all rows are read
        yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32())], ["block"])

    map_tasks(frame, count, "block", run, "block int").agg(F.count(F.lit(1))).collect()


def run_on_partitions(run: ClusterRun, count: int, work: Callable[[int], object]) -> None:
    """Run `work(number)` on the cluster in tasks 0 to count - 1, and wait for all of them."""
    run_tasks(run.task_numbers(count), count, lambda number, _: work(number))
