"""Item-item weights whose targets are scaled by a power of their popularity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from talerec.models.tempo.popularity import log_popularity
from talerec.models.tempo.query_params import QueryParams
from talerec.ranking import Block, DenseBlock, SparseBlock
from talerec.runtime import Array


def popularity_scale(counts: Array, params: QueryParams) -> Array:
    """Return popularity ** popularity_exponent of each item, a factor of its weights.

    counts: weighted rows of each item; popularity is relative to the geometric mean of the counts,
    and 1 for items without rows. params: the learned query parameters, with the exponent.
    """
    return np.exp(float(params.popularity_exponent[0]) * log_popularity(counts))


def scale_targets(item_weights: Block, factor: Array) -> Block:
    """Return a copy of item-item weights with each target's column times its factor.

    item_weights: a matrix in one storage format, source item x target item. factor: one number per
    item. If all are 1, the weights themselves are returned.
    """
    if (factor == 1).all():
        return item_weights
    factor = factor.astype(np.float32)
    if isinstance(item_weights, SparseBlock):
        values = item_weights.values * factor[item_weights.indices]
        return replace(item_weights, values=values, stored_peaks=None)
    assert isinstance(item_weights, DenseBlock)
    return replace(item_weights, values=item_weights.values * factor)
