"""The fit on a cluster: items, rows, Gram and weights, as jobs whose tasks are those of `spark.tasks`."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from talerec import artifact
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.models import load
from talerec.models.base import Model
from talerec.models.keeping import Fitted
from talerec.models.linear import Solved
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array, Matrix, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.spark import blocks, tasks
from talerec.spark.events import (
    NAMES,
    Columns,
    Source,
    item_table,
    k_core,
    newest_rows,
    one_of_each,
    read_events,
)
from talerec.spark.sessions import Run, map_tasks, spark_schema
from talerec.spark.sizes import Sizes
from talerec.spark.trend import with_trend_counts


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
    """Learn from every row of a log on a cluster, and save the model without histories.

    Parameters
    ----------
    model : Model
        A `TALE`, `SLIT` or `SLIST` whose solver is `auto` or `local`.
    source, names : DataFrame, str or Path; Columns
        The log as a DataFrame or as the address of Parquet files, and what its columns are called.
    output, weights : str or Path
        Where the artifact goes, and the weights as Parquet (source, target, weight): by default next to it.
    session, work : SparkSession; str or Path
        Where the fit runs (see `connected`), and a folder that all machines see: by default next to `output`.
    core, drop_duplicates, ties : int; bool; {"file", "item"}
        How the log is cleaned, and the order of rows of one user at one time.
    task_rows, task_pairs : int
        How many rows, and pairs of rows, one task holds: as many as the memory per core allows.

    Returns
    -------
    Model
        The same model, fitted.

    Raises
    ------
    TalerecError
        When the model cannot be fitted on a cluster, the log is not valid, or Spark fails.
    """
    solved = check_model(model)
    artifact.check_target(output)
    beside = Path(output).absolute()
    parquet = weights or f"file://{beside.with_suffix('.weights.parquet')}"
    with _shared_folder(Path(work or beside.parent).absolute()) as folder:
        run = Run(session, folder)
        events, unit = _clean_events(run, source, names, ties, core, drop_duplicates)
        facts = _LogFacts.of(run, events, solved.max_history, {"ties": ties, "time_read_as": unit})
        sizes = Sizes.of(run.cores, facts.rows_of, facts.pairs, task_rows, task_pairs)
        matrix = _solve(run, events, facts, sizes, solved, parquet)
        items, seconds = Vocabulary(facts.ids), run.clock.seconds
        model._fitted = Fitted(Weights(matrix), items, None, None, "local", seconds, facts.training)
        model.save(output, histories=False)
    model._fitted = load(output).fitted
    return model


def check_model(model: Model) -> Solved:
    """Spark fits models that are one Gram and one call of the local solver; all others are refused by name."""
    if (
        not isinstance(model, Solved)
        or type(model).learn_weights is not Solved.learn_weights
        or type(model).solution is not Solved.solution
    ):
        raise TalerecError(
            f"Spark does not fit {model.name}; it fits tale, slit and slist (--model tale)"
        )
    if model.solver not in ("auto", "local"):
        raise TalerecError(f"solver is {model.solver}; on Spark it takes auto or local")
    if getattr(model, "norm", "none") == "symmetric":
        raise TalerecError("norm is symmetric; on Spark it takes none or l1")
    return model


@contextmanager
def _shared_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end, whatever happens."""
    folder = parent / f"talerec-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- items and rows --------------------------------------------------------------------------------


def _clean_events(
    run: Run, source: Source, names: Columns, ties: str, core: int | None, drop_duplicates: bool
) -> tuple[DataFrame, str]:
    """The rows to learn from, and how their times were read."""
    with run.stage("read"):
        events, unit = read_events(run.session, source, names, ties)
    if drop_duplicates:
        events = one_of_each(run, events)
    return (events if core is None else k_core(run, events, core)), unit


@dataclass(frozen=True, eq=False)
class _LogFacts:
    """What the driver knows of a log: it grows with the items, and not with rows or users."""

    ids: pl.Series  # of items, by position
    position: Array  # of items, by popularity rank
    rows_of: Array  # of items, by popularity rank
    pairs: int  # of rows of one user, in all
    longest: int  # history
    training: dict[str, Any]

    @classmethod
    def of(cls, run: Run, events: DataFrame, limit: int, known: dict[str, Any]) -> _LogFacts:
        """Count items and users; of a user, no more than `limit` rows make pairs. `known` joins what is reported."""
        counts = _item_counts(run, events)
        vocabulary, at = Vocabulary.encode(counts["item"])
        by_position = np.empty(len(at), np.int64)
        by_position[at] = counts["count"].to_numpy()
        position = np.argsort(-by_position, kind="stable").astype(np.int32)
        _save_items(run.folder, vocabulary.ids, position)
        users, longest, pairs = _user_counts(run, events, limit)
        training = {
            "users": users,
            "items": len(position),
            "rows": int(by_position.sum()),
            "first_time": int(counts["first"].to_numpy().min()),
            "last_time": int(counts["last"].to_numpy().max()),
            **known,
        }
        return cls(vocabulary.ids, position, by_position[position], pairs, longest, training)


