"""The sign-flip (Fisher-Pitman) test, computed without random signs.

If two models are equal, the difference of each user could have the other sign as well. The p-value
is the share of all assignments of signs whose sum is at least as far from 0 as the observed one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from talerec.runtime import Array

_DECIMALS = 12  # of differences; sums of the same numbers in another order are equal then
_ROUNDING = 1e-9  # relative: sums of the same numbers in another order differ by less
_MAX_OUTCOMES = 2**16  # different sums that are listed one by one
_RANK_GRID = 2520  # 1 / 2520 divides 1, 1 / 2, 1 / 3 ... 1 / 10, the gains of HR@10 and MRR@10
_LEVELS = 1024  # steps of a coarser grid up to the largest difference
_MAX_STEPS = 2**22  # of a grid between the ends of the distribution
_FAR = 10.0  # standard deviations: both ends of the distribution, beyond which is less than 1e-20
_NEGLIGIBLE = -40.0  # logarithm: smaller factors change no digit of a p-value
_SMALLEST_P = 1e-12  # smaller values would be rounding errors


def sign_flip_p_value(differences: Array) -> float:
    """Return the two-sided p-value of the sign-flip test over one difference per user.

    It is exact where few different sums are possible, and where all differences are multiples of 1
    or of 1 / 2520 (HR and MRR up to k = 10). Else differences are rounded to a fine grid. No result
    is below 1e-12; 1 if all differences are 0.
    """
    size, counts = np.unique(np.abs(differences).round(_DECIMALS), return_counts=True)
    counts = counts[size > 0]
    size = size[size > 0]
    observed = abs(float(differences.sum())) * (1 - _ROUNDING)
    if not observed:
        return 1.0
    if np.log(counts + 1.0).sum() <= math.log(_MAX_OUTCOMES):
        p_value = _sum_outcomes(size, counts, observed)
    else:
        p_value = _sum_frequencies(_round_to_grid(differences))
    return min(1.0, max(p_value, _SMALLEST_P))


def _sum_outcomes(size: Array, counts: Array, observed: float) -> float:
    """Return the probability of a sum at least as far from 0, from a list of all sums.

    counts[g] users have a difference of size[g], each with a random sign.
    """
    sums, chances = np.zeros(1), np.ones(1)
    for value, n_users in zip(size.tolist(), counts.tolist(), strict=True):
        n_plus = np.arange(n_users + 1)
        choices = np.array([math.lgamma(n + 1) for n in range(n_users + 1)])
        log_chances = choices[-1] - choices - choices[::-1] - n_users * math.log(2)
        sums = (sums[:, None] + value * (2 * n_plus - n_users)).ravel()
        chances = (chances[:, None] * np.exp(log_chances)).ravel()
    return float(chances[np.abs(sums) >= observed].sum())


class _GridSums(NamedTuple):
    """Sums of whole numbers with random signs: counts[g] users have +size[g] or -size[g].

    observed: the sum to compare with, from 0. deviation: the standard deviation of the sums.
    """

    size: Array
    counts: Array
    observed: int
    deviation: float


def _round_to_grid(differences: Array) -> _GridSums:
    """Return users' differences as whole multiples of a grid's step.

    The step is 1 or 1 / 2520 if all differences are multiples of it. Else it is the largest
    difference divided by 1,024, or larger for so many users that the grid would be too long.
    """
    largest = float(np.abs(differences).max())
    norm = math.sqrt(float((differences**2).sum()))
    finest = 2 * _FAR * norm / _MAX_STEPS
    for step in (1.0, 1.0 / _RANK_GRID):
        distance = np.abs(differences / step - np.rint(differences / step)).max()
        if step >= finest and distance <= _ROUNDING * max(1.0, largest / step):
            break
    else:
        step = max(largest / _LEVELS, finest)
    multiples = np.rint(differences / step)
    size, counts = np.unique(np.abs(multiples[multiples != 0]), return_counts=True)
    deviation = math.sqrt(float((counts * size**2).sum()))
    return _GridSums(size, counts, abs(int(multiples.sum())), deviation)


def _sum_frequencies(sums: _GridSums) -> float:
    """Return the probability of a sum at least as far from 0 as the observed one.

    The characteristic function of the sum is the product of cos(t size)^count over all sizes. At M
    frequencies t = 2 pi f / M it gives the distribution modulo M, from which the probabilities of
    the sums below the observed one are added up in closed form. M is so long that what lies beyond
    it is negligible. Most products are 0 after a few factors, and are dropped.
    """
    if sums.observed == 0:
        return 1.0
    if sums.observed >= _FAR * sums.deviation:
        return 0.0  # Hoeffding's bound: below 1e-21
    length = 2 * math.ceil(_FAR * sums.deviation) + 1
    frequency = np.arange(1, (length + 1) // 2)
    angle = 2 * np.pi / length
    logs, signs = np.zeros(len(frequency)), np.ones(len(frequency))
    order = np.argsort(-sums.counts)
    for size, n_users in zip(sums.size[order], sums.counts[order], strict=True):
        cosine = np.cos(angle * (frequency * size % length))
        with np.errstate(divide="ignore"):
            logs += n_users * np.log(np.abs(cosine))
        if n_users % 2:
            signs *= np.sign(cosine)
        remains = logs > _NEGLIGIBLE
        frequency, logs, signs = frequency[remains], logs[remains], signs[remains]
    angles = np.pi / length * frequency
    kernel = np.sin(angles * (2 * sums.observed - 1)) / np.sin(angles)
    below = (2 * sums.observed - 1 + 2 * float((signs * np.exp(logs) * kernel).sum())) / length
    return 1.0 - below
