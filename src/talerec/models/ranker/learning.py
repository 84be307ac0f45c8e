"""Learn trees that order candidates, and decide where they may answer in place of a part."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from talerec.models.ranker.examples import Examples
from talerec.models.ranker.objective import LambdaRank
from talerec.models.ranker.second_stage import score_rows, start_scores
from talerec.models.ranker.trees import parse_trees, trim_text
from talerec.runtime import Array, thread_count

MIN_QUERIES = 200  # queries with a candidate target below which nothing is learned
_MIN_Z = 2.0  # standard errors by which the trees must beat the best part
_MAX_TREES, _PATIENCE = 400, 30  # trees, and trees without a gain after which learning stops
_SMALL = 6000  # queries up to which users are cross-fitted
_FEW = 5000  # queries up to which trees are small
_LEAVES = (7, 15)  # of a small tree, and of a larger one
_FOLDS = 5


class Verdict(NamedTuple):
    """Whether trees beat the best part on users that took no part in learning nor choosing.

    best: number of the best part. gain, part_gain: NDCG@10 of the trees and of that part, over
    `n_users`. z: the mean difference in standard errors.
    """

    best: int
    gain: float
    part_gain: float
    z: float
    n_users: int

    @property
    def uses_trees(self) -> bool:
        """Whether the trees answer: they are ahead by two standard errors."""
        return self.z >= _MIN_Z


class Learned(NamedTuple):
    """The text of the trees, and a verdict for each set of examples (None: too few queries)."""

    text: bytes
    verdicts: list[Verdict | None]


def learn_trees(examples: Sequence[Examples], names: list[str], seed: int) -> Learned | None:
    """Return trees learned from sets of examples together, with a verdict on each set.

    names: of the features. None if there are too few queries. Users are divided into five folds:
    trees of three folds, with as many trees as suit a fourth, order the candidates of the fifth,
    which compares them with the best part (a verdict); up to 6,000 queries each fold does so once,
    beyond only the first. The trees that are returned learn from all users; their number is the
    median of those runs.
    """
    data = _Data.of(examples)
    n_queries = len(data.sizes)
    if n_queries < MIN_QUERIES:
        return None
    guards = range(_FOLDS if n_queries <= _SMALL else 1)
    fold = _assign_folds(examples, seed)
    params = _params(n_queries)
    bins, query_fold, n_trees = data.to_bins(names, params), fold[data.user], []
    scores = [np.full(len(each.rows), np.nan) for each in examples]
    for guard in guards:
        stop = (guard + 1) % _FOLDS
        is_learning = (query_fold != guard) & (query_fold != stop)
        booster = _train(params, data, bins, is_learning, query_fold == stop)
        trees = parse_trees(_to_text(booster, booster.best_iteration), names)
        for each, score in zip(examples, scores, strict=True):
            in_guard = np.repeat(fold[each.user] == guard, np.diff(each.row_ptr))
            score[in_guard] = score_rows(trees, each.rows[in_guard])
        n_trees.append(booster.best_iteration)
    count = max(1, int(np.median(n_trees)))
    text = _to_text(_train(params, data, bins, None, None, count), count)
    pairs = zip(examples, scores, strict=True)
    return Learned(text, [_compare(each, score, fold, guards) for each, score in pairs])


def _to_text(booster: Any, n_trees: int) -> bytes:
    """Return the text of the first trees of a LightGBM booster, as it is saved."""
    return trim_text(booster.model_to_string(num_iteration=n_trees))


class _Data(NamedTuple):
    """The queries with rows of all sets of examples, one set after the other, for LightGBM.

    Rows of features stay where they are: they take gigabytes on large logs.
    """

    rows: list[Array]  # of each set
    is_target: Array  # of each row
    sizes: Array  # rows of each query
    user: Array  # of each query

    @classmethod
    def of(cls, examples: Sequence[Examples]) -> _Data:
        """Return the queries with rows of these sets."""
        sizes = [np.diff(each.row_ptr) for each in examples]
        users = [each.user[size > 0] for each, size in zip(examples, sizes, strict=True)]
        return cls(
            [each.rows for each in examples if len(each.rows)],
            np.concatenate([each.is_target for each in examples]),
            np.concatenate([size[size > 0] for size in sizes]), np.concatenate(users),
        )  # fmt: skip

    def to_bins(self, names: list[str], params: dict[str, Any]) -> Any:
        """Return all rows as a LightGBM dataset, which has a byte per feature and row.

        names: of the features. Subsets share its bins (intervals of each feature), which depend on
        the rows of all users, but not on which candidates are targets.
        """
        lightgbm = _import_lightgbm()
        start = np.concatenate([start_scores(rows) for rows in self.rows])
        dataset = lightgbm.Dataset(
            self.rows, self.is_target, group=self.sizes, feature_name=names, init_score=start,
            params=params,
        )  # fmt: skip
        return dataset.construct()

    def find_rows(self, queries: Array) -> Array:
        """Return the numbers of the rows of flagged queries."""
        return np.flatnonzero(np.repeat(queries, self.sizes))


def _assign_folds(examples: Sequence[Examples], seed: int) -> Array:
    """Return the fold (0 to 4) of each user number, at random."""
    n_users = 1 + max(int(each.user.max(initial=0)) for each in examples)
    fold: Array = np.random.default_rng(seed).integers(0, _FOLDS, n_users)
    return fold


def _import_lightgbm() -> Any:
    """Return the module lightgbm."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else waiting threads keep cores busy
    import lightgbm

    return lightgbm


