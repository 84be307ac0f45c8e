"""Tempo's numbers, learned: questions are asked of a first fit, and the numbers change where the answers get better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from talerec.data.histories import Histories
from talerec.models.tempo.candidates import candidates, parts
from talerec.models.tempo.holdout import Questions
from talerec.models.tempo.log_statistics import octave
from talerec.models.tempo.popularity import LENGTHS, InTime, Memories, memories
from talerec.models.tempo.query import absences, classes, remaining
from talerec.models.tempo.query_params import KNOTS, OCTAVES, OFTEN, RECENCY, Numbers
from talerec.models.tempo.search import Parts, Scale
from talerec.ranking import places, rank
from talerec.ranking.blocks import Block, IdentityBlock, block_of
from talerec.ranking.ranks import Mask
from talerec.ranking.shares import GroupedQueries
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template

_SURE = 1.9  # standard errors that a change has to gain by, for all classes of askers together
_SURE_OF_SOME = 2.5  # and for some classes: there are more ways to be wrong
_ROUNDS = 2
_PLACES = 20  # of a list that count; half of them where half of the items are asked for, or seen ones may come again
_AGAIN = 3  # steps in a row with one number
_ROWS = 256  # of a history that the learner looks at

#: How many items each way of asking brings: the defaults, the last row above all, all rows alike, each memory alone.
_USUAL_LIST, _OTHER_LIST, _MEMORY_LIST = 40, 15, 10
_LAST_ROW, _ALL_ROWS = 1.0, 60.0  # recencies of the other ways
_SEEN_LIST = 16  # and of what was seen, where people repeat


@dataclass(frozen=True, eq=False)
class FirstFit:
    """What a first fit says: the weights that lead from item to item, the habits of its rows, and what was popular in them."""

    leads: Block
    repeat_rates: Array  # empty where people do not repeat
    joint: bool
    decay: float  # days
    floor: float
    max_history: int
    popular: Memories  # one of each length
    counts: Array  # rows of each item, by their worth
    time: tuple[int, int]  # of the first row, and of the last


def first_memories(rows: InTime, span: float) -> Memories:
    """What a first fit may choose from: a memory of each length."""
    return memories(rows, span, LENGTHS, share=False)


def learned(first: FirstFit, kinds: Sequence[Questions], wanted: Array) -> Numbers:
    """The numbers that questions of some kinds choose, from the defaults on; `wanted`: a flag per item, asked for or not."""
    asked = _Asked(first, wanted)
    away = np.concatenate([_away(one.histories) for one in kinds])
    edges = np.unique(np.quantile(away, (1 / 3, 2 / 3)))
    numbers = Numbers.usual(edges)
    known = [asked.parts(one, numbers) for one in kinds]
    repeats = len(first.repeat_rates) > 0
    bends = np.arange(asked.number) < len(KNOTS)
    length = _PLACES if wanted.all() and not repeats else _PLACES // 2
    scale = Scale(known, numbers.choice(first.repeat_rates), bends, repeats, length)
    for name, column, some, sure in _plan(len(numbers.recency), repeats):
        for _ in range(_AGAIN):
            tried = list(numbers.changes(name, column, some))
            taken = scale.take_best((one.choice(first.repeat_rates) for one in tried), sure)
            if taken is None:
                break
            numbers = tried[taken]
    return numbers


def _plan(classes: int, repeats: bool) -> Iterator[tuple[str, int | None, list[int], float]]:
    """Which number is looked at when, in which classes, and how sure a change of it must be."""
    everyone = list(range(classes))
    up_to_date, behind = everyone[: classes // 2], everyone[classes // 2 :]
    told: list[tuple[str, int | None]] = [("recency", None), ("lasting", None)]
    if repeats:
        told += [("again", None), ("fading", None), *(("often", m) for m in range(len(OFTEN)))]
    told += [("now", m) for m in range(len(LENGTHS))]
    for turn in range(_ROUNDS):
        for name, column in told:
            yield name, column, everyone, _SURE
        yield "lift", None, [0], _SURE
        for name, column in told if turn else ():
            for some in (up_to_date, behind):
                yield name, column, some, _SURE_OF_SOME


class _Asked:
    """A first fit, asked the questions that were held back from it."""

    def __init__(self, first: FirstFit, wanted: Array) -> None:
        self.first, self.wanted = first, wanted
        self.popular = first.popular
        moments = block_of(self.popular.shares)
        self.weights = Weights([first.leads, IdentityBlock(items=first.leads.items), moments])
        self.span = first.time
        self.own = OCTAVES + len(OFTEN) if len(first.repeat_rates) else 0
        self.number = len(KNOTS) + self.own + len(LENGTHS)

    def parts(self, asked: Questions, numbers: Numbers) -> Parts:
        """The questions, written down."""
        histories = asked.histories
        assert histories.now is not None
        groups = classes(numbers.edges, _away(histories), histories.now, *self.span)
        found = candidates(asked, list(self._lists(histories)), self.wanted)
        drawn = appeal(self.first.counts)
        return parts(self.weights, self._queries(histories), found, groups, drawn, self.number)

    def _places(self, histories: Histories) -> tuple[Array, Array, Array]:
        rows = histories.moments(joint=self.first.joint)
        return places.last_places(self.weights, histories, rows, min(_ROWS, self.first.max_history))

    def _lists(self, histories: Histories) -> Iterator[Array]:
        """Items that may come first, by different ways of asking."""
        n, ptr_item_place = self.weights.items, self._places(histories)
        unseen = Mask.make(histories, hide_seen=True, allowed=self.wanted.astype(np.uint8))
        for recency, length in (
            (RECENCY, _USUAL_LIST),
            (_LAST_ROW, _OTHER_LIST),
            (_ALL_ROWS, _OTHER_LIST),
        ):
            ptr, item, place = ptr_item_place
            query = Query(ptr, item, np.exp(-place / recency))
            yield rank.top(self.weights, query, unseen, min(length, n))[0]
        shares = self.popular.shares
        rows = (shares.indptr.astype(np.int64), shares.indices, shares.data)
        yield _largest(*rows, self.popular.latest(histories), _MEMORY_LIST)
        if self.own:
            yield _first_of(ptr_item_place[0], ptr_item_place[1], _SEEN_LIST)

    def _queries(self, histories: Histories) -> GroupedQueries:
        ptr, item, place = self._places(histories)
        snapshots = self.popular.latest(histories)
        popular = (
            self.popular.worth(histories, self.span[1])
            / remaining(_away(histories), self.first.decay, self.first.floor)[:, None]
        )
        return GroupedQueries(
            *_grouped(
                ptr, item, place, histories.start, histories.stop, histories.item,
                self.weights.items, self.own > 0, snapshots, popular, _ROWS,
            )
        )  # fmt: skip


def _away(histories: Histories) -> Array:
    assert histories.now is not None
    return absences(histories.last(), histories.now)


def appeal(counts: Array) -> Array:
    """The logarithm of how popular each item is, against the mean of those that have rows."""
    logs = np.log(np.maximum(counts, 1.0))
    there = counts > 0
    found: Array = np.where(there, logs - logs[there].mean() if there.any() else 0.0, 0.0)
    return found


def _first_of(ptr: Array, item: Array, most: int) -> Array:
    """The first items of each run as rows of a matrix, -1 where there are no more."""
    at = ptr[:-1, None] + np.arange(most)
    there = at < ptr[1:, None]
    return np.where(there, item[np.minimum(at, max(len(item) - 1, 0))] if len(item) else -1, -1)


@kernel
def _largest(bounds: Array, items: Array, values: Array, row: Array, most: int) -> Array:
    """The items with the largest values of some sparse rows, `most` of each column's row side by side; -1 for none."""
    found = np.full((len(row), row.shape[1] * most), -1, np.int32)
    best = np.empty(most)
    for q in range(len(row)):
        for m in range(row.shape[1]):
            low, mine, held = row[q, m], found[q, m * most : (m + 1) * most], 0
            for e in range(bounds[low] if low >= 0 else 0, bounds[low + 1] if low >= 0 else 0):
                if held == most and values[e] <= best[most - 1]:
                    continue
                at = min(held, most - 1)
                while at > 0 and best[at - 1] < values[e]:
                    best[at], mine[at] = best[at - 1], mine[at - 1]
                    at -= 1
                best[at], mine[at] = values[e], items[e]
                held = min(held + 1, most)
    return found


