"""BERT4Rec: attention in both directions, trained by finding rows that were hidden."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from talerec.neural.nets.base import Net, Step
from talerec.neural.nets.blocks import PostBlock
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings
from talerec.runtime.arrays import Array

Tensor = torch.Tensor

_LAST_ALONE = 0.5  # share of the batches in which only the last row is hidden, as when it is asked


class BERT4RecNet(Net):
    """Post-LN blocks that look both ways. When it is asked, a hidden row follows the history, and its state is the answer."""

    causal: bool = False
    hides_rows: ClassVar[bool] = True

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        dim = settings.dim
        self.places = nn.Parameter(torch.empty(settings.max_history, dim))
        self.hidden = nn.Parameter(torch.empty(1, dim))
        self.blocks = nn.ModuleList(
            PostBlock(dim, settings.heads, settings.dropout) for _ in range(settings.layers)
        )
        self.edge = nn.LayerNorm(dim, eps=1e-12)
        self.last, self.last_norm = nn.Linear(dim, dim), nn.LayerNorm(dim, eps=1e-12)
        self.drop = nn.Dropout(settings.dropout)
        self.bias = nn.Parameter(torch.empty(items))

    @property
    def longest_asked(self) -> int:
        return self.settings.max_history - 1

    def _states(self, vectors: Tensor, known: Tensor) -> Tensor:
        x = self.drop(self.edge(vectors + self.places[: vectors.shape[1]]))
        for block in self.blocks:
            x = block(x, known[:, None, None])
        made: Tensor = self.last_norm(F.gelu(self.last(x)))
        return made

    def ask(self, batch: Batch) -> Tensor:
        width = int(batch.lengths.max())
        vectors = F.pad(self.embed(batch)[:, :width], (0, 0, 0, 1))
        column = torch.arange(width + 1, device=vectors.device)
        asked = column == batch.count[:, None]
        states = self._states(
            torch.where(asked[..., None], self.hidden, vectors), column <= batch.count[:, None]
        )
        return states[torch.arange(len(batch), device=vectors.device), batch.count]

    def loss(self, batch: Batch, step: Step) -> Tensor:
        device = batch.item.device
        hide = hidden_rows(batch, self.settings.own["masked"], step.rng)
        vectors = torch.where(
            torch.as_tensor(hide).to(device)[..., None], self.hidden, self.embed(batch)
        )
        place = torch.as_tensor(np.flatnonzero(hide)).to(device)
        states = self._states(vectors, batch.known).flatten(0, 1)[place]
        return step.criterion(states, self.head(), batch.item.view(-1)[place])


def hidden_rows(batch: Batch, share: float, rng: np.random.Generator) -> Array:
    """Which cells are hidden: a share of the rows, or the last row of each sample; at least one of each sample."""
    column = np.arange(batch.width)
    last: Array = column == (batch.lengths - 1)[:, None]
    if rng.random() < _LAST_ALONE:
        return last
    hide: Array = (rng.random(last.shape) < share) & (column < batch.lengths[:, None])
    hide |= last & ~hide.any(1, keepdims=True)
    return hide
