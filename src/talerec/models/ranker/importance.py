"""What decides the order of candidates: shares of groups of features, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from talerec.features import FeatureGroup
from talerec.models.ranker.examples import Examples
from talerec.models.ranker.second_stage import SecondStage
from talerec.runtime import Array

_QUERIES, _CANDIDATES = 40, 25  # queries of each set by which shares are measured, and rows of each
_MIN_SHARE = 0.03  # smaller shares are summed up as "the rest"
_MOST = 7  # groups that a sentence names


def measure_shares(second: SecondStage, examples: Sequence[Examples]) -> Array:
    """Return how much each group of features decides of the order of candidates.

    The shares, one per group, add up to 1, or are all 0 if no group moves candidates apart. At
    least one query has candidates. A group's weight is the mean absolute deviation of its
    contributions from their mean over the candidates of the same query: what all candidates share
    orders nothing. examples: held-out queries with candidates, of which a few are used.
    """
    deviations = []
    for each in examples:
        queries = np.flatnonzero(np.diff(each.row_ptr))
        places = np.linspace(0, len(queries) - 1, min(_QUERIES, len(queries)))
        for query in queries[places.astype(np.int64)].tolist():
            first, last = each.row_ptr[query : query + 2].tolist()
            rows = np.linspace(first, last - 1, min(_CANDIDATES, last - first)).astype(np.int64)
            sums = second.sum_by_group(each.rows[rows])
            deviations.append(np.abs(sums - sums.mean(axis=0)))
    weights = np.concatenate(deviations).mean(axis=0)
    shares: Array = weights / max(weights.sum(), 1e-300)
    return shares


def describe_shares(kind: str, shares: Array, groups: list[FeatureGroup]) -> str:
    """Return a sentence on what decides the order of candidates of a kind of request.

    kind: "current" or "delayed". shares: of each group of features.
    """
    order = np.argsort(-shares, kind="stable")[:_MOST]
    named = [g for g in order.tolist() if shares[g] >= _MIN_SHARE]
    words = [f"{groups[g].subject} {100 * shares[g]:.0f} %" for g in named]
    if words:
        words[0] = f"{groups[named[0]].subject} decides {100 * shares[named[0]]:.0f} % of the order"
    rest = 1.0 - float(shares[named].sum())
    words += [f"all else {100 * rest:.0f} %"] if rest >= 0.005 else []
    return f"For {kind} requests, {', '.join(words)}."
