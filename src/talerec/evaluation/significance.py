"""How sure is a figure, and does one model beat another? Resampling over users, with a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array

LEVEL = 0.95
_SAMPLES = 2000  # of a bootstrap
_FLIPS = 20_000  # of a paired test
_BLOCK = 2**22  # random numbers at a time
_SAME = 1e-9  # sums of the same numbers in another order differ by less, relative to their size


def bootstrap_means(
    values: Array, cases: Array | None = None, *, seed: int = 0, level: float = LEVEL
) -> tuple[Array, Array]:
    """The bootstrap interval of each column's mean; users are drawn.

    A row holds what one user's cases add up to, and `cases` says how many these are: one each, unless given.
    A resample of n rows is a multinomial draw over the distinct rows, which are few, since most cases
    are misses. So the bootstrap costs next to nothing and is no approximation.
    """
    if not len(values):
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing
    counted = np.ones(len(values)) if cases is None else cases
    distinct, counts = np.unique(np.column_stack([values, counted]), axis=0, return_counts=True)
    drawn = _draws(np.random.default_rng(seed), counts, distinct)
    tail = (1 - level) / 2
    low, high = np.quantile(drawn[:, :-1] / drawn[:, -1:], [tail, 1 - tail], axis=0)
    return low, high


def _draws(rng: np.random.Generator, counts: Array, distinct: Array) -> Array:
    total, size = counts.sum(), max(1, _BLOCK // len(counts))
    parts = []
    for a in range(0, _SAMPLES, size):
        picked = rng.multinomial(total, counts / total, size=min(size, _SAMPLES - a))
        parts.append(picked @ distinct / total)
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
        relative = self.difference / self.a if self.a else None
        return {**asdict(self), "interval": list(self.interval), "relative": relative}


def paired(a: Array, b: Array, *, seed: int = 0, level: float = LEVEL) -> Paired:
    """Compare two models by their values for the same users.

    p: a sign-flip (Fisher-Pitman) test. Were the models alike, each user's difference could as well
    have the other sign; p is the share of such worlds whose mean differs as much as the one seen. It
    assumes nothing about the distribution.
    """
    if a.shape != b.shape or not len(a):
        raise TalerecError("a paired comparison takes two values for each of the same users")
    change = b - a
    low, high = bootstrap_means(change[:, None], seed=seed, level=level)
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
    """Two-sided p; users with the same size of difference are drawn together, by a binomial."""
    size, counts = np.unique(np.abs(change[change != 0]), return_counts=True)
    if not size.size:
        return 1.0
    seen = abs(change.sum()) * (1 - _SAME)
    as_far, block = 0, max(1, _BLOCK // len(size))
    for start in range(0, _FLIPS, block):
        rounds = min(block, _FLIPS - start)
        plus = rng.binomial(counts, 0.5, size=(rounds, len(size)))
        as_far += int((np.abs((2 * plus - counts) @ size) >= seen).sum())
    return (1 + as_far) / (1 + _FLIPS)
