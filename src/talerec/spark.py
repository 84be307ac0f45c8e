"""The same fit on Apache Spark, for logs that outgrow one machine; and recommendations for all users.

    with spark.connected("spark://host:7077") as session:
        spark.fit(TALE(reg=200), "s3a://shop/events", "shop.tale", session=session)
        spark.recommend("shop.tale", "s3a://shop/events", "s3a://shop/next", session=session)

Spark moves rows; what is counted and solved is counted and solved by the kernels of one machine
(`parts`). `work` is a folder that driver and executors see under one path: half of G lies there,
memory-mapped by the tasks that solve. `docs/scale.md` says how large it becomes, and where it ends.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from scipy import sparse

from talerec import artifact, columns, parts
from talerec.arrays import Array, narrow
from talerec.clock import Clock
from talerec.errors import TalerecError
from talerec.log import Vocabulary, refuse_missing
from talerec.models import load
from talerec.models.base import Fitted, Model
from talerec.models.linear import Solved
from talerec.progress import stage
from talerec.threads import VARIABLE, equal_work
from talerec.times import DAY, to_microseconds
from talerec.weights import Weights

Source = DataFrame | str | Path

_BROADCAST = (
    2_000_000  # items: a vocabulary up to here is sent to every executor, a larger one is joined
)
_SLICE = 1_000_000  # rows of a giant user that are ranked together
_FILE = 2**40  # more rows than a file has
_RAISED = re.compile(r"talerec\.errors\.TalerecError: (.*)")


# -- sessions --------------------------------------------------------------------------------------


@contextmanager
def connected(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session of our own on a cluster, stopped at the end; executors run the Python that runs this."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("talerec").config(
        "spark.ui.showConsoleProgress", "false"
    )
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    try:
        session = (builder.master(master) if master else builder).getOrCreate()
    except (PySparkException, OSError, ValueError) as error:
        raise TalerecError(f"Spark did not start (it needs Java 17): {_first(error)}") from None
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _faults_named() -> Iterator[None]:
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
class _Run:
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
        group = f"talerec {label} {id(self)} {len(self.clock.seconds)}"
        context.setJobGroup(group, f"talerec: {label}")
        tick, over = stage(label, 1.0), threading.Event()
        watcher = threading.Thread(target=_watch, args=(context, group, tick, over), daemon=True)
        watcher.start()
        try:
            with self.clock(label), _faults_named():
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


def _spread(
    frame: DataFrame,
    tasks: int,
    column: str,
    work: Callable[[int, parts.Batches], Any],
    schema: str,
) -> DataFrame:
    """Task number c works on the rows with `column` = c."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ[VARIABLE] = "1"  # cores are Spark's to share out
        yield from work(TaskContext.get().partitionId(), batches)  # type: ignore[union-attr]

    return frame.repartitionById(tasks, F.col(column)).mapInArrow(run, schema)


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Where the log keeps what, and how its times are read."""

    user: str = columns.USER
    item: str = columns.ITEM
    time: str = columns.TIME
    time_unit: str | None = None
    any_time: bool = False


NAMES = Columns()


def _events(
    session: SparkSession, source: Source, names: Columns, ties: str
) -> tuple[DataFrame, str]:
    """The log as user, item, time (microseconds) and place (its order among equal times), and how times were read."""
    if ties not in ("file", "item"):
        raise TalerecError(f"ties is {ties!r}; on Spark it takes file or item")
    if isinstance(source, DataFrame):
        if ties == "file":
            raise TalerecError(
                "rows of a DataFrame have no order: take ties=item, or the path of Parquet files"
            )
        frame = source.withColumn("_place", F.lit(0).cast("long"))
    else:
        frame = _opened(session, source)
    needed = [names.user, names.item, names.time]
    refuse_missing(frame.columns, needed)
    kinds = {name: frame.schema[name].dataType for name in needed}
    events = frame.select(
        _id(names.user, kinds[names.user]).alias("user"),
        _id(names.item, kinds[names.item]).alias("item"),
        _number(names.time, kinds[names.time]).alias("time"),
        F.col("_place").alias("place"),
    )
    unit = _checked(events, names, kinds[names.time])
    whole = events.schema["time"].dataType == T.LongType()
    return events.withColumn("time", _microseconds(F.col("time"), unit, whole)), unit


def _opened(session: SparkSession, path: str | Path) -> DataFrame:
    """Parquet files with the place of every row: files by name, rows as they stand."""
    name = re.sub(r"^(\w+):/(?!/)", r"\1://", str(path))  # what pathlib makes of an address
    frame = session.read.parquet(name)
    inside = frame.select("*", "_metadata.file_path", F.col("_metadata.row_index").alias("_row"))
    files = sorted(row[0] for row in frame.select("_metadata.file_path").distinct().collect())
    numbers = session.createDataFrame(
        list(enumerate(files)) or [(0, "")], "_file long, file_path string"
    )
    placed = inside.join(F.broadcast(numbers), "file_path")
    return placed.withColumn("_place", F.col("_file") * F.lit(_FILE) + F.col("_row"))


def _id(name: str, kind: T.DataType) -> Any:
    if isinstance(kind, T.IntegralType):
        return F.col(name).cast("long")
    if isinstance(kind, T.StringType):
        return F.col(name).cast("string")
    raise TalerecError(
        f"column {name!r} holds {kind.simpleString()} values; ids are text or whole numbers"
    )


def _number(name: str, kind: T.DataType) -> Any:
    """Times as numbers: moments as microseconds, the rest as they are."""
    column = F.col(name)
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.DateType):
        return F.unix_date(column).cast("long") * F.lit(DAY)
    if isinstance(kind, T.TimestampNTZType):  # no time zone has a say in it
        clock = F.hour(column) * 3600 + F.minute(column) * 60
        fraction = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("long")
        day = F.unix_date(F.to_date(column)).cast("long") * F.lit(DAY)
        return day + clock.cast("long") * 1_000_000 + fraction
    if isinstance(kind, T.IntegralType):
        return column.cast("long")
    if isinstance(kind, T.FractionalType):
        return column.cast("double")
    raise TalerecError(
        f"column {name!r} holds {kind.simpleString()} values; times are timestamps or numbers"
    )


def _microseconds(time: Any, unit: str, whole: bool) -> Any:
    if unit in ("datetime", "us") and whole:
        return time
    per = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
    if not whole:
        return F.rint(time / 1000 if unit == "ns" else time * per).cast("long")
    if unit == "ns":
        return F.expr("(time - pmod(time, 1000)) div 1000")
    return time * F.lit(per)


def _checked(events: DataFrame, names: Columns, kind: T.DataType) -> str:
    """Refuse a log without rows, with empty cells or with times that cannot be; what the times are read as."""
    cells = {"user": names.user, "item": names.item, "time": names.time}
    size = F.abs(F.col("time"))
    found = events.agg(
        F.count(F.lit(1)).alias("rows"),
        *(F.count_if(_is_empty(events, cell)).alias(cell) for cell in cells),
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.min(F.when(size >= 10**8, F.col("time"))).alias("least"),
    ).first()
    assert found is not None
    if not found["rows"]:
        raise TalerecError("the log is empty: it has no rows")
    for cell, name in cells.items():
        if found[cell]:
            raise TalerecError(f"{name} is empty in {found[cell]:,} of {found['rows']:,} rows")
    known = [found[name] for name in ("first", "last", "least") if found[name] is not None]
    series = pl.Series(names.time, known)
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        series = series.cast(pl.Datetime("us"))
    elif isinstance(kind, T.FloatType):
        series = series.cast(pl.Float32)
    try:
        return to_microseconds(series, names.time_unit, any_time=names.any_time)[1]
    except TalerecError as error:  # it knows of these values alone, so its row numbers say nothing
        raise TalerecError(re.sub(r"row \d+:? ", "", str(error))) from None


def _is_empty(events: DataFrame, cell: str) -> Any:
    column = F.col(cell)
    if events.schema[cell].dataType == T.StringType():
        return column.isNull() | (F.trim(column) == "")
    if events.schema[cell].dataType == T.DoubleType():
        return column.isNull() | F.isnan(column)
    return column.isNull()


def _core(run: _Run, events: DataFrame, k: int) -> DataFrame:
    """Drop users and items with fewer than `k` rows, again and again until nothing changes."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise TalerecError(f"core is {k}; it takes a whole number from 1")
    rows, turn = events.count(), 0
    while True:
        stays = events
        for name in ("user", "item"):
            enough = events.groupBy(name).count().where(F.col("count") >= k).select(name)
            stays = stays.join(enough, name, "left_semi")
        events = run.save(f"core-{turn}", stays, "core")
        left, turn = events.count(), turn + 1
        if not left:
            raise TalerecError(f"nothing is left of the log after a {k}-core; use a smaller core")
        if left == rows:
            return events
        shutil.rmtree(run.folder / f"core-{turn - 2}", ignore_errors=True)
        rows = left


