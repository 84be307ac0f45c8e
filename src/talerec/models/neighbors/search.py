"""Nearest histories: the training users most similar to a query, by shared items."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.data import Histories, Log, group_rows, last_row_mask
from talerec.models.core import check_indptr, check_range, require
from talerec.ranking import Query, SequenceBlock, Weights, list_latest_rows
from talerec.runtime import (
    Array,
    Arrays,
    borrow,
    kernel,
    kth_largest,
    run_chunks,
    shrink_indptr,
    sized_chunks,
    template,
)

_CHUNK = 64  # queries per task of a thread
_MAX_ENTRIES = 2**22  # neighbors in memory at a time
_ROOM = 17  # sixteenths of the users that are expected to be enough, which are looked at
_SCAN = 16  # users per neighbor up to which looking at all of them is faster than sorting


class NeighborOptions(NamedTuple):
    """The users who are neighbors of a query's history, with their similarities."""

    max_history: int  # last rows of a query that are used
    sample: int  # users with a shared item to compare, the most recent ones; 0: all
    recency: float  # lags in which a shared item's weight falls to 1/e
    decay: float  # microseconds in which a neighbor's similarity falls to 1/e


class NeighborIndex(NamedTuple):
    """The items of the training users, who are numbered from the most recent one on.

    An entry is an item of a user; entries are numbered user by user. Times are microseconds.
    """

    indptr: Array  # where each user's entries begin
    item_indptr: Array  # where each item's positions in `entries` begin
    entries: Array  # by item
    user: Array  # of each entry
    last: Array  # time of each user's last row


class NeighborQueries(NamedTuple):
    """Histories to find neighbors of: query q has the rows start[q] to stop[q] - 1.

    item and time (microseconds) have one entry per row, oldest first.
    """

    start: Array
    stop: Array
    item: Array  # -1 for unknown items
    time: Array


class NeighborLists(NamedTuple):
    """The first sizes[q] columns of row q are the neighbors of query q, most similar first.

    A neighbor is a training user; an entry is the number of one of its items in the index.
    """

    entry: Array  # the neighbor's entry of the query's newest shared item
    similarity: Array  # of each neighbor to the query
    sizes: Array  # neighbors of each query


class _SharedItems(NamedTuple):
    """Work arrays for the users who share an item with one query; reset between queries."""

    user: Array  # in the order in which they were found
    n_users: Array  # one number: how many they are
    entry: Array  # by user: the first shared entry; -1 for users without
    weight: Array  # by user: the weight of all shared items; 0 for users without
    seen: Array  # by item: whether the query has it; False between queries


def build_index(log: Log, distance_weights: Array) -> Weights:
    """Return an index of every user's items, each at its last row, the most recent user first.

    distance_weights: the weight of a neighbor's item d rows away from the shared item, by d. The
    result holds the users' items as its block (one sequence per user), and as query arrays:
    "holders" (where each item's entries begin), "entries" (rows, by item), "user" (of each row) and
    "last" (the time of each user's last row).
    """
    log = log.keep(last_row_mask(log.ptr, log.item, len(log.items)))
    users = np.flatnonzero(np.diff(log.ptr))
    last = log.time[log.ptr[users + 1] - 1]
    newest_first = np.argsort(-last, kind="stable")
    users, last = users[newest_first], last[newest_first]
    count = log.ptr[users + 1] - log.ptr[users]
    indptr = np.concatenate([[0], np.cumsum(count)])
    item = log.item[np.arange(log.rows) + np.repeat(log.ptr[users] - indptr[:-1], count)]
    item_indptr, entries = group_rows(item, len(log.items))
    rows = {"indptr": shrink_indptr(indptr), "indices": item, "decay": distance_weights}
    histories = SequenceBlock(items=len(log.items), **rows)
    user = np.repeat(np.arange(len(count), dtype=np.int32), count)
    arrays = {"holders": item_indptr, "entries": entries, "user": user, "last": last}
    return Weights(histories, query_arrays=arrays)


def check_index(weights: Weights, n_users: int) -> None:
    """Raise TalerecError if a neighbor index, read from an artifact, has numbers out of range.

    weights: what `build_index` returned: users' items as a block, and arrays "holders" (where each
    item's entries begin), "entries", "user" and "last". n_users: users in the index.
    """
    arrays, n_entries = weights.query_arrays, len(weights.blocks[0].indices)
    check_indptr("holders", arrays["holders"], weights.items, n_entries)
    check_range("entries", arrays["entries"], 0, n_entries)
    check_range("user", arrays["user"], 0, n_users)
    sizes = tuple(len(arrays[name]) for name in ("entries", "user", "last"))
    is_complete = sizes == (n_entries, n_entries, n_users)
    require(is_complete, "the index of neighbors does not fit them")


