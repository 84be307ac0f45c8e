"""Trend counts, Gram and weights on a cluster, from rows that lie in partitions of users."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from talerec.models.counting import LagCountModel
from talerec.models.linear import RidgeModel
from talerec.runtime import Array, Matrix, shrink_indptr, sparse
from talerec.spark import gram, messages, tasks, trends, triangles
from talerec.spark.gram import RowLayout, TermBuilder
from talerec.spark.log_stats import ClusterLog
from talerec.spark.messages import MESSAGES, Batches
from talerec.spark.partitions import RowFiles
from talerec.spark.session import map_tasks, run_on_partitions, run_tasks, send_messages
from talerec.spark.tables import spark_schema, write_table


def count_trends(log: ClusterLog, rows: RowFiles, window: float, side: str) -> RowFiles:
    """Compute and save the trend counts of all rows; return `rows` marked as having them.

    A trend count (TALE, Eq. 14) is the number of rows of the same item within `window` days: before
    a row, and also after it if `side` is "both". rows: files of the rows of all partitions (sets of
    users). Each partition sends its rows as messages to the task of their item, which sends the
    counts back; a popular item has a task per slice of time.
    """
    run, count, plan = log.run, log.n_partitions, log.plan_trends()
    send = partial(trends.send_trend_rows, rows, plan=plan)
    # A folder for each fit: late task attempts of the first fit may still write to theirs.
    folder = f"{rows.folder}/{rows.prefix}times"
    if plan.cuts:
        make_folder(Path(folder))
        popular = send_messages(run, count, lambda p: send(p, only_popular=True))
        with run.stage("trend"):
            run_tasks(popular, plan.n_tasks, lambda t, b: trends.save_sorted_times(b, folder, t))
    counted = map_tasks(
        send_messages(run, count, lambda p: send(p, only_popular=False)),
        plan.n_tasks,
        "block",
        lambda t, b: trends.send_trend_counts(b, t, plan, window, side, folder),
        MESSAGES,
    )
    with run.stage("trend"):
        run_tasks(counted, count, lambda p, b: trends.save_trend_counts(b, p, rows))
    return rows._replace(has_trends=True)


class WeightTable(NamedTuple):
    """The target of a fit that writes weights as Parquet files, with item ids, not numbers.

    The files have the columns source, target (item ids) and weight (float32).
    """

    address: str  # path or URL
    ids: pl.Series  # of the items, by position
    factor: Array | None = None  # per target item, multiplies its weights; None: by 1


class SolveTask(NamedTuple):
    """Inputs from which item-item weights are solved on a cluster.

    A Gram term is a summand of G = S'S and K = S'T (source x target). G and K are those of the
    normal equations: S and T have, per training example, the weights of its source and its target
    items.
    """

    rows: RowFiles  # the rows of all partitions of users
    builder: TermBuilder  # returns the Gram terms of some users' rows
    model: RidgeModel | LagCountModel  # a ridge model gives penalty and sources of a target
    target_mask: Array | None = None  # which targets, by popularity rank; None: all
    shrinkage: float = 0.0  # of the differences between K and its transpose
    folder: str = "gram"  # name of the folder for files, which must not exist


def solve_rows(log: ClusterLog, task: SolveTask, table: WeightTable | None) -> Matrix:
    """Return item-item weights, solved on the cluster from the rows of all partitions.

    log: the run, and the plan of the tasks; task: the rows and the model. First the Gram (G = S'S,
    K = S'T) is summed, then each target item is solved. The result is a sparse matrix, source x
    target by vocabulary position, memory-mapped from files. table: where weights go with item ids,
    too; None for nowhere. G and K are those of the normal equations: S and T have, per training
    example, the weights of its source and its target items.
    """
    assert isinstance(task.model, RidgeModel)
    folder = _start_gram(log, task)
    share = _join_triangle(log, task, task.model, folder)
    work, n_items = log.plan, len(log.stats.position)
    n_entries = triangles.count_k_entries(str(folder), len(work.owners) - 1, n_items, share)
    edges, options = (work.targets, work.sources, work.owners), (share, task.target_mask)
    limits = (task.model.neighbors, n_entries, work.limits.bytes)
    plan = triangles.SolvePlan(*edges, *options, str(folder), *limits)
    return _solve_targets(log, plan, table)


def count_pairs(log: ClusterLog, task: SolveTask, table: WeightTable) -> Matrix:
    """Return item-item weights that are K = S'T itself, counted on the cluster.

    The arguments and the result are those of `solve_rows`; nothing is solved.
    """
    folder, work = _start_gram(log, task), log.plan
    edges = (work.targets, work.sources, work.owners)
    plan = triangles.SolvePlan(*edges, 0.0, None, str(folder), 0, 0, work.limits.bytes)
    return _solve_targets(log, plan, table)


def _start_gram(log: ClusterLog, task: SolveTask) -> Path:
    """Sum the Gram (G = S'S, K = S'T) of all rows in a new folder, which is returned."""
    folder = log.run.folder / f"{task.rows.prefix}{task.folder}"
    make_folder(folder)
    messages.save_array(folder, "position", log.stats.position)
    _sum_gram(log, task, folder)
    return folder


def make_folder(folder: Path) -> None:
    """Create a folder that every user of the operating system may write to."""
    folder.mkdir()
    folder.chmod(0o777)


def _sum_gram(log: ClusterLog, task: SolveTask, folder: Path) -> None:
    """Sum the Gram (G = S'S, K = S'T) of all rows, and save it in `folder`, in blocks.

    log: the run and the plan of its tasks; task: the rows, and how Gram terms (summands of G and K)
    are built from them. First each partition of users writes its rows to files that all tasks read;
    the saved array `latest` of a partition tells how many rows. Partitions are grouped, with one
    file per group and array; `layout.group_sizes` has the rows of each group.

    Then a task per group and range of target items sums pairs of rows from these files, and sends
    each sum as a message to the task of the block (range of items) that owns the pair, that of its
    rarer item; this task adds up and saves. `sent` is lazy: these tasks run only when `run_tasks`
    reads their messages, after the files are written. G and K are those of the normal equations: S
    and T have, per training example, the weights of its source and its target items.
    """
    rows, builder, owners = task.rows, task.builder, log.plan.owners
    layout = RowLayout.build(folder, list(rows.map_arrays("latest", log.n_partitions)))
    terms = gram.create_pair_files(builder, rows, layout)
    ranges = log.plan.split_targets(layout.group_sizes)
    plan = tasks.CountingPlan(builder, rows, layout, ranges, owners, terms)
    sent = send_messages(log.run, len(ranges), lambda t: tasks.send_gram(plan, t))
    with log.run.stage("gram"):
        run_on_partitions(
            log.run, log.n_partitions, lambda p: gram.write_partition(builder, rows, p, layout)
        )
        run_tasks(sent, len(owners) - 1, lambda b, batches: tasks.sum_owners(batches, b, plan))
    for pattern in ("pairs-*", "owned_*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)  # everything is summed


def _join_triangle(log: ClusterLog, task: SolveTask, model: RidgeModel, folder: Path) -> float:
    """Join the blocks of G's lower triangle to files for the solver; return K's reverse share.

    A block is a range of rows of G = S'S, saved in `folder`; the files have columns and values.
    Saved are also the ridge (diagonal of G plus penalty) and counts of entries. The solver uses K +
    share K' (K = S'T, K' transposed) with the share returned, in 0..1, larger the more of the
    difference of K and K' is chance. G and K are those of the normal equations: S and T have, per
    training example, the weights of its source and its target items.
    """
    owners, path = log.plan.owners, str(folder)
    n_blocks = len(owners) - 1
    indptr, diagonal = _save_triangle_index(folder, n_blocks, log.stats.position)
    messages.save_array(folder, "ridge", diagonal + model.penalty(diagonal))
    for name, size in (("column", 4), ("value", 8)):
        gram.create_file(folder / f"{name}.raw", int(indptr[-1]) * size)
    starts = [int(indptr[edge]) for edge in owners]

    def write(block: int) -> None:
        tasks.save_owned_counts(block, int(owners[block]), path)
        tasks.write_block(block, starts[block], path)

    with log.run.stage("gram"):
        run_on_partitions(log.run, n_blocks, write)
    owned = messages.map_arrays(folder, "owned", n_blocks)
    messages.save_array(folder, "owned", sum(owned, np.zeros(len(diagonal), np.int64)))
    simultaneous = messages.map_arrays(folder, "simultaneous", log.n_partitions)
    total = math.fsum(float(weight[0]) for weight in simultaneous)
    return triangles.direction_stats(path, n_blocks, total).reverse_share(task.shrinkage)


def _save_triangle_index(folder: Path, n_blocks: int, position: Array) -> tuple[Array, Array]:
    """Return indptr and diagonal of G = S'S, whose lower triangle was saved in blocks of rows.

    A block is a range of rows, whose arrays lie in `folder`; the triangle has a CSR form without
    the diagonal. Saves indptr, and each item's rank by its number of entries in G, for the tasks
    that solve. position: of each item (popularity rank) in the vocabulary. G is the matrix of the
    normal equations: S has, per training example, the weights of its source items.
    """
    row_counts = np.concatenate(list(messages.map_arrays(folder, "row_count", n_blocks)))
    column_counts = messages.map_arrays(folder, "column_count", n_blocks)
    indptr: Array = np.concatenate([[0], np.cumsum(row_counts)])
    messages.save_array(folder, "indptr", indptr)
    rank = tasks.rank_by_degree(row_counts, column_counts, position)
    messages.save_array(folder, "degree_rank", rank)
    return indptr, np.concatenate(list(messages.map_arrays(folder, "diagonal", n_blocks)))


def _solve_targets(log: ClusterLog, plan: triangles.SolvePlan, table: WeightTable | None) -> Matrix:
    """Solve all target items in tasks; return the weights, source x target by position.

    plan: the files of G and K, and the blocks (ranges) of items. Messages with entries of K go to
    the tasks of their targets, which solve, and messages with weights go on to the tasks of their
    sources, which save them. The weights are also written to `table`, unless it is None. G = S'S
    and K = S'T are those of the normal equations: S and T have, per training example, the weights
    of its source and its target items. An item's position is its number in the vocabulary.
    """
    n_items, folder = len(log.stats.position), plan.folder
    n_owner_blocks, n_target_blocks, n_source_blocks = (
        len(edges) - 1 for edges in (plan.owners, plan.targets, plan.sources)
    )
    entries = send_messages(
        log.run, n_owner_blocks, lambda b: triangles.send_target_entries(b, plan, n_items)
    )
    weights = map_tasks(
        entries,
        n_target_blocks,
        "block",
        lambda b, batches: tasks.send_weights(batches, b, plan),
        MESSAGES,
    )
    with log.run.stage("solve"):
        if table is None:
            run_tasks(
                weights,
                n_source_blocks,
                lambda b, batches: tasks.save_weights(batches, b, plan.sources, n_items, folder),
            )
        else:
            _write_weights(weights, plan.sources, n_items, folder, table)
    return _join_weights(folder, n_source_blocks, n_items)


def _write_weights(
    weights: DataFrame, sources: Array, n_items: int, folder: str, table: WeightTable
) -> None:
    """Save the weights of each block (range) of source items, and write them to a table.

    weights: Spark table of the messages of `tasks.send_weights` to these blocks; sources: the edges
    of the blocks, by vocabulary position; folder: for the saved arrays; table: the address of the
    Parquet files, with ids instead of positions.
    """
    kind = pa.string() if table.ids.dtype == pl.String else pa.int64()
    schema = pa.schema([("source", kind), ("target", kind), ("weight", pa.float32())])
    pl.DataFrame({"id": table.ids}).write_parquet(Path(folder) / "ids.parquet")
    factor = table.factor

    def write(block: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Save the weights of a block (range) of source items; yield them with item ids."""
        B = tasks.save_weights(batches, block, sources, n_items, folder)
        ids = pl.read_parquet(Path(folder) / "ids.parquet")["id"]
        yield from tasks.label_weights(B, int(sources[block]), ids, factor, schema)

    rows = map_tasks(weights, len(sources) - 1, "block", write, spark_schema(schema))
    write_table(rows, table.address)


def _join_weights(folder: str, n_blocks: int, n_items: int) -> Matrix:
    """Return the weights saved for all blocks (ranges) of source items as one CSR matrix.

    The matrix is source x target by vocabulary position, memory-mapped from files in `folder`. Each
    block has saved the number of weights of each source, target positions and weights.
    """
    lengths = np.concatenate(list(messages.map_arrays(folder, "weight_count", n_blocks)))
    indptr = shrink_indptr(np.concatenate([[0], np.cumsum(lengths)]))
    indices = messages.join_arrays(folder, "target", n_blocks, np.int32, "targets")
    data = messages.join_arrays(folder, "weight", n_blocks, np.float32, "weights")
    return sparse.csr_array((data, indices, indptr), shape=(n_items, n_items))
