"""GRU4Rec: a recurrent state that each row moves on."""

from __future__ import annotations

import torch
from torch import nn

from talerec.neural.nets.base import Net
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor


class GRU4RecNet(Net):
    """h_t = GRU(E[i_t], h_{t-1}) from h = 0; scores by the same vectors, and a bias of each item."""

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.gru = nn.GRU(settings.dim, settings.dim, settings.layers, batch_first=True)
        self.drop = nn.Dropout(settings.dropout)
        self.bias = nn.Parameter(torch.empty(items))

    def reset(self) -> None:
        super().reset()
        for value in self.parameters():
            if value.dim() > 1:
                nn.init.xavier_uniform_(value)

    def encode(self, batch: Batch) -> Tensor:
        made: Tensor = self.drop(self.gru(self.drop(self.embed(batch)))[0])
        return made
