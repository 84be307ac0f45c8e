"""Loops that stand for NumPy's functions give what these give."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from talerec.runtime import copy_range, kth_largest, kth_smallest

FLOATS = st.one_of(st.floats(allow_nan=False), st.sampled_from([0.0, 1.0, 2.0]))


@settings(deadline=None)  # the first call compiles
@given(arrays(np.float64, st.integers(1, 80), elements=FLOATS), st.data())
def test_the_kth_smallest_is_that_of_a_sorted_array(
    values: np.ndarray, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    before = values.copy()
    assert kth_smallest(values, k) == np.sort(values)[k]
    assert (values == before).all()


@settings(deadline=None)
@given(
    arrays(np.float64, st.integers(1, 3000), elements=FLOATS, fill=st.sampled_from([0.0, 1.0])),
    st.sampled_from([1, 2, 30, 200, 3000]),
    st.booleans(),
)
def test_the_kth_largest_is_that_of_a_sorted_array(
    values: np.ndarray, k: int, is_sorted: bool
) -> None:
    values = np.sort(values) if is_sorted else values
    k, before = min(k, len(values)), values.copy()
    assert kth_largest(values, k) == np.sort(values)[-k]
    assert (values == before).all()


def test_a_sample_that_misses_the_largest_values_changes_no_result() -> None:
    values = np.zeros(2560)
    values[1::10] = np.arange(256) + 1.0  # every tenth value is sampled, these are not
    for k in (1, 5, 200, 256, 257, 600):
        assert kth_largest(values, k) == np.sort(values)[-k]


def test_a_range_is_copied_and_nothing_else() -> None:
    target = np.zeros(10, np.int64)
    copy_range(np.arange(10), target, 3, 6)
    assert target.tolist() == [0, 0, 0, 3, 4, 5, 0, 0, 0, 0]
