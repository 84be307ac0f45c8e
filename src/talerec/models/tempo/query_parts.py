"""Queries and weights of tempo that grow by further blocks and items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from talerec.models.tempo.query import CONTENT_BLOCK
from talerec.ranking import Block, Query, Weights, make_block
from talerec.runtime import Array, sparse


def repeat_ranges(first: int, sizes: Array) -> Query:
    """Return queries with as many sources as `sizes` says, from `first` on, with weight 1."""
    ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    source = np.arange(ptr[-1]) - np.repeat(ptr[:-1], sizes) + first
    return Query(ptr, source, np.ones(len(source)))


def join_queries(queries: list[Query]) -> Query:
    """Return one query per history with the sources of several queries, in their order.

    No source may be in two of them.
    """
    sizes = np.array([np.diff(x.ptr) for x in queries])  # query x history
    ptr = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))]).astype(np.int64)
    source, weight = np.empty(ptr[-1], np.int64), np.empty(ptr[-1])
    start = ptr[:-1].copy()
    for x, size in zip(queries, sizes, strict=True):
        at = np.arange(len(x.source)) + np.repeat(start - x.ptr[:-1], size)
        source[at], weight[at] = x.source, x.weight
        start += size
    return Query(ptr, source, weight)


def pad_weights(weights: Weights, n_items: int) -> list[Block]:
    """Return tempo's three blocks for more items, which have no weights.

    The further items have the last positions.
    """
    items, repeats, snapshots = weights.blocks[:CONTENT_BLOCK]
    n_new = n_items - weights.items
    if not n_new:
        return [items, repeats, snapshots]
    matrix = items.matrix
    if isinstance(matrix, np.ndarray):
        wide: Any = np.pad(matrix, ((0, n_new), (0, n_new)))
    else:
        indptr = np.pad(matrix.indptr, (0, n_new), mode="edge")
        wide = sparse.csr_array((matrix.data, matrix.indices, indptr), shape=(n_items, n_items))
    shares = snapshots.matrix
    if isinstance(shares, np.ndarray):
        wide_shares: Any = np.pad(shares, ((0, 0), (0, n_new)))
    else:
        shape = (shares.shape[0], n_items)
        wide_shares = sparse.csr_array((shares.data, shares.indices, shares.indptr), shape=shape)
    return [
        make_block(wide),
        replace(repeats, items=n_items),
        make_block(wide_shares, source_item=np.full(shares.shape[0], -1, np.int32)),
    ]
