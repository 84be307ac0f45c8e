"""BSARec: attention, and beside it a filter that weighs slow and fast changes along the history."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import nn

from talerec.neural.nets.base import PrefixNet, causal_mask
from talerec.neural.nets.blocks import PostBlock
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor


def low_pass(width: int, bins: int) -> Tensor:
    """The matrix that keeps the lowest frequencies of a sequence: C[t, s] = (1 + 2 sum_k cos(2 pi k (t - s) / M)) / M.

    k runs from 1 to bins // 2; where M is even, its half counts once.
    """
    t = torch.arange(width, dtype=torch.float64)
    made = torch.ones(width, width, dtype=torch.float64)
    for k in range(1, min(bins // 2, width // 2) + 1):
        twice = 1 if 2 * k == width else 2
        made += twice * torch.cos(2 * math.pi * k * (t[:, None] - t) / width)
    return (made / width).float()


class FilterBlock(PostBlock):
    """z = FFN_post(share F(x) + (1 - share) A(x)), F(x) = LN(drop(low + beta^2 high) + x), A the attention's half."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.dim, settings.heads, settings.dropout)
        self.share = settings.own["share"]
        self.beta = nn.Parameter(torch.empty(1, settings.dim))
        self.filter_norm = nn.LayerNorm(settings.dim, eps=1e-12)
        made = low_pass(settings.max_history, settings.own["bins"])
        self.register_buffer("low", made, persistent=False)
        self.low: Tensor

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        low = self.low @ x
        filtered = self.filter_norm(self.drop(low + self.beta**2 * (x - low)) + x)
        looked = self.norm(x + self.drop(self.attention(x, x, mask)))
        return self.after(self.share * filtered + (1 - self.share) * looked)


class BSARecNet(PrefixNet):
    """Histories stand at the end of `max_history` columns; cells before them hold the zero vector and their position."""

    fixed_width: ClassVar[bool] = True

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.places = nn.Parameter(torch.empty(settings.max_history, settings.dim))
        self.edge = nn.LayerNorm(settings.dim, eps=1e-12)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(FilterBlock(settings) for _ in range(settings.layers))

    def reset(self) -> None:
        super().reset()
        for module in self.modules():
            if isinstance(module, FilterBlock):
                nn.init.normal_(module.beta)

    def ask(self, batch: Batch) -> Tensor:
        vectors = self.embed(batch)
        column = torch.arange(batch.width, device=vectors.device)
        source = column - (batch.width - batch.count)[:, None]
        there = source >= 0
        index = source.clamp(min=0)[..., None].expand_as(vectors)
        x = self.drop(self.edge(vectors.gather(1, index) * there[..., None] + self.places))
        mask = causal_mask(batch.width, vectors.device) & there[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        made: Tensor = x[:, -1]
        return made
