"""Factors of items fitted by BPR: stochastic gradient steps on pairs of a next item and another one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data.log import Log
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template
from talerec.runtime.progress import stage

_SPREAD = 0.1  # of factors before the first step


class Factors(NamedTuple):
    """Float32, items x factors. A history gives mean(taste) and the last item's `from_last`; an item takes them."""

    taste: Array
    from_last: Array
    to_taste: Array
    to_last: Array


def fit_factors(
    log: Log, *, factors: int, rows: int, epochs: int, rate: float, reg: float, seed: int
) -> Factors:
    """Factors after `epochs` passes over the log in an order drawn from `seed`; one thread, so always the same."""
    rng = np.random.default_rng(seed)
    n = len(log.items)
    rows = min(rows, int(np.diff(log.ptr).max()))
    start = rng.normal(0, _SPREAD, (4, n, factors)).astype(np.float32)
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    steps = np.flatnonzero(np.arange(log.rows) > begin)  # rows with one before them
    tick = stage("factors", float(epochs))
    for epoch in range(epochs):
        order = rng.permutation(steps)
        other = rng.integers(0, n, len(order), dtype=np.int32)
        slower = rate * (1 - epoch / epochs)
        bpr_steps(log.item, begin, order, other, rows, slower, reg, *start)
        tick(1.0)
    return Factors(*start)


@template
def _taste(item: Array, a: int, b: int, taste: Array, out: Array) -> None:
    """The mean of `taste` over rows a..b."""
    out[:] = 0.0
    for r in range(a, b):
        for f in range(len(out)):
            out[f] += taste[item[r], f]
    for f in range(len(out)):
        out[f] /= b - a


@kernel
def bpr_steps(
    item: Array,
    begin: Array,
    order: Array,
    other: Array,
    rows: int,
    rate: float,
    reg: float,
    taste: Array,
    from_last: Array,
    to_taste: Array,
    to_last: Array,
) -> None:
    """One step for each row in `order`: its item should score above another, after the `rows` rows before it."""
    d = taste.shape[1]
    mean = np.empty(d, np.float32)
    back = np.empty(d, np.float32)
    was = np.empty((rows, d), np.float32)
    rate_, reg_ = np.float32(rate), np.float32(reg)
    for x in range(len(order)):
        q, j = order[x], other[x]
        i, last = item[q], item[q - 1]
        if i == j:
            continue
        a = max(begin[q], q - rows)
        _taste(item, a, q, taste, mean)
        ahead = np.float32(0.0)
        for f in range(d):
            ahead += mean[f] * (to_taste[i, f] - to_taste[j, f])
            ahead += from_last[last, f] * (to_last[i, f] - to_last[j, f])
        pull = rate_ / (np.float32(1.0) + np.exp(ahead))
        for f in range(d):
            back[f] = pull * (to_taste[i, f] - to_taste[j, f]) / np.float32(q - a)
            to_taste[i, f] += pull * mean[f] - rate_ * reg_ * to_taste[i, f]
            to_taste[j, f] -= pull * mean[f] + rate_ * reg_ * to_taste[j, f]
            step = pull * (to_last[i, f] - to_last[j, f]) - rate_ * reg_ * from_last[last, f]
            to_last[i, f] += pull * from_last[last, f] - rate_ * reg_ * to_last[i, f]
            to_last[j, f] -= pull * from_last[last, f] + rate_ * reg_ * to_last[j, f]
            from_last[last, f] += step
        for r in range(a, q):
            was[r - a] = taste[item[r]]
        for r in range(a, q):
            for f in range(d):
                taste[item[r], f] += back[f] - rate_ * reg_ * was[r - a, f] / np.float32(q - a)


@kernel
def encode(
    start: Array, stop: Array, item: Array, rows: int, taste: Array, from_last: Array
) -> tuple[Array, Array]:
    """Histories as factors: the mean taste of the last `rows` known rows, and the last one's own; and whether there is one."""
    d = taste.shape[1]
    out = np.zeros((len(start), 2 * d))
    known = np.zeros(len(start), np.bool_)
    mean = np.empty(d)
    recent = np.empty(rows, np.int32)
    for q in range(len(start)):
        found = 0
        for r in range(stop[q] - 1, start[q] - 1, -1):
            if item[r] >= 0 and found < rows:
                recent[found] = item[r]
                found += 1
        if found > 0:
            known[q] = True
            _taste(recent, 0, found, taste, mean)
            out[q, :d] = mean
            out[q, d:] = from_last[recent[0]]
    return out, known