def _newest(events: DataFrame, limit: int) -> DataFrame:
    """Each user's last `limit` rows. Only users with more are ranked, in slices first: no task sorts a giant whole."""
    counts = events.groupBy("user").count()
    giants = counts.where(F.col("count") > limit)
    few = events.join(giants, "user", "left_anti")
    many = events.join(giants, "user")
    slices = F.ceil(F.col("count") / _SLICE)
    many = many.withColumn("slice", F.pmod(F.xxhash64("item", "time", "place"), slices))
    newest = (F.desc("time"), F.desc("place"))
    for group in (("user", "slice"), ("user",)):
        place = F.row_number().over(Window.partitionBy(*group).orderBy(*newest))
        many = many.withColumn("from_end", place).where(F.col("from_end") <= limit)
    return few.unionByName(many.select(few.columns))


# -- fitting ---------------------------------------------------------------------------------------


def fit(
    model: Model,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    names: Columns = NAMES,
    core: int | None = None,
    ties: str = "file",
    drop_duplicates: bool = False,
    weights: str | Path | None = None,
    work: str | Path | None = None,
    task_rows: int = 2_000_000,
    task_pairs: int = 8_000_000,
) -> Model:
    """Learn from every row of `source`; the model as an artifact without histories at `output`.

    weights    where they go as Parquet (source, target, weight): next to `output` by default
    work       a folder that all executors see, for the time of the fit: one next to `output` by default
    task_rows  rows, and task_pairs pairs of rows, that one task holds: what memory per core allows
    """
    solved = _solvable(model)
    artifact.check_target(output)
    target = weights or f"{str(output).removesuffix('.tale')}.weights.parquet"
    place = Path(work or Path(output).absolute().parent)
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="talerec-", dir=place.absolute()))
    folder.chmod(0o777)  # executors may be other users
    run = _Run(session, folder)
    try:
        with run.watched("read"):
            events, unit = _events(session, source, names, ties)
        if drop_duplicates:
            one = events.groupBy("user", "item", "time").agg(F.min("place").alias("place"))
            events = run.save("unique", one.select(events.columns), "read")
        if core is not None:
            events = _core(run, events, core)
        facts = _Facts.of(run, events, solved.max_history)
        rows = _ranked_rows(run, events, facts, solved, ties)
        sizes = _Sizes.of(run, facts, task_rows, task_pairs)
        entries = _gram(run, rows, facts, sizes, solved)
        matrix = _weights(run, facts, sizes, solved, entries, target)
        training = {**facts.training, "ties": ties, "time_read_as": unit}
        items = Vocabulary(facts.ids)
        solved._fitted = Fitted(
            Weights(matrix), items, None, None, "local", run.clock.seconds, training
        )
        solved.save(output, histories=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return load(output)


def _solvable(model: Model) -> Solved:
    """Spark solves what one Gram and the local solver define; everything else is refused by name."""
    if (
        not isinstance(model, Solved)
        or type(model).learn is not Solved.learn
        or type(model).solution is not Solved.solution
    ):
        raise TalerecError(f"Spark does not fit {model.name}; it fits tale, slit and slist")
    if model.solver not in ("auto", "local"):
        raise TalerecError(f"solver is {model.solver}; on Spark it takes auto or local")
    if getattr(model, "norm", "none") == "symmetric":
        raise TalerecError("norm is symmetric; on Spark it takes none or l1")
    return model


@dataclass(frozen=True, eq=False)
class _Facts:
    """What the driver knows of a log: nothing that grows with its rows or users, but its items."""

    ids: pl.Series  # by position
    position: Array  # by rank
    rows_of: Array  # by rank
    pairs: int
    longest: int
    training: dict[str, Any]

    @classmethod
    def of(cls, run: _Run, events: DataFrame, limit: int) -> _Facts:
        run.save("counts", events.groupBy("item").count(), "items")
        counts = run.read("counts")
        vocabulary, at = Vocabulary.encode(counts["item"])
        by_position = np.empty(len(at), np.int64)
        by_position[at] = counts["count"].to_numpy()
        position = np.argsort(-by_position, kind="stable").astype(np.int32)
        rank = np.empty_like(position)
        rank[position] = np.arange(len(position), dtype=np.int32)
        table = {
            "id": vocabulary.ids,
            "position": np.arange(len(rank), dtype=np.int32),
            "rank": rank,
        }
        pl.DataFrame(table).write_parquet(run.folder / "items.parquet")
        parts.keep(run.folder, "position", position)
        length = F.least(F.col("count"), F.lit(limit))
        with run.watched("users"):
            users = (
                events.groupBy("user")
                .count()
                .agg(F.count(F.lit(1)), F.max("count"), F.sum(length * (length + 1) / 2))
                .first()
            )
            span = events.agg(F.min("time"), F.max("time")).first()
        assert users is not None
        assert span is not None
        training = {
            "users": users[0],
            "items": len(position),
            "rows": int(by_position.sum()),
            "first_time": span[0],
            "last_time": span[1],
        }
        return cls(
            vocabulary.ids, position, by_position[position], int(users[2]), users[1], training
        )


def _ranked_rows(
    run: _Run, events: DataFrame, facts: _Facts, model: Solved, ties: str
) -> DataFrame:
    """Rows with items by rank, cut to the newest of each user; with trend, counted."""
    items = _vocabulary(run.session, run.folder / "items.parquet", len(facts.position))
    place = F.col("position").cast("long") if ties == "item" else F.col("place")
    coded = events.withColumnRenamed("item", "id").join(items, "id")
    rows = coded.select("user", F.col("rank").alias("item"), "time", place.alias("place"))
    if facts.longest > model.max_history:
        rows = _newest(rows, model.max_history)
    return run.save("rows", rows, "rows")


def _vocabulary(session: SparkSession, path: Path, items: int) -> DataFrame:
    table = session.read.parquet(f"file://{path}")
    return F.broadcast(table) if items <= _BROADCAST else table


@dataclass(frozen=True, eq=False)
class _Sizes:
    """How the work is cut: users into parts, owners of pairs, targets and sources into blocks of about equal work."""

    task_rows: int
    parts: int
    owners: Array
    targets: Array
    sources: Array

    @classmethod
    def of(cls, run: _Run, facts: _Facts, task_rows: int, task_pairs: int) -> _Sizes:
        rows, n = facts.training["rows"], len(facts.position)
        tasks = max(run.cores, math.ceil(facts.pairs / task_pairs))
        count = max(tasks, math.ceil(rows / task_rows))
        popular = facts.rows_of.astype(np.float64)
        shared = popular * np.cumsum(popular)  # chance of a pair with an item that has more rows
        owned = np.minimum(shared * (facts.pairs / shared.sum()), np.arange(1.0, n + 1) * count)
        led_to = np.minimum(popular * (2 * facts.pairs / rows), n)
        return cls(
            task_rows,
            count,
            _edges(owned, tasks),
            _edges(led_to + 1000, tasks),  # a target costs something, however few its sources
            _edges(np.ones(n), tasks),
        )


def _edges(work: Array, blocks: int) -> Array:
    ranges = equal_work(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), blocks)
    return np.array([a for a, _ in ranges] + [len(work)])


