"""Sums of item pairs by owner: G and both directions of K, in blocks. No Spark.

Items are numbered by popularity rank, 0 the most popular. Of two items the rarer, whose number is
higher, *owns* their pair: so sums form a lower triangle, with a row for each owner and a column for
each other item of its pairs. An entry has three values: G, K into the owner, and K out of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data import group_rows
from talerec.gram import DirectionStats, SparseSums
from talerec.runtime import CSR, Array, kernel, sort_indices
from talerec.spark import messages
from talerec.spark.gram import TargetSums

#: Which K the second value of an entry is: into the owner, out of the owner, or both (K is G).
INTO, OUT, BOTH = 1, 2, 3


def split_by_owner(target_sums: TargetSums, lo: int, hi: int) -> tuple[CSR, CSR]:
    """Return the sums of the targets lo..hi in two matrices, by which item owns the pair.

    target_sums: sums over pairs of rows, a row per target. Items are popularity ranks; the rarer
    item of a pair (of higher rank) owns it. First the pairs that the targets own (row 0 is target
    lo, columns are sources), then those that their sources own (row 0 is source 0, columns are
    targets). Entries have two values: of G = S'S, and of K = S'T. G and K are those of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """
    arrays: tuple[Array, ...] = _split_sums(
        target_sums.sums, lo, hi, target_sums.target_equals_source
    )
    return CSR(*arrays[:3]), CSR(*arrays[3:])


@kernel
def _split_sums(
    sums: SparseSums, lo: int, hi: int, target_equals_source: bool
) -> tuple[Array, ...]:
    """Return two CSR matrices as six arrays: pairs that targets lo..hi own, and other pairs.

    Of two items, the one with the higher number owns the pair: it is the row (row 0 is item lo in
    the first matrix, item 0 in the second), and the other item is the column. Values are G and K.
    sums: M and K' with a row per target; G = M + M', so its diagonal is twice that of M. K is G if
    `target_equals_source`. Entries of two zeros are left out. G = S'S and K = S'T are those of the
    normal equations: S and T have, per training example, the weights of its source and its target
    items.
    """
    indptr, indices = sums.indptr, sums.indices
    M, K = sums.M, (sums.M if target_equals_source else sums.KT)
    owned_indptr, other_indptr = np.zeros(hi - lo + 1, np.int64), np.zeros(len(indptr), np.int64)
    for j in range(lo, hi):
        for x in range(indptr[j], indptr[j + 1]):
            if M[x] != 0.0 or K[x] != 0.0:
                if indices[x] <= j:
                    owned_indptr[j - lo + 1] += 1
                else:
                    other_indptr[indices[x] + 1] += 1
    owned_indptr, other_indptr = np.cumsum(owned_indptr), np.cumsum(other_indptr)
    owned_indices, other_indices = (
        np.empty(owned_indptr[-1], np.int32),
        np.empty(other_indptr[-1], np.int32),
    )
    owned_values, other_values = np.empty((owned_indptr[-1], 2)), np.empty((other_indptr[-1], 2))
    free, end = other_indptr.copy(), 0
    for j in range(lo, hi):
        for x in range(indptr[j], indptr[j + 1]):
            if M[x] == 0.0 and K[x] == 0.0:
                continue
            i = indices[x]
            g, k = M[x], K[x]
            if i == j:
                g, k = 2.0 * g, (2.0 * k if target_equals_source else k)
            if i <= j:
                owned_indices[end] = i
                owned_values[end, 0], owned_values[end, 1] = g, k
                end += 1
            else:
                other_indices[free[i]] = j
                other_values[free[i], 0], other_values[free[i], 1] = g, k
                free[i] += 1
    return owned_indptr, owned_indices, owned_values, other_indptr, other_indices, other_values


def send_owner_rows(rows: CSR, edges: Array, sender: int) -> Iterator[pa.RecordBatch]:
    """Yield messages with the rows of a matrix, to the Spark tasks of ranges of rows.

    rows: a row per owner, which is the rarer item of a pair; task b (a block) gets the owners
    edges[b] to edges[b + 1] (excluded). A message has four arrays: owners, entries of each, columns
    and values. sender: the number that tells receivers where it comes from.
    """
    for block in np.flatnonzero(np.diff(rows.indptr[edges])):
        lo, hi = edges[block], edges[block + 1]
        length = np.diff(rows.indptr[lo : hi + 1]).astype(np.int32)
        span = slice(rows.indptr[lo], rows.indptr[hi])
        owners = (lo + np.flatnonzero(length)).astype(np.int32)
        arrays = (owners, length[length > 0], rows.indices[span], rows.values[span])
        yield messages.pack_message(int(block), sender, *arrays)


class OwnerRows(NamedTuple):
    """Some rows of a matrix with a row per owner of item pairs (the rarer item owns a pair).

    An entry has two values: of G = S'S, and of K = S'T in one direction, INTO the owner (it is the
    target), OUT of it (it is the source), or BOTH if K is symmetric. G and K are those of the
    normal equations: S and T have, per training example, the weights of its source and its target
    items.
    """

    arrays: list[Array]  # owners, entries of each, columns of the entries, two values of each
    direction: int  # of the second value: INTO, OUT or BOTH
    term: int  # number of the Gram term, a summand of G and K, that the entries belong to


OWNER_DTYPES = (np.int32, np.int32, np.int32, np.float64)


def sum_owner_rows(
    pieces: Sequence[OwnerRows], lo: int, hi: int, n_items: int, shares: Sequence[float]
) -> CSR:
    """Return the sum of all pieces: a matrix whose rows are the owners lo..hi of item pairs.

    The rarer item of a pair owns it; the other item is the column. Pieces have rows of this matrix;
    those of each Gram term are added in their order, and then the terms, times their shares, as on
    one machine. Entries of the sum have three values: G, K into the owner (as target), and K out of
    the owner (as source). G = S'S and K = S'T are those of the normal equations: S and T have, per
    training example, the weights of its source and its target items.
    """
    owner, length, column, value = (
        np.concatenate([np.empty(0, dtype), *(piece.arrays[x] for piece in pieces)])
        for x, dtype in enumerate(OWNER_DTYPES)
    )
    kinds = np.array([piece[1:] for piece in pieces], np.int8).reshape(-1, 2)
    kinds = np.repeat(kinds, [len(piece.arrays[0]) for piece in pieces], axis=0)
    ptr, order = group_rows(owner - np.int32(lo), hi - lo)
    indptr = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
    rows = CSR(indptr, column, value.reshape(-1, 2))
    arrays: tuple[Array, Array, Array] = _sum_owner_entries(
        ptr, order, kinds, rows, lo, n_items, np.array(shares, np.float64)
    )
    return CSR(*arrays)


@kernel
def _sum_owner_entries(
    ptr: Array, order: Array, kinds: Array, rows: CSR, lo: int, n_items: int, shares: Array
) -> tuple[Array, Array, Array]:
    """Return indptr, indices and values of summed rows; all-zero entries are left out.

    An owner is the rarer item of a pair; it has a row, with a column per other item. Owner lo + r
    has the input rows order[ptr[r]] to order[ptr[r + 1] - 1]. Each entry has G = S'S and one K =
    S'T; kinds: per input row, whether K is INTO the owner, OUT of it, or BOTH, and the number of
    its Gram term, whose sums are multiplied by shares[number]. A summed entry has G, K into, K out;
    on the diagonal (column lo + r) K counts as into only. G and K are those of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """
    column, value = rows.indices, rows.values
    capacity, end = len(column), 0
    indptr, indices = np.zeros(len(ptr), np.int64), np.empty(capacity, np.int32)
    values, sums = np.empty((capacity, 3)), np.zeros((n_items, len(shares), 3))
    last_owner, spare = np.full(n_items, -1, np.int32), np.empty(n_items, np.int32)
    touched = np.empty(n_items, np.int32)
    for r in range(len(ptr) - 1):
        count = 0
        for x in range(ptr[r], ptr[r + 1]):
            direction, term = kinds[order[x], 0], kinds[order[x], 1]
            for e in range(rows.indptr[order[x]], rows.indptr[order[x] + 1]):
                j = column[e]
                if last_owner[j] != r:
                    last_owner[j] = r
                    touched[count] = j
                    count += 1
                sums[j, term, 0] += value[e, 0]
                if direction != OUT:
                    sums[j, term, 1] += value[e, 1]
                if direction != INTO and j != lo + r:
                    sums[j, term, 2] += value[e, 1]
        sort_indices(touched[:count], n_items, spare)
        for x in range(count):
            j = touched[x]
            is_zero = True
            for v in range(3):
                total = shares[0] * sums[j, 0, v]
                for t in range(1, len(shares)):
                    total += shares[t] * sums[j, t, v]
                values[end, v], is_zero = total, is_zero and total == 0.0
            if not is_zero:
                indices[end] = j
                end += 1
            sums[j] = 0.0
        indptr[r + 1] = end
    return indptr, indices[:end].copy(), values[:end].copy()


# -- one block of owners ---------------------------------------------------------------------------


def save_triangle_block(triangle: CSR, lo: int, block: int, folder: str) -> None:
    """Save the entries of G and K of a block of owners, items in order of popularity.

    The first owner has rank `lo`. Each pair of items is stored once, in the row of its rarer item
    (the owner): `triangle` has a row per owner, a column per other item, and three values per
    entry: G, K into the owner (as target), K out of it (as source; 0 on the diagonal). Arrays are
    saved as `{name}-{block}` in `folder`: entries of G off the diagonal and their counts per row
    and column, its diagonal, entries of K, their counts (see `count_k_entries`), and the sums that
    `DirectionStats` needs: ||K - K'||^2, sum of K, trace of K, trace of G. G = S'S and K = S'T are
    those of the normal equations: S and T have, per training example, the weights of its source and
    its target items.
    """
    indptr, column, value = triangle
    n_owners = len(indptr) - 1
    row = np.repeat(np.arange(n_owners, dtype=np.int32), np.diff(indptr))
    is_diagonal = column == row + lo
    is_g, is_k = ~is_diagonal & (value[:, 0] != 0), (value[:, 1:] != 0).any(axis=1)
    diagonal = np.zeros(n_owners)
    diagonal[row[is_diagonal]] = value[is_diagonal, 0]
    arrays = {
        "column": column[is_g],
        "value": value[is_g, 0],
        "diagonal": diagonal,
        "row_count": np.bincount(row[is_g], minlength=n_owners),
        "column_count": np.bincount(column[is_g], minlength=lo + n_owners),
        "owner": row[is_k] + np.int32(lo),
        "other": column[is_k],
        "into": value[is_k, 1],
        "out": value[is_k, 2],
    }
    into, out, is_self = arrays["into"], arrays["out"], is_diagonal[is_k]
    terms = (
        np.where(is_self, 0.0, 2 * (into - out) ** 2),
        into + out,
        np.where(is_self, into, 0.0),
    )
    sums = np.stack([np.bincount(row[is_k], term, n_owners) for term in terms])
    n_self = np.count_nonzero(into[is_self])
    n_into, n_out = np.count_nonzero(into) - n_self, np.count_nonzero(out)
    arrays["sums"] = np.append(sums.sum(axis=1), diagonal.sum())
    arrays["k_counts"] = np.array([n_into, n_out, len(into) - n_self, n_self])
    for name, array in arrays.items():
        messages.save_array(folder, f"{name}-{block}", array)


def direction_stats(folder: str, n_blocks: int, simultaneous: float) -> DirectionStats:
    """Return the statistics of how asymmetric K = S'T (source x target) is, over all blocks.

    n_blocks: ranges of items, whose sums `save_triangle_block` saved in `folder`. simultaneous: the
    sum of K's entries from simultaneous rows of different items, which have no direction. K is the
    right-hand side of the normal equations: S and T have, per training example, the weights of its
    source and its target items.
    """
    sums = np.array(list(messages.map_arrays(folder, "sums", n_blocks)))
    distance, total, diagonal, trace = (math.fsum(column) for column in sums.T)
    return DirectionStats(distance, total, diagonal, trace, simultaneous)


def count_k_entries(folder: str, n_blocks: int, n_items: int, share: float) -> int:
    """Return the number of entries of K + share K' as the solver of one machine counts them.

    K = S'T is source x target, K' its transpose. If `share` is 0, that is K with a full diagonal.
    n_blocks: ranges of items, of which each has saved the number of its entries of K by direction
    (`save_triangle_block`). K is the right-hand side of the normal equations: S and T have, per
    training example, the weights of its source and its target items.
    """
    counts = np.sum(list(messages.map_arrays(folder, "k_counts", n_blocks)), axis=0)
    into, out, either, diagonal = counts
    return int(2 * either + diagonal) if share else int(into + out + n_items)


def _map_k_entries(folder: str, block: int) -> list[Array]:
    """Return owner, other item, K into the owner and K out of it, for each pair of a block.

    The rarer item of a pair owns it; a block is a range of owners. K = S'T is source x target: into
    the owner is from the other item as source. Arrays are memory-mapped. K is the right-hand side
    of the normal equations: S and T have, per training example, the weights of its source and its
    target items.
    """
    names = ("owner", "other", "into", "out")
    return [messages.map_array(folder, f"{name}-{block}") for name in names]


class SolvePlan(NamedTuple):
    """The plan by which Spark tasks solve weights from G = S'S and K + share K' (K = S'T).

    A task has a block of items, a range between two edges. The rarer item of a pair is its owner;
    weights lead from sources to targets. Ranks are by popularity; positions are those of the
    vocabulary. G and K are those of the normal equations: S and T have, per training example, the
    weights of its source and its target items.
    """

    targets: Array  # edges of the blocks of targets, by rank
    sources: Array  # edges of the blocks of sources, by position
    owners: Array  # edges of the blocks of owners, by rank
    share: float  # of K transposed
    target_mask: Array | None  # a flag per rank; None: all targets
    folder: str  # of G and K
    neighbors: int  # most sources of a target; 0: nothing is solved, weights are K itself
    n_entries: int  # of K + share K', in all
    max_bytes: int  # of G that a task holds; a larger triangle is read in pieces


def send_target_entries(block: int, plan: SolvePlan, n_items: int) -> Iterator[pa.RecordBatch]:
    """Yield messages with entries of K + share K', to the blocks of their target items.

    K = S'T is source x target, K' its transpose; share is plan.share. It sends the entries whose
    source is an owner of this block (a range of items; the rarer item of a pair owns it) and whose
    target is the other item. A message has the number of entries of each target, sources, and
    values; `send_weights` receives it. K is the right-hand side of the normal equations: S and T
    have, per training example, the weights of its source and its target items.
    """
    edges = plan.targets
    owner, target, into, out = _map_k_entries(plan.folder, block)
    value = out + plan.share * into
    is_sent = (value != 0) & (owner != target)
    if plan.target_mask is not None:
        is_sent &= plan.target_mask[target]
    target, source, value = target[is_sent], owner[is_sent], value[is_sent]
    ptr, order = group_rows(target, n_items)
    bounds = ptr[edges]
    for number in np.flatnonzero(np.diff(bounds)):
        at = order[bounds[number] : bounds[number + 1]]
        length = np.diff(ptr[edges[number] : edges[number + 1] + 1]).astype(np.int32)
        yield messages.pack_message(int(number), block, length, source[at], value[at])


def unpack_target_entries(
    batches: messages.Batches, lo: int, hi: int
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return targets, sources and values of entries of K + share K' with targets lo..hi.

    K = S'T is source x target, K' its transpose. batches: messages of `send_target_entries`, which
    computed the sum: the number of entries of each target, sources, values. Each of the three lists
    has an empty array, then one array per message. K is the right-hand side of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """
    all_targets = np.arange(lo, hi, dtype=np.int32)
    dtypes = (np.int32, np.int32, np.float64)
    targets, sources, values = ([np.empty(0, dtype)] for dtype in dtypes)
    for _, (length, source, value) in messages.unpack_messages(batches, *dtypes):
        targets.append(np.repeat(all_targets, length))
        sources.append(source)
        values.append(value)
    return targets, sources, values


def load_owned_entries(plan: SolvePlan, lo: int, hi: int) -> tuple[Array, Array, Array]:
    """Return targets, sources and values of entries of K + share K' with targets lo to hi - 1.

    K = S'T is source x target, K' its transpose; share is plan.share. Only entries whose target is
    the rarer item of the pair (its owner) are returned, read from the files of the blocks (ranges)
    of owners; `send_target_entries` sends the other entries. K is the right-hand side of the normal
    equations: S and T have, per training example, the weights of its source and its target items.
    """
    owners = plan.owners
    first, last = np.searchsorted(owners, lo, "right") - 1, np.searchsorted(owners, hi, "left")
    pieces = []
    for block in range(first, last):
        arrays = _map_k_entries(plan.folder, block)
        span = slice(*np.searchsorted(arrays[0], (lo, hi)))
        target, source, into, out = (array[span] for array in arrays)
        value = into + plan.share * np.where(target == source, into, out)
        is_used = value != 0
        if plan.target_mask is not None:
            is_used &= plan.target_mask[target]
        pieces.append((target[is_used], source[is_used], value[is_used]))
    target, source, value = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    return target, source, value
