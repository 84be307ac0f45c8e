"""Questions written down for the learner: the items that could come first, and what their scores are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from talerec.models.tempo.holdout import Questions
from talerec.models.tempo.search import Parts
from talerec.ranking.shares import GroupedQueries, summed_by_group
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.threads import even, run_chunks

_CHUNK = 256  # questions that a thread takes at a time


def candidates(questions: Questions, lists: Sequence[Array], wanted: Array) -> tuple[Array, ...]:
    """The target of each question, then the wanted items of its lists, each once: (items, how many, which were seen)."""
    histories = questions.histories
    joined = np.concatenate([questions.target[:, None], *lists], axis=1).astype(np.int32)
    rows = (histories.start, histories.stop, histories.item)
    found: tuple[Array, ...] = _merged(joined, *rows, wanted, np.zeros(len(wanted), np.int64))
    return found


@kernel
def _merged(
    lists: Array, start: Array, stop: Array, item: Array, wanted: Array, mark: Array
) -> tuple[Array, Array, Array]:
    """Each list without doubles and without -1; `mark`: a 0 for every item."""
    found = np.zeros(lists.shape, np.int32)
    seen, count = np.zeros(lists.shape, np.bool_), np.zeros(len(lists), np.int64)
    for q in range(len(lists)):
        in_list, in_history = 2 * q + 2, 2 * q + 1
        for r in range(start[q], stop[q]):
            if item[r] >= 0:
                mark[item[r]] = in_history
        for c in range(lists.shape[1]):
            i = lists[q, c]
            if i >= 0 and wanted[i] and mark[i] != in_list:
                found[q, count[q]], seen[q, count[q]] = i, mark[i] == in_history
                mark[i] = in_list
                count[q] += 1
    return found, count, seen


def parts(
    weights: Weights,
    queries: GroupedQueries,
    found: tuple[Array, ...],
    groups: Array,
    appeal: Array,
    number: int,
) -> Parts:
    """What the candidates' scores are made of: `number` parts, the groups of the queries' sources.

    groups: the class of each question. appeal: of every item (see `Parts`).
    """
    items, count, seen = found
    most = int(count.max(initial=1))
    items, seen = np.ascontiguousarray(items[:, :most]), np.ascontiguousarray(seen[:, :most])
    value = np.zeros((number, *items.shape), np.float32)

    def work(a: int, b: int) -> None:
        summed_by_group(weights.stack, queries, items, count, weights.items, a, b, value)

    run_chunks("weigh", work, even(len(items), _CHUNK))
    return Parts(value, count, seen, groups, appeal[items].astype(np.float32))
