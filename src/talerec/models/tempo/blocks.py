"""Tempo's blocks: what leads from item to item, seen items, and what was popular at each moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from talerec.models.tempo.learning import appeal
from talerec.models.tempo.log_statistics import Habits
from talerec.models.tempo.popularity import LENGTHS, USUAL, Memories
from talerec.models.tempo.query_params import Numbers
from talerec.ranking.blocks import Block, DenseBlock, IdentityBlock, SparseBlock, block_of
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array

#: The number of the block of what is popular, after the item-item weights and the items as things seen.
POPULAR = 2


class Kept(NamedTuple):
    """What a fit settled, for rows that come later."""

    decay: float  # days
    joint: bool
    turned: float  # the share of K' in K
    numbers: Numbers | None


def assembled(
    leads: Block,
    habits: Habits,
    decay: float,
    numbers: Numbers | None,
    counts: Array,
    remembered: Callable[[list[float]], Memories],
) -> Weights:
    """All blocks of tempo's weights, and what queries are made by.

    decay: days. counts: rows of each item, by their worth. remembered: gives memories of what was popular, by their lengths.
    """
    kept = [USUAL]
    query_arrays = {
        "repeats": habits.repeats,
        "decay": np.array([decay]),
        "joint": np.array([habits.joint]),
    }
    if numbers is not None:
        leads, kept = times(leads, lift(counts, numbers)), numbers.kept_memories()
        numbers = replace(numbers, now=numbers.now[:, kept])
        query_arrays |= numbers.arrays()
    lengths = [LENGTHS[m] for m in kept]
    popular = remembered(lengths)
    query_arrays |= popular.arrays()
    query_arrays["usual"] = np.array([kept.index(USUAL)])
    query_arrays["lengths"] = np.array(lengths)
    blocks = [leads, *other_blocks(block_of(popular.shares))]
    return Weights(blocks, query_arrays=query_arrays)


def lift(counts: Array, numbers: Numbers) -> Array:
    """The power of each item's popularity that the log chose; `counts`: rows of each item."""
    return np.exp(float(numbers.lift[0]) * appeal(counts))


def times(leads: Block, factor: Array) -> Block:
    """What leads to each item, times a factor."""
    if (factor == 1).all():
        return leads
    factor = factor.astype(np.float32)
    if isinstance(leads, SparseBlock):
        return replace(leads, values=leads.values * factor[leads.indices], known_peaks=None)
    assert isinstance(leads, DenseBlock)
    return replace(leads, values=leads.values * factor)


def other_blocks(popular: Block) -> list[Block]:
    """Seen items, each a source of itself, and moments: what was popular at each stands for no item of a history."""
    nothing = np.full(popular.sources, -1, np.int32)
    return [IdentityBlock(items=popular.items), replace(popular, source_item=nothing)]
