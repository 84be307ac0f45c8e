"""What a loaded model is checked for: a file can match its hash and still hold what no model can have.

Kernels read arrays without looking at their bounds, so an index that leads outside would end the process. Everything that
is used as an index or a bound is checked on every load; that all numbers are finite too, but for arrays above 256 MB only with
`verify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec.data.log import Log
from talerec.data.times import FARTHEST
from talerec.errors import TalerecError
from talerec.models.core.persistence import Fitted
from talerec.models.core.update_state import Settled
from talerec.ranking.blocks import Block, DenseBlock, RunsBlock, SparseBlock
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array
from talerec.solvers.triangle import Half

_LARGE = 2**28  # bytes: the numbers of larger arrays are looked at only with `verify`
_ROWS = 2**16  # that are looked at together
_COUNTS = ("users", "items", "rows")
_MOMENTS = ("first_time", "last_time")


def check_fitted(fitted: Fitted, *, verify: bool = False) -> None:
    """Raise TalerecError where the parts of a loaded model do not fit together, or hold numbers that are not finite."""
    n = len(fitted.items)
    _check_ids(fitted.items.ids, "item")
    _check_training(fitted.training, n)
    check_weights(fitted.weights, n, verify=verify)
    _check_counts("lately", fitted.kept_recent_counts, n)
    if fitted.log is not None:
        _check_log(fitted.log)
    if fitted.settled is not None and verify:  # who only asks does not read it: `update` looks too
        check_settled(fitted.settled, n)


def check_weights(weights: Weights, items: int, *, verify: bool = False) -> None:
    """Raise TalerecError where weights are not those of so many items, or hold numbers that are not finite."""
    for number, block in enumerate(weights.blocks):
        _check_block(block, f"block {number}", items, verify)
    _check_counts("base", weights.base, items)
    for name, array in weights.query_arrays.items():
        finite(name, array, verify)


def _check_counts(name: str, counts: Array | None, items: int) -> None:
    if counts is not None:
        need(counts.shape == (items,), f"{name} has the shape {counts.shape}, not ({items},)")
        need(not np.isinf(counts).any(), f"{name} has a number that is not finite")


def check_item_sources(fitted: Fitted) -> None:
    """The sources of the first block are the items, as a query numbers them."""
    sources, n = fitted.weights.blocks[0].sources, len(fitted.items)
    need(sources == n, f"the weights have {sources} rows for {n} items")


def need(fact: Any, otherwise: str) -> None:
    """Raise TalerecError with this message unless it is so."""
    if not fact:
        raise TalerecError(otherwise)


def finite(name: str, array: Array, verify: bool) -> None:
    """Every number of the array is one: no NaN, no infinity."""
    if array.dtype.kind == "f" and array.size and (verify or array.nbytes <= _LARGE):
        found = np.isfinite([array.min(), array.max()])  # a NaN anywhere makes both NaN
        need(found.all(), f"{name} has a number that is not finite")


def inside(name: str, array: Array, low: int, high: int) -> None:
    """Whole numbers, one dimension, each from `low` to below `high`."""
    need(array.ndim == 1 and array.dtype.kind in "iu", f"{name} is not a list of whole numbers")
    if array.size:
        first, last = int(array.min()), int(array.max())
        need(
            low <= first and last < high,
            f"{name} goes from {first} to {last}; {low} to {high - 1} can be",
        )


def bounds(name: str, ptr: Array, rows: int, end: int) -> None:
    """Where each of some runs begins: from 0, never falling, to `end`."""
    need(ptr.shape == (rows + 1,) and ptr.dtype.kind in "iu", f"{name} has the shape {ptr.shape}")
    need(ptr[0] == 0 and ptr[-1] == end, f"{name} ends at {ptr[-1]}, not at {end}")
    need((ptr[1:] >= ptr[:-1]).all(), f"{name} falls")


def _check_ids(ids: pl.Series, kind: str) -> None:
    whole = ids.dtype.is_integer() or ids.dtype == pl.String
    need(whole, f"ids of {kind}s are {ids.dtype}, not text or whole numbers")
    need(not ids.null_count() and ids.is_unique().all(), f"an id of a {kind} is missing or twice")
    need(len(ids), f"there is no {kind}")


def _check_training(facts: dict[str, Any], items: int) -> None:
    for name in (*_COUNTS, *_MOMENTS):
        value = facts.get(name)
        need(isinstance(value, int) and abs(value) <= FARTHEST, f"training.{name} is {value!r}")
    need(facts["items"] == items, f"training.items is {facts['items']}, not {items}")


def _check_block(block: Block, name: str, items: int, verify: bool) -> None:
    need(np.isfinite(block.weight), f"the weight of {name} is not finite")
    if isinstance(block, SparseBlock):
        bounds(f"indptr of {name}", block.indptr, max(block.sources, 0), len(block.indices))
        inside(f"indices of {name}", block.indices, 0, items)
        need(block.values.shape == block.indices.shape, f"{name} has other values than indices")
        _numbers(f"values of {name}", block.values, np.float32, verify)
        if block.known_peaks is not None:
            need(block.known_peaks.shape == (block.sources,), f"{name} has other peaks than rows")
            _numbers(f"peaks of {name}", block.known_peaks, np.float32, verify)
    elif isinstance(block, DenseBlock):
        shape = block.values.shape
        need(len(shape) == 2 and shape[1] == items, f"weights of {name} have the shape {shape}")
        _numbers(f"weights of {name}", block.values, np.float32, verify)
    elif isinstance(block, RunsBlock):
        bounds(f"indptr of {name}", block.indptr, max(block.runs, 0), len(block.indices))
        inside(f"indices of {name}", block.indices, 0, items)
        longest = int(np.diff(block.indptr).max(initial=0))
        need(block.fade.ndim == 1 and len(block.fade) >= longest, f"fade of {name} is too short")
        finite(f"fade of {name}", block.fade, verify)
    if block.source_item is not None:
        need(len(block.source_item) == block.sources, f"{name} has other sources than it says")
        inside(f"source_item of {name}", block.source_item, -1, items)


def _numbers(name: str, array: Array, dtype: type, verify: bool) -> None:
    need(array.dtype == dtype, f"{name} are {array.dtype}, not {np.dtype(dtype)}")
    finite(name, array, verify)


def _check_log(log: Log) -> None:
    _check_ids(log.users.ids, "user")
    bounds("ptr", log.ptr, len(log.users), len(log.item))
    inside("item", log.item, 0, len(log.items))
    need(log.time.shape == log.item.shape, "the log has other times than items")
    inside("time", log.time, -FARTHEST, FARTHEST + 1)
    if log.trends is not None:
        need(log.trends.shape == log.item.shape, "the log has other trends than items")
        inside("trends", log.trends, 1, max(log.rows, 1) + 1)


def check_settled(settled: Settled, items: int) -> None:
    """What an update goes on from is what a fit of so many items settles."""
    need(0 <= settled.turned <= 1 and settled.entries >= 0, "settled numbers are out of range")
    if settled.lacking is not None:
        need(settled.lacking.shape == (items,), "lacking has another length than items")
        need((settled.lacking >= 0).all(), "lacking has a number below 0")
    if settled.half is not None:
        _check_half(settled.half, items)


def _check_half(half: Half, items: int) -> None:
    """Ranks are an order of the items, a row holds lower ranks than its own, and a diagonal is a sum of squares."""
    starts, indices, values = half.lower
    inside("half_rank", half.rank, 0, items)
    once = (np.bincount(half.rank, minlength=items) == 1).all()
    need(len(half.rank) == items and once, "half_rank is not an order of the items")
    bounds("half_starts", starts, items, len(indices))
    inside("half_indices", indices, 0, items)
    need(values.shape == indices.shape, "half has other values than indices")
    need(half.diagonal.shape == (items,), "half_diagonal has another length than items")
    for name, array in (("half_values", values), ("half_diagonal", half.diagonal)):
        need(array.dtype.kind == "f", f"{name} are {array.dtype}")
        finite(name, array, True)
    need((half.diagonal >= 0).all(), "half_diagonal has a number below 0")
    for a in range(0, items, _ROWS):
        b = min(a + _ROWS, items)
        row = np.repeat(np.arange(a, b, dtype=np.int32), np.diff(starts[a : b + 1]))
        lower = (indices[starts[a] : starts[b]] < row).all()
        need(lower, "half_indices has a rank that is not below its row's")
