"""HSTU: attention without a softmax, gated, that knows when it is asked."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from talerec.neural.losses import Head
from talerec.neural.nets.base import Net, causal_mask
from talerec.neural.nets.blocks import merge_heads, split_heads
from talerec.neural.samples import Batch
from talerec.neural.settings import Settings

Tensor = torch.Tensor

_STEP = 0.301  # of a bucket, in natural logarithms of seconds
_EPS = 1e-6
_AT_ONCE = 2**18  # places of a table's reading that are added up in one product


def looked_up(table: Tensor, index: Tensor) -> Tensor:
    """The number that each entry of `index` names in a short table (n x 1)."""
    made: Tensor = _LookUp.apply(table, index)  # type: ignore[no-untyped-call]
    return made


def summed(index: Tensor, given: Tensor, size: int, at_once: int = _AT_ONCE) -> Tensor:
    """What is given to each name below `size`, added up by products: many times faster on a GPU than one by one."""
    names, total = torch.arange(size, device=given.device), given.new_zeros(size)
    for a in range(0, len(index), at_once):
        named = index[a : a + at_once, None] == names
        total += given[a : a + at_once] @ named.to(given.dtype)
    return total


class _LookUp(torch.autograd.Function):
    """Reading a short table at very many places."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(table)
        return table[:, 0][index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        index, given = ctx.saved_tensors[0].flatten(), grads[0].flatten()
        if given.device.type == "cpu":
            return torch.bincount(index, given, ctx.size).to(given.dtype)[:, None], None
        return summed(index, given, ctx.size)[:, None], None


class GatedUnit(nn.Module):
    """[u, v, q, k] = SiLU(W LN(x)), A = SiLU(q k^T + place + time) / M, o = W_o drop(LN(A v) * u) + x."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        dim, self.heads, self.longest = settings.dim, settings.heads, settings.max_history
        self.enter, self.leave = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, dim)
        self.by_place = nn.Parameter(torch.empty(self.longest, 1))
        self.by_time = nn.Parameter(torch.empty(settings.own["buckets"] + 1, 1))
        self.drop = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, mask: Tensor, back: Tensor, bucket: Tensor) -> Tensor:
        """back: how many places row j stands before row i; bucket: how long before row i's next row j was"""
        dim = x.shape[2]
        made = F.silu(self.enter(F.layer_norm(x, (dim,), eps=_EPS)))
        u, v, q, k = made.chunk(4, 2)
        v, q, k = (split_heads(part.contiguous(), self.heads) for part in (v, q, k))
        near = looked_up(self.by_place, back) + looked_up(self.by_time, bucket)
        weights = F.silu(q @ k.mT + near[:, None]) * mask / self.longest
        got = F.layer_norm(merge_heads(weights @ v), (dim,), eps=_EPS)
        out: Tensor = self.leave(self.drop(got * u)) + x
        return out


class HSTUNet(Net):
    """States and item vectors have length 1; scores are their cosines over `temperature`."""

    shares_table = False  # what is read is not normalised

    def __init__(self, items: int, settings: Settings) -> None:
        super().__init__(items, settings)
        self.places = nn.Parameter(torch.empty(settings.max_history, settings.dim))
        self.blocks = nn.ModuleList(GatedUnit(settings) for _ in range(settings.layers))
        self.drop = nn.Dropout(settings.dropout)

    def buckets(self, batch: Batch) -> Tensor:
        """How long row j (last axis) was before the row after row i came: ln(seconds) / .301, in whole numbers."""
        seconds = (batch.now[:, :, None] - batch.time[:, None]).double() / 1e6
        bucket = (seconds.clamp(min=1.0).log() / _STEP).floor().long()
        made: Tensor = bucket.clamp(0, self.settings.own["buckets"])
        return made

    def encode(self, batch: Batch) -> Tensor:
        x = self.embed(batch) * math.sqrt(self.settings.dim) + self.places[: batch.width]
        x = self.drop(x)
        column = torch.arange(batch.width, device=x.device)
        back = (column[:, None] - column).clamp(min=0)
        mask, bucket = causal_mask(batch.width, x.device), self.buckets(batch)
        for block in self.blocks:
            x = block(x, mask, back, bucket)
        made: Tensor = F.normalize(x, dim=2, eps=_EPS) / self.settings.own["temperature"]
        return made

    def head(self) -> Head:
        return Head(F.normalize(self.items, dim=1, eps=_EPS), None)