def _counted(run: _Run, rows: DataFrame, facts: _Facts, sizes: _Sizes, model: Any) -> DataFrame:
    """Eq. 14: whole items together; an item with more rows than a task holds in slices of time."""
    window, side, folder = model.window, model.trend_side, str(run.folder)
    buckets = max(run.cores, math.ceil(facts.training["rows"] / sizes.task_rows))
    giants = int(np.count_nonzero(facts.rows_of > sizes.task_rows))
    slices: list[range] = []
    rows = rows.withColumn("bucket", F.pmod("item", F.lit(buckets)))
    if giants:
        cuts, slices = _cuts(run, rows, facts.rows_of[:giants], sizes.task_rows)
        sliced = rows.join(F.broadcast(cuts), "item", "left")
        inside = F.size(F.filter("cuts", lambda cut: cut < F.col("time")))
        rows = sliced.withColumn("slice", F.col("first") + inside).drop("cuts", "first")
        giant = rows.where(F.col("slice").isNotNull()).select("slice", "time")
        times = _spread(
            giant,
            slices[-1].stop,
            "slice",
            lambda c, b: parts.sorted_times(b, folder, c),
            "rows long",
        )
        with run.watched("trend"):
            times.agg(F.sum("rows")).collect()
        rows = rows.withColumn("bucket", F.coalesce(F.col("slice") + buckets, "bucket")).drop(
            "slice"
        )
    schema = _arrow(rows.drop("bucket"), {"count": pa.int64()})

    def count(task: int, batches: parts.Batches) -> Iterator[pa.RecordBatch]:
        mine = parts.frame_of(batches)
        if not mine.is_empty():
            within = next((span for span in slices if task - buckets in span), None)
            yield from parts.in_schema(parts.counted(mine, window, side, folder, within), schema)

    ddl = _ddl(rows.drop("bucket")) + ", count long"
    tasks = buckets + (slices[-1].stop if slices else 0)
    return run.save("counted", _spread(rows, tasks, "bucket", count, ddl), "trend")


