"""Tempo's queries, made: which class an asker is in, what each of its rows counts, and which snapshots."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data.histories import UNTIMED
from talerec.data.times import DAY
from talerec.models.tempo.log_statistics import NEVER, octave
from talerec.models.tempo.query_params import OFTEN, Numbers
from talerec.runtime.arrays import Array, readonly
from talerec.runtime.jit import kernel, template

_LEAST_LEFT = 0.01  # what is left of a history of any age, against what is popular now
_WELL_BEHIND = 0.01  # of the time that the rows span: the end of the rows is further back than that
_OFTEN = OFTEN


class Asked(NamedTuple):
    """Histories for kernels: their items with places (`places.last_places`), their rows, and when they are asked about.

    absence and now are in microseconds; left is what is left of the history after the absence (`remaining`).
    """

    ptr: Array
    item: Array
    place: Array
    start: Array
    stop: Array
    rows: Array
    absence: Array
    now: Array
    left: Array


class Moments(NamedTuple):
    """Snapshots of what was popular (`Memories`), the number of the first of them as a source, and the span of the rows."""

    moments: Array
    ptr: Array
    lifetime: Array
    source: int
    first: int
    end: int


class Rules(NamedTuple):
    """`Numbers` for kernels; `repeats` is what a repeat is worth, class x octave, and `often` is empty where it counts nothing."""

    edges: Array
    recency: Array
    lasting: Array
    repeats: Array
    often: Array
    now: Array


class Plan(NamedTuple):
    """By what queries are made: the numbers, where what is popular stands, the decay (days), and whether instants are joint."""

    numbers: Rules
    moments: Moments
    decay: float
    joint: bool


def rules(numbers: Numbers, rates: Array) -> Rules:
    """The numbers for kernels, given how often repeats came; no rates: they are ignored."""
    learnt = len(rates) > 0 and bool(rates[0] > NEVER)
    classes = len(numbers.recency)
    repeats = numbers.repeat_weights(rates) if learnt else np.tile(rates, (classes, 1))
    often = numbers.often if learnt and numbers.often.any() else np.empty((0, 0))
    found = Rules(numbers.edges, numbers.recency, numbers.lasting, repeats, often, numbers.now)
    return Rules(*map(readonly, found))  # as mapped ones are: kernels know one kind


def absences(last: Array, now: Array) -> Array:
    """How long each asker has been away, from its last row to now, in microseconds; 0 where that is not known."""
    away: Array = np.where(last > UNTIMED, np.maximum(now - last, 0), 0)
    return away


def remaining(absence: Array, decay: float, floor: float) -> Array:
    """What is left of a history after an absence (decay: days); what is popular counts the more, the less that is."""
    left: Array = np.maximum(np.exp(-absence / (decay * DAY)), max(floor, _LEAST_LEFT))
    return left


@template
def class_of(edges: Array, absence: float, behind: float, span: float) -> int:
    """The class of an asker: how long away, and whether the end of the rows, which span so much, is well behind."""
    found = 0
    while found < len(edges) and edges[found] <= absence:
        found += 1
    return found + (len(edges) + 1 if behind > _WELL_BEHIND * span else 0)


@kernel
def classes(edges: Array, absence: Array, now: Array, first: int, end: int) -> Array:
    """The class of each asker (`class_of`), of rows from `first` to `end`."""
    found = np.empty(len(now), np.int64)
    for q in range(len(now)):
        found[q] = class_of(edges, absence[q], now[q] - end, end - first)
    return found


@template
def _latest(moments: Array, low: int, high: int, now: int) -> int:
    """The last of moments low..high before now; -1 where there is none."""
    first = low
    while low < high:
        middle = (low + high) // 2
        if moments[middle] < now:
            low = middle + 1
        else:
            high = middle
    return low - 1 if low > first else -1


@template
def worth(lifetime: float, now: int, end: int) -> float:
    """What is left of a memory of rows up to `end`: a short one ages soon."""
    return 1.0 / (1.0 + max(now - end, 0) / lifetime)


@kernel
def made_queries(
    asked: Asked, numbers: Rules, known: Moments, n: int, longest: int, room: Array
) -> tuple[Array, Array, Array]:
    """x of every history: what is popular, what it has seen (where that has weights, by octaves), what it leads to.

    room: zeros, one row of all items for each memory of how often they come in a history; left as found.
    """
    again, memories = numbers.repeats.shape[1] > 0, len(known.ptr) - 1
    most = memories * len(asked.start) + (2 if again else 1) * len(asked.item)
    starts, source, x = np.zeros(len(asked.ptr), np.int64), np.empty(most, np.int64), np.empty(most)
    end = 0
    for q in range(len(asked.start)):
        behind = asked.now[q] - known.end
        g = class_of(numbers.edges, asked.absence[q], behind, known.end - known.first)
        g = min(g, len(numbers.recency) - 1)
        for m in range(memories):
            at = _latest(known.moments, known.ptr[m], known.ptr[m + 1], asked.now[q])
            if at >= 0 and numbers.now[g, m] > 0:
                fresh = worth(known.lifetime[m], asked.now[q], known.end)
                source[end], x[end] = known.source + at, numbers.now[g, m] * fresh / asked.left[q]
                end += 1
        first = end
        for r in range(asked.ptr[q], asked.ptr[q + 1] if again else asked.ptr[q]):
            source[end] = n + asked.item[r]
            x[end] = numbers.repeats[g, octave(asked.place[r])]
            end += 1
        if len(numbers.often):
            _add_shares(
                asked, q, numbers.often[g], n, longest, room, source[first:end], x[first:end]
            )
        for r in range(asked.ptr[q], asked.ptr[q + 1]):
            source[end] = asked.item[r]
            x[end] = max(np.exp(-asked.place[r] / numbers.recency[g]), numbers.lasting[g])
            end += 1
        starts[q + 1] = end
    return starts, source[:end], x[:end]


@template
def _add_shares(
    asked: Asked, q: int, often: Array, n: int, longest: int, room: Array, source: Array, x: Array
) -> None:
    """Add to x what each item's share in the rows of history q counts, newer rows counting more."""
    for memory in range(len(room)):
        fade, whole, total = _OFTEN[memory], 0.0, room[memory]
        for r in range(max(asked.start[q], asked.stop[q] - longest), asked.stop[q]):
            weight = np.exp((r + 1 - asked.stop[q]) / fade)
            whole += weight
            if asked.rows[r] >= 0:
                total[asked.rows[r]] += weight
        for s in range(len(source)):
            x[s] += often[memory] * total[source[s] - n] / whole
            total[source[s] - n] = 0.0
