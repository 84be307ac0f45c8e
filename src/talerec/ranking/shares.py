"""Scores of some items by what they are made of: the sources of a query in groups, each group's part summed up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.ranking.reasons import contributions
from talerec.ranking.scores import Stack
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel


class GroupedQueries(NamedTuple):
    """Queries whose sources are in groups: query q has source[ptr[q]:ptr[q+1]], their shares and their groups."""

    ptr: Array
    source: Array
    share: Array
    group: Array


@kernel
def summed_by_group(
    weights: Stack,
    queries: GroupedQueries,
    candidates: Array,
    counts: Array,
    items: int,
    a: int,
    b: int,
    out: Array,
) -> None:
    """Add to out[g, q, c] what the sources of group g give to candidates[q, c], for queries a..b.

    Query q has counts[q] candidates; base scores are left out.
    """
    for q in range(a, b):
        low, high = queries.ptr[q], queries.ptr[q + 1]
        targets = candidates[q, : counts[q]]
        given = contributions(
            weights.blocks, queries.source[low:high], queries.share[low:high], targets, items
        )
        for x in range(high - low):
            group = queries.group[low + x]
            for c in range(counts[q]):
                out[group, q, c] += np.float32(given[c, x])
