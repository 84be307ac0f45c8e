"""Held-back rows: how well a network finds them, by NDCG@10, while it is being trained."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from talerec.neural.nets.base import Net
from talerec.neural.samples import Batch, Feed, Samples
from talerec.neural.settings import Rows
from talerec.runtime.arrays import Array

Tensor = torch.Tensor

#: Scores that are held at once, and cells that are encoded at once.
SCORES, CELLS = 2**25, 2**17
_K = 10


class Judges(NamedTuple):
    """Questions with known answers: after the rows before row `row[j]` of the log came that row."""

    begin: Array  # where the asker's rows begin
    row: Array

    def samples(self, longest: int) -> Samples:
        """The rows before each held-back row, as samples with that row as their target."""
        count = np.minimum(longest, self.row - self.begin)
        return Samples(self.row - count, count, np.ones_like(count), np.arange(len(count)))


def drawn(rows: Rows, most: int, seed: int) -> Array:
    """Up to `most` of the users with three rows or more, whose last rows are held back."""
    able = np.flatnonzero(np.diff(rows.ptr) >= 3)
    if len(able) <= most:
        return able
    return np.sort(np.random.default_rng([seed, 1]).choice(able, most, replace=False))


def held_back(rows: Rows, users: Array) -> tuple[Judges, Array]:
    """The last rows of these users as judges, and where the rows of every user end without them."""
    begin, end = np.asarray(rows.ptr[:-1], np.int64), np.array(rows.ptr[1:], np.int64)
    end[users] -= 1
    return Judges(begin[users], end[users].copy()), end


def ndcg(net: Net, feed: Feed, allowed: list[int]) -> float:
    """The mean NDCG@10 of a feed of judges; what the asker has in its window, but the target, is not ranked."""
    made, head = feed.made, net.head()
    total = 0.0
    net.eval()
    with torch.no_grad():
        for number, width in enumerate(allowed):
            mine = np.flatnonzero(np.searchsorted(allowed, made.count) == number)
            size = max(1, min(SCORES // len(head.table), CELLS // width))
            for a in range(0, len(mine), size):
                batch = feed.batch(mine[a : a + size], width)
                scores = net.ask(batch) @ head.table.mT
                total += float(_gains(scores if head.bias is None else scores + head.bias, batch))
    net.train()
    return total / max(1, len(made))


def _gains(scores: Tensor, batch: Batch) -> Tensor:
    """The sum of 1 / log2(1 + place) over the targets that stand among the first ten."""
    own = scores.gather(1, batch.target[:, None])
    seen = torch.where(batch.known, batch.item, batch.item[:, :1])
    ahead = scores.scatter(1, seen, -torch.inf) > own
    place = 1 + ahead.sum(1)
    return torch.where(place <= _K, 1 / torch.log2(1 + place), 0.0).sum()
