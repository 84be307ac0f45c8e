"""The first items of queries with the reasons for each, in one compiled call: a service asks thousands a second."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.ranking.ranks import Mask, QueryRows, Ranked, Scratch, rank_in_sums
from talerec.ranking.reasons import contributions, credit_items, source_items, strongest
from talerec.ranking.scores import Stack
from talerec.ranking.search import rank_in_table
from talerec.runtime.arrays import Array, Kernel
from talerec.runtime.jit import kernel, template


class Columns(NamedTuple):
    """The columns of `Answer`."""

    counts: Array
    items: Array
    scores: Array
    ends: Array
    sources: Array
    shares: Array


@kernel
def answer_in_sums(
    weights: Stack, query: QueryRows, mask: Mask, scratch: Scratch, k: int, most: int
) -> Columns:
    """The first k items of every query, each with the `most` items that gave it most, with one sum per item."""
    return _answer(rank_in_sums, weights, query, mask, scratch, k, most)


@kernel
def answer_in_table(
    weights: Stack, query: QueryRows, mask: Mask, scratch: Scratch, k: int, most: int
) -> Columns:
    """The first k items of every query, each with the `most` items that gave it most, with a table of those found."""
    return _answer(rank_in_table, weights, query, mask, scratch, k, most)


@template
def _answer(
    rank: Kernel,
    weights: Stack,
    query: QueryRows,
    mask: Mask,
    scratch: Scratch,
    k: int,
    most: int,
) -> Columns:
    asked, blocks, end, size = len(query.ptr) - 1, weights.blocks, 0, 0
    ranked = Ranked(
        np.empty((asked, k), np.int32),
        np.empty((asked, k)),
        np.zeros(asked, np.int64),
        np.empty((0, 2), np.int64),
    )
    rank(weights, query, mask, np.empty(0, np.int32), scratch, 0, asked, ranked)
    room = ranked.counts.sum()
    items, scores, ends = np.empty(room, np.int32), np.empty(room), np.empty(room, np.int64)
    causes, shares = np.empty(room * most, np.int64), np.empty(room * most)
    for q in range(asked):
        n, mine = ranked.counts[q], query.source[query.ptr[q] : query.ptr[q + 1]]
        share = query.share[query.ptr[q] : query.ptr[q + 1]]
        found, own = ranked.items[q, :n], ranked.scores[q, :n]
        parts = contributions(blocks, mine, share, found, len(scratch.seen))
        stand_for = source_items(blocks, mine)
        credit_items(parts, blocks, mine, stand_for)
        upto, columns, given = strongest(parts, own, most)
        for x in range(n):
            items[size + x], scores[size + x], ends[size + x] = found[x], own[x], upto[x] + end
        for c in range(len(columns)):
            causes[end + c], shares[end + c] = stand_for[columns[c]], given[c]
        size, end = size + n, end + len(columns)
    return Columns(ranked.counts, items, scores, ends, causes[:end], shares[:end])
