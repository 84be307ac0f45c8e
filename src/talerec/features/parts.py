"""Family `parts`: score, rank and relative score of each model of the first stage."""

from __future__ import annotations

import numpy as np

from talerec.features.inputs import FeatureFamily, FeatureGroup, FeatureInputs, FeatureSources
from talerec.runtime import Array, kernel

_RANK_OFFSET = 10.0  # rank at which an entry of a list counts half as much as the first one
_PART_FEATURES = ("score", "rank", "ratio")
_REASON = "follows what the user had"


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of the parts (names of models), then that of their joint features."""
    groups = [
        FeatureGroup(f"the list of {part}", _REASON, [f"{part}_{name}" for name in _PART_FEATURES])
        for part in sources.parts
    ]
    return [*groups, FeatureGroup("agreement of the lists", _REASON, ["joined_rank", "n_lists"])]


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write score, rank and score over the first score of each part, then two joint features.

    A part is a first-stage model. Its first score is the highest of all items, or of unseen items
    if the candidate is not in the history; the ratio is NaN if that is not above 0. joined: sum of
    1 / (rank + 10) over parts; n_lists: parts that rank the candidate at all. See `FeatureFamily`
    for the arguments.
    """
    scores, ranks, tops = inputs.parts.scores, inputs.parts.ranks, inputs.parts.tops
    n_parts = len(scores)
    for q in range(a, b):
        for c in range(inputs.counts[q]):
            row = indptr[q] + c
            is_unseen = 1  # also the column of `tops`
            for r in range(inputs.start[q], inputs.stop[q]):
                if inputs.item[r] == inputs.candidates[q, c]:
                    is_unseen = 0
                    break
            joined, n_lists = 0.0, 0
            for p in range(n_parts):
                at, score, rank = column + 3 * p, scores[p, q, c], ranks[p, q, c]
                out[row, at], out[row, at + 1] = score, rank
                top = tops[p, q, is_unseen]
                out[row, at + 2] = score / top if top > 0 else np.nan
                if not np.isnan(rank):
                    joined += 1.0 / (rank + _RANK_OFFSET)
                    n_lists += 1
            out[row, column + 3 * n_parts] = joined
            out[row, column + 3 * n_parts + 1] = n_lists


PARTS = FeatureFamily("parts", "what models make of the history", _groups, _fill)
