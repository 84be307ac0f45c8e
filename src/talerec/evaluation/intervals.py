"""Confidence intervals of metrics and paired tests of two models; the unit is the user.

Intervals are of the kind of Agresti and Coull: the mean and its variance are computed as if a few
more users had been seen, half of them on either side. Unlike a bootstrap they cover with few hits,
need no random numbers, and are computed from sums over users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from talerec.errors import TalerecError
from talerec.evaluation.user_sums import UserSums, sum_users
from talerec.runtime import Array

_MIN_USERS = 10  # an interval over fewer users is so wide that texts say "too few users" instead
_LEVEL = 0.95  # confidence level of intervals
_MIN_FREEDOM, _MAX_T = 0.1, 1e6  # least degrees of freedom, and the quantile for one user
_SMALLEST_P = 0.0001  # texts do not tell smaller p-values apart
_PRIOR_HITS = 0.5  # prior weight of the largest possible variance, in hits


def mean_intervals(sums: UserSums) -> tuple[Array, Array]:
    """Return both ends of the 95 % interval of each metric's mean, clustered by user.

    `sums` has sums over users, an entry per metric: y is the metric summed over a user's cases, m
    their number; mm sums m**2. The metric of a case lies in [0, 1]. This is the interval of Agresti
    and Coull for n cases,

        mid = (n mean + t**2 / 2) / (n + t**2),   mid +- t sqrt(mid (1 - mid) / (n + t**2)),

    with Student's t for the effective number of users, m**2 / mm, and with that of cases

        n = m / deff,   deff = (Q + a mm / m) / (m mean (1 - mean) + a),   a = 1/2.

    Q is the sum over users of (y - mean m)**2, enlarged if users have unequal numbers of cases
    (`_scale_deviations`): a user who has most of them has the mean, and nearly no deviation. The
    design effect deff compares the variance with that of as many independent hits and misses: it is
    1 for the hit rate with one case per user, above 1 if a user's cases are alike, and below 1 for
    a metric whose hits count less than 1. With few hits it is close to mm / m, as if all cases of a
    user had the same value. Without users: 0 to 1.
    """
    if not sums.n_users.all():
        return np.zeros(len(sums.y)), np.ones(len(sums.y))
    mean, t = sums.means, _find_t_quantile(sums)
    variance = sums.m * mean * (1 - mean) + _PRIOR_HITS
    deff = (_scale_deviations(sums) + _PRIOR_HITS * sums.mm / sums.m) / variance
    effective = sums.m / deff + t**2
    middle = mean + t**2 * (0.5 - mean) / effective
    distance = t * np.sqrt(middle * (1 - middle) / effective)
    low, high = middle - distance, middle + distance
    return np.clip(low, 0.0, mean), np.clip(high, mean, 1.0)


def difference_intervals(sums: UserSums) -> tuple[Array, Array]:
    """Return both ends of the 95 % interval of each mean difference, clustered by user.

    `sums` has sums over users, an entry per metric: y is the difference of two models summed over a
    user's cases, m their number; yy and mm sum the squares. The difference of a case lies in [-1,
    1]. The interval is that of a mean, with the variance of t**2 / 2 more users who differ, half of
    them in each direction:

        mean +- t sqrt(Q + s t**2 / 2) / m,   s = (yy + a mm / n_users) / (n_nonzero + a),   a = 1/2

    Q is the sum over users of (y - mean m)**2, enlarged as for `mean_intervals`, and s the mean
    square of the differences that are not 0, which with few of them is close to the largest
    possible one. Without the addition, an interval over 4 users who all prefer one model would
    exclude 0. Without users: -1 to 1.
    """
    if not sums.n_users.all():
        return np.full(len(sums.y), -1.0), np.ones(len(sums.y))
    mean, t = sums.means, _find_t_quantile(sums)
    size = (sums.yy + _PRIOR_HITS * sums.mm / sums.n_users) / (sums.n_nonzero + _PRIOR_HITS)
    distance = t * np.sqrt(_scale_deviations(sums) + size * t**2 / 2) / sums.m
    return np.maximum(mean - distance, -1.0), np.minimum(mean + distance, 1.0)


def describe_few_users(n_users: int) -> str | None:
    """Return a sentence if users are fewer than 10, too few for intervals, else None."""
    if n_users >= _MIN_USERS:
        return None
    return (
        "the evaluated users are too few for confidence intervals"
        f" ({n_users}; at least {_MIN_USERS} are needed)"
    )


def _scale_deviations(sums: UserSums) -> Array:
    """Return the squared deviations of users, times n' / (n' - 1) over n / (n - 1).

    n is the number of users, n' = m**2 / mm the effective one; they are equal, and the factor is 1,
    if all users have the same number of cases.
    """
    n_users, effective = sums.n_users, _count_effective_users(sums)
    is_several = (n_users > 1) & (effective > 1)
    factor = np.ones(len(effective))
    np.divide(effective, effective - 1, out=factor, where=is_several)
    np.divide(factor * (n_users - 1), n_users, out=factor, where=is_several)
    return sums.squared_deviations * np.maximum(factor, 1.0)


def _count_effective_users(sums: UserSums) -> Array:
    """Return m**2 / mm: the number of users, or less if some have more cases than others."""
    return np.asarray(np.minimum(sums.m**2 / sums.mm, sums.n_users))


def _find_t_quantile(sums: UserSums) -> Array:
    """Return the 97.5 % quantile of Student's t for the effective number of users, less 1.

    For one user, from whom no variance can be estimated, a number that makes intervals as wide as
    possible.
    """
    from scipy.special import stdtrit

    freedom = _count_effective_users(sums) - 1
    quantile = stdtrit(np.maximum(freedom, _MIN_FREEDOM), (1 + _LEVEL) / 2)
    return np.where(sums.n_users > 1, np.minimum(quantile, _MAX_T), _MAX_T)


@dataclass(frozen=True)
class PairedComparison:
    """Model B compared with model A in one metric, on the same users.

    a, b, difference  means of A and B over all cases (evaluated queries), and B - A
    interval          95 % interval of the difference, clustered by user
    p                 two-sided p-value of the sign-flip test over users
    effect            mean difference over its standard deviation (Cohen's d of paired samples)
    better, worse     users for whom B is better, and worse; users: all of them
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
        """Return one metric's comparison of B with A as a dict for JSON.

        Its fields by name, and `relative`: the difference divided by A's mean; None if that is 0.
        """
        relative = self.difference / self.a if self.a else None
        return {**asdict(self), "interval": list(self.interval), "relative": relative}


def compare_pairs(a: Array, b: Array, cases: Array | None = None) -> PairedComparison:
    """Return the comparison of two models by one metric of the same users.

    a and b hold one number per user: the metric summed over the user's cases (evaluated queries),
    of which `cases` has the number (by default 1). p is that of a sign-flip (Fisher-Pitman) test:
    if the models were equal, each user's difference could have the other sign as well; p is the
    share of assignments of signs whose mean is at least as far from 0 as the observed one. The test
    assumes nothing about the distribution. TalerecError without users.
    """
    if a.shape != b.shape or not len(a):
        raise TalerecError("a paired comparison takes one value of each model for every user")
    from talerec.evaluation.sign_flips import sign_flip_p_value  # comparisons alone need it

    change = b - a
    sums = sum_users(change[:, None], cases)
    (mean,), (low,), (high,) = sums.means, *difference_intervals(sums)
    n_users, n_cases = len(change), sums.m[0]
    variance = sums.squared_deviations[0] / max(n_users - 1, 1) * (n_users / n_cases) ** 2
    return PairedComparison(
        a=float(a.sum() / n_cases),
        b=float(b.sum() / n_cases),
        difference=float(mean),
        interval=(float(low), float(high)),
        p=sign_flip_p_value(change),
        effect=float(mean / np.sqrt(variance)) if variance > 0 else 0.0,
        better=int((change > 0).sum()),
        worse=int((change < 0).sum()),
        users=n_users,
    )


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, corrected for their number by Holm's method.

    A corrected p-value below 5 % can be called significant: the chance that any of these tests
    finds a difference where there is none (the family-wise error rate) is then at most 5 %. The
    smallest of n p-values is multiplied by n, the next by n - 1, and so on; none becomes smaller
    than one before it, or larger than 1. The result has the order of `p_values`.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def format_p_value(p: float, prefix: str = "") -> str:
    """Return a p-value as text such as 0.012, after `prefix`; "< 0.0001" for smaller values."""
    return f"{prefix}{p:.2g}" if p >= _SMALLEST_P else f"< {_SMALLEST_P:g}"
