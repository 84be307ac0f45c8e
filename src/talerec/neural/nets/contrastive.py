"""SASRec with a contrastive second loss: DuoRec, TCPSRec and TiCoSeRec."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from talerec.neural import views
from talerec.neural.losses import info_nce
from talerec.neural.nets.base import Net, Step, causal_mask
from talerec.neural.nets.blocks import apply_blocks
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.samples import Batch, widths
from talerec.neural.settings import Rows
from talerec.runtime import Array


def encode_same_targets(net: Net, batch: Batch, step: Step) -> Tensor:
    """Return, for each sample of a batch, the state of another random sample with its target.

    A sample is rows of a user, its target the next row's item. b x dim; a sample that is alone with
    its target is encoded itself. step : has all training samples and the random draws
    """
    others = step.feed.same_target(batch.sample, step.rng)
    longest, needed = net.settings.max_history, int(step.feed.samples.count[others].max())
    width = longest if net.fixed_width else min(w for w in widths(longest) if w >= needed)
    return net.encode_last(step.feed.batch(others, width))


def contrastive_loss(net: Net, batch: Batch, step: Step, temperature: float) -> Tensor:
    """Return DuoRec's loss: cross-entropy of the targets plus `contrast` times InfoNCE.

    InfoNCE pairs a second pass over each sample (with other dropout) with another sample of the
    same target. It is omitted for a batch of one sample. step : has the loss function and all
    training samples. temperature : of InfoNCE
    """
    loss = step.criterion(net.encode_last(batch), net.head(), batch.target)
    share = net.settings.specific["contrast"]
    if share == 0 or len(batch) < 2:
        return loss
    return loss + share * info_nce(
        net.encode_last(batch), encode_same_targets(net, batch, step), temperature
    )


class DuoRecNet(SASRecNet):
    """DuoRec: SASRec with one target per sample and a contrastive second loss.

    The contrastive loss pairs samples that have the same target.
    """

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return the loss of a batch: cross-entropy plus the contrastive loss.

        The contrastive loss (InfoNCE) draws the states of samples with the same target together.
        """
        return contrastive_loss(self, batch, step, self.settings.specific["temperature"])


_TEMPERATURE = 0.05
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_THURSDAY = 3  # the weekday of the first of January 1970, Monday being 0


class TimeGroups(NamedTuple):
    """Time groups of a batch's rows: sequences, and parts of a sequence without a long gap.

    All are integer labels; weekday 0 is Monday, quarter 0 the first six hours of the day (UTC).
    """

    sequence: Array  # of each row
    part: Array  # sub-sequence of each row
    part_sequence: Array  # sequence of each sub-sequence
    weekday: Array  # of each sub-sequence, by its last row, in UTC
    quarter: Array  # of the day, of each sub-sequence


def group_by_time(lengths: Array, time: Array, gap: float) -> TimeGroups:
    """Split concatenated sequences into sub-sequences at gaps of more than `gap` hours.

    lengths : rows of each sequence, at least one row in all; time : of every row, microseconds
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    breaks = np.empty(len(time), bool)
    breaks[0] = True
    breaks[1:] = (np.diff(time) > gap * _HOUR) | (np.diff(sequence) > 0)
    part = np.cumsum(breaks) - 1
    last = np.append(np.flatnonzero(breaks)[1:] - 1, len(time) - 1)
    weekday = (time[last] // _DAY + _THURSDAY) % 7
    return TimeGroups(sequence, part, sequence[last], weekday, time[last] % _DAY // (6 * _HOUR))


def group_loss(
    anchors: Tensor, group: Tensor, groups: int, members: Tensor, member_of: Tensor
) -> Tensor:
    """Return the summed cross-entropy of each anchor's group among all group means.

    Logits are cosines of anchors and group means, divided by 0.05. anchors : n x dim; group : n
    labels below `groups`; members : m x dim vectors that are averaged; member_of : their m group
    labels
    """
    means = torch.zeros(groups, anchors.shape[1], device=anchors.device, dtype=anchors.dtype)
    means = means.index_add(0, member_of, members)
    means = means / torch.bincount(member_of, minlength=groups)[:, None]
    scores = F.normalize(anchors, dim=1) @ F.normalize(means, dim=1).mT
    return F.cross_entropy(scores / _TEMPERATURE, group, reduction="sum")


class TCPSRecNet(SASRecNet):
    """SASRec with item vectors pre-trained on time groups for the first `warmup` epochs.

    Time groups are rows of the same sequence, visit, weekday or quarter of the day.
    """

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return `contrast` times the time-group loss in warm-up, SASRec's loss afterwards.

        Time groups are rows of the same sequence, visit, weekday or quarter of the day. step : has
        the number of the epoch; warm-up is the first `warmup` epochs.
        """
        if step.epoch >= self.warmup:
            return super().loss(batch, step)
        return self.settings.specific["contrast"] * self.time_group_loss(batch)

    def time_group_loss(self, batch: Batch) -> Tensor:
        """Return the pre-training loss: assign rows and visits to their time groups.

        A visit is a part of a sequence without a gap of more than `gap` hours. Rows are assigned to
        their sequence and visit; visits to those of their sequence with the same weekday, the same
        quarter of the day, and both.
        """
        device, inside = batch.item.device, np.arange(batch.width) < batch.lengths[:, None]
        cells = torch.as_tensor(np.flatnonzero(inside)).to(device)
        x = F.embedding(batch.item.view(-1)[cells], self.items)
        time = batch.time.view(-1)[cells].cpu().numpy()
        groups = group_by_time(batch.lengths, time, self.settings.specific["gap"])

        def groups_of(*keys: Array) -> tuple[Tensor, int]:
            """Return a group number per entry, equal for equal keys, and how many groups there are.

            keys : arrays of labels, all of the same length.
            """
            distinct, number = np.unique(np.stack(keys), axis=1, return_inverse=True)
            return torch.as_tensor(number.reshape(-1)).to(device), distinct.shape[1]

        loss = x.new_zeros(())
        for keys in ([groups.sequence], [groups.part]):
            group, count = groups_of(*keys)
            loss = loss + group_loss(x, group, count, x, group)
        part, parts = groups_of(groups.part)
        means = torch.zeros(parts, x.shape[1], device=device, dtype=x.dtype).index_add(0, part, x)
        means = means / torch.bincount(part, minlength=parts)[:, None]
        for keys in ([groups.weekday], [groups.quarter], [groups.weekday, groups.quarter]):
            group, count = groups_of(groups.part_sequence, *keys)
            loss = loss + group_loss(means, group, count, means, group)
        return loss


