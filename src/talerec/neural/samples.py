"""Samples: runs of rows that a network reads, and which of their rows have a target; batches of equal width.

A sample is `count` rows of the log from row `first` on. Of these rows the last `fresh` have a target: the row that comes
next. Windows have a target at every row, prefixes one at their last row, whole rows none (the network hides some).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from talerec.neural.settings import Rows
from talerec.runtime.arrays import Array

#: Ways to cut a log into samples.
WINDOWS, PREFIXES, WHOLE = "windows", "prefixes", "whole"


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a log, one entry of each array for each."""

    first: Array
    count: Array
    fresh: Array
    user: Array

    def __len__(self) -> int:
        return len(self.first)

    @property
    def work(self) -> Array:
        """What each sample counts for in a batch: its targets, or its rows where it has none."""
        return np.where(self.fresh == 0, self.count, self.fresh)


def cut(scheme: str, begin: Array, end: Array, longest: int) -> Samples:
    """The samples of users whose rows are begin..end, no sample longer than `longest`."""
    return {WINDOWS: windows, PREFIXES: prefixes, WHOLE: whole}[scheme](begin, end, longest)


def windows(begin: Array, end: Array, longest: int) -> Samples:
    """Every row but a user's first is a target once; cut from the newest row on, so that the oldest window is short."""
    made = whole(begin, np.maximum(end - 1, begin), longest)
    return replace(made, fresh=made.count)


def prefixes(begin: Array, end: Array, longest: int) -> Samples:
    """A sample for every row but a user's first, which is its target: the rows before it."""
    targets = np.maximum(end - begin - 1, 0)
    user = np.repeat(np.arange(len(begin)), targets)
    target = begin[user] + 1 + _places(targets)
    count = np.minimum(longest, target - begin[user])
    return Samples(target - count, count, np.ones_like(count), user)


def whole(begin: Array, end: Array, longest: int) -> Samples:
    """Every row is in one sample; cut from the newest row on."""
    pieces = -(-(end - begin) // longest)
    user = np.repeat(np.arange(len(begin)), pieces)
    last = end[user] - _places(pieces) * longest
    count = np.minimum(longest, last - begin[user])
    return Samples(last - count, count, np.zeros_like(count), user)


def _places(sizes: Array) -> Array:
    """0, 1, ... for each of some runs of these sizes, one run after the other."""
    ends = np.cumsum(sizes)
    found: Array = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    return found


def widths(longest: int) -> list[int]:
    """The widths that batches are padded to: 4, 8, 16, ... and the longest."""
    steps = [2**k for k in range(2, 30) if 2**k < longest]
    return [*steps, longest]


def batches(
    made: Samples, allowed: list[int], size: int, rng: np.random.Generator
) -> list[tuple[Array, int]]:
    """The samples in a new order, as batches of one width with about `size` targets (rows, where there are none)."""
    found: list[tuple[Array, int]] = []
    bucket = np.searchsorted(allowed, made.count)
    for number, width in enumerate(allowed):
        mine = rng.permutation(np.flatnonzero(bucket == number))
        if mine.size:
            parts = min(len(mine), -(-int(made.work[mine].sum()) // size))
            found += [(part, width) for part in np.array_split(mine, parts)]
    return [found[n] for n in rng.permutation(len(found))]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples as a network reads them, b of them in `width` columns, padding after each.

    item : numbers of items, 0 in padding
    time : microseconds, the last row's in padding
    now : when the row after each row came; for the newest row, when it is asked about
    count : rows of each sample; `lengths` has the same on the host
    place : flat positions (row of the batch times width plus column) of the rows that have a target
    target : the targets
    sample, user : which samples of an epoch these are, and whose
    vectors : vectors of the items, where the network's own table is not to be read
    """

    item: Any
    time: Any
    now: Any
    count: Any
    lengths: Array
    place: Any
    target: Any
    sample: Array
    user: Array
    vectors: Any = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def width(self) -> int:
        """Columns, padding included."""
        return int(self.item.shape[1])

    @property
    def known(self) -> Any:
        """Which cells hold rows."""
        return torch.arange(self.width, device=self.item.device) < self.count[:, None]


class Feed:
    """Turns samples of one log into batches on a device; the log's columns live there."""

    def __init__(self, rows: Rows, made: Samples, device: Any) -> None:
        self.rows, self.made, self.device = rows, made, device
        self._item = torch.as_tensor(np.asarray(rows.item, np.int64)).to(device)
        self._time = torch.as_tensor(np.array(rows.time, np.int64)).to(device)

    def batch(self, sample: Array, width: int) -> Batch:
        """These samples, `width` columns wide."""
        made, wide = self.made, np.arange(len(sample)) * width
        count, fresh = made.count[sample], made.fresh[sample]
        place = self._to(np.repeat(wide + count - fresh, fresh) + _places(fresh))
        first, length = self._to(made.first[sample]), self._to(count)
        column = torch.arange(width, device=self.device)
        row = first[:, None] + torch.minimum(column, length[:, None] - 1)
        following = (row + 1).clamp_(max=len(self._item) - 1)
        return Batch(
            item=self._item[row] * (column < length[:, None]),
            time=self._time[row],
            now=self._time[following],
            count=length,
            lengths=count,
            place=place,
            target=self._item[following.view(-1)[place]],
            sample=sample,
            user=made.user[sample],
        )

    def targets(self) -> Array:
        """The target of every sample that has one alone."""
        found: Array = self.rows.item[self.made.first + self.made.count]
        return found

    def same_target(self, sample: Array, rng: np.random.Generator) -> Array:
        """For each sample another one with the same target, drawn; itself where there is none."""
        order, low, size = self._by_target
        mine = low[sample]
        step = rng.integers(1, np.maximum(size[sample], 2))
        found: Array = order[mine + (self._place[sample] - mine + step) % size[sample]]
        return found

    @cached_property
    def _by_target(self) -> tuple[Array, Array, Array]:
        """Samples sorted by target; for each sample where the run of its target begins there, and how long it is."""
        wanted = self.targets()
        order = np.argsort(wanted, kind="stable")
        low = np.searchsorted(wanted[order], wanted, "left")
        return order, low, np.searchsorted(wanted[order], wanted, "right") - low

    @cached_property
    def _place(self) -> Array:
        """Where each sample stands among those sorted by target."""
        place = np.empty(len(self.made), np.int64)
        place[self._by_target[0]] = np.arange(len(self.made))
        return place

    def _to(self, values: Array) -> Any:
        return torch.as_tensor(values).to(self.device)
