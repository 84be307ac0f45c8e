"""Decision trees as arrays, and the leaves of many rows of features at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.runtime import Array, borrow, kernel, template, unsigned_range

_DEFAULT_LEFT = 2  # bit of a decision type; from bit 2 on: missing values
_ZERO_IS_MISSING, _NAN_IS_MISSING = 1, 2
_ZERO = 1e-35  # LightGBM's zero: numbers up to this size
_TOGETHER = 64  # rows that are compared with a node together

MAX_LEAVES = 32  # of a tree: bits of a mask


class TreeArrays(NamedTuple):
    """A sum of decision trees, as arrays over the nodes and leaves of all trees.

    Tree t has the nodes node_ptr[t]..node_ptr[t + 1] and the leaves leaf_ptr[t]..leaf_ptr[t + 1]. A
    child n >= 0 is the tree's node n, a child below 0 its leaf -1 - n.
    """

    node_ptr: Array
    leaf_ptr: Array
    feature: Array  # of each node: the feature that it compares
    threshold: Array  # at most this: to the left
    decision: Array  # bits: 2 for "missing values go left"; decision >> 2: what is missing
    left: Array
    right: Array
    parent: Array  # the node above each node, -1 for a root
    node_count: Array  # training rows in each node, and in each leaf
    leaf_value: Array
    leaf_count: Array
    leaf_parent: Array  # the node above each leaf, -1 if the tree is a single leaf


@template
def goes_left(value: float, threshold: float, decision: int) -> bool:
    """Return whether a row goes to a node's left child, by LightGBM's rules.

    value: of the node's feature. decision: bit 1 set: missing values go left; decision >> 2: 0 if
    no value counts as missing (NaN is 0 then), 1 if zeros do, 2 if NaN does.
    """
    missing = decision >> 2
    if np.isnan(value):
        if missing == _NAN_IS_MISSING:
            return bool(decision & _DEFAULT_LEFT)
        value = 0.0
    if missing == _ZERO_IS_MISSING and abs(value) <= _ZERO:
        return bool(decision & _DEFAULT_LEFT)
    return value <= threshold


class TreeMasks(NamedTuple):
    """Trees as masks of leaves, with which rows are compared node by node, many at a time.

    The leaves of a tree are numbered from left to right. Node n clears the bits of mask[n], the
    leaves below its left child, for the rows that go to the right; a row ends in the leaf of its
    lowest bit. Tree t has the nodes node_ptr[t]..node_ptr[t + 1]. value: tree x `_hash_bit` of the
    leaf's bit.
    """

    node_ptr: Array
    feature: Array
    threshold: Array  # float32, the largest that is not above the tree's: at most this to the left
    default: Array  # whether missing values go left
    zero_is_missing: Array  # whether zeros are missing, too
    mask: Array
    value: Array

    @classmethod
    def build(cls, trees: TreeArrays) -> TreeMasks:
        """Return the masks of trees, which have up to `MAX_LEAVES` leaves each."""
        with np.errstate(over="ignore"):
            threshold = trees.threshold.astype(np.float32)
        is_above = threshold > trees.threshold
        threshold[is_above] = np.nextafter(threshold[is_above], np.float32(-np.inf))
        missing = trees.decision >> 2
        default = np.where(missing > 0, (trees.decision & _DEFAULT_LEFT) > 0, trees.threshold >= 0)
        masks = cls(
            trees.node_ptr, trees.feature.astype(np.int64), threshold, default,
            missing == _ZERO_IS_MISSING, np.zeros(len(threshold), np.uint32),
            np.zeros((len(trees.leaf_ptr) - 1, MAX_LEAVES)),
        )  # fmt: skip
        _fill_masks(trees, masks)
        return masks

    def predict(self, rows: Array) -> Array:
        """Return the score of each row of features (float64): the sum of its leaves' values."""
        return _predict(self, rows)


@template
def _hash_bit(bits: Any) -> int:
    """Return a number below 32 that is different for each lowest bit of 32 bits (de Bruijn).

    bits: uint64, not 0.
    """
    lowest = bits & (~bits + np.uint64(1))
    number: int = ((lowest * np.uint64(0x077CB531)) & np.uint64(0xFFFFFFFF)) >> np.uint64(27)
    return number


@kernel
def _fill_masks(trees: TreeArrays, masks: TreeMasks) -> None:
    """Write the masks of all nodes, and the values of leaves by the hash of their bits.

    Children come after their parents, so that a pass from the last node up counts the leaves below
    each node, and one from the root down numbers them.
    """
    for t in range(len(trees.leaf_ptr) - 1):
        first, first_leaf = trees.node_ptr[t], trees.leaf_ptr[t]
        n_nodes = trees.node_ptr[t + 1] - first
        n_leaves, begin = np.ones(n_nodes, np.int64), np.zeros(n_nodes, np.int64)
        for node in range(n_nodes - 1, -1, -1):
            left, right = trees.left[first + node], trees.right[first + node]
            n_leaves[node] = n_leaves[left] if left >= 0 else 1
            n_leaves[node] += n_leaves[right] if right >= 0 else 1
        for node in range(n_nodes):
            left, right = trees.left[first + node], trees.right[first + node]
            n_left = n_leaves[left] if left >= 0 else 1
            below = ((np.uint64(1) << np.uint64(n_left)) - np.uint64(1)) << np.uint64(begin[node])
            masks.mask[first + node] = ~below
            for child, leaf in ((left, begin[node]), (right, begin[node] + n_left)):
                if child >= 0:
                    begin[child] = leaf
                else:
                    value = trees.leaf_value[first_leaf - 1 - child]
                    masks.value[t, _hash_bit(np.uint64(1) << np.uint64(leaf))] = value
        if n_nodes == 0:
            masks.value[t, _hash_bit(np.uint64(1))] = trees.leaf_value[first_leaf]


@kernel
def _predict(masks: TreeMasks, rows: Array) -> Array:
    """Return the sum of the leaf values of each row of features; trees are added in order.

    Rows are compared with a node together, in vector instructions; those beyond the last row are
    never read.
    """
    feature, threshold, mask = borrow(masks.feature), borrow(masks.threshold), borrow(masks.mask)
    default, zero_is_missing = borrow(masks.default), borrow(masks.zero_is_missing)
    value, every = borrow(masks.value), np.uint32(0xFFFFFFFF)
    out, n_features = np.zeros(len(rows)), rows.shape[1]
    columns, leaves = np.zeros((n_features, _TOGETHER), np.float32), np.empty(_TOGETHER, np.uint32)
    for start in range(0, len(rows), _TOGETHER):
        n = min(_TOGETHER, len(rows) - start)
        for r in range(n):
            for f in range(n_features):
                columns[f, r] = rows[start + r, f]
        for t in range(len(value)):
            leaves[:] = every
            for node in range(masks.node_ptr[t], masks.node_ptr[t + 1]):
                column, limit, keep = columns[feature[node]], threshold[node], mask[node]
                if zero_is_missing[node]:
                    for r in unsigned_range(0, _TOGETHER):
                        is_left = column[r] <= limit
                        if not abs(column[r]) > _ZERO:
                            is_left = default[node]
                        leaves[r] &= every if is_left else keep
                elif default[node]:
                    for r in unsigned_range(0, _TOGETHER):
                        leaves[r] &= keep if column[r] > limit else every
                else:
                    for r in unsigned_range(0, _TOGETHER):
                        leaves[r] &= every if column[r] <= limit else keep
            for r in unsigned_range(0, n):
                out[start + r] += value[t, _hash_bit(np.uint64(leaves[r]))]
    return out
