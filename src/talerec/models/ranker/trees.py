"""Gradient-boosted trees: LightGBM's text parsed and checked, scored and explained.

LightGBM is needed to learn trees. Loaded trees are never passed to it: the text is parsed into
arrays, every index and number is checked, and our own kernels compute scores (`tree_scores`) and
explain them (`tree_shap`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from talerec.errors import TalerecError
from talerec.models.ranker.tree_scores import MAX_LEAVES, TreeArrays, TreeMasks
from talerec.models.ranker.tree_shap import TreeExplainer
from talerec.runtime import Array

_MAX_BYTES = 64 * 2**20  # of the text of all trees
_MAX_TREES = 5000
_MAX_LINE = 2**20  # characters
_END = "end of trees"

_CATEGORICAL = 1  # bit of a decision type


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of decision trees, which scores rows of features and explains the scores.

    arrays: the nodes and leaves of all trees.
    """

    arrays: TreeArrays

    @property
    def n_trees(self) -> int:
        """The number of trees."""
        return len(self.arrays.leaf_ptr) - 1

    @cached_property
    def lowest(self) -> float:
        """A score that no sum of leaves is below."""
        starts = self.arrays.leaf_ptr[:-1]
        return float(np.minimum.reduceat(self.arrays.leaf_value, starts).sum())

    @cached_property
    def expected(self) -> float:
        """The mean score of the training rows: the sum of the trees' mean leaf values."""
        values, sizes, starts = self.arrays.leaf_value, self.arrays.leaf_count, self.arrays.leaf_ptr
        counts = np.add.reduceat(sizes, starts[:-1])
        return float((np.add.reduceat(values * sizes, starts[:-1]) / counts).sum())

    @cached_property
    def _masks(self) -> TreeMasks:
        """The trees as masks of leaves, which scores are computed with."""
        return TreeMasks.build(self.arrays)

    @cached_property
    def _explainer(self) -> TreeExplainer:
        """What explanations of scores need; computed for the first one."""
        return TreeExplainer.build(self.arrays)

    def predict(self, rows: Array) -> Array:
        """Return the score of each row of features (float64): the sum of its leaves' values."""
        return self._masks.predict(rows)

    def contributions(self, rows: Array) -> Array:
        """Return what each feature (column) adds to the score of each row (TreeSHAP, float64).

        With `expected`, the contributions of a row add up to its score.
        """
        return self._explainer.contributions(rows)


# -- the text of LightGBM --------------------------------------------------------------------------


def trim_text(text: str) -> bytes:
    """Return the trees of LightGBM's model text, without its parameters, as bytes to store."""
    return (text[: text.index(_END)] + _END + "\n").encode()


def parse_trees(text: bytes, names: Sequence[str]) -> Trees:
    """Return the trees of LightGBM's model text; TalerecError for text that is not valid.

    names: the features that the trees must have been learned with, in order. Checked are sizes,
    child numbers (each node and leaf has one parent, above it in order, so that walks end), feature
    numbers, counts, and that numbers are finite.
    """
    if len(text) > _MAX_BYTES:
        raise TalerecError(f"the trees have {len(text):,} bytes; {_MAX_BYTES:,} are allowed")
    try:
        lines = bytes(text).decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise TalerecError("the text of the trees is not ASCII") from None
    sections = _split_sections(lines)
    header = next(sections)
    _require(header.get("feature_names", "").split() == list(names), "have other features")
    _require(header.get("num_class") == "1", "have several classes")
    _require(header.get("num_tree_per_iteration") == "1", "have several classes")
    trees = []
    for number, section in enumerate(sections):
        _require(number < _MAX_TREES, f"are more than {_MAX_TREES}")
        _require(section.get("Tree") == str(number), "are not in order")
        trees.append(_parse_tree(section, len(names)))
    _require(bool(trees), "are none")
    nodes = np.cumsum([0] + [len(tree[0]) for tree in trees])
    leaves = np.cumsum([0] + [len(tree[7]) for tree in trees])
    columns = (np.concatenate(column) for column in zip(*trees, strict=True))
    return Trees(TreeArrays(nodes, leaves, *columns))


def _require(condition: bool, problem: str) -> None:
    """Raise TalerecError that the trees have this problem, unless the condition holds."""
    if not condition:
        raise TalerecError(f"the trees {problem}")


