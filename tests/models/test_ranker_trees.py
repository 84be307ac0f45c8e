"""Trees of the ranker: walked and explained as LightGBM does it, and refused where hostile."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from talerec.errors import TalerecError
from talerec.models.ranker.tree_scores import TreeArrays, goes_left
from talerec.models.ranker.trees import Trees, parse_trees, trim_text

lightgbm = pytest.importorskip("lightgbm")

NAMES = [f"f{n}" for n in range(8)]


@pytest.fixture(scope="module")
def learned():
    """A booster over numbers with gaps, zeros and whole numbers, and rows to ask it for."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, len(NAMES))).astype(np.float32)
    rows[:, 3] = np.round(rows[:, 3])
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[:, 4] = np.nan_to_num(rows[:, 4])  # no gaps while learning
    known = np.nan_to_num(rows)
    target = (known[:, 0] + known[:, 3] * known[:, 1] + rng.normal(size=len(rows)) > 1.5).astype(
        int
    )
    params = {"objective": "lambdarank", "num_leaves": 15, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, target, group=[40] * 100, feature_name=NAMES)
    booster = lightgbm.train({**params, "min_data_in_leaf": 10, "seed": 1}, data, 30)
    hard = np.concatenate(
        [rows[:200], np.full((1, 8), np.nan), np.zeros((1, 8)), -rows[:20] * 1e30]
    )
    return booster, hard.astype(np.float32)


@pytest.fixture(scope="module")
def text(learned) -> bytes:
    return trim_text(learned[0].model_to_string())


def test_walking_gives_lightgbms_scores_to_the_last_bit(learned, text):
    booster, rows = learned
    np.testing.assert_array_equal(parse_trees(text, NAMES).predict(rows), booster.predict(rows))


@pytest.mark.parametrize("missing", [{"zero_as_missing": True}, {"use_missing": False}])
def test_trees_that_take_zeros_or_nothing_for_missing(learned, missing):
    _, rows = learned
    target = (np.nan_to_num(rows[:, 0]) > np.nan_to_num(rows[:, 3])).astype(int)
    params = {"objective": "regression", "num_leaves": 32, "min_data_in_leaf": 3, "verbose": -1}
    data = lightgbm.Dataset(rows, target, feature_name=NAMES)
    booster = lightgbm.train({**params, **missing, "num_threads": 1}, data, 20)
    trees = parse_trees(trim_text(booster.model_to_string()), NAMES)
    kind = {"zero_as_missing": 1, "use_missing": 0}[next(iter(missing))]
    assert (trees.arrays.decision >> 2 == kind).any()
    tiny = np.float32([[1e-36] * 8, [-1e-36] * 8, [2e-35] * 8, [np.inf] * 8, [-np.inf] * 8])
    some = np.concatenate([rows, tiny])
    np.testing.assert_array_equal(trees.predict(some), booster.predict(some))


@pytest.mark.parametrize(
    "threshold", [0.1, -0.1, 1e300, -1e300, math.inf, 1e-50, -1e-50, 2**24 + 1]
)
@pytest.mark.parametrize("decision", [0, 4, 6, 8, 10])  # what is missing, and where it goes
def test_a_condition_is_that_of_the_threshold_in_double_precision(threshold, decision):
    node = np.zeros(1, np.int32)
    tree = TreeArrays(
        np.array([0, 1]), np.array([0, 2]), node, np.array([threshold]),
        np.array([decision], np.uint8), np.int32([-1]), np.int32([-2]), node - 1, np.full(1, 9.0),
        np.array([3.0, 5.0]), np.array([4.0, 5.0]), np.zeros(2, np.int32),
    )  # fmt: skip
    limit = np.clip([threshold], -3e38, 3e38).astype(np.float32)
    near = [np.nextafter(limit, np.float32(side)) for side in (-np.inf, np.inf)]
    others = np.float32([np.nan, 0, -0.0, 1e-36, np.inf, -np.inf])
    numbers = np.concatenate([limit, *near, others])
    expected = [3.0 if goes_left(float(x), threshold, decision) else 5.0 for x in numbers]
    assert Trees(tree).predict(numbers[:, None]).tolist() == expected


