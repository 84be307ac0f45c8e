"""TCPSRec: SASRec whose item vectors first learn which rows stand together in time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from talerec.neural.nets.base import Step
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.samples import Batch
from talerec.runtime.arrays import Array

Tensor = torch.Tensor

_TEMPERATURE = 0.05
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_THURSDAY = 3  # the weekday of the first of January 1970, Monday being 0


class Together(NamedTuple):
    """Which rows of a batch stand together: for each row its sequence and sub-sequence, for each sub-sequence more."""

    sequence: Array  # of each row
    part: Array  # sub-sequence of each row
    owner: Array  # sequence of each sub-sequence
    weekday: Array  # of each sub-sequence, by its last row, in UTC
    quarter: Array  # of the day


def together(lengths: Array, time: Array, gap: float) -> Together:
    """Rows of sequences of these lengths, one after the other, broken where more than `gap` hours lie between two.

    time: of every row, microseconds
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    breaks = np.empty(len(time), bool)
    breaks[0] = True
    breaks[1:] = (np.diff(time) > gap * _HOUR) | (np.diff(sequence) > 0)
    part = np.cumsum(breaks) - 1
    last = np.append(np.flatnonzero(breaks)[1:] - 1, len(time) - 1)
    weekday = (time[last] // _DAY + _THURSDAY) % 7
    return Together(sequence, part, sequence[last], weekday, time[last] % _DAY // (6 * _HOUR))


def pull(anchors: Tensor, group: Tensor, groups: int, members: Tensor, member_of: Tensor) -> Tensor:
    """The sum over anchors of how badly each finds the mean of its group's members among the means of all groups."""
    means = torch.zeros(groups, anchors.shape[1], device=anchors.device, dtype=anchors.dtype)
    means = means.index_add(0, member_of, members)
    means = means / torch.bincount(member_of, minlength=groups)[:, None]
    scores = F.normalize(anchors, dim=1) @ F.normalize(means, dim=1).mT
    return F.cross_entropy(scores / _TEMPERATURE, group, reduction="sum")


class TCPSRecNet(SASRecNet):
    """For `warmup` epochs the item vectors alone are trained: rows and sub-sequences find what they belong to."""

    @property
    def warmup(self) -> int:
        return int(self.settings.own["warmup"])

    def loss(self, batch: Batch, step: Step) -> Tensor:
        if step.epoch >= self.warmup:
            return super().loss(batch, step)
        made: Tensor = self.settings.own["contrast"] * self.belonging(batch)
        return made

    def belonging(self, batch: Batch) -> Tensor:
        """Row -> sequence, row -> sub-sequence, sub-sequence -> its user's same weekday, quarter of the day, and both."""
        device, inside = batch.item.device, np.arange(batch.width) < batch.lengths[:, None]
        cells = torch.as_tensor(np.flatnonzero(inside)).to(device)
        x = F.embedding(batch.item.view(-1)[cells], self.items)
        time = batch.time.view(-1)[cells].cpu().numpy()
        found = together(batch.lengths, time, self.settings.own["gap"])

        def groups_of(*keys: Array) -> tuple[Tensor, int]:
            known, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
            return torch.as_tensor(number.reshape(-1)).to(device), known.shape[1]

        loss = x.new_zeros(())
        for keys in ([found.sequence], [found.part]):
            group, count = groups_of(*keys)
            loss = loss + pull(x, group, count, x, group)
        part, parts = groups_of(found.part)
        means = torch.zeros(parts, x.shape[1], device=device, dtype=x.dtype).index_add(0, part, x)
        means = means / torch.bincount(part, minlength=parts)[:, None]
        for keys in ([found.weekday], [found.quarter], [found.weekday, found.quarter]):
            group, count = groups_of(found.owner, *keys)
            loss = loss + pull(means, group, count, means, group)
        return loss
