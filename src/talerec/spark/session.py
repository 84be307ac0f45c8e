"""Sessions on a cluster, and one run of work there: stages that report progress, tasks that have numbers."""

from __future__ import annotations

import gc
import os
import re
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
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import talerec
from talerec import errors
from talerec.errors import TalerecError
from talerec.runtime import progress
from talerec.runtime.clock import Clock
from talerec.runtime.threads import VARIABLE
from talerec.spark.blocks import CELLS, Batches

_OUR_ERROR = re.compile(r"talerec\.(?:\w+\.)+(\w+Error): (.*)")  # as a task's traceback ends
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(talerec[\w.]*)'")
_OTHER_KIND = re.compile(
    r"reading file (\S+)\. Data type mismatches when reading Parquet column \[(.+?)\]\. Expected Spark type (\S+), actual Parquet type (\w+)"
)
_UNREADABLE = re.compile(r"reading file (\S+)\.\s")
PATTERN = re.compile(r"[][{}*?\\]")  #: what makes a path a pattern of Spark

_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"
#: What a session of ours has, unless somebody says otherwise; without the second, Spark refuses times as pandas writes them.
_SETTINGS = {"spark.ui.showConsoleProgress": "false", _NANOSECONDS: "true"}


@contextmanager
def connected(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Open a session on a cluster and stop it at the end. A session that is active already is used, and left running.

    Parameters
    ----------
    master : str, optional
        The address of the cluster, `spark://host:7077`; without it, what Spark's own settings say.
    conf : mapping, optional
        Settings of Spark by name. Executors run the Python that runs this, unless `PYSPARK_PYTHON` is set.

    Returns
    -------
    context manager
        It gives the session.

    Raises
    ------
    TalerecError
        When Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("talerec")
    for name, value in {**_SETTINGS, **(conf or {})}.items():
        builder = builder.config(name, value)
    is_running = SparkContext._active_spark_context is not None  # maybe opened by another thread
    try:
        session = (builder.master(master) if master else builder).getOrCreate()
    except (PySparkException, Py4JError, OSError, ValueError) as error:
        said = _first_line(error)
        raise TalerecError(f"Spark did not start (it needs Java 17): {said}") from None
    try:
        yield session
    finally:
        if not is_running:
            session.stop()


@contextmanager
def readable_errors() -> Iterator[None]:
    """Errors of Spark as one line each; an error of ours that a task raised is raised again as it was."""
    try:
        yield
    except PythonException as error:
        ours = _OUR_ERROR.search(str(error))
        if ours:
            kind = getattr(errors, ours[1], TalerecError)
            raise kind(ours[2]) from error
        if missing := _MISSING.search(str(error)):
            raise TalerecError(
                f"an executor has no {missing[1]}: install talerec {talerec.__version__}, as on the driver, on all machines"
            ) from error
        raise TalerecError(f"a Spark task failed: {_last_line(error)}") from error
    except PySparkException as error:
        said = _first_line(error)
        if "TIMESTAMP(NANOS" in said:
            said = f"the log has times in nanoseconds, which Spark reads with {_NANOSECONDS}=true"
        raise TalerecError(f"Spark: {said}") from error
    except Py4JJavaError as error:
        raise TalerecError(_of_java(str(error))) from error
    except Py4JError as error:
        raise TalerecError(f"Spark does not answer any more: {_first_line(error)}") from error


def _of_java(text: str) -> str:
    """What an error of Spark says that it did not put into words of Python: most are about files that cannot be read."""
    causes = re.findall(r"Caused by: [\w.$]+: (.+)", text)
    if found := _OTHER_KIND.search(text):
        file, column, others, kind = found.groups()
        return f"{file}: column {column!r} holds {kind} values, and that of other files {others}: write one type to all of them"
    if found := _UNREADABLE.search(text):
        return f"{found[1]} cannot be read as Parquet: {causes[-1] if causes else 'it is damaged'}"
    lines = [line for line in text.splitlines() if line.strip()]
    return f"Spark: {causes[-1] if causes else lines[min(1, len(lines) - 1)].lstrip(': ')}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__


@dataclass
class Run:
    """One run of work on a cluster: its session, a folder that all machines see, and the seconds of its stages."""

    session: SparkSession
    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        if odd := PATTERN.search(str(self.folder)):
            raise TalerecError(
                f"{self.folder} has {odd[0]} in its name, which Spark takes for a pattern: work in another folder"
            )
        if self.session.sparkContext._jsc is None:
            raise TalerecError("the session was stopped: open another one (spark.connected)")

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        return int(self.session.sparkContext.defaultParallelism)

    def numbers(self, count: int) -> DataFrame:
        """The numbers 0..count as the column `block`."""
        return self.session.range(count).select(F.col("id").cast("int").alias("block"))

    def save(self, name: str, frame: DataFrame, label: str) -> DataFrame:
        """Compute a frame as stage `label` and save it; Spark commits exactly one attempt of every task."""
        path = f"file://{self.folder / name}"
        with self.stage(label):
            frame.write.mode("overwrite").parquet(path)
        return self.session.read.parquet(path)

    def read(self, name: str) -> pl.DataFrame:
        """A saved frame, on the driver."""
        return pl.read_parquet(self.folder / name / "*.parquet")

    @contextmanager
    def stage(self, label: str) -> Iterator[None]:
        """Time what runs inside the block, and report its tasks as progress of stage `label`."""
        context = self.session.sparkContext
        group = f"talerec {label} {uuid.uuid4().hex}"
        tick, over = progress.stage(label, 1.0), threading.Event()
        watcher = threading.Thread(
            target=_report_tasks, args=(context, group, tick, over), daemon=True
        )
        watcher.start()
        try:
            with (
                self.clock(label),
                _stoppable(context, group),
                readable_errors(),
                _grouped(context, group, f"talerec: {label}"),
            ):
                yield
        finally:
            over.set()
            watcher.join()


@contextmanager
def _grouped(context: SparkContext, group: str, words: str) -> Iterator[None]:
    """Jobs of the block are a group of their own; what the caller's jobs were called before comes back."""
    before = {name: context.getLocalProperty(name) for name in _NAMES_OF_JOBS}
    context.setJobGroup(group, words)
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone has nothing to give back
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type]


