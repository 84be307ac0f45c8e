"""Gram and weights on a cluster, from rows that lie in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from talerec.models.linear.base import Solved
from talerec.runtime.arrays import Array, Matrix, shrink_indptr
from talerec.runtime.lazy import sparse
from talerec.spark import blocks, tasks
from talerec.spark import triangles as halves
from talerec.spark.gram import Counting, Layout, make_files, write_part
from talerec.spark.partitions import Rows
from talerec.spark.session import Run, map_tasks, run_tasks, send_tasks
from talerec.spark.sizes import Sizes
from talerec.spark.tables import spark_schema, write_table


class Named(NamedTuple):
    """Where weights go with external ids, and what those to each target (a position) are multiplied by."""

    parquet: str
    ids: pl.Series
    factor: Array | None = None


class Work(NamedTuple):
    """What is solved: of which rows, how they are counted, and for which targets (a flag per rank; None: all)."""

    rows: Rows
    counting: Counting
    model: Solved
    wanted: Array | None = None
    even: float = 0.0  # how far the directions of pairs are evened out


def solve_rows(
    run: Run, work: Work, sizes: Sizes, parts: int, position: Array, named: Named | None
) -> Matrix:
    """Weights, source x target by position, as one CSR matrix that is mapped from files."""
    folder = run.folder / f"{work.rows.kind}gram"
    folder.mkdir()
    folder.chmod(0o777)
    blocks.save_array(folder, "position", position)
    _count(run, work, sizes, parts, folder)
    share = _write_half(run, work, sizes, parts, folder, position)
    entries = halves.entries_of(str(folder), len(sizes.owners) - 1, len(position), share)
    settings = tasks.SolveSettings(work.model.neighbors, entries, sizes.solve_bytes)
    return _solve(run, work, sizes, folder, share, settings, named)


def _count(run: Run, work: Work, sizes: Sizes, parts: int, folder: Path) -> None:
    """Parts lay out their rows, tasks count some targets each, and others sum blocks of owners."""
    rows, counting, owners, n = work.rows, work.counting, sizes.owners, work.rows.items
    layout = Layout.of(folder, list(rows.arrays("newest", parts)))
    alike = make_files(counting, rows, layout)
    counts = sizes.counted(layout.sizes)
    summing = tasks.Summing(counts, owners, alike, str(folder))
    sent = send_tasks(
        run,
        len(counts),
        lambda t: tasks.gram_cells(counting, rows, layout, counts[t], t, owners),
    )
    with run.stage("gram"):
        run_tasks(run.numbers(parts), parts, lambda p, _: write_part(counting, rows, p, layout))
        run_tasks(
            sent,
            len(owners) - 1,
            lambda b, batches: tasks.owner_sums(batches, b, summing, n),
        )
    for kind in ("pairs-*", "own_*"):
        for path in folder.glob(kind):
            path.unlink(missing_ok=True)  # all that was counted is summed


def _write_half(
    run: Run, work: Work, sizes: Sizes, parts: int, folder: Path, position: Array
) -> float:
    """Join the blocks of G to one file of columns and one of values, and save what all tasks need of them; the share of K'."""
    owners, place = sizes.owners, str(folder)
    count = len(owners) - 1
    starts, diagonal = _write_counts(folder, count, position)
    blocks.save_array(folder, "ridge", diagonal + work.model.penalty(diagonal))
    for name, size in (("column", 4), ("value", 8)):
        with (folder / f"{name}.raw").open("wb") as out:
            out.truncate(int(starts[-1]) * size)
        (folder / f"{name}.raw").chmod(0o666)
    begin = [int(starts[edge]) for edge in owners]

    def write(block: int, _: blocks.Batches) -> None:
        tasks.owned_counts(block, int(owners[block]), place)
        tasks.write_block(block, begin[block], place)

    with run.stage("gram"):
        run_tasks(run.numbers(count), count, write)
    owned = blocks.load_blocks(folder, "owned", count)
    blocks.save_array(folder, "owned", sum(owned, np.zeros(len(position), np.int64)))
    tied = blocks.load_blocks(folder, "tied", parts)
    return halves.sums_of(place, count, math.fsum(float(one[0]) for one in tied)).share(work.even)


def _write_counts(folder: Path, count: int, position: Array) -> tuple[Array, Array]:
    """Save what solving tasks need of all blocks of G; where the rows of the half start, and the diagonal."""
    row_counts = np.concatenate(list(blocks.load_blocks(folder, "row_count", count)))
    column_counts = blocks.load_blocks(folder, "column_count", count)
    starts: Array = np.concatenate([[0], np.cumsum(row_counts)])
    order = tasks.degree_order(row_counts, column_counts, position)
    diagonal = np.concatenate(list(blocks.load_blocks(folder, "diagonal", count)))
    for name, array in (("starts", starts), ("degree_order", order)):
        blocks.save_array(folder, name, array)
    return starts, diagonal


def _solve(
    run: Run,
    work: Work,
    sizes: Sizes,
    folder: Path,
    share: float,
    settings: tasks.SolveSettings,
    named: Named | None,
) -> Matrix:
    """Solve blocks of targets and order the weights by source: as Parquet, and as one CSR matrix that is mapped."""
    place, n, wanted = str(folder), work.rows.items, work.wanted
    owners, targets, sources = sizes.owners, sizes.targets, sizes.sources

    def own(lo: int, hi: int) -> tuple[Array, Array, Array]:
        return halves.own_entries(owners, share, wanted, lo, hi, place)

    columns = send_tasks(
        run,
        len(owners) - 1,
        lambda b: halves.target_cells(b, share, wanted, targets, n, place),
    )
    found = map_tasks(
        columns,
        len(targets) - 1,
        "block",
        lambda c, b: tasks.solved_cells(b, c, targets, sources, settings, own, place),
        blocks.CELLS,
    )
    with run.stage("solve"):
        if named is None:
            run_tasks(
                found, len(sources) - 1, lambda c, b: tasks.save_weights(b, c, sources, n, place)
            )
        else:
            _write_named(found, sources, n, place, named)
    return _joined_weights(folder, len(sources) - 1, n)


def _write_named(found: DataFrame, sources: Array, n: int, folder: str, named: Named) -> None:
    """Save the weights of each block of sources, and write them as Parquet."""
    kind = pa.string() if named.ids.dtype == pl.String else pa.int64()
    schema = pa.schema([("source", kind), ("target", kind), ("weight", pa.float32())])
    pl.DataFrame({"id": named.ids}).write_parquet(Path(folder) / "ids.parquet")
    factor = named.factor

    def write(block: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        B = tasks.save_weights(batches, block, sources, n, folder)
        ids = pl.read_parquet(Path(folder) / "ids.parquet")["id"]
        yield from tasks.named_weights(B, int(sources[block]), ids, factor, schema)

    rows = map_tasks(found, len(sources) - 1, "block", write, spark_schema(schema))
    write_table(rows, named.parquet)


def _joined_weights(folder: Path, count: int, n: int) -> Matrix:
    """The weights of all blocks of sources as one CSR matrix."""
    lengths = np.concatenate(list(blocks.load_blocks(folder, "weight_count", count)))
    indptr = shrink_indptr(np.concatenate([[0], np.cumsum(lengths)]))
    indices = blocks.joined(folder, "target", count, np.int32, "targets")
    data = blocks.joined(folder, "weight", count, np.float32, "weights")
    return sparse.csr_array((data, indices, indptr), shape=(n, n))
