"""The interval of a median that the service's benchmark prints."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def median_interval(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in ("serve", "load"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    from serve import median_interval

    return median_interval


@pytest.mark.parametrize(("turns", "outside"), [(1, 0), (3, 0), (5, 0), (6, 0), (9, 1), (15, 3)])
def test_the_interval_leaves_out_as_many_values_as_the_sign_test_allows(
    turns, outside, median_interval
):
    values = np.random.default_rng(0).permutation(np.arange(float(turns))).tolist()
    assert median_interval(values) == ((turns - 1) / 2, outside, turns - 1 - outside)


def test_the_interval_holds_the_true_median_in_at_least_95_of_100_cases(median_interval):
    draws = np.random.default_rng(1).lognormal(0.0, 0.2, (4000, 9))
    intervals = [median_interval(row.tolist()) for row in draws]
    covered = np.mean([low <= 1.0 <= high for _, low, high in intervals])
    assert 0.95 < covered < 0.975  # 1 - 20 / 512 = 0.961
