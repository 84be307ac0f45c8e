"""Learn an order of candidates, and decide where it may rank in place of a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from talerec.models.ranker.examples import Examples
from talerec.models.ranker.lightgbm_library import import_lightgbm
from talerec.models.ranker.linear import LinearScore, fit_linear
from talerec.models.ranker.objective import LambdaRank
from talerec.models.ranker.second_stage import score_rows, start_scores
from talerec.models.ranker.trees import parse_trees, trim_text
from talerec.runtime import Array, thread_count

MIN_QUERIES = 200  # queries with a candidate target below which nothing is learned
_MIN_Z = 2.0  # standard errors by which the learned order must beat the best part
_MAX_TREES = 400
_PATIENCE = (30, 15)  # trees without a gain after which learning stops, in one split or several
_SMALL = 6000  # queries up to which users are cross-fitted
_LINEAR_QUERIES = 3000  # to learn a linear score from
_FOLDS = 5


class Shape(NamedTuple):
    """How an order is learned: where trees start, and their size.

    is_linear: whether they start from a linear score; otherwise from the first part's ranks.
    """

    is_linear: bool
    n_leaves: int


_SHAPES = (Shape(True, 4), Shape(False, 7))  # for few queries, the simplest first
_LARGE_SHAPES = (Shape(False, 15),)  # for more


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
        """Whether the trees rank: they are ahead by two standard errors."""
        return self.z >= _MIN_Z


class Learned(NamedTuple):
    """What orders candidates, and a verdict for each set of examples (None: too few queries).

    text: of the trees. linear: the score from which they start.
    """

    text: bytes
    linear: LinearScore
    verdicts: list[Verdict | None]


def learn_order(examples: Sequence[Examples], names: list[str], seed: int) -> Learned | None:
    """Return an order learned from sets of examples together, with a verdict on each set.

    names: of the features. None if there are too few queries or users, or if no feature can tell
    candidates apart (a log of one item). Users are divided into five folds. Up to 6,000 queries,
    each fold in turn is the guard: it is ordered by what was learned from all others, with the
    shape and the number of trees that are best on the others, each ordered without itself. Beyond,
    one fold is the guard, one chooses, and three are learned from. Users of the guard compare the
    order with the best part (a verdict). The order that is returned is learned from all users.
    """
    data = _TrainingRows.of(examples)
    n_queries = len(data.sizes)
    fold = _assign_folds(examples, seed)
    query_fold = fold[data.user]
    if n_queries < MIN_QUERIES or len(np.unique(query_fold)) < 3:
        return None
    splits, guards = _plan_splits(query_fold)
    shapes = _list_shapes(n_queries)
    bins = data.to_bins(names, _params(shapes[0].n_leaves))
    if not any(bins.feature_num_bin(f) for f in range(data.n_features)):
        return None  # no feature divides the rows into two leaves: LightGBM refuses to learn
    runs = [_grow_trees(data, bins, splits, shape) for shape in shapes]
    scores = [np.full(len(each.rows), np.nan) for each in examples]
    for guard in guards:
        run, n_trees = _choose_shape(runs, splits, guard.choosers)
        for each, score in zip(examples, scores, strict=True):
            in_guard = np.repeat(fold[each.user] == guard.fold, np.diff(each.row_ptr))
            score[in_guard] = run.score(guard.split, n_trees, each.rows[in_guard], names)
    run, n_trees = _choose_shape(runs, splits, list(range(len(splits))))
    everyone = _Split(np.ones(n_queries, bool), np.zeros(n_queries, bool))
    final = _grow_trees(data, bins, [everyone], run.shape, n_trees)
    measured, pairs = [guard.fold for guard in guards], zip(examples, scores, strict=True)
    verdicts = [_measure_verdict(each, score, fold, measured) for each, score in pairs]
    return Learned(final.text(0, n_trees), final.linear[0], verdicts)


def _list_shapes(n_queries: int) -> Sequence[Shape]:
    """Return the shapes of orders to try with a number of queries, the simplest first."""
    return _SHAPES if n_queries <= _SMALL else _LARGE_SHAPES


class _Split(NamedTuple):
    """A flag per query: whether an order learns from it, and whether it is validated on it."""

    learns: Array
    checks: Array  # queries that choose the shape and the number of trees


class _Guard(NamedTuple):
    """A fold of users on which an order is compared with the best part.

    fold: its users took no part in that order. split: number of the split whose order it is.
    choosers: numbers of the splits whose checked queries choose the order's shape and number of
    trees.
    """

    fold: int
    split: int
    choosers: list[int]


class _Run(NamedTuple):
    """Orders of one shape, learned in several splits.

    texts: of each split's trees, as LightGBM writes them. gains: split x number of trees - 1,
    NDCG@10 of the queries that the split checks.
    """

    shape: Shape
    texts: list[str]
    linear: list[LinearScore]
    gains: Array

    def text(self, split: int, n_trees: int) -> bytes:
        """Return the text of the first trees of a split, as it is saved."""
        booster = import_lightgbm().Booster(model_str=self.texts[split])
        return trim_text(booster.model_to_string(num_iteration=n_trees))

    def score(self, split: int, n_trees: int, rows: Array, names: list[str]) -> Array:
        """Return the score of each row of features by the first trees of a split."""
        return score_rows(parse_trees(self.text(split, n_trees), names), self.linear[split], rows)


def _plan_splits(query_fold: Array) -> tuple[list[_Split], list[_Guard]]:
    """Return the splits that orders are learned in, and the folds that compare them.

    With many queries one order is learned: fold 0 compares it with the best part, fold 1 chooses
    its shape and number of trees, and the others teach it. With few, each fold compares the order
    that the other folds teach and choose. query_fold: the fold of each query, three at least.
    """
    folds = np.unique(query_fold).tolist()
    if len(query_fold) > _SMALL:
        is_free = (query_fold != folds[0]) & (query_fold != folds[1])
        return [_Split(is_free, query_fold == folds[1])], [_Guard(folds[0], 0, [0])]
    splits = [_Split(query_fold != f, query_fold == f) for f in folds]
    every = range(len(folds))
    guards = [_Guard(folds[n], n, [k for k in every if k != n]) for n in every]
    return splits, guards


def _choose_shape(runs: list[_Run], splits: list[_Split], choosers: list[int]) -> tuple[_Run, int]:
    """Return the run, and the number of trees, with the highest NDCG@10 on validation queries.

    runs: one per shape. choosers: numbers of the splits whose checked queries decide.
    """
    weights = np.array([splits[number].checks.sum() for number in choosers])
    means = [weights @ run.gains[choosers] for run in runs]
    best = int(np.argmax([mean.max() for mean in means]))
    return runs[best], 1 + int(means[best].argmax())


class _TrainingRows(NamedTuple):
    """What LightGBM learns from: the queries of all sets of examples, one set after the other.

    Queries without rows (whose target is not a candidate) are left out. Rows of features are not
    copied: they take gigabytes on large logs.
    """

    rows: list[Array]  # of each set
    is_target: Array  # of each row
    sizes: Array  # rows of each query
    user: Array  # of each query

    @property
    def n_features(self) -> int:
        """The number of features of each row."""
        return int(self.rows[0].shape[1])

    @classmethod
    def of(cls, examples: Sequence[Examples]) -> _TrainingRows:
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
        lightgbm = import_lightgbm()
        start = np.concatenate([start_scores(rows) for rows in self.rows])
        dataset = lightgbm.Dataset(  # a copy of the list, whose arrays LightGBM 4.5 makes flat
            list(self.rows), self.is_target, group=self.sizes, feature_name=names, init_score=start,
            params=params,
        )  # fmt: skip
        return dataset.construct()

    def find_rows(self, queries: Array) -> Array:
        """Return the numbers of the rows of flagged queries."""
        return np.flatnonzero(np.repeat(queries, self.sizes))

    def take_rows(self, row_ids: Array) -> Array:
        """Return the rows of features with these numbers, in rising order."""
        ends = np.cumsum([len(rows) for rows in self.rows])
        bounds = np.concatenate([[0], np.searchsorted(row_ids, ends)])
        return np.concatenate([
            rows[row_ids[a:b] - end + len(rows)]
            for rows, end, a, b in zip(self.rows, ends, bounds[:-1], bounds[1:], strict=True)
        ])  # fmt: skip


def _assign_folds(examples: Sequence[Examples], seed: int) -> Array:
    """Return the fold (0 to 4) of each user number, at random."""
    n_users = 1 + max(int(each.user.max(initial=0)) for each in examples)
    fold: Array = np.random.default_rng(seed).integers(0, _FOLDS, n_users)
    return fold


def _params(n_leaves: int) -> dict[str, Any]:
    """Return LightGBM's parameters for trees of this size; the objective is `LambdaRank`."""
    return {
        "objective": "none", "metric": "ndcg", "eval_at": [10], "learning_rate": 0.05,
        "num_leaves": n_leaves, "min_data_in_leaf": 300,
        "feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1,
        "num_threads": thread_count(), "verbose": -1,
        "seed": 0, "deterministic": True, "force_col_wise": True, "zero_as_missing": False,
    }  # fmt: skip


