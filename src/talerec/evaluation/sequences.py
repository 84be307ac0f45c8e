"""A confidence sequence for the difference of two groups of users, valid at every look.

A usual interval is right at one planned number of users; who looks after every user and stops when
it excludes 0 errs far more often than in 5 %. The confidence sequence covers the true difference at
all times at once with probability 95 %, so that anybody may look at any time and stop.

It is the asymptotic sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (Time-uniform
central limit theory, 2021): the boundary of Robbins' normal mixture around the difference of means,
with the variance estimated from the users so far. Sequences without asymptotics (empirical
Bernstein) need several times as many users for rates of a few percent. As in `intervals`, the
variance has a prior, so that the first few clicks decide nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_ALPHA = 0.05  # the chance that the sequence misses the difference at any time
_MIN_USERS = 50  # of each group, before the sequence starts
_PRIOR_USERS = 1.0  # users with the largest possible outcome, added to the variance of each group
_TIGHTEST_AT = 5000.0  # users at which the sequence is narrowest, relative to a usual interval
_RHO_SQUARED = (-2 * math.log(_ALPHA) + math.log(-2 * math.log(_ALPHA)) + 1) / _TIGHTEST_AT


class OutcomeSums(NamedTuple):
    """Sums over the users of a group; each user has one outcome from 0 to 1."""

    users: int
    total: float  # of the outcomes
    squares: float  # of the outcomes

    @property
    def mean(self) -> float:
        """The mean outcome; 0 without users."""
        return self.total / self.users if self.users else 0.0

    @property
    def variance(self) -> float:
        """The variance of an outcome, as if one more user had the largest possible deviation."""
        deviations = max(0.0, self.squares - self.users * self.mean**2)
        return (deviations + _PRIOR_USERS) / max(1, self.users)


def difference_sequence(current: OutcomeSums, candidate: OutcomeSums) -> tuple[float, float] | None:
    """Return the interval of the difference of means, candidate - current, at this time.

    The probability that any interval of the sequence, at whatever number of users, misses the true
    difference is 5 %. None with fewer than 50 users in a group. With n users in all, whose
    difference of means has the estimated variance v, the interval is

        difference +- sqrt(v (n r + 1) / (n r) * 2 log(sqrt(n r + 1) / alpha)),

    where r sets at how many users the interval is tightest.

    Examples
    --------
    >>> low, high = difference_sequence(OutcomeSums(9000, 450, 450), OutcomeSums(9000, 630, 630))
    >>> f"{low:.3f} {high:.3f}"
    '0.009 0.031'
    """
    if min(current.users, candidate.users) < _MIN_USERS:
        return None
    n_users = current.users + candidate.users
    variance = current.variance / current.users + candidate.variance / candidate.users
    scaled = n_users * _RHO_SQUARED
    boundary = 2 * (scaled + 1) / scaled * math.log(math.sqrt(scaled + 1) / _ALPHA)
    distance = math.sqrt(variance * boundary)
    difference = candidate.mean - current.mean
    return max(-1.0, difference - distance), min(1.0, difference + distance)


def describe_difference(interval: tuple[float, float] | None) -> str:
    """Return advice in words for an interval of `difference_sequence`.

    Examples
    --------
    >>> describe_difference((0.004, 0.011))
    'the candidate is better by 0.4 to 1.1 points; enough users'
    """
    if interval is None:
        return f"too few users: at least {_MIN_USERS} of each model are needed"
    low, high = interval
    near, far = (_format_points(end) for end in sorted(interval, key=abs))
    if low > 0:
        return f"the candidate is better by {near} to {far} points; enough users"
    if high < 0:
        return f"the candidate is worse by {near} to {far} points; enough users"
    return (
        f"no difference is certain yet: the candidate is between {_format_points(low)} points worse"
        f" and {_format_points(high)} points better; more users are needed"
    )


def _format_points(share: float) -> str:
    """Return the size of a difference of rates in percentage points, with two decimals.

    Below a tenth of a point, two significant digits.
    """
    points = 100 * abs(share)
    text = f"{points:.2f}" if points >= 0.1 else f"{float(f'{points:.2g}'):f}"
    return text.rstrip("0").rstrip(".")
