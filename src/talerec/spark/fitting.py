"""The fit: k-core, vocabulary, trend counts, Gram and weights, as jobs whose tasks are those of `parts`."""

from __future__ import annotations

import math
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import sparse

from talerec import artifact
from talerec.data.log import Vocabulary
from talerec.errors import TalerecError
from talerec.models import load
from talerec.models.base import Model
from talerec.models.keeping import Fitted
from talerec.models.linear import Solved
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array, shrink_indptr
from talerec.spark import tasks
from talerec.spark.events import NAMES, Columns, Source, events_of, k_core, newest, vocabulary
from talerec.spark.sessions import Run, arrow_type, spelled, spread
from talerec.spark.tasks import Sizes


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
    beside = Path(output).absolute()
    target = weights or f"file://{beside.with_suffix('.weights.parquet')}"
    folder = Path(work or beside.parent).absolute() / f"talerec-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True)
    run = Run(session, folder)
    try:
        with run.watched("read"):
            events, unit = events_of(session, source, names, ties)
        if drop_duplicates:
            one = events.groupBy("user", "item", "time").agg(F.min("place").alias("place"))
            events = run.save("unique", one.select(events.columns), "read")
        if core is not None:
            events = k_core(run, events, core)
        facts = _Facts.of(run, events, solved.max_history)
        rows = _ranked_rows(run, events, facts, solved, ties)
        sizes = Sizes.of(run.cores, facts.rows_of, facts.pairs, task_rows, task_pairs)
        entries = _gram(run, rows, facts, sizes, solved)
        matrix = _weights(run, facts, sizes, solved, entries, target)
        training = {**facts.training, "ties": ties, "time_read_as": unit}
        seconds, items = run.clock.seconds, Vocabulary(facts.ids)
        model._fitted = Fitted(Weights(matrix), items, None, None, "local", seconds, training)
        model.save(output, histories=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    model._fitted = load(output).fitted
    return model


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
    def of(cls, run: Run, events: DataFrame, limit: int) -> _Facts:
        seen = events.groupBy("item").agg(
            F.count(F.lit(1)).alias("count"),
            F.min("time").alias("first"),
            F.max("time").alias("last"),
        )
        run.save("counts", seen, "items")
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
        tasks.keep(run.folder, "position", position)
        length = F.least(F.col("count"), F.lit(limit))
        with run.watched("users"):
            users = (
                events.groupBy("user")
                .count()
                .agg(F.count(F.lit(1)), F.max("count"), F.sum(length * (length + 1) / 2))
                .first()
            )
        assert users is not None
        training = {
            "users": users[0],
            "items": len(position),
            "rows": int(by_position.sum()),
            "first_time": int(counts["first"].to_numpy().min()),
            "last_time": int(counts["last"].to_numpy().max()),
        }
        return cls(
            vocabulary.ids, position, by_position[position], int(users[2]), users[1], training
        )


def _ranked_rows(run: Run, events: DataFrame, facts: _Facts, model: Solved, ties: str) -> DataFrame:
    """Rows with items by rank, cut to the newest of each user; with trend, counted."""
    items = vocabulary(run.session, run.folder / "items.parquet", len(facts.position))
    place = F.col("position").cast("long") if ties == "item" else F.col("place")
    coded = events.withColumnRenamed("item", "id").join(items, "id")
    rows = coded.select("user", F.col("rank").alias("item"), "time", place.alias("place"))
    if facts.longest > model.max_history:
        rows = newest(rows, model.max_history)
    return run.save("rows", rows, "rows")


def _counted(run: Run, rows: DataFrame, facts: _Facts, sizes: Sizes, model: Any) -> DataFrame:
    """Eq. 14: whole items together; an item with more rows than a task holds in slices of time."""
    window, side, folder = model.window, model.trend_side, str(run.folder)
    buckets = max(run.cores, math.ceil(facts.training["rows"] / sizes.task_rows))
    giants = facts.rows_of[facts.rows_of > sizes.task_rows]
    rows, slices = _sliced(run, rows, giants, sizes.task_rows)
    own = F.col("slice") + buckets  # a slice has a task of its own
    bucket = F.coalesce(own, F.pmod("item", F.lit(buckets))).cast("int")
    known = [(one.name, arrow_type(one.dataType)) for one in rows.drop("slice").schema]
    schema = pa.schema([*known, ("count", pa.int64())])

    def count(task: int, batches: tasks.Batches) -> Iterator[pa.RecordBatch]:
        mine = tasks.frame_of(batches)
        if not mine.is_empty():
            within = next((span for span in slices if task - buckets in span), None)
            yield from tasks.in_schema(tasks.counted(mine, window, side, folder, within), schema)

    tasks = buckets + (slices[-1].stop if slices else 0)
    parted = rows.withColumn("bucket", bucket).drop("slice")
    return run.save("counted", spread(parted, tasks, "bucket", count, spelled(schema)), "trend")


def _sliced(run: Run, rows: DataFrame, giants: Array, limit: int) -> tuple[DataFrame, list[range]]:
    """Rows with their slice (null: the item is no giant), the slices' times kept in files; which slices a giant has."""
    cuts, slices = _cuts(run, rows, giants, limit) if len(giants) else (None, [])
    if cuts is None or not slices:
        return rows.withColumn("slice", F.lit(None).cast("int")), []
    folder, inside = str(run.folder), F.size(F.filter("cuts", lambda cut: cut < F.col("time")))
    joined = rows.join(F.broadcast(cuts), "item", "left")
    rows = joined.withColumn("slice", F.col("first") + inside).drop("cuts", "first")
    times = spread(
        rows.where(F.col("slice").isNotNull()).select("slice", "time"),
        slices[-1].stop,
        "slice",
        lambda c, b: tasks.sorted_times(b, folder, c),
        "rows long",
    )
    with run.watched("trend"):
        times.agg(F.sum("rows")).collect()
    return rows, slices


def _cuts(run: Run, rows: DataFrame, rows_of: Array, limit: int) -> tuple[DataFrame, list[range]]:
    """Where the giants' times are cut (item, first slice, cuts), and which slices each has."""
    wanted = [math.ceil(count / limit) for count in rows_of.tolist()]
    most = max(wanted)
    shares = [x / most for x in range(1, most)]
    giants = rows.where(F.col("item") < len(rows_of)).groupBy("item")
    with run.watched("trend"):
        found = giants.agg(F.percentile_approx("time", shares, 10_000)).collect()
    table, slices, first = list[tuple[int, int, list[int]]](), list[range](), 0
    for item, quantiles in sorted((row[0], row[1]) for row in found):
        pick = [round(x * most / wanted[item]) - 1 for x in range(1, wanted[item])]
        cuts = sorted({quantiles[x] for x in pick})
        table.append((item, first, cuts))
        slices.append(range(first, first + len(cuts) + 1))
        first = slices[-1].stop
    kinds = {"item": pa.int32(), "first": pa.int32(), "cuts": pa.list_(pa.int64())}
    columns = zip(*table, strict=True) if table else ([], [], [])
    arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds.values(), strict=True)]
    return run.session.createDataFrame(pa.table(arrays, names=list(kinds))), slices


