"""Arrays by address, so that one compiled kernel reads any number of them.

Numba compiles a kernel again for every type of its arguments: for two arrays instead of one, for a memory-mapped
(read-only) array instead of a writable one. A table of addresses has one type, whatever it leads to. Whoever
makes the table checks the arrays (`address`) and keeps them alive.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from talerec.runtime.arrays import Array
from talerec.runtime.jit import template

carray: Any = getattr(numba, "carray")  # noqa: B009 (Numba exports it without saying so)


def address(array: Array, dtype: type) -> int:
    """Where the entries of an array begin in memory; it has to have this type, without gaps."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"kernels read {np.dtype(dtype)} in C order, not {array.dtype}")
    return int(array.__array_interface__["data"][0])


def _pointer_to(typing_context: Any, where: Any, dtype: Any) -> Any:
    """The address as a typed pointer."""
    pointer: Any = types.CPointer
    signature = pointer(dtype.dtype)(where, dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


_pointer: Any = intrinsic(_pointer_to)


def _without_owner(typing_context: Any, array: Any) -> Any:
    """The array without the count of its references."""

    null: Any = cgutils.get_null_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.return_type)(context, builder, arguments[0])
        made.meminfo = null(made.meminfo.type)
        made.parent = null(made.parent.type)
        return made._getvalue()

    return array(array), generate


#: An array whose references are not counted, inside a kernel whose caller keeps it alive. Counting costs several
#: nanoseconds each time that an array is taken out of a named tuple: more than the work of an innermost loop.
borrowed: Any = intrinsic(_without_owner)


@template
def int32_at(where: int, size: int) -> Array:
    """The int32 array of `size` entries at an address."""
    found: Array = carray(_pointer(where, np.int32), size)
    return found


@template
def int64_at(where: int, size: int) -> Array:
    """The int64 array of `size` entries at an address."""
    found: Array = carray(_pointer(where, np.int64), size)
    return found


@template
def float32_at(where: int, size: int) -> Array:
    """The float32 array of `size` entries at an address."""
    found: Array = carray(_pointer(where, np.float32), size)
    return found


@template
def float64_at(where: int, size: int) -> Array:
    """The float64 array of `size` entries at an address."""
    found: Array = carray(_pointer(where, np.float64), size)
    return found