@template
def _knot(place: int) -> tuple[int, float]:
    """The last knot that is not beyond a place, and how far on the way to the next one the place is."""
    z = np.log2(1.0 + place)
    if z >= _LAST_KNOT:
        return _LAST_KNOT, 0.0
    return int(z), z - int(z)


_LAST_KNOT = len(KNOTS) - 1
_OCTAVES, _OFTEN_1, _OFTEN_2 = OCTAVES, OFTEN[0], OFTEN[1]


@kernel
def _grouped(
    ptr: Array,
    item: Array,
    place: Array,
    start: Array,
    stop: Array,
    rows: Array,
    n: int,
    repeats: bool,
    snapshots: Array,
    popular: Array,
    longest: int,
) -> tuple[Array, Array, Array, Array]:
    """The sources of each question with the parts that they belong to: knots, octaves, shares of the history, memories."""
    knots, memories = _LAST_KNOT + 1, snapshots.shape[1]
    room = 3 * len(item) + memories * len(start)
    for q in range(len(start) if repeats else 0):
        room += 2 * min(stop[q] - start[q], longest)
    starts, source = np.zeros(len(ptr), np.int64), np.empty(room, np.int64)
    share, group, end = np.empty(room), np.empty(room, np.int64), 0
    for q in range(len(start)):
        for r in range(ptr[q], ptr[q + 1]):
            knot, on = _knot(place[r])
            source[end], share[end], group[end] = item[r], 1.0 - on, knot
            end += 1
            if on > 0.0:
                source[end], share[end], group[end] = item[r], on, knot + 1
                end += 1
        for r in range(ptr[q], ptr[q + 1] if repeats else ptr[q]):
            source[end], share[end] = n + item[r], 1.0
            group[end] = knots + min(octave(place[r]), _OCTAVES - 1)
            end += 1
        low = max(start[q], stop[q] - longest) if repeats else stop[q]
        for memory in range(2):
            fade, whole, first = (_OFTEN_1 if memory == 0 else _OFTEN_2), 0.0, end
            for r in range(low, stop[q]):
                weight = np.exp((r + 1 - stop[q]) / fade)
                whole += weight
                if rows[r] >= 0:
                    source[end], share[end] = n + rows[r], weight
                    group[end] = knots + _OCTAVES + memory
                    end += 1
            for x in range(first, end):
                share[x] /= whole
        own = _OCTAVES + 2 if repeats else 0
        for m in range(memories):
            if snapshots[q, m] >= 0:
                source[end], share[end] = 2 * n + snapshots[q, m], popular[q, m]
                group[end] = knots + own + m
                end += 1
        starts[q + 1] = end
    return starts, source[:end], share[:end], group[:end]