def _item_counts(run: Run, events: DataFrame) -> pl.DataFrame:
    """Rows, first and last time of every item."""
    rows, first, last = F.count(F.lit(1)), F.min("time"), F.max("time")
    named = (rows.alias("count"), first.alias("first"), last.alias("last"))
    run.save("counts", events.groupBy("item").agg(*named), "items")
    return run.read("counts")


def _user_counts(run: Run, events: DataFrame, limit: int) -> tuple[int, int, int]:
    """How many users there are, the rows of the longest history, and the pairs of rows of all users."""
    length = F.least(F.col("count"), F.lit(limit))
    pairs = F.sum(length * (length + 1) / 2)
    per_user = events.groupBy("user").count()
    with run.stage("users"):
        found = per_user.agg(F.count(F.lit(1)), F.max("count"), pairs).first()
    assert found is not None
    return found[0], found[1], int(found[2])


def _save_items(folder: Path, ids: pl.Series, position: Array) -> None:
    """Save each item's id, position and popularity rank, for Spark to join with and for tasks to read."""
    rank = np.empty_like(position)
    rank[position] = np.arange(len(position), dtype=np.int32)
    columns = {"id": ids, "position": np.arange(len(rank), dtype=np.int32), "rank": rank}
    pl.DataFrame(columns).write_parquet(folder / "items.parquet")
    blocks.save_array(folder, "position", position)


def _ranked_rows(run: Run, events: DataFrame, facts: _LogFacts, model: Solved) -> DataFrame:
    """Rows with items as popularity ranks, cut to the newest of each user."""
    items = item_table(run.session, run.folder / "items.parquet", len(facts.position))
    by_item = facts.training["ties"] == "item"
    place = F.col("position").cast("long") if by_item else F.col("place")
    known = events.withColumnRenamed("item", "id").join(items, "id")
    rows = known.select("user", F.col("rank").alias("item"), "time", place.alias("place"))
    if facts.longest > model.max_history:
        rows = newest_rows(rows, model.max_history)
    return run.save("rows", rows, "rows")


# -- Gram ------------------------------------------------------------------------------------------


def _gram(run: Run, rows: DataFrame, facts: _LogFacts, sizes: Sizes, model: Any) -> int:
    """Count G and K: half of G goes to files that tasks map, K to a table by target. How many entries K has."""
    if getattr(model, "trend", 0):
        window, side = model.window, model.trend_side
        rows = with_trend_counts(run, rows, facts.rows_of, sizes.task_rows, window, side)
    run.save("columns", _summed_gram(run, rows, facts, sizes, model), "gram")
    count = len(sizes.owners) - 1
    starts = _write_counts(run.folder, count, facts.position)
    _write_half(run, starts, sizes.owners)
    owned = blocks.load_blocks(run.folder, "owned", count)
    n = len(facts.position)
    blocks.save_array(run.folder, "owned", sum(owned, np.zeros(n, np.int64)))
    return n + sum(int(pairs[0]) for pairs in blocks.load_blocks(run.folder, "pairs", count))


def _summed_gram(
    run: Run, rows: DataFrame, facts: _LogFacts, sizes: Sizes, model: Solved
) -> DataFrame:
    """Each part of the users counted by one task, each block of owners summed by another."""
    folder, n, latest = str(run.folder), len(facts.position), facts.training["last_time"]
    owners, targets = sizes.owners, sizes.targets
    part = F.pmod(F.xxhash64("user"), F.lit(sizes.parts)).cast("int")
    found = map_tasks(
        rows.withColumn("part", part),
        sizes.parts,
        "part",
        lambda c, b: tasks.gram_blocks(model, blocks.frame_of(b), c, owners, latest),
        blocks.BLOCKS,
    )
    return map_tasks(
        found,
        len(owners) - 1,
        "block",
        lambda c, b: tasks.owner_sums(b, c, owners, targets, n, folder),
        blocks.BLOCKS,
    )


