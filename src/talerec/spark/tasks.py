"""Tasks of a cluster that sum the Gram, solve it, and recommend. No Spark.

They are plain functions of arrays, messages and files: a task calls what one machine calls, on a
part of the work. Items are numbered by popularity rank, 0 the most popular; a
*block* is a range of items. Of two items the rarer, whose number is higher, *owns* their pair, so
that the most popular item owns nothing but itself (see `triangles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import Log, Vocabulary, group_rows
from talerec.models.core import Model, RecommendOptions, iterate_lists
from talerec.runtime import CSR, Array, Matrix, shrink_indptr, sparse
from talerec.solvers import RangeProblem, solve_range, solve_range_in_pieces
from talerec.spark import messages, triangles
from talerec.spark.gram import RowLayout, TermBuilder, TermShare, sum_targets, write_at
from talerec.spark.messages import Batches, map_array, read_array, save_array
from talerec.spark.partitions import RowFiles
from talerec.spark.work_plan import TargetRange

_NAMED_WEIGHTS = 2**16  # weights that get external ids at a time
_MAX_TERMS = 2  # of a Gram
_ENTRY_BYTES = 12  # of an entry of G: its column and its value


# -- Gram ------------------------------------------------------------------------------------------


class CountingPlan(NamedTuple):
    """The plan by which Spark tasks sum the Gram (G = S'S, K = S'T) over pairs of rows.

    A task sums a range of target items in the rows of a group of users, for each Gram term (a
    summand of the Gram); then another sums a block (range) of owners. Each pair of items is owned
    by the rarer one. G and K are those of the normal equations: S and T have, per training example,
    the weights of its source and its target items.
    """

    builder: TermBuilder  # returns the Gram terms of some rows
    rows: RowFiles  # the saved rows of all users
    layout: RowLayout  # the files that each group of users shares
    ranges: Sequence[TargetRange]  # of each counting task
    owners: Array  # edges of the blocks of owners
    terms: Sequence[TermShare]  # of the Gram: their shares


def send_gram(plan: CountingPlan, task: int) -> Iterator[pa.RecordBatch]:
    """Sum the pairs of a task's targets: save those that they own, yield messages with others.

    plan: which items are the targets of which task. The rarer item of a pair owns it. Pairs of a
    target with a rarer source go to the task of the block (range of items) of that source, which
    runs `sum_owners`. Done for each Gram term, a summand of G = S'S and K = S'T. G and K are those
    of the normal equations: S and T have, per training example, the weights of its source and its
    target items.
    """
    targets = plan.ranges[task]
    for term, sums in enumerate(sum_targets(plan.builder, plan.rows, plan.layout, targets)):
        owned_pairs, other_pairs = triangles.split_by_owner(sums, targets.lo, targets.hi)
        for name, array in owned_pairs._asdict().items():
            save_array(plan.layout.folder, f"owned_{name}-{task}-{term}", array)
        yield from triangles.send_owner_rows(other_pairs, plan.owners, task * _MAX_TERMS + term)


def sum_owners(batches: Batches, block: int, plan: CountingPlan) -> None:
    """Sum all pairs that the items of one block own, over all tasks, and save the sums.

    The rarer item of a pair owns it; a block is a range of items. batches: messages of `send_gram`,
    which hold sums of pairs for G = S'S and K = S'T from other tasks; plan: the blocks, and the
    files of the sums that tasks saved. G and K are those of the normal equations: S and T have, per
    training example, the weights of its source and its target items.
    """
    lo, hi = int(plan.owners[block]), int(plan.owners[block + 1])
    n_items = plan.rows.n_items
    pieces = load_owner_rows(batches, lo, hi, plan)
    shares = [term.share for term in plan.terms]
    triangle = triangles.sum_owner_rows(pieces, lo, hi, n_items, shares)
    triangles.save_triangle_block(triangle, lo, block, plan.layout.folder)


def load_owner_rows(
    batches: Batches, lo: int, hi: int, plan: CountingPlan
) -> list[triangles.OwnerRows]:
    """Return the sums of pairs owned by the items lo..hi: first those saved, then those sent.

    The rarer item of a pair owns it. Tasks of `send_gram` save sums whose target is the owner, and
    send (`batches`) those whose source is. Each piece of the result also says whether its K = S'T
    is into the owner (the owner is the target), out of it, or both. plan: how the tasks were
    divided. K is the right-hand side of the normal equations: S and T have, per training example,
    the weights of its source and its target items.
    """
    pieces: list[triangles.OwnerRows] = []
    for term, (_, is_equal) in enumerate(plan.terms):
        direction = triangles.BOTH if is_equal else triangles.INTO
        saved = _load_saved_rows(plan, term, lo, hi)
        pieces += [triangles.OwnerRows(arrays, direction, term) for arrays in saved]
    for sender, arrays in messages.unpack_messages(batches, *triangles.OWNER_DTYPES):
        term = sender % _MAX_TERMS
        direction = triangles.BOTH if plan.terms[term].target_equals_source else triangles.OUT
        pieces.append(triangles.OwnerRows(arrays, direction, term))
    return pieces


def _load_saved_rows(plan: CountingPlan, term: int, lo: int, hi: int) -> Iterator[list[Array]]:
    """Yield what each task of `send_gram` saved for the owners lo..hi, for one Gram term.

    A Gram term is a summand of G = S'S and K = S'T, given by its number `term`. Four arrays: owners
    (the rarer items of pairs), number of entries of each, columns (the other items), and values,
    two per entry: G and K. G and K are those of the normal equations: S and T have, per training
    example, the weights of its source and its target items.
    """
    for task, (_, first, last) in enumerate(plan.ranges):
        a, b = max(first, lo), min(last, hi)
        if a < b:
            indptr, column, value = (
                map_array(plan.layout.folder, f"owned_{name}-{task}-{term}") for name in CSR._fields
            )
            indptr = indptr[a - first : b - first + 1]
            span = slice(indptr[0], indptr[-1])
            owners = np.arange(a, b, dtype=np.int32)
            yield [owners, np.diff(indptr), column[span], value[span].reshape(-1)]


def rank_by_degree(row_counts: Array, column_counts: Iterable[Array], position: Array) -> Array:
    """Return each item's rank by its number of entries in G, most first.

    G = S'S, items x items, is given as a lower triangle. row_counts: entries of its rows;
    column_counts: of its columns, an array for each range of rows. Items with equally many entries
    are ordered by `position`, their number in the vocabulary, as in the local solver. G is the
    matrix of the normal equations: S has, per training example, the weights of its source items.
    """
    degree = row_counts.copy()
    for counts in column_counts:
        degree[: len(counts)] += counts
    rank = np.empty(len(degree), np.int32)
    rank[np.lexsort((position, -degree))] = np.arange(len(degree))
    return rank


def save_owned_counts(block: int, lo: int, folder: str) -> None:
    """Save how many entries of a block of G each item owns if items are ranked by degree.

    The degree of an item is its number of entries in G = S'S. block: a range of rows of G's lower
    triangle, from row `lo` on, whose arrays lie in `folder`. The owner of an entry is the one of
    its two items with the higher `degree_rank`, which is the item with fewer entries. Saved as
    `owned-{block}`. G is the matrix of the normal equations: S has, per training example, the
    weights of its source items.
    """
    rank, column = map_array(folder, "degree_rank"), map_array(folder, f"column-{block}")
    counts = map_array(folder, f"row_count-{block}")
    row = np.repeat(np.arange(lo, lo + len(counts), dtype=np.int32), counts)
    owner = np.where(rank[row] > rank[column], row, column)
    save_array(folder, f"owned-{block}", np.bincount(owner, minlength=len(rank)))


def write_block(block: int, start: int, folder: str) -> None:
    """Copy a block (range of rows) of G's lower triangle to the files of the whole triangle.

    start: the number of entries before the block; folder: of all these files. A second run writes
    the same bytes. G = S'S and K = S'T are those of the normal equations: S and T have, per
    training example, the weights of its source and its target items.
    """
    for name in ("column", "value"):
        write_at(Path(folder) / f"{name}.raw", start, map_array(folder, f"{name}-{block}"))


# -- solve -----------------------------------------------------------------------------------------


def send_weights(
    batches: Batches, block: int, plan: triangles.SolvePlan
) -> Iterator[pa.RecordBatch]:
    """Solve the weights of a block of target items; yield messages with them, by source block.

    Blocks are ranges of items, one task each; plan: their edges and the files of G = S'S and K.
    batches: entries of K + share K' (K = S'T, source x target; K' transposed; share in 0..1) of
    these targets, from `send_target_entries`; those that the targets own (as rarer item of the
    pair) are read from files, like G. A message has sources, targets (positions) and weights. G and
    K are those of the normal equations: S and T have, per training example, the weights of its
    source and its target items. An item's position is its number in the vocabulary.
    """
    lo, hi = int(plan.targets[block]), int(plan.targets[block + 1])
    position = read_array(plan.folder, "position")  # of each rank
    owned = triangles.load_owned_entries(plan, lo, hi)
    received = triangles.unpack_target_entries(batches, lo, hi)
    target, source, value = (
        np.concatenate([array, *pieces]) for array, pieces in zip(owned, received, strict=True)
    )
    weight = value.astype(np.float32)
    if plan.neighbors:
        columns = build_columns(target, source, value, lo, hi, position)
        source, target, weight = solve_targets(columns, plan, lo, hi)
    source, target = position[source], position[target]
    ptr, order = group_rows(source, len(position))
    bounds = ptr[plan.sources]
    for number in np.flatnonzero(np.diff(bounds)):
        at = order[bounds[number] : bounds[number + 1]]
        yield messages.pack_message(int(number), block, source[at], target[at], weight[at])


def build_columns(
    target: Array, source: Array, value: Array, lo: int, hi: int, position: Array
) -> CSR:
    """Return the entries of K (target, source, value) as a CSR matrix with a row per target.

    Three arrays with one entry of K = S'T each; only the targets lo..hi may have entries. Sources
    of a target are ordered by `position`, their place in the vocabulary; targets and sources are
    popularity ranks. The matrix has a row for every item. K is the right-hand side of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """
    n_items = len(position)
    _, order = group_rows(position[source], n_items)
    ptr, among = group_rows(target[order], n_items)
    order = order[among]
    assert ptr[hi] - ptr[lo] == len(target), "a target is in another block"
    return CSR(shrink_indptr(ptr), source[order], value[order])


def solve_targets(
    K: CSR, plan: triangles.SolvePlan, lo: int, hi: int
) -> tuple[Array, Array, Array]:
    """Return sources, targets and weights (three arrays) of the targets lo..hi.

    They solve (G + diag(penalty)) B = K with few sources per target. K: a row per target, already
    with the share of K transposed added. Items are popularity ranks; plan.n_entries is the number
    of entries of K for all targets. G's lower triangle is memory-mapped if it has at most
    `plan.max_bytes` bytes or if targets may have every item as source, else read in pieces. G = S'S
    and K = S'T are those of the normal equations: S and T have, per training example, the weights
    of its source and its target items.
    """
    folder = plan.folder
    indptr, lengths, ridge = (read_array(folder, name) for name in ("indptr", "owned", "ridge"))
    problem = RangeProblem(lengths, K, ridge, plan.neighbors, plan.n_entries)
    if indptr[-1] * _ENTRY_BYTES <= plan.max_bytes or plan.neighbors >= len(ridge):
        return solve_range(_map_triangle(folder, indptr), problem, lo, hi)
    with ExitStack() as files:
        column, value = (
            files.enter_context((Path(folder) / f"{name}.raw").open("rb"))
            for name in ("column", "value")
        )

        def read(a: int, b: int) -> tuple[Array, Array]:
            span = (int(indptr[a]), int(indptr[b] - indptr[a]))
            return _read_entries(column, np.int32, *span), _read_entries(value, np.float64, *span)

        room = plan.max_bytes // _ENTRY_BYTES
        pieces = list(solve_range_in_pieces(indptr, read, room, problem, lo, hi))
    source, target, weight = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return source, target, weight


def _read_entries(file: BinaryIO, dtype: type, first: int, count: int) -> Array:
    """Return `count` entries of an open file of numbers, from entry `first` on."""
    file.seek(first * np.dtype(dtype).itemsize)
    return np.fromfile(file, dtype, count)


def _map_triangle(folder: str, indptr: Array) -> CSR:
    """Return the lower triangle of G as a CSR matrix, memory-mapped from files in `folder`.

    G = S'S, items x items. indptr: where the entries of each row begin; the files have columns and
    values. Mapped copy-on-write, because kernels need writable arrays. G is the matrix of the
    normal equations: S has, per training example, the weights of its source items.
    """
    dtypes = {"column": np.int32, "value": np.float64}
    column, value = (
        np.memmap(Path(folder) / f"{name}.raw", dtype, "c", shape=(int(indptr[-1]),))
        if indptr[-1]
        else np.empty(0, dtype)
        for name, dtype in dtypes.items()
    )
    return CSR(indptr, np.asarray(column), np.asarray(value))


def save_weights(batches: Batches, block: int, sources: Array, n_items: int, folder: str) -> Matrix:
    """Save and return the weights of a block of sources, ordered by source, then by target.

    batches: messages of `send_weights`, from the tasks that solved targets. Block b has the source
    items sources[b] to sources[b + 1] (excluded), by vocabulary position. The result is a sparse
    matrix: source of the block x target (n_items). Its arrays are saved in `folder`.
    """
    lo, hi = int(sources[block]), int(sources[block + 1])
    source, target, weight = messages.concatenate_messages(batches, np.int32, np.int32, np.float32)
    _, order = group_rows(target, n_items)
    ptr, among = group_rows(source[order] - np.int32(lo), hi - lo)
    order = order[among]
    shape = (hi - lo, n_items)
    B = sparse.csr_array((weight[order], target[order], shrink_indptr(ptr)), shape=shape)
    save_array(folder, f"weight_count-{block}", np.diff(B.indptr).astype(np.int64))
    save_array(folder, f"target-{block}", B.indices)
    save_array(folder, f"weight-{block}", B.data)
    return B


def label_weights(
    B: Matrix, lo: int, ids: pl.Series, factor: Array | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield weights as Arrow rows of source id, target id and weight.

    B: sparse weights, source x target; its first row is the item at position `lo`. ids: of all
    items. factor: per target, what its weights are multiplied by; None for 1. schema: of the rows.
    An item's position is its number in the vocabulary.
    """
    source = np.repeat(np.arange(lo, lo + B.shape[0]), np.diff(B.indptr))
    weight = B.data if factor is None else B.data * factor[B.indices]
    for start in range(0, len(source), _NAMED_WEIGHTS):
        span = slice(start, start + _NAMED_WEIGHTS)
        frame = pl.DataFrame(
            {"source": ids[source[span]], "target": ids[B.indices[span]], "weight": weight[span]}
        )
        yield from messages.to_batches(frame, schema)


# -- recommend -------------------------------------------------------------------------------------


def recommend_users(
    model: Model, rows: pl.DataFrame, order: Sequence[str], options: RecommendOptions
) -> pl.DataFrame:
    """Return the recommendations of users as a frame: user_id, item_id, score, rank.

    rows: all rows of these users: user (id), item (a position, -1 if the model does not know it),
    time, row_number, and maybe weight; order: the columns that order a user's rows. options: how
    many items, filters, boosts and the request time; rows that are not before that time are left
    out of the histories. An item's position is its number in the vocabulary.
    """
    users, user = Vocabulary.encode(rows["user"])
    rows = rows.with_columns(pl.Series("user", user)).sort("user", *order)
    ptr = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    item, time = (rows[name].to_numpy(writable=True) for name in ("item", "time"))
    weight = rows["weight"].to_numpy(writable=True) if "weight" in rows.columns else None
    items = model.fitted.items
    log = Log(ptr.astype(np.int64), item, time, users, items, weight=weight)
    return pl.concat(iterate_lists(model, log, np.arange(len(users)), options))