def _params(n_queries: int) -> dict[str, Any]:
    """Return LightGBM's parameters for so many queries."""
    return {
        "metric": "ndcg", "eval_at": [10], "learning_rate": 0.05,
        "num_leaves": _LEAVES[n_queries > _FEW], "min_data_in_leaf": 300,
        "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1,
        "num_threads": thread_count(), "verbose": -1,
        "seed": 0, "deterministic": True, "force_col_wise": True, "zero_as_missing": False,
    }  # fmt: skip


def _train(
    params: dict[str, Any], data: _Data, bins: Any, learn: Array | None, stop: Array | None,
    n_trees: int = _MAX_TREES,
) -> Any:  # fmt: skip
    """Return a LightGBM booster that orders candidates (LambdaMART, NDCG@10).

    bins: the rows of `data` as a LightGBM dataset. learn, stop: flags of the queries that are
    learned from, and of those on which the number of trees is chosen. learn None: all of them; stop
    None: `n_trees` trees.
    """
    lightgbm = _import_lightgbm()
    queries = np.ones(len(data.sizes), bool) if learn is None else learn
    rows = data.find_rows(queries)
    learning = bins if learn is None else bins.subset(rows)
    objective = LambdaRank(data.is_target[rows], data.sizes[queries])
    params = params | {"objective": objective}
    if stop is None or not stop.any():
        return lightgbm.train(params, learning, n_trees)
    callbacks: list[Any] = [lightgbm.early_stopping(_PATIENCE, verbose=False)]
    validation = bins.subset(data.find_rows(stop))
    return lightgbm.train(params, learning, n_trees, valid_sets=[validation], callbacks=callbacks)


def _compare(examples: Examples, scores: Array, fold: Array, guards: range) -> Verdict | None:
    """Return the verdict on the trees' scores by users of the guard folds; None without any.

    scores: of each row, from trees that its user's fold took no part in; NaN elsewhere. The best
    part is chosen, for each guard fold, by the users of all other folds.
    """
    gains = examples.gains(np.nan_to_num(scores, nan=-np.inf))
    query_fold = fold[examples.user]
    differences, users, tree_gain, best_gain = [], [], [], []
    for guard in guards:
        is_guard = query_fold == guard
        if not is_guard.any() or is_guard.all():
            continue
        best = _best_part(examples.part_gain[~is_guard])
        part_gain = examples.part_gain[is_guard, best]
        differences.append(gains[is_guard] - part_gain)
        users.append(examples.user[is_guard])
        tree_gain.append(gains[is_guard])
        best_gain.append(part_gain)
    if not users:
        return None
    user, difference = np.concatenate(users), np.concatenate(differences)
    different, number = np.unique(user, return_inverse=True)
    sums, n = np.bincount(number, difference), len(different)
    error = float(np.sqrt(n) * sums.std())  # of the sum: users are independent, queries are not
    z = float(sums.sum() / error) if error > 0 else 0.0
    best = _best_part(examples.part_gain)
    gain, part = float(np.concatenate(tree_gain).mean()), float(np.concatenate(best_gain).mean())
    return Verdict(best, gain, part, z, n)


def _best_part(part_gain: Array) -> int:
    """Return the number of the best part; the first one unless another is clearly ahead.

    part_gain: query x part, NDCG@10. Ahead is a part whose mean gain is larger by a standard error:
    the best of many parts on few queries is often so by chance.
    """
    best = int(part_gain.mean(axis=0).argmax())
    difference = part_gain[:, best] - part_gain[:, 0]
    error = float(difference.std() / np.sqrt(len(difference)))
    return best if float(difference.mean()) > error else 0
