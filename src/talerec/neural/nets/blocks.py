"""Attention, the layer after it, and four ways to put them together into a block."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


def split_heads(x: Tensor, heads: int) -> Tensor:
    """b x width x dim as b x heads x width x dim / heads."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the cells that a row may look at; a row that may look at none gets the mean of all."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(e)) V per head; `project`: a last product with a matrix."""

    def __init__(
        self, dim: int, heads: int, dropout: float, project: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=bias) if project else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """x: rows that look, source: rows that are looked at; more: for attention of other kinds"""
        q, k, v = (
            split_heads(layer(part), self.heads)
            for layer, part in ((self.query, x), (self.key, source), (self.value, source))
        )
        weights = attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        made: Tensor = self.out(merge_heads(self.drop(weights) @ v))
        return made


class Feedforward(nn.Module):
    """W2 act(W1 x + c1) + c2."""

    def __init__(self, dim: int, inner: int, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.activation(self.first(x)))
        return made


class PostBlock(nn.Module):
    """y = LN(x + drop(Att(x))), z = LN(y + drop(FFN(y))); another layer may stand in for attention."""

    def __init__(
        self, dim: int, heads: int, dropout: float, attention: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.attention = attention or Attention(dim, heads, dropout)
        self.feed = Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = (nn.LayerNorm(dim, eps=1e-12) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.after(self.norm(x + self.drop(self.attention(x, x, mask))))

    def after(self, y: Tensor) -> Tensor:
        """The second half of the block."""
        made: Tensor = self.feed_norm(y + self.drop(self.feed(y)))
        return made


class PreBlock(nn.Module):
    """y = x + drop(Att(LN x)), z = y + drop(FFN(LN y))."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.feed = Attention(dim, heads, dropout), Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = self.norm(x)
        y = x + self.drop(self.attention(rows, rows, mask))
        made: Tensor = y + self.drop(self.feed(self.feed_norm(y)))
        return made


class OriginalBlock(nn.Module):
    """SASRec as published: y = LN(x) + Att(LN x, x), z = LN(y) + FFN(LN y), FFN with ReLU inside and of the same size."""

    def __init__(
        self, dim: int, heads: int, dropout: float, attention: Attention | None = None
    ) -> None:
        super().__init__()
        self.attention = attention or Attention(dim, heads, dropout, project=False)
        self.feed = Feedforward(dim, dim, nn.ReLU)
        self.norm, self.feed_norm = (nn.LayerNorm(dim, eps=1e-8) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, *more: Any) -> Tensor:
        rows = self.norm(x)
        rows = self.feed_norm(rows + self.attention(rows, x, mask, *more))
        made: Tensor = rows + self.drop(self.feed(rows))
        return made


class GatedBlock(nn.Module):
    """LiGR: y = x + sigmoid(G1 x) * drop(Att(LN x)), z = y + sigmoid(G2 y) * drop(SwiGLU(LN y))."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.gate, self.feed_gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.first, self.third = (nn.Linear(dim, 4 * dim, bias=False) for _ in range(2))
        self.second = nn.Linear(4 * dim, dim, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows = self.norm(x)
        y = x + self.gate(x).sigmoid() * self.drop(self.attention(rows, rows, mask))
        made: Tensor = y + self.feed_gate(y).sigmoid() * self.drop(self._swiglu(self.feed_norm(y)))
        return made

    def _swiglu(self, u: Tensor) -> Tensor:
        """W2 drop(silu(W1 u) * W3 u)"""
        made: Tensor = self.second(self.drop(F.silu(self.first(u)) * self.third(u)))
        return made
