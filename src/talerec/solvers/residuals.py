"""How far old weights are from new equations: target by target, what one step would add to the worst of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template, unsigned
from talerec.runtime.threads import equal_work, run_chunks
from talerec.solvers.compressed import Compressed
from talerec.solvers.triangle import Half

_CHUNKS = 64  # of work, whatever the number of threads


class Changes(NamedTuple):
    """What changed in the equations, and the weights that solved the old ones. Rows of dG are by rank, the rest by item."""

    lower: Compressed  # dG below its diagonal
    rank: Array
    diagonal: Array  # of dG plus the change of the penalty, by rank
    dK: Compressed  # by target
    weights: Compressed  # by target
    step: Array  # 1 / (G_ii + penalty), by rank


def worst_steps(dG: Half, own: Array, dK: Compressed, weights: Compressed, step: Array) -> Array:
    """max over sources i of |dK_ij - (dG b_j)_i| step_i, over the largest weight of the target; infinite where it has none.

    Sources are those that a target can have: that have a weight, or that new rows lead from. `own` is the diagonal of
    dG plus the change of the penalty, `step` is 1 / (G_ii + penalty); dK and the weights are by target.
    """
    item = dG.item
    known = Changes(dG.lower, dG.rank, own[item], dK, weights, step[item])
    out = np.zeros(len(step))
    lines = np.diff(dG.lower.starts)[dG.rank] + 1
    work = sum(np.concatenate([[0], np.cumsum(lines[m.indices])])[m.starts] for m in (dK, weights))
    run_chunks(
        "changes",
        lambda a, b: _worst_steps(known, a, b, out),
        equal_work(work + np.arange(len(step) + 1), _CHUNKS),
    )
    return out


class _Scratch(NamedTuple):
    """By rank; zeros between targets, but for `sources`."""

    lacks: Array
    held: Array  # the target's weights
    seen: Array
    sources: Array


@template
def _list_sources(known: Changes, j: int, mine: _Scratch) -> int:
    """Write the sources of target j with their weights and what K gives them; returns how many there are."""
    count = 0
    for x in range(known.dK.starts[j], known.dK.starts[j + 1]):
        r = known.rank[known.dK.indices[x]]
        mine.lacks[r] = known.dK.values[x]
        mine.seen[r] = 1
        mine.sources[count] = r
        count += 1
    for y in range(known.weights.starts[j], known.weights.starts[j + 1]):
        r = known.rank[known.weights.indices[y]]
        mine.held[r] = known.weights.values[y]
        if not mine.seen[r]:
            mine.seen[r] = 1
            mine.sources[count] = r
            count += 1
    return count


@template
def _take_pairs(known: Changes, count: int, mine: _Scratch) -> None:
    """Take dG b from what the sources lack. Each pair stands in the row of the item with fewer entries."""
    lower = known.lower
    for c in range(count):
        r = mine.sources[c]
        weight, total = mine.held[r], known.diagonal[r] * mine.held[r]
        for x in unsigned(lower.starts[r], lower.starts[r + 1]):
            other = np.uint32(lower.indices[x])
            if mine.seen[other]:
                total += lower.values[x] * mine.held[other]
                mine.lacks[other] -= lower.values[x] * weight
        mine.lacks[r] -= total


@kernel
def _worst_steps(known: Changes, a: int, b: int, out: Array) -> None:
    n = len(known.rank)
    mine = _Scratch(np.zeros(n), np.zeros(n), np.zeros(n, np.uint8), np.empty(n, np.int32))
    for j in range(a, b):
        count = _list_sources(known, j, mine)
        _take_pairs(known, count, mine)
        worst = largest = 0.0
        for c in range(count):
            r = mine.sources[c]
            worst = max(worst, abs(mine.lacks[r]) * known.step[r])
            largest = max(largest, abs(mine.held[r]))
            mine.lacks[r], mine.held[r], mine.seen[r] = 0.0, 0.0, 0
        if worst > 0.0:
            out[j] = worst / largest if largest > 0.0 else np.inf
