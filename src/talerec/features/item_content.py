"""What the item table says of items, as arrays that features are computed from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import Array

#: The date of an item without one.
NO_DATE = -(2**62)


class ItemContent(NamedTuple):
    """What the item table says of each item.

    vectors: float32, item x dimension, of length 1, or 0 for an item without content. In category
    column j, item i has the categories codes[indptr[j, i]:indptr[j, i + 1]], ascending.
    quantities: numbers, float64, column x item; NaN for none. dates: int64 microseconds, by item;
    `NO_DATE` for none.
    """

    vectors: Array
    indptr: Array  # int64, category column x (item + 1)
    codes: Array  # int32, of all category columns
    quantities: Array
    dates: Array


class ContentColumns(NamedTuple):
    """The names of the columns of the item table that features are computed from.

    quantities: columns of numbers. has_dates: whether there is a column of dates.
    """

    categories: tuple[str, ...]
    quantities: tuple[str, ...]
    has_dates: bool


def empty_content() -> ItemContent:
    """Return the content of items without an item table."""
    return ItemContent(
        np.zeros((0, 0), np.float32), np.zeros((0, 1), np.int64), np.zeros(0, np.int32),
        np.zeros((0, 0)), np.zeros(0, np.int64),
    )  # fmt: skip
