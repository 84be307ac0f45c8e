"""How the work of a fit is cut into tasks of about equal size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.threads import equal_work
from talerec.spark.tasks import Span

_TARGET_COST = 1000  # what a target costs beside its sources, counted in sources


@dataclass(frozen=True, eq=False)
class Sizes:
    """Users in spans; owners of pairs, targets and sources in blocks of about equal work.

    Blocks are given by their edges: those of owners and targets by popularity rank, those of sources by position.
    """

    rows: int
    task_rows: int
    solve_bytes: int  # of G that a solving task may hold
    spans: list[Span]
    owners: Array
    targets: Array
    sources: Array

    @classmethod
    def of(
        cls,
        cores: int,
        rows_of: Array,
        pairs: int,
        cuts: Sequence[Array],
        task_rows: int,
        task_pairs: int,
        solve_bytes: int,
    ) -> Sizes:
        """Cut a log whose items have `rows_of` rows, by rank, and whose users have `pairs` pairs of rows in all.

        cuts: where the users of each part are cut, so that a span has about `task_pairs` pairs.
        """
        n, rows = len(rows_of), int(rows_of.sum())
        tasks = max(cores, math.ceil(pairs / task_pairs))
        spans = [
            Span(part, int(a), int(b)) for part, at in enumerate(cuts) for a, b in pairwise(at)
        ]
        popular = rows_of.astype(np.float64)
        shared = popular * np.cumsum(popular)  # the chance of a pair with a more popular item
        owned = np.minimum(shared * (pairs / shared.sum()), np.arange(1.0, n + 1) * len(spans))
        sources = np.minimum(popular * (2 * pairs / rows), n)
        return cls(
            rows,
            task_rows,
            solve_bytes,
            spans,
            edges(owned, tasks),
            edges(sources + _TARGET_COST, tasks),
            edges(np.ones(n), tasks),
        )


def edges(work: Array, blocks: int) -> Array:
    """Where 0..n is cut into blocks of about equal work."""
    ranges = equal_work(np.concatenate([[0.0], np.cumsum(work + 1e-9)]), blocks)
    return np.array([a for a, _ in ranges] + [len(work)])
