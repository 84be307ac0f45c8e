"""Nearest histories: which users' histories are most like a query, found by the items that they share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import kernels
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.ranking.blocks import RunsBlock
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, Arrays, shrink_indptr
from talerec.runtime.jit import kernel
from talerec.runtime.threads import even, run_chunks

_BATCH = 64  # queries a thread takes at a time
_ROOM = 2**22  # neighbours held at a time


class Decays(NamedTuple):
    """What makes a neighbour count less; infinity where nothing does."""

    query: float  # places from the end of the query to the shared item
    age: float  # microseconds from the neighbour's last row to the query's


def index(log: Log, fade: Array) -> Weights:
    """Every user's items, each at its last row, the users who came last first; and who has each item."""
    once = kernels.last_rows(log.ptr, log.item, len(log.items))
    log = log.keep(once)
    users = np.flatnonzero(np.diff(log.ptr))
    last = log.time[log.ptr[users + 1] - 1]
    newest = np.argsort(-last, kind="stable")
    users, last = users[newest], last[newest]
    count = log.ptr[users + 1] - log.ptr[users]
    ptr = np.concatenate([[0], np.cumsum(count)])
    item = log.item[np.arange(log.rows) + np.repeat(log.ptr[users] - ptr[:-1], count)]
    holders, entries = kernels.group_rows(item, len(log.items))
    histories = RunsBlock(items=len(log.items), indptr=shrink_indptr(ptr), indices=item, fade=fade)
    user = np.repeat(np.arange(len(count), dtype=np.int32), count)
    query_arrays = {"holders": holders, "entries": entries, "user": user, "last": last}
    return Weights(histories, query_arrays=query_arrays)


def neighbours(
    weights: Weights,
    histories: Histories,
    longest: int,
    nearest: int,
    sample: int,
    decays: Decays,
) -> Query:
    """For each history the entries (its newest item in each neighbour) and the likeness of the neighbour."""
    query_arrays = weights.query_arrays
    found = (
        query_arrays["holders"],
        query_arrays["entries"],
        query_arrays["user"],
        query_arrays["last"],
    )
    known = (weights.blocks[0].indptr, *found)
    asked = (histories.start, histories.stop, histories.item, histories.time)
    parts = [
        _part(known, asked, weights.items, longest, nearest, sample, decays, *run)
        for run in even(len(histories), max(_BATCH, _ROOM // nearest))
    ]
    counts, entries, likeness = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Query(np.concatenate([[0], np.cumsum(counts)]), entries, likeness)


def _part(
    known: Arrays,
    asked: Arrays,
    items: int,
    longest: int,
    nearest: int,
    sample: int,
    decays: Decays,
    low: int,
    high: int,
) -> tuple[Array, Array, Array]:
    """Histories low..high: how many neighbours each has, their entries and likenesses."""
    start, stop, *rows = asked
    mine = (start[low:high], stop[low:high], *rows)
    room = (high - low, nearest)
    entry, weight, count = np.empty(room, np.int64), np.empty(room), np.zeros(room[0], np.int64)
    run_chunks(
        "neighbours",
        lambda a, b: nearest_histories(
            known, mine, items, longest, sample, *decays, a, b, entry, weight, count
        ),
        even(high - low, _BATCH),
    )
    there = np.arange(nearest) < count[:, None]
    return count, entry[there], weight[there]


@kernel
def nearest_histories(
    known: Arrays,
    asked: Arrays,
    items: int,
    longest: int,
    sample: int,
    places: float,
    age: float,
    a: int,
    b: int,
    out_entry: Array,
    out_weight: Array,
    out_count: Array,
) -> None:
    """Queries a..b: the likest histories, at most as many as there is room for.

    Likeness: the sum of exp(-place / places) over the shared items, over the root of both lengths,
    times exp(-age of the neighbour / age). Of equals the one that came last is first. With `sample`
    above 0 only so many of those that share an item are looked at: the ones that came last.
    """
    indptr, holders, entries, user, last = known
    start, stop, item, time = asked
    users, room = len(indptr) - 1, out_entry.shape[1]
    likeness, anchor = np.zeros(users), np.full(users, -1, np.int64)
    met = np.empty(users, np.int64)
    seen = np.zeros(items, np.bool_)
    for q in range(a, b):
        size = found = 0
        for r in range(stop[q] - 1, max(start[q], stop[q] - longest) - 1, -1):
            i = item[r]
            if i < 0 or seen[i]:
                continue
            seen[i] = True
            size += 1
            share = np.exp(-(stop[q] - 1 - r) / places)
            for x in range(holders[i], holders[i + 1]):
                u = user[entries[x]]
                if anchor[u] < 0:
                    anchor[u] = entries[x]
                    met[found] = u
                    found += 1
                likeness[u] += share
        for r in range(max(start[q], stop[q] - longest), stop[q]):
            if item[r] >= 0:
                seen[item[r]] = False
        close = np.sort(met[:found])
        if 0 < sample < found:
            close = close[:sample]
        gain = np.empty(len(close))
        for x in range(len(close)):
            u = close[x]
            gain[x] = likeness[u] / np.sqrt(size * (indptr[u + 1] - indptr[u]))
            gain[x] *= np.exp(-max(time[stop[q] - 1] - last[u], 0) / age)
        order = np.argsort(-gain, kind="mergesort")
        kept = 0
        for x in order[:room]:
            if gain[x] > 0.0:
                out_entry[q, kept], out_weight[q, kept] = anchor[close[x]], gain[x]
                kept += 1
        out_count[q] = kept
        for x in range(found):
            likeness[met[x]], anchor[met[x]] = 0.0, -1
