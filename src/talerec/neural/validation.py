"""Validation while training: NDCG@10 of a network on held-out last rows of some users."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from talerec.neural.nets.base import Net
from talerec.neural.samples import Batch, Feed, Samples
from talerec.neural.settings import Rows
from talerec.runtime import Array

#: Scores in memory at once, and cells (samples x columns) that are encoded at once.
SCORES, CELLS = 2**25, 2**17
_K = 10


class ValidationRows(NamedTuple):
    """Held-out rows of a log: row[j] is the target, rows begin[j]..row[j] its user's history.

    The numbers are row numbers of the log; row[j] itself is not part of the history.
    """

    begin: Array  # the first row of the user
    row: Array

    def samples(self, longest: int) -> Samples:
        """Return one sample per held-out row: up to `longest` rows before it, with it as target."""
        count = np.minimum(longest, self.row - self.begin)
        return Samples(self.row - count, count, np.ones_like(count), np.arange(len(count)))


def draw_users(rows: Rows, max_users: int, seed: int) -> Array:
    """Draw up to `max_users` validation users among those with at least three rows.

    Returns their positions, ascending.
    """
    eligible = np.flatnonzero(np.diff(rows.ptr) >= 3)
    if len(eligible) <= max_users:
        return eligible
    return np.sort(np.random.default_rng([seed, 1]).choice(eligible, max_users, replace=False))


def hold_out(rows: Rows, users: Array) -> tuple[ValidationRows, Array]:
    """Hold out the last row of these users; return (held-out rows, end).

    users : positions. Held-out rows have, per user, the number of its first row and of the held-out
    row. end : for every user of the log, the row after its last training row
    """
    begin, end = np.asarray(rows.ptr[:-1], np.int64), np.array(rows.ptr[1:], np.int64)
    end[users] -= 1
    return ValidationRows(begin[users], end[users].copy()), end


def mean_ndcg(net: Net, feed: Feed, allowed: list[int]) -> float:
    """Return the mean NDCG@10 of a network over validation samples with one target each.

    A sample is rows of a user before a held-out row, its target. Items of the sample's rows are not
    ranked, except the target. allowed : ascending widths that samples are padded to. Afterwards the
    network is in training mode.
    """
    samples, head = feed.samples, net.head()
    total = 0.0
    net.eval()
    with torch.no_grad():
        for number, width in enumerate(allowed):
            selected = np.flatnonzero(np.searchsorted(allowed, samples.count) == number)
            size = max(1, min(SCORES // len(head.table), CELLS // width))
            for a in range(0, len(selected), size):
                batch = feed.batch(selected[a : a + size], width)
                scores = net.encode_last(batch) @ head.table.mT
                total += float(
                    _sum_gains(scores if head.bias is None else scores + head.bias, batch)
                )
    net.train()
    return total / max(1, len(samples))


def _sum_gains(scores: Tensor, batch: Batch) -> Tensor:
    """Return the sum of 1 / log2(1 + rank) over the targets that rank in the top ten.

    scores : samples x items; batch : the samples' items and the target of each. Items of a sample's
    rows do not count as ranked above its target.
    """
    target_scores = scores.gather(1, batch.target[:, None])
    seen = torch.where(batch.is_row, batch.item, batch.item[:, :1])
    ahead = scores.scatter(1, seen, -torch.inf) > target_scores
    rank = 1 + ahead.sum(1)
    return torch.where(rank <= _K, 1 / torch.log2(1 + rank), 0.0).sum()
