"""Division of a fit into tasks: ranges of items of about equal work. No Spark.

Items are numbered by popularity *rank*, 0 the most popular; their *position* is their number in the
vocabulary, as on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from talerec.runtime import Array, balanced_chunks
from talerec.spark.partitions import TaskLimits

_TARGET_COST = 1000  # fixed cost of counting a target, in units of one source


class TargetRange(NamedTuple):
    """A task's work: sum the pairs of rows whose target is one of the items lo..hi (ranks).

    A pair of rows of one user has a source and a target item. Summed are the rows of one group.
    """

    group: int  # number of a group of partitions of users, whose rows share files
    lo: int  # the first target item, by popularity rank
    hi: int  # after the last one


@dataclass(frozen=True, eq=False)
class WorkPlan:
    """The division of a fit's work into Spark tasks: ranges of items of about equal work.

    A range, also called block, is given by its edges: edges[b] to edges[b + 1] (excluded). Sums
    over pairs of rows are made for target items, then for owners (the rarer item of a pair owns
    it), both by popularity rank; weights are saved for source items, by vocabulary position.
    """

    n_rows: int  # of the log
    n_pairs: int  # of rows of one user, over all users
    limits: TaskLimits  # of one task
    n_cores: int  # tasks that run at the same time
    item_counts: Array  # rows of each item, by rank
    owners: Array  # edges of the ranges of owners
    targets: Array  # edges of the ranges of targets
    sources: Array  # edges of the ranges of sources

    @classmethod
    def build(cls, n_cores: int, item_counts: Array, n_pairs: int, limits: TaskLimits) -> WorkPlan:
        """Return the plan for a log with these rows per item and `n_pairs` pairs of rows.

        item_counts: by popularity rank. n_cores: tasks that run at the same time; limits: what one
        task may hold.
        """
        popularity = item_counts.astype(np.float64)
        owned = _bound_owned(popularity, n_pairs)
        n_tasks = _round_up_to_cores(owned.sum() / limits.pairs, n_cores)
        return cls(
            int(item_counts.sum()), n_pairs, limits, n_cores, item_counts,
            owners=balanced_edges(owned, n_tasks),
            targets=balanced_edges(_bound_sources(popularity, n_pairs) + _TARGET_COST, n_tasks),
            sources=balanced_edges(np.ones(len(item_counts)), n_tasks),
        )  # fmt: skip

    def split_targets(self, group_sizes: Sequence[int]) -> list[TargetRange]:
        """Return ranges of target items of about equal work, for each group of users' rows.

        group_sizes: the rows of each group of partitions of users; the rows of a group lie in the
        same files. Each range is the work of one task; a group gets its share of the cores.
        """
        total, ranges = max(sum(group_sizes), 1), []
        popularity = self.item_counts.astype(np.float64)
        n_cores = math.ceil(self.n_cores / len(group_sizes))
        for group, n_rows in enumerate(group_sizes):
            sources = _bound_sources(popularity, self.n_pairs * (n_rows / total))
            n_tasks = _round_up_to_cores(sources.sum() / 2 / self.limits.pairs, n_cores)
            work = popularity / popularity.sum() + sources / max(sources.sum(), 1.0)
            edges = pairwise(balanced_edges(work, n_tasks))
            ranges += [TargetRange(group, int(lo), int(hi)) for lo, hi in edges]
        return ranges


def _bound_owned(popularity: Array, n_pairs: float) -> Array:
    """Return an upper estimate of the pairs that each item owns, for items by popularity rank.

    popularity: rows of each item, most first. The rarer item of a pair owns it. `n_pairs` pairs of
    rows are shared out in proportion to the popularity of both items; an item has one pair with
    itself and with each more popular item.
    """
    expected = popularity * np.cumsum(popularity)
    n_possible = np.arange(1.0, len(popularity) + 1)
    bound: Array = np.minimum(expected * (n_pairs / expected.sum()), n_possible)
    return bound


def _bound_sources(popularity: Array, n_pairs: float) -> Array:
    """Return an upper estimate of each target item's distinct source items; items by rank.

    popularity: rows of each item. n_pairs: pairs of rows of a user, which are shared out in
    proportion to the popularity of the target, each in both directions; a target has at most all
    items as sources.
    """
    bound: Array = np.minimum(popularity * (2 * n_pairs / popularity.sum()), len(popularity))
    return bound


def _round_up_to_cores(n_tasks: float, n_cores: int) -> int:
    """Return `n_tasks` rounded up to a multiple of `n_cores`, at least one task per core."""
    return n_cores * max(math.ceil(n_tasks / n_cores), 1)


def balanced_edges(work: Array, n_blocks: int) -> Array:
    """Return the edges that cut items 0..n into at most `n_blocks` ranges of about equal work.

    work: of each item. Range b has the items edges[b] to edges[b + 1] (excluded).
    """
    ranges = balanced_chunks(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), n_blocks)
    return np.array([a for a, _ in ranges] + [len(work)])
