"""SASRec: attention over the rows so far. Also with LiGR's gated blocks (eSASRec)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import nn

from talerec.neural.losses import Head
from talerec.neural.nets.base import Net, causal_mask
from talerec.neural.nets.blocks import GatedBlock, OriginalBlock, PostBlock, PreBlock
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor

_BLOCKS = {"post": PostBlock, "pre": PreBlock, "original": OriginalBlock, "gated": GatedBlock}
_EPS = {"post": 1e-12, "original": 1e-8}


class SASRecNet(Net):
    """Item vectors plus positions from the start of the window, then blocks of causal attention.

    norm : "post", as RecBole has it; "original", as published; "pre"; "gated" for LiGR's blocks
    output : "shared": items are scored by the vectors that they are read by; "own": by others
    """

    usual_norm: ClassVar[str] = "post"

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.norm = settings.own.get("norm", self.usual_norm)
        self.shares_table = settings.own.get("output", "shared") == "shared"
        dim, dropout = settings.dim, settings.dropout
        self.places = nn.Parameter(torch.empty(settings.max_history, dim))
        self.blocks = nn.ModuleList(
            _BLOCKS[self.norm](dim, settings.heads, dropout) for _ in range(settings.layers)
        )
        self.edge = (
            nn.Identity() if self.norm == "gated" else nn.LayerNorm(dim, _EPS.get(self.norm, 1e-5))
        )
        self.drop = nn.Dropout(dropout)
        if not self.shares_table:
            self.targets = nn.Parameter(torch.empty(items, dim))

    def reset(self) -> None:
        super().reset()
        if self.norm == "gated":
            for value in self.parameters():
                if value.dim() > 1:
                    nn.init.xavier_normal_(value)

    def start(self, batch: Batch) -> Tensor:
        """What the first block reads."""
        x = self.embed(batch)
        if self.norm == "original":
            x = x * math.sqrt(x.shape[2])
        x = x + self.places[: batch.width]
        made: Tensor = self.drop(self.edge(x) if self.norm == "post" else x)
        return made

    def encode(self, batch: Batch) -> Tensor:
        x, mask = self.start(batch), causal_mask(batch.width, batch.item.device)
        for block in self.blocks:
            x = block(x, mask)
        return x if self.norm == "post" else self.edge(x)

    def head(self) -> Head:
        return Head(self.items if self.shares_table else self.targets, self.bias)


class ESASRecNet(SASRecNet):
    """SASRec with LiGR's gated blocks."""

    usual_norm: ClassVar[str] = "gated"
