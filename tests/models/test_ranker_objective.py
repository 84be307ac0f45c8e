"""The objective of the ranker's trees: LightGBM's lambdarank, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from talerec.models.ranker.objective import LAMBDARANK, LambdaRank

lightgbm = pytest.importorskip("lightgbm")

PARAMS = {
    "learning_rate": 0.3, "num_leaves": 7, "min_data_in_leaf": 20, "bagging_fraction": 0.8,
    "bagging_freq": 1, "num_threads": 1, "verbose": -1, "seed": 0, "deterministic": True,
    "force_col_wise": True, **LAMBDARANK,
}  # fmt: skip


def trees(booster) -> str:
    text = booster.model_to_string()
    return text[text.index("Tree=0") : text.index("end of trees")]


@pytest.mark.parametrize("most", [1, 4, 30])
@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0])
def test_trees_are_those_of_lightgbms_own_objective(most, spread):
    """With one target per query and with many, with equal scores, and distances beyond 25."""
    rng = np.random.default_rng(most)
    sizes = np.concatenate([[1, 2, 19, 20, 21], rng.integers(1, 160, 60)])
    rows = rng.normal(size=(sizes.sum(), 6)).round(1)
    label = np.zeros(len(rows), np.int8)
    first = np.cumsum(sizes) - sizes
    for a, n in zip(first[:-1], sizes[:-1], strict=True):  # the last query has no target
        score = rows[a : a + n, 0] + rng.normal(size=n)
        label[a + np.argsort(-score)[: rng.integers(1, most + 1)]] = 1
    start = spread * rng.integers(0, 3, len(rows))

    def learn(objective):
        data = lightgbm.Dataset(rows, label, group=sizes, init_score=start, params=PARAMS)
        return trees(lightgbm.train({**PARAMS, "objective": objective}, data, 12))

    assert learn(LambdaRank(label, sizes)) == learn("lambdarank")


def test_gradients_do_not_depend_on_threads_or_earlier_scores(monkeypatch):
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 50, 2000)
    label = (rng.random(sizes.sum()) < 0.1).astype(np.int8)
    scores = rng.normal(size=len(label))
    expected = LambdaRank(label, sizes)(scores, None)
    used = LambdaRank(label, sizes)
    used(rng.normal(size=len(label)), None)
    monkeypatch.setenv("TALEREC_THREADS", "3")
    for ours, theirs in zip(used(scores, None), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
