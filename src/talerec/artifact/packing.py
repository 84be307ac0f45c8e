"""Integer arrays of a saved model in fewer bytes, without loss.

A value is first + step * stored. Times of a log are whole seconds mostly, and positions of items
small numbers: four bytes, or two, hold what eight or four hold in memory. Large arrays stay as they
are, because processes that serve a model share the mapped file; small ones because nothing would be
gained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.runtime import Array

FEWEST = 2**16  # entries from which an array is packed
MOST = 2**22  # entries above which an array is mapped by the processes that read it
_TYPES = (np.uint8, np.uint16, np.uint32)
_ORIGINALS = ("<i4", "<i8")
_LIMIT = 2**62  # of numbers in a manifest


def pack_array(values: Array) -> tuple[Array, dict[str, Any] | None]:
    """Return the array to store, and what `unpack_array` needs; None if it is stored as it is.

    The latter is a dict for the manifest: "dtype" of the values, "first" and "step". Packed are
    arrays of int32 or int64 with 65,536 to 4 million entries that fit into fewer bytes.
    """
    if values.dtype.str not in _ORIGINALS or not FEWEST <= values.size <= MOST:
        return values, None
    first, last = int(values.min()), int(values.max())
    if max(-first, last) > _LIMIT:
        return values, None
    steps = values.astype(np.int64) - first
    step = max(int(np.gcd.reduce(steps, axis=None)), 1) if last - first > 2**16 else 1
    for dtype in _TYPES:
        if (last - first) // step <= np.iinfo(dtype).max and dtype().itemsize < values.itemsize:
            packing = {"dtype": values.dtype.str, "first": first, "step": step}
            return (steps // step).astype(dtype), packing
    return values, None


def unpack_array(stored: Array, packing: dict[str, Any] | None) -> Array:
    """Return the values of a stored array; `packing` is what `pack_array` returned with it.

    ValueError if a value does not fit the type that `packing` names.
    """
    if packing is None:
        return stored
    dtype, first, step = np.dtype(packing["dtype"]), packing["first"], packing["step"]
    limits = np.iinfo(dtype)
    if stored.dtype.kind != "u" or stored.size > MOST:
        raise ValueError("it cannot be a packed array")
    last = first + step * int(stored.max(initial=0))
    if first < limits.min or max(step, last) > limits.max:
        raise ValueError(f"a packed number is too large for {dtype}")
    values = stored.astype(dtype)
    if step != 1:
        values *= dtype.type(step)
    values += dtype.type(first)
    values.flags.writeable = False  # like a mapped file
    return values


def is_valid_packing(packing: Any) -> bool:
    """Return whether a manifest's entry on a packed integer array is valid, or is None.

    Packed arrays have fewer bytes: a value is `first` + `step` times the stored number.
    """
    if packing is None:
        return True
    if not isinstance(packing, dict) or packing.get("dtype") not in _ORIGINALS:
        return False
    first, step = packing.get("first"), packing.get("step")
    if type(first) is not int or type(step) is not int:
        return False
    return abs(first) <= _LIMIT and 1 <= step <= _LIMIT
