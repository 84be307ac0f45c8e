"""LinRec: attention without a softmax, whose cost grows with the length of a history and not with its square."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from talerec.neural.nets.base import Step, causal_mask, key_mask
from talerec.neural.nets.blocks import Attention, PostBlock, merge_heads, split_heads
from talerec.neural.nets.sasrec import SASRecNet
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor

_CHUNK = 64  # rows that look at each other directly; what came before them is a running sum


def feature(x: Tensor) -> Tensor:
    """ELU(x) / ||ELU(x)|| per head and row."""
    bent = F.elu(x)
    return bent / (bent.square().sum(-1, keepdim=True) + 1e-12).sqrt()


class LinearAttention(Attention):
    """phi(Q) (phi(K)^T V) / sqrt(e): over all rows, or (`causal`) over the rows so far."""

    def __init__(self, dim: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__(dim, heads, dropout)
        self.causal = causal

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        q, k, v = (
            split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        q, k = feature(q), feature(k)
        made = running(q, k, v) if self.causal else q @ ((k * mask.mT).mT @ v)
        out: Tensor = self.out(self.drop(merge_heads(made / math.sqrt(q.shape[-1]))))
        return out


def running(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q_t sum over s <= t of k_s v_s^T, in chunks: inside a chunk row by row, before it by one sum."""
    before = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], device=q.device, dtype=q.dtype)
    parts = []
    for a in range(0, q.shape[2], _CHUNK):
        mine, keys, values = (part[:, :, a : a + _CHUNK] for part in (q, k, v))
        inside = (mine @ keys.mT) * causal_mask(mine.shape[2], q.device)
        parts.append(mine @ before + inside @ values)
        before = before + keys.mT @ values
    return torch.cat(parts, 2)


class LinRecNet(SASRecNet):
    """SASRec's post-LN network with linear attention; it knows later rows unless `causal` is "yes"."""

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.causal = settings.own["causal"] == "yes"
        dim, heads, dropout = settings.dim, settings.heads, settings.dropout
        self.blocks = nn.ModuleList(
            PostBlock(dim, heads, dropout, LinearAttention(dim, heads, dropout, self.causal))
            for _ in range(settings.layers)
        )

    def encode(self, batch: Batch) -> Tensor:
        x, mask = self.start(batch), key_mask(batch)
        for block in self.blocks:
            x = block(x, mask)
        return x

    def loss(self, batch: Batch, step: Step) -> Tensor:
        if self.causal:
            return super().loss(batch, step)
        return step.criterion(self.ask(batch), self.head(), batch.target)
