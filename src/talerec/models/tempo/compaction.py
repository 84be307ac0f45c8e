"""Keep only the item-item weights that matter, where held-out queries lose nothing by it.

Dense weights of n items take 4 n^2 bytes. What a weight B_ij does to scores grows with B_ij^2 and
with how often item i is in histories: the weights with the largest products are kept, wherever they
are, 250 per target on average. On ML-1M they rank as well as all 3,416; the 250 of each target with
the largest absolute weights do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from talerec.models.core import HoldoutQueries
from talerec.models.tempo.holdout_fit import HoldoutFit
from talerec.models.tempo.learning import start_search
from talerec.models.tempo.query_params import QueryParams, popularity_scale
from talerec.ranking import Block, DenseBlock, make_block
from talerec.runtime import Array, sized_chunks, sparse

SOURCES = 250  # weights per target item, on average
FEWEST_ITEMS = 4 * SOURCES  # below, a sparse matrix is not much smaller than a dense one
_MAX_LOSS = 1.0  # standard errors that held-out queries may lose
_SAMPLE = 2**20  # weights of which the smallest kept is estimated
_ROWS = 256  # that are read at a time


def compact_weights(weights: Block, counts: Array, params: QueryParams | None) -> Block:
    """Return dense item-item weights as sparse ones: 250 sources per target item, on average.

    Other weights are returned as they are, and so are those of fewer than 1,000 items. counts:
    weighted rows of each item. params: query parameters, whose popularity exponent the weights will
    be multiplied with; None for the defaults.
    """
    if not isinstance(weights, DenseBlock) or weights.items < FEWEST_ITEMS:
        return weights
    values, n = weights.values, weights.items
    scale = np.ones(n) if params is None else popularity_scale(counts, params)
    source_factor, target_factor = counts.astype(np.float32), (scale**2).astype(np.float32)
    step = max(n * n // _SAMPLE, 1) | 1
    source, target = np.divmod(np.arange(0, n * n, step), n)
    sample = values[source, target] ** 2 * source_factor[source] * target_factor[target]
    n_above = round(len(sample) * SOURCES / n)
    threshold = np.partition(sample, -n_above)[-n_above]
    parts = []
    for a, b in sized_chunks(n, _ROWS):
        rows = values[a:b]
        effect = rows**2 * source_factor[a:b, None] * target_factor
        parts.append(sparse.csr_array(np.where(effect > threshold, rows, 0)))
    return make_block(sparse.vstack(parts, format="csr"))


def is_compact_as_good(
    fit: HoldoutFit, params: QueryParams, query_sets: Sequence[HoldoutQueries], target_mask: Array
) -> bool:
    """Return whether the largest weights (`compact_weights`) rank as well as all weights.

    They do if the DCG of held-out targets falls by less than one standard error, users being the
    units; not if weights cannot be compacted.

    fit: a model of the training rows. params: query parameters learned with it. query_sets:
    held-out queries, current and delayed. target_mask: a flag per item that is ranked.
    """
    compact = compact_weights(fit.item_weights, fit.counts, params)
    if compact is fit.item_weights:
        return False
    full, smaller = (
        start_search(each, params, query_sets, target_mask)
        for each in (fit, fit._replace(item_weights=compact))
    )
    return smaller.z_over(full) > -_MAX_LOSS
