"""How far old weights are from new equations: target by target, what one step would add to the worst of them."""

from __future__ import annotations

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.threads import equal_work, run_chunks
from talerec.solvers.compressed import Compressed

_CHUNKS = 64  # of work, whatever the number of threads


def worst_steps(dG: Compressed, dK: Compressed, weights: Compressed, step: Array) -> Array:
    """max over sources i of |dK_ij - (dG b_j)_i| step_i, over the largest weight of the target; infinite where it has none.

    dG is by row (it is symmetric), dK and the weights by target; `step` is 1 / (G_ii + penalty).
    """
    out = np.zeros(len(step))
    lines = np.diff(dG.starts)
    each = np.concatenate([[0], np.cumsum(lines[weights.indices] + 1)])
    work = each[weights.starts] + dK.starts + np.arange(len(step) + 1)
    run_chunks(
        "changes",
        lambda a, b: _worst_steps(dG, dK, weights, step, a, b, out),
        equal_work(work, _CHUNKS),
    )
    return out


@kernel
def _worst_steps(
    dG: Compressed, dK: Compressed, weights: Compressed, step: Array, a: int, b: int, out: Array
) -> None:
    lacks, seen = np.zeros(len(step)), np.zeros(len(step), np.uint8)
    touched = np.empty(len(step), np.int64)
    for j in range(a, b):
        count = 0
        largest = 0.0
        for x in range(dK.starts[j], dK.starts[j + 1]):
            i = dK.indices[x]
            lacks[i] += dK.values[x]
            seen[i] = 1
            touched[count] = i
            count += 1
        for y in range(weights.starts[j], weights.starts[j + 1]):
            k, weight = weights.indices[y], weights.values[y]
            largest = max(largest, abs(weight))
            for z in range(dG.starts[k], dG.starts[k + 1]):
                i = dG.indices[z]
                if not seen[i]:
                    seen[i] = 1
                    touched[count] = i
                    count += 1
                lacks[i] -= dG.values[z] * weight
        worst = 0.0
        for t in range(count):
            i = touched[t]
            worst = max(worst, abs(lacks[i]) * step[i])
            lacks[i] = 0.0
            seen[i] = 0
        if worst > 0.0:
            out[j] = worst / largest if largest > 0.0 else np.inf
