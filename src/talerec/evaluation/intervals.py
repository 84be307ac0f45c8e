"""Confidence intervals and paired tests of metrics, by resampling users with a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.runtime import Array

_LEVEL = 0.95  # confidence level of intervals
_SAMPLES = 2000  # bootstrap samples
_FLIPS = 20_000  # assignments of signs in a paired test
_BLOCK = 2**22  # random numbers at a time
_ROUNDING = 1e-9  # relative: sums of the same numbers in another order differ by less


def bootstrap_means(
    values: Array, cases: Array | None = None, users: Array | None = None, *, seed: int = 0
) -> tuple[Array, Array]:
    """Return both ends of the 95 % bootstrap interval of each column's mean, resampling users.

    A row of `values` holds the sums over one user's cases, `cases` the number of its cases (1 by
    default), and `users` the number of users that it stands for (1 by default). Drawing n rows is a
    multinomial draw over the distinct rows, which are few since most cases are misses: the
    bootstrap is exact and fast.
    """
    if not len(values):
        empty = np.full(values.shape[1], np.nan)
        return empty, empty
    ones = np.ones(len(values), np.int64)
    n_users = ones if users is None else users
    distinct, counts = _count_distinct(values, ones if cases is None else cases, n_users)
    sums = _resample_sums(np.random.default_rng(seed), counts, distinct)
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(sums[:, :-1] / sums[:, -1:], [tail, 1 - tail], axis=0)
    return low, high


def _count_distinct(values: Array, cases: Array, users: Array) -> tuple[Array, Array]:
    """Return the distinct rows, sorted, with `cases` as last column, and the users of each.

    `values` (rows x metrics) has sums over a user's cases, `cases` their number, and `users` how
    many users a row stands for.
    """
    table = pl.DataFrame(np.column_stack([values, cases]), orient="row")
    rows = table.with_columns(pl.Series("count", users))
    distinct = rows.group_by(table.columns).agg(pl.col("count").sum()).sort(table.columns)
    counts = distinct["count"].to_numpy().astype(np.int64)
    return distinct.drop("count").to_numpy(order="c"), counts


def _resample_sums(rng: np.random.Generator, counts: Array, distinct: Array) -> Array:
    """Return the column means of each of 2,000 bootstrap samples (samples x columns).

    A sample draws as many rows as there are users; row i of `distinct` stands for counts[i] users.
    """
    total, size = counts.sum(), max(1, _BLOCK // len(counts))
    means = []
    for start in range(0, _SAMPLES, size):
        draws = rng.multinomial(total, counts / total, size=min(size, _SAMPLES - start))
        means.append(draws @ distinct / total)
    return np.concatenate(means)


@dataclass(frozen=True)
class PairedComparison:
    """B compared with A on the same users.

    a, b, difference  means of A and B, and B - A
    interval          95 % bootstrap interval of the difference
    p                 two-sided p-value of the sign-flip test
    effect            mean difference over its standard deviation (Cohen's d of paired samples)
    better, worse     users for whom B is better, and worse
    """

    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    p: float
    effect: float
    better: int
    worse: int
    users: int

    def to_dict(self) -> dict[str, Any]:
        """Return one metric's comparison as JSON fields.

        `relative` is the difference divided by A's mean; None if that is 0.
        """
        relative = self.difference / self.a if self.a else None
        return {**asdict(self), "interval": list(self.interval), "relative": relative}


def compare_pairs(a: Array, b: Array, *, seed: int = 0) -> PairedComparison:
    """Compare two models by their values for the same users.

    p is that of a sign-flip (Fisher-Pitman) test: if the models were equal, each user's difference
    could have the other sign as well; p is the share of assignments of signs whose mean is at least
    as far from 0 as the observed one. The test assumes nothing about the distribution.
    """
    if a.shape != b.shape or not len(a):
        raise TalerecError("a paired comparison takes one value of each model for every user")
    change = b - a
    low, high = bootstrap_means(change[:, None], seed=seed)
    spread = float(change.std(ddof=1)) if len(change) > 1 else 0.0
    mean = float(change.mean())
    return PairedComparison(
        a=float(a.mean()),
        b=float(b.mean()),
        difference=mean,
        interval=(float(low[0]), float(high[0])),
        p=_sign_flips(change, np.random.default_rng(seed)),
        effect=mean / spread if spread else 0.0,
        better=int((change > 0).sum()),
        worse=int((change < 0).sum()),
        users=len(change),
    )


def _sign_flips(change: Array, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of a sign-flip test over users' differences `change`.

    Differences of equal size are drawn together, by a binomial.
    """
    size, counts = np.unique(np.abs(change[change != 0]), return_counts=True)
    if not size.size:
        return 1.0
    observed = abs(change.sum()) * (1 - _ROUNDING)
    as_far, block = 0, max(1, _BLOCK // len(size))
    for start in range(0, _FLIPS, block):
        rounds = min(block, _FLIPS - start)
        plus = rng.binomial(counts, 0.5, size=(rounds, len(size)))
        as_far += int((np.abs((2 * plus - counts) @ size) >= observed).sum())
    return (1 + as_far) / (1 + _FLIPS)