def test_contributions_are_lightgbms_and_add_up(learned, text):
    booster, rows = learned
    trees = parse_trees(text, NAMES)
    theirs = booster.predict(rows, pred_contrib=True)
    ours = trees.contributions(rows)
    np.testing.assert_allclose(ours, theirs[:, :-1], rtol=0, atol=1e-12)
    assert trees.expected == pytest.approx(theirs[0, -1], abs=1e-12)
    np.testing.assert_allclose(ours.sum(axis=1) + trees.expected, trees.predict(rows), atol=1e-9)
    assert (trees.predict(rows) >= trees.lowest).all()


def test_a_tree_of_a_single_leaf_is_a_constant(text):
    head = text[: text.index(b"Tree=0")]
    tree = b"Tree=0\nnum_leaves=1\nnum_cat=0\nleaf_value=0.5\nis_linear=0\nshrinkage=1\n\n"
    trees = parse_trees(head + tree + b"end of trees\n", NAMES)
    rows = np.zeros((3, len(NAMES)), np.float32)
    assert trees.predict(rows).tolist() == [0.5] * 3
    assert not trees.contributions(rows).any()
    assert (trees.expected, trees.lowest) == (0.5, 0.5)


def chain_of_nodes(depth: int) -> TreeArrays:
    """A tree whose node n compares feature n with 0: left is a leaf, right is node n + 1."""
    nodes, rng = np.arange(depth, dtype=np.int32), np.random.default_rng(depth)
    leaf_count = rng.integers(1, 50, depth + 1).astype(float)
    node_count = leaf_count[::-1].cumsum()[::-1][:depth]
    right = np.append(nodes[1:], np.int32(-1 - depth))
    return TreeArrays(
        np.array([0, depth]), np.array([0, depth + 1]), nodes, np.zeros(depth),
        np.full(depth, 10, np.uint8), -1 - nodes, right, nodes - 1, node_count,
        rng.normal(size=depth + 1), leaf_count, np.append(nodes, np.int32(depth - 1)),
    )  # fmt: skip


def mean_score(tree: TreeArrays, row: np.ndarray, known: int, node: int = 0) -> float:
    """The mean leaf value of training rows that agree with `row` in the known features (bits)."""
    if node < 0:
        return float(tree.leaf_value[-1 - node])
    children = int(tree.left[node]), int(tree.right[node])
    if known >> node & 1:
        return mean_score(tree, row, known, children[0 if row[node] <= 0 else 1])
    counts = [tree.node_count[c] if c >= 0 else tree.leaf_count[-1 - c] for c in children]
    means = [mean_score(tree, row, known, child) for child in children]
    return float(np.dot(counts, means) / sum(counts))


@pytest.mark.parametrize("depth", [1, 5, 10, 12])
def test_contributions_are_shapley_values(depth):
    """Twelve different features on a path are more than the explainer stores the cases of."""
    tree = chain_of_nodes(depth)
    row = np.array([(-1.0) ** (n > 3) for n in range(depth)], np.float32)
    row[::3] *= -1
    means = [mean_score(tree, row, known) for known in range(1 << depth)]
    expected = np.zeros(depth)
    for known in range(1 << depth):
        size = known.bit_count()
        for feature in range(depth):
            if not known >> feature & 1:
                weight = 1 / (depth * math.comb(depth - 1, size))
                expected[feature] += weight * (means[known | 1 << feature] - means[known])
    trees = Trees(tree)
    np.testing.assert_allclose(trees.contributions(row[None])[0], expected, atol=1e-12)
    assert trees.predict(row[None])[0] == means[-1]


def change(pattern: str, value: str) -> Callable[[bytes], bytes]:
    """A change of the first match of a pattern in the text of the trees."""

    def apply(text: bytes) -> bytes:
        changed, count = re.subn(pattern, value, text.decode(), count=1, flags=re.MULTILINE)
        assert count == 1
        return changed.encode()

    return apply