def _grow_trees(
    data: _TrainingRows, bins: Any, splits: list[_Split], shape: Shape, n_trees: int | None = None
) -> _Run:
    """Return orders of a shape, one learned in each split: a linear score, then trees.

    bins: the rows of `data` as a LightGBM dataset. n_trees: how many trees; None: early stopping,
    once 30 further trees (15 with several splits) have not raised the mean NDCG@10 of the checked
    queries.
    """
    linear = [
        _fit_linear(data, split.learns) if shape.is_linear else LinearScore.zero(data.n_features)
        for split in splits
    ]
    pairs = zip(splits, linear, strict=True)
    boosters = [_create_booster(data, bins, split, shape, score) for split, score in pairs]
    objectives = [
        LambdaRank(data.is_target[data.find_rows(split.learns)], data.sizes[split.learns])
        for split in splits
    ]
    weights = np.array([split.checks.sum() for split in splits])
    patience = _PATIENCE[len(splits) > 1]
    gains: list[list[float]] = []
    for _ in range(n_trees or _MAX_TREES):
        for booster, objective in zip(boosters, objectives, strict=True):
            booster.update(fobj=objective)
        if n_trees is None:
            gains.append([booster.eval_valid()[0][2] for booster in boosters])
            means = np.array(gains) @ weights
            if len(means) - 1 - int(means.argmax()) >= patience:
                break
    texts = [
        booster.model_to_string(num_iteration=-1) for booster in boosters
    ]  # boosters hold rows
    return _Run(shape, texts, linear, np.array(gains).reshape(-1, len(splits)).T)


