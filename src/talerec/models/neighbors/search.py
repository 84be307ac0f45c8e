"""Nearest histories: which users' histories are most like a query, found by the items that they share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.data import row_kernels
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.models.core import checks
from talerec.ranking.blocks import RunsBlock
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, Arrays, shrink_indptr
from talerec.runtime.jit import kernel, template
from talerec.runtime.threads import even, run_chunks

_BATCH = 64  # queries that a thread takes at a time
_ROOM = 2**22  # neighbours held at a time


class Decays(NamedTuple):
    """What makes a neighbour count less; infinity where nothing does."""

    query: float  # places from the end of the query to the shared item
    age: float  # microseconds from the neighbour's last row to the query's


class Index(NamedTuple):
    """Whose history has which item. An entry is one item of one user; users who came last come first."""

    ptr: Array  # where each user's entries begin
    holders: Array  # where each item's places in `entries` begin
    entries: Array  # by item
    user: Array  # of each entry
    last: Array  # each user's last moment


class Queries(NamedTuple):
    """Histories that ask: query q is the rows start[q]..stop[q]."""

    start: Array
    stop: Array
    item: Array  # -1 where it is unknown
    time: Array


class Rules(NamedTuple):
    """Who counts as a neighbour, and for how much."""

    longest: int  # last rows of a query that are used
    sample: int  # users with a shared item who are looked at, those who came last; 0: all
    places: float  # in which a shared item's part falls to 1/e
    age: float  # in which a neighbour's likeness falls to 1/e


class Neighbours(NamedTuple):
    """The first sizes[q] places of row q hold the neighbours of query q, the likest first."""

    entry: Array  # of the query's newest item that the neighbour has
    likeness: Array
    sizes: Array


class Met(NamedTuple):
    """Scratch: users who share an item with one query."""

    user: Array  # in the order they were met
    entry: Array  # by user: the first entry that was met; -1 for all others
    shared: Array  # by user: the sum of what shared items count; 0 for all others
    seen: Array  # by item: whether the query has it; all False between queries


def index(log: Log, fade: Array) -> Weights:
    """Every user's items, each at its last row, the users who came last first; and who has each item."""
    once = row_kernels.last_rows(log.ptr, log.item, len(log.items))
    log = log.keep(once)
    users = np.flatnonzero(np.diff(log.ptr))
    last = log.time[log.ptr[users + 1] - 1]
    newest = np.argsort(-last, kind="stable")
    users, last = users[newest], last[newest]
    count = log.ptr[users + 1] - log.ptr[users]
    ptr = np.concatenate([[0], np.cumsum(count)])
    item = log.item[np.arange(log.rows) + np.repeat(log.ptr[users] - ptr[:-1], count)]
    holders, entries = row_kernels.group_rows(item, len(log.items))
    histories = RunsBlock(items=len(log.items), indptr=shrink_indptr(ptr), indices=item, fade=fade)
    user = np.repeat(np.arange(len(count), dtype=np.int32), count)
    query_arrays = {"holders": holders, "entries": entries, "user": user, "last": last}
    return Weights(histories, query_arrays=query_arrays)


def check_arrays(weights: Weights, users: int) -> None:
    """Refuse arrays of an artifact that lead outside each other."""
    known, entries = weights.query_arrays, len(weights.blocks[0].indices)
    checks.bounds("holders", known["holders"], weights.items, entries)
    checks.inside("entries", known["entries"], 0, entries)
    checks.inside("user", known["user"], 0, users)
    sizes = (len(known["entries"]), len(known["user"]), len(known["last"]))
    checks.need(sizes == (entries, entries, users), "the index of neighbours does not fit them")


