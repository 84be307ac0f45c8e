"""Training samples: consecutive rows of a user with targets, and padded batches of them.

A sample is `count` rows of the log from row `first` on. Its last `n_targets` rows each have a
target: the next row. Windows have a target at every row, prefixes only at their last row, masked
samples none (the network hides some rows and predicts them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from talerec.neural.settings import Rows
from talerec.runtime import Array

#: How a log is cut into samples.
WINDOWS, PREFIXES, WHOLE = "windows", "prefixes", "whole"


@dataclass(frozen=True, eq=False)
class Samples:
    """Training samples of a log: one entry of each array per sample.

    A sample is rows first..first + count of the log, all of one user. Its last `n_targets` rows
    each have a target: the next row of the log. user : position of its user
    """

    first: Array
    count: Array
    n_targets: Array
    user: Array

    def __len__(self) -> int:
        return len(self.first)

    @property
    def work(self) -> Array:
        """Return the size of each sample: its targets, or its rows if it has none."""
        return np.where(self.n_targets == 0, self.count, self.n_targets)


def cut_samples(scheme: str, begin: Array, end: Array, longest: int) -> Samples:
    """Cut each user's rows begin[u]..end[u] into training samples of at most `longest` rows.

    A target is the row after a row, to be predicted. scheme : "windows" (every row has a target),
    "prefixes" (only the last) or "whole" (none)
    """
    return {WINDOWS: windows, PREFIXES: prefixes, WHOLE: whole}[scheme](begin, end, longest)


def windows(begin: Array, end: Array, longest: int) -> Samples:
    """Cut each user's rows begin[u]..end[u] into disjoint windows, a target for every row.

    A row's target is the next row, so every row but a user's first is a target exactly once, and
    the user's last row is only a target. Windows are cut from the newest row on, so the oldest of a
    user may have fewer than `longest` rows.
    """
    samples = whole(begin, np.maximum(end - 1, begin), longest)
    return replace(samples, n_targets=samples.count)


def prefixes(begin: Array, end: Array, longest: int) -> Samples:
    """Cut one sample per target (all but a user's first row): up to `longest` rows before it.

    begin, end : the first row of each user, and the row after the last. A sample is consecutive
    rows of a user, whose next row is its target.
    """
    targets = np.maximum(end - begin - 1, 0)
    user = np.repeat(np.arange(len(begin)), targets)
    target = begin[user] + 1 + _build_offsets(targets)
    count = np.minimum(longest, target - begin[user])
    return Samples(target - count, count, np.ones_like(count), user)


def whole(begin: Array, end: Array, longest: int) -> Samples:
    """Cut each user's rows begin[u]..end[u] into samples without targets; every row is in one.

    Samples are cut from the newest row on, so the oldest of a user may have fewer than `longest`.
    """
    pieces = -(-(end - begin) // longest)
    user = np.repeat(np.arange(len(begin)), pieces)
    last = end[user] - _build_offsets(pieces) * longest
    count = np.minimum(longest, last - begin[user])
    return Samples(last - count, count, np.zeros_like(count), user)


def _build_offsets(sizes: Array) -> Array:
    """Return 0, 1, ..., size - 1 for each of the sizes, all concatenated."""
    ends = np.cumsum(sizes)
    offsets: Array = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    return offsets


def widths(longest: int) -> list[int]:
    """Return the ascending widths that batches are padded to: 4, 8, 16, ... and `longest`."""
    steps = [2**k for k in range(2, 30) if 2**k < longest]
    return [*steps, longest]


def shuffle_batches(
    samples: Samples, allowed: list[int], size: int, rng: np.random.Generator
) -> list[tuple[Array, int]]:
    """Shuffle samples into batches with about `size` targets (rows, for samples without) each.

    A sample is consecutive rows of a user. allowed : ascending widths; a sample is padded to the
    smallest width that holds it, and a batch has samples of one width. Returns (sample indices,
    width) pairs in random order.
    """
    batches: list[tuple[Array, int]] = []
    bucket = np.searchsorted(allowed, samples.count)
    for number, width in enumerate(allowed):
        selected = rng.permutation(np.flatnonzero(bucket == number))
        if selected.size:
            parts = min(len(selected), -(-int(samples.work[selected].sum()) // size))
            batches += [(part, width) for part in np.array_split(selected, parts)]
    return [batches[n] for n in rng.permutation(len(batches))]


@dataclass(frozen=True, eq=False)
class Batch:
    """b samples as tensors of `width` columns, each sample padded at its end.

    item : item positions, 0 in padding
    time : microseconds; padding repeats the last row's
    now : time of the next row; for the newest row, the request time
    count : rows of each sample, on the device; `lengths` is the same on the host
    position : flat indices (sample * width + column) of the rows that have a target
    target : the target items
    sample, user : the index of each sample in the epoch, and of its user
    vectors : input vectors of the items, used instead of the network's own table
    """

    item: Any
    time: Any
    now: Any
    count: Any
    lengths: Array
    position: Any
    target: Any
    sample: Array
    user: Array
    vectors: Any = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def width(self) -> int:
        """Return the number of columns, padding included."""
        return int(self.item.shape[1])

    @property
    def is_row(self) -> Any:
        """Return a b x width mask: True for rows, False for padding."""
        return torch.arange(self.width, device=self.item.device) < self.count[:, None]


class Feed:
    """Turns samples of one log into batches of tensors; the log's columns are on the device.

    rows : the log; samples : row ranges of it; device : a torch device
    """

    def __init__(self, rows: Rows, samples: Samples, device: Any) -> None:
        """Keep the log and its samples, and move the columns item and time to the device."""
        self.rows, self.samples, self.device = rows, samples, device
        self._item = torch.as_tensor(np.asarray(rows.item, np.int64)).to(device)
        self._time = torch.as_tensor(np.array(rows.time, np.int64)).to(device)

    def batch(self, sample: Array, width: int) -> Batch:
        """Return the samples of these indices as a batch of `width` columns, on the device.

        sample : indices of samples (row ranges of the log); width : at least the longest of them.
        Each line is padded at its end. `now` is the time of the row after each row; `lengths` and
        `count` are both the rows of each sample, in host and in device memory; targets are the rows
        that come next.
        """
        samples, row_start = self.samples, np.arange(len(sample)) * width
        count, n_targets = samples.count[sample], samples.n_targets[sample]
        first_target = np.repeat(row_start + count - n_targets, n_targets)
        position = self._to(first_target + _build_offsets(n_targets))
        first, length = self._to(samples.first[sample]), self._to(count)
        column = torch.arange(width, device=self.device)
        row = first[:, None] + torch.minimum(column, length[:, None] - 1)
        following = (row + 1).clamp_(max=len(self._item) - 1)
        return Batch(
            item=self._item[row] * (column < length[:, None]),
            time=self._time[row],
            now=self._time[following],
            count=length,
            lengths=count,
            position=position,
            target=self._item[following.view(-1)[position]],
            sample=sample,
            user=samples.user[sample],
        )

    def targets(self) -> Array:
        """Return every sample's target, the item of the row after it, if each has one target."""
        return np.take(self.rows.item, self.samples.first + self.samples.count)

    def same_target(self, sample: Array, rng: np.random.Generator) -> Array:
        """Draw for each sample another one with the same target; itself if there is none.

        A target is the item of the row after a sample. Takes and returns sample indices; every
        sample of the feed must have exactly one target. rng : of the draws
        """
        order, low, size = self._by_target
        start = low[sample]
        step = rng.integers(1, np.maximum(size[sample], 2))
        return order[start + (self._position[sample] - start + step) % size[sample]]

    @cached_property
    def _by_target(self) -> tuple[Array, Array, Array]:
        """Return samples sorted by target, and start and length of each sample's run there.

        A target is the item of the row after a sample. With the result (order, start, length),
        order[start[s] : start[s] + length[s]] are the samples with the target of sample s.
        """
        targets = self.targets()
        order = np.argsort(targets, kind="stable")
        low = np.searchsorted(targets[order], targets, "left")
        return order, low, np.searchsorted(targets[order], targets, "right") - low

    @cached_property
    def _position(self) -> Array:
        """Return each sample's index in `_by_target`'s order: samples sorted by target item."""
        position = np.empty(len(self.samples), np.int64)
        position[self._by_target[0]] = np.arange(len(self.samples))
        return position

    def _to(self, values: Array) -> Any:
        """Return an array as a tensor on the feed's device."""
        return torch.as_tensor(values).to(self.device)
