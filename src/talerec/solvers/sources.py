"""Which sources a target of the local solver gets: those with the largest gain K_ij^2 / (G_ii + penalty_i).

Items are numbered by rank (see `half`).
"""

from __future__ import annotations

from typing import NamedTuple

from talerec.gram.sparse_kernels import sort_positions
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template
from talerec.runtime.loops import copy_part, kth_smallest
from talerec.solvers.compressed import Compressed

#: Entries of G that joining sources may look at for one target. Rows of ordinary logs add up to less; a user of thousands
#: of rows makes some that do not.
_WORK = 65_536


class Equations(NamedTuple):
    """The normal equations of all targets. Everything is by rank, but for K, which is by target, in items."""

    half: Compressed  # G below the diagonal
    lengths: Array  # of the rows of a half whose ranks go by entries of G; on a cluster they do not
    K: Compressed
    diagonal: Array  # of G, plus the penalty
    rank: Array  # of each item
    item: Array  # of each rank


class Limits(NamedTuple):
    """How many sources a target has."""

    together: int  # that are solved together; all items where this is as many
    most: int  # in all, the target itself included
    own: bool  # whether a target may be its own source; not for a zero diagonal


class Candidates(NamedTuple):
    """Scratch: the sources of one target, as ranks."""

    right: Array  # the target's column of K, by rank; zeros between targets
    sources: Array  # that the target may have besides itself
    support: Array  # those that are solved together
    gain: Array  # of the sources that stand in the same places
    spare: Array


@kernel
def keep_largest(gain: Array, item: Array, count: int, room: int) -> int:
    """Move the `room` items of largest gain to the front, in the order they stand; returns how many are kept."""
    if count <= room:
        return count
    threshold = kth_smallest(gain[:count], count - room)
    above = 0
    for c in range(count):
        above += gain[c] > threshold
    kept, equal = 0, room - above
    for c in range(count):
        if gain[c] > threshold or (gain[c] == threshold and equal > 0):
            equal -= gain[c] == threshold
            item[kept] = item[c]
            kept += 1
    return kept


@template
def _keep_best(found: Candidates, diagonal: Array, source: Array, count: int, room: int) -> int:
    """Keep the `room` sources of largest gain; returns how many are kept."""
    for c in range(count):
        found.gain[c] = found.right[source[c]] ** 2 / diagonal[source[c]]
    return keep_largest(found.gain, source, count, room)


@template
def _find_sources(equations: Equations, j: int, room: int, found: Candidates) -> int:
    """Write the sources that led to target j: all, or the `room` of largest gain; returns how many."""
    K, count = equations.K, 0
    for x in range(K.starts[j], K.starts[j + 1]):
        if K.indices[x] != j and K.values[x] != 0.0:
            found.sources[count] = equations.rank[K.indices[x]]
            count += 1
    return _keep_best(found, equations.diagonal, found.sources, count, room)


@template
def _drop_costly(equations: Equations, found: Candidates, count: int, least: int) -> int:
    """Keep fewer sources, those of largest gain, where rows are so long that joining all would take too long."""
    work = 0
    for c in range(count):
        work += equations.lengths[found.sources[c]]
    if work <= _WORK:
        return count
    room = max(least, count * _WORK // work)
    return _keep_best(found, equations.diagonal, found.sources, count, room)


@template
def _find_support(diagonal: Array, found: Candidates, count: int, own: int, room: int) -> int:
    """Write the sources that are solved together, ascending: the largest gains, and the target (rank `own`, or -1)."""
    support = found.support
    copy_part(found.sources, support, 0, count)
    others = room - 1 if own >= 0 and room > 1 else room
    size = _keep_best(found, diagonal, support, count, others)
    if own >= 0 and size < room:
        support[size] = own
        size += 1
    sort_positions(support[:size], len(diagonal), found.spare)
    return size


@template
def _take_all(items: int, without: int, support: Array) -> int:
    """All items are solved together, but for the rank `without` (-1: none)."""
    size = 0
    for r in range(items):
        if r != without:
            support[size] = r
            size += 1
    return size


@template
def choose_sources(
    equations: Equations, limits: Limits, j: int, found: Candidates
) -> tuple[int, int]:
    """How many sources target j has besides itself (0 where all items are solved together), and the support's size."""
    n, itself = len(equations.diagonal), equations.rank[j]
    if limits.together >= n:
        return 0, _take_all(n, -1 if limits.own else itself, found.support)
    if equations.K.starts[j] == equations.K.starts[j + 1]:
        return 0, 0
    count = _find_sources(equations, j, max(limits.most - limits.own, 1), found)
    count = _drop_costly(equations, found, count, limits.together)
    own = itself if limits.own else -1
    return count, _find_support(equations.diagonal, found, count, own, limits.together)