def _split_sections(lines: list[str]) -> Iterator[dict[str, str]]:
    """Yield the sections of LightGBM's text as dicts: the header, then one per tree.

    A section is lines `name=value`; that of a tree begins with Tree=NUMBER. TalerecError if the
    text does not end with `end of trees`, a line is too long or a name occurs twice.
    """
    section: dict[str, str] = {}
    for line in lines:
        _require(len(line) <= _MAX_LINE, "have a line that is too long")
        if line == _END:
            yield section
            return
        name, sign, value = line.partition("=")
        if name == "Tree" and sign:
            yield section
            section = {}
        if sign:
            _require(name not in section, f"have two lines {name[:40]!r}")
            section[name] = value
    raise TalerecError("the text of the trees is cut off")


def _parse_tree(section: dict[str, str], n_features: int) -> tuple[Array, ...]:
    """Return the arrays of one tree, in the order of `TreeArrays` from `feature` on.

    section: the tree's lines by name. TalerecError for numbers that no tree can have.
    """
    n_leaves = int(_parse_numbers(section, "num_leaves", 1)[0])
    _require(1 <= n_leaves <= MAX_LEAVES, f"have {n_leaves} leaves")
    _require(section.get("num_cat") == "0", "have categories")
    _require(section.get("is_linear", "0") == "0", "have linear leaves")
    value = _parse_numbers(section, "leaf_value", n_leaves)
    if n_leaves == 1:
        none, no_numbers = np.empty(0, np.int32), np.empty(0)
        nodes = (none, no_numbers, np.empty(0, np.uint8), none, none, none, no_numbers)
        return *nodes, value, np.ones(1), np.full(1, -1, np.int32)
    n_nodes = n_leaves - 1
    names = ("split_feature", "left_child", "right_child", "decision_type", "internal_count")
    integers = (_parse_integers(section, name, n_nodes) for name in names)
    feature, left, right, decision, node_count = integers
    leaf_count = _parse_integers(section, "leaf_count", n_leaves)
    _require(bool(((feature >= 0) & (feature < n_features)).all()), "have a feature out of range")
    _require(bool(((decision >= 0) & (decision < 12)).all()), "have an unknown decision")
    _require(not (decision & _CATEGORICAL).any(), "have categories")
    parent, leaf_parent = _find_parents(left, right, n_nodes, n_leaves)
    counts = np.concatenate([node_count, leaf_count])
    _require(bool((counts > 0).all()), "have a count that is not positive")
    left_at, right_at = (np.where(side >= 0, side, n_nodes - 1 - side) for side in (left, right))
    _require(bool((counts[left_at] + counts[right_at] == node_count).all()), "do not add up")
    threshold = _parse_numbers(section, "threshold", n_nodes, finite=False)
    nodes = (
        feature.astype(np.int32), threshold, decision.astype(np.uint8), left.astype(np.int32),
        right.astype(np.int32), parent.astype(np.int32), node_count.astype(np.float64),
    )  # fmt: skip
    return *nodes, value, leaf_count.astype(np.float64), leaf_parent.astype(np.int32)


def _find_parents(left: Array, right: Array, n_nodes: int, n_leaves: int) -> tuple[Array, Array]:
    """Return the parent of each node (-1: the root) and of each leaf.

    left, right: children; below 0: leaf -1 - n. TalerecError unless each node but the first, and
    each leaf, is the child of one node, and nodes come after their parents.
    """
    parent, leaf_parent = np.full(n_nodes, -1), np.full(n_leaves, -1)
    for node in range(n_nodes):
        for child in (int(left[node]), int(right[node])):
            if child >= 0:
                _require(node < child < n_nodes, "have a node whose child is not after it")
                _require(parent[child] < 0, "have a node with two parents")
                parent[child] = node
            else:
                _require(-1 - child < n_leaves, "have a leaf out of range")
                _require(leaf_parent[-1 - child] < 0, "have a leaf with two parents")
                leaf_parent[-1 - child] = node
    return parent, leaf_parent


def _parse_numbers(section: dict[str, str], name: str, count: int, *, finite: bool = True) -> Array:
    """Return `count` numbers of a line (float64); TalerecError if it has others, or NaN.

    finite: whether infinity is an error, too.
    """
    words = section.get(name, "").split(" ")
    _require(len(words) == count, f"have a line {name} of other length")
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        raise TalerecError(f"the trees have a line {name} that is not numbers") from None
    is_valid = np.isfinite(values) if finite else ~np.isnan(values)
    _require(bool(is_valid.all()), f"have a line {name} that is not finite")
    return values


def _parse_integers(section: dict[str, str], name: str, count: int) -> Array:
    """Return the `count` integers of the line `name` (int64); TalerecError if it has others.

    Their absolute values must be below 2^31.
    """
    values = _parse_numbers(section, name, count)
    _require(bool((np.abs(values) < 2**31).all()), f"have a line {name} out of range")
    whole = values.astype(np.int64)
    _require(bool((whole == values).all()), f"have a line {name} that is not whole numbers")
    return whole