def find_neighbors(
    weights: Weights, histories: Histories, nearest: int, options: NeighborOptions
) -> Query:
    """Return the `nearest` neighbors of each history as a query: sources and similarities.

    A source is an entry of the index: the neighbor's row of the history's newest shared item.
    weights: the index that `build_index` returned.
    """
    arrays = weights.query_arrays
    index = (weights.blocks[0].indptr, *(arrays[n] for n in ("holders", "entries", "user", "last")))
    start, stop, *rows = histories.start, histories.stop, histories.item, histories.time
    parts = [
        _find_in_part(index, (start[a:b], stop[a:b], *rows), options, nearest)
        for a, b in sized_chunks(len(histories), max(_CHUNK, _MAX_ENTRIES // nearest))
    ]
    counts, entries, similarity = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Query(np.concatenate([[0], np.cumsum(counts)]), entries, similarity)


def _find_in_part(
    index: Arrays, queries: Arrays, options: NeighborOptions, nearest: int
) -> tuple[Array, Array, Array]:
    """Return the number of neighbors of each query, then all their entries and similarities.

    index, queries: the fields of `NeighborIndex` (which users have which items) and
    `NeighborQueries` (histories). A neighbor is a training user; its entry is its row of the newest
    shared item. At most `nearest` per query, most similar first.
    """
    n = len(queries[0])
    entry, similarity = np.empty((n, nearest), np.int64), np.empty((n, nearest))
    sizes = np.zeros(n, np.int64)
    out, plain_options = (entry, similarity, sizes), tuple(options)

    def work(a: int, b: int) -> None:
        write_neighbors(index, queries, plain_options, a, b, out)

    run_chunks("neighbours", work, sized_chunks(n, _CHUNK))
    is_neighbor = np.arange(nearest) < sizes[:, None]
    return sizes, entry[is_neighbor], similarity[is_neighbor]


@template
def _add_users_of(
    index: NeighborIndex, x: int, i: int, end: int, weight: float, shared: _SharedItems
) -> int:
    """Add `weight` to the users who have item i; return the first position that is left.

    index: which users have which items. x: the position of the item's first entry that is not yet
    added; entries (rows of the index, ascending) from `end` on are left. Changes `shared` in place:
    users who share an item with the query, their weights, and for each its first shared entry.
    """
    count, last = shared.n_users[0], index.item_indptr[i + 1]
    entries, user_of = borrow(index.entries), borrow(index.user)
    users, first_entry, weights = borrow(shared.user), borrow(shared.entry), borrow(shared.weight)
    while x < last and entries[x] < end:
        u = user_of[entries[x]]
        if first_entry[u] < 0:
            first_entry[u] = entries[x]
            users[count] = u
            count += 1
        weights[u] += weight
        x += 1
    shared.n_users[0] = count
    return x


@template
def _add_shared_items(
    index: NeighborIndex, queries: NeighborQueries, q: int, options: NeighborOptions,
    shared: _SharedItems,
) -> tuple[int, int]:  # fmt: skip
    """Write the users who share an item with query q to `shared`, with summed weights.

    index: which training users have which items. The weight of an item falls with its lag in the
    query; only its last `max_history` rows are used. Returns the number of distinct items of the
    query, and how many of the most recent users were looked at: all, or enough to have
    `options.sample` who share an item.
    """
    stop, n_users = queries.stop[q], len(index.indptr) - 1
    first = max(queries.start[q], stop - options.max_history)
    rows = np.empty(stop - first, np.int64)
    n_items = list_latest_rows(queries.item, first, stop, shared.seen, rows, 0)
    position = np.empty(n_items, np.int64)
    for x in range(n_items):
        position[x] = index.item_indptr[queries.item[rows[x]]]
    n_recent = min(_ROOM * options.sample // 16, n_users) if options.sample > 0 else n_users
    while True:
        for x in range(n_items):
            weight, item = np.exp(-(stop - 1 - rows[x]) / options.recency), queries.item[rows[x]]
            end = index.indptr[n_recent]
            position[x] = _add_users_of(index, position[x], item, end, weight, shared)
        count = shared.n_users[0]
        if n_recent == n_users or count >= options.sample:
            return n_items, n_recent
        # as many as would be enough if further users shared items as often as those so far
        enough = _ROOM * n_recent * options.sample // (16 * max(count, 1)) + 1
        n_recent = min(enough, 2 * n_recent, n_users)


@template
def _sort_users(shared: _SharedItems, n_recent: int) -> Array:
    """Return the users who share an item with the query, ascending: the most recent one first.

    n_recent: all of them are among so many most recent users.
    """
    count = shared.n_users[0]
    if n_recent > _SCAN * count:
        return np.sort(shared.user[:count])
    users, size = np.empty(count, np.int64), 0
    for u in range(n_recent):
        if shared.entry[u] >= 0:
            users[size] = u
            size += 1
    return users


@template
def _similarities(
    index: NeighborIndex, users: Array, n_items: int, now: int, decay: float, weight: Array
) -> Array:
    """Return the similarity of users to a query of `n_items` items whose last row is at `now`.

    index: `indptr` has where each user's items begin, `last` the time of its last row. weight: by
    user, the summed weight of shared items. decay, now: microseconds.
    """
    out = np.empty(len(users))
    for x in range(len(users)):
        u = users[x]
        # sum of exp(-lag / recency) over shared items / sqrt(|query| |user|) * exp(-age / decay)
        out[x] = weight[u] / np.sqrt(n_items * (index.indptr[u + 1] - index.indptr[u]))
        out[x] *= np.exp(-max(now - index.last[u], 0) / decay)
    return out


@template
def _write_most_similar(
    out: NeighborLists, q: int, users: Array, similarity: Array, entry: Array
) -> None:
    """Write the most similar users to row q of `out`, as many as fit; ties keep their order.

    similarity: of each of `users`; those with 0 are left out. entry: by user, the row of the index
    to write, that of its newest shared item.
    """
    nearest, count = out.entry.shape[1], 0
    if len(users) > nearest:  # only those that can be among the most similar are sorted
        is_near = similarity >= kth_largest(similarity, nearest)
        users, similarity = users[is_near], similarity[is_near]
    for x in np.argsort(-similarity, kind="mergesort")[:nearest]:
        if similarity[x] > 0.0:
            out.entry[q, count], out.similarity[q, count] = entry[users[x]], similarity[x]
            count += 1
    out.sizes[q] = count


@template
def _write_neighbors(
    index: NeighborIndex, queries: NeighborQueries, options: NeighborOptions, a: int, b: int,
    out: NeighborLists,
) -> None:  # fmt: skip
    """Write the neighbors of queries a to b - 1 to `out`, most similar first.

    index: which training users have which items, most recent user first. queries: histories. Of the
    users who share an item, the `options.sample` most recent are compared. Of equally similar users
    the most recent one is first. The size of a query without neighbors is not written: `out.sizes`
    must be 0 on entry.
    """
    n_users, n_items = len(index.indptr) - 1, len(index.item_indptr) - 1
    shared = _SharedItems(
        np.empty(n_users, np.int64), np.zeros(1, np.int64), np.full(n_users, -1, np.int64),
        np.zeros(n_users), np.zeros(n_items, np.bool_),
    )  # fmt: skip
    for q in range(a, b):
        size, n_recent = _add_shared_items(index, queries, q, options, shared)
        count = shared.n_users[0]
        if count == 0:
            continue
        users = _sort_users(shared, n_recent)
        if 0 < options.sample < count:
            users = users[: options.sample]
        now = queries.time[queries.stop[q] - 1]
        similarity = _similarities(index, users, size, now, options.decay, shared.weight)
        _write_most_similar(out, q, users, similarity, shared.entry)
        for x in range(count):
            u = shared.user[x]
            shared.weight[u], shared.entry[u] = 0.0, -1
        shared.n_users[0] = 0


@kernel
def write_neighbors(
    index: Arrays, queries: Arrays, options: tuple[Any, ...], a: int, b: int, out: Arrays
) -> None:
    """Write the neighbors of queries a to b - 1 to `out`, most similar first.

    Neighbors are the training users most similar to a query's history. Arguments are the fields of
    `NeighborIndex`, `NeighborQueries`, `NeighborOptions` and `NeighborLists` as plain tuples: Numba
    recognizes these 10 microseconds sooner, and one query alone takes 60.
    """
    requests = NeighborIndex(*index), NeighborQueries(*queries), NeighborOptions(*options)
    _write_neighbors(*requests, a, b, NeighborLists(*out))