HOSTILE = {
    "a cycle": (change(r"^left_child=\S+", "left_child=0"), "child is not after it"),
    "a child out of range": (change(r"^left_child=\S+", "left_child=5000"), "not after it"),
    "a leaf out of range": (change(r"^right_child=\S+", "right_child=-5000"), "leaf out of range"),
    "a leaf twice": (change(r"^(left_child=.*) -\d+ ", r"\1 -1 "), "two parents"),
    "a feature out of range": (change(r"^split_feature=\S+", "split_feature=99"), "feature out"),
    "a negative feature": (change(r"^split_feature=\S+", "split_feature=-1"), "feature out"),
    "half a feature": (change(r"^split_feature=\S+", "split_feature=0.5"), "whole numbers"),
    "NaN in a leaf": (change(r"^leaf_value=\S+", "leaf_value=nan"), "not finite"),
    "infinity in a leaf": (change(r"^leaf_value=\S+", "leaf_value=inf"), "not finite"),
    "NaN as threshold": (change(r"^threshold=\S+", "threshold=nan"), "not finite"),
    "text as a number": (change(r"^threshold=\S+", "threshold=abc"), "not numbers"),
    "no counts": (change(r"^leaf_count=\S+", "leaf_count=0"), "not positive"),
    "other counts": (change(r"^leaf_count=\S+", "leaf_count=12345"), "add up"),
    "a category": (change(r"^decision_type=\S+", "decision_type=1"), "categories"),
    "categories": (change(r"^num_cat=0", "num_cat=1"), "categories"),
    "an unknown decision": (change(r"^decision_type=\S+", "decision_type=64"), "unknown decision"),
    "too many leaves": (change(r"^num_leaves=\d+", "num_leaves=2000000000"), "leaves"),
    "a leaf too many": (change(r"^num_leaves=\d+", "num_leaves=33"), "have 33 leaves"),
    "no leaves": (change(r"^num_leaves=\d+", "num_leaves=0"), "leaves"),
    "fewer leaves": (change(r"^num_leaves=\d+", "num_leaves=3"), "other length"),
    "linear leaves": (change(r"^is_linear=0", "is_linear=1"), "linear"),
    "other features": (change(r"^feature_names=f0", "feature_names=g0"), "other features"),
    "classes": (change(r"^num_class=1", "num_class=3"), "classes"),
    "another order": (change(r"^Tree=1$", "Tree=7"), "not in order"),
    "a line twice": (change(r"^(num_cat=0)", r"\1\nnum_cat=0"), "two lines"),
    "no end": (lambda text: text[: len(text) // 2], "cut off"),
    "nothing": (lambda text: b"", "cut off"),
    "no trees": (lambda text: text[: text.index(b"Tree=0")] + b"end of trees\n", "none"),
    "other bytes": (lambda text: text.replace(b"Tree=0", b"Tree=\xff"), "ASCII"),
    "a huge line": (change(r"^threshold=", "threshold=" + "1 " * 600_000), "too long"),
    "gigabytes": (lambda text: text + b" " * (65 * 2**20), "bytes"),
    "a huge number": (change(r"^left_child=\S+", "left_child=1e300"), "out of range"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused(name: str, text: bytes):
    damage, message = HOSTILE[name]
    with pytest.raises(TalerecError, match=message):
        parse_trees(damage(text), NAMES)


def test_many_trees_are_refused(text):
    head = text[: text.index(b"Tree=0")]
    tree = "Tree={}\nnum_leaves=1\nnum_cat=0\nleaf_value=1\n\n"
    many = head + "".join(tree.format(n) for n in range(5001)).encode() + b"end of trees\n"
    with pytest.raises(TalerecError, match="more than 5000"):
        parse_trees(many, NAMES)


def test_random_damage_is_refused_or_harmless(text, learned):
    """Bytes are changed at random: whatever is still accepted, is walked to an end."""
    rng, rows = np.random.default_rng(0), learned[1][:20]
    accepted = 0
    for _ in range(300):
        damaged = bytearray(text)
        for at in rng.integers(0, len(damaged), 3):
            damaged[at] = rng.choice(np.frombuffer(b"0123456789-. \n=e", np.uint8))
        try:
            trees: Trees = parse_trees(bytes(damaged), NAMES)
        except TalerecError:
            continue
        accepted += 1
        assert len(trees.predict(rows)) == len(rows)
        trees.contributions(rows)
    assert accepted
