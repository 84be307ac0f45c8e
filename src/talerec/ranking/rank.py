"""Ranking, for recommending and for judging alike: one rule for ties, masks and missing scores.

A higher score stands first; of equal scores the item with the lower position. An item without a score, or hidden, has
no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from talerec.ranking.answers import answer_in_sums, answer_in_table
from talerec.ranking.ranks import Mask, Ranked, rank_in_sums
from talerec.ranking.reasons import strongest
from talerec.ranking.search import rank_in_table
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, readonly
from talerec.runtime.threads import even, run_chunks

_BATCH = 256  # queries a thread takes at a time
_NO_TARGETS = np.empty(0, np.int32)


class Answer(NamedTuple):
    """The first items of some histories and their scores, as plain values, with reasons.

    `counts` says how many items each history has. Item n owes its score above all to the items
    `sources[ends[n-1]:ends[n]]`, the one that gives it most first; `shares` says which part of its score each gives.
    """

    counts: list[int]
    items: list[int]
    scores: list[float]
    ends: list[int]
    sources: list[int]
    shares: list[float]

    @classmethod
    def joined(cls, answers: Iterable[Answer]) -> Answer:
        """Several answers as one."""
        made = cls([], [], [], [], [], [])
        for one in answers:
            made.ends.extend(len(made.sources) + end for end in one.ends)
            for column in ("counts", "items", "scores", "sources", "shares"):
                getattr(made, column).extend(getattr(one, column))
        return made


def judge(
    weights: Weights, query: Query, mask: Mask, k: int, targets: Array | None = None
) -> Ranked:
    """The first k items of every query, and the places of its target, in one pass over the scores."""
    asked = len(query)
    wanted = _NO_TARGETS if targets is None else targets.astype(np.int32, copy=False)
    out = Ranked(
        np.full((asked, k), -1, np.int32),
        np.full((asked, k), np.nan),
        np.zeros(asked, np.int64),
        np.zeros((0 if targets is None else asked, 2), np.int64),
    )
    parts = (weights.stack, query.rows(), mask, readonly(wanted))
    run = rank_in_sums if weights.has_sums else rank_in_table

    def work(a: int, b: int) -> None:
        run(*parts, weights.scratch(), a, b, out)

    if asked == 1:  # needs no parts, threads or bars
        work(0, 1)
    else:
        run_chunks("rank", work, even(asked, _BATCH))
    return out


def top(weights: Weights, query: Query, mask: Mask, k: int) -> tuple[Array, Array, Array]:
    """The first k items of every query: (items, scores), both queries x k, and how many of the k there are."""
    found = judge(weights, query, mask, k)
    return found.items, found.scores, found.counts


def answer(weights: Weights, query: Query, mask: Mask, k: int, most: int) -> Answer:
    """The first k items of every query, each with the `most` items whose sources give it most."""
    run = answer_in_sums if weights.has_sums else answer_in_table
    parts = (weights.stack, query.rows(), mask, weights.scratch())
    return Answer(*(column.tolist() for column in run(*parts, k, most)))


def answer_one(
    weights: Weights,
    query: Query,
    mask: Mask,
    k: int,
    most: int,
    items: Array,
    contributions: Callable[[Array], Array],
) -> Answer:
    """The answer to one query of a model that says itself what each of `items` (columns) gives to some items (rows)."""
    found, scores, counts = top(weights, query, mask, k)
    mine = slice(0, counts[0])
    return with_reasons(found[0, mine], scores[0, mine], most, items, contributions)


def with_reasons(
    first: Array,
    scores: Array,
    most: int,
    items: Array,
    contributions: Callable[[Array], Array],
) -> Answer:
    """One list as an answer, each item with the `most` of `items` (columns of contributions) that give it most."""
    ends, columns, shares = strongest(contributions(first), scores, most)
    made = (np.array([len(first)]), first, scores, ends, items[columns], shares)
    return Answer(*(column.tolist() for column in made))
