"""The times of a log's rows by item, in which rows before a time are counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.data import Log
from talerec.runtime import Array


class ItemTimes(NamedTuple):
    """The times of a log's rows (int64 microseconds), ascending: of each item, and of all.

    Item i has the times times[indptr[i]:indptr[i + 1]]; `all_times` has every row's.
    """

    indptr: Array
    times: Array
    all_times: Array

    @classmethod
    def from_log(cls, log: Log) -> ItemTimes:
        """Return the times of the rows of a log."""
        order = np.lexsort((log.time, log.item))
        counts = np.bincount(log.item, minlength=len(log.items))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(indptr, log.time[order], np.sort(log.time))
