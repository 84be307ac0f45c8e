"""Factors of items fitted by BPR: stochastic gradient steps on pairs of a next item and another one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data.log import Log
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template
from talerec.runtime.progress import stage

_SPREAD = 0.1  # standard deviation of the factors before the first step


class Factors(NamedTuple):
    """Float32, items x factors. A history gives mean(taste) and the last item's `from_last`; an item takes them."""

    taste: Array
    from_last: Array
    to_taste: Array
    to_last: Array


class Examples(NamedTuple):
    """Rows to learn from, in this order; each row's item should score above another one."""

    item: Array  # of every row of the log
    begin: Array  # the first row of every row's user
    order: Array  # rows to learn from
    other: Array  # for each of them the item to be ranked below


class Pace(NamedTuple):
    """How a step is made."""

    rows: int  # before a row that make up its history
    rate: float
    reg: float


class Pair(NamedTuple):
    """The items of one step: the next one, the other one, and the last one of the history."""

    item: int
    other: int
    last: int


def fit_factors(
    log: Log, *, factors: int, rows: int, epochs: int, rate: float, reg: float, seed: int
) -> Factors:
    """Factors after `epochs` passes over the log in an order drawn from `seed`, on one thread: identical every time."""
    rng = np.random.default_rng(seed)
    n = len(log.items)
    rows = min(rows, int(np.diff(log.ptr).max()))
    made = Factors(*rng.normal(0, _SPREAD, (4, n, factors)).astype(np.float32))
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    with_history = np.flatnonzero(np.arange(log.rows) > begin)
    tick = stage("factors", float(epochs))
    for epoch in range(epochs):
        order = rng.permutation(with_history)
        other = rng.integers(0, n, len(order), dtype=np.int32)
        pace = Pace(rows, rate * (1 - epoch / epochs), reg)
        bpr_steps(Examples(log.item, begin, order, other), pace, made)
        tick(1.0)
    return made


@template
def _mean_taste(item: Array, a: int, b: int, taste: Array, out: Array) -> None:
    """The mean of `taste` over the items of rows a..b."""
    out[:] = 0.0
    for r in range(a, b):
        for f in range(len(out)):
            out[f] += taste[item[r], f]
    for f in range(len(out)):
        out[f] /= b - a


@template
def _ahead(made: Factors, pair: Pair, mean: Array) -> np.float32:
    """How far the next item scores above the other one."""
    i, j, last = pair
    total = np.float32(0.0)
    for f in range(len(mean)):
        total += mean[f] * (made.to_taste[i, f] - made.to_taste[j, f])
        total += made.from_last[last, f] * (made.to_last[i, f] - made.to_last[j, f])
    return total


@template
def _move_pair(
    made: Factors, pair: Pair, mean: Array, pull: np.float32, shrink: np.float32
) -> None:
    """Move the pair's factors, and the last item's, uphill."""
    i, j, last = pair
    _, from_last, to_taste, to_last = made
    for f in range(len(mean)):
        to_taste[i, f] += pull * mean[f] - shrink * to_taste[i, f]
        to_taste[j, f] -= pull * mean[f] + shrink * to_taste[j, f]
        step = pull * (to_last[i, f] - to_last[j, f]) - shrink * from_last[last, f]
        to_last[i, f] += pull * from_last[last, f] - shrink * to_last[i, f]
        to_last[j, f] -= pull * from_last[last, f] + shrink * to_last[j, f]
        from_last[last, f] += step


@template
def _move_taste(taste: Array, items: Array, step: Array, shrink: np.float32, before: Array) -> None:
    """Move the taste of every item of a history by `step`; one that it has twice moves twice."""
    size = np.float32(len(items))
    for r in range(len(items)):
        before[r] = taste[items[r]]
    for r in range(len(items)):
        for f in range(len(step)):
            taste[items[r], f] += step[f] - shrink * before[r, f] / size


@kernel
def bpr_steps(examples: Examples, pace: Pace, made: Factors) -> None:
    """One step for each example: its item should score above another, after the rows before it."""
    item, d = examples.item, made.taste.shape[1]
    mean, back = np.empty(d, np.float32), np.empty(d, np.float32)
    before = np.empty((pace.rows, d), np.float32)
    rate = np.float32(pace.rate)
    shrink = rate * np.float32(pace.reg)
    for x in range(len(examples.order)):
        q = examples.order[x]
        pair = Pair(item[q], examples.other[x], item[q - 1])
        if pair.item == pair.other:
            continue
        a = max(examples.begin[q], q - pace.rows)
        _mean_taste(item, a, q, made.taste, mean)
        pull = rate / (np.float32(1.0) + np.exp(_ahead(made, pair, mean)))
        for f in range(d):
            apart = made.to_taste[pair.item, f] - made.to_taste[pair.other, f]
            back[f] = pull * apart / np.float32(q - a)
        _move_pair(made, pair, mean, pull, shrink)
        _move_taste(made.taste, item[a:q], back, shrink, before)


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
            _mean_taste(recent, 0, found, taste, mean)
            for f in range(d):
                out[q, f], out[q, d + f] = mean[f], from_last[recent[0], f]
    return out, known
