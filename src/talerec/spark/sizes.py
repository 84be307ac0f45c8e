"""How the work of a fit is cut into tasks of about equal size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.threads import equal_work

_TARGET_COST = 1000  # what a target costs beside its sources, counted in sources


class Counts(NamedTuple):
    """A task: targets that are counted in the rows of a group."""

    group: int
    lo: int
    hi: int


@dataclass(frozen=True, eq=False)
class Sizes:
    """Owners of pairs, targets and sources in blocks of about equal work.

    Blocks are given by their edges: those of owners and targets by popularity rank, those of sources by position.
    """

    rows: int
    pairs: int
    task_rows: int
    task_pairs: int  # of items, that a task holds
    solve_bytes: int  # of G that a solving task may hold
    cores: int
    rows_of: Array  # of items, by rank
    owners: Array
    targets: Array
    sources: Array

    @classmethod
    def of(
        cls,
        cores: int,
        rows_of: Array,
        pairs: int,
        task_rows: int,
        task_pairs: int,
        solve_bytes: int,
    ) -> Sizes:
        """Cut a log whose items have `rows_of` rows, by rank, and whose users have `pairs` pairs of rows in all."""
        n, rows = len(rows_of), int(rows_of.sum())
        popular = rows_of.astype(np.float64)
        owned = _owned(popular, pairs)
        tasks = _rounds(owned.sum() / task_pairs, cores)
        sources = _sources(popular, pairs)
        return cls(
            rows,
            pairs,
            task_rows,
            task_pairs,
            solve_bytes,
            cores,
            rows_of,
            edges(owned, tasks),
            edges(sources + _TARGET_COST, tasks),
            edges(np.ones(n), tasks),
        )

    def counted(self, groups: Sequence[int]) -> list[Counts]:
        """Which targets tasks count in each group, of so many rows: about as many rows, and pairs of items, for each task."""
        total, found = max(sum(groups), 1), []
        popular = self.rows_of.astype(np.float64)
        cores = math.ceil(self.cores / len(groups))
        for group, rows in enumerate(groups):
            entries = _sources(popular, self.pairs * (rows / total))
            wanted = _rounds(entries.sum() / 2 / self.task_pairs, cores)
            work = popular / popular.sum() + entries / max(entries.sum(), 1.0)
            found += [Counts(group, int(a), int(b)) for a, b in pairwise(edges(work, wanted))]
        return found


def _owned(popular: Array, pairs: float) -> Array:
    """How many pairs of items each item owns, by rank, where items meet as their popularity says.

    It is a bound rather than a guess: as if no two rows were of the same pair, up to one pair with each item that comes before.
    """
    shared = popular * np.cumsum(popular)
    bound: Array = np.minimum(shared * (pairs / shared.sum()), np.arange(1.0, len(popular) + 1))
    return bound


def _sources(popular: Array, pairs: float) -> Array:
    """How many sources each item has as a target, bounded likewise."""
    bound: Array = np.minimum(popular * (2 * pairs / popular.sum()), len(popular))
    return bound


def _rounds(tasks: float, cores: int) -> int:
    """At least so many tasks, and as many for every core."""
    return cores * max(math.ceil(tasks / cores), 1)


def edges(work: Array, blocks: int) -> Array:
    """Where 0..n is cut into blocks of about equal work."""
    ranges = equal_work(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), blocks)
    return np.array([a for a, _ in ranges] + [len(work)])
