"""Audiences: the users who are most likely to take one item next.

Scores of two users cannot be compared: they grow with a history, and rankers score in other units
than linear models. What can be compared is where the item stands in each user's list. So users are
ordered by the item's rank in their list; among equal ranks, by how far the item is ahead of the
best other item, as a share of the list's score range. Neither changes if all scores of a user are
multiplied by a factor or shifted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Log
from talerec.errors import TalerecError
from talerec.models.core.filters import RecommendOptions
from talerec.models.core.inference import (
    RANGE_DEPTH,
    find_score_ranges,
    rank_targets,
    user_histories,
)
from talerec.models.core.scorer import Scorer, TopItems
from talerec.ranking import Ranked
from talerec.runtime import Array, listening, silent, sized_chunks, stage

_BLOCK = 4096  # users at a time: memory does not grow with the number of users
_NO_LEAD = -np.inf  # orders after every lead


class Audience(NamedTuple):
    """Users of a log, those most likely to take an item first."""

    users: Array  # positions in the log
    list_ranks: Array  # the item's rank in each user's list, from 1
    leads: Array  # see `rank_audience`; NaN beyond the first hundred of a list


def check_size(k: int) -> None:
    """Raise TalerecError unless k, a number of users, is a whole number from 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise TalerecError(f"`k` is {k!r}; it takes a whole number from 1", "k")


def rank_audience(
    model: Scorer, log: Log, users: Array, item: int, options: RecommendOptions,
    before_block: Callable[[], None] = lambda: None,
) -> Audience:  # fmt: skip
    """Return the users in whose lists an item stands highest, at most `options.k` of them.

    A user's list has all items that the model scores; users without a score for the item are left
    out. Ties of rank are ordered by lead, then by position. The lead is the item's score less that
    of the best other item, divided by the list's score range (its first score less the hundredth).
    Only the best users so far are in memory.

    Parameters
    ----------
    model : Scorer
        A fitted model.
    log : Log
        The histories, in the model's item positions.
    users : int array
        Positions of the users to choose from.
    item : int
        The position of the item.
    options : RecommendOptions
        `k`, `as_of` (the request time), and `hide_seen`: whether lists leave out items of the
        history, and so the audience leaves out users who have the item.
    before_block : function
        Called before each few thousand users; an exception that it raises ends the work.
    """
    check_size(options.k)
    request_time = options.request_time(model.fitted.unit)
    best = Audience(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    tick = stage("audience", float(len(users)))
    for a, b in sized_chunks(len(users), _BLOCK):
        before_block()
        histories = user_histories(log, users[a:b], request_time)
        with listening(silent):  # one progress bar for all blocks
            ranked = rank_targets(
                model, histories, np.full(b - a, item, np.int32),
                min(RANGE_DEPTH, len(model.fitted.items)), hide_seen=options.hide_seen,
            )  # fmt: skip
        ranks = ranked.ranks[:, int(options.hide_seen)]
        scored = np.flatnonzero(ranks > 0)
        block = Audience(users[a:b][scored], ranks[scored], _find_leads(ranked, ranks)[scored])
        best = _take_best(best, block, options.k)
        tick(b - a)
    return best


def audience_frame(log: Log, audience: Audience) -> pl.DataFrame:
    """Return an audience as a frame with columns user_id, list_rank, lead and rank (from 1).

    list_rank: of the item in the user's own list. lead: how far its score is above that of the
    second item, or below that of the first, over the range of the list's scores; null where the
    list does not reach it. rank: of the user in the audience.
    """
    leads = pl.Series(audience.leads, dtype=pl.Float64).fill_nan(None)
    return pl.DataFrame(
        {
            columns.USER: log.users.ids.gather(audience.users),
            columns.LIST_RANK: audience.list_ranks,
            columns.LEAD: leads,
            columns.RANK: np.arange(1, len(audience.users) + 1),
        }
    )


def _find_leads(ranked: Ranked, ranks: Array) -> Array:
    """Return the lead of an item in each list; NaN where it is not among the listed items.

    ranked: the first items of each list, with scores. ranks: the rank of the item in each list.
    """
    lists = TopItems(*ranked[:3])
    leads = np.full(len(ranks), np.nan)
    rows = np.flatnonzero((ranks > 0) & (ranks <= lists.counts))
    other = np.where(ranks[rows] == 1, np.minimum(1, lists.counts[rows] - 1), 0)
    ranges = find_score_ranges(lists)[rows]
    differences = lists.scores[rows, ranks[rows] - 1] - lists.scores[rows, other]
    leads[rows] = np.divide(differences, ranges, out=np.zeros(len(rows)), where=ranges > 0)
    return leads


def _take_best(best: Audience, block: Audience, k: int) -> Audience:
    """Return the first k users of two audiences; those of `best` come first among equals."""
    users, ranks, leads = (np.concatenate(parts) for parts in zip(best, block, strict=True))
    order = np.lexsort((-np.where(np.isnan(leads), _NO_LEAD, leads), ranks))[:k]
    return Audience(users[order], ranks[order], leads[order])
