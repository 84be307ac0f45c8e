"""What content and newness add to tempo's scores: by row of the history, and in words."""

from __future__ import annotations

import numpy as np
import polars as pl

from talerec.data import Histories
from talerec.models.content import describe_shared
from talerec.models.tempo.content import ItemScores
from talerec.models.tempo.query import CONTENT_BLOCK
from talerec.ranking import FamilyShare, Query, Weights
from talerec.runtime import Array

#: By block of the weights.
_FAMILIES = ("history", "repeats", "popularity", "content", "newness", "categories")
_HISTORY, _REPEATS, _POPULARITY, _CONTENT, _NEWNESS, _CATEGORIES = range(len(_FAMILIES))
_REASONS = {
    _HISTORY: "taken after the user's items",
    _REPEATS: "taken before",
    _POPULARITY: "popular at the time",
    _CONTENT: "described like the user's items",
}


def block_of_sources(weights: Weights, x: Query) -> Array:
    """Return the number of the block of weights that each source of a query belongs to."""
    firsts = [weights.first_source(number) for number in range(len(weights.blocks))]
    blocks: Array = np.searchsorted(firsts, x.source, side="right") - 1
    return blocks


def content_contributions(
    scores: ItemScores, weights: Weights, history: Histories, targets: Array, max_history: int
) -> tuple[Array, Array]:
    """Return items of one history, and what each adds to targets' scores by content.

    targets: item positions. The second array is target x item; its sums over items are what the
    block of content adds to the scores of a request after the end of the training rows.
    """
    items, codes = scores.encode_items(weights, history, max_history)
    codes = np.column_stack([codes, -codes @ scores.mean])
    return items, (codes @ weights.blocks[CONTENT_BLOCK].matrix[:, targets]).T


def describe_date(scores: ItemScores, target: int) -> str:
    """Return the date by which an item is new, as text: "new: 2026-11-18"."""
    return f"new: {np.datetime64(int(scores.days[target]), 'D')}"


def describe_common(
    scores: ItemScores, table: pl.DataFrame, items: Array, target: int
) -> list[str]:
    """Return what each of some items has in common with a target: "same author; tags: horror"."""
    encoder = scores.encoder
    weights = dict(zip(encoder.terms.tolist(), encoder.idf.tolist(), strict=True))
    return describe_shared(table, encoder.types, weights, items, target)


def list_families(
    scores: ItemScores, weights: Weights, x: Query, target: int, links: str
) -> list[FamilyShare]:
    """Return what history, repeats, popularity, content and newness add to an item's score.

    x: the query of one history. links: what the item has in common with the history's items. Those
    that add nothing are left out.
    """
    parts = weights.contributions(x, np.array([target]))[0]
    added = np.bincount(block_of_sources(weights, x), parts, len(_FAMILIES))
    whole = max(float(np.abs(added).sum()), 1e-300)
    reasons = dict(_REASONS)
    if links:
        reasons[_CONTENT] = links
    if scores.categories is not None:
        reasons[_CATEGORIES] = f"liked {scores.categories.column.name}"
    if added[_NEWNESS]:
        reasons[_NEWNESS] = describe_date(scores, target)
    return [
        FamilyShare(_FAMILIES[n], reasons[n], value, value / whole)
        for n, value in enumerate(added.tolist())
        if value
    ]
