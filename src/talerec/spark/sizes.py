"""How the work of a fit is cut into tasks of about equal size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.threads import equal_work

_TARGET_COST = 1000  # what a target costs beside its sources, counted in sources


@dataclass(frozen=True, eq=False)
class Sizes:
    """Users in parts; owners of pairs, targets and sources in blocks of about equal work.

    Blocks are given by their edges: those of owners and targets by popularity rank, those of sources by position.
    """

    task_rows: int
    parts: int
    owners: Array
    targets: Array
    sources: Array

    @classmethod
    def of(cls, cores: int, rows_of: Array, pairs: int, task_rows: int, task_pairs: int) -> Sizes:
        """Cut a log whose items have `rows_of` rows, by rank, and whose users have `pairs` pairs of rows in all."""
        n, rows = len(rows_of), int(rows_of.sum())
        tasks = max(cores, math.ceil(pairs / task_pairs))
        parts = max(tasks, math.ceil(rows / task_rows))
        popular = rows_of.astype(np.float64)
        shared = popular * np.cumsum(popular)  # the chance of a pair with a more popular item
        owned = np.minimum(shared * (pairs / shared.sum()), np.arange(1.0, n + 1) * parts)
        sources = np.minimum(popular * (2 * pairs / rows), n)
        return cls(
            task_rows,
            parts,
            _edges(owned, tasks),
            _edges(sources + _TARGET_COST, tasks),
            _edges(np.ones(n), tasks),
        )


def _edges(work: Array, blocks: int) -> Array:
    ranges = equal_work(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), blocks)
    return np.array([a for a, _ in ranges] + [len(work)])
