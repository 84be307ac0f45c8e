"""Weights: B from source (row) to target (column), and the scores x @ B of a history x.

Sources are items, as a rule; x says how much each of them counts. There may be more: n sources that speak for the n
items once again, and others that speak for none. Other models bring their own: the dimensions of a factor
model, or rows of other users' histories. An item has a score when some
source has a stored weight to it (one that is not zero), or when the model gives it a base score.
Every other item has none and is never ranked.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from talerec.data.histories import Histories
from talerec.ranking import score_kernels
from talerec.runtime.arrays import Array, is_sparse
from talerec.runtime.jit import kernel

_ASIDE = "aside_"  # before the names of such arrays in an artifact
_FEW_ITEMS = 2**15  # so many that a score for each of them fits into the cache


@dataclass(frozen=True, eq=False)
class Query:
    """Histories as sparse rows x: query q weighs the sources item[ptr[q]:ptr[q+1]], none twice."""

    ptr: Array
    item: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def one(self, q: int) -> Query:
        """Query q alone."""
        mine = slice(self.ptr[q], self.ptr[q + 1])
        return Query(self.ptr[q : q + 2] - self.ptr[q], self.item[mine], self.weight[mine])

    @classmethod
    def empty(cls, queries: int) -> Query:
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int32), np.empty(0))


@dataclass(frozen=True, eq=False)
class Weights:
    """B, dense float32 (C order) or CSR with float32 values; `base` adds a score that no history is asked for.

    base         float64, NaN for an item without one, or None
    fade         None, or: B's rows are histories, their entries in the order of time, and a source is an
                 entry. It gives fade[d] to the items d places away in its history
    query_arrays        what else the model needs to make queries, by name; saved with the rest
    known_peaks  `peaks` that were saved
    """

    matrix: Any
    base: Array | None = None
    fade: Array | None = None
    query_arrays: dict[str, Array] = field(default_factory=dict)
    known_peaks: Array | None = None
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:  # work space stays with its threads
        return Weights, (self.matrix, self.base, self.fade, self.query_arrays, self.known_peaks)

    def kept(self) -> dict[str, Array]:
        """Every array by name, for an artifact."""
        arrays = {f"{_ASIDE}{name}": array for name, array in self.query_arrays.items()}
        if self.is_sparse:
            parts = {"indptr": self.matrix.indptr, "indices": self.matrix.indices}
            arrays |= {**parts, "data": self.matrix.data, "peaks": self.peaks}
        else:
            arrays["weights"] = self.matrix
        optional = {"base": self.base, "fade": self.fade}
        return arrays | {name: array for name, array in optional.items() if array is not None}

    @classmethod
    def restored(cls, arrays: dict[str, Array], items: int) -> Weights:
        """Weights from arrays that `kept` named."""
        if "weights" in arrays:
            matrix: Any = arrays["weights"]
        else:
            parts = (arrays["data"], arrays["indices"], arrays["indptr"])
            matrix = sparse.csr_array(parts, shape=(len(parts[2]) - 1, items))
        query_arrays = {
            name.removeprefix(_ASIDE): array
            for name, array in arrays.items()
            if name.startswith(_ASIDE)
        }
        return cls(
            matrix, arrays.get("base"), arrays.get("fade"), query_arrays, arrays.get("peaks")
        )

    @property
    def items(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def is_sparse(self) -> bool:
        return is_sparse(self.matrix)

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """What the kernels read: (dense, base), (indptr, indices, data, base) or (indptr, indices, fade, base)."""
        base = np.empty(0) if self.base is None else self.base
        if self.fade is not None:
            return self.matrix.indptr, self.matrix.indices, self.fade, base
        if self.is_sparse:
            B = _without_zeros(self.matrix) if self.are_few else self.matrix
            return B.indptr, B.indices, B.data, base
        return self.matrix, base

    @property
    def are_few(self) -> bool:
        """So few items that sparse scores have a place for each of them."""
        return self.is_sparse and self.items <= _FEW_ITEMS

    @cached_property
    def peaks(self) -> Array:
        """The largest absolute weight of each source of sparse weights."""
        if self.known_peaks is not None:
            return self.known_peaks
        peaks: Array = score_kernels.row_peaks(self.matrix.indptr, self.matrix.data)
        return peaks

    def scratch(self) -> tuple[Array, ...]:
        """This thread's work space: candidates and their scores, slots or sums, marks and hidden by item.

        Kernels leave it as they found it: slots, marks and hidden all zero, sums all -0.0, and with
        dense weights every item a candidate.
        """
        held: tuple[Array, ...] | None = getattr(self._scratch, "arrays", None)
        if held is None:
            n, few = self.items, self.are_few
            slots = np.zeros(0 if few or not self.is_sparse else 2 << n.bit_length(), np.int32)
            sums = np.full(n if few else 0, -0.0)
            marks, hidden = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
            held = (np.arange(n + 1, dtype=np.int32), np.empty(n + 1), slots, sums, marks, hidden)
            self._scratch.arrays = held
        return held

    def parts(self, query: Query, targets: Array) -> Array:
        """x_i B_ij of one query: targets (rows) x its sources (columns), 0 where no weight is stored."""
        if self.is_sparse:
            found: Array = score_kernels.sparse_parts(
                self.arrays[:3], query.item, query.weight, targets
            )
            return found
        dense: Array = query.weight * self.matrix[query.item][:, targets].T.astype(np.float64)
        return dense


def _without_zeros(matrix: Any) -> Any:
    if np.count_nonzero(matrix.data) == matrix.nnz:
        return matrix
    made = matrix.copy()
    made.eliminate_zeros()
    return made


def no_weights(n: int) -> Any:
    """B with nothing in it."""
    return sparse.csr_array((n, n), dtype=np.float32)


# -- histories -------------------------------------------------------------------------------------


def recency(
    histories: Histories, moments: Array, places: float, longest: int, marks: Array
) -> Query:
    """x_i = exp(-place / places) for the items of each history; see `last_places`."""
    rows = (histories.start, histories.stop, histories.item)
    return Query(*_recency(*rows, moments, longest, marks, places))


def last_places(
    histories: Histories, moments: Array, longest: int, marks: Array
) -> tuple[Array, Array, Array]:
    """The items of each history, newest first, each once, and the place of its last row: (ptr, item, place)."""
    rows = (histories.start, histories.stop, histories.item)
    found: tuple[Array, Array, Array] = _last_places(*rows, moments, longest, marks)
    return found


@kernel
def _recency(
    start: Array, stop: Array, item: Array, time: Array, longest: int, marks: Array, places: float
) -> tuple[Array, Array, Array]:
    ptr, items, place = _last_places(start, stop, item, time, longest, marks)
    return ptr, items, np.exp(-place / places)


@kernel
def _last_places(
    start: Array, stop: Array, item: Array, time: Array, longest: int, marks: Array
) -> tuple[Array, Array, Array]:
    """A row's place is the number of rows strictly later in `time`; with an empty `time` every row is an
    instant of its own. Rows beyond the last `longest` and items that are unknown (-1) are left out, but
    keep their places.
    """
    room = 0
    for q in range(len(start)):
        room += min(stop[q] - start[q], longest)
    ptr = np.zeros(len(start) + 1, np.int64)
    items, places = np.empty(room, np.int32), np.empty(room, np.int64)
    found = 0
    for q in range(len(start)):
        place = 0
        for r in range(stop[q] - 1, max(start[q], stop[q] - longest) - 1, -1):
            if r + 1 < stop[q] and (len(time) == 0 or time[r] < time[r + 1]):
                place = stop[q] - 1 - r
            i = item[r]
            if i >= 0 and not marks[i]:
                marks[i] = 1
                items[found], places[found] = i, place
                found += 1
        for x in range(ptr[q], found):
            marks[items[x]] = 0
        ptr[q + 1] = found
    return ptr, items[:found], places[:found]
