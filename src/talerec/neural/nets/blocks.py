"""Attention, feed-forward layers, and four transformer blocks built from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape b x width x dim to b x heads x width x (dim / heads)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Invert `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of scores over the last axis, where `mask` is True; 0 elsewhere.

    A row whose mask is all False gets equal weights over all columns.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


def apply_blocks(blocks: Iterable[nn.Module], x: Tensor, *inputs: Any) -> Tensor:
    """Return the output of blocks applied to x one after the other; each also gets `inputs`."""
    for block in blocks:
        x = block(x, *inputs)
    return x


class Attention(nn.Module):
    """Multi-head attention softmax(Q K^T / sqrt(e)) V, where e = dim / heads.

    project : with an output projection; bias : linear layers have a bias
    """

    def __init__(
        self, dim: int, heads: int, dropout: float, project: bool = True, bias: bool = True
    ) -> None:
        """Create the linear layers of queries, keys, values and output, each dim x dim."""
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.out = nn.Linear(dim, dim, bias=bias) if project else nn.Identity()
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """Return the attended values of rows `x` (queries) over `source` (keys and values).

        x, source : b x width x dim; mask : True where a query may attend to a key, broadcast to
        b x heads x width x width; more : inputs of subclasses, ignored here
        """
        q, k, v = (
            split_heads(layer(part), self.heads)
            for layer, part in ((self.query, x), (self.key, source), (self.value, source))
        )
        weights = attention_weights(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        return self.out(merge_heads(self.drop(weights) @ v))


class Feedforward(nn.Module):
    """Two-layer network W2 act(W1 x + c1) + c2 with `inner` hidden units, applied to each row."""

    def __init__(self, dim: int, inner: int, activation: type[nn.Module] = nn.GELU) -> None:
        """Create the two linear layers, dim to inner and inner to dim, and the activation."""
        super().__init__()
        self.first, self.second = nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))


class PostBlock(nn.Module):
    """Post-LN transformer block: y = LN(x + drop(Att(x))), z = LN(y + drop(FFN(y))).

    `attention` replaces the softmax attention Att.
    """

    def __init__(
        self, dim: int, heads: int, dropout: float, attention: nn.Module | None = None
    ) -> None:
        """Create attention, feed-forward network (4 dim hidden units) and both layer norms."""
        super().__init__()
        self.attention = attention or Attention(dim, heads, dropout)
        self.feed = Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = (nn.LayerNorm(dim, eps=1e-12) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the block's output for rows x, both b x width x dim.

        Attention, then a feed-forward network, each with a residual and a layer norm after it. mask
        : True where attention is allowed
        """
        return self.feed_forward(self.norm(x + self.drop(self.attention(x, x, mask))))

    def feed_forward(self, y: Tensor) -> Tensor:
        """Return LN(y + drop(FFN(y))): the feed-forward half of the block, for rows y."""
        return self.feed_norm(y + self.drop(self.feed(y)))


class PreBlock(nn.Module):
    """Pre-LN transformer block: y = x + drop(Att(LN x)), z = y + drop(FFN(LN y))."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        """Create attention, feed-forward network (4 dim hidden units) and both layer norms."""
        super().__init__()
        self.attention, self.feed = Attention(dim, heads, dropout), Feedforward(dim, 4 * dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the block's output for rows x, both b x width x dim.

        Attention, then a feed-forward network, each after a layer norm and with a residual. mask :
        True where attention is allowed
        """
        rows = self.norm(x)
        y = x + self.drop(self.attention(rows, rows, mask))
        return y + self.drop(self.feed(self.feed_norm(y)))


class OriginalBlock(nn.Module):
    """SASRec's block as published: y = LN(LN(x) + Att(LN x, x)), z = y + drop(FFN(y)).

    Queries come from LN(x), keys and values from x; FFN has ReLU and dim hidden units. `attention`
    replaces the softmax attention Att, and gets the further inputs `more` of the forward pass.
    """

    def __init__(
        self, dim: int, heads: int, dropout: float, attention: Attention | None = None
    ) -> None:
        """Create attention, feed-forward network (dim hidden units) and both layer norms."""
        super().__init__()
        self.attention = attention or Attention(dim, heads, dropout, project=False)
        self.feed = Feedforward(dim, dim, nn.ReLU)
        self.norm, self.feed_norm = (nn.LayerNorm(dim, eps=1e-8) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, *more: Any) -> Tensor:
        """Return the block's output for rows x, both b x width x dim.

        Queries are the normalised rows, keys and values the rows themselves. mask : True where
        attention is allowed; more : further inputs of the attention
        """
        rows = self.norm(x)
        rows = self.feed_norm(rows + self.attention(rows, x, mask, *more))
        return rows + self.drop(self.feed(rows))


class GatedBlock(nn.Module):
    """LiGR's transformer block, in which learned gates scale both residual branches.

    y = x + sigmoid(G1 x) * drop(Att(LN x)), z = y + sigmoid(G2 y) * drop(SwiGLU(LN y))
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        """Create attention, both gates and layer norms, and SwiGLU's three matrices."""
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.gate, self.feed_gate = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.first, self.third = (nn.Linear(dim, 4 * dim, bias=False) for _ in range(2))
        self.second = nn.Linear(4 * dim, dim, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the block's output for rows x, both b x width x dim.

        Attention, then SwiGLU, each scaled by a learned gate and with a residual. mask : True where
        attention is allowed
        """
        rows = self.norm(x)
        y = x + self.gate(x).sigmoid() * self.drop(self.attention(rows, rows, mask))
        return y + self.feed_gate(y).sigmoid() * self.drop(self._swiglu(self.feed_norm(y)))

    def _swiglu(self, u: Tensor) -> Tensor:
        """Return W2 drop(silu(W1 u) * W3 u)."""
        return self.second(self.drop(F.silu(self.first(u)) * self.third(u)))