def _cuts(run: _Run, rows: DataFrame, rows_of: Array, limit: int) -> tuple[DataFrame, list[range]]:
    """Where the giants' times are cut (item, first slice, cuts), and which slices each has."""
    wanted = np.ceil(rows_of / limit).astype(int)
    shares = [round(x / int(wanted.max()), 6) for x in range(1, int(wanted.max()))]
    giants = rows.where(F.col("item") < len(rows_of)).groupBy("item")
    with run.watched("trend"):
        found = giants.agg(F.percentile_approx("time", shares, 10_000)).collect()
    table, slices, first = [], [], 0
    for item, cuts in sorted((row[0], row[1]) for row in found):
        chosen = sorted(set(cuts))
        table.append((item, first, chosen))
        slices.append(range(first, first + len(chosen) + 1))
        first = slices[-1].stop
    made = run.session.createDataFrame(table, "item int, first int, cuts array<long>")
    return made, slices


def _gram(run: _Run, rows: DataFrame, facts: _Facts, sizes: _Sizes, model: Solved) -> int:
    """Count every part of the users, sum by owner: G's rows in files, K's entries by target; how many those are."""
    if getattr(model, "trend", 0):
        rows = _counted(run, rows, facts, sizes, model)
    folder, n, latest = str(run.folder), len(facts.position), facts.training["last_time"]
    owners, targets = sizes.owners, sizes.targets
    part = F.pmod(F.xxhash64("user"), F.lit(sizes.parts)).cast("int")
    found = _spread(
        rows.withColumn("part", part),
        sizes.parts,
        "part",
        lambda c, b: parts.gram_pieces(model, parts.frame_of(b), c, owners, latest),
        parts.PIECES,
    )
    blocks = len(owners) - 1
    summed = _spread(
        found,
        blocks,
        "goes",
        lambda c, b: parts.block_pieces(b, c, owners, targets, n, folder),
        parts.PIECES,
    )
    run.save("columns", summed, "gram")
    lengths = [parts.kept(folder, f"length-{block}") for block in range(blocks)]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    parts.keep(folder, "starts", starts)
    diagonal = [parts.kept(folder, f"diagonal-{block}") for block in range(blocks)]
    parts.keep(folder, "diagonal", np.concatenate(diagonal))
    for name, size in (("column", 4), ("value", 8)):
        with (run.folder / f"{name}.raw").open("wb") as out:
            out.truncate(int(starts[-1]) * size)
        (run.folder / f"{name}.raw").chmod(0o666)
    begin = [int(starts[edge]) for edge in owners]
    numbers = run.session.range(blocks).select(F.col("id").cast("int").alias("block"))

    def lay(block: int, batches: parts.Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            parts.lay(block, begin[block], folder)
        yield pa.RecordBatch.from_arrays([pa.array([block], pa.int32())], ["block"])

    with run.watched("gram"):
        _spread(numbers, blocks, "block", lay, "block int").agg(F.count(F.lit(1))).collect()
    return n + sum(int(parts.kept(folder, f"pairs-{block}")[0]) for block in range(blocks))


def _weights(
    run: _Run, facts: _Facts, sizes: _Sizes, model: Solved, entries: int, target: str | Path
) -> Any:
    """Solve blocks of targets, turn the weights by source: Parquet at `target`, and one CSR matrix, memory-mapped."""
    folder, n = str(run.folder), len(facts.position)
    targets, sources = sizes.targets, sizes.sources
    rules = (model.reg, model.neighbors, entries)
    found = _spread(
        run.session.read.parquet(f"file://{run.folder / 'columns'}"),
        len(targets) - 1,
        "goes",
        lambda c, b: parts.solved_pieces(b, c, targets, sources, rules, folder),
        parts.PIECES,
    )
    kind, word = (pa.string(), "string") if facts.ids.dtype == pl.String else (pa.int64(), "long")
    schema = pa.schema([("source", kind), ("target", kind), ("weight", pa.float32())])
    rows = _spread(
        found,
        len(sources) - 1,
        "goes",
        lambda c, b: parts.weight_rows(b, c, sources, n, folder, schema),
        f"source {word}, target {word}, weight float",
    )
    with run.watched("solve"):
        rows.write.mode("overwrite").parquet(str(target))
    blocks = range(len(sources) - 1)
    fan = np.concatenate([parts.kept(folder, f"fan-{block}") for block in blocks])
    indptr = narrow(np.concatenate([[0], np.cumsum(fan)]))
    indices = _laid(run.folder, "target", len(blocks), int(indptr[-1]), np.int32)
    data = _laid(run.folder, "weight", len(blocks), int(indptr[-1]), np.float32)
    return sparse.csr_array((data, indices, indptr), shape=(n, n))


def _laid(folder: Path, name: str, blocks: int, size: int, kind: type) -> Array:
    """The blocks' arrays as one, in a file that is mapped."""
    if not size:
        return np.empty(0, kind)
    path = folder / f"{name}.raw"
    with path.open("wb") as out:
        for block in range(blocks):
            array = parts.kept(folder, f"{name}-{block}")
            for a in range(0, len(array), 2**22):
                out.write(np.ascontiguousarray(array[a : a + 2**22]).data.cast("B"))
    return np.memmap(path, kind, "r", shape=(size,))


# -- recommending ----------------------------------------------------------------------------------


def recommend(
    path: str | Path,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    k: int = 10,
    hide_seen: bool = False,
    names: Columns = NAMES,
    ties: str = "file",
    task_rows: int = 1_000_000,
) -> DataFrame:
    """The next `k` items of every user of `source`, by the artifact at `path` that all executors see.

    Parquet at `output`: user_id, item_id, score, rank. Items that the model does not know keep their place.
    """
    place = str(Path(path).absolute())
    model = load(place)
    model._check_k(k)
    with tempfile.TemporaryDirectory(prefix="talerec-", dir=Path(place).parent) as folder:
        run = _Run(session, Path(folder))
        run.folder.chmod(0o755)
        with run.watched("read"):
            events, _ = _events(session, source, names, ties)
            rows = _known_rows(run, events, model, ties)
            counts = rows.groupBy("user").count().agg(F.sum("count"), F.max("count")).first()
        assert counts is not None
        limit = model.params.get("max_history")
        if limit and counts[1] > limit:
            rows = _with_seen(rows, limit) if hide_seen else _newest(rows, limit)
        tasks = max(run.cores, math.ceil(counts[0] / task_rows))
        kinds = {name: _plain(rows.schema["user"]) for name in (columns.USER,)}
        kinds[columns.ITEM] = pa.string() if model.item_ids.dtype == pl.String else pa.int64()
        schema = pa.schema(
            [*kinds.items(), (columns.SCORE, pa.float64()), (columns.RANK, pa.int64())]
        )

        def answer(_: int, batches: parts.Batches) -> Iterator[pa.RecordBatch]:
            mine = parts.frame_of(batches)
            if not mine.is_empty():
                yield from parts.in_schema(
                    parts.recommended(load(place), mine, k, hide_seen), schema
                )

        part = F.pmod(F.xxhash64("user"), F.lit(tasks)).cast("int")
        words = {pa.string(): "string", pa.int64(): "long", pa.float64(): "double"}
        ddl = ", ".join(f"{one.name} {words[one.type]}" for one in schema)
        made = _spread(rows.withColumn("part", part), tasks, "part", answer, ddl)
        with run.watched("recommend"):
            made.write.mode("overwrite").parquet(str(output))
    return session.read.parquet(str(output))


def _known_rows(run: _Run, events: DataFrame, model: Model, ties: str) -> DataFrame:
    """Rows with items by position, -1 where the model does not know them."""
    ids = model.item_ids
    table = pl.DataFrame({"id": ids, "position": np.arange(len(ids), dtype=np.int32)})
    table.write_parquet(run.folder / "items.parquet")
    items = _vocabulary(run.session, run.folder / "items.parquet", len(ids))
    kind = "string" if ids.dtype == pl.String else "long"
    same = events.withColumn("item", F.col("item").try_cast(kind)).withColumnRenamed("item", "id")
    position = F.coalesce("position", F.lit(-1))
    place = position.cast("long") if ties == "item" else F.col("place")
    return same.join(items, "id", "left").select(
        "user", position.alias("item"), "time", place.alias("place")
    )


def _with_seen(rows: DataFrame, limit: int) -> DataFrame:
    """Each user's newest rows, and one of every other item that they ever had: it is hidden, and weighs nothing."""
    newest = _newest(rows, limit)
    giants = rows.groupBy("user").count().where(F.col("count") > limit).select("user")
    had = rows.join(giants, "user", "left_semi").groupBy("user", "item")
    first = had.agg(F.min(F.struct("time", "place")).alias("at")).select(
        "user", "item", "at.time", "at.place"
    )
    return newest.unionByName(first.join(newest, ["user", "item"], "left_anti"))


def _plain(known: T.StructField) -> pa.DataType:
    return pa.string() if known.dataType == T.StringType() else pa.int64()


def _arrow(frame: DataFrame, more: dict[str, pa.DataType]) -> pa.Schema:
    kinds: dict[Any, pa.DataType] = {
        T.StringType(): pa.string(),
        T.LongType(): pa.int64(),
        T.IntegerType(): pa.int32(),
    }
    return pa.schema([*((one.name, kinds[one.dataType]) for one in frame.schema), *more.items()])


def _ddl(frame: DataFrame) -> str:
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in frame.schema)
