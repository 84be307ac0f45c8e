"""Weights of models of ids for a larger vocabulary: further items have no scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from talerec.models.core import Model
from talerec.ranking import Block, DenseBlock, IdentityBlock, SequenceBlock, SparseBlock, Weights
from talerec.runtime import Array, sparse

_MAX_DENSE = 12_000  # items up to which dense weights stay dense
_ITEM_INDPTR = "holders"  # the array of models of neighbors that has bounds of each item's entries


def can_pad(model: Model) -> bool:
    """Return whether `pad_weights` knows all arrays of a model that have a row per item."""
    weights = model.fitted.weights
    sizes = {weights.items, weights.items + 1}
    others = (array for name, array in weights.query_arrays.items() if name != _ITEM_INDPTR)
    return all(not sizes & set(array.shape) or array.ndim == 0 for array in others)


def pad_parts(models: Sequence[Model], n_items: int) -> None:
    """Give fitted models weights for `n_items` items: further ones, without scores, come last."""
    for model in models:
        fitted = model.fitted
        if fitted.weights.items < n_items:
            model.set_fitted(replace(fitted, weights=pad_weights(fitted.weights, n_items)))


def pad_weights(weights: Weights, n_items: int) -> Weights:
    """Return weights for `n_items` items, of which further ones have no scores.

    The arrays that queries are made from stay, but for where each item's entries begin.
    """
    n_new = n_items - weights.items
    arrays = dict(weights.query_arrays)
    if _ITEM_INDPTR in arrays:
        arrays[_ITEM_INDPTR] = np.pad(arrays[_ITEM_INDPTR], (0, n_new), mode="edge")
    base = weights.base
    if base is not None:
        base = np.pad(base, (0, n_new), constant_values=np.nan)
    return Weights([_pad_block(block, n_items) for block in weights.blocks], base, arrays)


def _pad_block(block: Block, n_items: int) -> Block:
    """Return a block with columns for `n_items` items, and rows if its sources are items."""
    if isinstance(block, IdentityBlock | SequenceBlock):
        return replace(block, items=n_items)
    n_rows = block.sources
    if block.source_item is None and n_rows == block.items:
        n_rows = n_items
    if isinstance(block, DenseBlock) and n_items > _MAX_DENSE:
        block = _as_sparse(block)
    if isinstance(block, SparseBlock):
        indptr = np.pad(block.indptr, (0, n_rows - block.sources), mode="edge")
        return replace(block, items=n_items, indptr=indptr, stored_peaks=None)
    assert isinstance(block, DenseBlock)
    shape = (n_rows - block.sources, n_items - block.items)
    return replace(block, items=n_items, values=_pad_matrix(block.values, *shape))


def _as_sparse(block: DenseBlock) -> SparseBlock:
    """Return a dense block as a sparse one."""
    rows = sparse.csr_array(block.values)
    return SparseBlock(
        items=block.items, weight=block.weight, source_item=block.source_item, indptr=rows.indptr,
        indices=rows.indices.astype(np.int32, copy=False), values=rows.data,
    )  # fmt: skip


def _pad_matrix(values: Array, n_rows: int, n_columns: int) -> Array:
    """Return a matrix with rows and columns of 0 added at its end."""
    return np.pad(values, ((0, n_rows), (0, n_columns)))
