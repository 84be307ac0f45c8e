"""The gradients of LambdaMART: LightGBM's to the last bit, sooner if targets are few.

LightGBM looks at every pair of a query's first items and all others, and re-sorts all items in
each round. Only pairs with a target count, and the order changes little from round to round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.runtime import Array, kernel, listening, run_chunks, silent, sized_chunks, template

_TRUNCATION = 20  # of two items, one must be among so many best ones (lambdarank_truncation_level)
_QUERIES = 512  # that a thread takes at a time
_REGULAR = float(np.float32(0.01))  # what LightGBM adds to a distance of scores, as float32
_RANGE, _BINS = 25.0, 2.0**20  # LightGBM looks up sigmoids of -25 to 25 in so many bins
_STEPS = _BINS / (2 * _RANGE)  # bins per unit

#: LightGBM's parameters that the objective follows.
LAMBDARANK = {"lambdarank_truncation_level": _TRUNCATION, "lambdarank_norm": True, "sigmoid": 1.0}


class _Queries(NamedTuple):
    """Queries with their rows, as arrays for a kernel."""

    is_target: Array  # of each row
    row_ptr: Array  # query q has the rows row_ptr[q]..row_ptr[q + 1]
    order: Array  # of each query, its rows by their last scores, as numbers from 0; updated
    scale: Array  # of each query: 1 over the largest DCG
    discount: Array  # of each rank from 0


class LambdaRank:
    """LightGBM's objective lambdarank with labels 0 and 1, as a function that `train` accepts.

    Parameters
    ----------
    is_target : array
        A label per row, 1 for targets, rows query by query.
    sizes : array
        Rows of each query, at least 1.
    """

    def __init__(self, is_target: Array, sizes: Array) -> None:
        labels = is_target.astype(np.int8)
        row_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        order = (np.arange(len(labels)) - np.repeat(row_ptr[:-1], sizes)).astype(np.int32)
        discount = 1.0 / np.log2(2.0 + np.arange(max(int(sizes.max(initial=1)), _TRUNCATION)))
        n_targets = np.add.reduceat(labels, row_ptr[:-1], dtype=np.int64)
        ideal = np.cumsum(discount[:_TRUNCATION])[np.clip(n_targets, 1, _TRUNCATION) - 1]
        self._queries = _Queries(labels, row_ptr, order, 1.0 / ideal, discount)

    def __call__(self, scores: Array, _: Any) -> tuple[Array, Array]:
        """Return the gradient and the second derivative of each row (float32).

        scores: of each row, after the trees so far.
        """
        gradient, hessian = np.empty(len(scores), np.float32), np.empty(len(scores), np.float32)

        def work(a: int, b: int) -> None:
            _write_gradients(self._queries, scores, a, b, gradient, hessian)

        with listening(silent):  # a round is not a step of its own
            run_chunks("gradients", work, sized_chunks(len(self._queries.scale), _QUERIES))
        return gradient, hessian


@kernel
def _write_gradients(
    queries: _Queries, scores: Array, a: int, b: int, gradient: Array, hessian: Array
) -> None:
    """Write the derivatives of the rows of queries a to b - 1 to gradient and hessian.

    scores: of each row.
    """
    for q in range(a, b):
        low, high = queries.row_ptr[q], queries.row_ptr[q + 1]
        order, is_target = queries.order[low:high], queries.is_target[low:high]
        derivatives = gradient[low:high], hessian[low:high]
        _sort_rows(order, scores[low:high])
        _add_pairs(
            scores[low:high], is_target, queries.discount, queries.scale[q], order, *derivatives
        )


@template
def _sort_rows(order: Array, scores: Array) -> None:
    """Sort row numbers by falling score, then by number, in place; quick if nearly sorted."""
    for x in range(1, len(order)):
        row, score, at = order[x], scores[order[x]], x
        while at > 0 and (
            scores[order[at - 1]] < score
            or (scores[order[at - 1]] == score and order[at - 1] > row)
        ):
            order[at] = order[at - 1]
            at -= 1
        order[at] = row


@template
def _add_pairs(
    scores: Array, is_target: Array, discount: Array, scale: float, order: Array,
    gradient: Array, hessian: Array,
) -> None:  # fmt: skip
    """Write the derivatives of one query's rows: sums over pairs of a target and another row.

    A pair counts by how much NDCG changes if its rows change places, over the distance of their
    scores. order: the rows, best first. The sums are scaled by log2(1 + s) / s, s the sum of all.
    """
    n, total = len(order), 0.0
    for x in range(n):
        gradient[x], hessian[x] = 0.0, 0.0
    has_range = scores[order[0]] != scores[order[n - 1]]
    last = n - 1  # rank of the last target
    while last > 0 and is_target[order[last]] == 0:
        last -= 1
    for i in range(min(n - 1, _TRUNCATION)):
        first_is_target = is_target[order[i]] != 0
        for j in range(i + 1, n if first_is_target else last + 1):
            if (is_target[order[j]] != 0) == first_is_target:
                continue
            up, down = (order[i], order[j]) if first_is_target else (order[j], order[i])
            distance = scores[up] - scores[down]
            gain = abs(discount[i] - discount[j]) * scale
            if has_range:
                gain /= _REGULAR + abs(distance)
            share = _sigmoid(distance)
            second = share * (1.0 - share) * gain
            share *= -gain
            gradient[down] -= np.float32(share)
            hessian[down] += np.float32(second)
            gradient[up] += np.float32(share)
            hessian[up] += np.float32(second)
            total -= 2 * share
    if total > 0:
        factor = np.log2(1 + total) / total
        for x in range(n):
            gradient[x] = np.float32(gradient[x] * factor)
            hessian[x] = np.float32(hessian[x] * factor)


@template
def _sigmoid(distance: float) -> float:
    """Return 1 / (1 + exp(d)) for the lower bound d of the bin that a distance is in."""
    bin_number = 0.0
    if distance >= _RANGE:
        bin_number = _BINS - 1.0
    elif distance > -_RANGE:
        bin_number = np.floor((distance + _RANGE) * _STEPS)
    value: float = 1.0 / (1.0 + np.exp(bin_number / _STEPS - _RANGE))
    return value