class TiCoSeRecNet(SASRecNet):
    """SASRec plus, after `warmup` epochs, `contrast` times InfoNCE of two views per sequence.

    A view is a randomly augmented copy of a sequence. spared : mask of users who are not augmented
    """

    view: views.ViewSettings
    spared: Any

    def prepare(self, rows: Rows) -> None:
        """Compute the most similar item of each item, and the users who are not augmented.

        rows : the training log. `view` keeps how augmented copies of sequences are drawn; `spared`
        flags the users whose time intervals vary least, whose sequences stay as they are.
        """
        specific = self.settings.specific
        rates = {
            name: specific[name] for name in ("crop", "mask", "reorder", "substitute", "insert")
        }
        self.view = views.ViewSettings(rates, specific["short"], views.similar_items(rows))
        self.spared = views.steadiest_users(rows, specific["spared"])

    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Return SASRec's loss, and after warm-up also InfoNCE of two views of each sequence.

        A view is a randomly augmented copy of a sequence; InfoNCE is weighted by the setting
        `contrast`. step : has the number of the epoch and the random draws.
        """
        loss = super().loss(batch, step)
        share = self.settings.specific["contrast"]
        if step.epoch < self.warmup or share == 0 or len(batch) < 2:
            return loss
        return loss + share * info_nce(
            self.encode_views(batch, step), self.encode_views(batch, step), 1.0
        )

    def encode_views(self, batch: Batch, step: Step) -> Tensor:
        """Return the states of a random augmented copy of each sequence, b x (width dim).

        Sequences of spared users, whose time intervals vary least, are encoded as they are. batch :
        b samples (rows of users); step : has the log, the samples and the random draws.
        """
        rows, samples = step.feed.rows, step.feed.samples
        augmented = []
        for sample, user in zip(batch.sample.tolist(), batch.user.tolist(), strict=True):
            first = samples.first[sample]
            sample_rows = slice(first, first + samples.count[sample])
            item = rows.item[sample_rows].astype("int64")
            if not self.spared[user]:
                item = views.draw_view(item, rows.time[sample_rows], self.view, step.rng)
            augmented.append(item)
        return self.encode_padded(views.pad_views(augmented, batch.width))

    def encode_padded(self, view: dict[str, Any]) -> Tensor:
        """Return the states of all columns of padded views, flattened to views x (width dim).

        view : from `views.pad_views`; masked rows and padding are not attended to and have state 0.
        """
        device = self.items.device
        item, is_row = (torch.as_tensor(view[name]).to(device) for name in ("item", "is_row"))
        x = F.embedding(item, self.items) * is_row[..., None] + self.places[: item.shape[1]]
        x = self.drop(self.edge(x))
        mask = causal_mask(item.shape[1], device) & is_row[:, None, None]
        return (apply_blocks(self.blocks, x, mask) * is_row[..., None]).flatten(1)
