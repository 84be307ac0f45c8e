"""Building blocks of compiled kernels: arrays by address, and loops that compile fast.

Numba compiles a kernel again for every type of its arguments: for two arrays instead of one, for a
memory-mapped (read-only) array instead of a writable one. A table of addresses has one type,
whichever arrays it refers to. The caller checks the arrays (`address`) and keeps them alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import load_numba, template
from talerec.runtime.lazy_kernels import LazyNumbaObject

carray: Any = LazyNumbaObject(lambda: load_numba().carray)


def address(array: Array, dtype: type) -> int:
    """Return the memory address of an array's first entry, for a kernel.

    TypeError unless the array has the type `dtype` and is contiguous in C order.
    """
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"kernels read {np.dtype(dtype)} in C order, not {array.dtype}")
    return int(array.__array_interface__["data"][0])


def _make_pointer(typing_context: Any, address_type: Any, dtype_class: Any) -> Any:
    """Return the type and the code generator of a pointer made from an address.

    The two values that Numba's `intrinsic` needs: the signature (integer, dtype) -> pointer to
    dtype, and a function that writes the LLVM instruction `inttoptr`. address_type, dtype_class:
    the Numba types of the two arguments.
    """
    from numba.core import types  # imported by now: Numba calls this function

    pointer: Any = types.CPointer
    signature = pointer(dtype_class.dtype)(address_type, dtype_class)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


def _make_intrinsic(definition: Any) -> Any:
    """Return Numba's intrinsic of a definition, for kernels; Numba is imported on first use."""
    return LazyNumbaObject(lambda: load_numba().extending.intrinsic(definition))


_pointer: Any = _make_intrinsic(_make_pointer)


def _drop_owner(typing_context: Any, array: Any) -> Any:
    """Return the type and the code generator of an array without its reference count.

    The two values that Numba's `intrinsic` needs: the signature array -> array, and a function that
    writes LLVM code which copies the array's header with null as owner.
    """

    from numba.core import cgutils  # Numba itself calls this

    null: Any = cgutils.get_null_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        copy = context.make_array(signature.return_type)(context, builder, arguments[0])
        copy.meminfo = null(copy.meminfo.type)
        copy.parent = null(copy.parent.type)
        return copy._getvalue()

    return array(array), generate


#: Return, inside a kernel, the array without reference counting; the caller keeps it alive.
#: Counting costs several nanoseconds each time that an array is taken out of a named tuple:
#: more than the work of an innermost loop.
borrow: Any = _make_intrinsic(_drop_owner)


@template
def int32_at(start: int, size: int) -> Array:
    """Return the int32 array of `size` entries at the memory address `start`, not copied."""
    array: Array = carray(_pointer(start, np.int32), size)
    return array


@template
def int64_at(start: int, size: int) -> Array:
    """Return the int64 array of `size` entries at the memory address `start`, not copied."""
    array: Array = carray(_pointer(start, np.int64), size)
    return array


@template
def float32_at(start: int, size: int) -> Array:
    """Return the float32 array of `size` entries at the memory address `start`, not copied."""
    array: Array = carray(_pointer(start, np.float32), size)
    return array


@template
def float64_at(start: int, size: int) -> Array:
    """Return the float64 array of `size` entries at the memory address `start`, not copied."""
    array: Array = carray(_pointer(start, np.float64), size)
    return array


# -- loops in place of NumPy calls that take seconds to compile ------------------------------------
# A slice assigned from an array (`a[x:y] = b`) compiles a message about shapes that do not match,
# with all that Numba needs to format text (2 s); `np.partition` compiles checks and sorting (4 s).


_SAMPLE = 256  # values of a sample


@template
def copy_range(source: Array, target: Array, start: int, stop: int) -> None:
    """Copy source[start:stop] to target[start:stop]."""
    for x in range(start, stop):
        target[x] = source[x]


@template
def kth_smallest(values: Array, k: int) -> float:
    """Return np.partition(values, k)[k], k counted from 0; no value may be NaN.

    `values` is 1-D and stays as it is.
    """
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


@template
def kth_largest(values: Array, k: int) -> float:
    """Return the k-th largest of the values, k counted from 1; no value may be NaN.

    `values` is 1-D and stays as it is. If k is small, a sample tells a bound that few values
    exceed, and only these are searched.
    """
    n = len(values)
    step = n // _SAMPLE
    if step < 2 or k * 4 > n:
        return kth_smallest(values, n - k)
    sample = np.empty(_SAMPLE)
    for x in range(_SAMPLE):
        sample[x] = values[x * step]
    expected = k / step
    rank = int(expected + 3.0 * np.sqrt(expected)) + 3  # too few values only rarely
    bound = kth_smallest(sample, max(_SAMPLE - rank, 0))
    large, size = np.empty(n + 1), 0  # one entry to spare
    for x in range(n):
        large[size] = values[x]  # overwritten unless it is large
        size += values[x] >= bound
    if size < k:
        return kth_smallest(values, n - k)
    return kth_smallest(large[:size], size - k)


@template
def count_before(values: Array, low: int, high: int, limit: int) -> int:
    """Return how many of values[low:high], which ascend, are below `limit`."""
    first = low
    while low < high:
        middle = (low + high) // 2
        if values[middle] < limit:
            low = middle + 1
        else:
            high = middle
    return low - first
