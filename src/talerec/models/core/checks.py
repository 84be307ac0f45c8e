"""Checks of loaded and third-party models: shapes, indices and numbers for kernels.

Kernels read arrays without bounds checks, so an index out of range could end the process; and a
file can match its hash and still hold what no model has. Everything used as an index or a bound is
checked on every load, and so is whether numbers are finite, except in arrays above 256 MB, whose
numbers are checked only with `verify`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec.data import FARTHEST, Log
from talerec.errors import TalerecError
from talerec.models.core.persistence import Fitted, UpdateState
from talerec.ranking import Block, DenseBlock, SequenceBlock, SparseBlock, Weights
from talerec.runtime import Array
from talerec.solvers import LowerTriangle

_LARGE = 2**28  # bytes: the numbers of larger arrays are checked only with `verify`
_ROWS = 2**16  # rows of the triangle checked at a time
_COUNTS = ("users", "items", "rows")
_TIMES = ("first_time", "last_time")


def check_fitted(fitted: Fitted, *, verify: bool = False) -> None:
    """Raise TalerecError where parts of a loaded model are inconsistent or not finite.

    Checked are item ids, manifest counts, weights and training histories. `verify` also checks the
    numbers of arrays above 256 MB, and what updates continue from (the update state).
    """
    n_items = len(fitted.items)
    _check_ids(fitted.items.ids, "item")
    _check_training(fitted.training, n_items)
    check_weights(fitted.weights, n_items, verify=verify)
    _check_counts("recent_counts", fitted.stored_recent_counts, n_items)
    if fitted.log is not None:
        _check_log(fitted.log)
    if fitted.update_state is not None and verify:  # not read for inference; `update` checks it too
        check_update_state(fitted.update_state, n_items)


def check_weights(weights: Weights, n_items: int, *, verify: bool = False) -> None:
    """Raise TalerecError where weights do not have the shape for `n_items`, or are not finite.

    Checked are the blocks (stacked matrices, source x item), the base scores per item, and the
    arrays that queries need. `verify` also checks the numbers of arrays above 256 MB.
    """
    for number, block in enumerate(weights.blocks):
        _check_block(block, f"block {number}", n_items, verify)
    _check_counts("base", weights.base, n_items)
    for name, array in weights.query_arrays.items():
        check_finite(name, array, verify)


def _check_counts(name: str, counts: Array | None, n_items: int) -> None:
    """Raise TalerecError unless there is one number per item, none infinite; None is accepted.

    counts: an array by item position, such as base scores; NaN is allowed. name: for messages.
    """
    if counts is not None:
        shape = counts.shape
        require(shape == (n_items,), f"{name} has the shape {shape}, not ({n_items},)")
        require(not np.isinf(counts).any(), f"{name} has a number that is not finite")


def check_item_sources(fitted: Fitted) -> None:
    """Raise TalerecError unless the first block of weights has one row per item.

    Blocks are stacked matrices of weights; the rows of the first one must be the history's items.
    """
    n_rows, n_items = fitted.weights.blocks[0].sources, len(fitted.items)
    require(n_rows == n_items, f"the weights have {n_rows} rows for {n_items} items")


def require(condition: Any, message: str) -> None:
    """Raise TalerecError with this message unless the condition holds."""
    if not condition:
        raise TalerecError(message)


def check_finite(name: str, array: Array, verify: bool) -> None:
    """Raise TalerecError for NaN or infinity in an array; `name` is for the message.

    Arrays above 256 MB are checked only with `verify`.
    """
    if array.dtype.kind == "f" and array.size and (verify or array.nbytes <= _LARGE):
        extremes = np.isfinite([array.min(), array.max()])  # a NaN anywhere makes both NaN
        require(extremes.all(), f"{name} has a number that is not finite")


def check_range(name: str, array: Array, low: int, high: int) -> None:
    """Raise TalerecError unless an array is 1-dimensional, of integers from low to high - 1.

    name: of the array, for the message. An empty array is accepted.
    """
    require(array.ndim == 1 and array.dtype.kind in "iu", f"{name} is not a list of whole numbers")
    if array.size:
        first, last = int(array.min()), int(array.max())
        limits = f"{low} to {high - 1} can be"
        require(low <= first and last < high, f"{name} goes from {first} to {last}; {limits}")


def check_indptr(name: str, indptr: Array, n_rows: int, end: int) -> None:
    """Raise TalerecError unless indptr has n_rows + 1 integers that rise from 0 to `end`.

    indptr: where each row of a compressed matrix begins. name: for messages.
    """
    is_shaped = indptr.shape == (n_rows + 1,) and indptr.dtype.kind in "iu"
    require(is_shaped, f"{name} has the shape {indptr.shape}")
    require(indptr[0] == 0 and indptr[-1] == end, f"{name} ends at {indptr[-1]}, not at {end}")
    require((indptr[1:] >= indptr[:-1]).all(), f"{name} falls")


def _check_ids(ids: pl.Series, kind: str) -> None:
    """Raise TalerecError unless ids are text or integers, unique, and at least one.

    `kind` ("item" or "user") is for the message.
    """
    is_id = ids.dtype.is_integer() or ids.dtype == pl.String
    require(is_id, f"ids of {kind}s are {ids.dtype}, not text or whole numbers")
    is_unique = not ids.null_count() and ids.is_unique().all()
    require(is_unique, f"an id of a {kind} is missing or twice")
    require(len(ids), f"there is no {kind}")


def _check_training(facts: dict[str, Any], n_items: int) -> None:
    """Raise TalerecError unless counts and times of the training log are integers in range.

    `facts` is the "training" entry of an artifact's manifest.
    """
    for name in (*_COUNTS, *_TIMES):
        value = facts.get(name)
        require(isinstance(value, int) and abs(value) <= FARTHEST, f"training.{name} is {value!r}")
    require(facts["items"] == n_items, f"training.items is {facts['items']}, not {n_items}")


def _check_block(block: Block, name: str, n_items: int, verify: bool) -> None:
    """Raise TalerecError if a block of weights has inconsistent shapes, indices or numbers.

    A block is some rows of the weights B (source x item) in one storage format: sparse (CSR, with
    the largest absolute weight of each row as its peak), dense, or sequences of items. source_item
    has the item that each row stands for, -1 for none. `name` is used in messages; `verify` also
    checks the numbers of arrays above 256 MB.
    """
    require(np.isfinite(block.weight), f"the weight of {name} is not finite")
    if isinstance(block, SparseBlock):
        check_indptr(f"indptr of {name}", block.indptr, max(block.sources, 0), len(block.indices))
        check_range(f"indices of {name}", block.indices, 0, n_items)
        require(block.values.shape == block.indices.shape, f"{name} has other values than indices")
        _check_values(f"values of {name}", block.values, np.float32, verify)
        if block.stored_peaks is not None:
            is_shaped = block.stored_peaks.shape == (block.sources,)
            require(is_shaped, f"{name} has other peaks than rows")
            _check_values(f"peaks of {name}", block.stored_peaks, np.float32, verify)
    elif isinstance(block, DenseBlock):
        shape = block.values.shape
        is_shaped = len(shape) == 2 and shape[1] == n_items
        require(is_shaped, f"weights of {name} have the shape {shape}")
        _check_values(f"weights of {name}", block.values, np.float32, verify)
    elif isinstance(block, SequenceBlock):
        check_indptr(f"indptr of {name}", block.indptr, max(block.sequences, 0), len(block.indices))
        check_range(f"indices of {name}", block.indices, 0, n_items)
        longest = int(np.diff(block.indptr).max(initial=0))
        is_long = block.decay.ndim == 1 and len(block.decay) >= longest
        require(is_long, f"fade of {name} is too short")
        check_finite(f"fade of {name}", block.decay, verify)
    if block.source_item is not None:
        require(len(block.source_item) == block.sources, f"{name} has other sources than it says")
        check_range(f"source_item of {name}", block.source_item, -1, n_items)


def _check_values(name: str, array: Array, dtype: type, verify: bool) -> None:
    """Raise TalerecError if an array has another dtype, or numbers that are not finite.

    name: for messages. Arrays above 256 MB are checked for finite numbers only with `verify`.
    """
    require(array.dtype == dtype, f"{name} are {array.dtype}, not {np.dtype(dtype)}")
    check_finite(name, array, verify)


def _check_log(log: Log) -> None:
    """Raise TalerecError if the training histories of an artifact are inconsistent.

    User u has rows ptr[u] to ptr[u + 1] - 1; item, time and trends (rows of the item around each
    row) have one entry per row.
    """
    _check_ids(log.users.ids, "user")
    check_indptr("ptr", log.ptr, len(log.users), len(log.item))
    check_range("item", log.item, 0, len(log.items))
    require(log.time.shape == log.item.shape, "the log has other times than items")
    check_range("time", log.time, -FARTHEST, FARTHEST + 1)
    if log.trends is not None:
        require(log.trends.shape == log.item.shape, "the log has other trends than items")
        check_range("trends", log.trends, 1, max(log.rows, 1) + 1)


def check_update_state(state: UpdateState, n_items: int) -> None:
    """Raise TalerecError if arrays of an update state are inconsistent with `n_items` items.

    The state is what an update continues from: the lower triangle of G = S'S, the number of entries
    and the share of reversed pairs of K = S'T (S: source items of the training examples, T:
    targets), and by how much each target's weights are off (its residual).
    """
    is_share = 0 <= state.reverse_share <= 1
    require(is_share and state.entries >= 0, "reverse_share or entries is out of range")
    if state.residual is not None:
        require(state.residual.shape == (n_items,), "residual has another length than items")
        require((state.residual >= 0).all(), "residual has a number below 0")
    if state.triangle is not None:
        _check_triangle(state.triangle, n_items)


def _check_triangle(triangle: LowerTriangle, n_items: int) -> None:
    """Raise TalerecError unless the lower triangle of G (symmetric, item x item) is valid.

    Rows are items ordered by `rank`; a row may hold columns of lower rank only. The diagonal is
    stored apart, and must not be negative.
    """
    indptr, indices, values = triangle.lower
    check_range("triangle_rank", triangle.rank, 0, n_items)
    is_once = (np.bincount(triangle.rank, minlength=n_items) == 1).all()
    is_order = len(triangle.rank) == n_items and is_once
    require(is_order, "triangle_rank is not an order of the items")
    check_indptr("triangle_indptr", indptr, n_items, len(indices))
    check_range("triangle_indices", indices, 0, n_items)
    require(values.shape == indices.shape, "the triangle has other values than indices")
    is_shaped = triangle.diagonal.shape == (n_items,)
    require(is_shaped, "triangle_diagonal has another length than items")
    for name, array in (("values", values), ("diagonal", triangle.diagonal)):
        require(array.dtype.kind == "f", f"triangle_{name} are {array.dtype}")
        check_finite(f"triangle_{name}", array, True)
    require((triangle.diagonal >= 0).all(), "triangle_diagonal has a number below 0")
    for a in range(0, n_items, _ROWS):
        b = min(a + _ROWS, n_items)
        row = np.repeat(np.arange(a, b, dtype=np.int32), np.diff(indptr[a : b + 1]))
        is_lower = (indices[indptr[a] : indptr[b]] < row).all()
        require(is_lower, "triangle_indices has a rank that is not below its row's")