def _create_booster(
    data: _TrainingRows, bins: Any, split: _Split, shape: Shape, linear: LinearScore
) -> Any:
    """Return a LightGBM booster without trees, with the rows of a split.

    bins: all rows as a LightGBM dataset, whose bins the rows of the split keep. linear: the score
    from which trees start; without one, they start from the first part's ranks. Queries that the
    split checks become the booster's validation set.
    """
    params = _params(shape.n_leaves)
    start = None
    if not linear.is_zero:
        start = np.concatenate([start_scores(rows) + linear.predict(rows) for rows in data.rows])

    def take(queries: Array) -> Any:
        """Return the rows of flagged queries as a dataset with the bins of all rows."""
        row_ids = data.find_rows(queries)
        some = bins if queries.all() else bins.subset(row_ids, params).construct()
        if start is not None:
            some.set_init_score(start[row_ids])
        return some

    booster = import_lightgbm().Booster(params, take(split.learns))
    if split.checks.any():
        booster.add_valid(take(split.checks), "checks")
    return booster


def _fit_linear(data: _TrainingRows, learns: Array) -> LinearScore:
    """Return the linear score of flagged queries; of many, an even sample is taken."""
    queries = np.flatnonzero(learns)
    if len(queries) > _LINEAR_QUERIES:
        queries = queries[np.linspace(0, len(queries) - 1, _LINEAR_QUERIES).astype(np.int64)]
    is_sampled = np.zeros(len(learns), bool)
    is_sampled[queries] = True
    row_ids = data.find_rows(is_sampled)
    rows = data.take_rows(row_ids)
    return fit_linear(rows, data.is_target[row_ids], data.sizes[queries], start_scores(rows))


def _measure_verdict(
    examples: Examples, scores: Array, fold: Array, guards: list[int]
) -> Verdict | None:
    """Compare an order with the best part on users of the guard folds; None without any.

    scores: of each row, from an order that its user's fold took no part in; NaN elsewhere. fold: of
    each user. The best part is chosen, for each guard fold, by the users of all other folds.
    """
    gains = examples.gains(np.nan_to_num(scores, nan=-np.inf))
    query_fold = fold[examples.user]
    differences, users, order_gain, best_gain = [], [], [], []
    for guard in guards:
        is_guard = query_fold == guard
        if not is_guard.any() or is_guard.all():
            continue
        best = _best_part(examples.part_gain[~is_guard])
        part_gain = examples.part_gain[is_guard, best]
        differences.append(gains[is_guard] - part_gain)
        users.append(examples.user[is_guard])
        order_gain.append(gains[is_guard])
        best_gain.append(part_gain)
    if not users:
        return None
    user, difference = np.concatenate(users), np.concatenate(differences)
    z = _z_score(user, difference, len(guards))
    best = _best_part(examples.part_gain)
    gain, part = float(np.concatenate(order_gain).mean()), float(np.concatenate(best_gain).mean())
    return Verdict(best, gain, part, z, len(np.unique(user)))


def _z_score(user: Array, difference: Array, n_guards: int) -> float:
    """Return the mean of paired differences over its standard error, clustered by user.

    user, difference: of each query. n_guards: folds of users that were measured. Users are
    independent, queries of a user are not. Orders that were learned in several folds share most of
    what they learned from, so their variance is raised by the ratio of users that measure to users
    that learn (Nadeau and Bengio, 2003).
    """
    sums = np.bincount(np.unique(user, return_inverse=True)[1], difference)
    inflation = 1.0 + 1.0 / (n_guards - 1) if n_guards > 1 else 1.0
    error = float(np.sqrt(len(sums) * inflation) * sums.std())
    return float(sums.sum() / error) if error > 0 else 0.0


def _best_part(part_gain: Array) -> int:
    """Return the number of the best part; the first one unless another is clearly ahead.

    part_gain: query x part, NDCG@10. Ahead is a part whose mean gain is larger by a standard error:
    the best of many parts on few queries is often so by chance.
    """
    best = int(part_gain.mean(axis=0).argmax())
    difference = part_gain[:, best] - part_gain[:, 0]
    error = float(difference.std() / np.sqrt(len(difference)))
    return best if float(difference.mean()) > error else 0
