"""Weights: B from source (row) to target (column), and the scores x @ B of a history x.

Sources are items, as a rule; x says how much each of them counts. Other models bring their own:
the dimensions of a factor model, or rows of other users' histories. An item has a score when some
source has a stored weight to it (one that is not zero), or when the model gives it a base score.
Every other item has none and is never ranked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from talerec.arrays import Array, Arrays, is_sparse
from talerec.histories import Histories
from talerec.jit import kernel, template, unsigned

_ASIDE = "aside_"  # before the names of such arrays in an artifact
_FEW_ITEMS = 2**15  # so many that a score for each of them fits into the cache
UNTOUCHED = -(2**63)  # the bits of -0.0


@dataclass(frozen=True, eq=False)
class Query:
    """Histories as sparse rows x: query q weighs the sources item[ptr[q]:ptr[q+1]], none twice."""

    ptr: Array
    item: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @classmethod
    def empty(cls, queries: int) -> Query:
        return cls(np.zeros(queries + 1, np.int64), np.empty(0, np.int32), np.empty(0))

    @classmethod
    def joined(cls, parts: Sequence[Query]) -> Query:
        """What several queries ask of the same histories, in one: the sources of each, in this order."""
        lengths = [np.diff(part.ptr) for part in parts]
        ptr = np.concatenate([[0], np.cumsum(np.sum(lengths, axis=0))])
        item, weight = np.empty(ptr[-1], np.int32), np.empty(ptr[-1])
        begin = ptr[:-1].copy()
        for part, length in zip(parts, lengths, strict=True):
            place = np.arange(len(part.item)) + np.repeat(begin - part.ptr[:-1], length)
            item[place], weight[place] = part.item, part.weight
            begin += length
        return cls(ptr, item, weight)


@dataclass(frozen=True, eq=False)
class Weights:
    """B, dense float32 (C order) or CSR with float32 values; `base` adds a score that no history is asked for.

    base         float64, NaN for an item without one, or None
    fade         None, or: B's rows are histories, their entries in the order of time, and a source is an
                 entry. It gives fade[d] to the items d places away in its history
    aside        what else the model needs to make queries, by name; saved with the rest
    known_peaks  `peaks` that were saved
    """

    matrix: Any
    base: Array | None = None
    fade: Array | None = None
    aside: dict[str, Array] = field(default_factory=dict)
    known_peaks: Array | None = None
    _scratch: threading.local = field(default_factory=threading.local, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:  # work space stays with its threads
        return Weights, (self.matrix, self.base, self.fade, self.aside, self.known_peaks)

    def kept(self) -> dict[str, Array]:
        """Every array by name, for an artifact."""
        arrays = {f"{_ASIDE}{name}": array for name, array in self.aside.items()}
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
        aside = {
            name.removeprefix(_ASIDE): array
            for name, array in arrays.items()
            if name.startswith(_ASIDE)
        }
        return cls(matrix, arrays.get("base"), arrays.get("fade"), aside, arrays.get("peaks"))

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
            return self.matrix.indptr, self.matrix.indices, self.matrix.data, base
        return self.matrix, base

    @cached_property
    def peaks(self) -> Array:
        """The largest absolute weight of each source of sparse weights."""
        if self.known_peaks is not None:
            return self.known_peaks
        peaks: Array = row_peaks(self.matrix.indptr, self.matrix.data)
        return peaks

    def scratch(self) -> tuple[Array, ...]:
        """This thread's work space: candidates and their scores, slots or sums, marks and hidden by item.

        Kernels leave it as they found it: slots, marks and hidden all zero, sums all -0.0, and with
        dense weights every item a candidate.
        """
        held: tuple[Array, ...] | None = getattr(self._scratch, "arrays", None)
        if held is None:
            n = self.items
            few = self.is_sparse and n <= _FEW_ITEMS
            slots = np.zeros(0 if few or not self.is_sparse else 2 << n.bit_length(), np.int32)
            sums = np.full(n if few else 0, -0.0)
            marks, hidden = np.zeros(n, np.uint8), np.zeros(n, np.uint8)
            held = (np.arange(n + 1, dtype=np.int32), np.empty(n + 1), slots, sums, marks, hidden)
            self._scratch.arrays = held
        return held

    def parts(self, query: Query, targets: Array) -> Array:
        """x_i B_ij of one query: targets (rows) x its sources (columns), 0 where no weight is stored."""
        if self.is_sparse:
            found: Array = _sparse_parts(self.arrays[:3], query.item, query.weight, targets)
            return found
        dense: Array = query.weight * self.matrix[query.item][:, targets].T.astype(np.float64)
        return dense

    def reasons(self, query: Query, targets: Array, most: int) -> tuple[Array, Array]:
        """For each target, the sources of one query that give it most, for or against, and what they give."""
        if self.is_sparse:
            asked = (query.item, query.weight, targets, most)
            sources, given = sparse_reasons(self.arrays[:3], self.peaks, *asked)
            return sources, given
        columns, given = strongest(self.parts(query, targets), most)
        return query.item[columns], given


def no_weights(n: int) -> Any:
    """B with nothing in it."""
    return sparse.csr_array((n, n), dtype=np.float32)


# -- scores ----------------------------------------------------------------------------------------
#
# score_*(weights, items, weights of the items, scratch) -> number of candidates. The candidates' items
# and scores stand at the front of the work space; NaN stands for none.


@template
def score_dense(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    B, base = arrays
    scores, n = scratch[1], len(scratch[1]) - 1
    for j in range(n):
        scores[j] = 0.0 if len(base) == 0 or np.isnan(base[j]) else base[j]
    for x in range(len(item)):
        row, w = B[item[x]], weight[x]
        for j in range(n):
            scores[j] += w * row[j]
    for j in range(n):
        if scores[j] == 0.0:
            stored = len(base) > 0 and not np.isnan(base[j])
            for x in range(len(item)):
                stored = stored or B[item[x], j] != 0.0
            if not stored:
                scores[j] = np.nan
    return n


@template
def score_sparse(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    slots = slots_for(len(arrays[3]), scratch)
    found = add_base(arrays, scratch, slots)
    for x in range(len(item)):
        slots = room_for(arrays, item[x], scratch, slots, found)
        found = add_source(arrays, item[x], weight[x], scratch, slots, found)
    return settle(scratch, slots, found)


@template
def score_runs(arrays: Arrays, entry: Array, weight: Array, scratch: Arrays) -> int:
    """Scores from histories: each source is an entry of one, and its neighbours there get the fading of their distance."""
    indptr, indices, fade, base = arrays
    slots = slots_for(len(base), scratch)
    found = add_base(arrays, scratch, slots)
    given = np.empty(len(fade))
    for x in range(len(entry)):
        history = np.searchsorted(indptr, entry[x], side="right") - 1
        lo, hi = indptr[history], indptr[history + 1]
        for e in range(lo, hi):
            given[e - lo] = fade[abs(e - entry[x])]
        slots = room_for(arrays, history, scratch, slots, found)
        near = (indices[lo:hi], given, 0, hi - lo)
        found = add_row(*near, weight[x], scratch, slots, found)
    return settle(scratch, slots, found)


# How a candidate is found by its item. Few items have a sum each; -0.0, which no sum that something was
# added to can be, says that an item is no candidate. Of many items, only candidates stand in a table of slots.


@template
def are_few(scratch: Arrays) -> bool:
    return len(scratch[3]) > 0


@template
def settle(scratch: Arrays, slots: Array, found: int) -> int:
    """Put the candidates and their scores to the front, and empty what found them; how many there are."""
    candidates, scores, _, sums = scratch[:4]
    slots[:] = 0
    if not are_few(scratch):
        return found
    place, untouched = np.uint64(0), sums.view(np.int64)
    for j in range(
        len(sums)
    ):  # one place more than items: written before it is known whether it counts
        candidates[place], scores[place] = j, sums[j]
        place += np.uint64(untouched[j] != UNTOUCHED)
    sums[:] = -0.0
    return int(np.int64(place))


@template
def room_for(arrays: Arrays, i: int, scratch: Arrays, slots: Array, found: int) -> Array:
    """Slots for what has been found and all of row i: these, or more of them."""
    indptr, candidates = arrays[0], scratch[0]
    wider = slots_for(found + indptr[i + 1] - indptr[i], scratch)
    if len(wider) <= len(slots):
        return slots
    slots[:] = 0
    for c in range(found):
        wider[slot_of(candidates[c], wider, candidates)] = c + 1
    return wider


@template
def slots_for(most: int, scratch: Arrays) -> Array:
    """Slots for so many candidates, and no more: a small table stays in the cache."""
    most = min(most, len(scratch[0]))
    size = 16
    while size < 2 * most:
        size *= 2
    slots: Array = scratch[2][: min(size, len(scratch[2]))]
    return slots


@template
def slot_of(j: int, slots: Array, candidates: Array) -> int:
    """Where item j stands in the table, or the empty slot where it would."""
    last = len(slots) - 1
    slot = ((j * 2654435769) >> 7) & last
    while slots[slot] != 0 and candidates[slots[slot] - 1] != j:
        slot = (slot + 1) & last
    return slot


@template
def add_base(arrays: Arrays, scratch: Arrays, slots: Array) -> int:
    """Start with the items that have a base score; how many candidates that makes."""
    base = arrays[3]
    candidates, scores, _, sums = scratch[:4]
    found = 0
    for j in range(len(base)):
        if np.isnan(base[j]):
            continue
        if are_few(scratch):
            sums[j] = base[j] + 0.0
        else:
            candidates[found], scores[found] = j, base[j]
            found += 1
            slots[slot_of(j, slots, candidates)] = found
    return found


@template
def add_source(arrays: Arrays, i: int, w: float, scratch: Arrays, slots: Array, found: int) -> int:
    """Add w times row i of B; how many candidates there are now."""
    indptr, indices, values, _ = arrays
    lo, hi = indptr[i], indptr[i + 1]
    return add_row(indices, values, lo, hi, w, scratch, slots, found)


@template
def add_row(
    items: Array,
    values: Array,
    lo: int,
    hi: int,
    w: float,
    scratch: Arrays,
    slots: Array,
    found: int,
) -> int:
    """Add w times values[lo:hi] to the scores of items[lo:hi]; how many candidates are in the table now."""
    candidates, scores, _, sums = scratch[:4]
    if are_few(scratch):
        for e in unsigned(lo, hi):
            if values[e] != 0.0:  # and what is too small to be seen is 0.0, not -0.0
                sums[np.uint32(items[e])] += w * values[e] + 0.0
        return found
    for e in unsigned(lo, hi):
        if values[e] == 0.0:
            continue
        slot = slot_of(items[e], slots, candidates)
        if slots[slot] == 0:
            candidates[found], scores[found] = items[e], 0.0
            found += 1
            slots[slot] = found
        scores[slots[slot] - 1] += w * values[e]
    return found


@template
def found_at(indices: Array, lo: int, hi: int, j: int) -> int:
    """Where j stands in the ascending indices[lo:hi], -1 where it does not."""
    end = hi
    while lo < hi:
        middle = (lo + hi) >> 1
        if indices[middle] < j:
            lo = middle + 1
        else:
            hi = middle
    return lo if lo < end and indices[lo] == j else -1


@kernel
def _sparse_parts(arrays: Arrays, item: Array, weight: Array, targets: Array) -> Array:
    indptr, indices, values = arrays
    parts = np.zeros((len(targets), len(item)))
    for x in range(len(item)):
        lo, hi = indptr[item[x]], indptr[item[x] + 1]
        for t in range(len(targets)):
            e = found_at(indices, lo, hi, targets[t])
            if e >= 0:
                parts[t, x] = weight[x] * values[e]
    return parts


@template
def _put_in(value: float, what: int, values: Array, names: Array, size: int) -> int:
    """Put a value where it belongs among the `size` largest so far, by absolute value; how many there are now."""
    most = len(values)
    m = min(size, most)
    if m == most and (most == 0 or abs(values[m - 1]) >= abs(value)):
        return size
    while m > 0 and abs(values[m - 1]) < abs(value):
        if m < most:
            values[m], names[m] = values[m - 1], names[m - 1]
        m -= 1
    values[m], names[m] = value, what
    return min(size + 1, most)


@kernel
def sparse_reasons(
    arrays: Arrays, peaks: Array, item: Array, weight: Array, targets: Array, most: int
) -> tuple[Array, Array]:
    """A source that cannot give more than those found so far is not looked up."""
    indptr, indices, values = arrays
    most = min(most, len(item))
    sources = np.zeros((len(targets), most), np.int32)
    given = np.zeros((len(targets), most))
    for t in range(len(targets)):
        size = 0
        for x in range(len(item)):
            i = item[x]
            if size == most and abs(weight[x]) * peaks[i] <= abs(given[t, most - 1]):
                continue
            e = found_at(indices, indptr[i], indptr[i + 1], targets[t])
            if e >= 0:
                size = _put_in(weight[x] * values[e], i, given[t], sources[t], size)
    return sources, given


@kernel
def strongest(parts: Array, most: int) -> tuple[Array, Array]:
    """Of each row, the columns of its `most` largest absolute values, and the values; equal ones in column order."""
    rows, size = parts.shape
    most = min(most, size)
    columns, values = np.zeros((rows, most), np.int64), np.zeros((rows, most))
    for r in range(rows):
        found = 0
        for c in range(size):
            found = _put_in(parts[r, c], c, values[r], columns[r], found)
    return columns, values


@kernel
def row_peaks(indptr: Array, values: Array) -> Array:
    """The largest absolute value of each compressed row."""
    peaks = np.zeros(len(indptr) - 1, np.float32)
    for i in range(len(peaks)):
        for e in range(indptr[i], indptr[i + 1]):
            peaks[i] = max(peaks[i], abs(values[e]))
    return peaks


# -- histories -------------------------------------------------------------------------------------


def recency(
    histories: Histories, moments: Array, places: float, longest: int, marks: Array
) -> Query:
    """x_i = exp(-place / places) for the items of each history; see `last_places`."""
    ptr, item, place = last_places(histories, moments, longest, marks)
    return Query(ptr, item, np.exp(-place / places))


def last_places(
    histories: Histories, moments: Array, longest: int, marks: Array
) -> tuple[Array, Array, Array]:
    """The items of each history, newest first, each once, and the place of its last row: (ptr, item, place)."""
    rows = (histories.start, histories.stop, histories.item)
    found: tuple[Array, Array, Array] = _last_places(*rows, moments, longest, marks)
    return found


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
