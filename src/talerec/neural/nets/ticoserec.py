"""TiCoSeRec: SASRec, and two views of each sequence, made where time is uneven, that should have states alike."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from talerec.neural import views
from talerec.neural.losses import info_nce
from talerec.neural.nets.base import Step, causal_mask
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.samples import Batch
from talerec.neural.settings import Rows

Tensor = torch.Tensor


class TiCoSeRecNet(SASRecNet):
    """After `warmup` epochs, `contrast` times InfoNCE of two views of each sequence is added to the loss."""

    view: views.View
    spared: Any

    @property
    def warmup(self) -> int:
        return int(self.settings.own["warmup"])

    def prepare(self, rows: Rows) -> None:
        own = self.settings.own
        rates = {name: own[name] for name in ("crop", "mask", "reorder", "substitute", "insert")}
        self.view = views.View(rates, own["short"], views.similar_items(rows))
        self.spared = views.even_users(rows, own["spared"])

    def loss(self, batch: Batch, step: Step) -> Tensor:
        loss = super().loss(batch, step)
        share = self.settings.own["contrast"]
        if step.epoch < self.warmup or share == 0 or len(batch) < 2:
            return loss
        made: Tensor = loss + share * info_nce(self.seen(batch, step), self.seen(batch, step), 1.0)
        return made

    def seen(self, batch: Batch, step: Step) -> Tensor:
        """A view of each sequence as one long vector: the states of all its columns."""
        rows, made = step.feed.rows, step.feed.made
        found = []
        for sample, user in zip(batch.sample.tolist(), batch.user.tolist(), strict=True):
            first = made.first[sample]
            mine = slice(first, first + made.count[sample])
            item = rows.item[mine].astype("int64")
            if not self.spared[user]:
                item = views.drawn(item, rows.time[mine], self.view, step.rng)
            found.append(item)
        return self.encode_view(views.padded(found, batch.width))

    def encode_view(self, view: dict[str, Any]) -> Tensor:
        """States with holes that nobody looks at, flattened; 0 where there is no row."""
        device = self.items.device
        item, there = (torch.as_tensor(view[name]).to(device) for name in ("item", "there"))
        x = F.embedding(item, self.items) * there[..., None] + self.places[: item.shape[1]]
        x = self.drop(self.edge(x))
        mask = causal_mask(item.shape[1], device) & there[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        made: Tensor = (x * there[..., None]).flatten(1)
        return made