def _gram(run: Run, rows: DataFrame, facts: _Facts, sizes: Sizes, model: Solved) -> int:
    """Count every part of the users, sum by owner: G's rows in files, K's entries by target; how many those are."""
    if getattr(model, "trend", 0):
        rows = _counted(run, rows, facts, sizes, model)
    folder, n, latest = str(run.folder), len(facts.position), facts.training["last_time"]
    owners, targets = sizes.owners, sizes.targets
    part = F.pmod(F.xxhash64("user"), F.lit(sizes.parts)).cast("int")
    found = spread(
        rows.withColumn("part", part),
        sizes.parts,
        "part",
        lambda c, b: tasks.gram_pieces(model, tasks.frame_of(b), c, owners, latest),
        tasks.PIECES,
    )
    blocks = len(owners) - 1
    summed = spread(
        found,
        blocks,
        "goes",
        lambda c, b: tasks.block_pieces(b, c, owners, targets, n, folder),
        tasks.PIECES,
    )
    run.save("columns", summed, "gram")
    length = np.concatenate([tasks.kept(folder, f"length-{block}") for block in range(blocks)])
    starts = np.concatenate([[0], np.cumsum(length)])
    tasks.keep(folder, "starts", starts)
    reached = (tasks.kept(folder, f"reached-{block}") for block in range(blocks))
    tasks.keep(folder, "seat", tasks.seats(length, reached, facts.position))
    diagonal = [tasks.kept(folder, f"diagonal-{block}") for block in range(blocks)]
    tasks.keep(folder, "diagonal", np.concatenate(diagonal))
    for name, size in (("column", 4), ("value", 8)):
        with (run.folder / f"{name}.raw").open("wb") as out:
            out.truncate(int(starts[-1]) * size)
        (run.folder / f"{name}.raw").chmod(0o666)
    begin = [int(starts[edge]) for edge in owners]
    numbers = run.session.range(blocks).select(F.col("id").cast("int").alias("block"))

    def lay(block: int, batches: tasks.Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            tasks.shares(block, int(owners[block]), folder)
            tasks.lay(block, begin[block], folder)
        yield pa.RecordBatch.from_arrays([pa.array([block], pa.int32())], ["block"])

    with run.watched("gram"):
        spread(numbers, blocks, "block", lay, "block int").agg(F.count(F.lit(1))).collect()
    shares = (tasks.kept(folder, f"share-{block}") for block in range(blocks))
    tasks.keep(folder, "lengths", sum(shares, np.zeros(n, np.int64)))
    return n + sum(int(tasks.kept(folder, f"pairs-{block}")[0]) for block in range(blocks))


def _weights(
    run: Run, facts: _Facts, sizes: Sizes, model: Solved, entries: int, target: str | Path
) -> Any:
    """Solve blocks of targets, turn the weights by source: Parquet at `target`, and one CSR matrix, memory-mapped."""
    folder, n = str(run.folder), len(facts.position)
    targets, sources = sizes.targets, sizes.sources
    rules = (model.reg, model.neighbors, entries)
    found = spread(
        run.session.read.parquet(f"file://{run.folder / 'columns'}"),
        len(targets) - 1,
        "goes",
        lambda c, b: tasks.solved_pieces(b, c, targets, sources, rules, folder),
        tasks.PIECES,
    )
    kind = pa.string() if facts.ids.dtype == pl.String else pa.int64()
    schema = pa.schema([("source", kind), ("target", kind), ("weight", pa.float32())])
    rows = spread(
        found,
        len(sources) - 1,
        "goes",
        lambda c, b: tasks.weight_rows(b, c, sources, n, folder, schema),
        spelled(schema),
    )
    with run.watched("solve"):
        rows.write.mode("overwrite").parquet(str(target))
    blocks = range(len(sources) - 1)
    fan = np.concatenate([tasks.kept(folder, f"fan-{block}") for block in blocks])
    indptr = shrink_indptr(np.concatenate([[0], np.cumsum(fan)]))
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
            array = tasks.kept(folder, f"{name}-{block}")
            for a in range(0, len(array), 2**22):
                out.write(np.ascontiguousarray(array[a : a + 2**22]).data.cast("B"))
    return np.memmap(path, kind, "r", shape=(size,))
