"""Weights of several models stacked into one, and taken apart again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from talerec.models.core import Fitted, Model
from talerec.ranking import Query, Weights
from talerec.runtime import Array


def stack_parts(parts: Sequence[Model | None], weights: Array, is_learned: bool) -> Weights:
    """Return the weights of a blend: the blocks (matrices) of its fitted parts, stacked.

    parts: in order, None for a part with weight 0. weights: the factor of each part's scores.
    is_learned: False if the log was too small to learn them. The factors are stored, and multiply a
    part's queries; base scores (what an item scores whatever the history) are multiplied and summed
    here. Arrays that a part's queries need get its number as prefix.
    """
    blocks: list[Any] = []
    arrays = {"part_weight": weights, "part_learned": np.array([is_learned])}
    n_blocks, base = np.zeros(len(parts), np.int64), None
    for number, part in enumerate(parts):
        if part is None:
            continue
        stored = part.fitted.weights
        blocks += stored.blocks
        n_blocks[number] = len(stored.blocks)
        arrays |= {f"part{number}_{name}": array for name, array in stored.query_arrays.items()}
        if stored.base is not None:
            arrays[f"part{number}_base"] = np.nan_to_num(stored.base)
            arrays[f"part{number}_has_base"] = ~np.isnan(stored.base)
            base = _add_base(base, stored.base * weights[number])
    return Weights(blocks, base, {**arrays, "part_blocks": n_blocks})


def _add_base(total: Array | None, base: Array) -> Array:
    """Return the sum of two arrays of base scores per item (scores without a history).

    NaN means no base score; the sum has one if either array has one. total: None for no scores yet.
    """
    if total is None:
        return base
    sums: Array = np.nan_to_num(total) + np.nan_to_num(base)
    return np.where(np.isnan(total) & np.isnan(base), np.nan, sums)


def unstack_parts(parts: list[Model], fitted: Fitted) -> list[tuple[float, Model]]:
    """Return (weight, fitted part) of the parts that `stack_parts` stacked in `fitted`.

    parts: all parts (models of the blend), not fitted. The fit of a part is the blend's, with the
    part's blocks and arrays (named "part0_...") only. Parts with weight 0 are left out.
    """
    stacked, first, unstacked = fitted.weights.query_arrays, 0, []
    for number, part in enumerate(parts):
        count, prefix = int(stacked["part_blocks"][number]), f"part{number}_"
        if not count:
            continue
        names = [name for name in stacked if name.startswith(prefix)]
        arrays = {name.removeprefix(prefix): stacked[name] for name in names}
        blocks = list(fitted.weights.blocks[first : first + count])
        weights = Weights(blocks, _take_base(arrays), arrays)
        part = copy.copy(part)
        part.set_fitted(replace(fitted, weights=weights))
        unstacked.append((float(stacked["part_weight"][number]), part))
        first += count
    return unstacked


def _take_base(arrays: dict[str, Array]) -> Array | None:
    """Remove a part's base scores from its arrays, and return them; None if it has none.

    Stored scores are finite; `has_base` flags the items that have one, the others get NaN.
    """
    base, has_base = arrays.pop("base", None), arrays.pop("has_base", None)
    if base is None or has_base is None:  # saved models of format 2 have no flags
        return base
    return np.where(has_base, base, np.nan)


def join_queries(queries: list[Query]) -> Query:
    """Join the queries of parts into one: per history the sources of part 0, then part 1, ...

    A query has, per history (ptr), sources (rows of the weights) and their weights. The sources are
    numbered through all parts already.
    """
    lengths = np.array([np.diff(x.ptr) for x in queries])  # part x history
    indptr = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
    source, weight = np.empty(indptr[-1], np.int64), np.empty(indptr[-1])
    start = indptr[:-1].copy()
    for x, length in zip(queries, lengths, strict=True):
        at = np.arange(len(x.source)) + np.repeat(start - x.ptr[:-1], length)
        source[at], weight[at] = x.source, x.weight
        start += length
    return Query(indptr, source, weight)
