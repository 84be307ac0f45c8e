"""TreeSHAP: what each feature adds to the score that decision trees give a row.

A leaf is reached if the row follows all steps of its path. If the path has n different features, a
row follows those of some and not those of others; the 2^n cases have known contributions, which are
computed once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.models.ranker.tree_scores import TreeArrays, goes_left
from talerec.runtime import Array, borrow, kernel, template

_MAX_BITS = 10  # different features on a path up to which all cases are stored
_MAX_ENTRIES = 2**22  # numbers that are stored for all cases of all leaves


class LeafPaths(NamedTuple):
    """The paths from the roots of trees to their leaves, and contributions in all cases.

    Leaf l (through all trees) has the different features entry_ptr[l]..entry_ptr[l + 1], and the
    steps step_ptr[l]..step_ptr[l + 1]. In case s, bit i of which says whether a row follows the
    steps of feature i, feature i adds table[table_ptr[l] + s n + i].
    """

    entry_ptr: Array
    feature: Array  # of each entry: a different feature on the path
    ratio: Array  # share of the training rows that follow the entry's steps
    step_ptr: Array
    node: Array  # of each step: the node's number in its tree
    is_left: Array  # whether the path goes left there
    entry: Array  # the step's feature: its number among the different features of the path
    table_ptr: Array  # -1 for a leaf whose cases are not stored
    table: Array


class TreeExplainer(NamedTuple):
    """Trees, with what explanations of their scores need."""

    trees: TreeArrays
    paths: LeafPaths

    @classmethod
    def build(cls, trees: TreeArrays) -> TreeExplainer:
        """Return an explainer of trees."""
        n_leaves = len(trees.leaf_value)
        depth = int(_path_lengths(trees).sum())
        integers = (np.empty(depth, np.int64), np.empty(depth, np.bool_), np.empty(depth, np.int64))
        paths = LeafPaths(
            np.zeros(n_leaves + 1, np.int64), np.empty(depth, np.int64), np.empty(depth),
            np.zeros(n_leaves + 1, np.int64), *integers,
            np.full(n_leaves, -1, np.int64), np.empty(0),
        )  # fmt: skip
        size = _fill_paths(trees, paths)
        paths = paths._replace(table=np.empty(size))
        _fill_tables(trees.leaf_value, paths)
        return cls(trees, paths)

    def contributions(self, rows: Array) -> Array:
        """Return what each feature (column) adds to the score of each row (TreeSHAP, float64).

        With `Trees.expected`, the contributions of a row add up to its score.
        """
        return _contributions(self.trees, self.paths, rows)


@kernel
def _path_lengths(trees: TreeArrays) -> Array:
    """Return the number of steps from the root to each leaf."""
    lengths = np.zeros(len(trees.leaf_value), np.int64)
    for t in range(len(trees.leaf_ptr) - 1):
        for leaf in range(trees.leaf_ptr[t], trees.leaf_ptr[t + 1]):
            node = trees.leaf_parent[leaf]
            while node >= 0:
                lengths[leaf] += 1
                node = trees.parent[trees.node_ptr[t] + node]
    return lengths


@kernel
def _fill_paths(trees: TreeArrays, paths: LeafPaths) -> int:
    """Write the steps and the different features of all paths; return the size of all tables.

    Steps, and features by their first step, are in order from the leaf up.
    """
    step, end, size = 0, 0, 0
    for t in range(len(trees.leaf_ptr) - 1):
        first = trees.node_ptr[t]
        for leaf in range(trees.leaf_ptr[t], trees.leaf_ptr[t + 1]):
            begin, child = end, -1 - (leaf - trees.leaf_ptr[t])
            count, node = trees.leaf_count[leaf], trees.leaf_parent[leaf]
            while node >= 0:
                at = first + node
                feature, x = trees.feature[at], begin
                while x < end and paths.feature[x] != feature:
                    x += 1
                if x == end:
                    paths.feature[x], paths.ratio[x] = feature, 1.0
                    end += 1
                paths.ratio[x] *= count / trees.node_count[at]
                paths.node[step], paths.entry[step] = node, x - begin
                paths.is_left[step] = trees.left[at] == child
                step += 1
                count, child, node = trees.node_count[at], node, trees.parent[at]
            paths.entry_ptr[leaf + 1], paths.step_ptr[leaf + 1] = end, step
            n = end - begin
            if 0 < n <= _MAX_BITS and size + (n << n) <= _MAX_ENTRIES:
                paths.table_ptr[leaf] = size
                size += n << n
    return size


@kernel
def _fill_tables(leaf_value: Array, paths: LeafPaths) -> None:
    """Write the SHAP values of leaves' features for each pattern, if a leaf has a table.

    A pattern is a bit mask: which of the n features on the leaf's path have conditions that a row
    meets. A table has 2^n x n numbers (as in Fast TreeSHAP v2).
    """
    is_met, poly = np.empty(_MAX_BITS), np.empty(_MAX_BITS + 1)
    for leaf in range(len(leaf_value)):
        low, high = paths.entry_ptr[leaf], paths.entry_ptr[leaf + 1]
        n, start = high - low, paths.table_ptr[leaf]
        if start < 0:
            continue
        for pattern in range(1 << n):
            for i in range(n):
                is_met[i] = 1.0 if pattern >> i & 1 else 0.0
            out = paths.table[start + pattern * n : start + (pattern + 1) * n]
            _write_contributions(leaf_value[leaf], paths.ratio[low:high], is_met, n, poly, out)


@kernel
def _contributions(trees: TreeArrays, paths: LeafPaths, rows: Array) -> Array:
    """Return the Shapley values of features (rows x features), by paths to leaves."""
    feature, entry_ptr, step_ptr = borrow(paths.feature), borrow(paths.entry_ptr), paths.step_ptr
    step_node, step_left, entry = borrow(paths.node), borrow(paths.is_left), borrow(paths.entry)
    table, table_ptr = borrow(paths.table), borrow(paths.table_ptr)
    node_feature, threshold, decision = trees.feature, trees.threshold, trees.decision
    out = np.zeros(rows.shape)
    n_features = rows.shape[1]  # as many different ones can be on a path
    follows, poly, parts = np.empty(n_features), np.empty(n_features + 1), np.empty(n_features)
    is_left = np.empty(max(len(trees.feature), 1), np.bool_)
    for t in range(len(trees.leaf_ptr) - 1):
        first = trees.node_ptr[t]
        for r in range(len(rows)):
            for at in range(first, trees.node_ptr[t + 1]):
                value = np.float64(rows[r, node_feature[at]])
                is_left[at - first] = goes_left(value, threshold[at], decision[at])
            for leaf in range(trees.leaf_ptr[t], trees.leaf_ptr[t + 1]):
                low, high = entry_ptr[leaf], entry_ptr[leaf + 1]
                n, start = high - low, table_ptr[leaf]
                if start >= 0:
                    case = (1 << n) - 1
                    for x in range(step_ptr[leaf], step_ptr[leaf + 1]):
                        is_off = is_left[step_node[x]] != step_left[x]
                        case &= ~(np.int64(is_off) << entry[x])
                    for i in range(n):
                        out[r, feature[low + i]] += table[start + case * n + i]
                elif n > 0:
                    follows[:n] = 1.0
                    for x in range(step_ptr[leaf], step_ptr[leaf + 1]):
                        if is_left[step_node[x]] != step_left[x]:
                            follows[entry[x]] = 0.0
                    value, ratio = trees.leaf_value[leaf], paths.ratio[low:high]
                    _write_contributions(value, ratio, follows, n, poly, parts)
                    for i in range(n):
                        out[r, feature[low + i]] += parts[i]
    return out


@template
def _write_contributions(
    value: float, ratio: Array, follows: Array, n: int, poly: Array, out: Array
) -> None:
    """Write what each of the n features on the path to a leaf of this value adds, to `out`.

    Feature i has ratio_i, the share of training rows that follow its steps, and follows_i: 1 if the
    row follows them, else 0. It gets v (follows_i - ratio_i) times the mean, over orders of the
    other features, of the product of follows (features before i) and ratio (after i). The sum over
    subsets is a polynomial, from which the factor of i is divided out. poly: work space.
    """
    _path_polynomial(ratio, follows, n, poly)
    for i in range(n):
        out[i] = 0.0
        if follows[i] != ratio[i]:
            share = _divide_out_feature(poly, ratio[i], follows[i], n)
            out[i] = value * (follows[i] - ratio[i]) * share


@template
def _path_polynomial(ratio: Array, follows: Array, n: int, poly: Array) -> None:
    """Write the coefficients of the product of (ratio_k + follows_k y), k < n, to `poly`."""
    poly[0] = 1.0
    for k in range(n):
        poly[k + 1] = poly[k] * follows[k]
        for d in range(k, 0, -1):
            poly[d] = poly[d] * ratio[k] + poly[d - 1] * follows[k]
        poly[0] *= ratio[k]


@template
def _divide_out_feature(poly: Array, ratio: float, follows: float, n: int) -> float:
    """Return the weighted sum of the coefficients of poly / (ratio + follows y).

    Coefficient s of the quotient has the weight s! (n - 1 - s)! / n!: the share of orders in which
    s given features come before feature i and the others after it.
    """
    total, weight = 0.0, 1.0 / n  # s = n - 1: (n - 1)! 0! / n!
    if follows != 0.0:
        quotient = 0.0
        for s in range(n - 1, -1, -1):
            quotient = (poly[s + 1] - ratio * quotient) / follows
            total += weight * quotient
            weight *= (n - s) / max(s, 1)
        return total
    for s in range(n - 1, -1, -1):
        total += weight * poly[s] / ratio
        weight *= (n - s) / max(s, 1)
    return total
