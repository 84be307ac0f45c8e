"""How sure is a figure, and does one model beat another? Resampling over users, with a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

_LEVEL = 0.95  # of intervals
_SAMPLES = 2000  # of a bootstrap
_FLIPS = 20_000  # of a paired test
_BLOCK = 2**22  # random numbers at a time
_SAME = 1e-9  # sums of the same numbers in another order differ by less, relative to their size


def bootstrap_means(
    values: Array, cases: Array | None = None, users: Array | None = None, *, seed: int = 0
) -> tuple[Array, Array]:
    """The ends of the 95 % bootstrap interval of each column's mean; users are drawn.

    A row of `values` holds the sums over one user's cases, and `cases` the number of these (1 unless given); it
    stands for so many `users` (1 unless given).
    Drawing n rows is a multinomial draw over the distinct rows. These are few, since most cases are
    misses: so the bootstrap is fast without being an approximation.
    """
    if not len(values):
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing
    ones = np.ones(len(values), np.int64)
    alike = ones if users is None else users
    distinct, counts = _distinct(values, ones if cases is None else cases, alike)
    sums = _resampled(np.random.default_rng(seed), counts, distinct)
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(sums[:, :-1] / sums[:, -1:], [tail, 1 - tail], axis=0)
    return low, high


def _distinct(values: Array, cases: Array, users: Array) -> tuple[Array, Array]:
    """Distinct rows (the number of cases in the last column) in ascending order, and how many users have each."""
    table = pl.DataFrame(np.column_stack([values, cases]), orient="row")
    users_of = table.with_columns(pl.Series("count", users))
    found = users_of.group_by(table.columns).agg(pl.col("count").sum()).sort(table.columns)
    return found.drop("count").to_numpy(order="c"), found["count"].to_numpy().astype(np.int64)


def _resampled(rng: np.random.Generator, counts: Array, distinct: Array) -> Array:
    """Means of the columns over as many rows as there are, in each of the resamples."""
    total, size = counts.sum(), max(1, _BLOCK // len(counts))
    parts = []
    for start in range(0, _SAMPLES, size):
        drawn = rng.multinomial(total, counts / total, size=min(size, _SAMPLES - start))
        parts.append(drawn @ distinct / total)
    return np.concatenate(parts)


@dataclass(frozen=True)
class Paired:
    """B against A on the same users: `difference` is B - A."""

    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    p: float
    effect: float  # the mean difference over its standard deviation (Cohen's d of paired samples)
    better: int  # users for whom B is better
    worse: int
    users: int

    def to_dict(self) -> dict[str, Any]:
        """The object of one metric in what `talerec compare --json` prints."""
        relative = self.difference / self.a if self.a else None
        return {**asdict(self), "interval": list(self.interval), "relative": relative}


def paired(a: Array, b: Array, *, seed: int = 0) -> Paired:
    """Compare two models by their values for the same users.

    p is that of a sign-flip (Fisher-Pitman) test: were the models alike, each user's difference could
    as well have the other sign, and p is the share of such assignments of signs whose mean is at least as
    far from 0 as the one observed. It assumes nothing about the distribution.
    """
    if a.shape != b.shape or not len(a):
        raise TalerecError("a paired comparison takes one value of each model for every user")
    change = b - a
    low, high = bootstrap_means(change[:, None], seed=seed)
    spread = float(change.std(ddof=1)) if len(change) > 1 else 0.0
    mean = float(change.mean())
    return Paired(
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
    """Two-sided p; users with differences of the same size are drawn together, by a binomial."""
    size, counts = np.unique(np.abs(change[change != 0]), return_counts=True)
    if not size.size:
        return 1.0
    observed = abs(change.sum()) * (1 - _SAME)
    as_far, block = 0, max(1, _BLOCK // len(size))
    for start in range(0, _FLIPS, block):
        rounds = min(block, _FLIPS - start)
        plus = rng.binomial(counts, 0.5, size=(rounds, len(size)))
        as_far += int((np.abs((2 * plus - counts) @ size) >= observed).sum())
    return (1 + as_far) / (1 + _FLIPS)