_NAMES_OF_JOBS = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextmanager
def _stoppable(context: SparkContext, group: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the jobs of a group, and then the block.

    Spark's own handler asks Spark to end them on the very connection that waits for an answer, and breaks it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[BaseException] = []

    def stop(number: int, frame: FrameType | None) -> None:
        told.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        if len(told) > 1 or not _is_waiting(frame):
            raise told[0]
        java: Any = context._jsc
        ended = threading.Thread(target=lambda: java.sc().cancelJobGroupAndFutureJobs(group))
        ended.start()  # a thread has a connection of its own

    before = {signal.SIGINT: signal.signal(signal.SIGINT, stop)}
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except TalerecError as error:  # that its jobs were ended
        raise told[0] if told else error from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if told:
        raise told[0]


def _is_waiting(frame: FrameType | None) -> bool:
    """Does Spark owe an answer?"""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("py4j."):
            return True
        frame = frame.f_back
    return False


def _report_tasks(
    context: Any, group: str, tick: Callable[[float], None], over: threading.Event
) -> None:
    """Report progress as tasks of a job group end; it never goes back, though new stages appear meanwhile."""
    shown = 0.0
    with suppress(Py4JError):  # who waits for Spark is told that it is gone
        tracker = context.statusTracker()
        while not over.wait(0.2):
            jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
            stages = [tracker.getStageInfo(one) for job in jobs if job for one in job.stageIds]
            total = sum(known.numTasks for known in stages if known)
            done = sum(known.numCompletedTasks for known in stages if known)
            if total and done / total > shown:
                tick(done / total - shown)
                shown = done / total
    tick(1.0 - shown)


def map_tasks(
    frame: DataFrame,
    count: int,
    column: str,
    work: Callable[[int, Batches], Any],
    schema: str,
) -> DataFrame:
    """What `work(number, batches)` gives for `count` tasks; task number c gets the rows whose `column` is c."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from work(TaskContext.get().partitionId(), batches)  # type: ignore[union-attr]

    return map_rows(frame.repartitionById(count, F.col(column)), run, schema)


def map_rows(
    frame: DataFrame, work: Callable[[Batches], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """What `work(batches)` gives for the rows of each task, wherever they are."""
    expected = talerec.__version__

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _require_version(expected)
        os.environ[VARIABLE] = "1"  # cores are Spark's to share out
        _keep_warm()
        yield from work(batches)

    return frame.mapInArrow(run, schema)


def _keep_warm() -> None:
    """Spare the process of a task what Spark does in it between two tasks, 0.2 s each time: both are caches of what is loaded.

    It collects garbage, and looks at every object of every module; and it has Python read the lists of files in Spark's
    own archives anew, once for each package in them.
    """
    gc.freeze()
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]


def _require_version(expected: str) -> None:
    """Refuse to compute with another talerec than the driver's: weights would be of neither."""
    if talerec.__version__ != expected:
        raise TalerecError(
            f"an executor has talerec {talerec.__version__}, and the driver {expected}: install the same on all machines"
        )


def send_tasks(run: Run, count: int, work: Callable[[int], Iterator[pa.RecordBatch]]) -> DataFrame:
    """The cells (see `blocks`) that tasks 0..count send."""

    def send(number: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from work(number)

    return map_tasks(run.numbers(count), count, "block", send, CELLS)


def run_tasks(frame: DataFrame, count: int, work: Callable[[int, Batches], object]) -> None:
    """Run `work(number, batches)` in `count` tasks, of which nothing comes back; task c gets the rows whose block is c."""

    def run(number: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        work(number, batches)
        for _ in batches:
            pass  # Spark waits until all is read
        yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32())], ["block"])

    map_tasks(frame, count, "block", run, "block int").agg(F.count(F.lit(1))).collect()
