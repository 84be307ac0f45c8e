"""DuoRec, and what FEARec takes from it: samples with the same target should have states alike."""

from __future__ import annotations

import torch

from talerec.neural.losses import info_nce
from talerec.neural.nets.base import Net, Step
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.samples import Batch, widths

Tensor = torch.Tensor


def partners(net: Net, batch: Batch, step: Step) -> Tensor:
    """The states of other samples with the same targets."""
    drawn = step.feed.same_target(batch.sample, step.rng)
    longest, most = net.settings.max_history, int(step.feed.made.count[drawn].max())
    width = longest if net.fixed_width else min(w for w in widths(longest) if w >= most)
    return net.ask(step.feed.batch(drawn, width))


def with_contrast(net: Net, batch: Batch, step: Step, temperature: float) -> Tensor:
    """The loss of the targets, and `contrast` times InfoNCE of a second pass with states of the same targets."""
    loss = step.criterion(net.ask(batch), net.head(), batch.target)
    share = net.settings.own["contrast"]
    if share == 0 or len(batch) < 2:
        return loss
    made: Tensor = loss + share * info_nce(net.ask(batch), partners(net, batch, step), temperature)
    return made


class DuoRecNet(SASRecNet):
    """SASRec on prefixes with a second loss."""

    def loss(self, batch: Batch, step: Step) -> Tensor:
        return with_contrast(self, batch, step, self.settings.own["temperature"])
