"""A linear score of candidates, from which trees start: learned, computed and explained."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from talerec.errors import TalerecError
from talerec.runtime import Array, kernel, reduction, run_chunks, sized_chunks, unsigned_range

_LIMITS = (1.0, 99.0)  # percentiles to which values of features are clipped
_PENALTY = 1e-2  # of the sum of squared weights, beside the mean loss of a query
_STEPS = 80  # of the search
_BLOCK = 128  # queries that a thread takes at a time
_MIN_SPREAD = 1e-6  # of a column that is learned from
_TRANSFORMS = 3  # of a feature: its value, the logarithm of that, whether it is missing


class LinearScore(NamedTuple):
    """A function of each feature, whose values add up to a part of a candidate's score.

    table: six numbers per feature (row x feature, float64). A value x, clipped to the limits `low`
    and `high`, adds slope * x + log_slope * log(1 + max(x, 0)) + shift; a missing one adds
    `missing`. The rows are low, high, slope, log_slope, shift and missing.
    """

    table: Array

    @classmethod
    def zero(cls, n_features: int) -> LinearScore:
        """Return a score to which no feature adds anything."""
        return cls(np.zeros((6, n_features)))

    @classmethod
    def restore(cls, table: Array, n_features: int) -> LinearScore:
        """Return the score of a stored table; TalerecError for one that no fit can store."""
        if table.shape != (6, n_features) or table.dtype != np.float64:
            raise TalerecError("the linear score has another shape")
        score = cls(np.ascontiguousarray(table))
        if not np.isfinite(table).all() or not (table[0] <= table[1]).all():
            raise TalerecError("the linear score has limits or numbers that are not valid")
        if not np.isfinite(score.bound):
            raise TalerecError("the linear score has numbers that are too large")
        return score

    @property
    def is_zero(self) -> bool:
        """Whether no feature adds anything."""
        return not self.table[2:].any()

    @property
    def bound(self) -> float:
        """A number that the absolute score of no row exceeds."""
        low, high, slope, log_slope, shift, missing = np.abs(self.table)
        largest = np.maximum(low, high)
        with np.errstate(over="ignore"):  # infinity tells that the numbers are too large
            present = slope * largest + log_slope * np.log1p(largest) + shift
            return float(np.maximum(present, missing).sum())

    def predict(self, rows: Array) -> Array:
        """Return the score of each row of features (float64)."""
        scores = np.zeros((len(rows), 1))
        _write_contributions(self.table, rows, scores)
        return scores[:, 0]

    def contributions(self, rows: Array) -> Array:
        """Return what each feature adds to the score of each row: row x feature, float64."""
        contributions = np.zeros(rows.shape)
        _write_contributions(self.table, rows, contributions)
        return contributions


def fit_linear(rows: Array, is_target: Array, sizes: Array, start: Array) -> LinearScore:
    """Return the linear score that makes the target the most probable candidate of its query.

    It is a softmax regression over the candidates of each query, whose scores are the linear score
    plus `start`, with a penalty on squared weights of standardized columns. sizes: rows of each
    query, at least one, in order.
    """
    row_ptr = np.concatenate([[0], np.cumsum(sizes)])
    columns = _Columns.build(rows, row_ptr)
    chunks = sized_chunks(len(sizes), _BLOCK)

    def measure(weights: Array) -> tuple[float, Array]:
        """Return the mean loss of a query with the penalty, and its gradient."""
        losses, gradients = np.zeros(len(chunks)), np.zeros((len(chunks), len(weights)))

        def work(a: int, b: int) -> None:
            chunk = a // _BLOCK
            losses[chunk] = _add_loss(
                columns.values, is_target, start, row_ptr[a : b + 1], weights, gradients[chunk]
            )

        run_chunks("linear", work, chunks)
        loss = losses.sum() / len(sizes) + _PENALTY * float(weights @ weights)
        return loss, gradients.sum(axis=0) / len(sizes) + 2.0 * _PENALTY * weights

    begin = np.zeros(columns.values.shape[1])
    search = minimize(measure, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return columns.build_score(np.asarray(search.x))


class _Columns(NamedTuple):
    """Standardized columns that features are learned from.

    Every feature has three: its clipped value, the logarithm of that, and a flag of a missing one;
    left out are columns that are equal for all candidates of every query. number: of each column,
    transform (0, 1 or 2) * features + feature. limits: the lowest and highest value of a feature.
    """

    values: Array  # float32, row x column
    number: Array
    mean: Array
    spread: Array
    limits: Array

    @classmethod
    def build(cls, rows: Array, row_ptr: Array) -> _Columns:
        """Return the columns of rows of features; query q has the rows from row_ptr[q] on."""
        n_features = rows.shape[1]
        limits, first = np.zeros((2, n_features)), np.repeat(row_ptr[:-1], np.diff(row_ptr))
        columns_of: list[list[tuple[int, float, float]]] = [[] for _ in range(n_features)]

        def describe(feature: int, _: int) -> None:
            finite = rows[np.isfinite(rows[:, feature]), feature].astype(np.float64)
            if finite.size:
                limits[:, feature] = np.percentile(finite, _LIMITS)
            for transform in range(_TRANSFORMS):
                values, is_known = _transform_feature(
                    rows[:, feature], limits[:, feature], transform
                )
                present = values[is_known]
                size = max(present.size, 1)
                mean = float(present.sum()) / size
                spread = float(np.sqrt(((present - mean) ** 2).sum() / size))
                values = np.where(is_known, values - mean, 0.0)
                if spread > _MIN_SPREAD and (values != values[first]).any():
                    columns_of[feature].append((transform * n_features + feature, mean, spread))

        run_chunks("linear", describe, sized_chunks(n_features, 1))
        columns = [column for each in columns_of for column in each]
        matrix = np.empty((len(rows), len(columns)), np.float32)

        def fill(first_column: int, end: int) -> None:
            for number in range(first_column, end):  # computed again: less memory
                column, mean, spread = columns[number]
                transform, feature = divmod(column, n_features)
                values, is_known = _transform_feature(
                    rows[:, feature], limits[:, feature], transform
                )
                matrix[:, number] = np.where(is_known, values - mean, 0.0) / spread

        run_chunks("linear", fill, sized_chunks(len(columns), 16))
        which = np.array([column for column, _, _ in columns], np.int64)
        means, spreads = (np.array([entry[x] for entry in columns]) for x in (1, 2))
        return cls(matrix, which, means, spreads, limits)

    def build_score(self, weights: Array) -> LinearScore:
        """Return the linear score with these weights of the columns."""
        n_features = self.limits.shape[1]
        slopes, means = np.zeros(_TRANSFORMS * n_features), np.zeros(_TRANSFORMS * n_features)
        slopes[self.number] = weights / self.spread
        means[self.number] = self.mean
        slope, log_slope, flag = slopes.reshape(_TRANSFORMS, n_features)
        centers = (slopes * means).reshape(_TRANSFORMS, n_features)
        shift = -centers.sum(axis=0)
        table = np.vstack([self.limits, slope, log_slope, shift, flag - centers[2]])
        return LinearScore(np.ascontiguousarray(table))


def _transform_feature(column: Array, limits: Array, transform: int) -> tuple[Array, Array]:
    """Return one of the three transforms of a feature, and flags of rows in which it is known.

    column: the feature's values, float32. limits: the lowest and highest value that count.
    transform: 0 for the clipped value, 1 for the logarithm of that, 2 for a flag of a missing
    value, which is known in all rows.
    """
    is_missing = np.isnan(column)
    if transform == _TRANSFORMS - 1:
        return is_missing.astype(np.float64), np.ones(len(column), bool)
    clipped = np.clip(column.astype(np.float64), *limits)
    return clipped if transform == 0 else np.log1p(np.maximum(clipped, 0.0)), ~is_missing


@kernel
def _add_loss(
    values: Array, is_target: Array, start: Array, row_ptr: Array, weights: Array, gradient: Array
) -> float:
    """Return the sum of the losses of some queries, and add their gradients to `gradient`.

    The loss of a query is minus the logarithm of its target's probability, the softmax of the
    scores of its rows: values @ weights + start. Query q has the rows row_ptr[q]..row_ptr[q + 1].
    """
    loss, n_columns = 0.0, len(weights)
    for q in range(len(row_ptr) - 1):
        a, b = row_ptr[q], row_ptr[q + 1]
        scores = np.empty(b - a)
        for r in range(a, b):
            scores[r - a] = start[r] + _multiply_row(values, r, weights)
        highest = scores.max()
        total = np.exp(scores - highest).sum()
        for r in range(a, b):
            error = np.exp(scores[r - a] - highest) / total
            if is_target[r]:
                loss += np.log(total) + highest - scores[r - a]
                error -= 1.0
            for c in unsigned_range(0, n_columns):
                gradient[c] += error * values[r, c]
    return loss


@reduction
def _multiply_row(values: Array, r: int, weights: Array) -> float:
    """Return the inner product of row r and the weights, in vector instructions."""
    total = 0.0
    for c in unsigned_range(0, len(weights)):
        total += values[r, c] * weights[c]
    return total


@kernel
def _write_contributions(table: Array, rows: Array, out: Array) -> None:
    """Add what each feature contributes to a row's score (see `LinearScore`) to `out`.

    out: row x feature, or a single column for the sum over features.
    """
    n_columns = out.shape[1]
    for r in range(len(rows)):
        for f in range(rows.shape[1]):
            value = float(rows[r, f])
            added = table[5, f]
            if not np.isnan(value):
                value = min(max(value, table[0, f]), table[1, f])
                log = np.log1p(max(value, 0.0)) if table[3, f] != 0.0 else 0.0
                added = table[2, f] * value + table[3, f] * log + table[4, f]
            out[r, min(f, n_columns - 1)] += added
