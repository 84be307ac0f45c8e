"""The one rule of ranking, for recommending and for judging alike.

Higher score first; equal scores by item position. An item without a score, or hidden, has no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from talerec.data.histories import Histories
from talerec.ranking import rank_kernels
from talerec.ranking.score_kernels import give_to_items, strongest
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.threads import even, run_chunks

_BATCH = 256  # queries a thread takes at a time


@dataclass(frozen=True, eq=False)
class Mask:
    """What must not be ranked: items where `allowed` is 0, and for query q item[start[q]:stop[q]].

    allowed: uint8, one per item; empty means all. Unknown items (-1) hide nothing.
    """

    allowed: Array
    start: Array
    stop: Array
    item: Array

    @classmethod
    def make(cls, histories: Histories, *, hide_seen: bool, allowed: Array | None) -> Mask:
        stop = histories.stop if hide_seen else histories.start
        every = np.empty(0, np.uint8)
        return cls(every if allowed is None else allowed, histories.start, stop, histories.item)

    def one(self, q: int) -> Mask:
        """What query q must not rank."""
        return Mask(self.allowed, self.start[q : q + 1], self.stop[q : q + 1], self.item)


class Answer(NamedTuple):
    """The first items of some histories and their scores, as plain values, with reasons.

    `counts` says how many items each history has. Item n owes its score above all to `sources[ends[n-1]:ends[n]]`,
    the one that gives it most first; `shares` says which part of its score each gives.
    """

    counts: list[int]
    items: list[int]
    scores: list[float]
    ends: list[int]
    sources: list[int]
    shares: list[float]

    @classmethod
    def joined(cls, answers: Iterable[Answer]) -> Answer:
        made = cls([], [], [], [], [], [])
        for one in answers:
            made.ends.extend(len(made.sources) + end for end in one.ends)
            for column in ("counts", "items", "scores", "sources", "shares"):
                getattr(made, column).extend(getattr(one, column))
        return made


def top(weights: Weights, query: Query, mask: Mask, k: int) -> tuple[Array, Array, Array]:
    """The first k items of every query: (items, scores), both queries x k, and how many of the k there are."""
    items = np.full((len(query), k), -1, np.int32)
    scores = np.full((len(query), k), np.nan)
    counts = np.zeros(len(query), np.int64)
    arrays, parts = weights.arrays, _parts(query, mask)

    def work(a: int, b: int) -> None:
        rest = (*parts, a, b, weights.scratch(), (items, scores, counts))
        if weights.fade is not None:
            rank_kernels.top_runs(arrays, *rest)
        elif weights.is_sparse:
            rank_kernels.top_sparse(arrays, weights.peaks, *rest)
        else:
            rank_kernels.top_dense(arrays, *rest)

    if len(query) == 1:  # needs no parts, threads or bars
        work(0, 1)
    else:
        run_chunks("rank", work, even(len(query), _BATCH))
    return items, scores, counts


def answer(weights: Weights, query: Query, mask: Mask, k: int, most: int) -> Answer:
    """The first k items of every query, each with the `most` sources that give it most."""
    if weights.is_sparse and weights.fade is None:  # in one call: a service asks thousands a second
        parts = (*_parts(query, mask), weights.scratch(), k, most)
        columns = rank_kernels.answer_sparse(weights.arrays, weights.peaks, *parts)
        return Answer(*(column.tolist() for column in columns))

    def one(q: int) -> Answer:
        x = query.one(q)

        def given(targets: Array) -> Array:
            parts = weights.parts(x, targets)
            give_to_items(parts, x.item, weights.items)
            return parts

        return answer_one(weights, x, mask.one(q), k, most, x.item, given)

    return Answer.joined(map(one, range(len(query))))


def answer_one(
    weights: Weights,
    query: Query,
    mask: Mask,
    k: int,
    most: int,
    sources: Array,
    parts: Callable[[Array], Array],
) -> Answer:
    """The same of one query, where what each of `sources` gives to some items (rows) is a model's own affair."""
    items, scores, counts = top(weights, query, mask, k)
    found = items[0, : counts[0]]
    ends, columns, shares = strongest(parts(found), scores[0], most)
    made = (counts, found, scores[0, : counts[0]], ends, sources[columns], shares)
    return Answer(*(column.tolist() for column in made))


def ranks(weights: Weights, query: Query, mask: Mask, targets: Array) -> Array:
    """The rank (from 1) of one target for every query under full ranking; 0 where it has none.

    Two columns: with the items of item[start[q]:stop[q]] ranked too, and with those hidden.
    """
    out = np.zeros((len(query), 2), np.int64)
    run = rank_kernels.place_sparse if weights.is_sparse else rank_kernels.place_dense
    if weights.fade is not None:
        run = rank_kernels.place_runs
    parts = _parts(query, mask)
    run_chunks(
        "rank",
        lambda a, b: run(weights.arrays, *parts, a, b, weights.scratch(), targets, out),
        even(len(query), _BATCH),
    )
    return out


def _parts(query: Query, mask: Mask) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    return (query.ptr, query.item, query.weight), (
        mask.allowed,
        mask.start,
        mask.stop,
        mask.item,
    )
