"""What tempo asks of a log in parts: habits, rows in the order of time, questions. No Spark.

Each function asks one part what `talerec.models` asks a whole log, or puts the answers of all parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.times import days
from talerec.models.core.persistence import RECENT_DAYS
from talerec.models.tempo import log_statistics as _habits
from talerec.models.tempo.holdout import Cut, Questions, sample, users_across
from talerec.models.tempo.log_statistics import Habits
from talerec.models.tempo.model import Tempo
from talerec.models.tempo.popularity import InTime, Memories
from talerec.runtime.arrays import Array
from talerec.runtime.lazy import sparse
from talerec.spark import blocks
from talerec.spark.partitions import Rows

# -- habits ----------------------------------------------------------------------------------------


def save_habits(log: Log, part: int, rows: Rows) -> None:
    """Save what a part says of its users: gaps in order, simultaneous pairs, repeats."""
    rows.save_array("gaps", part, np.sort(_habits.gaps(log)) if log.rows else log.time)
    rows.save_array("pairs", part, np.array(_habits.side_by_side(log)))
    hits, chances, count = _habits.repeat_counts(log)
    rows.save_array("repeats", part, np.concatenate([hits, chances, [count]]))


def habits_of(tempo: Tempo, rows: Rows, parts: int) -> Habits:
    """What all parts say together, exactly as one log does."""
    interval = _habits.in_days(median(list(rows.arrays("gaps", parts))))
    joint = tempo.is_joint(lambda: _are_ordered(rows, parts))
    hits, chances, count = np.split(sum(rows.arrays("repeats", parts)), [32, 64])
    return Habits(interval, joint, _habits.repeat_rates(hits, chances, int(count[0])))


def _are_ordered(rows: Rows, parts: int) -> bool:
    """Pairs of the first users come first, and no more than enough are looked at: as on one machine."""
    left, right = np.concatenate(list(rows.arrays("pairs", parts)), axis=1)
    return _habits.tell_order(left, right, rows.items)


def median(arrays: Sequence[Array]) -> float | None:
    """The median of whole numbers that lie in several arrays, each in order; None where there are none."""
    there = [array for array in arrays if len(array)]
    count = sum(map(len, there))
    if not count:
        return None
    return float(np.mean([smallest(there, k) for k in ((count - 1) // 2, count // 2)]))


def smallest(arrays: list[Array], k: int) -> int:
    """Number k of all values in order, by bisection of their range: only few pages of each array are read."""
    low, high = min(int(a[0]) for a in arrays), max(int(a[-1]) for a in arrays)
    while low < high:
        middle = (low + high) // 2
        if sum(int(np.searchsorted(a, middle, "right")) for a in arrays) > k:
            high = middle
        else:
            low = middle + 1
    return low


# -- rows in the order of time ---------------------------------------------------------------------

_TIMED = (np.int64, np.int32, np.float64)


def time_cells(rows: Rows, part: int, cuts: Array, position: Array) -> Iterator[pa.RecordBatch]:
    """Send the rows of a part to stretches of time: times, positions of items, weights where rows have them."""
    log = rows.log(part)
    order = np.argsort(log.time, kind="stable")
    time, item = log.time[order], position[log.item[order]]
    worth = np.empty(0) if log.weight is None else log.weight[order]
    bounds = np.concatenate([[0], np.searchsorted(time, cuts), [len(time)]])
    for number in np.flatnonzero(np.diff(bounds)):
        span = slice(bounds[number], bounds[number + 1])
        yield blocks.cells(int(number), part, time[span], item[span], worth[span])


def save_stretch(batches: blocks.Batches, number: int, rows: Rows) -> None:
    """Save a stretch of time: rows of one moment in the order of users."""
    time, item, worth = blocks.chained(batches, *_TIMED)
    order = np.argsort(time, kind="stable")
    names = ("by_time_time", "by_time_item", "by_time_worth")
    for name, array in zip(names, (time, item, worth), strict=True):
        rows.save_array(name, number, array[order] if len(array) else array)


def join_stretches(rows: Rows, count: int) -> None:
    """Put all stretches into one file each of times and items, and count items: all their rows, and those of the last days."""
    for name, kind in zip(("time", "item", "worth"), _TIMED, strict=True):
        _joined(rows, name, kind, count)
    found = in_time(rows)
    worth = blocks.mapped(rows.folder, f"{rows.kind}by_time_worth", np.float64)
    latest = int(found.time[-1]) if len(found.time) else 0  # a first fit may have no rows
    since = int(np.searchsorted(found.time, latest - days(RECENT_DAYS)))
    for name, first in (("counts", 0), ("lately", since)):
        weights = worth[first:] if len(worth) else None
        total = np.bincount(found.item[first:], weights, rows.items)
        rows.save_array(name, 0, total.astype(np.float64))


def _joined(rows: Rows, name: str, kind: type, count: int) -> Array:
    file = f"{rows.kind}by_time_{name}"
    return blocks.joined(rows.folder, file, count, kind, file)


def in_time(rows: Rows) -> InTime:
    """All rows in the order of time, items as positions."""
    time, item = (
        blocks.mapped(rows.folder, f"{rows.kind}by_time_{name}", kind)
        for name, kind in (("time", np.int64), ("item", np.int32))
    )
    return InTime(item, time, rows.items)


def save_memories(found: Memories, rows: Rows) -> None:
    """Save memories of what was popular."""
    shares = found.shares
    made = (shares.data, shares.indices, shares.indptr, *found[1:])
    for number, array in enumerate(made):
        rows.save_array("memories", number, array)


def load_memories(rows: Rows) -> Memories:
    """What `save_memories` saved."""
    data, indices, indptr, *others = (np.array(one) for one in rows.arrays("memories", 6))
    shape = (len(indptr) - 1, rows.items)
    return Memories(sparse.csr_array((data, indices, indptr), shape=shape), *others)


# -- questions -------------------------------------------------------------------------------------


class Asking(NamedTuple):
    """Where the rows end that questions are about, and which items (by rank) they ask for."""

    end: int
    wanted: Array


KINDS = ("fresh", "late")


def save_across(rows: Rows, part: int, ends: Array) -> None:
    """Save how many users of a part have rows on both sides of each end."""
    rows.save_array("across", part, users_across(rows.log(part), ends))


def save_askers(rows: Rows, part: int, asking: Asking) -> None:
    """Save the users of a part who can be asked."""
    found = Cut.at(rows.log(part), asking.end).askers(asking.wanted)
    for kind, users in zip(KINDS, found, strict=True):
        rows.save_array(f"{kind}_askers", part, users)


def save_questions(
    rows: Rows, first: Rows, part: int, asking: Asking, chosen: tuple[Array, Array]
) -> None:
    """Save the rows of the first fit, what they say of users, and the questions to chosen users of a part."""
    cut = Cut.at(rows.log(part), asking.end)
    train = cut.train(chosen[0])
    first.save(part, train)
    save_habits(train, part, first)
    for kind, asked in zip(KINDS, (cut.fresh(chosen[0]), cut.late(chosen[1])), strict=True):
        for name, array in _gathered(asked).items():
            first.save_array(f"{kind}_{name}", part, array)


def _gathered(asked: Questions) -> dict[str, Array]:
    """Questions with the rows of their histories alone."""
    histories, target = asked
    length = histories.stop - histories.start
    stop = np.cumsum(length)
    at = np.repeat(histories.start - (stop - length), length) + np.arange(length.sum())
    assert histories.now is not None
    return {
        "length": length,
        "item": histories.item[at],
        "time": histories.time[at],
        "now": histories.now,
        "target": target,
    }


def questions(first: Rows, kind: str, parts: int, position: Array) -> Questions:
    """The questions of all parts, items as positions."""
    length, item, time, now, target = (
        np.concatenate(list(first.arrays(f"{kind}_{name}", parts)))
        for name in ("length", "item", "time", "now", "target")
    )
    stop = np.cumsum(length)
    histories = Histories(stop - length, stop, position[item], time, now)
    return Questions(histories, position[target].astype(np.int64))


def chosen_askers(rows: Rows, kind: str, parts: int, all_rows: int) -> list[Array]:
    """The users of each part who are asked, where the log has so many rows: those that one machine asks."""
    askers = list(rows.arrays(f"{kind}_askers", parts))
    ends = np.cumsum([0, *map(len, askers)])
    chosen = sample(np.arange(ends[-1]), all_rows)
    cuts = np.searchsorted(chosen, ends)
    return [
        np.array(mine[chosen[a:b] - first])
        for mine, (a, b), first in zip(askers, pairwise(cuts), ends, strict=False)
    ]
