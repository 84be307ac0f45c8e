"""Asking a fitted model, in positions: what recommending, judging and serving have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import polars as pl

from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.models.core.persistence import Fitted
from talerec.ranking import rank
from talerec.ranking.ranks import Mask, Ranked
from talerec.ranking.weights import Query
from talerec.runtime.arrays import Array
from talerec.runtime.threads import even

Ids = Sequence[Any] | pl.Series

#: Histories that are turned into queries at a time: memory does not grow with the number of users.
_BLOCK = 65_536


class Asked(Protocol):
    """A fitted model, as far as asking it goes."""

    @property
    def weighs_items(self) -> bool: ...

    @property
    def fitted(self) -> Fitted: ...

    def query(self, histories: Histories) -> Query: ...

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array: ...


def check_k(model: Asked, k: int) -> None:
    """Refuse a length of lists that the model cannot give."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise TalerecError(f"k is {k!r}; it takes a whole number from 1")
    if k > len(model.fitted.items):
        raise TalerecError(f"k is {k}, but the model knows {len(model.fitted.items)} items")


def top(
    model: Asked,
    histories: Histories,
    k: int,
    *,
    hide_seen: bool = False,
    allowed: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The first k of every history: item positions and scores, both histories x k, and how many of the k there are."""
    check_k(model, k)

    def first(part: Histories, a: int, b: int) -> Ranked:
        mask = Mask.make(part, hide_seen=hide_seen, allowed=allowed)
        return rank.judge(model.fitted.weights, model.query(part), mask, k)

    found = _ranked(histories, first, k)
    return found.items, found.scores, found.counts


def judge(
    model: Asked, histories: Histories, targets: Array, k: int = 0, *, hide_seen: bool = False
) -> Ranked:
    """The places of each history's target among all items, and its first k items, in one pass over the scores.

    Places count from 1, 0 for none, in two columns: with what was seen ranked like anything else, and with that
    hidden. `hide_seen` says which of the two the list follows.
    """

    def both(part: Histories, a: int, b: int) -> Ranked:
        mask = Mask.make(part, hide_seen=hide_seen)
        return rank.judge(model.fitted.weights, model.query(part), mask, k, targets[a:b])

    return _ranked(histories, both, k)


def places(model: Asked, histories: Histories, targets: Array) -> Array:
    """The two places of each history's target; see `judge`."""
    return judge(model, histories, targets).places


def _ranked(histories: Histories, work: Callable[[Histories, int, int], Ranked], k: int) -> Ranked:
    """Histories in blocks."""
    if 0 < len(histories) <= _BLOCK:
        return work(histories, 0, len(histories))
    empty = (np.empty((0, k), np.int32), np.empty((0, k)), np.empty(0, np.int64))
    parts = [Ranked(*empty, np.empty((0, 2), np.int64)), *_blocks(histories, work)]
    return Ranked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _blocks(
    histories: Histories, work: Callable[[Histories, int, int], Ranked]
) -> Iterator[Ranked]:
    for a, b in even(len(histories), _BLOCK):
        yield work(histories.slice(a, b), a, b)


def answer(
    model: Asked,
    histories: Histories,
    k: int,
    *,
    hide_seen: bool = False,
    allowed: Array | None = None,
    most: int = 3,
) -> rank.Answer:
    """The first k items of every history, each with the `most` items of the history that gave it most."""
    check_k(model, k)
    weights, query = model.fitted.weights, model.query(histories)
    mask = Mask.make(histories, hide_seen=hide_seen, allowed=allowed)
    if model.weighs_items:
        return rank.answer(weights, query, mask, k, most)

    def one(q: int) -> rank.Answer:
        x, history = query.one(q), histories.slice(q, q + 1)
        given = partial(model.contributions, x, history)
        return rank.answer_one(weights, x, mask.one(q), k, most, history.item, given)

    return rank.Answer.joined(map(one, range(len(histories))))


def reasons(
    model: Asked, histories: Histories, found: tuple[Array, Array, Array], most: int
) -> rank.Answer:
    """Lists that were chosen (as `top` gives them), each item with the `most` items of the history that gave it most."""
    query = model.query(histories)

    def one(q: int) -> rank.Answer:
        history, mine = histories.slice(q, q + 1), (q, slice(0, found[2][q]))
        given = partial(model.contributions, query.one(q), history)
        return rank.with_reasons(found[0][mine], found[1][mine], most, history.item, given)

    return rank.Answer.joined(map(one, range(len(histories))))


def last_rows(history: Histories, items: Array) -> list[int]:
    """The last row of each of these items in one history."""
    last = {item: row for row, item in enumerate(history.item.tolist())}
    return [last[item] for item in items.tolist()]
