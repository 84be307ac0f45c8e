"""Pseudo-random numbers that depend on a seed and a position alone (splitmix64)."""

from __future__ import annotations

import numpy as np

from talerec.runtime import Array, kernel

STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@kernel
def mix_bits(x: np.uint64) -> np.uint64:
    """Return splitmix64's output function of x: a bijection of 64 bits that looks random.

    Equal x give equal results; consecutive multiples of STEP give a random sequence.
    """
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@kernel
def hash_numbers(seed: np.uint64, stream: int, n: int) -> Array:
    """Return n distinct pseudo-random numbers of 64 bits (uint64).

    `stream` is a small integer; each pair (seed, stream) gives an independent sequence.
    """
    base = mix_bits(mix_bits(seed) + np.uint64(stream) * STEP)
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = mix_bits(base + np.uint64(i) * STEP)
    return out


@kernel
def draw_uniform(state: Array) -> float:
    """Return a pseudo-random number in (0, 1) by the generator splitmix64.

    `state` is the generator's, an array of one uint64 that advances in place.
    """
    state[0] += STEP
    value: float = (np.float64(mix_bits(state[0]) >> np.uint64(12)) + 0.5) * 2.0**-52
    return value


def hash_uniforms(seed: np.uint64, stream: int, n: int) -> Array:
    """Return n pseudo-random numbers in (0, 1), as float64.

    Each pair (seed, stream) gives an independent sequence; `stream` is a small integer.
    """
    return ((hash_numbers(seed, stream, n) >> np.uint64(12)) + 0.5) * 2.0**-52


@kernel
def draw_long_tailed(state: Array, mean: float, power: float) -> float:
    """Return a random waiting time of this mean, with tail x ** -power (Lomax distribution).

    `state` is the random generator's; the result has the unit of `mean`.
    """
    tail: float = draw_uniform(state) ** (-1 / power)
    return mean * (power - 1) * (tail - 1)
