"""Tempo's blocks: what leads from item to item, seen items, and what was popular at each moment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from talerec.data.log import Log
from talerec.models._learning import appeal
from talerec.models._scoring import Numbers
from talerec.ranking.blocks import Block, DenseBlock, IdentityBlock, SparseBlock
from talerec.runtime.arrays import Array

#: The number of the block of what is popular, after the item-item weights and the items as things seen.
POPULAR = 2


def lift(log: Log, numbers: Numbers) -> Array:
    """The power of each item's popularity that the log chose."""
    return np.exp(float(numbers.lift[0]) * appeal(log.counts()))


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