def _write_counts(folder: Path, count: int, position: Array) -> Array:
    """Save what solving tasks need of all blocks of G; where the rows of the half start."""
    row_counts = np.concatenate(list(blocks.load_blocks(folder, "row_count", count)))
    column_counts = blocks.load_blocks(folder, "column_count", count)
    starts: Array = np.concatenate([[0], np.cumsum(row_counts)])
    order = tasks.degree_order(row_counts, column_counts, position)
    diagonal = np.concatenate(list(blocks.load_blocks(folder, "diagonal", count)))
    for name, array in (("starts", starts), ("degree_order", order), ("diagonal", diagonal)):
        blocks.save_array(folder, name, array)
    return starts


def _write_half(run: Run, starts: Array, owners: Array) -> None:
    """Join the blocks of G to one file of columns and one of values, and count the entries that items own."""
    folder, count = str(run.folder), len(owners) - 1
    for name, size in (("column", 4), ("value", 8)):
        with (run.folder / f"{name}.raw").open("wb") as out:
            out.truncate(int(starts[-1]) * size)
        (run.folder / f"{name}.raw").chmod(0o666)
    begin = [int(starts[edge]) for edge in owners]
    numbers = run.session.range(count).select(F.col("id").cast("int").alias("block"))

    def write(block: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            tasks.owned_counts(block, int(owners[block]), folder)
            tasks.write_block(block, begin[block], folder)
        yield pa.RecordBatch.from_arrays([pa.array([block], pa.int32())], ["block"])

    with run.stage("gram"):
        map_tasks(numbers, count, "block", write, "block int").agg(F.count(F.lit(1))).collect()


# -- weights ---------------------------------------------------------------------------------------


def _solve(
    run: Run,
    events: DataFrame,
    facts: _LogFacts,
    sizes: Sizes,
    model: Solved,
    parquet: str | Path,
) -> Matrix:
    """The weights of a model whose log is counted."""
    rows = _ranked_rows(run, events, facts, model)
    entries = _gram(run, rows, facts, sizes, model)
    return _weights(run, facts, sizes, model, entries, parquet)


def _weights(
    run: Run, facts: _LogFacts, sizes: Sizes, model: Solved, entries: int, parquet: str | Path
) -> Matrix:
    """Solve blocks of targets and order the weights by source: as Parquet, and as one CSR matrix that is mapped."""
    folder, n = str(run.folder), len(facts.position)
    targets, sources = sizes.targets, sizes.sources
    settings = tasks.SolveSettings(model.reg, model.neighbors, entries)
    found = map_tasks(
        run.session.read.parquet(f"file://{run.folder / 'columns'}"),
        len(targets) - 1,
        "block",
        lambda c, b: tasks.solved_blocks(b, c, targets, sources, settings, folder),
        blocks.BLOCKS,
    )
    kind = pa.string() if facts.ids.dtype == pl.String else pa.int64()
    schema = pa.schema([("source", kind), ("target", kind), ("weight", pa.float32())])
    rows = map_tasks(
        found,
        len(sources) - 1,
        "block",
        lambda c, b: tasks.weight_rows(b, c, sources, n, folder, schema),
        spark_schema(schema),
    )
    with run.stage("solve"):
        rows.write.mode("overwrite").parquet(str(parquet))
    return _joined_weights(run.folder, len(sources) - 1, n)


def _joined_weights(folder: Path, count: int, n: int) -> Matrix:
    """The weights of all blocks of sources as one CSR matrix."""
    lengths = np.concatenate(list(blocks.load_blocks(folder, "weight_count", count)))
    indptr = shrink_indptr(np.concatenate([[0], np.cumsum(lengths)]))
    indices = _joined_file(folder, "target", count, int(indptr[-1]), np.int32)
    data = _joined_file(folder, "weight", count, int(indptr[-1]), np.float32)
    return sparse.csr_array((data, indices, indptr), shape=(n, n))


def _joined_file(folder: Path, name: str, count: int, size: int, kind: type) -> Array:
    """The blocks' arrays of that name as one, mapped from a file."""
    if not size:
        return np.empty(0, kind)
    path = folder / f"{name}.raw"
    with path.open("wb") as out:
        for array in blocks.load_blocks(folder, name, count):
            blocks.copy_to(out, array)
    return np.memmap(path, kind, "r", shape=(size,))
