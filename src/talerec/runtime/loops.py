"""Steps that kernels take instead of NumPy's, because those take seconds to compile.

A slice assigned from an array (`a[x:y] = b`) brings a message about shapes that do not match, with all that
Numba needs to put text together (2 s); `np.partition` brings checks, sorting and more (4 s).
"""

from __future__ import annotations

from talerec.runtime.arrays import Array
from talerec.runtime.jit import template


@template
def copy_part(source: Array, target: Array, start: int, stop: int) -> None:
    """target[start:stop] = source[start:stop]"""
    for x in range(start, stop):
        target[x] = source[x]


@template
def kth_smallest(values: Array, k: int) -> float:
    """The value with k smaller or equal ones before it (k from 0), as np.partition(values, k)[k]. No value may be NaN."""
    work = values.copy()
    low, high = 0, len(work) - 1
    while low < high:
        middle = work[(low + high) >> 1]
        left, right = low, high
        while left <= right:
            while work[left] < middle:
                left += 1
            while middle < work[right]:
                right -= 1
            if left <= right:
                work[left], work[right] = work[right], work[left]
                left, right = left + 1, right - 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            break
    return work[k]  # type: ignore[no-any-return]
