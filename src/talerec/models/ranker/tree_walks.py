"""Decision trees as arrays, and the walk of rows of features from their roots to leaves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import Array, kernel, template

_DEFAULT_LEFT = 2  # bit of a decision type; from bit 2 on: missing values
_ZERO_IS_MISSING, _NAN_IS_MISSING = 1, 2
_ZERO = 1e-35  # LightGBM's zero: numbers up to this size
_TOGETHER = 64  # rows that walk a tree together


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


class TreeWalker(NamedTuple):
    """Trees as one table of nodes, which rows of features walk in step.

    A leaf is a node that leads to itself. Tree t begins at node root[t], and depth[t] steps reach
    all of its leaves. Node n leads to child[2 n + 1] (left) or child[2 n] (right).
    """

    root: Array
    depth: Array
    feature: Array
    threshold: Array  # at most this: to the left
    default: Array  # whether missing values go left
    zero_is_missing: Array  # whether zeros are missing, too
    child: Array
    value: Array  # of a leaf; 0 for other nodes

    @classmethod
    def build(cls, trees: TreeArrays) -> TreeWalker:
        """Return the table of trees."""
        n_trees, n = len(trees.leaf_ptr) - 1, len(trees.feature) + len(trees.leaf_value)
        walker = cls(
            np.empty(n_trees, np.uint32), np.zeros(n_trees, np.int64), np.zeros(n, np.uint32),
            np.full(n, np.inf), np.ones(n, np.bool_), np.zeros(n, np.bool_),
            np.empty(2 * n, np.uint32), np.zeros(n),
        )  # fmt: skip
        _fill_walker(trees, walker)
        return walker

    def predict(self, rows: Array) -> Array:
        """Return the score of each row of features (float64): the sum of its leaves' values."""
        return _predict(self, rows)


@kernel
def _fill_walker(trees: TreeArrays, walker: TreeWalker) -> None:
    """Write the nodes and then the leaves of each tree to the table `walker`."""
    for t in range(len(trees.leaf_ptr) - 1):
        first, first_leaf = trees.node_ptr[t], trees.leaf_ptr[t]
        n_nodes, n_leaves = trees.node_ptr[t + 1] - first, trees.leaf_ptr[t + 1] - first_leaf
        root = first + first_leaf
        walker.root[t] = root
        for node in range(n_nodes):
            n, missing = root + node, trees.decision[first + node] >> 2
            walker.feature[n] = trees.feature[first + node]
            walker.threshold[n] = trees.threshold[first + node]
            walker.zero_is_missing[n] = missing == _ZERO_IS_MISSING
            if missing:
                walker.default[n] = (trees.decision[first + node] & _DEFAULT_LEFT) != 0
            else:  # NaN is 0
                walker.default[n] = trees.threshold[first + node] >= 0.0
            left, right = trees.left[first + node], trees.right[first + node]
            walker.child[2 * n + 1] = root + (left if left >= 0 else n_nodes - 1 - left)
            walker.child[2 * n] = root + (right if right >= 0 else n_nodes - 1 - right)
        for leaf in range(n_leaves):
            n, node, depth = root + n_nodes + leaf, trees.leaf_parent[first_leaf + leaf], 0
            walker.child[2 * n] = walker.child[2 * n + 1] = n
            walker.value[n] = trees.leaf_value[first_leaf + leaf]
            while node >= 0:
                depth, node = depth + 1, trees.parent[first + node]
            walker.depth[t] = max(walker.depth[t], depth)


@kernel
def _predict(walker: TreeWalker, rows: Array) -> Array:
    """Return the sum of the leaf values of each row of features; trees are added in order.

    Some rows take each step together: the processor works on several of them at a time. Indices are
    unsigned, which saves the check for indices that count from the end.
    """
    feature, threshold, value = walker.feature, walker.threshold, walker.value
    default, zero_is_missing, child = walker.default, walker.zero_is_missing, walker.child
    cells, n_features = rows.ravel(), np.uint32(rows.shape[1])
    out, state = np.zeros(len(rows)), np.empty(_TOGETHER, np.uint32)
    for start in range(0, len(rows), _TOGETHER):
        n = np.uint64(min(_TOGETHER, len(rows) - start))
        for t in range(len(walker.root)):
            root = walker.root[t]
            for r in range(n):
                state[r] = root
            for _ in range(walker.depth[t]):
                for r in range(n):
                    node = state[r]
                    number = np.float64(cells[np.uint64(start + r) * n_features + feature[node]])
                    is_zero = zero_is_missing[node] & (abs(number) <= _ZERO)
                    is_missing = (number != number) | is_zero
                    is_left = is_missing & default[node]
                    is_left |= (not is_missing) & (number <= threshold[node])
                    state[r] = child[np.uint32(2) * node + np.uint32(is_left)]
            for r in range(n):
                out[start + r] += value[state[r]]
    return out