def neighbours(
    weights: Weights,
    histories: Histories,
    longest: int,
    nearest: int,
    sample: int,
    decays: Decays,
) -> Query:
    """For each history the entries (its newest item in each neighbour) and the likeness of the neighbour."""
    known = weights.query_arrays
    index = (
        weights.blocks[0].indptr, known["holders"], known["entries"], known["user"], known["last"]
    )  # fmt: skip
    rules = (longest, sample, *decays)
    start, stop, *rows = histories.start, histories.stop, histories.item, histories.time
    parts = [
        _part(index, (start[a:b], stop[a:b], *rows), rules, nearest)
        for a, b in even(len(histories), max(_BATCH, _ROOM // nearest))
    ]
    counts, entries, likeness = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Query(np.concatenate([[0], np.cumsum(counts)]), entries, likeness)


def _part(
    index: Arrays, queries: Arrays, rules: tuple[Any, ...], nearest: int
) -> tuple[Array, Array, Array]:
    """How many neighbours each query has, their entries and likenesses."""
    n = len(queries[0])
    entry, likeness = np.empty((n, nearest), np.int64), np.empty((n, nearest))
    sizes = np.zeros(n, np.int64)
    out = (entry, likeness, sizes)
    run_chunks(
        "neighbours",
        lambda a, b: nearest_histories(index, queries, rules, a, b, out),
        even(n, _BATCH),
    )
    there = np.arange(nearest) < sizes[:, None]
    return sizes, entry[there], likeness[there]


@template
def _meet_holders(index: Index, i: int, share: float, met: Met, found: int) -> int:
    """Add `share` to everyone who has item i; returns how many users have been met."""
    for x in range(index.holders[i], index.holders[i + 1]):
        u = index.user[index.entries[x]]
        if met.entry[u] < 0:
            met.entry[u] = index.entries[x]
            met.user[found] = u
            found += 1
        met.shared[u] += share
    return found


@template
def _meet(index: Index, queries: Queries, q: int, rules: Rules, met: Met) -> tuple[int, int]:
    """Meet everyone who has an item of query q; returns how many different items it has, and how many users were met."""
    size = found = 0
    stop = queries.stop[q]
    first = max(queries.start[q], stop - rules.longest)
    for r in range(stop - 1, first - 1, -1):
        i = queries.item[r]
        if i < 0 or met.seen[i]:
            continue
        met.seen[i] = True
        size += 1
        share = np.exp(-(stop - 1 - r) / rules.places)
        found = _meet_holders(index, i, share, met, found)
    for r in range(first, stop):
        if queries.item[r] >= 0:
            met.seen[queries.item[r]] = False
    return size, found


@template
def _likenesses(
    index: Index, users: Array, size: int, moment: int, age: float, shared: Array
) -> Array:
    """How like each of these users is to a query of `size` items that ends at `moment`."""
    out = np.empty(len(users))
    for x in range(len(users)):
        u = users[x]
        out[x] = shared[u] / np.sqrt(size * (index.ptr[u + 1] - index.ptr[u]))
        out[x] *= np.exp(-max(moment - index.last[u], 0) / age)
    return out


@template
def _write_likest(out: Neighbours, q: int, users: Array, likeness: Array, entry: Array) -> None:
    """Write the likest users, as many as there is room for; of equals the first is first."""
    kept = 0
    for x in np.argsort(-likeness, kind="mergesort")[: out.entry.shape[1]]:
        if likeness[x] > 0.0:
            out.entry[q, kept], out.likeness[q, kept] = entry[users[x]], likeness[x]
            kept += 1
    out.sizes[q] = kept


@template
def _nearest(index: Index, queries: Queries, rules: Rules, a: int, b: int, out: Neighbours) -> None:
    """Write the neighbours of queries a..b; the size of one that has none stays 0.

    Likeness: the sum of exp(-place / places) over the shared items, over the root of both lengths,
    times exp(-age of the neighbour / age). Of equals the one that came last is first.
    """
    users, items = len(index.ptr) - 1, len(index.holders) - 1
    met = Met(
        np.empty(users, np.int64), np.full(users, -1, np.int64), np.zeros(users),
        np.zeros(items, np.bool_),
    )  # fmt: skip
    for q in range(a, b):
        size, found = _meet(index, queries, q, rules, met)
        if found == 0:
            continue
        close = np.sort(met.user[:found])
        if 0 < rules.sample < found:
            close = close[: rules.sample]
        moment = queries.time[queries.stop[q] - 1]
        likeness = _likenesses(index, close, size, moment, rules.age, met.shared)
        _write_likest(out, q, close, likeness, met.entry)
        for x in range(found):
            u = met.user[x]
            met.shared[u], met.entry[u] = 0.0, -1


@kernel
def nearest_histories(
    index: Arrays, queries: Arrays, rules: tuple[Any, ...], a: int, b: int, out: Arrays
) -> None:
    """Write the neighbours of queries a..b: an Index, Queries, Rules and Neighbours, all as plain tuples.

    Numba recognises those 10 microseconds sooner than named ones, and one query alone takes 60.
    """
    _nearest(Index(*index), Queries(*queries), Rules(*rules), a, b, Neighbours(*out))
